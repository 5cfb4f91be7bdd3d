"""The rounds: every route at every concurrency once a round, in an order that turns from round to round.

A machine's speed drifts. Routes that take turns within a second or two see the same machine, so the ratio of one round
means something even where its absolute figures do not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.figures import DIRECT, PASS_THROUGH, PAYWITNESS, Cell
from bench.load import Job, Result
from bench.processes import (
    BenchError,
    LoadProcess,
    Started,
    start_passthrough,
    start_paywitness,
    start_provider,
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    warm_s: float
    window_s: dict[int, float]  # by concurrency


FULL = Plan(rounds=7, warm_s=0.3, window_s={1: 1.0, 64: 1.8})  # about 75 s
QUICK = Plan(rounds=3, warm_s=0.2, window_s={1: 0.5, 64: 0.8})  # about 15 s


@dataclass(frozen=True, slots=True)
class Route:
    name: str
    path: str
    process: Started

    def job(self, concurrency: int, warm_s: float, window_s: float) -> Job:
        return Job(self.process.port, self.path, self.process.pid, concurrency, warm_s, window_s)


def scratch_folder(stack: ExitStack, top: Path) -> Path:
    """Beside the journal that `make run` would keep: on the disk of the repository, never in memory."""
    home = top / ".paywitness"
    home.mkdir(mode=0o700, exist_ok=True)
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=home)))


def run(plan: Plan, top: Path, say: Say) -> list[Cell]:
    """Start everything, drive it by the plan, end everything."""
    with ExitStack() as stack:
        scratch = scratch_folder(stack, top)
        provider = start_provider(stack, top, scratch)
        routes = [
            Route(DIRECT, "/v1/charges", provider),
            Route(PASS_THROUGH, "/v1/charges", start_passthrough(stack, top, scratch, provider)),
            Route(PAYWITNESS, "/acme/v1/charges", start_paywitness(stack, top, scratch, provider)),
        ]
        load = LoadProcess(stack, top)
        for route in routes:  # imports, first connections, first pages of the journal: none of this is a clean call
            _drive(load, route, route.job(max(plan.window_s), 0.1, plan.warm_s))
        cells = []
        for number in range(plan.rounds):
            say(f"round {number + 1} of {plan.rounds}")
            turned = routes[number % len(routes) :] + routes[: number % len(routes)]
            for concurrency, window_s in plan.window_s.items():
                for route in turned:
                    result = _drive(load, route, route.job(concurrency, plan.warm_s, window_s))
                    cells.append(Cell(number, route.name, concurrency, result))
        return cells


def _drive(load: LoadProcess, route: Route, job: Job) -> Result:
    result = load.drive(job)
    if result.failed or not result.calls:
        raise BenchError(f"{route.name}: {result.failed} of {result.calls + result.failed} calls failed: no clean path")
    return result
