"""No effect. The work begins, fails, and is answered by 500: stored under the contract `replayed`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.answer import internal_error
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class Error500BeforeCommit(Fault):
    """No effect. The work begins, fails, and is answered by 500: stored under the contract `replayed`."""

    name: ClassVar[str] = "error_500_before_commit"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        await exchange.execute(lambda commit: internal_error())
        exchange.answer(internal_error())
