"""The caller's body: whole and within bounds for the engine, or piece by piece for what is only passed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import StreamReader
from aiohttp.web_protocol import RequestPayloadError

from proxy.core.reply import Problem
from proxy.edge.connection import Connection
from proxy.edge.limits import EdgeLimits
from proxy.edge.refused import BodyLost, CallerLeft, Refused
from proxy.edge.wishes import Head


class Body:
    """One request's body. Read it once, in one of the two ways."""

    __slots__ = ("_connection", "_limits", "_owes_continue", "_stream", "_waited_s", "length", "present")

    def __init__(self, connection: Connection, stream: StreamReader, head: Head, limits: EdgeLimits) -> None:
        self.present = head.chunked or bool(head.length)
        self.length = head.length
        self._connection = connection
        self._stream = stream
        self._limits = limits
        self._owes_continue = head.expects_continue
        self._waited_s = 0.0

    async def whole(self) -> bytes:
        """All of it. Raises Refused if it is too large, too slow or broken, CallerLeft if its sender is gone."""
        if not self.present:
            return b""
        limit = self._limits.body_bytes_max
        if self.length is not None and self.length > limit:
            raise _too_large(limit)
        if self._stream.is_eof() and self._stream.total_bytes <= limit:
            return self._stream.read_nowait()  # it came with its head, as most do
        pieces: list[bytes] = []
        size = 0
        while piece := await self._next():
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            pieces.append(piece)
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """It as it comes, no faster than it is taken. Raises as `whole` does, but for the size."""
        while piece := await self._next():
            yield piece

    async def _next(self) -> bytes:
        """The next piece; empty at the end."""
        stream = self._stream
        try:
            piece = stream.read_nowait(self._limits.piece_bytes_max)
            if piece or stream.at_eof():
                return piece
            if self._owes_continue:
                self._owes_continue = False
                self._connection.say_continue()
            return await self._wait()
        except RequestPayloadError:
            raise BodyLost(Problem.MALFORMED, "The framing of the body is broken.") from None
        except (ConnectionError, RuntimeError) as error:
            if self._connection.connected:
                raise
            raise CallerLeft from error

    async def _wait(self) -> bytes:
        limits = self._limits
        loop = asyncio.get_running_loop()
        began_mono = loop.time()
        earned_s = limits.body_start_s + self._stream.total_bytes / limits.body_bytes_per_s_min
        within_s = min(limits.body_idle_s, min(limits.body_s, earned_s) - self._waited_s)
        piece = await self._connection.more_of(self._stream, limits.piece_bytes_max, within_s)
        self._waited_s += loop.time() - began_mono
        return piece


def _too_large(limit: int) -> Refused:
    return Refused(Problem.TOO_LARGE, f"The body of an operation may have {limit} bytes.")
