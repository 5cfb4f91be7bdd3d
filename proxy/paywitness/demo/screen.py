"""The screen: live bars on a terminal, otherwise a line every two seconds, then the score. And the story of one
payment, with one line for each contestant."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paywitness.demo.clients import CURRENCY, FAULTS, JOB_RUNS, OUTAGE_S, SDK_TRIES, Contestant
from paywitness.demo.score import CallerResult, Charged, ReportedOutcome, Score
from paywitness_sandbox.messages import SandboxArrival
from paywitness_sandbox.server import Sandbox

# --- Narrative of one payment
# The story of one payment, one line for each contestant: from the provider's log, and from the operation's timeline.
# Pure.

STEPS_MAX = 4  # nobody reads more


def choose_payment(
    results: Sequence[CallerResult], arrivals: Sequence[SandboxArrival], charged_twice_elsewhere: set[str]
) -> CallerResult | None:
    """A payment that succeeded although its response was lost. Best is one that was charged twice elsewhere, and of
    those the one with the shortest story."""
    lost = lost_after_commit(arrivals)
    candidates = [
        line for line in results if line.told is ReportedOutcome.PAID and line.operation and line.order in lost
    ]
    return min(
        candidates,
        key=lambda line: (line.order not in charged_twice_elsewhere, line.attempts or 0, line.order),
        default=None,
    )


def lost_after_commit(arrivals: Sequence[SandboxArrival]) -> set[str]:
    """The orders that were charged by a request whose response was lost."""
    return {arrival.order for arrival in arrivals if arrival.order and arrival.effects and arrival.answered is None}


def provider_narrative(arrivals: Sequence[SandboxArrival], reported: ReportedOutcome, charges: int) -> str:
    """`key 1: charged but 500, then 500 again; key 2: charged and 200. Told paid; the ledger shows 2 charges.`"""
    calls = [list(group) for _, group in groupby(arrivals, key=lambda arrival: arrival.key)]
    keys = [f"key {number}: {', then '.join(map(_arrival_text, call))}" for number, call in enumerate(calls, 1)]
    return f"{'; '.join(keys)}. {_end_text(reported, charges)}"


def _arrival_text(arrival: SandboxArrival) -> str:
    answer = "no answer" if arrival.answered is None else str(arrival.answered)
    if arrival.effects:
        return f"charged {'and' if arrival.answered == 200 else 'but'} {answer}"
    return f"{answer} again" if arrival.replayed and arrival.answered is not None else answer


def journal_narrative(operation: Mapping[str, Any], reported: ReportedOutcome, charges: int) -> str:
    """`attempt 1: no answer came in time -> unknown; same key again; attempt 2: answered 200 -> succeeded.`"""
    ends = [
        (f"{entry['attempt']['detail']} -> {entry['state']}", entry["attempt"]["number"])
        for entry in operation["timeline"]
        if entry["attempt"] is not None
    ]
    groups = [(end, [number for _, number in group]) for end, group in groupby(ends, key=itemgetter(0))]
    if len(groups) > STEPS_MAX:
        between = [number for _, numbers in groups[1:-1] for number in numbers]
        groups = [groups[0], ("nothing that settles it", between), groups[-1]]
    steps = [f"{_attempts_text(numbers)}: {end}" for end, numbers in groups]
    return f"{'; same key again; '.join(steps)}. {_end_text(reported, charges)}"


def _attempts_text(numbers: Sequence[int]) -> str:
    return f"attempt {numbers[0]}" if len(numbers) == 1 else f"attempts {numbers[0]} to {numbers[-1]}"


def _end_text(reported: ReportedOutcome, charges: int) -> str:
    return f"Told {reported}; the ledger shows {charges} {'charge' if charges == 1 else 'charges'}."


# --- Screen

PLAIN_EVERY_S = 2.0
LIVE_EVERY_S = 0.1
BAR_WIDTH_MIN, BAR_WIDTH_MAX = 6, 30
WIDTH_BESIDE_BAR = 78  # of the longest line

WRONG, OPEN, RIGHT = "bold red", "bold yellow", "green"


@dataclass(slots=True)
class ContestantRun:
    """One contestant while it runs: its client, its provider, its progress."""

    contestant: Contestant
    provider: Sandbox
    log: list[CallerResult] = field(default_factory=list)

    @property
    def reported(self) -> Counter[ReportedOutcome]:
        return Counter(line.told for line in self.log)


# -- before -----------------------------------------------------------------------------------------------------------


def intro(count: int, seed: int, contestants: Sequence[Contestant]) -> Group:
    faulty = sum(FAULTS.values())
    text = Text.assemble(
        (f"{count} payments on a bad day of the provider", "bold"),
        f" (seed {seed}): {faulty} of 100 requests meet a fault, and for {OUTAGE_S:.0f} s nobody listens.\n",
        "The same payments, starting at the same moments, meeting the same faults in the same order, "
        f"{len(contestants)} ways, each at a provider of its own. An SDK tries {SDK_TRIES} times under one key; "
        f"a job whose SDK gives up runs once more ({JOB_RUNS} runs).",
    )
    descriptions = Table.grid(padding=(0, 2))
    for contestant in contestants:
        descriptions.add_row(Text(contestant.title, "bold"), contestant.description)
    return Group(text, Padding(descriptions, (1, 0, 1, 2)))


# -- meanwhile --------------------------------------------------------------------------------------------------------


async def show_progress(console: Console, runs: Sequence[ContestantRun], count: int, finished: asyncio.Event) -> None:
    """Show the progress until all are finished."""
    if not console.is_terminal:
        while not await _is_set_within(finished, PLAIN_EVERY_S):
            console.print(plain_line(runs, count), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not await _is_set_within(finished, LIVE_EVERY_S):
            live.update(live_table(runs, count, console.width), refresh=True)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def plain_line(runs: Sequence[ContestantRun], count: int) -> str:
    return " | ".join(_plain_part(run, count) for run in runs)


def _plain_part(run: ContestantRun, count: int) -> str:
    reported = ", ".join(f"{number} {outcome}" for outcome in ReportedOutcome if (number := run.reported[outcome]))
    told = f"{len(run.log)}/{count} told ({reported or 'none yet'})"
    return f"{run.contestant.title}: {told}, {len(run.provider.ledger)} charges"


def live_table(runs: Sequence[ContestantRun], count: int, width: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("", "", "told"):
        table.add_column(heading)
    for heading in (*ReportedOutcome, "charges", "twice"):
        table.add_column(heading, justify="right")
    bar_width = min(max(width - WIDTH_BESIDE_BAR, BAR_WIDTH_MIN), BAR_WIDTH_MAX)
    for run in runs:
        twice = len(run.provider.ledger.duplicates_by_order())
        table.add_row(
            Text(run.contestant.title, "bold"),
            ProgressBar(total=count, completed=len(run.log), width=bar_width),
            f"{len(run.log)}/{count}",
            *(str(run.reported[outcome]) for outcome in ReportedOutcome),
            str(len(run.provider.ledger)),
            Text(str(twice), WRONG if twice else "dim"),
        )
    return table


# -- after ------------------------------------------------------------------------------------------------------------


def final_table(runs: Sequence[ContestantRun], scores: Sequence[Score]) -> Table:
    table = Table(title="What callers were told, and what the ledgers show", title_justify="left", title_style="bold")
    table.add_column("")
    for run in runs:
        table.add_column(run.contestant.title, justify="right")
    for (reported, charged), style in ROWS.items():
        numbers = [score.cells[reported, charged] for score in scores]
        if any(numbers):
            table.add_row(f"told {reported}, {charged}", *_styled(numbers, style))
    table.add_section()
    table.add_row("Charged twice", *_styled([score.charged_twice for score in scores], WRONG))
    table.add_row("Charged but told failed", *_styled([score.charged_but_told_failed for score in scores], WRONG))
    not_charged = [score.told_paid_but_not_charged for score in scores]
    table.add_row("Told paid but not charged", *_styled(not_charged, WRONG))
    table.add_row(f"Taken too much, {CURRENCY}", *(f"{score.overcharged / 100:.2f}" for score in scores))
    table.add_section()
    table.add_row("requests at the provider", *(str(run.provider.arrivals.total) for run in runs))
    table.add_row("95% of callers knew in, s", *(f"{_percentile(run.log, 0.95):.1f}" for run in runs))
    return table


def _style(reported: ReportedOutcome, charged: Charged) -> str:
    if reported is ReportedOutcome.UNKNOWN and charged is not Charged.TWICE:
        return OPEN
    right = {
        ReportedOutcome.PAID: Charged.ONCE,
        ReportedOutcome.DECLINED: Charged.NOT,
        ReportedOutcome.FAILED: Charged.NOT,
    }
    return RIGHT if right.get(reported) is charged else WRONG


ROWS = {(reported, charged): _style(reported, charged) for reported in ReportedOutcome for charged in Charged}


def _styled(numbers: Sequence[int], style: str) -> list[Text]:
    return [Text(str(number), style if number else "dim") for number in numbers]


def _percentile(log: Sequence[CallerResult], share: float) -> float:
    times = sorted(line.took_s for line in log)
    return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0


UNKNOWN_EXPLANATION = (
    "Told unknown is an answer, not a failure: the money may have moved, so this order must not be paid another way; "
    "the same key may be repeated at any time. `paywitness ops list --doubt` lists them."
)
