"""A caller with its eyes open: sends a request over a raw socket and tells what came back, and how it ended."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from urllib.parse import urlencode

from paywitness_sandbox.server import Sandbox

FIN, RESET, SILENCE = "fin", "reset", "silence"


@dataclass
class Seen:
    """Every byte that came, and the end: FIN, RESET, or SILENCE when nothing more came within the wait."""

    raw: bytes
    end: str
    headers: dict[str, str] = field(default_factory=dict)
    status_code: int | None = None
    body: bytes = b""

    def __post_init__(self) -> None:
        head, separator, self.body = self.raw.partition(b"\r\n\r\n")
        if not separator or not head.startswith(b"HTTP/1.1 "):
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status_code = int(first.split(" ")[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


def charge_body(order: str | None = None, **more: object) -> dict[str, object]:
    metadata = {} if order is None else {"metadata": {"order_id": order}}
    return {"amount": 1000, "currency": "EUR", **metadata, **more}


def request_bytes(
    method: str,
    path: str,
    body: object = None,
    *,
    key: str | None = None,
    fault: str | None = None,
    contract: str | None = None,
    webhook: str | None = None,
    form: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    keep_alive: bool = False,
) -> bytes:
    named = {"Idempotency-Key": key, "Sandbox-Fault": fault, "Sandbox-Contract": contract}
    named["Sandbox-Webhook"] = webhook
    all_headers = {"Host": "sandbox.test", **{name: value for name, value in named.items() if value is not None}}
    payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    all_headers["Content-Type"] = "application/json"
    if form is not None:
        payload = urlencode(form).encode()
        all_headers["Content-Type"] = "application/x-www-form-urlencoded"
    all_headers["Content-Length"] = str(len(payload))
    if not keep_alive:
        all_headers["Connection"] = "close"
    all_headers.update(headers or {})
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


async def send(sandbox: Sandbox, data: bytes, wait_s: float = 5.0) -> Seen:
    """Send these bytes on a connection of their own and listen to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    try:
        writer.write(data)
        return await listen(reader, wait_s)
    finally:
        writer.transport.abort()


async def listen(reader: asyncio.StreamReader, wait_s: float) -> Seen:
    raw = b""
    try:
        async with asyncio.timeout(wait_s):
            while data := await reader.read(65536):
                raw += data
    except ConnectionResetError:
        return Seen(raw, RESET)
    except TimeoutError:
        return Seen(raw, SILENCE)
    return Seen(raw, FIN)


async def call(sandbox: Sandbox, method: str, path: str, body: object = None, wait_s: float = 5.0, **more) -> Seen:
    return await send(sandbox, request_bytes(method, path, body, **more), wait_s)


async def charge(
    sandbox: Sandbox, order: str | None = "o-1", wait_s: float = 5.0, source: str = "tok_ok", **more
) -> Seen:
    return await call(sandbox, "POST", "/v1/charges", charge_body(order, source=source), wait_s, **more)


async def read_response(reader: asyncio.StreamReader) -> Seen:
    """One response off a connection that stays open."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = Seen(head, FIN).headers.get("content-length", "0")
    return Seen(head + await reader.readexactly(int(length)), SILENCE)


async def until(condition, wait_s: float = 5.0) -> None:
    """Wait for something the sandbox does on its own, like a late commit."""
    async with asyncio.timeout(wait_s):
        while not condition():  # noqa: ASYNC110 - the sandbox announces nothing; looking is all a caller can do
            await asyncio.sleep(0.005)
