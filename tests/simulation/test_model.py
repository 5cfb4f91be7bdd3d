"""The lifecycle as a model: no reachable state breaks a promise, and the model sees the faults that would."""

from __future__ import annotations

import pytest

from tests.simulation.model import QUICK, SCENARIOS, explore
from tests.simulation.model_engine import Bounds
from tests.simulation.model_faults import PLANTED, Planted
from tests.simulation.model_provider import Scenario, scenario

HOOKED = scenario("reexecuted", asked=False, webhook=True)


@pytest.mark.parametrize(("one", "bounds"), QUICK, ids=[f"{one.name} {place}" for place, (one, _) in enumerate(QUICK)])
def test_no_interleaving_leads_outside_the_promises(one: Scenario, bounds: Bounds) -> None:
    explored = explore(one, bounds=bounds)
    print(f"{one.name}: {explored.states:,} states, {explored.steps:,} steps, by state {explored.ends}")
    assert explored.counterexample is None, str(explored.counterexample)
    assert explored.states > 1_000
    assert {"unknown", "succeeded", "failed"} <= explored.ends.keys()


def test_a_late_event_of_one_declined_execution_does_not_deny_another() -> None:
    explored = explore(HOOKED, bounds=Bounds(repeats=0, crashes=0))
    assert explored.counterexample is None, str(explored.counterexample)


def test_a_day_between_the_decision_and_its_record_sends_nothing_past_the_window() -> None:
    silent = scenario("reexecuted", asked=False, webhook=False)
    explored = explore(silent, bounds=Bounds(crashes=0, long_pauses=True))
    assert explored.counterexample is None, str(explored.counterexample)


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
def test_a_planted_fault_leads_to_a_counterexample(planted: Planted) -> None:
    counterexample = explore(planted.scenario, planted.core, planted.bounds).counterexample
    assert counterexample is not None
    print(counterexample)
    assert len(counterexample.steps) >= 3
    assert counterexample.steps[0].startswith("sidecar 0 claims the call")


def test_every_kind_of_contract_is_among_the_scenarios() -> None:
    kinds = {(one.contract.dedupes, one.contract.errors_under_key, one.contract.supports_inquiry) for one in SCENARIOS}
    assert len(kinds) == 8
