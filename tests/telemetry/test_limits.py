"""Limits as the scrape and the log show them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from paywitness.core.admission import AdmissionRefusal, AdmissionStats, TrafficClass
from paywitness.core.budget import BudgetScope
from paywitness.core.circuit import CallGroup, CircuitRefusal, CircuitState, CircuitStatus
from paywitness.core.holds import HoldStatus, LimitedBy
from paywitness.core.problems import Problem
from paywitness.telemetry.events import (
    CallRefused,
    CircuitChanged,
    CircuitForced,
    JournalRolledBack,
    PolicyReloaded,
    RetryRefused,
)
from paywitness.telemetry.gauges import LimitsSources
from tests.telemetry.conftest import Told
from tests.telemetry.samples import ACME, ACME_NAMES

WAITING = {priority: int(priority is TrafficClass.LOW) for priority in TrafficClass}


def standing(state: CircuitState, group: CallGroup = CallGroup.WRITE, provider: str = "acme") -> CircuitStatus:
    return CircuitStatus(provider, group, state, True, 3.0, 0.0, False, 4, None)


def watched(
    *standings: CircuitStatus,
    remaining: Mapping[BudgetScope, float] | None = None,
    crowds: Iterable[AdmissionStats] = (AdmissionStats("acme", 20.0, 3, 1, WAITING),),
    fleet: bool = True,
) -> LimitsSources:
    left = {BudgetScope.PROVIDER: 7.5} if remaining is None else remaining
    return LimitsSources(lambda: standings, lambda provider: left, lambda: crowds, lambda: fleet)


@pytest.fixture
def acme(told: Told) -> Told:
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    return told


def states(told: Told, group: CallGroup) -> dict[str, float | None]:
    return {
        state: told.value("payment_circuit_state", provider="acme", group=group, state=state) for state in CircuitState
    }


# --- gauges


@pytest.mark.parametrize("state", list(CircuitState))
def test_a_circuit_is_one_in_its_state_and_zero_in_every_other(acme: Told, state: CircuitState) -> None:
    acme.metrics.watch_limits(watched(standing(state)))
    acme.metrics.refresh_gauges()
    assert states(acme, CallGroup.WRITE) == {each: 1 if each is state else 0 for each in CircuitState}


def test_a_circuit_that_nobody_used_yet_is_closed(acme: Told) -> None:
    acme.metrics.watch_limits(watched(standing(CircuitState.OPEN)))
    acme.metrics.refresh_gauges()
    assert states(acme, CallGroup.INQUIRY)["closed"] == 1


def test_what_is_left_and_how_full_it_is_are_shown(acme: Told) -> None:
    acme.metrics.watch_limits(watched(remaining={BudgetScope.PROVIDER: 7.5, BudgetScope.ACCOUNT: 0.0}))
    acme.metrics.refresh_gauges()
    assert acme.value("payment_retry_budget_remaining", provider="acme", scope="provider") == 7.5
    assert acme.value("payment_retry_budget_remaining", provider="acme", scope="account") == 0
    assert acme.value("payment_retry_budget_remaining", provider="acme", scope="operation") is None
    assert acme.value("paywitness_admission_limit", provider="acme") == 20
    assert acme.value("paywitness_admission_in_flight", provider="acme") == 3
    assert acme.value("paywitness_admission_waiting", provider="acme", priority="low") == 1
    assert acme.value("paywitness_admission_waiting", provider="acme", priority="high") == 0


def test_who_was_asked_to_wait_is_counted_by_kind(acme: Told) -> None:
    held = replace(standing(CircuitState.CLOSED), holds=(HoldStatus(LimitedBy.CREDENTIAL, 3, 90.0),))
    acme.metrics.watch_limits(watched(held))
    acme.metrics.refresh_gauges()
    counted = {
        (group, kind): acme.value("payment_holds", provider="acme", group=group, limited_by=kind)
        for group in CallGroup
        for kind in LimitedBy
    }
    assert counted.pop((CallGroup.WRITE, LimitedBy.CREDENTIAL)) == 3
    assert set(counted.values()) == {0}


@pytest.mark.parametrize("fleet", [True, False])
def test_whether_limits_are_the_fleets_is_shown(acme: Told, fleet: bool) -> None:
    acme.metrics.watch_limits(watched(fleet=fleet))
    acme.metrics.refresh_gauges()
    assert acme.value("paywitness_limits_fleet") == (1 if fleet else 0)


def test_before_anybody_looked_there_is_no_sample(acme: Told) -> None:
    acme.metrics.refresh_gauges()
    acme.metrics.watch_limits(watched(standing(CircuitState.OPEN)))
    text = generate_latest(acme.metrics.registry).decode()
    for name in ("payment_circuit_state", "payment_holds", "payment_retry_budget_remaining", "paywitness_limits_fleet"):
        assert f"# TYPE {name} gauge" in text
        assert f"\n{name}{{" not in text
        assert f"\n{name} " not in text


def test_a_provider_that_no_policy_named_has_no_series(acme: Told) -> None:
    crowd = AdmissionStats("made_up", 20.0, 3, 1, WAITING)
    acme.metrics.watch_limits(watched(standing(CircuitState.OPEN, provider="made_up"), crowds=(crowd,)))
    acme.metrics.refresh_gauges()
    assert b"made_up" not in generate_latest(acme.metrics.registry)


def test_limits_are_asked_by_the_look_and_never_by_the_thread_that_writes_the_scrape(acme: Told) -> None:
    asked_in: list[int] = []

    def standings() -> tuple[CircuitStatus, ...]:
        asked_in.append(threading.get_ident())
        return (standing(CircuitState.OPEN),)

    acme.metrics.watch_limits(LimitsSources(standings, lambda provider: {}, tuple, lambda: False))
    acme.metrics.refresh_gauges()
    scrape = threading.Thread(target=generate_latest, args=(acme.metrics.registry,))
    scrape.start()
    scrape.join()
    assert asked_in == [threading.get_ident()]


# --- counters and lines


@pytest.mark.parametrize("scope", list(BudgetScope))
def test_a_refused_retry_is_counted_by_the_scope_that_refused_it(acme: Told, scope: BudgetScope) -> None:
    acme.tell(RetryRefused("acme", "authorization", scope))
    labels = {**ACME, "scope": scope}
    assert acme.value("payment_retry_budget_exhausted_total", **labels) == 1
    line = acme.lines()[-1]
    assert (line["level"], line["event"], line["scope"]) == ("info", "retry_refused", scope)


@pytest.mark.parametrize("after", list(CircuitState))
def test_a_circuit_that_got_worse_is_a_warning(told: Told, after: CircuitState) -> None:
    told.tell(CircuitChanged("acme", CallGroup.WRITE, CircuitState.HALF_OPEN, after, fleet=True))
    [line] = told.lines()
    assert line["level"] == ("warning" if after in {CircuitState.OPEN, CircuitState.DEGRADED} else "info")
    assert (line["event"], line["before"], line["state"], line["fleet"]) == (
        "circuit_changed",
        "half_open",
        after,
        True,
    )


def test_who_forced_a_circuit_is_written_down(told: Told) -> None:
    told.tell(CircuitForced("acme", CallGroup.WRITE, CircuitState.OPEN, "ada", "maintenance", 900.0, confirmed=False))
    told.tell(CircuitForced("acme", CallGroup.WRITE, None, "bob", "it is over"))
    forced, released = told.lines()
    assert (forced["event"], forced["level"], forced["state"], forced["for_s"]) == (
        "circuit_forced",
        "warning",
        "open",
        900.0,
    )
    assert (forced["actor"], forced["reason"], forced["confirmed"]) == ("ada", "maintenance", False)
    assert (released["event"], released["actor"], released["confirmed"]) == ("circuit_released", "bob", True)
    assert "for_s" not in released


def test_a_journal_that_went_back_is_an_incident_of_no_provider(told: Told) -> None:
    told.tell(JournalRolledBack("another replication id"))
    assert told.value("payment_incidents_total", provider="", kind="journal_rollback") == 1
    [line] = told.lines()
    assert (line["level"], line["event"], line["detail"]) == ("error", "journal_rolled_back", "another replication id")


@pytest.mark.parametrize(
    "reason", [*CircuitRefusal, *AdmissionRefusal, *Problem, "overloaded", "draining", "journal_rolled_back"]
)
def test_every_reason_of_a_refusal_is_a_label(acme: Told, reason: str) -> None:
    acme.tell(CallRefused("acme", reason))
    assert acme.value("payment_refusals_total", provider="acme", reason=reason) == 1


def test_any_other_reason_is_other(acme: Told) -> None:
    acme.tell(CallRefused("acme", "made_up"))
    assert acme.value("payment_refusals_total", provider="acme", reason="other") == 1
