"""Claims on a payment: whether a movement or another payment of an intent may start now. Pure.

There are three questions, in this order: is a movement in flight that excludes it, is an equal movement open, does the
balance allow it. One more question is about intents: does a payment still keep its intent from being paid again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from paywitness.core.errors import MoneyError
from paywitness.core.money import Money, Unit, read_money
from paywitness.core.operation import Guard, Operation, RepeatPaymentRule, State
from paywitness.core.payment import (
    FOLLOW_UPS,
    Movement,
    MovementStatus,
    PaidElsewhere,
    Payment,
    PaymentName,
    bounded,
    difference,
    total_of,
    with_step,
)
from paywitness.core.payment_rules import IncrementMeaning, LimitMode
from paywitness.core.provider_contract import OperationKind
from paywitness.core.record import record

# Two of these kinds are never in flight at one payment at once, whichever name of the payment they use.
_SERIALISED = FOLLOW_UPS - {OperationKind.REFUND}
_IN_FLIGHT = frozenset({State.PREPARED, State.SENDING, State.BACKOFF})


# --- Limits


class LimitVerdict(StrEnum):
    FITS = "fits"
    UNKNOWN = "unknown"  # a number is unknown, or the currency is another one: the provider decides
    RESERVED = "reserved"  # it would fit if the reservations were released
    EXCEEDS = "exceeds"


@record
class LimitCheck:
    verdict: LimitVerdict
    remaining: int | None = None
    reserved_by: OperationKind | None = None  # RESERVED: the kind of the reservations in the way


def check_limit(payment: Payment, kind: OperationKind, money: Money | None) -> LimitCheck:
    """Whether the balance allows this movement. `money` None: the whole remainder."""
    if kind not in {OperationKind.CAPTURE, OperationKind.REFUND}:
        return LimitCheck(LimitVerdict.FITS)
    if money is not None and payment.currency is not None and money.currency != payment.currency:
        return LimitCheck(LimitVerdict.UNKNOWN)
    remaining, released = _remaining(payment, kind)
    if remaining is None or released is None:
        return LimitCheck(LimitVerdict.UNKNOWN, remaining)
    if kind is OperationKind.CAPTURE and money is not None and not payment.final:
        remaining, released = remaining + payment.capturable_above, released + payment.capturable_above
    wanted = max(remaining, 1) if money is None else money.minor_units
    if wanted <= remaining:
        return LimitCheck(LimitVerdict.FITS, remaining)
    if wanted > released:
        return LimitCheck(LimitVerdict.EXCEEDS, remaining)
    return LimitCheck(LimitVerdict.RESERVED, remaining, kind)


def _remaining(payment: Payment, kind: OperationKind) -> tuple[int | None, int | None]:
    """The remainder for a movement of this kind: first with competing reservations, then without them."""
    competing = payment.reserved_at_most(kind)
    if kind is OperationKind.CAPTURE:
        increments = total_of(payment.reserved(OperationKind.INCREMENT))
        capturable = payment.capturable
        released = None if capturable is None or increments is None else capturable + increments
        released = 0 if payment.final else released
    else:
        captures = payment.reserved_at_most(OperationKind.CAPTURE)
        base = None if payment.captured is None or captures is None else payment.captured + captures
        released = difference(base, payment.refunded, payment.disputed)
    return difference(released, competing), released


# --- Claims


@record
class PaymentClaim:
    """A call's claim on a payment: which payment it acts on, how much it moves, and by which rules."""

    acts_on: PaymentName | None = None  # None: it makes a payment
    amount: object = None  # as in a request that names no currency: the currency is the payment's
    unit: Unit = Unit.MINOR
    takes_remainder: bool = False  # it names no amount, and means the whole remainder
    intent: Guard | None = None  # of a call that creates an object and moves nothing yet
    limits: LimitMode = LimitMode.WARN
    once_per_target: bool = False
    increment_means: IncrementMeaning = IncrementMeaning.TOTAL
    intent_total: Money | None = None  # several payments of the intent pass up to this sum
    after_success: RepeatPaymentRule = RepeatPaymentRule.FLAG  # of the call's own policy, if it has no intent itself
    during_action: RepeatPaymentRule = RepeatPaymentRule.FLAG


class PaymentVerdict(StrEnum):
    """The verdict on an operation that would start on a payment."""

    PASS = "pass"
    BUSY = "busy"  # another movement is in flight: wait for it
    OPEN = "open"  # an equal movement, or one that excludes this one, is open
    RESERVED = "reserved"
    EXCEEDS = "exceeds"


