"""Start-up: from the start of a process until it takes calls, and what of it is loading Python's modules.

Ours is there when its `/readyz` says so; the others when they take connections, for they say nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.compare.peers import Peers
from bench.figures import PASS_THROUGH, PAYWITNESS, PAYWITNESS_REDIS, PLAIN
from bench.processes import (
    NotMeasured,
    Started,
    start_passthrough,
    start_paywitness,
    start_provider,
    start_redis,
    url_of,
)
from bench.proxies import fetched, start_proxies
from bench.rounds import Plan, Say, scratch_folder

_IMPORTS = {PASS_THROUGH: "bench.passthrough", PAYWITNESS: "paywitness.cli.run"}  # commands are loaded when asked for
_TIMED = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"


@dataclass(slots=True)
class Measured:
    starts: int
    ready_ms: dict[str, float] = field(default_factory=dict)  # medians
    imports_ms: dict[str, float] = field(default_factory=dict)  # of what Python loads before it does anything
    notes: list[str] = field(default_factory=list)


def measure(plan: Plan, top: Path, say: Say) -> Measured:
    measured = Measured(plan.side_rounds)
    took_s: dict[str, list[float]] = {}
    imports_s: dict[str, list[float]] = {}
    with ExitStack() as stack:
        scratch = scratch_folder(stack, top)
        provider = start_provider(stack, top, scratch)
        for number in range(plan.side_rounds):
            say(f"start-up: round {number + 1} of {plan.side_rounds}")
            for name in (PASS_THROUGH, *PLAIN, PAYWITNESS, PAYWITNESS_REDIS):
                folder = scratch / f"{number}-{name}"
                folder.mkdir()
                try:
                    took_s.setdefault(name, []).append(_started_s(name, top, folder, provider, fetched(top, say)))
                except NotMeasured as error:
                    measured.notes += [f"{name}: not measured: {error}"] if number == 0 else []
            for name, module in _IMPORTS.items():
                imports_s.setdefault(name, []).append(_import_s(module, top))
    measured.ready_ms = {name: median(took) * 1e3 for name, took in took_s.items() if took}
    measured.imports_ms = {name: median(took) * 1e3 for name, took in imports_s.items()}
    return measured


def lines(measured: Measured) -> Iterator[str]:
    yield f"Start-up, ms until it takes calls (medians of {measured.starts} starts; a fresh journal)"
    for name, ready_ms in measured.ready_ms.items():
        imports_ms = measured.imports_ms.get(name)
        imports = "" if imports_ms is None else f"; loading its modules alone {imports_ms:.0f}"
        over = f" (x {ready_ms / measured.ready_ms[PASS_THROUGH]:.1f} of the pass-through's)"
        yield f"  {name:<24}{ready_ms:>8.0f}{over if name in (PAYWITNESS, PAYWITNESS_REDIS) else ''}{imports}"
    yield from (f"  {note}" for note in measured.notes)


def _started_s(name: str, top: Path, folder: Path, provider: Started, peers: Peers) -> float:
    with ExitStack() as stack:
        if name == PASS_THROUGH:
            return start_passthrough(stack, top, folder, provider).listening_s
        if name == PAYWITNESS:
            return start_paywitness(stack, top, folder, provider).ready_s
        if name == PAYWITNESS_REDIS:
            redis = start_redis(stack, folder)
            return start_paywitness(stack, top, folder, provider, redis=redis, limits=url_of(redis)).ready_s
        started, notes = start_proxies([name], stack, folder, provider, peers)
        if name not in started:
            raise NotMeasured(notes[0].partition("not measured: ")[2])
        return started[name].listening_s


def _import_s(module: str, top: Path) -> float:
    command = [sys.executable, "-c", _TIMED.format(module)]
    return float(subprocess.run(command, cwd=top, check=True, capture_output=True).stdout)
