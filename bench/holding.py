"""A provider that keeps its callers waiting: it answers every charge when it is told to. On several ports, since a
sidecar opens only so many connections to one.

    GET /held      how many charges wait
    GET /release   answer them all
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from bench.provider import ProviderConnection

_SAID = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"


_held: list[HoldingConnection] = []


class HoldingConnection(ProviderConnection):
    _url = b""

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_message_complete(self) -> None:
        if self._url == b"/held":
            self._say(b"%d" % len(_held))
        elif self._url == b"/release":
            waiting = _held[:]
            _held.clear()
            for connection in waiting:
                connection.answer()
            self._say(b"%d" % len(waiting))
        else:
            _held.append(self)

    def answer(self) -> None:
        super().on_message_complete()

    def connection_lost(self, error: Exception | None) -> None:
        if self in _held:
            _held.remove(self)

    def _say(self, text: bytes) -> None:
        self._transport.write(_SAID % (len(text), text))


async def serve(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(HoldingConnection, "127.0.0.1", port, backlog=1024) for port in ports]
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    uvloop.run(serve([int(word) for word in sys.argv[1:]]))
