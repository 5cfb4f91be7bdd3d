"""The money moves. The answer comes a byte at a time, over drip_s in all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class Drip(Fault):
    """The money moves. The answer comes a byte at a time, over drip_s in all."""

    name: ClassVar[str] = "drip"
    drip_s: float = 2.0

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        answer = await exchange.execute()
        whole = exchange.head(answer) + answer.body
        for byte in whole:
            await asyncio.sleep(self.drip_s / len(whole))
            if not exchange.write(bytes((byte,))):
                return
        exchange.mark_answered(answer.status_code)
