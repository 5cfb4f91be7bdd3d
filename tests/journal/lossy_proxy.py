"""A TCP proxy between a journal and its Redis that loses what it is told to lose."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Lossy:
    """Passes everything on, until it is told to lose the next request, or the reply to the next one or a later one."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._requests_until_reply_lost: int | None = None
        self._lose_request = False
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Lossy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._server.wait_closed()

    def lose_reply(self, requests: int = 1) -> None:
        """Of the so many-th request from now: Redis gets it and answers, and the connection breaks."""
        self._requests_until_reply_lost = requests

    def lose_request(self) -> None:
        """The next one: the connection breaks before Redis gets it."""
        self._lose_request = True

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pump = asyncio.current_task()
        assert pump is not None
        self._pumps.add(pump)
        from_redis, to_redis = await asyncio.open_connection("127.0.0.1", self._to)
        replies = asyncio.ensure_future(self._replies(from_redis, writer))
        try:
            while (data := await reader.read(1 << 20)) and not self._lose_request:
                if self._requests_until_reply_lost is not None:
                    self._requests_until_reply_lost -= 1
                to_redis.write(data)
                await to_redis.drain()
        except ConnectionError:
            pass
        finally:
            self._lose_request = False
            replies.cancel()
            with suppress(asyncio.CancelledError):
                await replies
            for each in (writer, to_redis):
                each.close()
                with suppress(ConnectionError):
                    await each.wait_closed()
            self._pumps.discard(pump)

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                if self._requests_until_reply_lost == 0:
                    self._requests_until_reply_lost = None
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
