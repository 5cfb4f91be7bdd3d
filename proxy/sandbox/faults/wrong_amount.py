"""The right amount moves. The answer names another one (by_minor more)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

from proxy.sandbox.answer import Answer
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class WrongAmount(Fault):
    """The right amount moves. The answer names another one (by_minor more)."""

    name: ClassVar[str] = "wrong_amount"
    by_minor: int = 100

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        exchange.answer(self.misquoted(await exchange.execute()))

    def misquoted(self, answer: Answer) -> Answer:
        if not answer.succeeded:
            return answer
        body = json.loads(answer.body)
        for name in ("amount", "amount_captured", "amount_received", "amount_capturable"):
            if body.get(name):
                body[name] += self.by_minor
        return replace(answer, body=json.dumps(body).encode())
