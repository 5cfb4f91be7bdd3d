"""The money moves after heal_s, also when the caller has left or was reset. Nothing is answered.

Silence until hang_s, then a reset (hang_s=0: at once). Until the commit an inquiry finds nothing. The key is in use
from the start; with key_free=1 the request lies in front of the provider's door, and another one under its key is done.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class BlackHole(Fault):
    """The money moves after heal_s, also when the caller has left or was reset. Nothing is answered. Silence until
    hang_s, then a reset (hang_s=0: at once). Until the commit an inquiry finds nothing. The key is in use from the
    start; with key_free=1 the request lies in front of the provider's door, and another one under its key is done."""

    name: ClassVar[str] = "black_hole"
    heal_s: float = 10.0
    hang_s: float = 60.0
    key_free: int = 0

    async def play(self, exchange: Exchange) -> None:
        await (exchange.read() if self.key_free else exchange.receive())
        silent_s = min(self.hang_s, self.heal_s)
        await asyncio.sleep(silent_s)
        if self.hang_s < self.heal_s:
            exchange.reset()
            await asyncio.sleep(self.heal_s - silent_s)
        if self.key_free:
            await exchange.receive()
        await exchange.execute()
        await exchange.hang(self.hang_s - silent_s)
        exchange.reset()
