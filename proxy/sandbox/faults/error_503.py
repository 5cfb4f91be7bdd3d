"""No effect. The provider sheds load: 503 before any work, stored by no contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.answer import error_answer
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class Error503(Fault):
    """No effect. The provider sheds load: 503 before any work, stored by no contract."""

    name: ClassVar[str] = "error_503"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        exchange.answer(error_answer(503, "api_error", "We are busy. Try again later.", code="overloaded"))
