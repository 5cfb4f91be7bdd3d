"""CONNECT: a connection that begins with it, or may begin with it, is taken over from its ServerConnection.

If a policy names the host, the caller gets a certificate of the local authority, and from then on a ServerConnection
serves it again. Any other host is refused, or joined to the caller by a tunnel. If the first bytes turn out to be a
plain request, they go back to a ServerConnection unchanged.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, cast

from paywitness.core.allowed_hosts import host_and_port
from paywitness.core.problems import Problem
from paywitness.option_defaults import Unlisted
from paywitness.server.connection import ServerConnection, ServeRequest
from paywitness.server.errors import RequestRejected, malformed
from paywitness.server.heads import CONNECTION_CLOSE, reply_bytes
from paywitness.server.limits_and_timeouts import IDLE, TLS_FAILED, TOO_MANY_CONNECTIONS
from paywitness.server.refused_hosts import log_refused_certificate, log_unlisted_host
from paywitness.server.request import HTTP_PORT, HTTPS_PORT, REVERSE_PROXY, Ingress
from paywitness.server.request_parser import IncomingRequest, RequestParser
from paywitness.tasks import TaskRefused, Tasks

if TYPE_CHECKING:
    from paywitness.server.listener import ConnectionRegistry  # the listener imports this module

# --- Tunnels
# Bytes between two connections, untouched: for hosts that no policy names, if the configuration lets them pass.
#
# A tunnel reads no content and keeps nothing; only its connections are counted. If one side takes no more bytes, we
# stop reading from the other.

_IDLE_S = 600.0  # without a byte either way
_QUIET_S = 1.0  # after this long without a byte a drain may cut the tunnel


class _TunnelEnd(asyncio.Protocol):
    """One end of a tunnel."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self.wire: asyncio.Transport | None = None
        self.other: _TunnelEnd | None = None
        self.sent_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._tunnel.mark_active()
        if self.other is not None and self.other.wire is not None:
            self.other.wire.write(data)

    def eof_received(self) -> bool:
        self.sent_eof = True
        other = self.other
        if other is None or other.sent_eof:
            self._tunnel.close()
        elif other.wire is not None and not other.wire.is_closing():
            other.wire.write_eof()
        return True  # the other direction may still carry bytes

    def pause_writing(self) -> None:
        if self.other is not None and self.other.wire is not None:
            self.other.wire.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.wire is not None:
            self.other.wire.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.wire = None
        self._tunnel.close()


class Tunnel:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._active_mono = loop.time()
        self.near, self.far = _TunnelEnd(self), _TunnelEnd(self)
        self.near.other, self.far.other = self.far, self.near
        self.ended: asyncio.Future[None] = loop.create_future()

    def mark_active(self) -> None:
        self._active_mono = self._loop.time()

    @property
    def is_quiet(self) -> bool:
        return self._loop.time() - self._active_mono > _QUIET_S

    @property
    def is_expired(self) -> bool:
        return self._loop.time() - self._active_mono > _IDLE_S

    def close(self) -> None:
        """Close both sides, after the bytes that were written have left. If one side is gone, this ends the other."""
        for end in (self.near, self.far):
            if end.wire is not None:
                end.wire.close()
        if not self.ended.done() and self.near.wire is None and self.far.wire is None:
            self.ended.set_result(None)

    def abort(self) -> None:
        for end in (self.near, self.far):
            if end.wire is not None:
                end.wire.abort()


# --- CONNECT

_CONNECT = b"CONNECT "
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
HANDSHAKE_S_MIN = 0.1  # the loop refuses a timeout of zero


class TunnelDialer(Protocol):
    """Connects tunnels to hosts that no policy names; `paywitness.upstream.dial` in production."""

    async def connect(self, host: str, port: int, protocol: asyncio.Protocol) -> str | None: ...

    def release(self, protocol: asyncio.Protocol) -> None: ...

    def is_own_connection(self, peer: tuple[Any, ...]) -> bool: ...


@dataclass(frozen=True, slots=True)
class InterceptConfig:
    """The configuration and the parts of the server that a ConnectHandler needs."""

    provider_at: Callable[[str], str | None]  # the provider of a host; None: no policy names the host
    context_for: Callable[
        [str], ssl.SSLContext | None
    ]  # for callers of a policy's host; None: there is no authority, or it does not cover the host
    tunnel_dialer: TunnelDialer  # connects tunnels
    unlisted: Unlisted
    tasks: Tasks


