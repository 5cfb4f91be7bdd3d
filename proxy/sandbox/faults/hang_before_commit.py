"""No effect. Nothing is answered; after hang_s the connection is closed.

The key is in use until the caller leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class HangBeforeCommit(Fault):
    """No effect. Nothing is answered; after hang_s the connection is closed. The key is in use until the caller
    leaves."""

    name: ClassVar[str] = "hang_before_commit"
    hang_s: float = 60.0

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        await exchange.hang(self.hang_s)
