"""A thousand connections: each is kept, and calls again so long after its answer, as those of a fleet of services do.

Without the pause a thousand calls would be under way at once, and Paywitness refuses that for the provider's sake
(docs/circuits.md): that is no clean path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import DIRECT, PASS_THROUGH, PAYWITNESS, PAYWITNESS_REDIS, Cell, Summary, summaries
from bench.processes import (
    LoadProcess,
    NotMeasured,
    Started,
    start_passthrough,
    start_paywitness,
    start_paywitness_on_redis,
    start_provider,
    start_redis,
)
from bench.rounds import PATH, PATH_OF_PAYWITNESS, Route, Say, Turns, plain_routes, scratch_folder

CONNECTIONS = 1000
PAUSE_S = 5.0  # so 200 calls a second, which leaves room to whatever else the machine does
_WARM_S, _WINDOW_S = 2.0, 4.0
_FIRST_CALLERS, _FIRST_S = 16, 0.5


@dataclass(slots=True)
class Measured:
    routes: dict[str, Summary] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def measure(top: Path, say: Say) -> Measured:
    measured = Measured()
    cells = []
    with ExitStack() as stack:
        scratch = scratch_folder(stack, top)
        provider = start_provider(stack, top, scratch)
        routes = [
            Route(DIRECT, PATH, provider),
            Route(PASS_THROUGH, PATH, start_passthrough(stack, top, scratch, provider)),
            *plain_routes(stack, top, scratch, provider, measured.notes, say),
            Route(PAYWITNESS, PATH_OF_PAYWITNESS, start_paywitness(stack, top, scratch, provider)),
            *_on_redis(stack, top, scratch, provider, measured.notes),
        ]
        turns = Turns(LoadProcess(stack, top), routes, measured.notes, needed=())
        for route in tuple(routes):
            turns.drive(route, route.job(_FIRST_CALLERS, 0.1, _FIRST_S))
        for route in tuple(routes):
            say(f"{CONNECTIONS} connections: {route.name}")
            result = turns.drive(route, route.job(CONNECTIONS, _WARM_S, _WINDOW_S, PAUSE_S))
            if result is not None:
                cells.append(Cell(0, route.name, CONNECTIONS, result))
    measured.routes = summaries(cells)
    return measured


def lines(measured: Measured) -> Iterator[str]:
    yield f"{CONNECTIONS} connections, each calling again {PAUSE_S:g} s after its answer"
    columns = "  {:<24}{:>9}{:>9}{:>10}{:>9}{:>9}{:>9}"
    yield columns.format("", "calls/s", "CPU us", "Redis us", "p50 ms", "p99 ms", "RSS MB")
    for name, route in measured.routes.items():
        cpu, resident = ("", "") if name == DIRECT else (f"{route.cpu_us:.0f}", f"{route.rss_mb:.0f}")
        redis = f"{route.redis_us:.0f}" if route.redis_us else ""
        waits = (f"{route.p50_ms:.2f}", f"{route.p99_ms:.2f}")
        yield columns.format(name, f"{route.calls_per_s:.0f}", cpu, redis, *waits, resident).rstrip()
    yield from (f"  {note}" for note in measured.notes)


def _on_redis(stack: ExitStack, top: Path, scratch: Path, provider: Started, notes: list[str]) -> list[Route]:
    try:
        redis = start_redis(stack, scratch)
    except NotMeasured as error:
        notes.append(f"{PAYWITNESS_REDIS}: not measured: {error}")
        return []
    started, _ = start_paywitness_on_redis(stack, top, scratch, provider, redis)
    return [Route(PAYWITNESS_REDIS, PATH_OF_PAYWITNESS, started, redis)]
