"""What an attempt or an inquiry shows of a provider's health, and what says nothing of it."""

from __future__ import annotations

import pytest

from paywitness.core.evidence import LIMIT_FAULTS, Evidence, NetworkPhase, WireFault
from paywitness.core.provider_health import Health, HealthSample, health_sample_of, health_sample_of_inquiry
from paywitness.core.result import ResultClass
from tests.core.samples import answered, response, unanswered

SLOW_AFTER_S = 8.0


def seen(evidence: Evidence, asked_s: float | None = None) -> HealthSample:
    found = health_sample_of_inquiry(evidence, SLOW_AFTER_S, asked_s)
    assert found is not None
    return found


@pytest.mark.parametrize("fault", sorted(LIMIT_FAULTS))
def test_what_our_own_limits_held_back_says_nothing_of_the_provider(fault: WireFault) -> None:
    held = Evidence.refused_by_limits(fault, "circuit_open")
    assert not held.sent
    assert health_sample_of(ResultClass.NETWORK_CONNECT_FAILURE, held, SLOW_AFTER_S) is None
    assert health_sample_of_inquiry(held, SLOW_AFTER_S) is None


@pytest.mark.parametrize("status_code", [200, 301, 400, 401, 403, 404, 410])
def test_an_inquiry_that_is_answered_at_all_shows_a_provider_that_is_well(status_code: int) -> None:
    assert seen(answered(response(status_code))).healthy


@pytest.mark.parametrize(("status_code", "overload"), [(500, False), (502, False), (503, True), (504, True)])
def test_an_inquiry_answered_by_an_error_is_bad_and_503_and_504_are_overload_too(
    status_code: int, overload: bool
) -> None:
    found = seen(answered(response(status_code)))
    assert (found.health, found.overload) == (Health.BAD, overload)


def test_an_inquiry_that_is_throttled_is_neither_well_nor_bad_and_keeps_what_was_asked_for() -> None:
    found = seen(answered(response(429)), 30.0)
    assert (found.health, found.retry_after_s, found.overload) == (Health.THROTTLED, 30.0, True)


@pytest.mark.parametrize(
    ("evidence", "health"),
    [
        (unanswered(NetworkPhase.CONNECTING, WireFault.CONNECT_REFUSED), Health.BAD),
        (unanswered(NetworkPhase.AWAITING, WireFault.FIRST_BYTE_TIMEOUT, 100), Health.UNKNOWN),
        (unanswered(NetworkPhase.SENDING, WireFault.RESET, 10), Health.UNKNOWN),
    ],
)
def test_an_inquiry_without_an_answer_is_bad_if_it_never_left_and_else_unknown(
    evidence: Evidence, health: Health
) -> None:
    assert seen(evidence).health is health


@pytest.mark.parametrize("fault", [WireFault.POOL_EXHAUSTED, WireFault.DNS_FAILURE])
def test_an_inquiry_that_did_not_leave_for_reasons_of_our_own_is_not_counted(fault: WireFault) -> None:
    assert health_sample_of_inquiry(unanswered(NetworkPhase.RESOLVING, fault), SLOW_AFTER_S) is None


def test_what_a_provider_asks_for_counts_only_where_it_refused() -> None:
    assert seen(answered(response(503)), 5.0).retry_after_s == 5.0
    assert seen(answered(response(200)), 5.0).retry_after_s is None
