"""Charges, refunds, disputes and payouts of the bank: values, their states, changes not published yet, and which card
token, refund or destination ends how.

`bank.py` decides which changes an object allows, and notes each change. The webhooks take the changes away.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from paywitness_sandbox.clock import Clock


class ChargeStatus(StrEnum):
    CREATED = "created"  # announced; the card has not been charged yet
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


AUTHORIZATION_LASTS_S = 7 * 86_400.0  # seven days, as with Stripe and most issuers


@dataclass(frozen=True, slots=True)
class ChargeTerms:
    """The terms of a charge. The amount is an integer of minor units."""

    amount: int
    currency: str
    source: str
    capture: bool = True
    metadata: dict[str, object] = field(default_factory=dict)
    dialect: Dialect = Dialect.ACME
    """The dialect of the request, and so of its events."""
    account: str | None = None
    """The sub-account of the request."""

    @property
    def order(self) -> str | None:
        order = self.metadata.get("order_id")
        return None if order is None else str(order)


@dataclass(slots=True)
class Charge:
    id: str
    terms: ChargeTerms
    source: str
    key: str | None
    created_at: float
    status: ChargeStatus = ChargeStatus.CREATED
    amount_captured: int = 0
    amount_refunded: int = 0
    """With pending refunds, because their money has left us."""
    amount_voided: int = 0
    amount_disputed: int = 0
    """In disputes that are open or lost."""
    authorized_at: float | None = None
    paying_key: str | None = None
    """The key of the last request that charged the card. The issuer's later decision is an effect of that request."""
    failure_code: str | None = None
    failed_with_200: bool = False
    refunds: list[Refund] = field(default_factory=list)

    @property
    def amount_capturable(self) -> int:
        return self.terms.amount - self.amount_captured if self.status is ChargeStatus.AUTHORIZED else 0

    @property
    def amount_left(self) -> int:
        """The amount that can still be refunded or disputed."""
        return self.amount_captured - self.amount_refunded - self.amount_disputed

    @property
    def capture_before(self) -> int | None:
        """Unix seconds. The bank shows it, and still captures afterwards."""
        return None if self.authorized_at is None else int(self.authorized_at + AUTHORIZATION_LASTS_S)

    @property
    def intent_id(self) -> str:
        """The id of the same charge in Stripe's dialect."""
        return "pi_" + self.id.removeprefix("ch_")


@dataclass(frozen=True, slots=True)
class Capture:
    id: str
    charge: Charge
    amount: int
    final: bool
    key: str | None
    created_at: float
    metadata: dict[str, object]


