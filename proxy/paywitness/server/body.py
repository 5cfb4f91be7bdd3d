"""The caller's body: whole and within bounds for the engine, or piece by piece for what is only passed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from paywitness.core.problems import Problem
from paywitness.server.connection import ServerConnection
from paywitness.server.control_headers import RequestHead
from paywitness.server.errors import CallerDisconnected, RequestRejected
from paywitness.server.limits_and_timeouts import ServerLimits


class RequestBody:
    """The body of the request that its connection serves now. Read it once, in one of the two ways."""

    __slots__ = ("_connection", "_continue_due", "_limits", "_received", "_waited_s", "length", "present")

    def __init__(self, connection: ServerConnection, head: RequestHead, limits: ServerLimits) -> None:
        self.present = head.chunked or bool(head.length)
        self.length = head.length
        self._connection = connection
        self._received = connection.body
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
        if self._received.complete and self._received.received_bytes <= limit:
            return self._connection.take_body(limit)  # it came with its head, as most do
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
        received = self._received
        while True:
            if received.fault is not None:
                raise received.fault
            if received.held_bytes:
                return self._connection.take_body(self._limits.piece_bytes_max)
            if received.complete:
                return b""
            if not self._connection.is_open:
                raise CallerDisconnected
            if self._continue_due:
                self._continue_due = False
                self._connection.send_continue()
            await self._wait()

    async def _wait(self) -> None:
        limits = self._limits
        loop = asyncio.get_running_loop()
        began_mono = loop.time()
        earned_s = limits.body_start_s + self._received.received_bytes / limits.body_bytes_per_s_min
        await self._connection.wait_for_body(min(limits.body_idle_s, min(limits.body_s, earned_s) - self._waited_s))
        self._waited_s += loop.time() - began_mono


def _too_large(limit: int) -> RequestRejected:
    return RequestRejected(Problem.TOO_LARGE, f"The body of an operation may have {limit} bytes.")
