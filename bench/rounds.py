"""The rounds: every route at every concurrency once a round, in an order that turns from round to round.

A machine's speed drifts. Routes that take turns within a second or two see the same machine, so the ratio of one round
means something even where its absolute figures do not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.capture import capture
from bench.figures import DIRECT, NGINX, OURS, PASS_THROUGH, PAYWITNESS, PAYWITNESS_REDIS, PLAIN, Cell
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
from bench.proxies import fetched, start_proxies, versions_of

Say = Callable[[str], None]

PATH = "/v1/charges"
PATH_OF_PAYWITNESS = "/acme/v1/charges"
_FIRST_S = 0.5
_LONGER = (1, 4, 16)


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    warm_s: float
    window_s: dict[int, float]  # by concurrency
    memory_operations: int
    side_rounds: int = 1  # of the smaller tables


FULL = Plan(rounds=5, warm_s=0.2, window_s={1: 0.3, 16: 0.4, 64: 0.8}, memory_operations=5000, side_rounds=3)
QUICK = Plan(rounds=2, warm_s=0.2, window_s={1: 0.3, 16: 0.3, 64: 0.6}, memory_operations=1000)


@dataclass(frozen=True, slots=True)
class Route:
    name: str
    path: str
    process: Started
    redis: Started | None = None
    also: tuple[Started, ...] = ()  # sidecars that share its port
    roots: str = ""  # of whoever is called by TLS

    def job(self, concurrency: int, warm_s: float, window_s: float, pause_s: float = 0.0) -> Job:
        return Job(
            self.process.port,
            self.path,
            self.process.pid,
            concurrency,
            warm_s,
            window_s,
            beside_pid=0 if self.redis is None else self.redis.pid,
            also_pids=tuple(one.pid for one in self.also),
            pause_s=pause_s,
            roots=self.roots,
        )


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
            *plain_routes(stack, top, scratch, provider, measured.notes, say),
            *_on_redis(stack, top, scratch, provider, measured.notes),
            Route(PAYWITNESS, PATH_OF_PAYWITNESS, start_paywitness(stack, top, scratch, provider)),
        ]
        turns = Turns(LoadProcess(stack, top), routes, measured.notes)
        for route in tuple(routes):  # imports, first connections, first pages of the journal: none is a clean call
            turns.drive(route, route.job(max(plan.window_s), 0.1, _FIRST_S))
        for number, turned in turns.rounds(plan.rounds, "round", say):
            for concurrency, window_s in plan.window_s.items():
                for route in turned:
                    result = turns.drive(route, route.job(concurrency, plan.warm_s, window_s))
                    if result is not None:
                        measured.cells.append(Cell(number, route.name, concurrency, result))
    return measured


def plain_routes(
    stack: ExitStack, top: Path, scratch: Path, provider: Started, notes: list[str], say: Say
) -> list[Route]:
    peers = fetched(top, say)
    started, missing = start_proxies(PLAIN, stack, scratch, provider, peers)
    notes += [f"plain proxies, one process and one worker each: {versions_of(peers)}", *missing]
    return [Route(name, PATH, process) for name, process in started.items()]


@dataclass(frozen=True, slots=True)
class Turns:
    """Routes that take turns. One that fails a call has no clean path: it is left out, and a note says why. Without one
    that is needed there is nothing to say: that ends the run."""

    load: LoadProcess
    routes: list[Route]
    notes: list[str]
    needed: tuple[str, ...] = (DIRECT, PASS_THROUGH, *OURS)

    def rounds(self, count: int, what: str, say: Say) -> Iterator[tuple[int, Sequence[Route]]]:
        for number in range(count):
            say(f"{what} {number + 1} of {count}")
            first = number % len(self.routes)
            yield number, (*self.routes[first:], *self.routes[:first])

    def drive(self, route: Route, job: Job) -> Result | None:
        if route not in self.routes:
            return None
        try:
            return drive(self.load, route, job)
        except BenchError as error:
            if route.name in self.needed:
                raise
            self.routes.remove(route)
            why, *answer = str(error).removeprefix(f"{route.name}: ").splitlines()
            self.notes.append(f"{route.name}: not measured: {', '.join([why, *answer[:1]])}")  # its status line
            return None


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
    for longer in _LONGER:  # a machine that is busy elsewhere may not have come to it
        window_s = longer * job.window_s
        result = load.drive(replace(job, window_s=window_s))
        if result.calls or result.failed:
            break
    else:
        raise BenchError(f"{route.name}: no call ended within {window_s:g} s")
    if result.failed:
        share = f"{result.failed} of {result.calls + result.failed} calls failed"
        raise BenchError(f"{route.name}: {share}: no clean path\n{result.first_failed}".rstrip())
    return result
