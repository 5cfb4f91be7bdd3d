"""The small values: contracts, places, routes, headers, states."""

from __future__ import annotations

import pytest

from paywitness.core.classify import was_executed
from paywitness.core.evidence import NetworkPhase, WireFault
from paywitness.core.operation import Outcome, State
from paywitness.core.policy import Route
from paywitness.core.provider_contract import ErrorsUnderKey, FieldKind, FieldRef, OperationKind
from paywitness.core.result import DENIALS, SHOWN_AFTER_SUCCESS, ResultClass
from paywitness.core.retry import RetryRule
from tests.core.samples import answered, call, contract, operation, policy, read, response, unanswered


def test_a_key_is_safe_to_repeat_for_most_of_its_window() -> None:
    assert contract(window_s=100.0).resend_until_s == 80.0
    assert contract(window_s=100.0).dedupes


@pytest.mark.parametrize("changes", [{"window_s": None}, {"window_s": 0.0}, {"send_as": None}])
def test_without_a_key_or_a_known_window_nothing_is_safe_to_repeat(changes: dict[str, object]) -> None:
    for errors in ErrorsUnderKey:
        assert not contract(errors, **changes).dedupes
        assert contract(errors, **changes).resend_until_s == 0.0


def test_only_payments_pay_and_only_nothing_moves_nothing() -> None:
    assert {kind for kind in OperationKind if kind.pays} == {OperationKind.AUTHORIZATION, OperationKind.SALE}
    assert {kind for kind in OperationKind if not kind.moves_money} == {OperationKind.NONE}


def test_a_place_is_shown_as_a_policy_writes_it() -> None:
    assert str(FieldRef(FieldKind.BODY, "metadata.order_id")) == "body:metadata.order_id"


@pytest.mark.parametrize(
    ("method", "segments", "parameters"),
    [
        ("POST", ("v1", "charges", "ch_1", "refunds"), {"charge": "ch_1"}),
        ("POST", ("v1", "charges", "a/b", "refunds"), {"charge": "a/b"}),
        ("GET", ("v1", "charges", "ch_1", "refunds"), None),
        ("POST", ("v1", "charges", "", "refunds"), None),
        ("POST", ("v1", "charges", "ch_1"), None),
        ("POST", ("v1", "charges", "ch_1", "refunds", ""), None),
        ("POST", ("v1", "Charges", "ch_1", "refunds"), None),
    ],
)
def test_a_route_matches_its_own_path_only(
    method: str, segments: tuple[str, ...], parameters: dict[str, str] | None
) -> None:
    route = Route("POST", ("v1", "charges", "{charge}", "refunds"))
    assert route.match(method, segments) == parameters
    assert str(route) == "POST /v1/charges/{charge}/refunds"


def test_a_header_is_found_whatever_its_case_and_the_first_one_counts() -> None:
    twice = (("Idempotency-Key", "a"), ("idempotency-key", "b"))
    assert call(b"", *twice).header("IDEMPOTENCY-KEY") == "a"
    assert response(200, b"", *twice).header("IDEMPOTENCY-KEY") == "a"
    assert call().header("x") is None
    assert response().header("x") is None


def test_a_target_is_path_and_query_as_they_stand_on_the_line() -> None:
    assert call().target == "/v1/charges"
    assert call(query="a=1").target == "/v1/charges?a=1"


@pytest.mark.parametrize("phase", NetworkPhase)
def test_a_byte_may_have_left_from_sending_on(phase: NetworkPhase) -> None:
    assert unanswered(phase, WireFault.RESET).sent == (phase >= NetworkPhase.SENDING)
    assert unanswered(phase, WireFault.RESET, bytes_written=1).sent
    assert not unanswered(phase).complete
    assert phase.label == phase.name.lower()


def test_an_answer_is_complete() -> None:
    assert answered(response()).complete


def test_a_credential_is_accepted_only_by_an_answer_that_acted_on_it() -> None:
    acted = {reading for reading in ResultClass if was_executed(read(reading))}
    assert acted == {
        ResultClass.SUCCEEDED,
        ResultClass.PENDING,
        *SHOWN_AFTER_SUCCESS,
        ResultClass.REQUIRES_ACTION,
        *DENIALS,
    }
    assert not was_executed(read(ResultClass.UNKNOWN_OUTCOME))


def test_only_success_and_failure_are_ends_and_only_unknown_and_review_are_doubt() -> None:
    assert {state for state in State if state.ended} == {State.SUCCEEDED, State.FAILED}
    assert {state for state in State if state.in_doubt} == {State.UNKNOWN, State.REQUIRES_REVIEW}


def test_every_state_has_its_outcome() -> None:
    outcomes = {state: operation(state=state).outcome for state in State}
    assert outcomes == {
        State.PREPARED: Outcome.IN_FLIGHT,
        State.SENDING: Outcome.IN_FLIGHT,
        State.BACKOFF: Outcome.IN_FLIGHT,
        State.UNKNOWN: Outcome.UNKNOWN,
        State.REQUIRES_REVIEW: Outcome.UNKNOWN,
        State.PENDING: Outcome.PENDING,
        State.REQUIRES_ACTION: Outcome.REQUIRES_ACTION,
        State.SUCCEEDED: Outcome.SUCCEEDED,
        State.FAILED: Outcome.NOT_SENT,
    }


def test_a_class_without_a_rule_of_its_own_is_tried_as_the_default_says() -> None:
    throttled = RetryRule(attempts=5)
    under = policy(retry={ResultClass.RATE_LIMITED: throttled})
    assert under.retry_rule(ResultClass.RATE_LIMITED) is throttled
    assert under.retry_rule(ResultClass.PROVIDER_TIMEOUT) is under.retry_default
