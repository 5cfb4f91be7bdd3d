"""A short run of chaos over each journal, and its parts: its judge, who must find what is wrong, its failpoints, and
many callers at once. Long runs are made by `make chaos`, on a machine with nothing else to do; who is back how soon is
judged there alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chaos.chaos import Plan, wreak
from tests.chaos.duplicates import called
from tests.chaos.mishaps import Mishap
from tests.chaos.report import late, met, names_of, table_of
from tests.chaos.shop import Payment
from tests.chaos.verdict import verdict_of
from tests.chaos.world import JOURNALS, Victim, world_of
from tests.e2e.sidecar import Answer

# What is found out within seconds: nothing here ends in an error that the provider keeps, nor needs to settle.
SHORT_OF_DOUBT = (
    *("bad_chunk", "close_before_commit", "declined", "drop_after_commit", "error_503", "extra_response", "garbage"),
    *("reset_after_commit", "reset_before_commit", "reset_before_read", "slow(slow_s=0.5)", "truncated_body"),
)


@pytest.mark.slow
@pytest.mark.timeout(480)  # each start of a sidecar takes as long as the machine is busy
@pytest.mark.parametrize("journal", JOURNALS)
async def test_sidecars_and_their_store_are_killed_and_nobody_pays_twice_loses_or_waits_for_ever(
    tmp_path: Path, journal: str
) -> None:
    mishaps = ("kill", "kill_at_step", "kill_redis")
    plan = Plan(journal, "replayed", 0.0, 2, 1, 8.0, only=mishaps, faults=SHORT_OF_DOUBT, reads_faulty=0.0)
    outcome = await wreak(plan, tmp_path)
    assert not outcome.verdict.broken, outcome.report
    assert outcome.mishaps.count("kill", "kill_at_step") >= 2, outcome.report
    assert outcome.mishaps.count("kill_redis") >= (journal == "redis"), outcome.report
    assert all(mishap.back_s < math.inf for mishap in outcome.mishaps.happened), outcome.report
    assert outcome.faults.total() > 0, outcome.report


@pytest.mark.slow
async def test_a_hundred_calls_at_once_under_each_of_eight_keys_are_eight_charges_and_one_answer_each(
    tmp_path: Path,
) -> None:
    with world_of(tmp_path, "redis", "replayed", edits=()) as world:
        found = await called(world, keys=8, each=100)
    assert not found.broken, "\n".join(found.broken)
    assert [told.answers.total() for told in found.told] == [100] * 8


def test_what_is_not_back_in_time_is_told_with_what_was_heard_meanwhile() -> None:
    in_time, late_one = (
        Mishap("kill", "at random", 4.9),
        Mishap("kill", "at random", 7.6, 5.0, 1.0, "503 not_sent x 2", 2.5),
    )
    careful = Mishap("kill_redis", "away for 0 s", 7.0, 11.0)
    starved = Mishap("kill", "at random", 7.4, 5.0, 1.0, "", 2.5)
    (told,) = late([in_time, late_one, careful, starved])
    assert told == (
        "back after 7.6 s: kill (at random); ready after 1.0 s, 2.5 s without a processor, "
        "heard before: 503 not_sent x 2"
    )


def test_a_fault_is_counted_where_the_provider_says_that_it_happened() -> None:
    arrivals: list[dict[str, object]] = [
        {"method": "POST", "fault": "slow"},
        {"method": "POST", "fault": None},
        {"method": "GET", "fault": "slow"},
        {"method": "POST", "fault": "slow"},
    ]
    names = names_of(("slow(slow_s=1)", "slow(slow_s=2)", "garbage"), ("slow(slow_s=1)",))
    assert names == ["garbage", "slow", "slow, of an inquiry"]
    table = table_of({"redis none": met(arrivals)}, names)
    assert [line.split()[-1] for line in table.splitlines()] == ["none", "0", "2", "1"]


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


@pytest.mark.parametrize(
    ("script", "incident", "broken"),
    [
        ("drop_after_commit,wrong_amount", "another_amount", []),
        ("drop_after_commit,wrong_amount", "duplicate_success", ["a lie", "stuck"]),
        ("drop_after_commit", "another_amount", ["a lie"]),
    ],
)
def test_an_incident_is_excused_where_the_provider_contradicted_itself(
    script: str, incident: str, broken: list[str]
) -> None:
    payment = Payment(0, script=script, told=[told("unknown", 504)])
    verdict = verdict_of([payment], [ended(incident=incident)], Books([PAID]))  # type: ignore[arg-type]  # as above
    assert sorted(line.partition(":")[0] for line in verdict.broken) == broken


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
