"""The client: one call, one attempt, one Evidence. It never raises because of the network and never tries twice.

    a connection (an idle one, or a new one)   ->  RESOLVING, CONNECTING, HANDSHAKING: nothing was sent
    may_send, checked with the connection up   ->  LEASE_OVER: nothing was sent
    the request written, the response read     ->  from SENDING on the provider may have seen it

A ValueError comes before any I/O and means that our own code made a request that must not be written. A cancelled call
resets its connection if a byte may have left. Then there is no evidence, and whoever cancelled must assume that the
provider may have executed the request.

An attempt that times out after its request was written ends with that evidence. If the caller of `send` wants late
responses, the connection is not reset yet but listens on for a bounded time: see `late_responses`.

`OriginPool` says how many connections an origin may have, which of them is used next, and who waits for one. Busy
connections (and dials under way) plus idle ones never exceed the bound. Idle ones are used last in, first out, so that
few stay in use and the rest can expire. Waiting is first come, first served: a connection that is given back goes
straight to the call that has waited longest. A connection that only listens for a late response no longer belongs to
the pool: `late_responses` has a bound of its own. Guarantee: everyone who got a connection or the right to dial gives
it back exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable
from enum import Enum
from functools import partial

from paywitness.clock import SystemClock
from paywitness.core.evidence import Evidence, NetworkPhase, WireFault
from paywitness.core.policy import UpstreamTimeouts
from paywitness.core.record import record
from paywitness.option_defaults import DEFAULTS
from paywitness.upstream.connection import UpstreamConnection
from paywitness.upstream.dial import NotConnected, dial
from paywitness.upstream.exchange import ResponseParser, StreamResponseParser, UpstreamExchange
from paywitness.upstream.late_responses import LateResponses, OnLateResponse
from paywitness.upstream.request import Origin, StreamRequest, WireRequest, request_bytes
from paywitness.upstream.stream import StreamedResponse, StreamExchange, stream_head_bytes, upload_and_await_head
from paywitness.upstream.tls import TlsConnection, TlsContexts, TlsSession


@record
class UpstreamLimits:
    """The bounds towards a provider: connections, waiting calls, a connection's age, a response's size."""

    connections_per_origin: int = 256
    waiting_per_origin: int = 1024
    idle_s: float = 4.0  # below the 5 s of common servers, because we must be the first to close
    age_s: float = 300.0  # so that a change of DNS is noticed
    calls_per_connection: int = 1000  # nginx closes after 1000
    response_bytes_max: int = 4 * 1024 * 1024


class PoolGrant(Enum):
    """The result of waiting for a connection, if it is not a connection."""

    DIAL = "dial"  # the right to open one
    NONE = "none"  # no connection became free in time, or too many calls are waiting already


class OriginPool:
    """The connections to one origin."""

    __slots__ = ("_bounds", "_busy", "_closed", "_idle", "_monotonic", "_waiting")

    def __init__(self, bounds: UpstreamLimits, monotonic: Callable[[], float]) -> None:
        self._bounds = bounds
        self._monotonic = monotonic
        self._busy = 0
        self._idle: list[UpstreamConnection] = []
        self._waiting: deque[tuple[asyncio.Future[UpstreamConnection | PoolGrant], bool]] = deque()
        self._closed = False

    def acquire_idle(self) -> UpstreamConnection | None:
        """The idle connection that was used last, if one is still good. Never waits."""
        while self._idle:
            connection = self._idle.pop()
            if connection.transport.is_closing():
                continue
            if self._monotonic() >= connection.stale_mono:
                connection.close()
                continue
            self._busy += 1
            return connection
        return None

    async def acquire(self, *, reuse: bool, timeout_s: float) -> UpstreamConnection | PoolGrant:
        """Call it if no connection is idle, or none may be used again. Returns the right to dial one, a connection that
        another call gives back (if `reuse` allows), or NONE if there is neither."""
        if self._make_room():
            self._busy += 1
            return PoolGrant.DIAL
        if self._closed or len(self._waiting) >= self._bounds.waiting_per_origin or timeout_s <= 0:
            return PoolGrant.NONE
        return await self._wait(reuse, timeout_s)

    def release(self, connection: UpstreamConnection | None) -> None:
        """Give a connection or the right to dial back. An open connection goes to the next call in the queue. None, or
        a closed one, gives the next call the right to dial."""
        if connection is not None and (self._closed or connection.transport.is_closing()):
            connection.close()
            connection = None
        while self._waiting:
            waiter, reuse = self._waiting.popleft()
            if waiter.done():
                continue
            if connection is not None and not reuse:
                connection.close()
                connection = None
            waiter.set_result(PoolGrant.DIAL if connection is None else connection)
            return  # a waiting call took it: as many connections are busy as before
        self._busy -= 1
        if connection is not None:
            self._idle.append(connection)

    def close(self) -> None:
        """Close idle connections and end all waits with NONE. A busy connection closes when it is given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        for waiter, _ in self._waiting:
            if not waiter.done():
                waiter.set_result(PoolGrant.NONE)
        self._waiting.clear()

    def _make_room(self) -> bool:
        """Whether one more connection may be opened. Closes the oldest idle one if that makes room."""
        if self._closed or self._busy >= self._bounds.connections_per_origin:
            return False
        if self._busy + len(self._idle) >= self._bounds.connections_per_origin:
            self._idle.pop(0).close()
        return True

    async def _wait(self, reuse: bool, timeout_s: float) -> UpstreamConnection | PoolGrant:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[UpstreamConnection | PoolGrant] = loop.create_future()
        entry = (waiter, reuse)
        self._waiting.append(entry)
        timer = loop.call_later(timeout_s, _give_up, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            # The wait may have succeeded in the moment of the cancellation. Then its grant must go to the next call.
            if waiter.done() and not waiter.cancelled():
                grant = waiter.result()
                if grant is not PoolGrant.NONE:
                    self.release(grant if isinstance(grant, UpstreamConnection) else None)
            raise
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):  # served, and so no longer in the queue
                self._waiting.remove(entry)


