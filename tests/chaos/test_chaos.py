"""A short run of chaos over each journal, and its judge, who must find what is wrong. How soon a sidecar is back is not
asserted here: a machine that runs other tests beside this one is slow."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chaos.chaos import Plan, wreak
from tests.chaos.duplicates import called
from tests.chaos.shop import SOON_KNOWN, Payment
from tests.chaos.verdict import verdict_of
from tests.chaos.world import Victim, world_of
from tests.e2e.sidecar import Answer


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("journal", "kinds"), [("redis", ()), ("sqlite", ("kill_at_step", "full_disk", "skew"))])
async def test_whatever_happens_to_the_processes_every_payment_is_made_once_and_told_truly(
    journal: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    plan = Plan(journal, seconds=10, kills=2, calls_a_second=8, only=kinds, faults=SOON_KNOWN)
    outcome = await wreak(plan, tmp_path)
    assert not outcome.verdict.broken, outcome.report
    assert outcome.mishaps.count("kill", "kill_at_step") >= 2
    assert outcome.payments > 10
    assert all(mishap.back_s < float("inf") for mishap in outcome.mishaps.happened), outcome.report


@pytest.mark.slow
async def test_a_hundred_calls_at_once_under_each_of_eight_keys_are_eight_charges_and_one_answer_each(
    tmp_path: Path,
) -> None:
    with world_of(tmp_path, "redis", "replayed", edits=()) as world:
        found = await called(world, keys=8, each=100)
    assert not found.broken, "\n".join(found.broken)
    assert [told.answers.total() for told in found.told] == [100] * 8


@dataclass
class Books:
    """A ledger as a test wants it."""

    entries: list[dict] = field(default_factory=list)

    def ledger(self, query: str = "") -> list[dict]:
        return self.entries


def ended(state: str = "succeeded", order: str = "order-0", **changed: object) -> dict:
    at_rest = {"id": "op_1", "guard": {"shown": order}, "next_check_at": None, "held_until": None, "incident": None}
    return {**at_rest, "state": state, **changed}


def told(outcome: str = "succeeded", status_code: int = 200, charge: str = "ch_1") -> Answer:
    return Answer(status_code, {"Paywitness-Outcome": outcome}, f'{{"id": "{charge}"}}'.encode())


PAID = {"order": "order-0", "charge": "ch_1"}


@pytest.mark.parametrize(
    ("books", "operations", "answers", "broken"),
    [
        ([PAID], [ended()], [told()], []),
        ([], [ended("failed")], [told("declined", 402)], []),
        ([PAID, PAID], [ended()], [told()], ["double effect"]),
        ([PAID, {**PAID, "order": "order-9"}], [ended()], [told()], ["double effect"]),
        ([PAID], [], [told()], ["lost"]),
        ([PAID], [ended("failed")], [told("declined", 402)], ["lost", "a lie"]),
        ([], [ended()], [told()], ["a lie", "a lie"]),
        ([PAID], [ended("unknown"), ended()], [told()], ["stuck"]),
        ([PAID], [ended("requires_review"), ended()], [told()], ["stuck"]),
        ([PAID], [ended(held_until=1.0)], [told()], ["stuck"]),
        ([PAID], [ended(incident="amount_differs")], [told()], ["a lie"]),
        ([PAID], [ended()], [told("unknown", 504)], ["stuck"]),
        ([PAID], [ended()], [told(charge="ch_2")], ["a lie"]),
    ],
)
def test_the_judge_finds_what_is_wrong(
    books: list[dict], operations: list[dict], answers: list[Answer], broken: list[str]
) -> None:
    payment = Payment(0, told=answers)
    verdict = verdict_of([payment], operations, Books(books))  # type: ignore[arg-type]  # a provider, as far as it is asked
    assert [line.partition(":")[0] for line in verdict.broken] == broken


@pytest.mark.slow
async def test_a_sidecar_meets_its_fate_at_the_step_that_was_written_and_not_again(tmp_path: Path) -> None:
    with world_of(tmp_path, "sqlite", "replayed") as world:
        (victim,) = world.sidecars
        victim.meets("claim_asked", 2, "KILL")
        assert victim.charge("first", "first").status_code == 200
        victim.charge_and_die("second", "second")
        assert (world.provider.effects("first"), world.provider.effects("second")) == (1, 0)
        assert victim.start().charge("second", "second").status_code == 200
        assert isinstance(victim, Victim)
        assert world.provider.effects("second") == 1
