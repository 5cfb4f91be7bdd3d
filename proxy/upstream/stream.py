"""A call passed through in pieces: for what no policy guards, so it is used once and never repeated.

The answer's head is given as soon as it is there, its body as an async iterator that slows the provider down to the
caller's pace. The rule: a body that ended early never looks like one that ended; its iterator raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable

from proxy.core.evidence import Evidence
from proxy.upstream.answer import AnswerReader
from proxy.upstream.exchange import Exchange
from proxy.upstream.pool import Lane
from proxy.upstream.target import Origin, StreamRequest, Timeouts, head_bytes
from proxy.upstream.wire import Connection

_HELD_BYTES_MAX = 256 * 1024  # of body that the caller has not taken; then the provider waits
_LONG_S = 3600.0  # while we wait for the caller's next piece: the edge bounds that wait


class BodyBroken(Exception):
    """The answer's body will not be whole. Carries what was seen."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__(evidence.detail)
        self.evidence = evidence


class StreamExchange(Exchange):
    """An exchange that is read and written in pieces. It ends its own turn in the lane, whoever stops caring first."""

    __slots__ = ("_arrival", "_connection", "_lane", "_room", "_window", "blocked", "head")

    def __init__(
        self,
        done: asyncio.Future[None],
        reader: AnswerReader,
        timeouts: Timeouts,
        connection: Connection,
        lane: Lane,
        *,
        whole: bool,
    ) -> None:
        super().__init__(done, reader, timeouts)
        self.whole = whole
        self.head: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # or the end, if there is none
        self.blocked = False
        self._connection = connection
        self._lane = lane
        self._room: asyncio.Future[None] | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._window: asyncio.Timeout | None = None

    # -- told by the connection --------------------------------------------------------------------------------------

    def writing(self, now: float) -> None:
        super().writing(now)
        self.blocked = True

    def emptied(self, now: float) -> None:
        self.blocked = False
        if not self.whole:
            self.expires_mono = now + _LONG_S
        super().emptied(now)
        _wake(self._room)

    def heard(self, now: float) -> None:
        super().heard(now)
        if self.reader.status_code:  # also where it came before the upload was over: that has ended now
            self._await_more(now)

    def _await_more(self, now: float) -> None:
        super()._await_more(now)
        self.expires_mono = now + self._timeouts.body_idle_s  # a long answer is no fault here

    def progressed(self) -> None:
        if self.reader.status_code:
            self._show_head()
        _wake(self._arrival)
        if self.reader.held_bytes > _HELD_BYTES_MAX:
            self._connection.pause()

    def conclude(self) -> None:
        super().conclude()
        self._show_head()
        _wake(self._arrival)
        _wake(self._room)
        self._lane.give_back(self._connection)

    def _show_head(self) -> None:
        _wake(self.head)
        if self._window is not None:
            self._window.reschedule(0.0)
            self._window = None

    # -- asked by those who pass pieces on ---------------------------------------------------------------------------

    def closes_with_head(self, window: asyncio.Timeout | None) -> None:
        """Let that window run out when the head is there, or the exchange is over."""
        self._window = window

    async def room(self) -> None:
        """Wait until the kernel has taken what was written, or there is nobody left to write to."""
        if self.blocked and not self.done.done():
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def arrival(self) -> None:
        """Wait for more of the body, or the end."""
        if not self.reader.held_bytes and not self.done.done():
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival

    def take(self, now: float) -> bytes:
        """What has arrived. Taking is a sign of life: the time for the next piece starts again."""
        piece = self.reader.take_body()
        if not self.done.done():
            self.heard(now)
            self._connection.resume()
        return piece

    def abandon(self) -> None:
        self._connection.abandon(self)


class StreamedResponse:
    """The head of an answer whose body is still coming. Iterate it to its end, or close it."""

    def __init__(
        self, exchange: StreamExchange, began_mono: float, monotonic: Callable[[], float], *, reused: bool
    ) -> None:
        reader = exchange.reader
        self.status_code = reader.status_code
        self.reason = reader.reason
        self.headers = reader.headers
        self._exchange = exchange
        self._began_mono = began_mono
        self._monotonic = monotonic
        self._reused = reused

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body, piece by piece, less the transfer coding. Raises BodyBroken where it is cut off."""
        exchange = self._exchange
        try:
            while not exchange.done.done() or exchange.reader.held_bytes:
                await exchange.arrival()
                piece = exchange.take(self._monotonic())
                if piece:
                    yield piece
        finally:
            exchange.abandon()  # the caller stopped early; otherwise this does nothing
        if exchange.fault is not None:
            raise BodyBroken(exchange.evidence(self._monotonic() - self._began_mono, reused=self._reused))

    async def close(self) -> None:
        """Stop. If the body was not over, the connection is reset."""
        self._exchange.abandon()


def opening_bytes(origin: Origin, request: StreamRequest, *, has_body: bool) -> bytes:
    """The request's head. Raises ValueError for one that must not be written."""
    if has_body and request.body_bytes is None:
        framing = b"Transfer-Encoding: chunked\r\n"
    elif has_body or request.method in ("POST", "PUT", "PATCH"):
        framing = b"Content-Length: %d\r\n" % (request.body_bytes or 0)
    else:
        framing = b""
    return head_bytes(origin, request, framing)


async def upload_and_await_head(
    connection: Connection, exchange: StreamExchange, request: StreamRequest, body: AsyncIterable[bytes] | None
) -> None:
    """Write the body and wait for the answer's head. An answer that comes first ends the upload: it is the verdict."""
    if body is not None and not exchange.head.done():
        try:
            async with asyncio.timeout(None) as window:  # open-ended: the answer's head closes it
                exchange.closes_with_head(window)
                try:
                    await _upload(connection, exchange, request.body_bytes, body)
                finally:
                    exchange.closes_with_head(None)
        except TimeoutError:
            if not exchange.head.done():
                raise  # the body's own
    await exchange.head


async def _upload(
    connection: Connection, exchange: StreamExchange, body_bytes: int | None, body: AsyncIterable[bytes]
) -> None:
    uploaded = 0
    async for piece in body:
        if not piece:
            continue
        uploaded += len(piece)
        if body_bytes is not None and uploaded > body_bytes:
            raise ValueError("the body is longer than was said")
        connection.more(exchange, piece if body_bytes is not None else b"%x\r\n%b\r\n" % (len(piece), piece))
        await exchange.room()
        if exchange.done.done():
            return
    if body_bytes is not None and uploaded < body_bytes:
        raise ValueError("the body is shorter than was said")
    exchange.whole = True
    connection.more(exchange, b"0\r\n\r\n" if body_bytes is None else b"")


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
