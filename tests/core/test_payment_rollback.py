"""What an operation that is put back after a rollback of the journal tells of its payment."""

from __future__ import annotations

from typing import Any

import pytest

from paywitness.core.money import Money
from paywitness.core.operation import Guard, GuardKind, Operation, State
from paywitness.core.payment import MovementStatus, Payment
from paywitness.core.payment_rollback import after_rollback
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Effect, ResultClass
from tests.core.samples import operation as some_operation

Kind = OperationKind
NOW = 1_000.0
KNOWN = Payment("op_1", "acme", "account-1", paid=True, authorised=100, captured=0, refunded=0, voided=0, disputed=0)


def operation(kind: Kind, state: State, **changes: Any) -> Operation:
    money = Money(40, "EUR")
    return some_operation(id="op_2", kind=kind, state=state, money=money, payment="op_1", fingerprint="f", **changes)


@pytest.mark.parametrize(
    ("state", "reading", "status"),
    [
        (State.SENDING, None, MovementStatus.RESERVED),
        (State.UNKNOWN, None, MovementStatus.RESERVED),
        (State.SUCCEEDED, ResultClass.SUCCEEDED, MovementStatus.POSTED),
        (State.SUCCEEDED, ResultClass.RETURNED, MovementStatus.RETURNED),
        (State.FAILED, ResultClass.ABSENT, None),
    ],
)
def test_a_movement_is_put_back_as_its_operation_stands(
    state: State, reading: ResultClass | None, status: MovementStatus | None
) -> None:
    effect = Effect.NONE if state is State.FAILED else None
    after = after_rollback(KNOWN, operation(Kind.CAPTURE, state, result_class=reading, effect=effect), NOW)
    assert [movement.status for movement in after.movements] == ([] if status is None else [status])
    again = after_rollback(after, operation(Kind.CAPTURE, state, result_class=reading, effect=effect), NOW)
    assert again == after


def test_numbers_are_unknown_and_are_asked_for_at_once() -> None:
    """Design 15.6: what others moved beside it may be forgotten too."""
    after = after_rollback(KNOWN, operation(Kind.CAPTURE, State.SUCCEEDED), NOW)
    assert (after.authorised, after.captured, after.refunded, after.verify_at) == (100, None, None, NOW)
    assert after.posted_total(Kind.CAPTURE) == 40


def test_what_is_in_doubt_leaves_its_payment_unanswered() -> None:
    doubting = operation(Kind.CAPTURE, State.UNKNOWN, doubt=frozenset({1}), attempts=1)
    assert after_rollback(KNOWN, doubting, NOW).unanswered


def test_a_payer_makes_its_payment_paid_and_gives_it_its_intent() -> None:
    empty, intent = Payment("op_1", "acme", "account-1"), Guard(GuardKind.INTENT, "intent-1", "order-1")
    paid = after_rollback(empty, operation(Kind.SALE, State.SUCCEEDED, guard=intent), NOW)
    assert (paid.paid, paid.paid_by, paid.authorised, paid.captured) == (True, "op_2", 40, None)
    assert (paid.intent, paid.steps) == (intent, ("op_2",))
    opened = operation(Kind.NONE, State.SUCCEEDED, object_intent=intent)
    assert after_rollback(empty, opened, NOW).intent == intent


def test_a_void_leaves_nothing_to_capture() -> None:
    assert after_rollback(KNOWN, operation(Kind.VOID, State.SUCCEEDED), NOW).final
    assert not after_rollback(KNOWN, operation(Kind.VOID, State.UNKNOWN), NOW).final
