"""A payment and the money that moves after it, as values: its names, its numbers, its movements. Pure.

A payment is one thing that a customer pays at one provider. The operations that make it are its **steps** (create,
confirm). What follows are its **movements**: captures, increments, voids, refunds, reversals. The journal keeps one row
for each payment, and changes it in the same step as the operation that changed the payment. `payment_changes` applies
evidence to it, `payment_claims` decides which operations may start on it.

Rules that hold together:
- Every number is known or unknown (None), and never zero by default. After the success that makes a payment, the
  refunded, voided and disputed amounts are known to be zero.
- An open operation reserves. Only an end posts, or evidence of a movement that is not ours. An effect is posted once.
- Limits bind claims, never evidence. A limit is checked only if all its numbers are known.
- A limit counts an open movement as done if the new one needs it first, and also if both compete for the same amount.
  So a refund may rely on a capture that is not resolved yet, and another capture may not use the same amount.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from paywitness.core.operation import Guard
from paywitness.core.payment_rules import IncrementMeaning, Overcapture
from paywitness.core.provider_contract import OperationKind
from paywitness.core.record import record

NAMES_MAX = 20  # of one payment; the first ones stay
STEPS_MAX = 50  # operations listed as steps; the newest stay
MOVEMENTS_MAX = 1_000  # the oldest posted ones that were not returned go first: the totals still include them

FOLLOW_UPS = frozenset(
    {
        OperationKind.CAPTURE,
        OperationKind.INCREMENT,
        OperationKind.VOID,
        OperationKind.REFUND,
        OperationKind.REVERSAL,
    }
)


class PaymentName(NamedTuple):
    """A name under which the provider knows a payment, and the key of the row that links it to the payment. A name
    belongs to one payment of one account: two accounts, or two providers, may use the same one."""

    name: str
    key: str


def payment_key(payment_id: str) -> str:
    return f"p:{payment_id}"


def name_key(provider: str, account: str, name: str) -> str:
    """The key of the row that links a name to its payment. `provider` is the provider's name in keys."""
    digest = blake2b(digest_size=20)
    for part in (provider, account, name):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)
    return f"n:{digest.hexdigest()}"


def payment_names(provider: str, account: str, names: Iterable[str]) -> tuple[PaymentName, ...]:
    found: tuple[PaymentName, ...] = ()
    for name in dict.fromkeys(names):
        found = (*found, PaymentName(name, name_key(provider, account, name)))
    return found


class MovementStatus(StrEnum):
    RESERVED = "reserved"  # its operation is open
    POSTED = "posted"
    RETURNED = "returned"  # taken back after success, or named and then failed: an old total may include it


@record
class Movement:
    """One capture, increment, void, refund or reversal of a payment."""

    operation_id: str  # for a movement that is not ours: a key of its own
    kind: OperationKind
    minor_units: int | None  # None: unknown, or all that is left
    status: MovementStatus = MovementStatus.RESERVED
    fingerprint: str = ""  # of the call, while it is reserved
    at_most: bool = False  # the call's amount cannot be read, but is no more than `minor_units`


class PaidElsewhere(StrEnum):
    """Whether the payment was made, but not by an operation of ours."""

    NO = ""
    UNVERIFIED = "unverified"  # the provider said "already done" to a first attempt of ours
    VERIFIED = "verified"  # an inquiry or an event has shown it, or an operator has adopted it


