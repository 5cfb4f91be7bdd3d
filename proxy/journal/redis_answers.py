"""What Redis answers on one connection, read by the packet: redis-py reads one answer at a time, and takes longer for
it than for all the rest of a call.

redis-py makes the connection and greets; from then on this reads. An answer is a value, or the error that Redis gave in
its place. An end is raised.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import InvalidResponse, ResponseError

try:
    import hiredis
except ImportError:  # the extra `speed` brings it
    hiredis = None  # type: ignore[assignment]

_READ_BYTES = 64 * 1024
_NOTHING_YET = object()


class Answers:
    """Reads the answers of one connection, in their order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parsed: Any = None
        if hiredis is not None:
            parse_error = type(connection._parser).parse_error  # redis-py's: which word is which error
            self._parsed = hiredis.Reader(
                protocolError=InvalidResponse, replyError=parse_error, notEnoughData=_NOTHING_YET
            )

    async def some(self, most: int) -> list[Any]:
        """Those that have come, at least one and at most so many."""
        if self._parsed is None:
            return [await self._one()]
        found = self._whole(most)
        while not found:
            stream = self._connection._reader
            data = await stream.read(_READ_BYTES) if isinstance(stream, asyncio.StreamReader) else b""
            if not data:
                raise NotConnected("Connection closed by server.")
            self._parsed.feed(data)
            found = self._whole(most)
        return found

    async def next(self) -> Any:
        return (await self.some(1))[0]

    def _whole(self, most: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < most and (answer := self._parsed.gets(False)) is not _NOTHING_YET:
            found.append(answer)
        return found

    async def _one(self) -> Any:
        try:
            return await self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error
