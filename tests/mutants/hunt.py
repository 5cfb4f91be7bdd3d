"""One mutant hunted: by the tests that reach it, then by all other such tests, then by short simulated worlds.

Each look is a process of its own. The first thing that fails ends it, if it does not fail without the mutant too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tests.mutants.reach import TOP, ReachMap, bounded, environment, in_order
from tests.mutants.sessions import OutOfTimeError, TestRuns
from tests.simulation.planting import Bug


class Ending(StrEnum):
    CAUGHT_BY_TEST = "test"
    CAUGHT_BY_WORLD = "world"
    SURVIVED = "survived"
    OUT_OF_TIME = "out of time"


@dataclass(frozen=True)
class Bounds:
    """How much is tried on one mutant."""

    tests: int = 300  # the first look: one of each file that reaches it, and so on
    tests_s: float = 15.0
    more_tests: int = 400  # the second one
    more_tests_s: float = 10.0
    seeds: int = 50
    payments: int = 40
    mutant_s: float = 900.0  # all of it, by the clock on the wall


@dataclass(frozen=True)
class Hunted:
    name: str
    ending: Ending
    by: str  # the test, or the seed and the promise
    tests: int  # that were run
    took_s: float
    product: str = ""  # a hash of the code that it was planted in

    @property
    def caught(self) -> bool:
        return self.ending in {Ending.CAUGHT_BY_TEST, Ending.CAUGHT_BY_WORLD}


def hunted(
    planted: Bug, reach: ReachMap, runs: TestRuns, bounds: Bounds = Bounds(), caught_by: Mapping[str, str] = {}
) -> Hunted:
    """What catches the mutant. `caught_by`: the tests that have caught mutants before, which are tried first."""
    tests = reach.tests_reaching(planted)
    order = in_order(tests, [_place_of(change.reference) for change in planted.changes])
    order.sort(key=lambda test: test != caught_by.get(planted.name))
    first = list(bounded(order, tests, bounds.tests, bounds.tests_s))
    rest = list(bounded(order[len(first) :], tests, bounds.more_tests, bounds.more_tests_s))
    began, run = time.monotonic(), 0

    def ended(ending: Ending, by: str = "") -> Hunted:
        return Hunted(planted.name, ending, by, run, round(time.monotonic() - began, 1))

    try:
        for some in (first, rest):
            ends_at = began + bounds.mutant_s
            failing, count = _failing_test(planted, some, runs, ends_at)
            run += count
            if failing is not None:
                return ended(Ending.CAUGHT_BY_TEST, failing)
        broken = _broken_world(planted, bounds, began + bounds.mutant_s)
    except OutOfTimeError:
        return ended(Ending.OUT_OF_TIME)
    return ended(Ending.CAUGHT_BY_WORLD, broken) if broken is not None else ended(Ending.SURVIVED)


def _place_of(reference: str) -> str:
    """The module and what is in it, without a class: `paywitness.engine.calls.gate.Gate.admit` is in `gate`."""
    parts = reference.split(".")
    return ".".join(part for part in parts if not part[0].isupper())


def _failing_test(planted: Bug, tests: list[str], runs: TestRuns, ends_at: float) -> tuple[str | None, int]:
    """The first test that fails with the mutant and passes without it, and how many were run."""
    run, left = 0, tests
    while left:
        failed, passed = runs.run(left, planted.name, ends_at - time.monotonic())
        run += passed + len(failed)
        if not failed:
            return None, run
        if not runs.run(failed, "", ends_at - time.monotonic())[0]:
            return failed[0], run
        left = [test for test in left if test not in failed]
    return None, run


def _broken_world(planted: Bug, bounds: Bounds, ends_at: float) -> str | None:
    """The seed and the promises that are broken with the mutant and kept without it."""
    for between in ("--plain", "--between"):
        after = 0
        while after < bounds.seeds // 2:
            sizes = ("--payments", str(bounds.payments), between)
            seed, broken = _world(planted.name, after + 1, bounds.seeds // 2, sizes, ends_at)
            if not seed:
                break
            _, before = _world("", seed, seed, sizes, ends_at)
            if new := [promise for promise in broken if promise not in before]:
                return f"seed {seed} {between[2:]}: {'; '.join(new)}"
            after = seed
    return None


def _world(mutant: str, first: int, last: int, sizes: tuple[str, ...], ends_at: float) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "tests.mutants.planted_world", "--seeds", f"{first}-{last}", *sizes]
    ended = _ended([*command, *(["--mutant", mutant] if mutant else [])], ends_at)
    if ended.returncode != 0:
        raise RuntimeError(f"{mutant}: {(ended.stdout + ended.stderr)[-2000:]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    return found["seed"], found["broken"]


def _ended(command: list[str], ends_at: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=TOP,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=max(1.0, ends_at - time.monotonic()),
        )
    except subprocess.TimeoutExpired:
        raise OutOfTimeError from None