@record
class Payment:
    """A payment as the journal keeps it. Amounts are minor units of `currency`."""

    id: str  # the id of its first operation
    provider: str
    account: str
    names: tuple[str, ...] = ()  # its names at the provider
    intent: Guard | None = None
    currency: str | None = None
    authorised: int | None = None
    captured: int | None = None
    refunded: int | None = None
    voided: int | None = None
    disputed: int | None = None
    created: bool = False  # an operation of ours that makes it has shown its name
    paid: bool = False  # a paying success was posted
    final: bool = False  # nothing more can be captured: voided, a final capture, or expired at the provider
    paid_by: str = ""  # the step whose success was posted last
    times_paid: int = 0
    given_back: bool = False  # voided or reversed as a whole
    returned: bool = False  # the provider took the whole payment back; a later step may pay it again
    elsewhere: PaidElsewhere = PaidElsewhere.NO
    unanswered: bool = False  # some attempt of ours on it was sent and did not end with its own complete response
    steps: tuple[str, ...] = ()
    movements: tuple[Movement, ...] = ()
    expires_at: float | None = None  # of the authorization: by its own date, or by the policy
    expiry_announced: str = ""  # soon, expired
    verify_at: float | None = None  # when an inquiry shall check whether it was paid elsewhere
    verifications: int = 0
    verify_misses: int = 0  # of these, how many found it unpaid, or did not find it

    overcapture: Overcapture | None = None  # how much may be captured above the authorised amount

    @property
    def capturable(self) -> int | None:
        """The amount that may still be captured, before reservations."""
        return 0 if self.final else difference(self.authorised, self.captured, self.voided or 0)

    @property
    def capturable_above(self) -> int:
        """The amount that the provider would let us capture above the authorised one. It is not part of the remainder,
        so it does not hold the intent."""
        if self.overcapture is None or self.authorised is None:
            return 0
        return self.overcapture.above(self.authorised, self.currency)

    def reserved(self, *kinds: OperationKind) -> tuple[Movement, ...]:
        return _in_status(self.movements, MovementStatus.RESERVED, kinds) if self.movements else ()

    def posted(self, *kinds: OperationKind) -> tuple[Movement, ...]:
        return _in_status(self.movements, MovementStatus.POSTED, kinds) if self.movements else ()

    def returned_movements(self, *kinds: OperationKind) -> tuple[Movement, ...]:
        return _in_status(self.movements, MovementStatus.RETURNED, kinds) if self.movements else ()

    def reserved_at_most(self, *kinds: OperationKind) -> int | None:
        """The most that the open movements of these kinds can move. One with a negative amount counts as zero, so that
        it makes no room for another. Unknown if one of the amounts is."""
        most = 0
        for movement in self.movements:
            if movement.status is MovementStatus.RESERVED and movement.kind in kinds:
                if movement.minor_units is None:
                    return None
                most += max(0, movement.minor_units)
        return most

    def posted_total(self, *kinds: OperationKind) -> int:
        """The least amount that movements of ours have moved. It is known even while the payment's number is not."""
        return sum([movement.minor_units or 0 for movement in self.posted(*kinds)])

    def movement_of(self, operation_id: str) -> Movement | None:
        return next((movement for movement in self.movements if movement.operation_id == operation_id), None)


def difference(minuend: int | None, *subtrahends: int | None) -> int | None:
    total = minuend
    for each in subtrahends:
        total = None if total is None or each is None else total - each
    return total


def _in_status(
    movements: tuple[Movement, ...], status: MovementStatus, kinds: tuple[OperationKind, ...]
) -> tuple[Movement, ...]:
    return tuple([each for each in movements if each.status is status and (not kinds or each.kind in kinds)])


def total_of(movements: tuple[Movement, ...]) -> int | None:
    total = 0
    for movement in movements:
        if movement.minor_units is None:
            return None
        total += movement.minor_units
    return total


def with_step(payment: Payment, operation_id: str) -> Payment:
    if operation_id in payment.steps:
        return payment
    return replace(payment, steps=(*payment.steps, operation_id)[-STEPS_MAX:])


def bounded(movements: tuple[Movement, ...]) -> tuple[Movement, ...]:
    excess = len(movements) - MOVEMENTS_MAX
    if excess <= 0:
        return movements
    kept = []
    for movement in movements:
        if excess > 0 and movement.status is not MovementStatus.RESERVED:
            excess -= 1
        else:
            kept.append(movement)
    return tuple(kept)


# --- Evidence


@record
class ShownBalance:
    """The facts about a payment in a response or an object of the provider, beside the operation's own outcome."""

    names: tuple[PaymentName, ...] = ()
    creates: bool = False  # the operation makes the payment, and continues none
    currency: str | None = None
    authorised: int | None = None
    captured: int | None = None
    capturable: int | None = None  # by an object that reads as paid
    refunded: int | None = None
    disputed: int | None = None
    moved: int | None = None  # by the operation itself
    captures: bool | None = None  # whether a paying success captures; None: unknown
    final: bool | None = None  # whether a capture releases the remainder
    increment_means: IncrementMeaning = IncrementMeaning.TOTAL
    overcapture: Overcapture | None = None
    expires_at: float | None = None
    intent: Guard | None = None
    verify_at: float | None = None  # when to verify an "already done" after a first attempt
    dispute: str = ""  # opened, won
    expiry_announced: str = ""  # soon, expired


NOTHING_SHOWN = ShownBalance()