@record
class PaymentJudgement:
    verdict: PaymentVerdict
    holder: Operation | None = None  # whose movement is in the way
    check: LimitCheck = LimitCheck(LimitVerdict.FITS)


def judge_movement(
    payment: Payment, fresh: Operation, claim: PaymentClaim, operations: Mapping[str, Operation]
) -> PaymentJudgement:
    """Whether a follow-up may start on its payment now. `payment` is reconciled; `operations` are those behind its
    reserved movements. Movements in flight count first, then equal or excluding ones, then the limit."""
    for movement in payment.reserved():
        holder = operations.get(movement.operation_id)
        if holder is None or holder.key == fresh.key:
            continue
        verdict = _against(movement, holder, fresh, amount_moved(payment, fresh, claim))
        if verdict is not PaymentVerdict.PASS:
            return PaymentJudgement(verdict, holder)
    if claim.limits is LimitMode.OFF:
        return PaymentJudgement(PaymentVerdict.PASS)
    check = check_limit(payment, fresh.kind, fresh.money)
    if claim.limits is LimitMode.ENFORCE:
        if check.verdict is LimitVerdict.EXCEEDS:
            return PaymentJudgement(PaymentVerdict.EXCEEDS, check=check)
        if check.verdict is LimitVerdict.RESERVED:
            holder = _first_holder(payment, fresh.kind, operations)
            return PaymentJudgement(PaymentVerdict.RESERVED, holder, check)
    return PaymentJudgement(PaymentVerdict.PASS, check=check)


def _first_holder(payment: Payment, kind: OperationKind, operations: Mapping[str, Operation]) -> Operation | None:
    holders = (operations.get(movement.operation_id) for movement in payment.reserved(kind))
    return next((holder for holder in holders if holder is not None), None)


def money_of(payment: Payment, fresh: Operation, claim: PaymentClaim) -> Money | None:
    """The amount that the call moves. If the request names no currency, it means the payment's."""
    if fresh.money is not None or claim.amount is None or payment.currency is None:
        return fresh.money
    try:
        return read_money(claim.amount, payment.currency, claim.unit)
    except MoneyError:
        return None


def with_money(payment: Payment, fresh: Operation, claim: PaymentClaim) -> Operation:
    """The operation with its amount and currency, as far as its payment knows them."""
    money = money_of(payment, fresh, claim)
    if money is None and claim.amount is None and not claim.takes_remainder and fresh.kind in FOLLOW_UPS:
        return fresh.changed(takes_remainder=True)  # its policy knows no amount, so it moves the whole remainder
    if money is not None or not claim.takes_remainder or payment.currency is None:
        return fresh if money is fresh.money else fresh.changed(money=money)
    left = _all_that_is_left(payment, fresh.kind)
    if left is None or left <= 0:
        return fresh
    return fresh.changed(money=Money(left, payment.currency), takes_remainder=True)


def amount_moved(payment: Payment, fresh: Operation, claim: PaymentClaim) -> int | None:
    """By how much the movement changes a number of the payment; this amount is reserved. None: the whole remainder, if
    that is unknown."""
    if fresh.money is None:
        return int(str(claim.amount)) if _is_named(claim) else _all_that_is_left(payment, fresh.kind)
    if fresh.kind is OperationKind.INCREMENT and claim.increment_means is IncrementMeaning.TOTAL:
        return difference(fresh.money.minor_units, payment.authorised)
    return fresh.money.minor_units


def _is_named(claim: PaymentClaim) -> bool:
    """Whether the request names an amount that can be read without a currency."""
    return claim.unit is Unit.MINOR and isinstance(claim.amount, int) and not isinstance(claim.amount, bool)


def _against(movement: Movement, holder: Operation, fresh: Operation, amount: int | None) -> PaymentVerdict:
    """The verdict of one open movement on another that would start."""
    in_flight = holder.state in _IN_FLIGHT or holder.attempt_under_way
    if in_flight and movement.kind in _SERIALISED and fresh.kind in _SERIALISED:
        return PaymentVerdict.BUSY
    if _excludes(movement.kind, fresh.kind) and holder.state.in_doubt:
        return PaymentVerdict.OPEN
    if movement.kind is fresh.kind and fresh.kind is not OperationKind.VOID:
        equal_call = movement.fingerprint == fresh.fingerprint
        if equal_call or (movement.minor_units == amount and not fresh.distinct):
            return PaymentVerdict.OPEN
    elif movement.kind is fresh.kind:
        return PaymentVerdict.OPEN  # a payment is voided once
    return PaymentVerdict.PASS