class ConnectHandler(asyncio.Protocol):
    """One connection, until it is known whether it is CONNECT, or for as long as it is a tunnel."""

    def __init__(
        self, registry: ConnectionRegistry, serve: ServeRequest, intercept: InterceptConfig, due_mono: float
    ) -> None:
        self._registry = registry
        self._serve = serve
        self._intercept = intercept
        self._loop = asyncio.get_running_loop()
        self._wire: asyncio.Transport | None = None
        self._buffered = b""
        self._due_mono = due_mono
        self._user_agent = ""  # of CONNECT
        self._head_due_mono = due_mono  # of the first request's head, whatever comes before it
        self._tunnel: Tunnel | None = None
        self._task: asyncio.Task[None] | None = None

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast(asyncio.Transport, transport)
        if not self._registry.try_register(self):
            self._registry.counters.refused[TOO_MANY_CONNECTIONS] += 1
            wire.abort()
            return
        self._wire = wire

    def connection_lost(self, exc: BaseException | None) -> None:
        self._unregister()

    def data_received(self, data: bytes) -> None:
        buffered = self._buffered = self._buffered + data if self._buffered else data
        if not buffered.startswith(_CONNECT):
            if not _CONNECT.startswith(buffered):
                self._hand_to_connection(REVERSE_PROXY)
            return
        try:
            requested = self._read_connect(buffered)
            if requested is not None:
                self._connect(*requested)
        except RequestRejected as rejection:
            self._reject(rejection)

    # -- called by the server

    @property
    def is_idle(self) -> bool:
        return not self._buffered and self._task is None

    @property
    def is_served(self) -> bool:
        return self._wire is None or (self._tunnel is not None and self._tunnel.is_quiet)

    @property
    def file_descriptor(self) -> int:
        return cast(int, self._wire.get_extra_info("socket").fileno()) if self._wire is not None else -1

    @property
    def loop_task(self) -> asyncio.Task[None] | None:
        return self._task

    def force_close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._tunnel is not None:
            self._tunnel.abort()
        elif self._wire is not None:
            self._wire.abort()

    def check_timeouts(self, now: float) -> None:
        if self._tunnel is not None:
            self._registry.changed.set()  # the tunnel may have become quiet
            if self._tunnel.is_expired:
                self._tunnel.abort()
        elif now >= self._due_mono:
            self._registry.counters.refused[IDLE] += 1
            self.abort()

    # -- a plain request

    def _hand_to_connection(self, ingress: Ingress, wire: asyncio.Transport | None = None) -> None:
        """Hand the connection, and the bytes that have come so far, to a ServerConnection."""
        wire = wire or self._wire
        buffered, self._buffered = self._buffered, b""
        self._unregister()
        if wire is None or wire.is_closing():
            return
        connection = ServerConnection(self._registry, self._serve, ingress, due_mono=self._head_due_mono)
        wire.set_protocol(connection)
        connection.connection_made(wire)
        if buffered:
            connection.data_received(buffered)

    # -- CONNECT

    def _read_connect(self, head: bytes) -> tuple[str, int] | None:
        """The host and port that it asks for; None while the head is not whole. Raises RequestRejected."""
        parser = RequestParser(self._registry.limits)
        parser.feed(head)
        request = parser.next_request()
        if request is None:
            return None
        if parser.held_bytes:
            raise malformed("Bytes came after CONNECT before it was answered.")
        self._user_agent = "".join(request.values(b"user-agent"))
        return _authority(request)

    def _connect(self, host: str, port: int) -> None:
        wire = self._wire
        assert wire is not None
        provider = self._intercept.provider_at(host)
        if provider is None:
            reject_unlisted(self._intercept, host, port)
            self._start_task(self._open_tunnel(wire, host, port, greeting=_ESTABLISHED))
            return
        if port == HTTP_PORT:  # some clients ask for a tunnel even to plain HTTP
            wire.write(_ESTABLISHED)
            self._buffered = b""
            self._hand_to_connection(Ingress(provider, host, port))
            return
        if port != HTTPS_PORT:
            raise RequestRejected(
                Problem.PROVIDER_NOT_ALLOWED, f"Of {host} ports {HTTPS_PORT} and {HTTP_PORT} are served."
            )
        context = tls_context_for_host(self._intercept, host)
        wire.pause_reading()  # the next bytes are for TLS
        wire.write(_ESTABLISHED)
        self._buffered = b""
        self._start_task(self._intercept_tls(wire, context, Ingress(provider, host)))

    # -- TLS, and tunnels

    async def _intercept_tls(self, wire: asyncio.Transport, context: ssl.SSLContext, ingress: Ingress) -> None:
        """Do the TLS handshake as the host, then serve it as any other connection."""
        early = _HandshakeBuffer()
        limits = self._registry.limits
        self._due_mono = inf  # the handshake has its own bound
        try:
            secured = await self._loop.start_tls(
                wire,
                early,
                context,
                server_side=True,
                ssl_handshake_timeout=max(HANDSHAKE_S_MIN, self._head_due_mono - self._loop.time()),
                ssl_shutdown_timeout=limits.linger_s,
            )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            self._registry.counters.refused[TLS_FAILED] += 1
            log_refused_certificate(ingress.host or "", error, self._user_agent)
            wire.abort()
            self._unregister()
            return
        if secured is None or early.lost:
            self._unregister()
            return
        self._buffered = early.received
        self._hand_to_connection(ingress, secured)

    async def _open_tunnel(self, wire: asyncio.Transport, host: str, port: int, *, greeting: bytes = b"") -> None:
        """A tunnel to a host that no policy names."""
        wire.pause_reading()
        tunnel = Tunnel(self._loop)
        failure = await self._intercept.tunnel_dialer.connect(host, port, tunnel.far)
        if failure is not None:
            if greeting:
                self._reject(RequestRejected(Problem.PROVIDER_NOT_ALLOWED, f"{host[:80]} was not reached: {failure}."))
            else:
                wire.abort()
            return
        try:
            if wire.is_closing():
                tunnel.abort()
                return
            self._tunnel = tunnel
            wire.set_protocol(tunnel.near)
            tunnel.near.connection_made(wire)
            if greeting:
                wire.write(greeting)
            wire.resume_reading()
            await tunnel.ended
        finally:
            self._intercept.tunnel_dialer.release(tunnel.far)
            self._unregister()

    # -- within

    def _start_task(self, coroutine: Awaitable[None]) -> None:
        try:
            self._task = self._intercept.tasks.start(coroutine, name="connect")  # type: ignore[arg-type]
        except TaskRefused:
            self.abort()

    def _reject(self, rejection: RequestRejected) -> None:
        self._registry.counters.refused[rejection.kind] += 1
        if self._wire is not None and not self._wire.is_closing():
            self._wire.write(
                b"".join(reply_bytes(rejection.reply, "", CONNECTION_CLOSE, self._registry.date_line.now()))
            )
            self._wire.close()

    def _unregister(self) -> None:
        if self._wire is not None:
            self._wire = None
            self._registry.unregister(self)


