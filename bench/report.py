"""Figures to a table, or to JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from bench.figures import DIRECT, NGINX, PASS_THROUGH, PAYWITNESS, PAYWITNESS_REDIS, Comparison, Figures, Ratios
from bench.machine import Machine
from bench.memory import Memory

AIM_CONCURRENCY = 64
AIM_CPU_RATIOS = {PAYWITNESS: 1.5, PAYWITNESS_REDIS: 1.2}

_COLUMNS = "{:<26}{:>10}{:>11}{:>10}{:>10}{:>10}{:>12}{:>12}"


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
    yield from notes
    for comparison in comparisons:
        yield ""
        title = f"{comparison.concurrency} concurrent"
        yield _COLUMNS.format(title, "calls/s", "CPU us", "Redis us", "p50 ms", "p99 ms", "added p50", "added p99")
        for route, figures in comparison.routes.items():
            yield _row(route, figures)
            if route in comparison.ratios:
                yield from _ratios(comparison.ratios[route])
    yield ""
    yield from _verdict(comparisons)


def _ratios(ratios: Ratios) -> Iterator[str]:
    columns = (ratios.throughput, ratios.cpu, ratios.added_p50, ratios.added_p99)
    yield _spread("    over the pass-through", [f"x {ratio.median:.2f}" for ratio in columns])
    yield _spread("    in the rounds", [f"{ratio.least:.1f} - {ratio.greatest:.1f}" for ratio in columns])


def _spread(title: str, texts: list[str]) -> str:
    calls_per_s, cpu, added_p50, added_p99 = texts
    return _COLUMNS.format(title, calls_per_s, cpu, "", "", "", added_p50, added_p99)


def _row(route: str, figures: Figures) -> str:
    added = (f"{figures.added_p50_ms:.2f}", f"{figures.added_p99_ms:.2f}") if route != DIRECT else ("", "")
    cpu = f"{figures.cpu_us:.0f}" if route != DIRECT else ""
    redis = f"{figures.redis_us:.0f}" if figures.redis_us else ""
    waits = (f"{figures.p50_ms:.2f}", f"{figures.p99_ms:.2f}")
    return _COLUMNS.format(f"  {route}", f"{figures.calls_per_s:.0f}", cpu, redis, *waits, *added).rstrip()


def _verdict(comparisons: list[Comparison]) -> Iterator[str]:
    for comparison in comparisons:
        if comparison.concurrency != AIM_CONCURRENCY:
            continue
        yield f"CPU per call at {AIM_CONCURRENCY} concurrent, over the {PASS_THROUGH}:"
        for route, ratios in comparison.ratios.items():
            aim = AIM_CPU_RATIOS.get(route)
            said = f"  {route}: x {ratios.cpu.median:.2f}"
            if aim is not None:
                said += f". The aim, at most x {aim:.1f}, is {'met' if ratios.cpu.median <= aim else 'missed'}."
            yield said
        if comparison.over_nginx is not None:
            yield f"  {PAYWITNESS_REDIS}, over {NGINX}: x {comparison.over_nginx.median:.1f}"


def engine_line(engine_us: float) -> str:
    return f"Engine alone, us of CPU per clean call: {engine_us:.0f}"


def memory_lines(memory: Memory) -> Iterator[str]:
    yield (
        f"Memory in Redis, over {memory.operations} ended operations: {memory.bytes_each:.0f} bytes "
        f"and {memory.keys_each:.2f} keys an operation; {memory.log_bytes_each:.0f} bytes of its log."
    )
    yield "  " + ", ".join(f"{name} {taken:.0f}" for name, taken in memory.parts.items())


def as_json(
    machine: Machine,
    comparisons: list[Comparison],
    notes: list[str],
    engine_us: float | None,
    memory: Memory | None,
    why_no_memory: str,
) -> str:
    return json.dumps(
        {
            "machine": asdict(machine),
            "notes": notes,
            "comparisons": [asdict(comparison) for comparison in comparisons],
            "engine_us": engine_us,
            "memory": {"not_measured": why_no_memory} if memory is None else asdict(memory),
        },
        indent=2,
    )
