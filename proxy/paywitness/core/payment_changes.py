"""Changes of a payment by evidence about one of its operations: posted and returned movements, and new totals. Pure.
The rules are in the docstring of `payment`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from paywitness.core.guard import GIVEN_BACK
from paywitness.core.operation import Operation, Posting, State
from paywitness.core.payment import (
    FOLLOW_UPS,
    NAMES_MAX,
    NOTHING_SHOWN,
    STEPS_MAX,
    Movement,
    MovementStatus,
    PaidElsewhere,
    Payment,
    PaymentName,
    ShownBalance,
    bounded,
    difference,
    total_of,
    with_step,
)
from paywitness.core.payment_rules import IncrementMeaning
from paywitness.core.provider_contract import OperationKind
from paywitness.core.record import record
from paywitness.core.result import ResultClass


@record
class PaymentChange:
    """A payment after evidence about one of its operations, and the posting of the change."""

    payment: Payment
    posting: Posting | None = None
    elsewhere: bool = False  # no call of ours made the movement of the posting
    negative: bool = False  # a remainder is newly below zero: more has moved than the payment can have had


def after_change(payment: Payment, after: Operation, shown: ShownBalance) -> PaymentChange:
    """The payment after a change of one of its operations. `shown`: the payment's names and totals in the evidence."""
    before = payment
    payment = with_names(payment, shown.names)
    if shown.intent is not None and (payment.intent is None or not shown.creates):  # a later update names a newer one
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
        payment = replace(payment, elsewhere=elsewhere, verify_at=shown.verify_at, verifications=0, verify_misses=0)
    if after.kind in FOLLOW_UPS:
        payment, posting = _after_movement(payment, after, shown)
    else:
        payment, posting = _after_step(payment, after, shown)
    counted, payment = payment, _with_totals(payment, shown)
    own_posting = posting
    if own_posting is None:
        payment, posting = _moved_elsewhere(counted, payment, after, shown)
    if shown.dispute:
        payment = _with_dispute(payment, shown.moved, won=shown.dispute == "won")
    is_elsewhere = posting is not own_posting
    return PaymentChange(payment, posting, is_elsewhere, _is_negative(payment) and not _is_negative(before))


def has_new_totals(payment: Payment | None, operation: Operation, shown: ShownBalance | None) -> bool:
    """Whether evidence about a paying operation that has succeeded changes its payment. An object that shows nothing
    new about the operation may still show a movement that is not ours. `payment` None: the evidence cannot show totals
    of the payment."""
    if payment is None or shown is None or operation.state is not State.SUCCEEDED:
        return False
    return after_change(payment, operation, shown).payment != payment


def is_new_dispute(payment: Payment, operation: Operation, shown: ShownBalance) -> bool:
    """Whether evidence of a dispute changes the disputed amount. A provider sends several events about one dispute."""
    return after_change(payment, operation, shown).payment.disputed != payment.disputed


def with_names(payment: Payment, names: tuple[PaymentName, ...]) -> Payment:
    known = payment.names
    for name, _ in names:
        known = known if name in known else (*known, name)
    return payment if known is payment.names else replace(payment, names=known[:NAMES_MAX])


def _is_success(operation: Operation) -> bool:
    """Whether evidence shows that the operation had its effect, even if we had reported a failure (an incident)."""
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
    if after.result_class is ResultClass.REVERSED and _is_captured_in_part(payment):
        payment = _remainder_released(payment)
    elif after.result_class in GIVEN_BACK and not payment.given_back:
        left, key = difference(payment.captured, payment.refunded), payment_posting_key(payment)
        if left or not payment.posted(OperationKind.VOID):  # otherwise the void has posted it already
            posting = Posting(returned_posting_key(key), "reversal", left, payment.currency, payment.id, key)
        is_return = after.result_class is ResultClass.RETURNED
        payment = replace(payment, given_back=True, returned=is_return, final=True, refunded=payment.captured)
    return payment, posting


def _is_captured_in_part(payment: Payment) -> bool:
    """Whether the payment was captured in part, so that a void or the end of the authorization leaves that amount. If
    the captured amount is unknown, a posted capture of ours counts as such a part."""
    if payment.captured is None:
        return bool(payment.posted(OperationKind.CAPTURE))
    return payment.captured > 0 and (payment.authorised is None or payment.captured < payment.authorised)


def _remainder_released(payment: Payment) -> Payment:
    """The payment after the provider released the amount that was not captured."""
    voided = difference(payment.authorised, payment.captured)
    return replace(payment, final=True, voided=payment.voided if voided is None else voided, expires_at=None)


