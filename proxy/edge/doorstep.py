"""Where a connection stands before it is known how it came in; then it is handed to whoever serves it.

First bytes that begin a plain request go to a Connection as they are. CONNECT is answered here: for a host of a policy
the caller is shown a certificate of the local authority, and from then on it is a Connection too; another host is
refused, or joined to the caller by a tunnel.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, cast

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpVersion10, HttpVersion11, RawRequestMessage

from proxy.core.reply import Problem
from proxy.edge.answers import CLOSES, reply_bytes
from proxy.edge.connection import Connection
from proxy.edge.hall import Hall
from proxy.edge.limits import IDLE, TLS_FAILED, TOO_MANY_CONNECTIONS
from proxy.edge.refused import Refused, malformed
from proxy.edge.seam import is_plain
from proxy.edge.tunnel import Tunnel
from proxy.edge.way import HTTP_PORT, HTTPS_PORT, REVERSE, Way, host_and_port
from proxy.settings import Unlisted
from proxy.tasks import TaskRefused, Tasks

_CONNECT = b"CONNECT "
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_READ_BYTES = 64 * 1024
SHAKE_S_MIN = 0.1  # no timeout at all is an error to the loop


class Outside(Protocol):
    """How tunnels are joined to what no policy names; `proxy.upstream.outside` in production."""

    async def join(self, host: str, port: int, protocol: asyncio.Protocol) -> str | None: ...

    def leave(self, protocol: asyncio.Protocol) -> None: ...

    def is_ours(self, peer: tuple[Any, ...]) -> bool: ...


@dataclass(frozen=True, slots=True)
class House:
    """What a doorstep needs to know of the house behind it."""

    provider_at: Callable[[str], str | None]  # whose host this is; None: no policy names it
    context_for: Callable[
        [str], ssl.SSLContext | None
    ]  # what a policy's host is shown; None: there is no authority, or it does not cover the host
    outside: Outside  # where tunnels lead
    unlisted: Unlisted
    tasks: Tasks


class Doorstep(asyncio.Protocol):
    """One connection until it is known what it is; or for as long as it is a tunnel."""

    def __init__(self, hall: Hall, server: web.Server, house: House) -> None:
        self._hall = hall
        self._server = server
        self._house = house
        self._loop = asyncio.get_running_loop()
        self._wire: asyncio.Transport | None = None
        self._first = b""
        self._due_mono = inf
        self._first_due_mono = inf  # of the first request's head, whatever comes before it
        self._tunnel: Tunnel | None = None
        self._task: asyncio.Task[None] | None = None

    # -- what the loop tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast(asyncio.Transport, transport)
        if not self._hall.enter(self):
            self._hall.counters.refused[TOO_MANY_CONNECTIONS] += 1
            wire.abort()
            return
        self._wire = wire
        self._due_mono = self._first_due_mono = self._loop.time() + self._hall.limits.head_s

    def connection_lost(self, exc: BaseException | None) -> None:
        self._leave()

    def data_received(self, data: bytes) -> None:
        first = self._first = self._first + data if self._first else data
        if not first.startswith(_CONNECT):
            if not _CONNECT.startswith(first):
                self._hand_over(REVERSE)
            return
        try:
            asked = self._read_connect(first)
            if asked is not None:
                self._connect(*asked)
        except Refused as refusal:
            self._refuse(refusal)

    # -- what the server asks

    @property
    def is_idle(self) -> bool:
        return not self._first and self._task is None

    @property
    def is_served(self) -> bool:
        return self._wire is None or (self._tunnel is not None and self._tunnel.is_quiet)

    @property
    def file_number(self) -> int:
        return cast(int, self._wire.get_extra_info("socket").fileno()) if self._wire is not None else -1

    @property
    def loop_task(self) -> asyncio.Task[None] | None:
        return self._task

    def force_close(self) -> None:
        self.cut()

    def cut(self) -> None:
        if self._tunnel is not None:
            self._tunnel.cut()
        elif self._wire is not None:
            self._wire.abort()

    def look_at_the_clock(self, now: float) -> None:
        if self._tunnel is not None:
            self._hall.changed.set()  # it may have fallen quiet
            if self._tunnel.is_forgotten:
                self._tunnel.cut()
        elif now >= self._due_mono:
            self._hall.counters.refused[IDLE] += 1
            self.cut()

    # -- a plain request

    def _hand_over(self, way: Way, wire: asyncio.Transport | None = None) -> None:
        """From here a Connection has it, and what has come so far."""
        wire = wire or self._wire
        first, self._first = self._first, b""
        self._leave()
        if wire is None or wire.is_closing():
            return
        connection = Connection(self._hall, self._server, way, due_mono=self._first_due_mono)
        wire.set_protocol(connection)
        connection.connection_made(wire)
        if first:
            connection.data_received(first)

    # -- CONNECT

    def _read_connect(self, head: bytes) -> tuple[str, int] | None:
        """Whom it asks for; None while the head is not whole. Raises Refused."""
        limits = self._hall.limits
        if len(head) > limits.head_bytes_max:
            raise Refused(Problem.TOO_LARGE, f"The head is larger than {limits.head_bytes_max} bytes.", 431)
        parser = HttpRequestParser(
            BaseProtocol(self._loop),
            self._loop,
            _READ_BYTES,
            max_line_size=limits.line_bytes_max,
            max_field_size=limits.line_bytes_max,
            max_headers=limits.headers_max,
            auto_decompress=False,
        )
        try:
            messages, _, early = parser.feed_data(head)
        except Exception:  # noqa: BLE001 - the parser lets more than its own errors escape; none may be logged
            raise malformed("The request is not well-formed HTTP/1.1.") from None
        if not messages:
            return None
        if not is_plain(head):
            raise malformed("The request line has a space too many.")
        if early:
            raise malformed("Bytes came after CONNECT before it was answered.")
        return _authority(messages[0][0])

    def _connect(self, host: str, port: int) -> None:
        wire = self._wire
        assert wire is not None
        provider = self._house.provider_at(host)
        if provider is None:
            refuse_unlisted(self._house, host, port)
            self._start(self._join(wire, host, port, greeting=_ESTABLISHED))
            return
        if port == HTTP_PORT:  # some clients ask for a tunnel also where nothing is encrypted
            wire.write(_ESTABLISHED)
            self._first = b""
            self._hand_over(Way(provider, host, port))
            return
        if port != HTTPS_PORT:
            raise Refused(Problem.PROVIDER_NOT_ALLOWED, f"Of {host} ports {HTTPS_PORT} and {HTTP_PORT} are served.")
        context = context_for_host(self._house, host)
        wire.pause_reading()  # what comes next is for TLS
        wire.write(_ESTABLISHED)
        self._first = b""
        self._start(self._secure(wire, context, Way(provider, host)))

    # -- TLS, and tunnels

    async def _secure(self, wire: asyncio.Transport, context: ssl.SSLContext, way: Way) -> None:
        """Shake hands as the host, then serve it as any other connection."""
        early = _Early()
        limits = self._hall.limits
        self._due_mono = inf  # the handshake has its own bound
        try:
            secured = await self._loop.start_tls(
                wire,
                early,
                context,
                server_side=True,
                ssl_handshake_timeout=max(SHAKE_S_MIN, self._first_due_mono - self._loop.time()),
                ssl_shutdown_timeout=limits.linger_s,
            )
        except (OSError, TimeoutError):  # what TLS raises is an OSError too
            self._hall.counters.refused[TLS_FAILED] += 1
            wire.abort()
            self._leave()
            return
        if secured is None or early.lost:
            self._leave()
            return
        self._first = early.taken
        self._hand_over(way, secured)

    async def _join(self, wire: asyncio.Transport, host: str, port: int, *, greeting: bytes = b"") -> None:
        """A tunnel to a host that no policy names."""
        wire.pause_reading()
        tunnel = Tunnel(self._loop)
        trouble = await self._house.outside.join(host, port, tunnel.far)
        if trouble is not None:
            if greeting:
                self._refuse(Refused(Problem.PROVIDER_NOT_ALLOWED, f"{host[:80]} was not reached: {trouble}."))
            else:
                wire.abort()
            return
        try:
            if wire.is_closing():
                tunnel.cut()
                return
            self._tunnel = tunnel
            self._hall.counters.tunnels += 1
            wire.set_protocol(tunnel.near)
            tunnel.near.connection_made(wire)
            if greeting:
                wire.write(greeting)
            wire.resume_reading()
            await tunnel.ended
        finally:
            self._house.outside.leave(tunnel.far)
            self._leave()

    # -- within

    def _start(self, coroutine: Awaitable[None]) -> None:
        try:
            self._task = self._house.tasks.start(coroutine, name="doorstep")  # type: ignore[arg-type]
        except TaskRefused:
            self.cut()

    def _refuse(self, refusal: Refused) -> None:
        self._hall.counters.refused[refusal.kind] += 1
        if self._wire is not None and not self._wire.is_closing():
            self._wire.write(b"".join(reply_bytes(refusal.reply, "", CLOSES, self._hall.date_line.now())))
            self._wire.close()

    def _leave(self) -> None:
        if self._wire is not None:
            self._wire = None
            self._hall.leave(self)


class _Early(asyncio.Protocol):
    """Keeps what comes with the end of a handshake until its Connection is there."""

    def __init__(self) -> None:
        self.taken = b""
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.taken += data

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost = True


def refuse_unlisted(house: House, host: str, port: int) -> None:
    """Raises Refused where a host that no policy names may not be reached through us."""
    if port != HTTPS_PORT:
        raise Refused(Problem.PROVIDER_NOT_ALLOWED, f"Tunnels lead to port {HTTPS_PORT} alone.")
    if house.unlisted is not Unlisted.TUNNEL:
        detail = f"No policy names {host[:80]!r}. Name it in one, or let such hosts pass with --unlisted tunnel."
        raise Refused(Problem.PROVIDER_NOT_ALLOWED, detail)


def context_for_host(house: House, host: str) -> ssl.SSLContext:
    """What a caller of this host is shown. Raises Refused where there is nothing that it would believe."""
    context = house.context_for(host)
    if context is None:
        raise Refused(Problem.PROVIDER_NOT_ALLOWED, f"No local authority covers {host}. Run paywitness ca init.")
    return context


def _authority(message: RawRequestMessage) -> tuple[str, int]:
    """`host:port`, which Host must repeat; HTTP/1.0 may leave Host out. Raises Refused."""
    if message.version not in (HttpVersion10, HttpVersion11):
        raise malformed("Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    asked = host_and_port(message.path)
    if asked is None or asked[1] is None:
        raise malformed("CONNECT asks for host:port.")
    if message.chunked or message.headers.get("Content-Length", "0") != "0":
        raise malformed("CONNECT has no body, and one was announced.")
    hosts = message.headers.getall("Host", [])
    if not hosts and message.version == HttpVersion10:
        return asked[0], asked[1]
    said = host_and_port(hosts[0]) if len(hosts) == 1 else None
    if said is None or said[0] != asked[0] or said[1] not in (None, asked[1]):
        raise malformed("CONNECT asks for one host, and Host names another.")
    return asked[0], asked[1]
