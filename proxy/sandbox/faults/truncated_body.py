"""The money moves. Half of the body is sent, less than Content-Length says, then FIN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class TruncatedBody(Fault):
    """The money moves. Half of the body is sent, less than Content-Length says, then FIN."""

    name: ClassVar[str] = "truncated_body"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        answer = await exchange.execute()
        exchange.write(exchange.head(answer) + answer.body[: len(answer.body) // 2])
        exchange.close()
