"""A real HTTP sink for events: it takes, refuses, breaks, hangs or is not there, and remembers what it took."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

KEY = b"a key of the sink, 32 bytes long"
SECRET = b"whsec_" + base64.b64encode(KEY)
HANG = 0


@dataclass(frozen=True)
class Delivery:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    @property
    def operation(self) -> str:
        return str(self.event["subject"])

    @property
    def version(self) -> int:
        return int(self.event["data"]["version"])

    @property
    def is_signed(self) -> bool:
        """By the book: https://www.standardwebhooks.com, and by none of our own code."""
        content = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        made = base64.b64encode(hmac.new(KEY, content, hashlib.sha256).digest()).decode()
        return f"v1,{made}" in self.headers["webhook-signature"].split(" ")


@dataclass
class HttpSink:
    """`answer` gives the status code for each delivery; HANG never answers."""

    answer: Callable[[Delivery], int] = lambda _: 204
    offered: list[Delivery] = field(default_factory=list)
    taken: list[Delivery] = field(default_factory=list)
    port: int = 0
    at_once: int = 0
    most_at_once: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/money?from=paywitness"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Nothing listens any more, and what was connected is cut off."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while delivery := await self._read(reader):
                await self._answer(delivery, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Delivery | None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        return Delivery(first.split(" ")[1], headers, body)

    async def _answer(self, delivery: Delivery, writer: asyncio.StreamWriter) -> None:
        self.offered.append(delivery)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            code = self.answer(delivery)
            if code == HANG:
                await asyncio.sleep(60)
            if 200 <= code < 300:
                self.taken.append(delivery)
            writer.write(f"HTTP/1.1 {code} X\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
        finally:
            self.at_once -= 1

    def first_versions(self) -> dict[str, list[int]]:
        """Of each operation, the versions in the order in which they were first taken."""
        seen: dict[str, list[int]] = {}
        for delivery in self.taken:
            versions = seen.setdefault(delivery.operation, [])
            if delivery.version not in versions:
                versions.append(delivery.version)
        return seen


async def until(condition: Callable[[], object]) -> None:
    """Wait until it is so. The test's own time limit ends a wait in vain."""
    while not condition():  # noqa: ASYNC110  # the world is real sockets: there is no event to wait for
        await asyncio.sleep(0.005)
