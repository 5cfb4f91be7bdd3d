"""The HTTP server: its listeners, the periodic timeout check, the drain, and the listeners of single providers.

`HttpServer` owns the connections of one registry. `ProviderListeners` opens and closes the ports that policies name
with `listen:`, for SDKs that cannot take a path prefix. If a port cannot be bound, it is logged once and tried
again; the other ports are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable, Iterable
from typing import Any

from paywitness.clock import Clock, SystemClock
from paywitness.core.allowed_hosts import AllowedHosts
from paywitness.option_defaults import Address, read_address
from paywitness.policy.book import PolicyBook
from paywitness.server.connect import InterceptConfig
from paywitness.server.connection import ServerConnection
from paywitness.server.dispatch import RequestDispatcher
from paywitness.server.engine_interface import CallHandler
from paywitness.server.heads import DateLine
from paywitness.server.limits_and_timeouts import ServerLimits
from paywitness.server.listener import ConnectionRegistry, Listener, listening_sockets
from paywitness.server.request import Ingress
from paywitness.telemetry.emitter import Tracing
from paywitness.telemetry.gauges import ServerCounters

_BACKLOG = 1024  # connections the kernel holds for us; its own bound (somaxconn) may be lower
_ACCEPT_ROUNDS_MAX = 100  # each accepts all that wait; new connections must not keep a drain from beginning
_ACCEPT_STEPS = 10  # turns of the loop from an accepted socket to a connection; our own listener takes six
_CANCEL_GRACE_S = 5.0  # how long a cancelled exchange may take to end


class HttpServer:
    """Serves callers from `start` to `close`. One `drain` in between lets them finish."""

    def __init__(
        self,
        call_handler: CallHandler,
        limits: ServerLimits = ServerLimits(),
        clock: Clock = SystemClock(),
        *,
        tracing: Tracing | None = None,
        allowed_hosts: AllowedHosts = AllowedHosts(),
    ) -> None:
        self._registry = ConnectionRegistry(limits, DateLine(clock))
        self._dispatcher = RequestDispatcher(call_handler, self._registry, tracing=tracing, allowed_hosts=allowed_hosts)
        self._listeners: list[asyncio.Server | Listener] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._tick_s = limits.tick_s

    @property
    def counters(self) -> ServerCounters:
        return self._registry.counters

    async def start(
        self,
        host: str,
        port: int,
        *,
        provider: str | None = None,
        intercept: InterceptConfig | None = None,
        reuse_port: bool = False,
    ) -> tuple[str, int]:
        """Listen, and return the address bound. With `provider` every path of this port is that provider's; with
        `intercept` callers may also come by a proxy setting, or redirected. With `reuse_port` other sidecars of this
        machine may listen there too, and the kernel distributes the connections."""
        loop = asyncio.get_running_loop()
        if self._sweep_timer is None:
            self._sweep_timer = loop.call_later(self._tick_s, self._sweep, loop)
        serve = self._dispatcher.serve
        listener: asyncio.Server | Listener
        if intercept is not None:
            listening = await listening_sockets(host, port, _BACKLOG, reuse_port=reuse_port)
            listener = Listener(listening, self._registry, serve, intercept)
        else:
            listener = await loop.create_server(
                lambda: ServerConnection(self._registry, serve, Ingress(provider)),
                host,
                port,
                backlog=_BACKLOG,
                reuse_port=reuse_port or None,
            )
        self._listeners.append(listener)
        bound = listener.sockets[0].getsockname()
        return bound[0], bound[1]

    def stop(self, host: str, port: int) -> None:
        """Stop listening there. Connections that came by that address stay."""
        for listener in tuple(self._listeners):
            if any(listening.getsockname()[:2] == (host, port) for listening in listener.sockets):
                listener.close()
                self._listeners.remove(listener)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check the timeouts of every connection once a tick. That is cheaper than one timer for each wait."""
        now = loop.time()
        for connection in tuple(self._registry.connections):
            connection.check_timeouts(now)
        self._sweep_timer = loop.call_later(self._tick_s, self._sweep, loop)

    def stop_keep_alive(self) -> None:
        """From now on each reply says `Connection: close`, so that callers with kept connections move to another
        sidecar. New connections are still accepted."""
        self._registry.draining = True

    async def drain(self, grace_s: float) -> int:
        """Accept no more connections, let requests that are being served finish, then cut the rest. Returns how many
        were cut.

        Requests that have arrived get their reply, with `Connection: close`. Idle connections end at once.
        """
        self._registry.draining = True
        await self._accept_all()
        self._stop_listening()
        idle = {
            connection.file_descriptor: connection for connection in self._registry.connections if connection.is_idle
        }
        for number in set(idle) - _readable(idle):
            idle[number].force_close()
        try:
            async with asyncio.timeout(grace_s):
                await self._registry.wait_all_served()
        except TimeoutError:
            pass  # the grace is over
        return self._abort_all()

    async def close(self) -> None:
        """End everything at once. Calls that the engine still runs lose their caller, and are cancelled."""
        self._registry.draining = self._registry.closed = True
        self._stop_listening()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        ending: set[asyncio.Task[Any]] = {
            connection.loop_task for connection in self._registry.connections if connection.loop_task
        }
        self._abort_all()
        await self._registry.tasks.stop()  # the tasks of callers that have left too
        if ending:
            await asyncio.wait(ending, timeout=_CANCEL_GRACE_S)
        await (
            self._await_accepted()
        )  # a connection that was accepted just now arrives only to be closed: otherwise nobody would close it
        for listener in self._listeners:
            await listener.wait_closed()
        self._listeners.clear()

    async def _accept_all(self) -> None:
        """Accept the connections that wait in the backlog. Closing the socket would reset them and lose their bytes."""
        numbers = [listening.fileno() for listener in self._listeners for listening in listener.sockets]
        rounds = 0
        while _readable(numbers) and rounds < _ACCEPT_ROUNDS_MAX:
            rounds += 1
            await asyncio.sleep(0)
        await self._await_accepted()

    async def _await_accepted(self) -> None:
        """Wait a few turns of the loop, because a connection that it has accepted reaches us only then."""
        for _ in range(_ACCEPT_STEPS):
            await asyncio.sleep(0)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _abort_all(self) -> int:
        rest = tuple(self._registry.connections)
        cut = sum(not connection.is_served for connection in rest)
        for connection in rest:
            connection.abort()
        return cut


