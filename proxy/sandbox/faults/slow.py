"""The money moves after slow_s and is answered properly: latency only. The key is in use meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class Slow(Fault):
    """The money moves after slow_s and is answered properly: latency only. The key is in use meanwhile."""

    name: ClassVar[str] = "slow"
    slow_s: float = 1.0

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        await asyncio.sleep(self.slow_s)
        exchange.answer(await exchange.execute())
