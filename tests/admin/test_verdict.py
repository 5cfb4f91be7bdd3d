""" "Was it charged?", for everything an operation can be."""

from __future__ import annotations

import pytest

from proxy.admin.verdict import verdict
from proxy.core.contract import Kind
from proxy.core.operation import State
from proxy.core.reading import Reading
from proxy.core.reply import described
from tests.telemetry.worth import operation

SAID = [
    ({"state": State.SUCCEEDED}, "SUCCEEDED: 12.50 EUR was authorised"),
    ({"state": State.SUCCEEDED, "kind": Kind.SALE}, "SUCCEEDED: 12.50 EUR was charged"),
    (
        {"state": State.SUCCEEDED, "kind": Kind.SALE, "reading": Reading.REVERSED},
        "REVERSED: 12.50 EUR was charged, and later reversed by the provider",
    ),
    ({"state": State.UNKNOWN}, "UNKNOWN: 12.50 EUR may have moved; do not pay again"),
    (
        {"state": State.UNKNOWN, "kind": Kind.REFUND},
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
        {"state": State.REQUIRES_ACTION},
        "REQUIRES ACTION: nothing was authorised yet; the customer must confirm it",
    ),
    ({"state": State.SENDING}, "IN FLIGHT: it is being sent; wait, and do not pay again"),
    ({"state": State.BACKOFF}, "IN FLIGHT: nothing was authorised yet; it is still being tried; wait"),
    (
        {"state": State.FAILED, "reading": Reading.ISSUER_HARD_DECLINE},
        "DECLINED: nothing was authorised; the provider said no (issuer hard decline)",
    ),
    (
        {"state": State.FAILED, "reading": Reading.NETWORK_CONNECT_FAILURE},
        "NOT SENT: nothing was authorised, and nothing will be; it is safe to try again",
    ),
    (
        {"state": State.FAILED, "reading": Reading.VALIDATION_ERROR, "kind": Kind.PAYOUT},
        "FAILED: nothing was paid out (validation error)",
    ),
    (
        {"state": State.FAILED, "reading": Reading.ISSUER_SOFT_DECLINE, "incident": "success_after_failure"},
        "INCIDENT, success after failure: 12.50 EUR may have moved, though it stands as failed; do not pay again; "
        "a person must look",
    ),
]


@pytest.mark.parametrize(("facts", "said"), SAID)
def test_the_verdict_says_it_in_a_sentence(facts: dict, said: str) -> None:
    assert verdict(operation(**facts)) == said


@pytest.mark.parametrize("incident", [None, "failure_after_success"])
@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("state", list(State))
def test_it_is_never_called_safe_where_an_effect_may_exist(state: State, kind: Kind, incident: str | None) -> None:
    for reading in (None, *Reading):
        told = operation(state, kind=kind, reading=reading, incident=incident)
        sentence = verdict(told)
        assert "{" not in sentence
        if described(told)["side_effect_may_exist"] and state is not State.SUCCEEDED:
            assert "safe" not in sentence
            assert "do not" in sentence or state is State.REQUIRES_ACTION
