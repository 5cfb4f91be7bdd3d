"""The money moves at once. Nothing is answered; after hang_s the connection is closed.

The key is in use only until the commit: a repeat gets the stored answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class HangAfterCommit(Fault):
    """The money moves at once. Nothing is answered; after hang_s the connection is closed. The key is in use only until
    the commit: a repeat gets the stored answer."""

    name: ClassVar[str] = "hang_after_commit"
    hang_s: float = 60.0

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        await exchange.execute()
        await exchange.hang(self.hang_s)
