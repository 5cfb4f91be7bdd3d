"""A payment after the journal has lost its last writes: the part that an operation which is put back restores. Pure.

The journal writes an operation and its payment in one step, so it loses both together. The sidecar that puts the
operation back knows its movement, but not the movements of others. So the numbers are unknown until an object shows
them.
"""

from __future__ import annotations

from dataclasses import replace

from paywitness.core.guard import GIVEN_BACK
from paywitness.core.operation import Guard, GuardKind, Operation, State
from paywitness.core.payment import FOLLOW_UPS, Movement, MovementStatus, Payment, bounded, with_step
from paywitness.core.provider_contract import OperationKind


def with_unknown_numbers(payment: Payment, now: float) -> Payment:
    """The payment while the journal may have lost movements of it. If it is paid, its captured and refunded amounts are
    unknown, and a verification is due at once."""
    if not payment.paid:
        return payment
    return replace(payment, captured=None, refunded=None, verify_at=now, verifications=0)


def after_rollback(payment: Payment, operation: Operation, now: float) -> Payment:
    """The payment with what it lost together with this operation."""
    payment = _with_movement(payment, operation) if operation.kind in FOLLOW_UPS else _with_payer(payment, operation)
    payment = replace(
        payment,
        intent=payment.intent or _intent_of(operation),
        unanswered=payment.unanswered or bool(operation.doubt),
    )
    return with_unknown_numbers(payment, now)


def _intent_of(operation: Operation) -> Guard | None:
    guard = operation.guard
    return guard if guard is not None and guard.kind is GuardKind.INTENT else operation.object_intent


def _with_payer(payment: Payment, operation: Operation) -> Payment:
    payment = with_step(payment, operation.id)
    if not operation.kind.pays or operation.state is not State.SUCCEEDED or payment.paid:
        return payment
    money = operation.money
    return replace(
        payment,
        paid=True,
        paid_by=operation.id,
        times_paid=payment.times_paid + 1,
        authorised=money.minor_units if money is not None and payment.authorised is None else payment.authorised,
        currency=money.currency if money is not None and payment.currency is None else payment.currency,
    )


def _with_movement(payment: Payment, operation: Operation) -> Payment:
    """Reserved while the operation is open, posted once it succeeded, and gone if it ended without effect."""
    known = payment.movement_of(operation.id)
    others = tuple(movement for movement in payment.movements if movement is not known)
    if operation.state is State.FAILED and operation.incident is None:
        return replace(payment, movements=others)
    amount = operation.money.minor_units if operation.money is not None else None
    movement = known or Movement(operation.id, operation.kind, amount, fingerprint=operation.fingerprint)
    if operation.state is State.SUCCEEDED:
        is_back = operation.result_class in GIVEN_BACK
        status = MovementStatus.RETURNED if is_back else MovementStatus.POSTED
        movement = replace(movement, status=status, fingerprint="")
        ends = operation.kind in {OperationKind.VOID, OperationKind.REVERSAL} and not is_back
        payment = replace(payment, final=payment.final or ends)
    return replace(payment, movements=bounded((*others, movement)))
