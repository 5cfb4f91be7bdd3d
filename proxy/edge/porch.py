"""The listener of the main port. It accepts by itself, for a redirected caller must be looked at before anybody reads.

Event loops begin to read from what they accept, and bytes that were read cannot be given to TLS again. So a socket is
given to the loop only when it is known what will be spoken on it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from math import inf
from typing import Any

from aiohttp import web

from proxy.core.reply import Problem
from proxy.edge.connection import Connection
from proxy.edge.doorstep import SHAKE_S_MIN, Doorstep, House, context_for_host, refuse_unlisted
from proxy.edge.hall import Hall
from proxy.edge.limits import IDLE, TLS_FAILED, TOO_MANY_CONNECTIONS
from proxy.edge.refused import Refused
from proxy.edge.sniffing import TLS_HANDSHAKE, first_words, original_destination, server_name
from proxy.edge.tunnel import Tunnel
from proxy.edge.way import Way
from proxy.tasks import TaskRefused

_log = logging.getLogger("paywitness.edge")
_AT_ONCE = 64  # accepted in one turn of the loop, for the others' sake
_PAUSE_S = 1.0  # where there are no file descriptors left, as asyncio does


class Porch:
    """Sockets that listen. Like asyncio's own servers it can be asked for them, and closed."""

    def __init__(self, listening: tuple[socket.socket, ...], hall: Hall, server: web.Server, house: House) -> None:
        self._loop = asyncio.get_running_loop()
        self._hall = hall
        self._server = server
        self._house = house
        self.sockets = listening
        for one in listening:
            one.setblocking(False)
            self._loop.add_reader(one.fileno(), self._accept, one)

    def close(self) -> None:
        for one in self.sockets:
            self._loop.remove_reader(one.fileno())
            one.close()
        self.sockets = ()

    async def wait_closed(self) -> None:
        return None

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("a connection could not be accepted: %s", error.strerror)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_PAUSE_S, self._go_on, listening)
                return
            self._admit(accepted)

    def _go_on(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _admit(self, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wanted = original_destination(accepted)
            if wanted is None:
                self._house.tasks.start(self._by_itself(accepted), name="doorstep")
            else:
                Redirected(accepted, wanted, self._hall, self._server, self._house).begin()
        except (OSError, TaskRefused):  # it has gone again, or we are closing
            accepted.close()

    async def _by_itself(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: Doorstep(self._hall, self._server, self._house), accepted)
        except OSError:
            accepted.close()  # it has gone again


class Redirected:
    """A caller that the kernel brought, until it is known whom it wanted."""

    def __init__(
        self, accepted: socket.socket, wanted: tuple[str, int], hall: Hall, server: web.Server, house: House
    ) -> None:
        self._accepted = accepted
        self._wanted = wanted
        self._hall = hall
        self._server = server
        self._house = house
        self._loop = asyncio.get_running_loop()
        self._due_mono = self._loop.time() + hall.limits.head_s
        self._task: asyncio.Task[None] | None = None
        self._tunnel: Tunnel | None = None

    def begin(self) -> None:
        if not self._hall.enter(self):
            self._hall.counters.refused[TOO_MANY_CONNECTIONS] += 1
            self._accepted.close()
            return
        try:
            self._task = self._house.tasks.start(self._serve(), name="redirected")
        except TaskRefused:
            self._hall.leave(self)
            raise

    async def _serve(self) -> None:
        try:
            await self._look()
        except Refused as refusal:
            self._hall.counters.refused[refusal.kind] += 1  # within TLS there is nobody to tell it to
        except OSError:  # what TLS raises is one too
            self._hall.counters.refused[TLS_FAILED] += 1
        finally:
            self._hall.leave(self)
            self._accepted.close()  # the loop has a descriptor of its own, where it was given the connection

    async def _look(self) -> None:
        words = await first_words(self._accepted)
        if not words:
            return
        if self._house.outside.is_ours(self._accepted.getpeername()):
            _log.error("our own connections are redirected to us: give paywitness redirect install our --uid or --gid")
            return
        if words[0] != TLS_HANDSHAKE:
            await self._give_to_the_loop(Way(redirected=True), None)
            return
        name = server_name(words)
        host = name if isinstance(name, str) else None
        provider = self._house.provider_at(host) if host else None
        if host is not None and provider is not None:
            await self._give_to_the_loop(Way(provider, host), context_for_host(self._house, host))
            return
        refuse_unlisted(self._house, host or self._wanted[0], self._wanted[1])
        await self._join()

    async def _give_to_the_loop(self, way: Way, context: ssl.SSLContext | None) -> None:
        due_mono, self._due_mono = self._due_mono, inf  # a handshake has its own bound
        bounds: dict[str, Any] = {}
        if context is not None:
            bounds["ssl_handshake_timeout"] = max(SHAKE_S_MIN, due_mono - self._loop.time())
            bounds["ssl_shutdown_timeout"] = self._hall.limits.linger_s
        await self._loop.connect_accepted_socket(
            lambda: Connection(self._hall, self._server, way, due_mono=due_mono),
            self._accepted.dup(),
            ssl=context,
            **bounds,
        )

    async def _join(self) -> None:
        tunnel = Tunnel(self._loop)
        trouble = await self._house.outside.join(*self._wanted, tunnel.far)
        if trouble is not None:
            raise Refused(Problem.PROVIDER_NOT_ALLOWED, trouble)
        self._tunnel = tunnel
        self._hall.counters.tunnels += 1
        try:
            await self._loop.connect_accepted_socket(lambda: tunnel.near, self._accepted.dup())
            await tunnel.ended
        finally:
            tunnel.cut()
            self._house.outside.leave(tunnel.far)

    # -- what the server asks

    @property
    def is_idle(self) -> bool:
        return False

    @property
    def is_served(self) -> bool:
        return self._tunnel is not None and self._tunnel.is_quiet

    @property
    def file_number(self) -> int:
        return self._accepted.fileno()

    @property
    def loop_task(self) -> asyncio.Task[None] | None:
        return self._task

    def force_close(self) -> None:
        self.cut()

    def cut(self) -> None:
        if self._tunnel is not None:
            self._tunnel.cut()
        if self._task is not None:
            self._task.cancel()

    def look_at_the_clock(self, now: float) -> None:
        if self._tunnel is not None:
            self._hall.changed.set()  # it may have fallen quiet
            if self._tunnel.is_forgotten:
                self.cut()
        elif now >= self._due_mono:
            self._hall.counters.refused[IDLE] += 1
            self.cut()


async def listening_sockets(host: str, port: int, backlog: int, *, reuse_port: bool) -> tuple[socket.socket, ...]:
    """One for each address of the host: `localhost` is two, and redirected callers come by either."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            where = address if not made else (address[0], made[0].getsockname()[1], *address[2:])  # one port for all
            made.append(socket.create_server(where[:2], family=family, backlog=backlog, reuse_port=reuse_port))
    except OSError:
        for one in made:
            one.close()
        raise
    return tuple(made)
