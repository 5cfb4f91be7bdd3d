"""The money moves. The answer is a 200 without a body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.answer import Answer
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class Empty200(Fault):
    """The money moves. The answer is a 200 without a body."""

    name: ClassVar[str] = "empty_200"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        await exchange.execute()
        exchange.answer(Answer(200, b""))
