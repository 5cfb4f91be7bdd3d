"""No effect. 429 with Retry-After (retry_after_s), stored by no contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.answer import error_answer
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class RateLimited(Fault):
    """No effect. 429 with Retry-After (retry_after_s), stored by no contract."""

    name: ClassVar[str] = "rate_limited"
    retry_after_s: int = 1

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        answer = error_answer(429, "rate_limit_error", "Too many requests.", code="rate_limit")
        exchange.answer(answer.with_headers(("Retry-After", str(self.retry_after_s))))
