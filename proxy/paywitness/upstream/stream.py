"""A call passed through in pieces. No policy covers it, so it is sent once and never repeated.

The head of the response is returned as soon as it is there. Its body is an async iterator that slows the provider down
to the caller's pace. The rule: a body that ended early never looks complete; its iterator raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import TYPE_CHECKING

from paywitness.core.evidence import Evidence
from paywitness.core.policy import UpstreamTimeouts
from paywitness.upstream.connection import UpstreamConnection
from paywitness.upstream.exchange import ResponseParser, UpstreamExchange
from paywitness.upstream.request import Origin, StreamRequest, head_bytes

if TYPE_CHECKING:
    from paywitness.upstream.client import OriginPool  # the client imports this module

_HELD_BYTES_MAX = 256 * 1024  # of body that the caller has not taken; then the provider waits
_LONG_S = 3600.0  # while we wait for the caller's next piece: the server bounds that wait


class ResponseBodyBroken(Exception):
    """The response's body will not be whole. Carries the evidence so far."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__(evidence.detail)
        self.evidence = evidence


class StreamExchange(UpstreamExchange):
    """An exchange that is read and written in pieces. It gives its own place in the pool back, however it ends."""

    __slots__ = ("_body_arrived", "_connection", "_origin_pool", "_window", "_writable", "blocked", "head")

    def __init__(
        self,
        done: asyncio.Future[None],
        parser: ResponseParser,
        timeouts: UpstreamTimeouts,
        connection: UpstreamConnection,
        origin_pool: OriginPool,
        *,
        request_complete: bool,
    ) -> None:
        super().__init__(done, parser, timeouts)
        self.request_complete = request_complete
        self.head: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # or the end, if there is none
        self.blocked = False
        self._connection = connection
        self._origin_pool = origin_pool
        self._writable: asyncio.Future[None] | None = None
        self._body_arrived: asyncio.Future[None] | None = None
        self._window: asyncio.Timeout | None = None

    # -- called by the connection ------------------------------------------------------------------------------------

    def writing(self, now: float) -> None:
        super().writing(now)
        self.blocked = True

    def flushed(self, now: float) -> None:
        self.blocked = False
        if not self.request_complete:
            self.expires_mono = now + _LONG_S
        super().flushed(now)
        _wake(self._writable)

    def received(self, now: float) -> None:
        super().received(now)
        if self.parser.status_code:  # even if the head came before the upload was over: the upload has ended now
            self._await_more(now)

    def _await_more(self, now: float) -> None:
        super()._await_more(now)
        self.expires_mono = now + self.timeouts.body_idle_s  # a long response is no fault here

    def progressed(self) -> None:
        if self.parser.status_code:
            self._signal_head()
        _wake(self._body_arrived)
        if self.parser.held_bytes > _HELD_BYTES_MAX:
            self._connection.pause()

    def conclude(self) -> None:
        super().conclude()
        self._signal_head()
        _wake(self._body_arrived)
        _wake(self._writable)
        self._origin_pool.release(self._connection)

    def _signal_head(self) -> None:
        _wake(self.head)
        if self._window is not None:
            self._window.reschedule(0.0)
            self._window = None

    # -- called by the code that passes pieces on --------------------------------------------------------------------

    def closes_with_head(self, window: asyncio.Timeout | None) -> None:
        """Let that window run out when the head is there, or the exchange is over."""
        self._window = window

    async def wait_writable(self) -> None:
        """Wait until the kernel has taken the bytes that were written, or the exchange is over."""
        if self.blocked and not self.done.done():
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable

    async def wait_body(self) -> None:
        """Wait for more of the body, or the end."""
        if not self.parser.held_bytes and not self.done.done():
            self._body_arrived = asyncio.get_running_loop().create_future()
            await self._body_arrived

    def take_body(self, now: float) -> bytes:
        """Take the body bytes that have arrived. The time for the next piece starts again."""
        piece = self.parser.take_body()
        if not self.done.done():
            self.received(now)
            self._connection.resume()
        return piece

    def abandon(self) -> None:
        self._connection.abandon(self)


class StreamedResponse:
    """The head of a response whose body is still coming. Iterate it to its end, or close it."""

    def __init__(
        self, exchange: StreamExchange, began_mono: float, monotonic: Callable[[], float], *, reused: bool
    ) -> None:
        parser = exchange.parser
        self.status_code = parser.status_code
        self.reason = parser.reason
        self.headers = parser.headers
        self._exchange = exchange
        self._began_mono = began_mono
        self._monotonic = monotonic
        self._reused = reused

    @property
    def trailers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The headers behind a chunked body, once it is over."""
        return self._exchange.parser.trailers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body, piece by piece, without the transfer coding. Raises ResponseBodyBroken if it is cut off."""
        exchange = self._exchange
        try:
            while not exchange.done.done() or exchange.parser.held_bytes:
                await exchange.wait_body()
                piece = exchange.take_body(self._monotonic())
                if piece:
                    yield piece
        finally:
            exchange.abandon()  # the caller stopped early; otherwise this does nothing
        if exchange.fault is not None:
            raise ResponseBodyBroken(exchange.evidence(self._monotonic() - self._began_mono, reused=self._reused))

    async def close(self) -> None:
        """Stop. If the body was not over, the connection is reset."""
        self._exchange.abandon()


def stream_head_bytes(origin: Origin, request: StreamRequest, *, has_body: bool) -> bytes:
    """The request's head. Raises ValueError for one that must not be written."""
    if has_body and request.body_bytes is None:
        framing = b"Transfer-Encoding: chunked\r\n"
    elif has_body or request.method in ("POST", "PUT", "PATCH"):
        framing = b"Content-Length: %d\r\n" % (request.body_bytes or 0)
    else:
        framing = b""
    return head_bytes(origin, request, framing)


async def upload_and_await_head(
    connection: UpstreamConnection, exchange: StreamExchange, request: StreamRequest, body: AsyncIterable[bytes] | None
) -> None:
    """Write the body and wait for the head of the response. A response that comes before the end of the body is final,
    so it ends the upload."""
    if body is not None and not exchange.head.done():
        try:
            async with asyncio.timeout(None) as window:  # open-ended: the response's head closes it
                exchange.closes_with_head(window)
                try:
                    await _upload(connection, exchange, request.body_bytes, body)
                finally:
                    exchange.closes_with_head(None)
        except TimeoutError:
            if not exchange.head.done():
                raise  # the body iterator raised it
    await exchange.head


async def _upload(
    connection: UpstreamConnection, exchange: StreamExchange, body_bytes: int | None, body: AsyncIterable[bytes]
) -> None:
    uploaded = 0
    async for piece in body:
        if not piece:
            continue
        uploaded += len(piece)
        if body_bytes is not None and uploaded > body_bytes:
            raise ValueError("the body is longer than was said")
        connection.write_more(exchange, piece if body_bytes is not None else b"%x\r\n%b\r\n" % (len(piece), piece))
        await exchange.wait_writable()
        if exchange.done.done():
            return
    if body_bytes is not None and uploaded < body_bytes:
        raise ValueError("the body is shorter than was said")
    exchange.request_complete = True
    connection.write_more(exchange, b"0\r\n\r\n" if body_bytes is None else b"")


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
