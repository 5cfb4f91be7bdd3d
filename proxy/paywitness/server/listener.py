"""The connections of one server, and the listener of the main port.

The listener accepts sockets itself, because it must look at the first bytes of a redirected caller before anybody reads
them. An event loop begins to read from a socket that it accepts, and bytes that were read cannot be given to TLS again.
So the listener gives a socket to the loop only when it knows which protocol the caller speaks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import struct
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Protocol

from paywitness.core.problems import Problem
from paywitness.repeated_lines import REPEATS
from paywitness.server.connect import (
    HANDSHAKE_S_MIN,
    InterceptConfig,
    Tunnel,
    reject_unlisted,
    take_over_connect,
    tls_context_for_host,
)
from paywitness.server.connection import ServerConnection, ServeRequest
from paywitness.server.errors import RequestRejected
from paywitness.server.heads import DateLine
from paywitness.server.limits_and_timeouts import IDLE, TLS_FAILED, TOO_MANY_CONNECTIONS, ServerLimits
from paywitness.server.refused_hosts import log_refused_certificate
from paywitness.server.request import REVERSE_PROXY, Ingress
from paywitness.tasks import TaskRefused, Tasks
from paywitness.telemetry.gauges import ServerCounters

# --- Registry


class TrackedConnection(Protocol):
    """A connection, as the server sees it."""

    @property
    def is_idle(self) -> bool: ...

    @property
    def is_served(self) -> bool: ...

    @property
    def file_descriptor(self) -> int: ...

    @property
    def loop_task(self) -> asyncio.Task[Any] | None: ...

    def force_close(self) -> None: ...

    def abort(self) -> None: ...

    def check_timeouts(self, now: float) -> None: ...


@dataclass(slots=True)
class ConnectionRegistry:
    limits: ServerLimits
    date_line: DateLine
    counters: ServerCounters = field(default_factory=ServerCounters)
    connections: set[TrackedConnection] = field(default_factory=set)
    silent: dict[TrackedConnection, None] = field(default_factory=dict)  # have sent no request so far, oldest first
    tasks: Tasks = field(default_factory=Tasks)  # one for each connection; it may outlast its caller
    draining: bool = False
    closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # a connection has ended, or is about to

    def try_register(self, connection: TrackedConnection) -> bool:
        """Whether there is room for one more. When all places are taken, the oldest connection that has sent no request
        is closed. So a caller that only opens connections cannot keep others out."""
        if not self.closed and len(self.connections) >= self.limits.connections_max and self.silent:
            oldest = next(iter(self.silent))
            self.unregister(oldest)
            self.counters.refused[TOO_MANY_CONNECTIONS] += 1
            oldest.force_close()
        if self.closed or len(self.connections) >= self.limits.connections_max:
            return False
        self.connections.add(connection)
        self.counters.connections_open = len(self.connections)
        return True

    def unregister(self, connection: TrackedConnection) -> None:
        self.connections.discard(connection)
        self.silent.pop(connection, None)
        self.counters.connections_open = len(self.connections)
        self.changed.set()

    async def wait_all_served(self) -> None:
        """Wait until every caller has its whole reply."""
        while not all(connection.is_served for connection in self.connections):
            self.changed.clear()
            await self.changed.wait()


# --- Peeking at redirected connections
# Read the first bytes of a redirected caller without taking them: whether they are TLS, and which host they name.
#
# OpenSSL reads the ClientHello. The kernel keeps it for the connection that is made afterwards.

_SO_ORIGINAL_DST = 80  # linux/netfilter_ipv4.h; the same number for IPv6
_PEEK_BYTES_MAX = 32 * 1024  # a ClientHello is one or two kilobytes, with the largest key shares four
TLS_HANDSHAKE = 0x16


def original_destination(accepted: socket.socket) -> tuple[str, int] | None:
    """The address that the caller connected to, if the kernel redirected it to us. None if it came by itself."""
    try:
        if accepted.family == socket.AF_INET6 and not _is_mapped(accepted):
            raw = accepted.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)
            found = socket.inet_ntop(socket.AF_INET6, raw[8:24]), struct.unpack_from("!H", raw, 2)[0]
        else:
            raw = accepted.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
            found = socket.inet_ntop(socket.AF_INET, raw[4:8]), struct.unpack_from("!H", raw, 2)[0]
    except OSError:
        return None  # no such rule, or no connection tracking at all
    name = accepted.getsockname()
    return None if found == (name[0].removeprefix("::ffff:"), name[1]) else found


def _is_mapped(accepted: socket.socket) -> bool:
    return str(accepted.getsockname()[0]).startswith("::ffff:")


async def peek(accepted: socket.socket) -> bytes:
    """The first bytes of the connection, as many as show which protocol it is. Empty if it ended. They stay unread.

    The caller of this function cancels it if it takes too long.
    """
    loop = asyncio.get_running_loop()
    peek_socket = socket.socket(fileno=os.dup(accepted.fileno()))
    try:
        seen_bytes = 0
        while True:
            await _wait_readable(loop, peek_socket, seen_bytes + 1)
            peeked = peek_socket.recv(_PEEK_BYTES_MAX, socket.MSG_PEEK)
            if not peeked or peeked[0] != TLS_HANDSHAKE or len(peeked) == _PEEK_BYTES_MAX or len(peeked) <= seen_bytes:
                return peeked
            if server_name(peeked) is not INCOMPLETE:
                return peeked
            seen_bytes = len(peeked)
    finally:
        peek_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        peek_socket.close()


async def _wait_readable(loop: asyncio.AbstractEventLoop, peek_socket: socket.socket, size: int) -> None:
    """Wait until so many bytes have arrived, or the connection has ended. The kernel counts them, so we do not poll."""
    peek_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    readable: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(peek_socket.fileno(), tell)
    try:
        await readable
    finally:
        loop.remove_reader(peek_socket.fileno())


INCOMPLETE = object()


def server_name(hello: bytes) -> str | object | None:
    """The server name in a ClientHello, in lower case. None if it has none or is no ClientHello. Or INCOMPLETE."""
    found: list[str | None] = []

    def hear(session: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> int:
        found.append(name)
        return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR  # stop the handshake here: we only wanted to read the name

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = hear
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(hello)
    try:
        context.wrap_bio(incoming, outgoing, server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        return INCOMPLETE
    except ssl.SSLError:
        pass  # raised by that alert, or because the bytes are no TLS
    return found[0].lower().removesuffix(".") if found and found[0] else None


# --- Listener

_log = logging.getLogger("paywitness.edge")
_ACCEPTS_PER_WAKEUP = 64  # accepted in one turn of the loop, so that other tasks get theirs
_ACCEPT_PAUSE_S = 1.0  # when no file descriptors are left; asyncio waits as long


class Listener:
    """Sockets that listen. Like an asyncio server it has `sockets`, and can be closed."""

    def __init__(
        self,
        listening: tuple[socket.socket, ...],
        registry: ConnectionRegistry,
        serve: ServeRequest,
        intercept: InterceptConfig,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._registry = registry
        self._serve_request = serve
        self._intercept = intercept
        # Serves a caller that came by itself. If its first request is CONNECT, a ConnectHandler takes over.
        self._direct_connection = partial(
            ServerConnection,
            registry,
            serve,
            REVERSE_PROXY,
            take_over_connect=partial(take_over_connect, registry, serve, intercept),
        )
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
        for _ in range(_ACCEPTS_PER_WAKEUP):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("a connection could not be accepted: %s", error.strerror, extra=REPEATS)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_ACCEPT_PAUSE_S, self._resume_accepting, listening)
                return
            try:
                accepted.setblocking(False)
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                destination = original_destination(accepted)
                if destination is None:
                    joining = self._loop.connect_accepted_socket(self._direct_connection, accepted)
                    self._intercept.tasks.start(joining, name="accepted")
                else:
                    RedirectedConnection(
                        accepted, destination, self._registry, self._serve_request, self._intercept
                    ).start()
            except (OSError, TaskRefused):  # the caller has left already, or we are closing
                accepted.close()

    def _resume_accepting(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening)


class RedirectedConnection:
    """A connection that the kernel redirected to us, until it is known which host it is for."""

    def __init__(
        self,
        accepted: socket.socket,
        destination: tuple[str, int],
        registry: ConnectionRegistry,
        serve: ServeRequest,
        intercept: InterceptConfig,
    ) -> None:
        self._accepted = accepted
        self._destination = destination
        self._registry = registry
        self._serve_request = serve
        self._intercept = intercept
        self._loop = asyncio.get_running_loop()
        self._due_mono = self._loop.time() + registry.limits.head_s
        self._task: asyncio.Task[None] | None = None
        self._tunnel: Tunnel | None = None

    def start(self) -> None:
        if not self._registry.try_register(self):
            self._registry.counters.refused[TOO_MANY_CONNECTIONS] += 1
            self._accepted.close()
            return
        try:
            self._task = self._intercept.tasks.start(self._serve(), name="redirected")
        except TaskRefused:
            self._registry.unregister(self)
            raise

    async def _serve(self) -> None:
        try:
            await self._detect_protocol()
        except RequestRejected as rejection:
            self._registry.counters.refused[rejection.kind] += 1  # inside TLS we cannot send a reply
        except OSError:  # ssl.SSLError is one too
            self._registry.counters.refused[TLS_FAILED] += 1
        finally:
            self._registry.unregister(self)
            self._accepted.close()  # if the loop was given the connection, it has a descriptor of its own

    async def _detect_protocol(self) -> None:
        first_bytes = await peek(self._accepted)
        if not first_bytes:
            return
        if self._intercept.tunnel_dialer.is_own_connection(self._accepted.getpeername()):
            text = "our own connections are redirected to us: give paywitness redirect install our --uid or --gid"
            _log.error(text, extra=REPEATS)
            return
        if first_bytes[0] != TLS_HANDSHAKE:
            await self._hand_to_connection(Ingress(redirected=True), None)
            return
        name = server_name(first_bytes)
        host = name if isinstance(name, str) else None
        provider = self._intercept.provider_at(host) if host else None
        if host is not None and provider is not None:
            await self._hand_to_connection(Ingress(provider, host), tls_context_for_host(self._intercept, host))
            return
        reject_unlisted(self._intercept, host or self._destination[0], self._destination[1])
        await self._open_tunnel()

    async def _hand_to_connection(self, ingress: Ingress, context: ssl.SSLContext | None) -> None:
        due_mono, self._due_mono = self._due_mono, inf  # a handshake has its own bound
        bounds: dict[str, Any] = {}
        if context is not None:
            bounds["ssl_handshake_timeout"] = max(HANDSHAKE_S_MIN, due_mono - self._loop.time())
            bounds["ssl_shutdown_timeout"] = self._registry.limits.linger_s
        try:
            await self._loop.connect_accepted_socket(
                lambda: ServerConnection(self._registry, self._serve_request, ingress, due_mono=due_mono),
                self._accepted.dup(),
                ssl=context,
                **bounds,
            )
        except OSError as error:
            log_refused_certificate(ingress.host or "", error)
            raise

    async def _open_tunnel(self) -> None:
        tunnel = Tunnel(self._loop)
        failure = await self._intercept.tunnel_dialer.connect(*self._destination, tunnel.far)
        if failure is not None:
            raise RequestRejected(Problem.PROVIDER_NOT_ALLOWED, failure)
        self._tunnel = tunnel
        try:
            await self._loop.connect_accepted_socket(lambda: tunnel.near, self._accepted.dup())
            await tunnel.ended
        finally:
            tunnel.abort()
            self._intercept.tunnel_dialer.release(tunnel.far)

    # -- called by the server

    @property
    def is_idle(self) -> bool:
        return False

    @property
    def is_served(self) -> bool:
        return self._tunnel is not None and self._tunnel.is_quiet

    @property
    def file_descriptor(self) -> int:
        return self._accepted.fileno()

    @property
    def loop_task(self) -> asyncio.Task[None] | None:
        return self._task

    def force_close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._tunnel is not None:
            self._tunnel.abort()
        if self._task is not None:
            self._task.cancel()

    def check_timeouts(self, now: float) -> None:
        if self._tunnel is not None:
            self._registry.changed.set()  # the tunnel may have become quiet
            if self._tunnel.is_expired:
                self.abort()
        elif now >= self._due_mono:
            self._registry.counters.refused[IDLE] += 1
            self.abort()


async def listening_sockets(host: str, port: int, backlog: int, *, reuse_port: bool) -> tuple[socket.socket, ...]:
    """One for each address of the host: `localhost` has two, and redirected callers use both."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            bind_address = (
                address if not made else (address[0], made[0].getsockname()[1], *address[2:])
            )  # one port for all
            made.append(socket.create_server(bind_address[:2], family=family, backlog=backlog, reuse_port=reuse_port))
    except OSError:
        for one in made:
            one.close()
        raise
    return tuple(made)
