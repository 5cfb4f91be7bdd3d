"""The money moves. The connection is reset (RST) without a byte of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class ResetAfterCommit(Fault):
    """The money moves. The connection is reset (RST) without a byte of the answer."""

    name: ClassVar[str] = "reset_after_commit"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        await exchange.execute()
        exchange.reset()
