"""`python -m bench.compare`: one run, progress on standard error, docs/comparison.md and its pictures at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import aiohttp
import click
import stripe

from bench.compare.figures import Figures, figures_of
from bench.compare.lanes import LANES, Client, Lane
from bench.compare.peers import Peers
from bench.compare.report import Run, page, pictures
from bench.compare.scenarios import MINUTES_MIN, QUICK, SCENARIOS, Pace, Scenario, pace_for
from bench.compare.staging import Played, Say, play
from bench.compare.verdicts import aims
from bench.machine import look_at
from bench.processes import BenchError, NotMeasured
from bench.report import conditions

TOP = Path(__file__).resolve().parents[2]
BROKEN_OFF = (BenchError, aiohttp.ClientError, OSError, ExceptionGroup)
Named = TypeVar("Named", Lane, Scenario)


@dataclass(slots=True)
class Measured:
    table: dict[str, dict[str, Figures]] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)


@click.command()
@click.option("--quick", is_flag=True, help="Two to three minutes: a first look, not for a claim.")
@click.option("--minutes", type=click.FloatRange(min=MINUTES_MIN), default=30.0, help="About how long.  [default: 30]")
@click.option("--only", default="", help="Only these scenarios, by name, with commas between.")
@click.option("--lanes", "lane_names", default="", help="Only these lanes, by name, with commas between.")
@click.option("--docs", default=TOP / "docs", type=click.Path(path_type=Path), help="Where the page is written.")
def main(quick: bool, minutes: float, only: str, lane_names: str, docs: Path) -> None:
    """The same faults and the same load, through Paywitness and through what else there is.

    Writes comparison.md and pictures/comparison-*.svg; the page says what is measured and how far to trust it.
    """
    scenarios = chosen(SCENARIOS, only)
    lanes = chosen(LANES, lane_names)
    pace = QUICK if quick else pace_for(minutes, len(scenarios), len(lanes))
    began_mono = time.monotonic()
    stood_on = list(conditions(look_at(TOP)))
    for line in stood_on:
        _say(line)
    peers = Peers(TOP)
    peers.fetch(_say)
    measured = measure(scenarios, lanes, pace, peers, _say)
    run = Run(
        table=measured.table,
        pace=pace,
        command=" ".join(["make compare", *(["QUICK=1"] if quick else [f"MINUTES={minutes:g}"])]),
        took_minutes=(time.monotonic() - began_mono) / 60,
        conditions=stood_on,
        versions={"stripe": stripe.VERSION, **peers.versions()},
        not_measured=measured.not_measured,
    )
    write(run, docs)
    for aim in aims(run.table):
        click.echo(f"{aim.text}: {aim.measured}: {aim.verdict.strip('*')}")
    for title, why in run.not_measured.items():
        click.echo(f"{title}: not measured: {why}")
    click.echo(f"written: {docs / 'comparison.md'}")


def chosen(known: Sequence[Named], names: str) -> list[Named]:
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = set(wanted) - {one.name for one in known}
    if unknown:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; known: {', '.join(one.name for one in known)}")
    return [one for one in known if not wanted or one.name in wanted]


def measure(scenarios: Sequence[Scenario], lanes: Sequence[Lane], pace: Pace, peers: Peers, say: Say) -> Measured:
    """All scenarios, the lanes of each in groups."""
    measured = Measured()
    lanes = [lane for lane in lanes if _can_be_had(lane, peers, measured)]
    for number, scenario in enumerate(scenarios, 1):
        fitting = [lane for lane in lanes if lane.fits(scenario.pods)]
        row = measured.table.setdefault(scenario.name, {})
        for first in range(0, len(fitting), pace.lanes_at_once):
            group = fitting[first : first + pace.lanes_at_once]
            say(f"scenario {number} of {len(scenarios)}, {scenario.title}: {', '.join(lane.name for lane in group)}")
            try:
                played = play(scenario, pace, group, peers, TOP, say)
            except BROKEN_OFF as error:  # half an hour of the others is worth keeping
                why = f"it broke off: {type(error).__name__}: {error}"
                played = Played(not_measured=dict.fromkeys((lane.title for lane in group), why))
            row.update({observed.lane.name: figures_of(observed, pace) for observed in played.observed})
            measured.not_measured.update(
                {f"{lane}, {scenario.title}": why for lane, why in played.not_measured.items()}
            )
    return measured


def _can_be_had(lane: Lane, peers: Peers, measured: Measured) -> bool:
    if lane.client is not Client.TENACITY:
        return True  # whether its proxy starts is seen when it is started
    try:
        peers.tenacity()
    except NotMeasured as error:
        measured.not_measured[lane.title] = str(error)
        return False
    return True


def write(run: Run, docs: Path) -> None:
    folder = docs / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    (docs / "comparison.md").write_text(page(run), "utf-8")
    for name, drawn in pictures(run).items():
        (folder / name).write_text(drawn, "utf-8")


def _say(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    sys.exit(main())
