"""An event: what is told about one change, in the words of the dialect in which the thing was asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from paywitness_sandbox.bank.objects import BankChange, Charge, Dialect, Payout, Refund
from paywitness_sandbox.dialects.acme import charge_json, payout_json, refund_json
from paywitness_sandbox.dialects.stripe import intent_json
from paywitness_sandbox.messages import Request

STRIPE_API_VERSION = "2024-06-20"
AMOUNT_FIELDS = ("amount", "amount_captured", "amount_received", "amount_capturable")

# The bank's word for what happened to a charge -> Stripe's type.
INTENT_TYPES = {
    "succeeded": "payment_intent.succeeded",
    "captured": "payment_intent.succeeded",
    "authorized": "payment_intent.amount_capturable_updated",
    "failed": "payment_intent.payment_failed",
    "processing": "payment_intent.processing",
    "requires_action": "payment_intent.requires_action",
    "voided": "payment_intent.canceled",
    "reversed": "payment_intent.canceled",
}
# Nothing is to come after these, so an older event that arrives later must not count.
FINAL_TRANSITIONS = frozenset({"succeeded", "authorized", "failed", "paid"})


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    id: str
    type: str
    created: int
    account: str | None
    dialect: Dialect
    data: dict[str, object]
    """The thing as a GET shows it."""
    key: str | None
    """Of the request that caused it."""

    @property
    def body(self) -> bytes:
        shape: dict[str, object]
        if self.dialect is Dialect.STRIPE:
            shape = {"id": self.id, "object": "event", "type": self.type, "created": self.created}
            shape |= {"api_version": STRIPE_API_VERSION, "livemode": False, "data": {"object": self.data}}
            shape["request"] = {"id": None, "idempotency_key": self.key}
            if self.account is not None:
                shape["account"] = self.account
        else:
            shape = {"id": self.id, "type": self.type, "created": self.created, "account": self.account}
            shape["data"] = self.data
        return json.dumps(shape, separators=(",", ":")).encode()

    def with_amount_more(self, by_minor: int) -> SandboxEvent:
        amounts = {name: self.data[name] for name in AMOUNT_FIELDS if self.data.get(name)}
        wrong_amounts = {name: value + by_minor for name, value in amounts.items() if isinstance(value, int)}
        return replace(self, data=self.data | wrong_amounts)


def event_for(change: BankChange, request: Request, *, id: str, created: int) -> SandboxEvent:
    """`request` is the one that caused the change: where it was sent to is where a customer is redirected to."""
    subject = change.subject
    if isinstance(subject, Payout):
        type = f"payout.{change.transition}"
        return SandboxEvent(id, type, created, subject.terms.account, Dialect.ACME, payout_json(subject), change.key)
    if isinstance(subject, Refund):
        terms = subject.charge.terms
        type = "refund.created" if terms.dialect is Dialect.STRIPE else f"refund.{change.transition}"
        return SandboxEvent(id, type, created, terms.account, terms.dialect, refund_json(subject), change.key)
    type, data = _charge_type_and_data(subject, change.transition, request)
    return SandboxEvent(id, type, created, subject.terms.account, subject.terms.dialect, data, change.key)


def _charge_type_and_data(charge: Charge, transition: str, request: Request) -> tuple[str, dict[str, object]]:
    if charge.terms.dialect is Dialect.STRIPE:
        return INTENT_TYPES[transition], intent_json(charge, request)
    return f"charge.{transition}", charge_json(charge, request)


def older_event(event: SandboxEvent, change: BankChange, *, id: str) -> SandboxEvent:
    """What would have been told a second earlier: that it is under way."""
    if isinstance(change.subject, Charge):
        is_stripe = event.dialect is Dialect.STRIPE
        type = INTENT_TYPES["processing"] if is_stripe else "charge.processing"
        nothing_yet: dict[str, object] = {"amount_received": 0, "amount_capturable": 0, "last_payment_error": None}
        if not is_stripe:
            nothing_yet = {"captured": False, "amount_captured": 0, "failure_code": None}
        data = event.data | nothing_yet | {"status": "processing"}
    else:
        type = event.type if event.dialect is Dialect.STRIPE else event.type.partition(".")[0] + ".pending"
        data = event.data | {"status": "pending"}
    return replace(event, id=id, type=type, created=event.created - 1, data=data)
