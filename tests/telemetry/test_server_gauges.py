"""What the edge counts by itself is shown by a scrape, and what the journal refuses is counted as a refusal."""

from __future__ import annotations

import pytest

from paywitness.core.operation import Outcome
from paywitness.core.problems import Problem
from paywitness.server.limits_and_timeouts import CALLER_LEFT, TOO_MANY_CONNECTIONS
from paywitness.telemetry.events import CallAnswered, PolicyReloaded
from paywitness.telemetry.gauges import ServerCounters
from paywitness.telemetry.prometheus import JOURNAL_REFUSALS
from tests.telemetry.conftest import Told
from tests.telemetry.samples import ACME_NAMES


def at_the_door() -> ServerCounters:
    counters = ServerCounters(connections_open=3)
    counters.refused[Problem.PROVIDER_NOT_ALLOWED] += 2
    counters.refused[TOO_MANY_CONNECTIONS] += 1
    counters.broken[CALLER_LEFT] += 1
    return counters


def test_a_scrape_shows_what_stands_at_the_door_as_it_was_last_looked_at(told: Told) -> None:
    counters = at_the_door()
    told.metrics.watch_server(counters)
    assert told.value("paywitness_edge_connections") is None
    told.metrics.refresh_gauges()
    assert told.value("paywitness_edge_connections") == 3
    assert told.value("paywitness_edge_refusals_total", reason="provider-not-allowed") == 2
    assert told.value("paywitness_edge_refusals_total", reason="too-many-connections") == 1
    assert told.value("paywitness_edge_broken_answers_total", reason="caller-left") == 1
    counters.refused[TOO_MANY_CONNECTIONS] += 1
    assert told.value("paywitness_edge_refusals_total", reason="too-many-connections") == 1


def test_its_reasons_are_bounded(told: Told) -> None:
    counters = ServerCounters()
    counters.refused.update(f"made-up-{number}" for number in range(300))
    told.metrics.watch_server(counters)
    told.metrics.refresh_gauges()
    (family,) = [one for one in told.metrics.registry.collect() if one.name == "paywitness_edge_refusals"]
    assert len(family.samples) == 101
    assert sum(sample.value for sample in family.samples) == 300


def answered(problem: Problem | None) -> CallAnswered:
    return CallAnswered("acme", "authorization", Outcome.NONE, 409, problem, 0.1)


@pytest.mark.parametrize("problem", sorted(JOURNAL_REFUSALS))
def test_what_the_journal_refuses_is_a_refusal(told: Told, problem: Problem) -> None:
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    told.tell(answered(problem))
    assert told.value("payment_refusals_total", provider="acme", reason=problem) == 1


@pytest.mark.parametrize("problem", [None, Problem.UNKNOWN, Problem.KEY_REQUIRED, Problem.JOURNAL_UNAVAILABLE])
def test_what_was_sent_or_is_told_as_refused_is_not_counted_by_its_answer(told: Told, problem: Problem | None) -> None:
    told.tell(answered(problem))
    assert not [one for one in told.metrics.registry.collect() if one.name == "payment_refusals" and one.samples]
