"""No effect. The connection is reset after the head, before the body is read.

Where only the body tells which request this is (no key, no order in the path), it has been read by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class ResetBeforeRead(Fault):
    """No effect. The connection is reset after the head, before the body is read. Where only the body tells which
    request this is (no key, no order in the path), it has been read by then."""

    name: ClassVar[str] = "reset_before_read"

    async def play(self, exchange: Exchange) -> None:
        exchange.reset()
