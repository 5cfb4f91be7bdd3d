"""Mutation tests: bugs planted one at a time, each to be caught by a test that reaches it or by a simulated world.

`make mutants` goes on where the last run stopped; what is known so far is in `.mutants/results.jsonl`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import click

from tests.mutants.all_mutants import MUTANTS
from tests.mutants.hunt import Bounds, Hunted, hunted
from tests.mutants.reach import FOLDER, PRODUCT, ReachMap, load_map
from tests.mutants.results import (
    Results,
    left_to_hunt,
    product_version,
    read_caught_by,
    table_of,
    write_caught_by,
)
from tests.mutants.sessions import TestRuns
from tests.simulation.planting import Bug

CAUGHT_BY = Path(__file__).parent / "caught_by.json"


def chosen(only: str, count: int | None, mutants: Sequence[Bug] = MUTANTS) -> list[Bug]:
    """Those whose name, or the place that they change, has one of these words in it. With a count, spread over all."""
    words = [word for word in only.replace(",", " ").split() if word]
    found = [
        one
        for one in mutants
        if not words or any(word in one.name or word in one.changes[0].reference for word in words)
    ]
    return found if count is None else found[:: max(1, len(found) // count)][:count]


class Progress:
    """One line for each mutant: how far it is, what caught it, and how long the rest may take."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._done = self._survived = 0
        self._began = time.monotonic()

    def tell(self, one: Hunted) -> None:
        self._done += 1
        self._survived += not one.caught
        left_s = (time.monotonic() - self._began) / self._done * (self._count - self._done)
        caught = f"caught by {one.by}" if one.caught else str(one.ending).upper()
        click.echo(
            f"[{self._done} of {self._count}, {self._survived} alive, {left_s / 60:.0f} min left] "
            f"{one.name}: {caught} ({one.took_s:.0f} s, {one.tests} tests)"
        )
        sys.stdout.flush()


def hunt_all(mutants: Sequence[Bug], reach: ReachMap, bounds: Bounds, results: Results, processes: int) -> None:
    """Hunt them side by side. Each result is written as soon as it is known."""
    progress, version = Progress(len(mutants)), product_version(PRODUCT)
    caught_by = read_caught_by(CAUGHT_BY)
    files = sorted({test.partition("::")[0] for planted in mutants for test in reach.tests_reaching(planted)})
    idle: SimpleQueue[TestRuns] = SimpleQueue()
    for _ in range(processes):
        idle.put(TestRuns.of(files))

    def hunt(planted: Bug) -> None:
        runs = idle.get()
        try:
            one = replace(hunted(planted, reach, runs, bounds, caught_by), product=version)
        finally:
            idle.put(runs)
        results.add(one)
        progress.tell(one)

    with ThreadPoolExecutor(processes) as hunters:
        hunts = [hunters.submit(hunt, planted) for planted in mutants]
        try:
            for each in as_completed(hunts):
                each.result()
        finally:
            hunters.shutdown(cancel_futures=True)
            while not idle.empty():
                idle.get().close()


@click.command(help=__doc__)
@click.option("--only", default="", help="Mutants with one of these words in their names or places.")
@click.option("--count", type=int, help="So many of them.")
@click.option("--processes", default=1, show_default=True, help="Mutants hunted side by side.")
@click.option("--seeds", default=Bounds().seeds, show_default=True, help="Worlds for one that no test catches.")
@click.option("--again", is_flag=True, help="Also those whose result is of other code of the product.")
@click.option("--survivors", is_flag=True, help="Also those that were not caught before.")
@click.option("--new-map", is_flag=True, help="Find out anew which tests reach what.")
@click.option("--write", is_flag=True, help="Write down for the next runs which test caught which: caught_by.json.")
@click.option("--table", "only_table", is_flag=True, help="Hunt nothing; print what is known.")
def main(
    only: str,
    count: int | None,
    processes: int,
    seeds: int,
    again: bool,
    survivors: bool,
    new_map: bool,
    write: bool,
    only_table: bool,
) -> None:
    FOLDER.mkdir(exist_ok=True)
    results, mutants = Results(FOLDER / "results.jsonl"), chosen(only, count)
    if not mutants:
        raise click.BadParameter(f"no mutant has {only!r} in its name or place")
    known, version = results.read(), product_version(PRODUCT)
    left = [] if only_table else left_to_hunt(mutants, known, of_product=version if again else "", survivors=survivors)
    if left:
        click.echo(f"{len(mutants) - len(left)} of {len(mutants)} are known already; {len(left)} are hunted")
        hunt_all(left, load_map(anew=new_map), Bounds(seeds=seeds), results, processes)
        known = results.read()
    if write:
        write_caught_by(CAUGHT_BY, {one.name: known[one.name] for one in MUTANTS if one.name in known})
    click.echo(table_of(mutants, known))
    outdated = sum(known[one.name].product != version for one in mutants if one.name in known)
    if outdated:
        click.echo(f"\n{outdated} results are of other code of the product: --again hunts them anew.")
    sys.exit(1 if any(one.name in known and not known[one.name].caught for one in mutants) else 0)


if __name__ == "__main__":
    main()
