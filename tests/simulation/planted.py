"""Proof of the proof: bugs planted in the product, one at a time, each to be caught within a few seeds.

`python -m tests.simulation.planted` plays them all and prints how many seeds each took. One that survives means that a
fault or a checker is missing. Each is hunted in a process of its own, so that it never gets into another's world.
`test_planted` looks with each run of the tests whether all of them can still be planted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from tests.simulation.planted_bugs import BUGS
from tests.simulation.planting import Bug

TOP = Path(__file__).resolve().parents[2]
SEEDS_MAX = 50
PAYMENTS = 150  # a short world is a rough one: as much goes wrong in it as in a thousand payments
_CAUGHT = re.compile(r"^seed (\d+): (.+)$", re.MULTILINE)


def bug_named(name: str) -> Bug:
    """The bug of this name. Raises KeyError."""
    return {planted.name: planted for planted in BUGS}[name]


def plant(planted: Bug) -> None:
    """Plant the whole bug in this process, or raise CannotPlantError with nothing of it planted."""
    for put_in_place in [change.prepare() for change in planted.changes]:
        put_in_place()


def hunted(planted: Bug, payments: int, seeds: int, after: int = 0) -> tuple[int, str] | None:
    """How many seeds after `after` it took to catch it, and the promise that it broke. None: it survived. A promise
    that the same world breaks without the bug is not of the bug's doing, and does not count."""
    tried = 0
    while tried < seeds:
        found = _first_broken(planted, payments, after + tried, seeds - tried)
        if found is None:
            return None
        seed, broken = found
        unplanted = _played(planted, payments, seed - 1, 1, "--brief")
        before = {promise for _, promises in _broken(unplanted) for promise in promises}
        caught = [promise for promise in broken if promise not in before]
        if caught:
            return seed - after, caught[0]
        tried = seed - after
    return None


def _first_broken(planted: Bug, payments: int, after: int, seeds: int) -> tuple[int, list[str]] | None:
    """The first seed in which the bug, or the world without it, breaks what the bug is about."""
    until = [word for promise in planted.breaks for word in ("--until", promise)]
    played = _played(planted, payments, after, seeds, "--brief", "--plant", planted.name, *until)
    for seed, promises in _broken(played):
        broken = [promise for promise in promises if promise in planted.breaks]
        if broken:
            return seed, broken
    return None


def _played(planted: Bug, payments: int, after: int, seeds: int, *options: str) -> str:
    """What the worlds that this bug needs print."""
    command = [sys.executable, "-m", "tests.simulation", *_seeds(after, seeds), "--payments", str(payments)]
    environment = {**os.environ, "PYTHONPATH": f"{TOP / 'proxy'}{os.pathsep}{TOP}"}
    worlds = ("--focus", planted.focus) if planted.focus else ("--between",) if planted.between else ("--plain",)
    played = subprocess.run(
        [*command, *worlds, *options], cwd=TOP, env=environment, capture_output=True, text=True, check=False
    )
    if played.returncode not in {0, 1} or "Traceback" in played.stderr:
        raise RuntimeError(f"{planted.name}: {played.stderr[-2000:]}")
    return played.stdout


def _broken(printed: str) -> list[tuple[int, list[str]]]:
    return [(int(found.group(1)), found.group(2).split("; ")) for found in _CAUGHT.finditer(printed)]


def _seeds(after: int, count: int) -> tuple[str, str]:
    return "--seeds", f"{after + 1}-{after + count}"


@click.command(help=__doc__)
@click.option("--payments", default=PAYMENTS, show_default=True, help="Orders in each world.")
@click.option("--seeds", default=SEEDS_MAX, show_default=True, help="So many are tried at most.")
@click.option("--after", default=0, show_default=True, help="They come after this one.")
@click.option("--processes", default=1, show_default=True, help="Bugs hunted side by side.")
@click.argument("names", nargs=-1)
def main(payments: int, seeds: int, after: int, processes: int, names: tuple[str, ...]) -> None:
    chosen = [bug_named(name) for name in names] or list(BUGS)
    survived = 0
    click.echo("| bug | what it does | caught by seed, as |\n|---|---|---|")
    with ThreadPoolExecutor(processes) as hunters:
        hunts = hunters.map(lambda one: hunted(one, payments, seeds, after), chosen)
        for planted, caught in zip(chosen, hunts, strict=True):
            survived += caught is None
            told = f"{caught[0]}: {caught[1]}" if caught is not None else "SURVIVED"
            click.echo(f"| {planted.name} | {planted.what} | {told} |")
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
