"""The money moves. The answer is bytes that are no HTTP, then FIN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault

NOT_HTTP = b"\x16\x03\x01\x02\x00 this is not HTTP \xff\xfe\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Garbage(Fault):
    """The money moves. The answer is bytes that are no HTTP, then FIN."""

    name: ClassVar[str] = "garbage"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        await exchange.execute()
        exchange.write(NOT_HTTP)
        exchange.close()
