""" "Was it charged?", for everything an operation can be."""

from __future__ import annotations

import pytest

from paywitness.core.operation import State
from paywitness.core.provider_contract import OperationKind
from paywitness.core.reply import operation_summary
from paywitness.core.result import ResultClass
from paywitness.core.was_it_charged import money_summary
from tests.telemetry.samples import operation

SAID = [
    ({"state": State.SUCCEEDED}, "SUCCEEDED: 12.50 EUR was authorised"),
    ({"state": State.SUCCEEDED, "kind": OperationKind.SALE}, "SUCCEEDED: 12.50 EUR was charged"),
    (
        {"state": State.SUCCEEDED, "kind": OperationKind.SALE, "result_class": ResultClass.REVERSED},
        "REVERSED: 12.50 EUR was charged, and later reversed by the provider",
    ),
    (
        {"state": State.SUCCEEDED, "kind": OperationKind.REFUND, "result_class": ResultClass.RETURNED},
        "RETURNED: 12.50 EUR was refunded, and the provider took it back later",
    ),
    (
        {"state": State.FAILED, "result_class": ResultClass.ALREADY_DONE, "paid_elsewhere": True},
        "PAID BEFORE: nothing was authorised by this; the provider says that it was paid already; do not pay again",
    ),
    ({"state": State.UNKNOWN}, "UNKNOWN: 12.50 EUR may have moved; do not pay again"),
    (
        {"state": State.UNKNOWN, "kind": OperationKind.REFUND},
        "UNKNOWN: 12.50 EUR may have been refunded; do not refund again",
    ),
    ({"state": State.UNKNOWN, "money": None}, "UNKNOWN: the amount may have moved; do not pay again"),
    (
        {"state": State.REQUIRES_REVIEW},
        "UNKNOWN, IN REVIEW: 12.50 EUR may have moved; do not pay again; a person must look",
    ),
    (
        {"state": State.PENDING},
        "PENDING: the provider accepted it and has not finished; 12.50 EUR may have moved; do not pay again",
    ),
    (
        {"state": State.REQUIRES_ACTION, "due_at": 7.0},
        "REQUIRES ACTION: nothing was authorised yet; the customer must confirm it",
    ),
    (
        {"state": State.REQUIRES_ACTION, "due_at": 7.0, "action_expired": True},
        "REQUIRES ACTION, EXPIRED: nothing was authorised yet; the customer has not confirmed it in time",
    ),
    ({"state": State.SENDING}, "IN FLIGHT: it is being sent; wait, and do not pay again"),
    ({"state": State.BACKOFF}, "IN FLIGHT: nothing was authorised yet; it is still being tried; wait"),
    (
        {"state": State.FAILED, "result_class": ResultClass.ISSUER_HARD_DECLINE},
        "DECLINED: nothing was authorised; the provider said no (issuer hard decline)",
    ),
    (
        {"state": State.FAILED, "result_class": ResultClass.NETWORK_CONNECT_FAILURE},
        "NOT SENT: nothing was authorised, and nothing will be; it is safe to try again",
    ),
    (
        {"state": State.FAILED, "result_class": ResultClass.VALIDATION_ERROR, "kind": OperationKind.PAYOUT},
        "FAILED: nothing was paid out (validation error)",
    ),
    (
        {"state": State.FAILED, "result_class": ResultClass.ISSUER_SOFT_DECLINE, "incident": "success_after_failure"},
        "INCIDENT, success after failure: 12.50 EUR may have moved, though it stands as failed; do not pay again; "
        "a person must look",
    ),
    (
        {
            "state": State.SUCCEEDED,
            "result_class": ResultClass.RETURNED,
            "kind": OperationKind.REFUND,
            "incident": "duplicate_success",
        },
        "INCIDENT, duplicate success: 12.50 EUR was refunded, and the provider took it back later; a person must look",
    ),
]


@pytest.mark.parametrize(("facts", "said"), SAID)
def test_the_verdict_says_it_in_a_sentence(facts: dict, said: str) -> None:
    assert money_summary(operation(**facts)) == said


@pytest.mark.parametrize("incident", [None, "failure_after_success"])
@pytest.mark.parametrize("kind", list(OperationKind))
@pytest.mark.parametrize("state", list(State))
def test_it_is_never_called_safe_where_an_effect_may_exist(
    state: State, kind: OperationKind, incident: str | None
) -> None:
    for reading in (None, *ResultClass):
        told = operation(state, kind=kind, result_class=reading, incident=incident)
        sentence = money_summary(told)
        assert "{" not in sentence
        if operation_summary(told)["side_effect_may_exist"] and state is not State.SUCCEEDED:
            assert "safe" not in sentence
            assert "do not" in sentence or state is State.REQUIRES_ACTION