def _readable(file_numbers: Iterable[int]) -> set[int]:
    """The sockets with unread bytes: a request is under way on them."""
    poll = select.poll()
    for number in file_numbers:
        poll.register(number, select.POLLIN)
    return {number for number, _ in poll.poll(0)}


# --- Listeners of single providers

_log = logging.getLogger("paywitness.edge")
_POLL_S = 1.0


class ProviderListeners:
    def __init__(self, server: HttpServer, book: Callable[[], PolicyBook], *, reuse_port: bool = False) -> None:
        self._server = server
        self._book = book
        self._reuse_port = reuse_port
        self._applied_book: PolicyBook | None = None
        self._open: dict[str, tuple[Address, tuple[str, int]]] = {}  # as wanted, and as bound
        self._reported: set[str] = set()

    async def keep_syncing(self, clock: Clock) -> None:
        while True:
            await clock.sleep(_POLL_S)
            await self.sync()

    async def sync(self) -> None:
        """Open the ports that the book names and that are not open. Close those that it no longer names."""
        book = self._book()
        if book is self._applied_book:
            return
        wanted = {
            name: read_address(provider.listen, f"listen of {name}")
            for name, provider in book.providers.items()
            if provider.listen
        }
        for name in [name for name, (address, _) in self._open.items() if wanted.get(name) != address]:
            self._server.stop(*self._open.pop(name)[1])
        missing = {name: address for name, address in wanted.items() if name not in self._open}
        for name, address in missing.items():
            try:
                bound = await self._server.start(address.host, address.port, provider=name, reuse_port=self._reuse_port)
            except OSError as error:
                if name not in self._reported:
                    _log.error("%s cannot listen on %s: %s; it is tried again", name, address, error.strerror or error)
                self._reported.add(name)
                continue
            self._reported.discard(name)
            self._open[name] = (address, bound)
            _log.info("%s listens on %s", name, address)
        if wanted.keys() == self._open.keys():
            self._applied_book = book
