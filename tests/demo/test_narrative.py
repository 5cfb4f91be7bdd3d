"""One payment in words, and the table: only what the logs, the timeline and the verdict say."""

from __future__ import annotations

import asyncio
from io import StringIO

from rich.console import Console

from paywitness.demo.clients import Contestant
from paywitness.demo.score import CallerResult, ReportedOutcome, score_payments
from paywitness.demo.screen import (
    ContestantRun,
    choose_payment,
    final_table,
    intro,
    journal_narrative,
    live_table,
    plain_line,
    provider_narrative,
    show_progress,
)
from paywitness_sandbox.bank.ledger import EntryKind
from paywitness_sandbox.messages import SandboxArrival
from paywitness_sandbox.server import Sandbox


def arrival(
    key: str, answered: int | None, *, effects: int = 0, replayed: bool = False, order: str = "a"
) -> SandboxArrival:
    return SandboxArrival(1, 0.0, "POST", "/", key, order, answered=answered, effects=effects, replayed=replayed)


def carried(order: str, attempts: int, told: ReportedOutcome = ReportedOutcome.PAID) -> CallerResult:
    return CallerResult(order, told, 1, 1, 0.1, f"op_{order}", attempts)


# -- the chosen payment


def test_the_chosen_payment_was_lost_here_charged_twice_elsewhere_and_is_soon_told() -> None:
    lost = [arrival("k", None, effects=1, order=order) for order in "abcd"]
    log = [carried("a", 2), carried("b", 9), carried("c", 3), carried("d", 2, ReportedOutcome.UNKNOWN), carried("e", 2)]
    assert choose_payment(log, lost, {"b", "c", "d", "e"}) == carried("c", 3)
    assert choose_payment(log, lost, set()) == carried("a", 2)


def test_no_payment_is_chosen_where_no_answer_was_lost() -> None:
    assert choose_payment([carried("a", 2)], [arrival("k", 200, effects=1)], {"a"}) is None


def test_the_providers_side_is_told_key_by_key() -> None:
    arrivals = [
        arrival("k1", 500, effects=1),
        arrival("k1", 500, replayed=True),
        arrival("k1", None),
        arrival("k2", 200, effects=1),
    ]
    assert provider_narrative(arrivals, ReportedOutcome.PAID, 2) == (
        "key 1: charged but 500, then 500 again, then no answer; key 2: charged and 200. "
        "Told paid; the ledger shows 2 charges."
    )


def test_the_timeline_is_told_attempt_by_attempt() -> None:
    operation = {
        "timeline": [
            {"attempt": None, "state": "sending"},
            {"attempt": {"number": 1, "detail": "no answer came in time"}, "state": "unknown"},
            {"attempt": {"number": 2, "detail": "refused"}, "state": "unknown"},
            {"attempt": None, "state": "unknown"},
            {"attempt": {"number": 3, "detail": "refused"}, "state": "unknown"},
            {"attempt": {"number": 4, "detail": "answered 200"}, "state": "succeeded"},
        ]
    }
    assert journal_narrative(operation, ReportedOutcome.PAID, 1) == (
        "attempt 1: no answer came in time -> unknown; same key again; attempts 2 to 3: refused -> unknown; "
        "same key again; attempt 4: answered 200 -> succeeded. Told paid; the ledger shows 1 charge."
    )


def test_a_long_timeline_is_cut_in_its_middle() -> None:
    details = ["lost", "refused", "refused", "reset", "lost", "answered 200"]
    attempts = [{"number": number, "detail": detail} for number, detail in enumerate(details, 1)]
    operation = {"timeline": [{"attempt": attempt, "state": "unknown"} for attempt in attempts]}
    assert journal_narrative(operation, ReportedOutcome.PAID, 1).startswith(
        "attempt 1: lost -> unknown; same key again; attempts 2 to 5: nothing that settles it; same key again; "
        "attempt 6: answered 200 -> unknown. "
    )


# -- the screen


def act_of(*told: ReportedOutcome, charges: tuple[str, ...] = ()) -> ContestantRun:
    provider = Sandbox()
    for number, order in enumerate(charges):
        name = f"ch_{number}"
        provider.ledger.write(
            EntryKind.CHARGE, at=0.0, id=name, charge=name, key=None, order=order, amount=1999, currency="EUR"
        )
    lane = Contestant("x", "One way", "how it goes", "http://127.0.0.1:1", 1.0)
    return ContestantRun(
        lane, provider, [CallerResult(f"o{number}", word, 1, 1, 0.5) for number, word in enumerate(told)]
    )


def printed(renderable: object) -> str:
    file = StringIO()
    Console(file=file, width=80).print(renderable)
    return file.getvalue()


def numbers_in(text: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in text.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in rows}


def test_the_table_prints_what_the_verdict_counted() -> None:
    acts = [
        act_of(ReportedOutcome.PAID, ReportedOutcome.FAILED, ReportedOutcome.PAID, charges=("o0", "o0", "o1")),
        act_of(ReportedOutcome.PAID, ReportedOutcome.UNKNOWN, ReportedOutcome.DECLINED, charges=("o0", "o1")),
    ]
    verdicts = [score_payments(act.log, act.provider.ledger.entries) for act in acts]
    assert numbers_in(printed(final_table(acts, verdicts))) == {
        "told paid, not charged": ["1", "0"],
        "told paid, charged once": ["0", "1"],
        "told paid, charged twice": ["1", "0"],
        "told declined, not charged": ["0", "1"],
        "told failed, charged once": ["1", "0"],
        "told unknown, charged once": ["0", "1"],
        "Charged twice": ["1", "0"],
        "Charged but told failed": ["1", "0"],
        "Told paid but not charged": ["1", "0"],
        "Taken too much, EUR": ["19.99", "0.00"],
        "requests at the provider": ["0", "0"],
        "95% of callers knew in, s": ["0.5", "0.5"],
    }


def test_progress_fits_a_terminal_of_eighty_columns() -> None:
    acts = [act_of(ReportedOutcome.PAID, ReportedOutcome.UNKNOWN, charges=("o0",))] * 3
    lines = printed(live_table(acts, 1000, 80)).splitlines()
    assert len(lines) == 4
    assert lines[1].split()[-7:] == ["2/1000", "1", "0", "0", "1", "1", "0"]


async def test_progress_without_a_terminal_is_plain_lines(monkeypatch) -> None:
    monkeypatch.setattr("paywitness.demo.screen.PLAIN_EVERY_S", 0.01)
    file, over = StringIO(), asyncio.Event()
    act = act_of(ReportedOutcome.PAID, charges=("o0",))
    asyncio.get_running_loop().call_later(0.05, over.set)
    await show_progress(Console(file=file, width=80), [act], 2, over)
    assert set(file.getvalue().splitlines()) == {plain_line([act], 2)}
    assert plain_line([act], 2) == "One way: 1/2 told (1 paid), 1 charges"


def test_the_opening_says_in_which_ways_it_is_paid() -> None:
    text = printed(intro(100, 7, [act_of().contestant]))
    assert "100 payments" in text
    assert "seed 7" in text
    assert "how it goes" in text
