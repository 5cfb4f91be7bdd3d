"""The state of a payment in words: its numbers, and sentences that a finance person can act on. Pure.

The intent page, the admin port and `paywitness ops` show the same words. An unknown number is called unknown, and never
shown as zero. `payment_claims.hold_of_payment` decides whether an intent may be paid again; this module only puts that
into words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paywitness.core.money import Money
from paywitness.core.operation import Operation, State
from paywitness.core.payment import Movement, MovementStatus, PaidElsewhere, Payment, difference, total_of
from paywitness.core.payment_changes import payment_posting_key, returned_posting_key
from paywitness.core.payment_claims import IntentHold, hold_of_payment
from paywitness.core.provider_contract import OperationKind

HOW_IT_IS_FREED = (
    "It may be paid again once each of its payments has given back all that was captured, nothing more can be "
    "captured, and nothing of it is open or disputed."
)
NOTHING_PAID = "Nothing is recorded as authorised or captured."


# --- Amounts


def major_text(minor_units: int | None, currency: str | None) -> str | None:
    """An amount in major units, such as 25.00; None if the amount or its currency is unknown."""
    return None if minor_units is None or currency is None else str(Money(minor_units, currency).major)


def _money(minor_units: int | None, currency: str | None) -> str:
    text = major_text(minor_units, currency)
    return "an unknown amount" if text is None else f"{text} {currency}"


# --- Sentences


def payment_sentences(payment: Payment) -> str:
    """The state of the payment, and its meaning for another payment of its intent."""
    match hold_of_payment(payment):
        case IntentHold.FREE:
            return " ".join((NOTHING_PAID, *_open_movements(payment)))
        case IntentHold.REFUNDED:
            return " ".join((_balance(payment), _given_back(payment)))
        case IntentHold.PAID | IntentHold.GIVING_BACK:
            return " ".join((_balance(payment), *_what_stands(payment), *_open_movements(payment)))


def _balance(payment: Payment) -> str:
    """ "Paid: 25.00 EUR authorised, 25.00 captured, 10.00 refunded." The currency is said once."""
    if payment.elsewhere is PaidElsewhere.UNVERIFIED:
        head = "Paid, but not by a call of ours: the provider says so, and no inquiry has shown the payment yet"
    elif payment.elsewhere is PaidElsewhere.VERIFIED:
        head = "Paid, but not by a call of ours"
    else:
        head = "Paid"
    numbers = [("authorised", payment.authorised), ("captured", payment.captured), ("refunded", payment.refunded)]
    numbers += [(word, number) for word, number in _rarer_numbers(payment) if number]
    texts, currency_said = [], False
    for word, number in numbers:
        text = major_text(number, payment.currency)
        if text is None:
            texts.append(f"{word} unknown")
        else:
            texts.append(f"{text} {word}" if currency_said else f"{text} {payment.currency} {word}")
            currency_said = True
    return f"{head}: {', '.join(texts)}."


def _rarer_numbers(payment: Payment) -> tuple[tuple[str, int | None], ...]:
    return ("voided", payment.voided), ("disputed", payment.disputed)


def _what_stands(payment: Payment) -> list[str]:
    """Why the payment still counts as paid."""
    sentences = []
    stands, capturable = difference(payment.captured, payment.refunded), payment.capturable
    if stands is None:
        unknown = " and ".join(
            word for word, number in (("captured", payment.captured), ("refunded", payment.refunded)) if number is None
        )
        sentences.append(f"What stands is unknown: what was {unknown} is unknown.")
    elif stands > 0:
        sentences.append(f"{_money(stands, payment.currency)} stand.")
    if payment.voided and payment.captured and (stands is None or stands > 0):
        captured = _money(payment.captured, payment.currency)
        sentences.append(f"A void of the rest does not free it: {captured} were captured.")
    if stands is not None and stands <= 0 and capturable is None:
        sentences.append("Nothing captured stands, but what can still be captured is unknown.")
    if stands is not None and stands <= 0 and capturable is not None and capturable > 0:
        sentences.append(f"Nothing captured stands, but {_money(capturable, payment.currency)} can still be captured.")
    if payment.disputed:
        sentences.append(f"{_money(payment.disputed, payment.currency)} are disputed: a dispute never frees it.")
    return sentences


_UNDONE = {OperationKind.VOID: "Voided in full", OperationKind.REVERSAL: "Reversed in full"}


def _given_back(payment: Payment) -> str:
    if payment.returned:
        return "Taken back by the provider: it may be paid again."
    ended = [movement.kind for movement in payment.movements if movement.status is MovementStatus.POSTED]
    refunded = bool(payment.captured) and payment.refunded == payment.captured
    how = "Refunded in full" if refunded else next((_UNDONE[kind] for kind in ended if kind in _UNDONE), "Given back")
    if how == "Given back" and payment.voided and payment.voided == payment.authorised:
        how = "Released by the provider without being captured"
    return f"{how}: {_EQUAL_CALL}"


_EQUAL_CALL = "an equal call gets 409 unless it says Paywitness-Distinct. A call with another body passes."


def _open_movements(payment: Payment) -> list[str]:
    """Sentences about the reserved movements, whose ends are not known yet."""
    return [
        f"{_article(movement.kind)} {movement.kind} of {_reserved_amount(movement, payment)} is open: its end is not "
        "known yet."
        for movement in payment.reserved()
    ]


def _article(kind: OperationKind) -> str:
    return "An" if kind is OperationKind.INCREMENT else "A"


def _reserved_amount(movement: Movement, payment: Payment) -> str:
    return "all that is left" if movement.minor_units is None else _money(movement.minor_units, payment.currency)


# --- Summaries


def payment_summary(payment: Payment, operations: Mapping[str, Operation]) -> dict[str, Any]:
    """The facts about a payment that a caller may know. `operations`: the payment's operations that are still kept, by
    id."""
    currency = payment.currency
    kinds = dict.fromkeys(movement.kind for movement in payment.reserved())
    return {
        "payment": payment.id,
        "provider": payment.provider,
        "names": list(payment.names),
        "intent": payment.intent.label if payment.intent is not None else None,
        "explanation": payment_sentences(payment),
        "hold": hold_of_payment(payment),
        "currency": currency,
        "authorised": major_text(payment.authorised, currency),
        "captured": major_text(payment.captured, currency),
        "refunded": major_text(payment.refunded, currency),
        "voided": major_text(payment.voided, currency),
        "disputed": major_text(payment.disputed, currency),
        "stands": major_text(difference(payment.captured, payment.refunded), currency),
        "capturable": major_text(payment.capturable, currency),
        "reserved": {kind: major_text(total_of(payment.reserved(kind)), currency) for kind in kinds},
        "through_us": payment.elsewhere is PaidElsewhere.NO,
        "posting": payment_posting_key(payment) if payment.paid else None,
        "expires_at": payment.expires_at,
        "steps": [_step(step, operations.get(step)) for step in payment.steps],
        "movements": [_movement(movement, payment, operations) for movement in payment.movements],
    }


def _step(operation_id: str, operation: Operation | None) -> dict[str, Any]:
    """One operation that makes the payment. A retired one is named only by its id."""
    money = operation.money if operation is not None else None
    return {
        "operation": operation_id,
        "name": operation.operation if operation is not None else None,
        "kind": operation.kind if operation is not None else None,
        "outcome": operation.outcome if operation is not None else None,
        "amount": str(money.major) if money is not None else None,
        "currency": money.currency if money is not None else None,
    }


def _movement(movement: Movement, payment: Payment, operations: Mapping[str, Operation]) -> dict[str, Any]:
    operation = operations.get(movement.operation_id)
    is_failed = operation is not None and operation.state is State.FAILED  # it was accepted, and nothing was posted
    is_posted = movement.status is not MovementStatus.RESERVED and not is_failed
    is_returned = movement.status is MovementStatus.RETURNED and not is_failed
    return {
        "operation": movement.operation_id,
        "name": operation.operation if operation is not None else None,
        "kind": movement.kind,
        "status": movement.status,
        "outcome": operation.outcome if operation is not None else None,
        "amount": major_text(movement.minor_units, payment.currency),
        "currency": payment.currency,
        "reference": operation.reference if operation is not None else None,
        "posting": movement.operation_id if is_posted else None,
        "returned_by": returned_posting_key(movement.operation_id) if is_returned else None,
    }
