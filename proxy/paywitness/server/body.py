"""The caller's body: whole and within bounds for the engine, or piece by piece for what is only passed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import StreamReader
from aiohttp.web_protocol import RequestPayloadError

from paywitness.core.problems import Problem
from paywitness.server.connection import ServerConnection
from paywitness.server.control_headers import RequestHead
from paywitness.server.errors import BodyIncomplete, CallerDisconnected, RequestRejected
from paywitness.server.limits_and_timeouts import ServerLimits


class RequestBody:
    """One request's body. Read it once, in one of the two ways."""

    __slots__ = ("_connection", "_continue_due", "_limits", "_stream", "_waited_s", "length", "present")

    def __init__(
        self, connection: ServerConnection, stream: StreamReader, head: RequestHead, limits: ServerLimits
    ) -> None:
        self.present = head.chunked or bool(head.length)
        self.length = head.length
        self._connection = connection
        self._stream = stream
        self._limits = limits
        self._continue_due = head.expects_continue
        self._waited_s = 0.0

    async def read_whole(self) -> bytes:
        """All of it. Raises RequestRejected if it is too large, too slow or broken, CallerDisconnected if its sender is
        gone."""
        if not self.present:
            return b""
        limit = self._limits.body_bytes_max
        if self.length is not None and self.length > limit:
            raise _too_large(limit)
        if self._stream.is_eof() and self._stream.total_bytes <= limit:
            return self._stream.read_nowait()  # it came with its head, as most do
        pieces: list[bytes] = []
        size = 0
        while piece := await self._read_piece():
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            pieces.append(piece)
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """It as it comes, no faster than it is taken. Raises as `read_whole` does, but for the size."""
        while piece := await self._read_piece():
            yield piece

    async def _read_piece(self) -> bytes:
        """The next piece; empty at the end."""
        stream = self._stream
        try:
            piece = stream.read_nowait(self._limits.piece_bytes_max)
            if piece or stream.at_eof():
                return piece
            if self._continue_due:
                self._continue_due = False
                self._connection.send_continue()
            return await self._wait_for_piece()
        except RequestPayloadError:
            raise BodyIncomplete(Problem.MALFORMED, "The framing of the body is broken.") from None
        except (ConnectionError, RuntimeError) as error:
            if self._connection.connected:
                raise
            raise CallerDisconnected from error

    async def _wait_for_piece(self) -> bytes:
        limits = self._limits
        loop = asyncio.get_running_loop()
        began_mono = loop.time()
        earned_s = limits.body_start_s + self._stream.total_bytes / limits.body_bytes_per_s_min
        within_s = min(limits.body_idle_s, min(limits.body_s, earned_s) - self._waited_s)
        piece = await self._connection.read_body(self._stream, limits.piece_bytes_max, within_s)
        self._waited_s += loop.time() - began_mono
        return piece


def _too_large(limit: int) -> RequestRejected:
    return RequestRejected(Problem.TOO_LARGE, f"The body of an operation may have {limit} bytes.")
