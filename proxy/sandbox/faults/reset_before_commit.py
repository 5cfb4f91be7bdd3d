"""No effect. The whole request is read, then the connection is reset (RST)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class ResetBeforeCommit(Fault):
    """No effect. The whole request is read, then the connection is reset (RST)."""

    name: ClassVar[str] = "reset_before_commit"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        exchange.reset()