def _give_up(waiter: asyncio.Future[UpstreamConnection | PoolGrant]) -> None:
    if not waiter.done():
        waiter.set_result(PoolGrant.NONE)


# --- Client

_POOL_EXHAUSTED = NotConnected(
    NetworkPhase.RESOLVING, WireFault.POOL_EXHAUSTED, "no connection to the provider became free in time"
)


def always() -> bool:
    return True


async def _pass_failpoint(_: str) -> None:
    return None


class UpstreamClient:
    """Sends requests to providers over bounded pools of connections."""

    def __init__(
        self,
        *,
        bounds: UpstreamLimits | None = None,
        ssl_context: ssl.SSLContext | None = None,
        monotonic: Callable[[], float] = SystemClock().mono,
        at_failpoint: Callable[[str], Awaitable[None]] = _pass_failpoint,
        late_response_s: float = DEFAULTS.late_response_s,
        late_responses_max: int = 64,
    ) -> None:
        """`ssl_context` is best made by `tls_context`; None means the system's roots. `at_failpoint` is awaited at each
        named step: a crash test stops or kills the process there.

        A connection may go on listening for `late_response_s` after its attempt timed out. At most
        `late_responses_max` connections do so at a time.
        """
        self._bounds = bounds or UpstreamLimits()
        self._origin_pools: dict[Origin, OriginPool] = {}  # policies name origins, so there are as many as those name
        self._closed = False
        self._tls_contexts = TlsContexts(ssl_context)
        self._monotonic = monotonic
        self._at_failpoint = at_failpoint
        self._late_responses = LateResponses(late_response_s, late_responses_max, monotonic)

    async def send(
        self,
        origin: Origin,
        request: WireRequest,
        timeouts: UpstreamTimeouts,
        *,
        may_send: Callable[[], bool] = always,
        reuse: bool = True,
        on_late: OnLateResponse | None = None,
    ) -> Evidence:
        """Send one request and return the evidence.

        `may_send` is called right before the first byte, with the connection up. `reuse=False` always opens a
        connection. On a kept one the provider's close can cross our request, and that would leave an avoidable doubt.

        `on_late` is called at most once, after this method has returned evidence with `listening_s`. It gets the
        evidence of the whole response that came within that time. It must not raise. It is not called for a partial
        response, nor once `close` has returned. Without it a timeout ends by a reset at once.
        """
        payload = request_bytes(origin, request)
        began_mono = self._monotonic()
        origin_pool = self._origin_pools.get(origin) or self._new_origin_pool(origin)
        ready = await self._ready(origin_pool, origin, timeouts, reuse=reuse)
        if isinstance(ready, NotConnected):
            return self._not_sent(ready, began_mono)
        connection, reused = ready
        exchange: UpstreamExchange | None = None
        try:
            if not may_send():
                over = NotConnected(connection.ready_phase, WireFault.LEASE_OVER, "the right to send had run out")
                return self._not_sent(over, began_mono, reused=reused)
            parser = ResponseParser(head_only=request.method == "HEAD", body_bytes_max=self._bounds.response_bytes_max)
            exchange = UpstreamExchange(asyncio.get_running_loop().create_future(), parser, timeouts)
            connection.begin(exchange, payload)
            await self._at_failpoint("upstream_written")
            if on_late is not None:
                exchange.take_over = partial(
                    self._late_responses.take_over,
                    connection=connection,
                    on_late=on_late,
                    began_mono=began_mono,
                    reused=reused,
                )
            await exchange.done
            if exchange.phase is NetworkPhase.COMPLETE:
                await self._at_failpoint("upstream_answered")
            return exchange.evidence(self._monotonic() - began_mono, reused=reused)
        except BaseException:  # cancelled: nobody will take a late response
            if exchange is not None:
                connection.abandon(exchange)
            raise
        finally:
            still_listening = exchange is not None and exchange.listening_s > 0
            origin_pool.release(None if still_listening else connection)

    async def stream(
        self, origin: Origin, request: StreamRequest, body: AsyncIterable[bytes] | None, timeouts: UpstreamTimeouts
    ) -> StreamedResponse | Evidence:
        """Pass one request through in pieces. It is sent once and never repeated. Evidence if no response began.

        Exceptions of the body iterator pass through unchanged, after the connection was reset.
        """
        opening = stream_head_bytes(origin, request, has_body=body is not None)
        began_mono = self._monotonic()
        origin_pool = self._origin_pools.get(origin) or self._new_origin_pool(origin)
        ready = await self._ready(origin_pool, origin, timeouts, reuse=True)
        if isinstance(ready, NotConnected):
            return self._not_sent(ready, began_mono)
        connection, reused = ready
        parser = StreamResponseParser(head_only=request.method == "HEAD", body_bytes_max=None)
        done = asyncio.get_running_loop().create_future()
        exchange = StreamExchange(done, parser, timeouts, connection, origin_pool, request_complete=body is None)
        try:
            connection.begin(exchange, opening)
            await self._at_failpoint("upstream_written")
            await upload_and_await_head(connection, exchange, request, body)
        except BaseException:  # the body's own, or cancelled
            exchange.abandon()
            raise
        if exchange.fault is not None:
            return exchange.evidence(self._monotonic() - began_mono, reused=reused)
        return StreamedResponse(exchange, began_mono, self._monotonic, reused=reused)

    async def close(self) -> None:
        """Close idle connections and reset those that only listen. Calls under way run on to their end. Afterwards no
        new connection is dialled."""
        self._late_responses.close()
        self._closed = True
        for origin_pool in self._origin_pools.values():
            origin_pool.close()
        await asyncio.sleep(0)  # transports let go of their sockets in the next turn of the loop

    # -- a connection ------------------------------------------------------------------------------------------------

    def _new_origin_pool(self, origin: Origin) -> OriginPool:
        origin_pool = self._origin_pools[origin] = OriginPool(self._bounds, self._monotonic)
        if self._closed:
            origin_pool.close()
        return origin_pool

    async def _ready(
        self, origin_pool: OriginPool, origin: Origin, timeouts: UpstreamTimeouts, *, reuse: bool
    ) -> tuple[UpstreamConnection, bool] | NotConnected:
        """A connection on which an exchange may begin, and whether it was used before. The caller gives it back."""
        deadline_mono = self._monotonic() + timeouts.connect_s
        grant: UpstreamConnection | PoolGrant | None = origin_pool.acquire_idle() if reuse else None
        if grant is None:
            grant = await origin_pool.acquire(reuse=reuse, timeout_s=timeouts.connect_s)
        if grant is PoolGrant.NONE:
            return _POOL_EXHAUSTED
        ready = False
        try:
            if isinstance(grant, UpstreamConnection):
                ready = await self._usable(grant)
                if ready:
                    return grant, True
                deadline_mono = self._monotonic() + timeouts.connect_s
            opened = await self._open(origin, timeouts, deadline_mono)
            if isinstance(opened, NotConnected):
                return opened
            ready = await self._usable(opened)
            if ready:
                return opened, False
            return NotConnected(opened.ready_phase, WireFault.CLOSED, "the peer closed right after connecting")
        finally:
            if not ready:
                origin_pool.release(None)

    async def _usable(self, connection: UpstreamConnection) -> bool:
        """Whether an exchange may begin on the connection now. If not, it is closed."""
        usable = False
        try:
            await self._at_failpoint("upstream_connected")
            usable = connection.is_usable()
        finally:
            if not usable:
                connection.close()
        return usable

    async def _open(
        self, origin: Origin, timeouts: UpstreamTimeouts, deadline_mono: float
    ) -> UpstreamConnection | NotConnected:
        try:
            tls = TlsSession(self._tls_contexts.context_for(origin.trust), origin.host) if origin.secure else None
        except OSError as error:  # ssl.SSLError is one
            detail = f"a file of its policy's tls cannot be used: {error.strerror or type(error).__name__}"
            return NotConnected(NetworkPhase.HANDSHAKING, WireFault.TLS_FAILURE, detail)
        first_byte_s = timeouts.first_byte_s
        dialled = await dial(origin, deadline_mono, first_byte_s, self._monotonic)
        if isinstance(dialled, NotConnected):
            return dialled
        if tls is None:
            connection = UpstreamConnection(dialled, self._bounds, first_byte_s, self._monotonic)
        else:
            connection = TlsConnection(dialled, tls, timeouts.tls_s, self._bounds, first_byte_s, self._monotonic)
        failure = await connection.start()
        return connection if failure is None else failure

    def _not_sent(self, why: NotConnected, began_mono: float, *, reused: bool = False) -> Evidence:
        return Evidence(
            why.phase, 0, why.fault, None, why.detail, self._monotonic() - began_mono, reused_connection=reused
        )
