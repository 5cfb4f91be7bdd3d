"""One sidecar and two: two that share a port (`--reuse-port`) and a Redis, beside one alone with a Redis of its own.

The kernel deals connections out by their addresses, so one of two gets more than the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import Cell, Ratio, Summary, calls_ratio, cpu_ratio, summaries
from bench.processes import LoadProcess, Started, free_port, start_paywitness, start_provider, start_redis, url_of
from bench.rounds import PATH_OF_PAYWITNESS, Plan, Route, Say, drive, scratch_folder

CONCURRENCY = 64
ONE, TWO = "one sidecar", "two on a shared port"
_COUNTS = {ONE: 1, TWO: 2}
_WARM_S, _WINDOW_S, _FIRST_S = 0.3, 1.2, 0.5


@dataclass(slots=True)
class Measured:
    rounds: int
    routes: dict[str, Summary] = field(default_factory=dict)
    calls: Ratio = Ratio(0.0, 0.0, 0.0)  # of two over one
    cpu: Ratio = Ratio(0.0, 0.0, 0.0)


def measure(plan: Plan, top: Path, say: Say) -> Measured:
    cells = []
    with ExitStack() as stack:
        scratch = scratch_folder(stack, top)
        provider = start_provider(stack, top, scratch)
        routes = [_route(stack, top, scratch, provider, name) for name in _COUNTS]
        load = LoadProcess(stack, top)
        for route in routes:
            drive(load, route, route.job(CONCURRENCY, 0.1, _FIRST_S))
        for number in range(plan.side_rounds):
            say(f"one sidecar and two: round {number + 1} of {plan.side_rounds}")
            for route in routes[:: -1 if number % 2 else 1]:
                result = drive(load, route, route.job(CONCURRENCY, _WARM_S, _WINDOW_S))
                cells.append(Cell(number, route.name, CONCURRENCY, result))
    return Measured(plan.side_rounds, summaries(cells), calls_ratio(cells, TWO, ONE), cpu_ratio(cells, TWO, ONE))


def lines(measured: Measured) -> Iterator[str]:
    yield (
        f"One sidecar and two on Redis, {CONCURRENCY} concurrent (medians of {measured.rounds} rounds in turns; "
        "CPU and memory of both together)"
    )
    columns = "  {:<24}{:>9}{:>9}{:>10}{:>9}{:>9}{:>9}"
    yield columns.format("", "calls/s", "CPU us", "Redis us", "p50 ms", "p99 ms", "RSS MB")
    for name, route in measured.routes.items():
        figures = (route.calls_per_s, route.cpu_us, route.redis_us)
        waits = (f"{route.p50_ms:.2f}", f"{route.p99_ms:.2f}")
        yield columns.format(name, *(f"{figure:.0f}" for figure in figures), *waits, f"{route.rss_mb:.0f}")
    yield f"  two over one: calls/s x {measured.calls.median:.2f}, CPU a call x {measured.cpu.median:.2f}"


def _route(stack: ExitStack, top: Path, scratch: Path, provider: Started, name: str) -> Route:
    folder = scratch / name.replace(" ", "-")
    folder.mkdir()
    redis = start_redis(stack, folder)
    port = free_port()
    started = [
        start_paywitness(
            stack,
            top,
            folder,
            provider,
            redis=redis,
            limits=url_of(redis),
            port=port,
            options=["--reuse-port"],
        )
        for _ in range(_COUNTS[name])
    ]
    return Route(name, PATH_OF_PAYWITNESS, started[0], redis, tuple(started[1:]))
