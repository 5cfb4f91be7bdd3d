"""The money moves. The answer is another charge's: the latest one, or an invented one."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

from proxy.sandbox.answer import Answer
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class ForeignResponse(Fault):
    """The money moves. The answer is another charge's: the latest one, or an invented one."""

    name: ClassVar[str] = "foreign_response"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        answer = await exchange.execute()
        exchange.answer((exchange.someone_elses(answer) or invented(answer)) if answer.succeeded else answer)


def invented(answer: Answer) -> Answer:
    """The first charge of a sandbox has no other to be confused with."""
    body = json.loads(answer.body)
    prefix, _, name = str(body.get("id", "")).rpartition("_")
    stranger: dict[str, object] = {"id": f"{prefix}_{name[::-1]}", "metadata": {}}
    stranger.update(order=None, idempotency_key=None)
    body.update({field: value for field, value in stranger.items() if field in body})
    if isinstance(body.get("amount"), int):
        body["amount"] += 4_200
    return replace(answer, body=json.dumps(body).encode())