def payment_posting_key(payment: Payment) -> str:
    """The key of the payment's posting. Each time that the payment is made gets its own key, because a returned direct
    debit may be tried again."""
    return f"{payment.id}:payment" + (f":{payment.times_paid}" if payment.times_paid > 1 else "")


def returned_posting_key(posting_key: str) -> str:
    return f"{posting_key}:returned"


def _paid(payment: Payment, after: Operation, shown: ShownBalance) -> tuple[Payment, Posting]:
    """The payment after its first success, with the authorised and captured amounts as far as they are known. Nothing
    has been given back yet, unless a movement of ours was recorded before this success: a caller may have seen the
    success first, and acted on the payment."""
    asked = after.money.minor_units if after.money is not None else None
    authorised = asked if shown.authorised is None else shown.authorised
    if shown.moved is not None and (authorised is None or shown.moved < authorised):
        authorised = shown.moved  # a partial authorization
    first = payment if not payment.returned else replace(payment, refunded=0, movements=())  # it starts anew
    captured = authorised if shown.captures else 0 if shown.captures is False else None
    if captured == 0:
        captured = total_of(first.posted(OperationKind.CAPTURE))
    refunded, is_voided, is_reversed = first.refunded, False, False
    if first.movements:
        is_voided, is_reversed = bool(first.posted(OperationKind.VOID)), bool(first.posted(OperationKind.REVERSAL))
    if refunded is None:
        refunded = total_of(first.posted(OperationKind.REFUND)) if first.movements else 0
    payment = replace(
        payment,
        paid=True,
        authorised=authorised,
        captured=captured,
        paid_by=after.id,
        times_paid=payment.times_paid + 1,
        given_back=is_reversed or (is_voided and captured == 0),
        returned=False,
        final=is_reversed or is_voided,
        refunded=captured if is_reversed else refunded,
        voided=difference(authorised, captured) if is_voided else payment.voided or 0,
        disputed=payment.disputed or 0,
        overcapture=shown.overcapture,
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
            payment = _released(payment, movement, after)
        if after.result_class is ResultClass.ALREADY_DONE:
            payment = _moved_by_others(payment, after.kind)
        return payment, None
    if not _is_success(after):
        return payment, None
    if movement is not None and movement.status is MovementStatus.RETURNED and after.state is State.FAILED:
        payment, movement = _without(payment, movement), None  # reported as failed, it has succeeded after all
    if movement is None:
        amount = after.money.minor_units if after.money is not None else None
        movement = Movement(after.id, after.kind, amount)
        payment = replace(payment, movements=bounded((*payment.movements, movement)))
    posting: Posting | None = None
    if movement.status is MovementStatus.RESERVED:
        payment = _posted(payment, movement, after, shown)
        movement = payment.movement_of(after.id) or movement
        if not payment.created or payment.paid:  # otherwise the object is unpaid, and no money has moved
            posting = Posting(after.id, after.kind.value, movement.minor_units, payment.currency, payment.id)
    if after.result_class in GIVEN_BACK and movement.status is MovementStatus.POSTED:
        payment = _returned(payment, movement)
        amount, key = movement.minor_units, returned_posting_key(after.id)
        posting = Posting(key, "return", amount, payment.currency, payment.id, reverses=after.id)
    return payment, posting


def _released(payment: Payment, movement: Movement, after: Operation) -> Payment:
    """The payment after a movement that ended without effect. If the provider had given it a name, the totals of an
    object that was read before it failed may include it. So the movement is kept as returned."""
    if after.reference is None:
        return _without(payment, movement)
    return _replaced(payment, movement, replace(movement, status=MovementStatus.RETURNED, fingerprint=""))


def _moved_by_others(payment: Payment, kind: OperationKind) -> Payment:
    """The payment after the provider answered "already done" to a movement. If the provider cannot mean a movement of
    ours, open ones included, another client has moved the money. The amount is unknown until an object shows it."""
    capturable, refundable = payment.capturable, difference(payment.captured, payment.refunded)
    nothing_to_capture = capturable is not None and capturable <= 0
    nothing_to_refund = payment.given_back or (refundable is not None and refundable <= 0 < (payment.captured or 0))
    if kind is OperationKind.CAPTURE or (kind is OperationKind.VOID and payment.captured == 0):
        is_ours = nothing_to_capture or bool(payment.reserved(OperationKind.CAPTURE))
        return payment if is_ours else replace(payment, captured=None)
    if kind in {OperationKind.REFUND, OperationKind.REVERSAL}:
        is_ours = nothing_to_refund or bool(payment.reserved(OperationKind.REFUND, OperationKind.REVERSAL))
        return payment if is_ours else replace(payment, refunded=None)
    return payment


def merged_payment(payment: Payment, other: Payment) -> Payment:
    """The payment, with the names, steps and movements of the other one, which is the same payment under another
    name."""
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
            payment = _posted(payment, movement, None, NOTHING_SHOWN)
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
    amount = shown.moved if shows else None if movement.at_most else movement.minor_units
    if movement.kind is OperationKind.REVERSAL and amount is None:
        amount = _reversed_amount(payment)
    money = operation.money if operation is not None else None
    if money is not None and payment.currency is not None and money.currency != payment.currency:
        amount = None  # only the provider knows this amount in the currency of the payment
    posted = replace(movement, status=MovementStatus.POSTED, minor_units=amount, fingerprint="", at_most=False)
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


def _reversed_amount(payment: Payment) -> int | None:
    """The amount that a reversal gives back: the captured amount less refunds, or the authorised amount if nothing was
    captured. Unknown while another movement is open."""
    if any(movement.kind is not OperationKind.REVERSAL for movement in payment.reserved()):
        return None
    return payment.authorised if payment.captured == 0 else difference(payment.captured, payment.refunded)


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
    """The payment with the totals in the provider's own object. Captured and refunded only grow, because an older
    object may show less than we know."""
    if shown.currency is not None and payment.currency is not None and shown.currency != payment.currency:
        return payment
    if not payment.paid and payment.elsewhere is PaidElsewhere.NO:
        return payment  # an object that is not paid yet shows the requested amount, not an authorised one
    captured, refunded = shown.captured, shown.refunded
    if payment.authorised is None:
        payment = replace(payment, authorised=shown.authorised)
    if captured is refunded is shown.capturable is shown.disputed is None:
        return payment
    payment = _with_capturable(payment, shown)
    if captured is None and shown.capturable is not None and payment.authorised is not None and not payment.final:
        captured = payment.authorised - shown.capturable
    captured = _without_open(payment.captured, captured, payment, OperationKind.CAPTURE)
    refunded = _without_open(payment.refunded, refunded, payment, OperationKind.REFUND, OperationKind.REVERSAL)
    if refunded is not None and _may_hold_returned(payment, refunded):
        refunded = None
    return replace(
        payment,
        captured=_larger(payment.captured, captured),
        refunded=_larger(payment.refunded, refunded),
        disputed=_larger(payment.disputed, shown.disputed),
    )


def _without_open(known: int | None, total: int | None, payment: Payment, *kinds: OperationKind) -> int | None:
    """The least amount that has moved according to `total`. The total may include movements that are still reserved
    here; each of these is posted when its own evidence comes. A total below our own posted movements is out of date. If
    the number is not `known`, it stays unknown while a movement is open, because the total may or may not include
    it."""
    open_amount = payment.reserved_at_most(*kinds)
    if total is None or open_amount is None or total < payment.posted_total(*kinds):
        return None
    return None if known is None and open_amount else total - open_amount


def _moved_elsewhere(
    counted: Payment, payment: Payment, after: Operation, shown: ShownBalance
) -> tuple[Payment, Posting | None]:
    """The payment with a movement for the amount by which the provider's totals exceed our count: another client has
    moved it. It is posted only once, because our number grows in the same step. A change has one posting, so a refund
    beside a capture waits for the next change. Nothing is posted if our number was unknown before, or if the captured
    total had to be calculated."""
    captured = difference(payment.captured, counted.captured) if shown.captured is not None else None
    refunded = difference(payment.refunded, counted.refunded)
    if not counted.paid or not (captured or refunded):
        return payment, None
    kind, amount = (OperationKind.CAPTURE, captured) if captured else (OperationKind.REFUND, refunded)
    if captured and refunded:
        payment = replace(payment, refunded=counted.refunded)
    movement = Movement(f"{after.id}:{after.version}:{kind}", kind, amount, MovementStatus.POSTED)
    posting = Posting(movement.operation_id, kind.value, amount, payment.currency, payment.id)
    return replace(payment, movements=bounded((*payment.movements, movement))), posting


def _may_hold_returned(payment: Payment, refunded: int) -> bool:
    """Whether a total may come from an object that is older than the return of a refund. Such a total would free the
    intent although the payment still stands."""
    gives_back = (OperationKind.REFUND, OperationKind.REVERSAL)
    returned = payment.returned_movements(*gives_back)
    known = payment.posted_total(*gives_back) if payment.refunded is None else payment.refunded
    amount = total_of(returned)
    return bool(returned) and refunded > known and (amount is None or refunded <= known + amount)


def _with_capturable(payment: Payment, shown: ShownBalance) -> Payment:
    """The payment with the amount that the provider itself would still let us capture. The provider's number replaces
    ours. If it is smaller, the provider has released the difference; if it is larger, more was authorised. The number
    does not count if the object is older than our data, or if it may include a movement that is still reserved here."""
    captured = shown.captured
    if shown.capturable is None or captured is None or payment.authorised is None or payment.final:
        return payment
    is_older = captured < max(payment.captured or 0, payment.posted_total(OperationKind.CAPTURE))
    if is_older or payment.reserved(OperationKind.CAPTURE, OperationKind.INCREMENT, OperationKind.VOID):
        return payment
    payment = replace(payment, captured=captured)
    known = payment.capturable
    if known is None or shown.capturable == known:
        return payment
    if shown.capturable < known:
        return replace(payment, voided=(payment.voided or 0) + known - shown.capturable)
    return payment if payment.voided else replace(payment, authorised=captured + shown.capturable)


def _larger(known: int | None, shown: int | None) -> int | None:
    if shown is None:
        return known
    return shown if known is None else max(known, shown)


def _is_negative(payment: Payment) -> bool:
    """Whether more has moved than the payment can have had, even if all open movements have moved too."""
    authorised, captured, refunded = payment.authorised, payment.captured, payment.refunded
    if captured is None:
        return False
    if refunded is not None and refunded > captured:
        captures = payment.reserved_at_most(OperationKind.CAPTURE)
        if captures is not None and refunded > captured + captures:
            return True
    if authorised is None or captured <= authorised:
        return False
    increments = payment.reserved_at_most(OperationKind.INCREMENT)
    return increments is not None and captured > authorised + increments + payment.capturable_above


def touches_payment(before: Operation, after: Operation, shown: ShownBalance | None) -> bool:
    """Whether a change of the operation changes its payment. `shown` None: the evidence shows nothing of the
    payment."""
    if not after.payment:
        return False
    if after.doubt and not before.doubt:
        return True
    is_new_end = after.state.ended and not before.state.ended
    is_new_reading = after.result_class is not before.result_class or after.incident != before.incident
    if after.kind in FOLLOW_UPS:
        return is_new_end or (after.state.ended and is_new_reading)
    if shown is None or shown == NOTHING_SHOWN:
        return after.kind.pays and after.state is State.SUCCEEDED and (is_new_end or is_new_reading)
    return bool(shown.names or shown.dispute or shown.expiry_announced or shown.verify_at) or (
        after.kind.pays and after.state is State.SUCCEEDED
    )


# --- Evidence of movements that are not ours


def _with_dispute(payment: Payment, minor_units: int | None, *, won: bool) -> Payment:
    """The payment after a dispute was opened, lost or won. Without an amount, an open or lost dispute covers the
    captured amount."""
    if won:
        left = 0 if minor_units is None else max(0, (payment.disputed or 0) - minor_units)
        return replace(payment, disputed=left)
    amount = payment.captured if minor_units is None else minor_units
    return replace(payment, disputed=amount if amount is None else max(payment.disputed or 0, amount))


def adopted(payment: Payment, shown: ShownBalance) -> Payment:
    """A payment that did not come through us, as an inquiry shows it. Numbers that it does not show stay unknown."""
    payment = with_names(payment, shown.names)
    payment = replace(
        payment,
        elsewhere=PaidElsewhere.VERIFIED,
        currency=payment.currency or shown.currency,
        intent=payment.intent or shown.intent,
        expires_at=shown.expires_at,
        verify_at=None,
    )
    return _with_totals(payment, shown)


# --- Movements whose operations ended by an expired lease


def reconciled(payment: Payment, operations: Mapping[str, Operation]) -> Payment:
    """The payment after applying reserved movements whose operations ended by an expired lease. Such an end does not
    write the payment's row. `operations`: the operations of all reserved movements, as they are now. If one is missing,
    it was retired after it ended without effect by an expired lease, because every other end is written together with
    its payment."""
    for movement in payment.reserved():
        operation = operations.get(movement.operation_id)
        if operation is None or (operation.state is State.FAILED and operation.incident is None):
            payment = _without(payment, movement)
        elif operation.state is State.SUCCEEDED:
            payment = _posted(payment, movement, operation, ShownBalance())
        elif operation.doubt:
            payment = replace(payment, unanswered=True)
    return payment
