"""What the bank knows of a payout: money sent to somebody. Values; what may happen to them is the payout desk's."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class PayoutStatus(StrEnum):
    PENDING = "pending"
    PAID = "paid"
    FAILED = "failed"
    REVERSED = "reversed"


@dataclass(frozen=True, slots=True)
class PayoutTerms:
    amount: int
    currency: str
    destination: str
    reference: str | None = None
    metadata: dict[str, object] = field(default_factory=dict)
    account: str | None = None

    @property
    def order(self) -> str | None:
        """What the ledger files it under: the order it names, else its reference."""
        order = self.metadata.get("order_id")
        return self.reference if order is None else str(order)


@dataclass(slots=True)
class Payout:
    id: str
    terms: PayoutTerms
    key: str | None
    created_at: float
    status: PayoutStatus = PayoutStatus.PENDING
    failure_code: str | None = None
    quiet_failure: bool = False
