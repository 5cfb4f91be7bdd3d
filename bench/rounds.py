"""The rounds: every route at every concurrency once a round, in an order that turns from round to round.

A machine's speed drifts. Routes that take turns within a second or two see the same machine, so the ratio of one round
means something even where its absolute figures do not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.capture import capture
from bench.figures import DIRECT, NGINX, PASS_THROUGH, PAYWITNESS, PAYWITNESS_REDIS, Cell
from bench.load import Job, Result
from bench.nginx import start_nginx
from bench.processes import (
    BenchError,
    LoadProcess,
    NotMeasured,
    Started,
    start_passthrough,
    start_paywitness,
    start_paywitness_on_redis,
    start_provider,
    start_redis,
)

Say = Callable[[str], None]

PATH = "/v1/charges"
PATH_OF_PAYWITNESS = "/acme/v1/charges"


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    warm_s: float
    window_s: dict[int, float]  # by concurrency
    memory_operations: int


FULL = Plan(rounds=5, warm_s=0.3, window_s={1: 0.8, 16: 1.0, 64: 1.5}, memory_operations=5000)  # about 2 minutes
QUICK = Plan(rounds=3, warm_s=0.2, window_s={1: 0.4, 16: 0.4, 64: 0.6}, memory_operations=1000)  # about 40 s


@dataclass(frozen=True, slots=True)
class Route:
    name: str
    path: str
    process: Started
    redis: Started | None = None

    def job(self, concurrency: int, warm_s: float, window_s: float) -> Job:
        beside_pid = 0 if self.redis is None else self.redis.pid
        return Job(self.process.port, self.path, self.process.pid, concurrency, warm_s, window_s, beside_pid)


@dataclass(frozen=True, slots=True)
class Run:
    cells: list[Cell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # how the routes were set up, and which could not be measured


def scratch_folder(stack: ExitStack, top: Path) -> Path:
    """Beside the journal that `make run` would keep: on the disk of the repository, never in memory."""
    home = top / ".paywitness"
    home.mkdir(mode=0o700, exist_ok=True)
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=home)))


def run(plan: Plan, top: Path, say: Say) -> Run:
    """Start everything, drive it by the plan, end everything."""
    measured = Run()
    with ExitStack() as stack:
        scratch = scratch_folder(stack, top)
        provider = start_provider(stack, top, scratch)
        routes = [
            Route(DIRECT, PATH, provider),
            Route(PASS_THROUGH, PATH, start_passthrough(stack, top, scratch, provider)),
            *_on_redis(stack, top, scratch, provider, measured.notes),
            Route(PAYWITNESS, PATH_OF_PAYWITNESS, start_paywitness(stack, top, scratch, provider)),
        ]
        load = LoadProcess(stack, top)
        for route in routes:  # imports, first connections, first pages of the journal: none of this is a clean call
            drive(load, route, route.job(max(plan.window_s), 0.1, plan.warm_s))
        for number in range(plan.rounds):
            say(f"round {number + 1} of {plan.rounds}")
            turned = routes[number % len(routes) :] + routes[: number % len(routes)]
            for concurrency, window_s in plan.window_s.items():
                for route in turned:
                    result = drive(load, route, route.job(concurrency, plan.warm_s, window_s))
                    measured.cells.append(Cell(number, route.name, concurrency, result))
    return measured


def _on_redis(stack: ExitStack, top: Path, scratch: Path, provider: Started, notes: list[str]) -> list[Route]:
    """The routes that use Redis: one Redis for both, which take turns with it."""
    try:
        redis = start_redis(stack, scratch)
    except NotMeasured as error:
        notes += [f"{name}: not measured: {error}" for name in (PAYWITNESS_REDIS, NGINX)]
        return []
    paywitness, limits = start_paywitness_on_redis(stack, top, scratch, provider, redis)
    notes.append(f"{PAYWITNESS_REDIS}: appendonly yes, appendfsync everysec, no replica; limits: {limits}")
    routes = [Route(PAYWITNESS_REDIS, PATH_OF_PAYWITNESS, paywitness, redis)]
    captured = capture(redis, paywitness, PATH_OF_PAYWITNESS)
    try:
        nginx = start_nginx(stack, scratch, provider, redis, captured)
    except NotMeasured as error:
        notes.append(f"{NGINX}: not measured: {error}")
    else:
        routes.append(Route(NGINX, PATH, nginx, redis))
    return routes


def drive(load: LoadProcess, route: Route, job: Job) -> Result:
    result = load.drive(job)
    if result.failed or not result.calls:
        share = f"{result.failed} of {result.calls + result.failed} calls failed"
        raise BenchError(f"{route.name}: {share}: no clean path\n{result.first_failed}".rstrip())
    return result