def _excludes(opened: OperationKind, fresh: OperationKind) -> bool:
    """Whether one must not start while the outcome of the other is unknown: a void, and a movement that it would
    undo."""
    pair = {opened, fresh}
    return OperationKind.VOID in pair and bool(pair & {OperationKind.CAPTURE, OperationKind.INCREMENT})


_STRICTEST = (RepeatPaymentRule.BLOCK, RepeatPaymentRule.FLAG, RepeatPaymentRule.ALLOW)


def carried_guard(intent: Guard, claim: PaymentClaim) -> Guard:
    """The guard of a step whose intent an earlier call named, with the stricter rules of both policies."""
    return replace(
        intent,
        after_success=min(intent.after_success, claim.after_success, key=_STRICTEST.index),
        during_action=min(intent.during_action, claim.during_action, key=_STRICTEST.index),
    )


def with_reservation(payment: Payment, fresh: Operation, claim: PaymentClaim) -> Payment:
    """The payment with the movement of an operation that starts, or with one more step."""
    if fresh.kind not in FOLLOW_UPS:
        return with_step(payment, fresh.id)
    amount = amount_moved(payment, fresh, claim)
    is_unread = fresh.money is None and claim.amount is not None and not _is_named(claim)
    movement = Movement(fresh.id, fresh.kind, amount, MovementStatus.RESERVED, fresh.fingerprint, is_unread)
    return replace(payment, movements=bounded((*payment.movements, movement)))


def _all_that_is_left(payment: Payment, kind: OperationKind) -> int | None:
    if kind in {OperationKind.CAPTURE, OperationKind.REFUND}:
        return _remaining(payment, kind)[0]
    return payment.capturable if kind is OperationKind.VOID else None


# --- Intents


def _may_be_given_back(payment: Payment) -> bool:
    """Whether nothing is left of the payment if its open refunds, voids and reversals have all succeeded."""
    refunds = total_of(payment.reserved(OperationKind.REFUND))
    left = difference(payment.captured, payment.refunded, refunds)
    undone = payment.reserved(OperationKind.VOID, OperationKind.REVERSAL)
    gives_back = payment.reserved(OperationKind.REFUND, OperationKind.VOID, OperationKind.REVERSAL)
    return bool(undone) or (bool(gives_back) and (left is None or left <= 0))


def may_still_expire(payment: Payment, now: float) -> bool:
    """Whether the authorization should have expired by now, but the provider has not confirmed it, and as far as we
    know more of it can be captured."""
    is_over = payment.expires_at is not None and payment.expires_at <= now
    return is_over and (payment.capturable is None or payment.capturable > 0)


class IntentHold(StrEnum):
    """How a payment affects another payment of its intent."""

    FREE = "free"  # nothing was paid
    PAID = "paid"
    GIVING_BACK = "giving_back"  # paid, and an open movement may give all of it back
    REFUNDED = "refunded"  # paid and given back as a whole: an equal call is refused with that answer


def hold_of_payment(payment: Payment) -> IntentHold:
    """Whether the payment keeps its intent from being paid again."""
    if payment.elsewhere is PaidElsewhere.UNVERIFIED:
        return IntentHold.PAID
    if not payment.paid and payment.elsewhere is PaidElsewhere.NO:
        return IntentHold.FREE
    if payment.reserved():
        return IntentHold.GIVING_BACK if _may_be_given_back(payment) else IntentHold.PAID
    if payment.given_back and not payment.disputed:
        return IntentHold.REFUNDED
    if payment.captured is None or payment.refunded is None:
        # A number is unknown: a void frees the intent, unless a capture of ours exists.
        is_voided = bool(payment.posted(OperationKind.VOID)) and not payment.posted(OperationKind.CAPTURE)
        return IntentHold.REFUNDED if is_voided else IntentHold.PAID
    if payment.captured - payment.refunded > 0 or payment.disputed:
        return IntentHold.PAID
    # An unknown amount is not zero: without an authorised amount only a final capture shows that nothing is left.
    return IntentHold.REFUNDED if payment.capturable is not None and payment.capturable <= 0 else IntentHold.PAID
