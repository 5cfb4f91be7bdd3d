"""The edge's server: its listeners, the hand of its clock, its drain."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterable
from typing import Any, cast

from aiohttp import web

from proxy.clock import Clock, SystemClock
from proxy.edge.answers import DateLine
from proxy.edge.carrier import Carrier
from proxy.edge.connection import Connection
from proxy.edge.doorstep import House
from proxy.edge.exchange import Exchanges
from proxy.edge.hall import Hall
from proxy.edge.limits import EdgeCounters, EdgeLimits
from proxy.edge.porch import Porch, listening_sockets
from proxy.edge.way import Way

_BACKLOG = 1024  # connections the kernel holds for us; its own bound (somaxconn) may be lower
_ACCEPT_ROUNDS_MAX = 100  # each takes in all that wait; newcomers must not keep a drain from beginning
_ACCEPT_STEPS = 10  # of the loop, from an accepted socket to a connection; our own porch takes six
_LAST_WORDS_S = 5.0  # what a cancelled exchange gets to come to its end


class EdgeServer:
    """Serves callers from `start` to `close`. One `drain` in between lets them finish."""

    def __init__(self, carrier: Carrier, limits: EdgeLimits = EdgeLimits(), clock: Clock = SystemClock()) -> None:
        self._hall = Hall(limits, DateLine(clock))
        self._exchanges = Exchanges(carrier, self._hall)
        self._listeners: list[asyncio.Server | Porch] = []
        self._server: web.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def counters(self) -> EdgeCounters:
        return self._hall.counters

    async def start(
        self,
        host: str,
        port: int,
        *,
        provider: str | None = None,
        house: House | None = None,
        reuse_port: bool = False,
    ) -> tuple[str, int]:
        """Listen, and return the address bound. With `provider` every path of this port is that provider's; with
        `house` callers may also come by a proxy setting, or redirected. With `reuse_port` other sidecars of this
        machine may listen there too, and the kernel deals out connections."""
        loop = asyncio.get_running_loop()
        if self._server is None:
            # It does not cancel when a caller leaves: keep that. `serve` is called by our connections, never by it.
            self._server = web.Server(cast(Any, self._exchanges.serve))
            self._sweep_timer = loop.call_later(self._hall.limits.tick_s, self._sweep, loop)
        server = self._server
        listener: asyncio.Server | Porch
        if house is not None:
            listener = Porch(
                await listening_sockets(host, port, _BACKLOG, reuse_port=reuse_port), self._hall, server, house
            )
        else:
            listener = await loop.create_server(
                lambda: Connection(self._hall, server, Way(provider)),
                host,
                port,
                backlog=_BACKLOG,
                reuse_port=reuse_port or None,
            )
        self._listeners.append(listener)
        bound = listener.sockets[0].getsockname()
        return bound[0], bound[1]

    def stop(self, host: str, port: int) -> None:
        """Listen there no longer. Connections that came by it stay."""
        for listener in tuple(self._listeners):
            if any(listening.getsockname()[:2] == (host, port) for listening in listener.sockets):
                listener.close()
                self._listeners.remove(listener)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at every wait once a tick. Cheaper than a timer for each, and a wait costs its request nothing."""
        now = loop.time()
        for connection in tuple(self._hall.connections):
            connection.look_at_the_clock(now)
        self._sweep_timer = loop.call_later(self._hall.limits.tick_s, self._sweep, loop)

    def ask_to_leave(self) -> None:
        """From now on each answer says `Connection: close`: callers with kept connections find another sidecar by
        themselves. New ones are still let in."""
        self._hall.draining = True

    async def drain(self, grace_s: float) -> int:
        """Take no more connections, let what is being served finish, then cut the rest. Returns how many were cut.

        Requests that have arrived are answered, with `Connection: close`. Idle connections end at once.
        """
        self._hall.draining = True
        await self._accept_all()
        self._stop_listening()
        idle = {connection.file_number: connection for connection in self._hall.connections if connection.is_idle}
        for number in set(idle) - _readable(idle):
            idle[number].force_close()
        try:
            async with asyncio.timeout(grace_s):
                await self._hall.all_served()
        except TimeoutError:
            pass  # the grace is over
        return self._cut()

    async def close(self) -> None:
        """End everything at once. What the engine is still carrying loses its caller, and is cancelled."""
        self._hall.draining = self._hall.closed = True
        self._stop_listening()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        ending: set[asyncio.Task[Any]] = set(self._hall.serving)
        for serving in ending:
            serving.cancel()
        ending.update(connection.loop_task for connection in self._hall.connections if connection.loop_task)
        self._cut()
        if ending:
            await asyncio.wait(ending, timeout=_LAST_WORDS_S)
        await self._let_in()  # what was accepted just now comes in only to be turned away: else nobody closes it
        for listener in self._listeners:
            await listener.wait_closed()
        self._listeners.clear()

    async def _accept_all(self) -> None:
        """Let in those that wait at the door: closing it would reset them, with what they have sent."""
        numbers = [listening.fileno() for listener in self._listeners for listening in listener.sockets]
        rounds = 0
        while _readable(numbers) and rounds < _ACCEPT_ROUNDS_MAX:
            rounds += 1
            await asyncio.sleep(0)
        await self._let_in()

    async def _let_in(self) -> None:
        """Connections that the loop has accepted reach us a few of its turns later."""
        for _ in range(_ACCEPT_STEPS):
            await asyncio.sleep(0)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _cut(self) -> int:
        rest = tuple(self._hall.connections)
        cut = sum(not connection.is_served for connection in rest)
        for connection in rest:
            connection.cut()
        return cut


def _readable(file_numbers: Iterable[int]) -> set[int]:
    """Those on which bytes have arrived that nobody has read: a request is under way on them."""
    poll = select.poll()
    for number in file_numbers:
        poll.register(number, select.POLLIN)
    return {number for number, _ in poll.poll(0)}