def take_over_connect(
    registry: ConnectionRegistry,
    serve: ServeRequest,
    intercept: InterceptConfig,
    wire: asyncio.Transport,
    received: bytes,
    due_mono: float,
) -> None:
    """Serve a connection whose first bytes may be a CONNECT."""
    handler = ConnectHandler(registry, serve, intercept, due_mono)
    wire.set_protocol(handler)
    handler.connection_made(wire)
    if not wire.is_closing():
        handler.data_received(received)


class _HandshakeBuffer(asyncio.Protocol):
    """Keeps the bytes that come with the end of a handshake until the ServerConnection is there."""

    def __init__(self) -> None:
        self.received = b""
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost = True


def reject_unlisted(intercept: InterceptConfig, host: str, port: int) -> None:
    """Raises RequestRejected if this host, which no policy names, may not be reached through us."""
    if port != HTTPS_PORT:
        raise RequestRejected(Problem.PROVIDER_NOT_ALLOWED, f"Tunnels lead to port {HTTPS_PORT} alone.")
    if intercept.unlisted is not Unlisted.TUNNEL:
        log_unlisted_host(host)
        detail = f"No policy names {host[:80]!r}. Name it in one, or let such hosts pass with --unlisted tunnel."
        raise RequestRejected(Problem.PROVIDER_NOT_ALLOWED, detail)


def tls_context_for_host(intercept: InterceptConfig, host: str) -> ssl.SSLContext:
    """The TLS context with our certificate for this host. Raises RequestRejected if the local authority covers no such
    host."""
    context = intercept.context_for(host)
    if context is None:
        raise RequestRejected(
            Problem.PROVIDER_NOT_ALLOWED, f"No local authority covers {host}. Run paywitness ca init."
        )
    return context


def _authority(request: IncomingRequest) -> tuple[str, int]:
    """Host and port of CONNECT. Host must name the same; HTTP/1.0 may leave it out. Raises RequestRejected."""
    requested = host_and_port(request.target)
    if requested is None or requested[1] is None:
        raise malformed("CONNECT asks for host:port.")
    head = request.head
    if head.chunked or head.length:
        raise malformed("CONNECT has no body, and one was announced.")
    if b"host" not in head.names and not request.is_http11:
        return requested[0], requested[1]
    host_header = host_and_port(head.host.decode("latin-1"))
    if host_header is None or host_header[0] != requested[0] or host_header[1] not in (None, requested[1]):
        raise malformed("CONNECT asks for one host, and Host names another.")
    return requested[0], requested[1]
