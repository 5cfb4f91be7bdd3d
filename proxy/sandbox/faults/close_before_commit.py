"""No effect. The whole request is read, then the connection is closed (FIN) without a byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class CloseBeforeCommit(Fault):
    """No effect. The whole request is read, then the connection is closed (FIN) without a byte."""

    name: ClassVar[str] = "close_before_commit"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        exchange.close()
