"""The money moves. Half of the head is sent, then FIN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class TruncatedHead(Fault):
    """The money moves. Half of the head is sent, then FIN."""

    name: ClassVar[str] = "truncated_head"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        head = exchange.head(await exchange.execute())
        exchange.write(head[: len(head) // 2])
        exchange.close()
