"""The money moves at once. The answer comes after late_s, if the caller still listens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class LateResponse(Fault):
    """The money moves at once. The answer comes after late_s, if the caller still listens."""

    name: ClassVar[str] = "late_response"
    late_s: float = 10.0

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        answer = await exchange.execute()
        await asyncio.sleep(self.late_s)
        exchange.answer(answer)
