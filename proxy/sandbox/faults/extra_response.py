"""The money moves. The answer is sent twice; the second one stays on the open connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class ExtraResponse(Fault):
    """The money moves. The answer is sent twice; the second one stays on the open connection."""

    name: ClassVar[str] = "extra_response"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        answer = await exchange.execute()
        exchange.write((exchange.head(answer) + answer.body) * 2)
        exchange.mark_answered(answer.status_code)
