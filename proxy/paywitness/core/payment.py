"""A payment and the money that moves after it: its names, its numbers, its movements. Pure.

A payment is one thing that a customer pays at one provider. The operations that make it are its **steps** (create,
confirm). What follows are its **movements**: captures, increments, voids, refunds, reversals. The journal keeps one row
for each payment, and changes it in the same step as the operation that changed the payment.

Rules that hold together:
- Every number is known or unknown (None), and never zero by default. The success that makes a payment makes what was
  refunded, voided and disputed known: zero.
- An open operation reserves. Only an end posts, or evidence of a movement that is not ours. An effect is posted once.
- Limits bind claims, never evidence. A limit is checked only if all its numbers are known.
- What must come before counts as done, and what competes counts as done: a refund may count on a capture that is not
  resolved yet, and a capture may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from paywitness.core.operation import Guard, Operation, Posting, State
from paywitness.core.payment_rules import IncrementMeaning
from paywitness.core.provider_contract import OperationKind
from paywitness.core.record import record
from paywitness.core.result import ResultClass

NAMES_MAX = 20  # of one payment; the first ones stay
STEPS_MAX = 50  # operations that are listed as steps; the newest stay
MOVEMENTS_MAX = 1_000  # the oldest that are posted and were not returned go first: the numbers keep what they moved

FOLLOW_UPS = frozenset(
    {
        OperationKind.CAPTURE,
        OperationKind.INCREMENT,
        OperationKind.VOID,
        OperationKind.REFUND,
        OperationKind.REVERSAL,
    }
)


class MovementStatus(StrEnum):
    RESERVED = "reserved"  # its operation is open
    POSTED = "posted"
    RETURNED = "returned"  # the provider took it back after it had succeeded


@record
class Movement:
    """One capture, increment, void, refund or reversal of a payment."""

    operation_id: str  # of a movement that is not ours: the provider's name for it
    kind: OperationKind
    minor_units: int | None  # None: unknown, or all that is left
    status: MovementStatus = MovementStatus.RESERVED
    fingerprint: str = ""  # of the call, while it is reserved


class PaidElsewhere(StrEnum):
    """Whether the payment was made, but not by an operation of ours."""

    NO = ""
    UNVERIFIED = "unverified"  # the provider said "already done" to a first attempt of ours
    VERIFIED = "verified"  # an inquiry or an event has shown it, or an operator has adopted it


@record
class Payment:
    """A payment as the journal keeps it. Amounts are minor units of `currency`."""

    id: str  # that of its first operation
    provider: str
    account: str
    names: tuple[str, ...] = ()  # under which the provider knows it
    intent: Guard | None = None
    currency: str | None = None
    authorised: int | None = None
    captured: int | None = None
    refunded: int | None = None
    voided: int | None = None
    disputed: int | None = None
    created: bool = False  # an operation of ours that makes it has shown its name
    paid: bool = False  # a paying success was posted
    final: bool = False  # nothing more can be captured: voided, a final capture, expired by the provider's word
    given_back: bool = False  # voided or reversed as a whole
    elsewhere: PaidElsewhere = PaidElsewhere.NO
    unanswered: bool = False  # an attempt of ours on it was sent once and did not end by its own complete response
    steps: tuple[str, ...] = ()
    movements: tuple[Movement, ...] = ()
    expires_at: float | None = None  # of the authorization: by its own date, or by the policy
    expiry_announced: str = ""  # soon, expired
    verify_at: float | None = None  # when an inquiry shall show whether it was paid elsewhere
    verifications: int = 0

    @property
    def net_captured(self) -> int | None:
        return difference(self.captured, self.refunded)

    @property
    def capturable(self) -> int | None:
        """What may still be captured, reservations aside."""
        return 0 if self.final else difference(self.authorised, self.captured)

    def reserved(self, *kinds: OperationKind) -> tuple[Movement, ...]:
        return tuple(
            movement
            for movement in self.movements
            if movement.status is MovementStatus.RESERVED and (not kinds or movement.kind in kinds)
        )

    def movement_of(self, operation_id: str) -> Movement | None:
        return next((movement for movement in self.movements if movement.operation_id == operation_id), None)


def difference(minuend: int | None, *subtrahends: int | None) -> int | None:
    total = minuend
    for each in subtrahends:
        total = None if total is None or each is None else total - each
    return total


def total_of(movements: tuple[Movement, ...]) -> int | None:
    total = 0
    for movement in movements:
        if movement.minor_units is None:
            return None
        total += movement.minor_units
    return total


# --- Keys of rows


class PaymentName(NamedTuple):
    """A name under which the provider knows a payment, and the key of the row that links it to the payment."""

    name: str
    key: str


def payment_key(payment_id: str) -> str:
    return f"p:{payment_id}"


def name_key(provider: str, account: str, name: str) -> str:
    """Under which a journal keeps the link from a name to its payment. `provider` is the name that keys know."""
    digest = blake2b(digest_size=20)
    for part in (provider, account, name):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)
    return f"n:{digest.hexdigest()}"


def payment_names(provider: str, account: str, names: Iterable[str]) -> tuple[PaymentName, ...]:
    return tuple(PaymentName(name, name_key(provider, account, name)) for name in dict.fromkeys(names))


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


def reconciled(payment: Payment, operations: Mapping[str, Operation]) -> Payment:
    """The payment with what became of reserved movements whose operations ended by an expired lease, which writes no
    payment. `operations` are as they now stand; one that is gone was retired, and had ended."""
    for movement in payment.reserved():
        operation = operations.get(movement.operation_id)
        if operation is not None and operation.state is State.FAILED and operation.incident is None:
            payment = _without(payment, movement)
        elif operation is not None and operation.state is State.SUCCEEDED:
            payment = _posted(payment, movement, operation, ShownBalance())
        if operation is not None and operation.doubt:
            payment = replace(payment, unanswered=True)
    return payment


# --- Evidence


@record
class ShownBalance:
    """What a response or an object of the provider shows of a payment, beside what became of the operation."""

    names: tuple[PaymentName, ...] = ()
    creates: bool = False  # the operation makes the payment, and continues none
    currency: str | None = None
    authorised: int | None = None
    captured: int | None = None
    capturable: int | None = None
    refunded: int | None = None
    disputed: int | None = None
    moved: int | None = None  # by the operation itself
    captures: bool | None = None  # whether a paying success captures; None: unknown
    final: bool | None = None  # whether a capture releases the remainder
    increment_means: IncrementMeaning = IncrementMeaning.TOTAL
    expires_at: float | None = None
    intent: Guard | None = None
    verify_at: float | None = None  # when to verify what was "already done" on a first attempt
    dispute: str = ""  # opened, won
    expiry_announced: str = ""  # soon, expired

    @property
    def is_empty(self) -> bool:
        return self == _NOTHING_SHOWN


_NOTHING_SHOWN = ShownBalance()


@record
class PaymentChange:
    """What evidence about an operation makes of its payment."""

    payment: Payment
    posting: Posting | None = None
    negative: bool = False  # a remainder is below zero: more moved than can have


def after_change(payment: Payment, after: Operation, shown: ShownBalance) -> PaymentChange:
    """The payment after a change of one of its operations. `shown`: what its evidence shows of the payment."""
    payment = with_names(payment, tuple(name.name for name in shown.names))
    if shown.intent is not None:
        payment = replace(payment, intent=shown.intent)
    if shown.expiry_announced:
        payment = replace(payment, expiry_announced=shown.expiry_announced)
    if payment.currency is None:
        currency = shown.currency or (after.money.currency if after.money is not None else None)
        payment = replace(payment, currency=currency)
    if after.doubt and not payment.unanswered:
        payment = replace(payment, unanswered=True)
    if shown.verify_at is not None:
        payment = replace(payment, elsewhere=PaidElsewhere.UNVERIFIED, verify_at=shown.verify_at)
    if after.kind in FOLLOW_UPS:
        payment, posting = _after_movement(payment, after, shown)
    else:
        payment, posting = _after_step(payment, after, shown)
    payment = _with_totals(payment, shown)
    if shown.dispute:
        payment = _with_dispute(payment, shown.moved, won=shown.dispute == "won")
    return PaymentChange(payment, posting, negative=posting is not None and _is_negative(payment))


def with_names(payment: Payment, names: tuple[str, ...]) -> Payment:
    added = tuple(name for name in dict.fromkeys(names) if name not in payment.names)
    return replace(payment, names=(*payment.names, *added)[:NAMES_MAX]) if added else payment


def _is_success(operation: Operation) -> bool:
    """Whether evidence says that it had its effect, also if an incident says that we had reported otherwise."""
    return operation.state is State.SUCCEEDED or operation.incident == "success_after_failure"


def _after_step(payment: Payment, after: Operation, shown: ShownBalance) -> tuple[Payment, Posting | None]:
    payment = with_step(payment, after.id)
    if shown.creates and not payment.created:
        payment = replace(payment, created=True)
    if not after.kind.pays:
        return payment, None
    if not _is_success(after):
        return payment, None
    posting: Posting | None = None
    if not payment.paid:
        payment, posting = _paid(payment, after, shown)
    if after.result_class in _TAKEN_BACK and not payment.given_back:
        posting = Posting(
            f"{payment.id}:returned",
            "reversal",
            payment.net_captured,
            payment.currency,
            payment.id,
            reverses=_payment_posting_key(payment),
        )
        payment = replace(payment, given_back=True, final=True, refunded=payment.captured)
    return payment, posting


_TAKEN_BACK = frozenset({ResultClass.REVERSED, ResultClass.RETURNED})


def _payment_posting_key(payment: Payment) -> str:
    return f"{payment.id}:payment"


def _paid(payment: Payment, after: Operation, shown: ShownBalance) -> tuple[Payment, Posting]:
    """The first success: what was authorised and captured, as far as it is known; nothing was given back yet."""
    asked = after.money.minor_units if after.money is not None else None
    authorised = asked if shown.authorised is None else shown.authorised
    if shown.moved is not None and (authorised is None or shown.moved < authorised):
        authorised = shown.moved  # a partial authorization
    captured = authorised if shown.captures else 0 if shown.captures is False else None
    payment = replace(
        payment,
        paid=True,
        authorised=authorised,
        captured=captured,
        refunded=payment.refunded or 0,
        voided=payment.voided or 0,
        disputed=payment.disputed or 0,
        expires_at=None if captured is not None and captured == authorised else shown.expires_at,
        elsewhere=PaidElsewhere.NO,
        verify_at=None,
    )
    posting = Posting(
        _payment_posting_key(payment),
        "sale" if shown.captures else "authorization" if shown.captures is False else after.kind.value,
        authorised,
        payment.currency,
        payment.id,
    )
    return payment, posting


def _after_movement(payment: Payment, after: Operation, shown: ShownBalance) -> tuple[Payment, Posting | None]:
    movement = payment.movement_of(after.id)
    if after.state is State.FAILED and not _is_success(after):
        if movement is not None and movement.status is MovementStatus.RESERVED and after.incident is None:
            payment = _without(payment, movement)
        return payment, None
    if not _is_success(after):
        return payment, None
    if movement is None:
        amount = after.money.minor_units if after.money is not None else None
        movement = Movement(after.id, after.kind, amount)
        payment = replace(payment, movements=bounded((*payment.movements, movement)))
    posting: Posting | None = None
    if movement.status is MovementStatus.RESERVED:
        payment = _posted(payment, movement, after, shown)
        movement = payment.movement_of(after.id) or movement
        posting = Posting(after.id, after.kind.value, movement.minor_units, payment.currency, payment.id)
    if after.result_class in _TAKEN_BACK and movement.status is MovementStatus.POSTED:
        payment = _returned(payment, movement)
        posting = Posting(
            f"{after.id}:returned",
            "return",
            movement.minor_units,
            payment.currency,
            payment.id,
            reverses=after.id,
        )
    return payment, posting


def _without(payment: Payment, gone: Movement) -> Payment:
    return replace(payment, movements=tuple(movement for movement in payment.movements if movement is not gone))


def _replaced(payment: Payment, old: Movement, new: Movement) -> Payment:
    return replace(payment, movements=tuple(new if movement is old else movement for movement in payment.movements))


def _plus(number: int | None, amount: int | None) -> int | None:
    return None if number is None or amount is None else number + amount


def _posted(payment: Payment, movement: Movement, operation: Operation, shown: ShownBalance) -> Payment:
    """The payment after a movement that succeeded."""
    shows = shown.moved is not None and movement.kind in {OperationKind.CAPTURE, OperationKind.REFUND}
    amount = shown.moved if shows else movement.minor_units
    posted = replace(movement, status=MovementStatus.POSTED, minor_units=amount, fingerprint="")
    payment = _replaced(payment, movement, posted)
    match movement.kind:
        case OperationKind.CAPTURE:
            captured = _plus(payment.captured, amount)
            all_captured = captured is not None and payment.authorised is not None and captured >= payment.authorised
            final = payment.final or bool(shown.final)
            expires_at = None if all_captured or final else payment.expires_at
            return replace(payment, captured=captured, final=final, expires_at=expires_at)
        case OperationKind.INCREMENT:
            total = operation.money.minor_units if operation.money is not None else None
            is_total = payment.authorised is None and shown.increment_means is IncrementMeaning.TOTAL
            return replace(payment, authorised=total if is_total else _plus(payment.authorised, amount))
        case OperationKind.VOID:
            left = difference(payment.authorised, payment.captured)
            nothing_captured = payment.captured == 0
            voided = left if left is not None else payment.authorised if nothing_captured else None
            return replace(
                payment,
                voided=voided if voided is not None else (payment.authorised or 1),
                final=True,
                given_back=payment.given_back or nothing_captured,
                expires_at=None,
            )
        case OperationKind.REFUND:
            return replace(payment, refunded=_plus(payment.refunded, amount))
        case OperationKind.REVERSAL:
            return replace(payment, refunded=payment.captured, given_back=True, final=True, expires_at=None)
    return payment


def _returned(payment: Payment, movement: Movement) -> Payment:
    """The payment after the provider took a movement back: the remainder is open again."""
    payment = _replaced(payment, movement, replace(movement, status=MovementStatus.RETURNED))
    amount = movement.minor_units
    match movement.kind:
        case OperationKind.CAPTURE:
            return replace(payment, captured=difference(payment.captured, amount))
        case OperationKind.REFUND:
            return replace(payment, refunded=difference(payment.refunded, amount), given_back=False)
        case OperationKind.REVERSAL:
            return replace(payment, refunded=None, given_back=False)
        case OperationKind.VOID:
            return replace(payment, voided=0, final=False, given_back=False)
    return payment


def _with_totals(payment: Payment, shown: ShownBalance) -> Payment:
    """The payment with the totals that the provider's own object shows. An older object may show less than is known:
    captured and refunded only grow."""
    if shown.currency is not None and payment.currency is not None and shown.currency != payment.currency:
        return payment
    if not payment.paid and payment.elsewhere is PaidElsewhere.NO:
        return payment  # an object that nobody has paid yet shows what is asked for, not what was authorised
    captured, authorised = shown.captured, shown.authorised
    if captured is None and shown.capturable is not None and payment.authorised is not None and not payment.final:
        captured = payment.authorised - shown.capturable
    return replace(
        payment,
        authorised=authorised if payment.authorised is None else payment.authorised,
        captured=_grown(payment, payment.captured, captured, OperationKind.CAPTURE),
        refunded=_grown(payment, payment.refunded, shown.refunded, OperationKind.REFUND, OperationKind.REVERSAL),
        disputed=_larger(payment.disputed, shown.disputed),
    )


def _grown(payment: Payment, known: int | None, shown: int | None, *kinds: OperationKind) -> int | None:
    """A total, after an object has shown it. The object may count a movement of ours that is still reserved here, and
    that will be posted by its own end: only what exceeds both is news of movements that are not ours."""
    reserved = total_of(payment.reserved(*kinds))
    if shown is None or reserved is None or (known is None and reserved):
        return known
    return _larger(known, shown - reserved)


def _larger(known: int | None, shown: int | None) -> int | None:
    if shown is None:
        return known
    return shown if known is None else max(known, shown)


def _is_negative(payment: Payment) -> bool:
    """Whether more was captured or refunded than can have been. An increment or a capture that is not resolved yet
    counts as done: a refund that was claimed on it may be posted first."""
    authorised = _plus(payment.authorised, total_of(payment.reserved(OperationKind.INCREMENT)))
    captured = _plus(payment.captured, total_of(payment.reserved(OperationKind.CAPTURE)))
    left_to_capture = difference(authorised, payment.captured)
    left_to_refund = difference(captured, payment.refunded)
    return any(number is not None and number < 0 for number in (left_to_capture, left_to_refund))


def touches_payment(before: Operation, after: Operation, shown: ShownBalance | None) -> bool:
    """Whether a change of the operation changes its payment. `shown` None: the evidence shows nothing of it."""
    if not after.payment:
        return False
    if after.doubt and not before.doubt:
        return True
    is_new_end = after.state.ended and not before.state.ended
    is_new_reading = after.result_class is not before.result_class or after.incident != before.incident
    if after.kind in FOLLOW_UPS:
        return is_new_end or (after.state.ended and is_new_reading)
    if shown is None or shown.is_empty:
        return after.kind.pays and after.state is State.SUCCEEDED and (is_new_end or is_new_reading)
    return bool(shown.names or shown.dispute or shown.expiry_announced or shown.verify_at) or (
        after.kind.pays and after.state is State.SUCCEEDED
    )


# --- Evidence of movements that are not ours


def _with_dispute(payment: Payment, minor_units: int | None, *, won: bool) -> Payment:
    """The payment after a dispute was opened or lost (all that is captured, if no amount is known), or won."""
    if won:
        left = 0 if minor_units is None else max(0, (payment.disputed or 0) - minor_units)
        return replace(payment, disputed=left)
    amount = payment.captured if minor_units is None else minor_units
    return replace(payment, disputed=amount if amount is None else max(payment.disputed or 0, amount))


def adopted(payment: Payment, shown: ShownBalance) -> Payment:
    """A payment that did not come through us, as an inquiry shows it. What it does not show stays unknown."""
    payment = with_names(payment, tuple(name.name for name in shown.names))
    payment = replace(
        payment,
        elsewhere=PaidElsewhere.VERIFIED,
        currency=payment.currency or shown.currency,
        intent=payment.intent or shown.intent,
        expires_at=shown.expires_at,
        verify_at=None,
    )
    return _with_totals(payment, shown)
