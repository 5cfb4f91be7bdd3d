"""What the bank knows: a charge and its refunds. Values and their states; what may happen to them is the bank's."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    CREATED = "created"  # announced, nothing asked of the card yet
    PROCESSING = "processing"
    REQUIRES_ACTION = "requires_action"
    AUTHORIZED = "authorized"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    VOIDED = "voided"
    REVERSED = "reversed"  # taken back after it had succeeded


class Dialect(StrEnum):
    ACME = "acme"
    STRIPE = "stripe"


@dataclass(frozen=True, slots=True)
class Terms:
    """What is asked for. The amount is an integer of minor units."""

    amount: int
    currency: str
    source: str
    capture: bool = True
    metadata: dict[str, object] = field(default_factory=dict)
    dialect: Dialect = Dialect.ACME
    """In which it was asked, and so in which its events are told."""
    account: str | None = None
    """The sub-account it was asked for."""

    @property
    def order(self) -> str | None:
        order = self.metadata.get("order_id")
        return None if order is None else str(order)


@dataclass(slots=True)
class Charge:
    id: str
    terms: Terms
    source: str
    key: str | None
    created_at: float
    status: Status = Status.CREATED
    amount_captured: int = 0
    amount_refunded: int = 0
    failure_code: str | None = None
    quiet_failure: bool = False
    refunds: list[Refund] = field(default_factory=list)

    @property
    def intent_id(self) -> str:
        """The name of the same thing in Stripe's dialect."""
        return "pi_" + self.id.removeprefix("ch_")


@dataclass(frozen=True, slots=True)
class Refund:
    id: str
    charge: Charge
    amount: int
    key: str | None
    created_at: float
    metadata: dict[str, object]

    @property
    def labelled(self) -> dict[str, object]:
        """What it is searched by: a refund that names no order is one of its charge's order."""
        order = self.charge.terms.order
        return self.metadata if order is None else {"order_id": order, **self.metadata}
