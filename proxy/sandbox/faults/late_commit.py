"""The money moves after late_s, also when the caller has left. Nothing is answered.

Until then the key is in use, and an inquiry finds nothing. After hang_s the connection is closed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class LateCommit(Fault):
    """The money moves after late_s, also when the caller has left. Nothing is answered. Until then the key is in use,
    and an inquiry finds nothing. After hang_s the connection is closed."""

    name: ClassVar[str] = "late_commit"
    late_s: float = 10.0
    hang_s: float = 60.0

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        await asyncio.sleep(self.late_s)
        await exchange.execute()
        await exchange.hang(self.hang_s)