class RefundStatus(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(slots=True)
class Refund:
    id: str
    charge: Charge
    amount: int
    key: str | None
    created_at: float
    metadata: dict[str, object]
    status: RefundStatus = RefundStatus.SUCCEEDED
    failure_reason: str | None = None

    @property
    def searchable(self) -> dict[str, object]:
        """The metadata for searches. A refund without an order belongs to its charge's order."""
        order = self.charge.terms.order
        return self.metadata if order is None else {"order_id": order, **self.metadata}


class DisputeStatus(StrEnum):
    NEEDS_RESPONSE = "needs_response"
    WON = "won"
    LOST = "lost"


@dataclass(slots=True)
class Dispute:
    id: str
    charge: Charge
    amount: int
    created_at: float
    status: DisputeStatus = DisputeStatus.NEEDS_RESPONSE


# --- Payouts


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
        """The order in the ledger: the order that the payout names, else its reference."""
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
    failed_with_200: bool = False


# --- Changes

CHANGES_MAX = 1_000  # between two calls of `take`; one request makes one or two


ChangedObject = Charge | Refund | Dispute | Payout


@dataclass(frozen=True, slots=True)
class BankChange:
    subject: ChangedObject
    transition: str
    """In the past tense, as in event types: `succeeded`, `captured`, `voided`."""
    key: str | None
    """The idempotency key of the request that made the change."""


class PendingChanges:
    def __init__(self) -> None:
        self._pending: deque[BankChange] = deque(maxlen=CHANGES_MAX)

    def add(self, subject: ChangedObject, transition: str, key: str | None) -> None:
        self._pending.append(BankChange(subject, transition, key))

    def take(self) -> list[BankChange]:
        taken = list(self._pending)
        self._pending.clear()
        return taken


# --- Outcomes by token
# How each source (card token, payment method) ends. A person chooses business results from this table.

DECLINING_TOKENS = {
    "tok_insufficient_funds": "insufficient_funds",
    "tok_stolen_card": "stolen_card",
    "tok_expired_card": "expired_card",
    "tok_fraudulent": "fraudulent",
}
PAYING_TOKENS = ("tok_ok", "tok_visa", "tok_mastercard", "tok_amex")
TOKENS_HELP = {
    "tok_ok": "paid",
    **{token: f"402, declined with {code}" for token, code in DECLINING_TOKENS.items()},
    "tok_declined_<code>": "402, declined with <code>",
    "tok_failed_200_<code>": "200, status failed with <code>",
    "tok_processing": "200, status processing: accepted, not final (an effect)",
    "tok_3ds": "200, status requires_action (no effect until it is settled)",
}

DESTINATIONS_HELP = {
    "dest_ok": "paid at once; so is every destination that does not begin with dest_",
    "dest_pending": "200, status pending: accepted, not final (an effect)",
    "dest_failed_<code>": "200, status failed with <code>",
    "dest_refused_<code>": "402, refused with <code>",
}

OUTCOMES_HELP = {
    RefundStatus.SUCCEEDED: "refunded at once; so is every refund that names no outcome",
    RefundStatus.PENDING: "200, status pending: accepted, not final (an effect)",
    RefundStatus.FAILED: "200, status failed (no effect)",
}

# Stripe's test methods: pm_card_chargeDeclinedStolenCard, pm_card_visa_chargeDeclinedInsufficientFunds, ...
STRIPE_DECLINE = re.compile(r"\A(?:pm|tok)_(?:card_)?(?:[a-z]+_)?chargeDeclined([A-Za-z]*)\Z")
STRIPE_ACTION = re.compile(r"\Apm_card_(?:authenticationRequired\w*|threeDSecure\w*Required)\Z")


class UnknownToken(ValueError):
    """A `tok_` token that does not exist. It is most likely a typing error, which must not pay."""


@dataclass(frozen=True, slots=True)
class CardOutcome:
    status: ChargeStatus
    code: str | None = None
    fails_with_200: bool = False
    """The decline comes in a 200."""


PAID = CardOutcome(ChargeStatus.SUCCEEDED)


def card_outcome(source: str) -> CardOutcome:
    if source in PAYING_TOKENS:
        return PAID
    if source in DECLINING_TOKENS:
        return CardOutcome(ChargeStatus.FAILED, DECLINING_TOKENS[source])
    if source == "tok_processing":
        return CardOutcome(ChargeStatus.PROCESSING)
    if source == "tok_3ds" or STRIPE_ACTION.match(source):
        return CardOutcome(ChargeStatus.REQUIRES_ACTION)
    if source.startswith("tok_failed_200_"):
        return CardOutcome(
            ChargeStatus.FAILED, source.removeprefix("tok_failed_200_") or "generic_decline", fails_with_200=True
        )
    if source.startswith("tok_declined_"):
        return CardOutcome(ChargeStatus.FAILED, source.removeprefix("tok_declined_") or "generic_decline")
    if declined := STRIPE_DECLINE.match(source):
        return CardOutcome(ChargeStatus.FAILED, snake_case(declined.group(1)) or "generic_decline")
    if source.startswith("tok_"):
        raise UnknownToken(f"{source!r} is none of {', '.join(TOKENS_HELP)}")
    return PAID


@dataclass(frozen=True, slots=True)
class PayoutOutcome:
    status: PayoutStatus
    code: str | None = None
    fails_with_200: bool = True
    """The failure comes in a 200."""


def payout_outcome(destination: str) -> PayoutOutcome:
    if destination == "dest_pending":
        return PayoutOutcome(PayoutStatus.PENDING)
    for prefix, fails_with_200 in (("dest_failed", True), ("dest_refused", False)):
        if destination == prefix or destination.startswith(f"{prefix}_"):
            code = destination.removeprefix(prefix).removeprefix("_") or "account_closed"
            return PayoutOutcome(PayoutStatus.FAILED, code, fails_with_200)
    if destination.startswith("dest_") and destination != "dest_ok":
        raise UnknownToken(f"{destination!r} is none of {', '.join(DESTINATIONS_HELP)}")
    return PayoutOutcome(PayoutStatus.PAID)


def refund_outcome(metadata: dict[str, object]) -> RefundStatus:
    """A refund has no token of its own, so `metadata.outcome` chooses."""
    outcome = metadata.get("outcome", RefundStatus.SUCCEEDED)
    if outcome not in list(RefundStatus):
        raise UnknownToken(f"metadata.outcome {outcome!r} is none of {', '.join(OUTCOMES_HELP)}")
    return RefundStatus(str(outcome))


def snake_case(words: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", words).lower()


# --- Ids, index and refusals
# Ids that the bank issues (`ch_...`, `re_...`, `po_...`, `evt_...`), and the index in which it finds objects.
#
# An object is found by id at once, and by label (key, order, stamp) once the search index has caught up.


class BankRefused(Exception):
    """The bank refuses the request. `conflict`: because of the object's state, and not because of the request
    itself."""

    def __init__(self, code: str, message: str, *, conflict: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.conflict = conflict


class ObjectNotFound(Exception):
    """No charge, refund, dispute, payout or event has this id."""


# --- Ids


class IdSequence:
    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._issued = 0

    def new(self, prefix: str) -> str:
        """An id that looks like a provider's. It depends only on the salt and the count, and never repeats."""
        self._issued += 1
        digest = hashlib.blake2s(f"{self._salt}:{self._issued}".encode(), digest_size=10).hexdigest()
        return f"{prefix}_{digest}"


# --- Index

OBJECTS_MAX = 1_000_000

Label = tuple[str, str]


class IndexedObject(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> float: ...


Indexed = TypeVar("Indexed", bound=IndexedObject)


class ObjectIndex(Generic[Indexed]):
    """The objects of one kind. `noun` is the kind's name in error messages."""

    def __init__(self, noun: str, clock: Clock, search_lag_s: float) -> None:
        self._noun = noun
        self._clock = clock
        self._search_lag_s = search_lag_s
        self._objects: dict[str, Indexed] = {}
        self._by_label: dict[Label, list[Indexed]] = {}

    def require_room(self) -> None:
        if len(self._objects) >= OBJECTS_MAX:
            message = f"the sandbox holds its {OBJECTS_MAX} {self._noun}s"
            raise BankRefused(f"too_many_{self._noun}s", message, conflict=False)

    def add(self, item: Indexed, labels: Iterable[Label]) -> None:
        self.require_room()
        self._objects[item.id] = item
        for label in labels:
            self._by_label.setdefault(label, []).append(item)

    def get(self, name: str) -> Indexed:
        """By id. It never lags; only searches do."""
        item = self._objects.get(name)
        if item is None:
            raise ObjectNotFound(f"no such {self._noun}: {name}")
        return item

    def search(self, labels: Iterable[Label] = ()) -> list[Indexed]:
        """The objects that have every label, newest first, as far as the search index has caught up."""
        groups: list[Sequence[Indexed]] = [self._by_label.get(label, []) for label in labels]
        first = min(groups, key=len) if groups else list(self._objects.values())
        names = [{item.id for item in group} for group in groups]
        seen_until = self._clock() - self._search_lag_s
        return [
            item
            for item in reversed(first)
            if item.created_at <= seen_until and all(item.id in group for group in names)
        ]

    def relabel(self, item: Indexed, before: Iterable[Label], after: Iterable[Label]) -> None:
        """Index a changed object under its new labels. Lists stay in the order of creation."""
        for label in before:
            self._by_label[label] = [other for other in self._by_label.get(label, []) if other.id != item.id]
        for label in after:
            found = self._by_label.setdefault(label, [])
            found.append(item)
            found.sort(key=lambda other: other.created_at)

    def clear(self) -> None:
        self._objects.clear()
        self._by_label.clear()


def labels_of(metadata: Iterable[tuple[str, object]], **named: str | None) -> list[Label]:
    """`metadata.order_id`, `metadata.paywitness`, ..., and the other named labels that have a value."""
    labels = [(f"metadata.{name}", str(value)) for name, value in metadata]
    return labels + [(name, value) for name, value in named.items() if value is not None]
