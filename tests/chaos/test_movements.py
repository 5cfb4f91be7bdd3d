"""A short run of captures and refunds over each journal, and its judge, who must find what is wrong. Long runs are made
by `make movements`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from paywitness.core.payment import Movement as PostedMovement
from paywitness.core.payment import Payment
from paywitness.core.provider_contract import OperationKind
from tests.chaos.movement_calls import SOON_KNOWN, Charge, Movement, Plan, Style, Told, drawn
from tests.chaos.movement_verdict import Kill, Totals, Verdict, judge_balances, totals_of, verdict_of
from tests.chaos.movements import move
from tests.chaos.world import JOURNALS
from tests.e2e.sidecar import Answer

# What is refused while one of its attempts is in doubt waits until "not found" has settled, for longer than this takes.
# So only captures meet faults here, those that are found out within seconds, and refunds find something captured.
SHORT = Plan(
    payments=10,
    movements=300,
    kills=2,
    faults=SOON_KNOWN,
    faulty_refunds=False,
    captured_first=True,
    first_byte_s=5,  # a busy machine makes no doubts
)


@pytest.mark.slow
@pytest.mark.timeout(480)  # each start of a sidecar takes as long as the machine is busy
@pytest.mark.parametrize("journal", JOURNALS)
async def test_captures_and_refunds_at_once_never_exceed_their_payment_nor_lose_a_remainder(
    tmp_path: Path, journal: str
) -> None:
    outcome = await move(replace(SHORT, journal=journal), tmp_path)
    assert not outcome.verdict.broken, outcome.report
    assert outcome.kills == SHORT.kills
    assert all(outcome.counted[kind, "200 succeeded"] for kind in ("capture", "refund")), outcome.report


def test_the_same_seed_draws_the_same_movements() -> None:
    first, second = drawn(SHORT), drawn(SHORT)
    assert [str(each) for charge in first for each in charge.movements] == [
        str(each) for charge in second for each in charge.movements
    ]
    moved = Counter(movement.kind for charge in first for movement in charge.movements)
    assert moved.total() == SHORT.movements
    assert set(moved) == {"capture", "refund"}


# --- The judge


def line(kind: str = "capture", amount: int = 300, key: str = "key-capture-1", name: str = "cp_1") -> dict:
    return {"kind": kind, "amount": amount, "key": key, "id": name, "charge": "ch_1"}


def ended(state: str = "succeeded", key: str = "key-capture-1", **changed: object) -> dict:
    at_rest = {"next_check_at": None, "held_until": None, "incident": None, "because": "", "kind": "capture"}
    return {"id": f"op_{key}", "client_key": key, "provider_key": key, **at_rest, "state": state, **changed}


def told(outcome: str = "succeeded", status_code: int = 200, *, key: str = "key-capture-1", name: str = "cp_1") -> Told:
    headers = {"Paywitness-Outcome": outcome, "Paywitness-Operation": f"op_{key}"}
    return Told(key, Answer(status_code, headers, f'{{"id": "ch_1", "capture": {{"id": "{name}"}}}}'.encode()))


AUTHORISED = line("authorization", 1000, "key-order-1", "ch_1")
AGAIN = "key-capture-1-1"


@pytest.mark.parametrize(
    ("lines", "operations", "answers", "broken"),
    [
        ([line()], [ended()], [told()], []),
        ([], [ended("failed")], [told("failed", 400)], []),
        ([line(), line("refund", 300, "key-refund-2", "re_1")], [ended(), ended(key="key-refund-2")], [told()], []),
        ([line(amount=1001)], [ended()], [told()], ["over the limit"]),
        ([line("refund", 1, "key-refund-2", "re_1")], [ended(key="key-refund-2")], [], ["over the limit"]),
        ([line(), line(name="cp_2")], [ended()], [told()], ["untrue"] * 3),
        ([line()], [], [], ["untrue"]),
        ([line()], [ended("failed")], [], ["untrue"]),
        ([line()], [ended("unknown")], [], ["stuck"]),
        ([line()], [ended("requires_review")], [], ["stuck"]),
        ([line()], [ended(held_until=1.0)], [told()], ["stuck"]),
        ([line()], [ended(incident="negative_remainder")], [told()], ["untrue"]),
        ([], [ended()], [], ["untrue"]),
        ([line()], [ended()], [told(name="cp_2")], ["untrue"]),
        ([line()], [ended()], [told("failed", 400)], ["untrue"]),
        ([line(), line(key=AGAIN, name="cp_2")], [ended(), ended(key=AGAIN)], [told()], ["untrue"]),
    ],
)
def test_the_judge_finds_what_is_wrong(
    lines: list[dict], operations: list[dict], answers: list[Told], broken: list[str]
) -> None:
    movement = Movement(1, "capture", 300, keys=["key-capture-1", AGAIN], told=answers)
    verdict = verdict_of([Charge(1, 1000, "ch_1", "op_1", [movement])], operations, [AUTHORISED, *lines])
    assert [wrong.partition(":")[0] for wrong in verdict.broken] == broken, verdict.broken


def test_what_is_meant_as_two_movements_may_move_twice_and_no_answer_is_anothers() -> None:
    lines = [AUTHORISED, line(), line(key=AGAIN, name="cp_2")]
    operations = [ended(), ended(key=AGAIN)]
    distinct = Movement(1, "capture", 300, style=Style.DISTINCT, keys=["key-capture-1", AGAIN], told=[told()])
    assert not verdict_of([Charge(1, 1000, "ch_1", "op_1", [distinct])], operations, lines).broken
    other = Movement(2, "capture", 300, keys=["key-capture-2"], told=[told()])
    (wrong,) = verdict_of([Charge(1, 1000, "ch_1", "op_1", [distinct, other])], operations, lines).broken
    assert "which is not its own" in wrong


@pytest.mark.parametrize(
    ("kill", "excused"), [(Kill(1, 11.0), True), (Kill(0, 11.0), False), (Kill(1, 9.0), False), (Kill(1, 13.0), False)]
)
def test_a_second_movement_is_excused_only_if_its_sidecar_was_killed_just_after_a_504(
    kill: Kill, *, excused: bool
) -> None:
    unknown = replace(told("unknown", 504), sidecar=1, at_mono=10.0)
    movement = Movement(1, "capture", 300, style=Style.FRESH_KEY, keys=["key-capture-1", AGAIN], told=[unknown])
    lines = [AUTHORISED, line(), line(key=AGAIN, name="cp_2")]
    charge = Charge(1, 1000, "ch_1", "op_1", [movement])
    verdict = verdict_of([charge], [ended(), ended(key=AGAIN)], lines, kills=[kill])
    assert (len(verdict.excused), len(verdict.untrue)) == ((1, 0) if excused else (0, 1))


def test_a_capture_that_the_provider_had_to_refuse_was_over_the_limit() -> None:
    arrival = {"path": "/v1/charges/ch_1/capture", "key": "key-capture-1", "answered": 400}
    charge = Charge(1, 1000, "ch_1", "op_1", [Movement(1, "capture", 300)])
    assert [wrong.partition(":")[0] for wrong in verdict_of([charge], [], [AUTHORISED], [arrival]).broken] == [
        "over the limit"
    ]
    charge.movements.append(Movement(2, "capture", None))
    assert not verdict_of([charge], [], [AUTHORISED], [arrival]).broken


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, 0),
        ({"captured": 301}, 1),
        ({"captured": None}, 1),
        ({"refunded": 1}, 1),
        ({"movements": (PostedMovement("op_9", OperationKind.CAPTURE, 1),)}, 1),
    ],
)
def test_the_judge_finds_a_balance_that_is_not_the_ledgers(changes: dict, broken: int) -> None:
    charge, verdict = Charge(1, 1000, "ch_1", "op_1"), Verdict()
    payment = replace(Payment("op_1", "acme", "account-1", authorised=1000, captured=300, refunded=0), **changes)
    totals = totals_of([AUTHORISED, line()])
    assert totals == {"ch_1": Totals(1000, 300, 0)}
    judge_balances([charge], {"ch_1": payment}, totals, [], verdict)
    assert len(verdict.lost) == broken
