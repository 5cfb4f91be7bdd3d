"""The screen: live bars where there is a terminal, a line every two seconds where there is none, and the verdict."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from proxy.demo.lanes import JOB_RUNS, SDK_TRIES, Lane
from proxy.demo.verdict import Answered, Charged, Told, Verdict
from proxy.demo.weather import CURRENCY, FAULTS, OUTAGE_S
from proxy.sandbox.server import Sandbox

PLAIN_EVERY_S = 2.0
LIVE_EVERY_S = 0.1
BAR_WIDTH_MIN, BAR_WIDTH_MAX = 6, 30
WIDTH_BESIDE_BAR = 78  # of the longest line

WRONG, OPEN, RIGHT = "bold red", "bold yellow", "green"


@dataclass(slots=True)
class Act:
    """One lane as it runs: who pays, at which provider, and how far it got."""

    lane: Lane
    provider: Sandbox
    log: list[Answered] = field(default_factory=list)

    @property
    def told(self) -> Counter[Told]:
        return Counter(line.told for line in self.log)


# -- before -----------------------------------------------------------------------------------------------------------


def opening(count: int, seed: int, lanes: Sequence[Lane]) -> Group:
    faulty = sum(FAULTS.values())
    text = Text.assemble(
        (f"{count} payments on a bad day of the provider", "bold"),
        f" (seed {seed}): {faulty} of 100 requests meet a fault, and for {OUTAGE_S:.0f} s nobody listens.\n",
        "The same payments, starting at the same moments, meeting the same faults in the same order, "
        f"{len(lanes)} ways, each at a provider of its own. An SDK tries {SDK_TRIES} times under one key; "
        f"a job whose SDK gives up runs once more ({JOB_RUNS} runs).",
    )
    ways = Table.grid(padding=(0, 2))
    for lane in lanes:
        ways.add_row(Text(lane.title, "bold"), lane.how)
    return Group(text, Padding(ways, (1, 0, 1, 2)))


# -- meanwhile --------------------------------------------------------------------------------------------------------


async def follow(console: Console, acts: Sequence[Act], count: int, over: asyncio.Event) -> None:
    """Show how it goes until it is over."""
    if not console.is_terminal:
        while not await _passed(over, PLAIN_EVERY_S):
            console.print(plain_line(acts, count), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not await _passed(over, LIVE_EVERY_S):
            live.update(live_table(acts, count, console.width), refresh=True)


async def _passed(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def plain_line(acts: Sequence[Act], count: int) -> str:
    return " | ".join(_plain_part(act, count) for act in acts)


def _plain_part(act: Act, count: int) -> str:
    told = ", ".join(f"{number} {word}" for word in Told if (number := act.told[word]))
    return f"{act.lane.title}: {len(act.log)}/{count} told ({told or 'none yet'}), {len(act.provider.ledger)} charges"


def live_table(acts: Sequence[Act], count: int, width: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("", "", "told"):
        table.add_column(heading)
    for heading in (*Told, "charges", "twice"):
        table.add_column(heading, justify="right")
    bar_width = min(max(width - WIDTH_BESIDE_BAR, BAR_WIDTH_MIN), BAR_WIDTH_MAX)
    for act in acts:
        twice = len(act.provider.ledger.duplicates_by_order())
        table.add_row(
            Text(act.lane.title, "bold"),
            ProgressBar(total=count, completed=len(act.log), width=bar_width),
            f"{len(act.log)}/{count}",
            *(str(act.told[word]) for word in Told),
            str(len(act.provider.ledger)),
            Text(str(twice), WRONG if twice else "dim"),
        )
    return table


# -- after ------------------------------------------------------------------------------------------------------------


def final_table(acts: Sequence[Act], verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="What callers were told, and what the ledgers show", title_justify="left", title_style="bold")
    table.add_column("")
    for act in acts:
        table.add_column(act.lane.title, justify="right")
    for (told, charged), style in ROWS.items():
        numbers = [verdict.cells[told, charged] for verdict in verdicts]
        if any(numbers):
            table.add_row(f"told {told}, {charged}", *_styled(numbers, style))
    table.add_section()
    table.add_row("Charged twice", *_styled([verdict.charged_twice for verdict in verdicts], WRONG))
    table.add_row("Charged but told failed", *_styled([verdict.charged_but_told_failed for verdict in verdicts], WRONG))
    not_charged = [verdict.told_paid_but_not_charged for verdict in verdicts]
    table.add_row("Told paid but not charged", *_styled(not_charged, WRONG))
    table.add_row(f"Taken too much, {CURRENCY}", *(f"{verdict.overcharged / 100:.2f}" for verdict in verdicts))
    table.add_section()
    table.add_row("requests at the provider", *(str(act.provider.arrivals.total) for act in acts))
    table.add_row("95% of callers knew in, s", *(f"{_percentile(act.log, 0.95):.1f}" for act in acts))
    return table


def _style(told: Told, charged: Charged) -> str:
    if told is Told.UNKNOWN and charged is not Charged.TWICE:
        return OPEN
    right = {Told.PAID: Charged.ONCE, Told.DECLINED: Charged.NOT, Told.FAILED: Charged.NOT}
    return RIGHT if right.get(told) is charged else WRONG


ROWS = {(told, charged): _style(told, charged) for told in Told for charged in Charged}


def _styled(numbers: Sequence[int], style: str) -> list[Text]:
    return [Text(str(number), style if number else "dim") for number in numbers]


def _percentile(log: Sequence[Answered], share: float) -> float:
    times = sorted(line.took_s for line in log)
    return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0


UNKNOWN_MEANS = (
    "Told unknown is an answer, not a failure: the money may have moved, so this order must not be paid another way; "
    "the same key may be repeated at any time. `paywitness ops list --doubt` lists them."
)
