"""`python -m bench.compare`: one run, progress on standard error, docs/comparison.md and its pictures as it goes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import aiohttp
import click
import stripe

from bench.compare.figures import Figures, figures_of
from bench.compare.kept import Measured, keep, taken_up
from bench.compare.lanes import LANES, Client, Lane
from bench.compare.peers import Peers
from bench.compare.report import Run, page, pictures
from bench.compare.scenarios import QUICK, SCENARIOS, Pace, Scenario, minutes_of, pace_for
from bench.compare.staging import Played, Say, play
from bench.compare.verdicts import aims
from bench.machine import look_at
from bench.processes import BenchError, NotMeasured
from bench.report import conditions

TOP = Path(__file__).resolve().parents[2]
KEPT = TOP / ".paywitness" / "comparison" / "figures.json"
BROKEN_OFF = (BenchError, aiohttp.ClientError, OSError, ExceptionGroup)
Named = TypeVar("Named", Lane, Scenario)


@click.command()
@click.option("--quick", is_flag=True, help="About five minutes: a first look, not for a claim.")
@click.option("--minutes", type=click.FloatRange(min=1.0), default=22.0, help="About how long.  [default: 22]")
@click.option("--only", default="", help="Only these scenarios, by name, with commas between.")
@click.option("--lanes", "lane_names", default="", help="Only these lanes, by name, with commas between.")
@click.option(
    "--docs",
    type=click.Path(path_type=Path),
    help="Where the page is written.  [default: docs; of a part: .paywitness]",
)
@click.option("--resume", is_flag=True, help="Go on with a run of the same length that was broken off.")
def main(quick: bool, minutes: float, only: str, lane_names: str, docs: Path | None, resume: bool) -> None:
    """The same faults and the same load, through Paywitness and through what else there is.

    Writes comparison.md and pictures/comparison-*.svg, after every scenario: break it off when you like, and --resume.
    The page says what is measured and how far to trust it. A first look, or a part, does not replace the page in docs.
    """
    scenarios = chosen(SCENARIOS, only)
    lanes = chosen(LANES, lane_names)
    pace = QUICK if quick else pace_for(minutes, scenarios, len(lanes))
    whole = not (quick or only or lane_names)
    folder = docs or (TOP / "docs" if whole else TOP / ".paywitness" / "comparison")
    measured = _taken_up(pace) if resume else Measured()
    stood_on = list(conditions(look_at(TOP)))
    for line in [*stood_on, f"about {minutes_of(pace, scenarios, len(lanes)):.0f} minutes"]:
        _say(line)
    peers = Peers(TOP)
    peers.fetch(_say)
    began_mono = time.monotonic()

    def run() -> Run:
        left = {one.title: "this run did not come to it" for one in scenarios if one.name not in measured.done}
        return Run(
            table={one.name: measured.table[one.name] for one in scenarios if one.name in measured.done},
            pace=pace,
            command=_command(quick, minutes, only, lane_names),
            took_minutes=(measured.took_s + time.monotonic() - began_mono) / 60,
            conditions=stood_on,
            versions={"stripe": stripe.VERSION, **peers.versions()},
            not_measured={**measured.not_measured, **left},
        )

    def after_each() -> None:
        keep(measured, pace, time.monotonic() - began_mono, KEPT)
        write(run(), folder)

    try:
        measure(measured, scenarios, lanes, pace, peers, _say, after_each)
        write(run(), folder)  # also where nothing was left to resume
    except KeyboardInterrupt:
        _say(f"broken off; what {len(measured.done)} scenarios showed is kept: --resume goes on")
        sys.exit(130)
    finally:
        _tell(run(), folder)


def _taken_up(pace: Pace) -> Measured:
    try:
        return taken_up(KEPT, pace)
    except (OSError, ValueError, KeyError) as error:
        raise click.UsageError(f"there is nothing to resume: {error}") from None


def _command(quick: bool, minutes: float, only: str, lane_names: str) -> str:
    """As it can be typed; `make compare` knows no parts."""
    if not only and not lane_names:
        return "make compare QUICK=1" if quick else f"make compare MINUTES={minutes:g}"
    parts = (("--only", only), ("--lanes", lane_names))
    words = [word for option, names in parts if names for word in (option, names)]
    return " ".join(["python -m bench.compare", *(["--quick"] if quick else [f"--minutes {minutes:g}"]), *words])


def _tell(run: Run, folder: Path) -> None:
    for aim in aims(run.table):
        click.echo(f"{aim.text}: {aim.measured or '-'}: {aim.verdict.strip('*')}")
    for title, why in run.not_measured.items():
        click.echo(f"{title}: not measured: {why}")
    if run.table:
        click.echo(f"written after {run.took_minutes:.1f} minutes: {folder / 'comparison.md'}")


def chosen(known: Sequence[Named], names: str) -> list[Named]:
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = set(wanted) - {one.name for one in known}
    if unknown:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; known: {', '.join(one.name for one in known)}")
    return [one for one in known if not wanted or one.name in wanted]


def measure(
    measured: Measured,
    scenarios: Sequence[Scenario],
    lanes: Sequence[Lane],
    pace: Pace,
    peers: Peers,
    say: Say,
    after_each: Callable[[], None],
) -> None:
    """All scenarios that are not done yet, the lanes of each in groups."""
    lanes = [lane for lane in lanes if _can_be_had(lane, peers, measured)]
    for number, scenario in enumerate(scenarios, 1):
        if scenario.name in measured.done:
            continue
        fitting = [lane for lane in lanes if lane.fits(scenario.pods)]
        row: dict[str, Figures] = {}
        at_once = scenario.lanes_at_once(pace)
        for first in range(0, len(fitting), at_once):
            group = fitting[first : first + at_once]
            say(f"scenario {number} of {len(scenarios)}, {scenario.title}: {', '.join(lane.name for lane in group)}")
            try:
                played = play(scenario, pace, group, peers, TOP, say)
            except BROKEN_OFF as error:  # what the others showed is worth keeping
                why = f"it broke off: {type(error).__name__}: {error}"
                played = Played(not_measured=dict.fromkeys((lane.title for lane in group), why))
            row.update({observed.lane.name: figures_of(observed, pace) for observed in played.observed})
            measured.not_measured.update(
                {f"{lane}, {scenario.title}": why for lane, why in played.not_measured.items()}
            )
        measured.table[scenario.name] = row
        measured.done.append(scenario.name)
        after_each()


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
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has told its background job to ignore it
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
