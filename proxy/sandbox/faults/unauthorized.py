"""No effect. 401, whatever the API key is; stored by no contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.answer import error_answer
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class Unauthorized(Fault):
    """No effect. 401, whatever the API key is; stored by no contract."""

    name: ClassVar[str] = "unauthorized"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        exchange.answer(error_answer(401, "authentication_error", "No such API key.", code="api_key_invalid"))
