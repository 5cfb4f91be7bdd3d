"""The money moves. Content-Length is shorter than the body; the rest stays on the open connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class WrongLength(Fault):
    """The money moves. Content-Length is shorter than the body; the rest stays on the open connection."""

    name: ClassVar[str] = "wrong_length"
    short_by_bytes: int = 10

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        answer = await exchange.execute()
        length = max(0, len(answer.body) - self.short_by_bytes)
        exchange.write(exchange.head(answer, length=length) + answer.body)
        exchange.mark_answered(answer.status_code)
