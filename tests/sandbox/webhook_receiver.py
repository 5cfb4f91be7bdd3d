"""Who is told: a raw socket that takes events, answers as it is bid, and remembers every byte."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from dataclasses import dataclass

SECRET = "whsec_test"


@dataclass
class Told:
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def type(self) -> str:
        return self.json["type"]

    @property
    def timestamp(self) -> int:
        if "stripe-signature" in self.headers:
            return int(self.headers["stripe-signature"].partition(",")[0].removeprefix("t="))
        return int(self.headers["webhook-timestamp"])

    def is_signed_with(self, secret: str) -> bool:
        """Reckoned here anew, from what the documentation says."""
        if "stripe-signature" in self.headers:
            given = self.headers["stripe-signature"].partition(",v1=")[2]
        else:
            given = self.headers["webhook-signature"].removeprefix("sha256=")
        signed = f"{self.timestamp}.".encode() + self.body
        return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() == given


class Receiver:
    def __init__(self) -> None:
        self.told: list[Told] = []
        self.answers: list[int] = []
        """What to answer next; then 200. Zero hangs up without a word."""
        self.silent = False
        """Takes events and never answers."""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/paywitness/webhooks/acme"

    @property
    def types(self) -> list[str]:
        return [told.type for told in self.told]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[1:]
                pairs = (line.partition(": ") for line in head if line)
                headers = {name.lower(): value for name, _, value in pairs}
                self.told.append(Told(headers, await reader.readexactly(int(headers["content-length"]))))
                if self.silent:
                    await reader.read()
                    return
                status = self.answers.pop(0) if self.answers else 200
                if status == 0:
                    return
                writer.write(f"HTTP/1.1 {status} Said\r\nContent-Length: 0\r\n\r\n".encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the sandbox has closed its side
        finally:
            writer.close()
