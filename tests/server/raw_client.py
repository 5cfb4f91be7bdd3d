"""A caller on a raw socket: it sends bytes as they are given and tells what came back, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WAIT_S = 10.0  # a test that waits longer has failed


@dataclass
class Answer:
    status_code: int
    reason: str
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name.lower().encode()]
        assert len(found) <= 1, f"{name} came {len(found)} times"
        return found[0].decode("latin-1") if found else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The last word of the problem's type; the answer keeps the form of all our problems."""
        assert self.header("Content-Type") == "application/problem+json"
        assert self.json["status"] == self.status_code
        assert self.json["outcome"] == self.header("Paywitness-Outcome")
        return str(self.json["type"]).rpartition(":")[2]


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Caller:
        return cls(*await asyncio.open_connection(*address))

    @property
    def socket(self) -> socket.socket:
        sock: socket.socket = self.writer.get_extra_info("socket")
        return sock

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def half_close(self) -> None:
        self.writer.write_eof()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def abort(self) -> None:
        self.writer.transport.abort()

    async def head(self) -> tuple[int, str, list[tuple[bytes, bytes]]]:
        async with asyncio.timeout(WAIT_S):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw[:-4].split(b"\r\n")
        version, status_code, reason = first.split(b" ", 2)
        assert version == b"HTTP/1.1"
        headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        return int(status_code), reason.decode(), headers

    async def answer(self, method: str = "POST") -> Answer:
        """The next final answer, by its own framing."""
        status_code, reason, headers = await self.head()
        answer = Answer(status_code, reason, headers, b"")
        async with asyncio.timeout(WAIT_S):
            if method == "HEAD" or status_code in (204, 304) or status_code < 200:
                return answer
            if answer.header("Transfer-Encoding") == "chunked":
                answer.body = await self._chunks()
            elif (length := answer.header("Content-Length")) is not None:
                answer.body = await self.reader.readexactly(int(length))
            else:
                answer.body = await self.reader.read()
        return answer

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"
        return body

    async def ask(self, data: bytes, method: str = "POST") -> Answer:
        self.send(data)
        return await self.answer(method)

    async def rest(self) -> bytes:
        """Everything until the end of the connection. Raises ConnectionError if it ends by a reset."""
        async with asyncio.timeout(WAIT_S):
            return await self.reader.read()

    async def is_closed(self) -> bool:
        """Wait for the end: whether nothing more came before it, however it came."""
        with contextlib.suppress(ConnectionError):
            return await self.rest() == b""
        return True


def request(
    path: str = "/acme/v1/charges",
    body: bytes | None = b"{}",
    *headers: str,
    method: str = "POST",
    version: str = "1.1",
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: 127.0.0.1", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def get(path: str, *headers: str, version: str = "1.1") -> bytes:
    return request(path, None, *headers, method="GET", version=version)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other tasks bring about."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what brings it about has no event to give
            await asyncio.sleep(0.002)
