"""The payment that a call acts on, as a claim finds it in the ledger. Pure."""

from __future__ import annotations

from dataclasses import replace

from paywitness.core.claim import ClaimRequest
from paywitness.core.operation import GuardKind, Operation
from paywitness.core.payment import Payment
from paywitness.core.payment_claims import carried_guard, with_money
from paywitness.core.record import record
from paywitness.journal.base import LedgerRow
from paywitness.journal.ledger import RowLookups, payment_by_name


@record
class PaymentTarget:
    """The payment that a call acts on, and the operation that would start, as that payment makes it."""

    fresh: Operation
    payment: Payment | None = None
    row: LedgerRow | None = None  # None: the payment is not known yet


def target_of(request: ClaimRequest, lookups: RowLookups) -> PaymentTarget:
    """The payment that the call acts on. One that nobody has seen is made under the name that the call gives it, with
    unknown numbers. A step has the intent of its payment, if it names none itself."""
    fresh, name = request.fresh, request.payment.acts_on
    if request.payment.intent is not None:
        fresh = fresh.changed(object_intent=request.payment.intent)
    if name is None:
        return PaymentTarget(fresh)
    found = payment_by_name(lookups, name)
    if found is None:
        payment = Payment(fresh.id, fresh.provider, fresh.account, (name.name,))
    else:
        payment = found.payment
    fresh = with_money(payment, fresh.changed(payment=payment.id, acts_on=name.name), request.payment)
    if fresh.kind.pays:
        names_intent = fresh.guard is not None and fresh.guard.kind is GuardKind.INTENT
        if names_intent:
            payment = replace(payment, intent=fresh.guard)
        elif payment.intent is not None:
            fresh = fresh.changed(guard=carried_guard(payment.intent, request.payment))
    return PaymentTarget(fresh, payment, None if found is None else found.row)
