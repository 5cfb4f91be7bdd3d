"""A provider that answers every charge at once: as little work as Python allows, so that the proxies show.

It parses each request properly and echoes amount and currency, since Paywitness compares them: an answer over another
amount would be doubt, and not the clean path.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import ssl
import sys
from typing import cast

import httptools
import uvloop

_AMOUNT = re.compile(rb'"amount": ?(\d+)')
_CURRENCY = re.compile(rb'"currency": ?"(\w+)"')
_PADDING = "a charge that went well" * 6  # makes the answer about 300 bytes
_BODY = (
    b'{"id":"ch_%024d","object":"charge","status":"succeeded","amount":%b,"currency":"%b","captured":true,"description":"'
    + _PADDING.encode()
    + b'"}'
)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nRequest-Id: req_1\r\nContent-Length: %d\r\n\r\n"


_numbers = itertools.count(1)


class ProviderConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        amount, currency = _AMOUNT.search(self._body), _CURRENCY.search(self._body)
        body = _BODY % (next(_numbers), amount[1] if amount else b"0", currency[1] if currency else b"xxx")
        self._body = b""
        self._transport.write(_HEAD % len(body) + body)


async def serve(port: int, certificate: str = "") -> None:
    """Given a certificate, with its key in the same file, by TLS."""
    context = None
    if certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(ProviderConnection, "127.0.0.1", port, backlog=1024, ssl=context)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), *sys.argv[2:3]))
