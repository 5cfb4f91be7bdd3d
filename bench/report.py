"""Figures to tables, or to JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from bench.figures import DIRECT, PASS_THROUGH, PAYWITNESS_REDIS, Comparison, Figures, Ratios
from bench.machine import Machine
from bench.memory import Memory

_COLUMNS = "{:<26}{:>8}{:>8}{:>8}{:>15}{:>10}{:>9}{:>9}{:>11}{:>11}"
_HEADS = ("calls/s", "CPU us", "x pass", "in the rounds", "Redis us", "p50 ms", "p99 ms", "added p50", "added p99")


def conditions(machine: Machine) -> Iterator[str]:
    yield (
        f"Python {machine.python}, aiohttp {machine.aiohttp}, uvloop {machine.uvloop}, SQLite {machine.sqlite}, "
        f"Redis {machine.redis}, nginx {machine.nginx};"
    )
    yield f"{machine.cores} cores ({machine.processor}), load average {machine.load_average:.1f}"
    yield f"journal on {machine.file_system}, synchronous=FULL; an fdatasync takes {machine.fdatasync_ms:.2f} ms"
    if not machine.on_disk:
        yield "WARNING: this file system is kept in memory. An fsync costs nothing here, and the figures flatter us."
    if machine.load_average > machine.cores / 2:
        yield "NOTE: something else is running on this machine. Trust the ratios before the figures."


def table(comparisons: list[Comparison], notes: list[str]) -> Iterator[str]:
    yield "A clean call (x pass: its CPU over that of the aiohttp pass-through, the median of the rounds' ratios)"
    yield from notes
    for comparison in comparisons:
        yield ""
        yield _COLUMNS.format(f"{comparison.concurrency} concurrent", *_HEADS)
        for route, figures in comparison.routes.items():
            yield _row(route, figures, comparison.ratios.get(route))
    for comparison in comparisons[-1:]:
        over = ", ".join(f"{route} x {ratio.median:.2f}" for route, ratio in comparison.ours_over.items())
        yield ""
        yield f"CPU of {PAYWITNESS_REDIS}, at {comparison.concurrency} concurrent, over that of: {over}"


def _row(route: str, figures: Figures, ratios: Ratios | None) -> str:
    ratio, spread = "", ""
    if ratios is not None:
        ratio = f"x {ratios.cpu.median:.2f}"
        spread = f"{ratios.cpu.least:.2f} - {ratios.cpu.greatest:.2f}"
    elif route == PASS_THROUGH:
        ratio = "x 1.00"
    added = (f"{figures.added_p50_ms:.2f}", f"{figures.added_p99_ms:.2f}") if route != DIRECT else ("", "")
    cpu = f"{figures.cpu_us:.0f}" if route != DIRECT else ""
    redis = f"{figures.redis_us:.0f}" if figures.redis_us else ""
    waits = (f"{figures.p50_ms:.2f}", f"{figures.p99_ms:.2f}")
    calls = f"{figures.calls_per_s:.0f}"
    return _COLUMNS.format(f"  {route}", calls, cpu, ratio, spread, redis, *waits, *added).rstrip()


def engine_line(engine_us: float) -> str:
    return f"Engine alone, us of CPU per clean call: {engine_us:.0f}"


def memory_lines(memory: Memory) -> Iterator[str]:
    yield (
        f"Memory in Redis, over {memory.operations} ended operations: {memory.bytes_each:.0f} bytes "
        f"and {memory.keys_each:.2f} keys an operation; {memory.log_bytes_each:.0f} bytes of its log."
    )
    yield "  " + ", ".join(f"{name} {taken:.0f}" for name, taken in memory.parts.items())


def as_json(machine: Machine, parts: Mapping[str, Any]) -> str:
    """`parts`: what was measured, by name; a text where nothing was, which says why."""
    return json.dumps({"machine": machine, **parts}, indent=2, default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(type(value).__name__)
