"""Play seeds: `python -m tests.simulation --seeds 1-200 --payments 1000`. Ends with 1 where a promise was broken."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

import click

from tests.simulation.report import describe
from tests.simulation.world import play

_SHOWN_EVERY_S = 1.0


@dataclass(frozen=True)
class Played:
    """What is told of one seed. A broken promise brings its whole report."""

    seed: int
    payments: int
    calls: int
    broken: str  # one line; empty where all was kept
    report: str


def play_one(seed: int, payments: int, *, brief: bool) -> Played:
    outcome = play(seed, payments)
    if outcome.ok:
        return Played(seed, payments, outcome.calls, "", "")
    report = "" if brief else describe(outcome)
    return Played(seed, payments, outcome.calls, str(outcome.violations[0]).strip(), report)


def played(seeds: range, payments: int, processes: int, *, brief: bool) -> Iterator[Played]:
    if processes == 1:
        for seed in seeds:
            yield play_one(seed, payments, brief=brief)
        return
    with ProcessPoolExecutor(processes) as pool:
        waiting = [pool.submit(play_one, seed, payments, brief=brief) for seed in seeds]
        for done in as_completed(waiting):
            yield done.result()


class Progress:
    """One line, written over itself at a terminal, and every ten seconds elsewhere."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._began = time.monotonic()
        self._shown = self._began
        self._live = sys.stderr.isatty()
        self.seeds = self.payments = self.calls = self.broken = 0

    def count(self, one: Played) -> None:
        self.seeds += 1
        self.payments += one.payments
        self.calls += one.calls
        self.broken += bool(one.broken)
        now = time.monotonic()
        if now - self._shown >= (_SHOWN_EVERY_S if self._live else 10 * _SHOWN_EVERY_S):
            self._shown = now
            sys.stderr.write(f"\r{self}" if self._live else f"{self}\n")
            sys.stderr.flush()

    def __str__(self) -> str:
        rate = self.payments / max(1e-9, time.monotonic() - self._began) * 60
        # Other programs slow a core down; what the worlds themselves took of it is told beside.
        of_cpu = self.payments / max(1e-9, sum(os.times()[:4])) * 60
        return (
            f"{self.seeds} of {self._seeds} seeds, {self.payments:,} payments in {self.calls:,} calls, "
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
@click.option("--processes", default=1, show_default=True, help="Worlds played side by side.")
@click.option("--brief", is_flag=True, help="One line for a broken promise, without its timeline.")
@click.option("--until-broken", is_flag=True, help="End with the first broken promise.")
def main(seeds: str, payments: int, processes: int, brief: bool, until_broken: bool) -> None:
    chosen = seeds_in(seeds)
    progress = Progress(len(chosen))
    for one in played(chosen, payments, processes, brief=brief):
        progress.count(one)
        if one.broken:
            click.echo(f"\nseed {one.seed}: {one.broken}" if brief else f"\n{one.report}")
            if until_broken:
                break
    click.echo(f"\n{progress}")
    sys.exit(1 if progress.broken else 0)


if __name__ == "__main__":
    main()
