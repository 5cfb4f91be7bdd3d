"""What a caller needs whose HTTP client was told of a proxy, and a place that no policy names."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from typing import Any, Protocol

from paywitness.transparent.local_ca import make_local_ca
from tests.server.raw_client import Caller

AUTHORITY = make_local_ca(["api.acme.test", "api.globex.test"], datetime.now(UTC))
TRUSTING = ssl.create_default_context(cadata=AUTHORITY.pem.decode())


class Reached(Protocol):
    async def caller(self) -> Caller: ...


class Outside:
    """A place that no policy names: it says back what it hears."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.trouble: str | None = None
        self.port = 0
        self.left = 0

    async def connect(self, host: str, port: int, protocol: asyncio.Protocol) -> str | None:
        self.asked.append((host, port))
        if self.trouble is None:
            await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", self.port)
        return self.trouble

    def release(self, protocol: asyncio.Protocol) -> None:
        self.left += 1

    def is_own_connection(self, peer: tuple[Any, ...]) -> bool:
        return False


def connect(authority: str, *headers: str, host: str | None = None) -> bytes:
    return "\r\n".join([f"CONNECT {authority} HTTP/1.1", f"Host: {host or authority}", *headers, "", ""]).encode()


async def tunnelled(proxy: Reached, host: str = "api.acme.test") -> Caller:
    """A caller that shook hands with whoever answers for the host."""
    caller = await proxy.caller()
    caller.send(connect(f"{host}:443"))
    status_code, _, _ = await caller.head()
    assert status_code == 200
    await caller.writer.start_tls(TRUSTING, server_hostname=host)
    return caller


def charge(host: str, path: str = "/v1/charges", *headers: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", f"Host: {host}", *headers, "Content-Length: 2", "", "{}"]).encode()
