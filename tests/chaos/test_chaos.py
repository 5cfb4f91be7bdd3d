"""The parts of chaos: its judge, who must find what is wrong, its failpoints, and many callers at once. Whole runs are
made by `make chaos`, on a machine with nothing else to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chaos.duplicates import called
from tests.chaos.shop import Payment
from tests.chaos.verdict import verdict_of
from tests.chaos.world import Victim, world_of
from tests.e2e.sidecar import Answer


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
