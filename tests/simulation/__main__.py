"""Play seeds: `python -m tests.simulation --seeds 1-200 --payments 1000`. Ends with 1 where a promise was broken."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import click

from tests.simulation.focus import FOCUSES
from tests.simulation.planted import bug_named, plant
from tests.simulation.planted_bugs import BUGS
from tests.simulation.report import describe
from tests.simulation.world import play

_SHOWN_EVERY_S = 1.0
_WORLDS_PER_CHILD = 8


@dataclass(frozen=True)
class Played:
    """What is told of one seed. A broken promise brings its whole report."""

    seed: int
    payments: int
    calls: int
    sends: int
    faults: int
    cpu_s: float
    broken: tuple[str, ...]  # the promises, in the order in which they were broken
    report: str


def play_one(seed: int, payments: int, first: int | None, *, between: bool, focus: str, brief: bool) -> Played:
    began_s = time.process_time()
    outcome = play(seed, payments, first, between=between, focus=focus)
    cpu_s = time.process_time() - began_s
    broken = tuple(dict.fromkeys(violation.promise for violation in outcome.violations))
    report = "" if outcome.ok or brief else describe(outcome)
    counts = (outcome.mix.payments, outcome.calls, outcome.sends, outcome.faults, cpu_s)
    return Played(seed, *counts, broken, report)


def played(
    seeds: range, payments: int, first: int | None, processes: int, *, between: bool, focus: str, brief: bool
) -> Iterator[Played]:
    """In the order of their seeds. Each child plays a few worlds and ends: what they leave behind goes with it,
    unswept, which would be a tenth of the time."""
    gc.collect()
    gc.freeze()
    one = partial(play_one, payments=payments, first=first, between=between, focus=focus, brief=brief)
    with multiprocessing.get_context("fork").Pool(processes, gc.disable, (), _WORLDS_PER_CHILD) as pool:
        yield from pool.imap(one, seeds)
        pool.close()
        pool.join()


class Progress:
    """One line, written over itself at a terminal, and every ten seconds elsewhere."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._began = time.monotonic()
        self._shown = self._began
        self._live = sys.stderr.isatty()
        self.seeds = self.payments = self.calls = self.sends = self.faults = self.broken = 0
        self.cpu_s = 0.0

    def count(self, one: Played) -> None:
        self.seeds += 1
        self.payments += one.payments
        self.calls += one.calls
        self.sends += one.sends
        self.faults += one.faults
        self.cpu_s += one.cpu_s
        self.broken += bool(one.broken)
        now = time.monotonic()
        if now - self._shown >= (_SHOWN_EVERY_S if self._live else 10 * _SHOWN_EVERY_S):
            self._shown = now
            sys.stderr.write(f"\r{self}" if self._live else f"{self}\n")
            sys.stderr.flush()

    def __str__(self) -> str:
        rate = self.payments / max(1e-9, time.monotonic() - self._began) * 60
        # Other programs slow a core down; what the worlds themselves took of it is told beside.
        of_cpu = self.payments / max(1e-9, self.cpu_s) * 60
        return (
            f"{self.seeds} of {self._seeds} seeds, {self.payments:,} payments in {self.calls:,} calls and "
            f"{self.sends:,} exchanges of which {self.faults:,} went wrong, "
            f"{rate:,.0f} payments a minute ({of_cpu:,.0f} a minute of CPU), {self.broken} with a broken promise"
        )


def seeds_in(text: str) -> range:
    """`7` or `1-200`."""
    first, _, last = text.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        raise click.BadParameter(f"found {text!r}, allowed: 7, or 1-200") from None


@click.command(help=__doc__)
@click.option("--seeds", default="1-20", show_default=True, help="One seed, or the first and the last.")
@click.option("--payments", default=1000, show_default=True, help="Orders in each world.")
@click.option("--first", type=int, help="Play only so many of them, as the whole world begins.")
@click.option("--processes", default=1, show_default=True, help="Worlds played side by side.")
@click.option(
    "--between/--plain",
    default=True,
    show_default=True,
    help="With the money between operations, in which half of the orders take several; or one call for one order.",
)
@click.option(
    "--focus", default="", type=click.Choice(["", *FOCUSES]), help="Worlds in which this enemy is certain, and alone."
)
@click.option("--brief", is_flag=True, help="One line for broken promises, without a timeline.")
@click.option("--until", multiple=True, help="End with the first seed that breaks this promise, or one of several.")
@click.option("--plant", "planted", type=click.Choice([bug.name for bug in BUGS]), help="Play with this bug planted.")
def main(
    seeds: str,
    payments: int,
    first: int | None,
    processes: int,
    between: bool,
    focus: str,
    brief: bool,
    until: tuple[str, ...],
    planted: str | None,
) -> None:
    if planted is not None:
        plant(bug_named(planted))
    chosen = seeds_in(seeds)
    progress = Progress(len(chosen))
    for one in played(chosen, payments, first, processes, between=between, focus=focus, brief=brief):
        progress.count(one)
        if one.broken:
            click.echo(f"\nseed {one.seed}: {'; '.join(one.broken)}" if brief else f"\n{one.report}")
        if not set(until).isdisjoint(one.broken):
            break
    click.echo(f"\n{progress}")
    sys.exit(1 if progress.broken else 0)


if __name__ == "__main__":
    main()
