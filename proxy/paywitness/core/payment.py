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

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from paywitness.core.guard import GIVEN_BACK
from paywitness.core.operation import Guard, Operation, Posting, State
from paywitness.core.payment_names import PaymentName
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
    paid_by: str = ""  # the step whose success was posted last
    times_paid: int = 0
    given_back: bool = False  # voided or reversed as a whole
    returned: bool = False  # the provider took the whole payment back; a later step may pay it again
    elsewhere: PaidElsewhere = PaidElsewhere.NO
    unanswered: bool = False  # an attempt of ours on it was sent once and did not end by its own complete response
    steps: tuple[str, ...] = ()
    movements: tuple[Movement, ...] = ()
    expires_at: float | None = None  # of the authorization: by its own date, or by the policy
    expiry_announced: str = ""  # soon, expired
    verify_at: float | None = None  # when an inquiry shall show whether it was paid elsewhere
    verifications: int = 0

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
    amounts = [movement.minor_units for movement in movements]
    return None if None in amounts else sum(amount or 0 for amount in amounts)


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
    payment. `operations` are those behind all reserved movements, as they now stand. One that is gone was retired: it
    had ended so, for every other end is written with its payment."""
    for movement in payment.reserved():
        operation = operations.get(movement.operation_id)
        if operation is None or (operation.state is State.FAILED and operation.incident is None):
            payment = _without(payment, movement)
        elif operation.state is State.SUCCEEDED:
            payment = _posted(payment, movement, operation, ShownBalance())
        elif operation.doubt:
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
    before = payment
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
        elsewhere = PaidElsewhere.UNVERIFIED if after.kind.pays and not payment.paid else payment.elsewhere
        payment = replace(payment, elsewhere=elsewhere, verify_at=shown.verify_at, verifications=0)
    if after.kind in FOLLOW_UPS:
        payment, posting = _after_movement(payment, after, shown)
    else:
        payment, posting = _after_step(payment, after, shown)
    payment = _with_totals(payment, shown)
    if shown.dispute:
        payment = _with_dispute(payment, shown.moved, won=shown.dispute == "won")
    return PaymentChange(payment, posting, negative=_is_negative(payment) and not _is_negative(before))


def has_new_totals(payment: Payment | None, operation: Operation, shown: ShownBalance | None) -> bool:
    """Whether evidence about a paying operation that succeeded changes its payment: also an object that says nothing
    new of the operation may show a movement that is not ours. `payment` None: the evidence can show no totals of it."""
    if payment is None or shown is None or operation.state is not State.SUCCEEDED:
        return False
    return after_change(payment, operation, shown).payment != payment


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
    if not after.kind.pays or not _is_success(after):
        return payment, None
    posting: Posting | None = None
    is_paid_again = payment.returned and after.id != payment.paid_by and after.result_class not in GIVEN_BACK
    if not payment.paid or is_paid_again:
        payment, posting = _paid(payment, after, shown)
    if after.result_class in GIVEN_BACK and not payment.given_back:
        left, key = difference(payment.captured, payment.refunded), payment_posting_key(payment)
        posting = Posting(returned_posting_key(key), "reversal", left, payment.currency, payment.id, key)
        is_return = after.result_class is ResultClass.RETURNED
        payment = replace(payment, given_back=True, returned=is_return, final=True, refunded=payment.captured)
    return payment, posting


def payment_posting_key(payment: Payment) -> str:
    """One for each time that the payment was made: a direct debit that was returned may be tried again."""
    return f"{payment.id}:payment" + (f":{payment.times_paid}" if payment.times_paid > 1 else "")


def returned_posting_key(posting_key: str) -> str:
    return f"{posting_key}:returned"


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
        paid_by=after.id,
        times_paid=payment.times_paid + 1,
        given_back=False,
        returned=False,
        final=False,
        refunded=0 if payment.returned else payment.refunded or 0,
        voided=payment.voided or 0,
        disputed=payment.disputed or 0,
        expires_at=None if captured is not None and captured == authorised else shown.expires_at,
        elsewhere=PaidElsewhere.NO,
        verify_at=None,
    )
    kind = "sale" if shown.captures else "authorization" if shown.captures is False else after.kind.value
    return payment, Posting(payment_posting_key(payment), kind, authorised, payment.currency, payment.id)


def _after_movement(payment: Payment, after: Operation, shown: ShownBalance) -> tuple[Payment, Posting | None]:
    movement = payment.movement_of(after.id)
    if after.state is State.FAILED and not _is_success(after):
        if movement is not None and movement.status is MovementStatus.RESERVED and after.incident is None:
            payment = _without(payment, movement)
        if after.result_class is ResultClass.ALREADY_DONE:
            payment = _moved_by_others(payment, after.kind)
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
        if not payment.created or payment.paid:  # else it is an object that nobody has paid: nothing moved
            posting = Posting(after.id, after.kind.value, movement.minor_units, payment.currency, payment.id)
    if after.result_class in GIVEN_BACK and movement.status is MovementStatus.POSTED:
        payment = _returned(payment, movement)
        amount, key = movement.minor_units, returned_posting_key(after.id)
        posting = Posting(key, "return", amount, payment.currency, payment.id, reverses=after.id)
    return payment, posting


def _moved_by_others(payment: Payment, kind: OperationKind) -> Payment:
    """The payment after the provider said "already done" to a movement: somebody else has moved it. By how much is
    unknown until an object shows it."""
    if kind is OperationKind.CAPTURE or (kind is OperationKind.VOID and payment.captured == 0):
        return replace(payment, captured=None)
    if kind in {OperationKind.REFUND, OperationKind.REVERSAL}:
        return replace(payment, refunded=None)
    return payment


def merged_payment(payment: Payment, other: Payment) -> Payment:
    """The payment with what was known of it under another name."""
    payment = replace(
        payment,
        names=tuple(dict.fromkeys((*payment.names, *other.names)))[:NAMES_MAX],
        steps=tuple(dict.fromkeys((*payment.steps, *other.steps)))[-STEPS_MAX:],
        unanswered=payment.unanswered or other.unanswered,
        intent=payment.intent or other.intent,
    )
    for movement in other.movements:
        payment = replace(payment, movements=bounded((*payment.movements, movement)))
        if movement.status is MovementStatus.POSTED:
            payment = _posted(payment, movement, None, _NOTHING_SHOWN)
    return payment


def _without(payment: Payment, gone: Movement) -> Payment:
    return replace(payment, movements=tuple(movement for movement in payment.movements if movement is not gone))


def _replaced(payment: Payment, old: Movement, new: Movement) -> Payment:
    return replace(payment, movements=tuple(new if movement is old else movement for movement in payment.movements))


def _plus(number: int | None, amount: int | None) -> int | None:
    return None if number is None or amount is None else number + amount


def _posted(payment: Payment, movement: Movement, operation: Operation | None, shown: ShownBalance) -> Payment:
    """The payment after a movement that succeeded."""
    shows = shown.moved is not None and movement.kind in {OperationKind.CAPTURE, OperationKind.REFUND}
    amount = shown.moved if shows else movement.minor_units
    money = operation.money if operation is not None else None
    if money is not None and payment.currency is not None and money.currency != payment.currency:
        amount = None  # how much that is in the currency of the payment is the provider's to say
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
            total = money.minor_units if money is not None else None
            is_total = payment.authorised is None and shown.increment_means is IncrementMeaning.TOTAL
            return replace(payment, authorised=total if is_total else _plus(payment.authorised, amount))
        case OperationKind.VOID:
            given_back = payment.given_back or payment.captured == 0
            voided = difference(payment.authorised, payment.captured)
            return replace(payment, voided=voided, final=True, given_back=given_back, expires_at=None)
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
    captured, refunded = shown.captured, shown.refunded
    if captured is None and shown.capturable is not None and payment.authorised is not None and not payment.final:
        captured = payment.authorised - shown.capturable
    # A total may hold a movement that is still reserved here, and that is posted when its own evidence comes.
    if payment.reserved(OperationKind.CAPTURE):
        captured = None
    if payment.reserved(OperationKind.REFUND, OperationKind.REVERSAL):
        refunded = None
    return replace(
        payment,
        authorised=shown.authorised if payment.authorised is None else payment.authorised,
        captured=_larger(payment.captured, captured),
        refunded=_larger(payment.refunded, refunded),
        disputed=_larger(payment.disputed, shown.disputed),
    )


def _larger(known: int | None, shown: int | None) -> int | None:
    if shown is None:
        return known
    return shown if known is None else max(known, shown)


def _is_negative(payment: Payment) -> bool:
    """Whether more has moved than the payment can have had, also if what is still open has moved too."""
    increments = total_of(payment.reserved(OperationKind.INCREMENT))
    captures = total_of(payment.reserved(OperationKind.CAPTURE))
    left = (
        difference(_plus(payment.authorised, increments), payment.captured),
        difference(_plus(payment.captured, captures), payment.refunded),
    )
    return any(number is not None and number < 0 for number in left)


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
