"""No effect. 402, a hard decline whatever the source is; a stored answer is replayed instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.answer import card_declined
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class Declined(Fault):
    """No effect. 402, a hard decline whatever the source is; a stored answer is replayed instead."""

    name: ClassVar[str] = "declined"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        exchange.answer(await exchange.execute(lambda commit: card_declined("stolen_card")))
