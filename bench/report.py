"""Figures to a table, or to JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from bench.figures import DIRECT, Comparison, Figures
from bench.machine import Machine

AIM_CONCURRENCY = 64
AIM_CPU_RATIO = 1.5

_COLUMNS = "{:<26}{:>11}{:>11}{:>11}{:>11}{:>13}{:>13}"


def conditions(machine: Machine) -> Iterator[str]:
    yield (
        f"Python {machine.python}, aiohttp {machine.aiohttp}, uvloop {machine.uvloop}, SQLite {machine.sqlite}; "
        f"{machine.cores} cores ({machine.processor}), load average {machine.load_average:.1f}"
    )
    yield f"journal on {machine.file_system}, synchronous=FULL; an fdatasync takes {machine.fdatasync_ms:.2f} ms"
    if not machine.on_disk:
        yield "WARNING: this file system is kept in memory. An fsync costs nothing here, and the figures flatter us."
    if machine.load_average > machine.cores / 2:
        yield "NOTE: something else is running on this machine. Trust the ratios before the figures."


def table(comparisons: list[Comparison]) -> Iterator[str]:
    for comparison in comparisons:
        yield ""
        title = f"{comparison.concurrency} concurrent"
        yield _COLUMNS.format(title, "calls/s", "CPU us", "p50 ms", "p99 ms", "added p50", "added p99")
        for route, figures in comparison.routes.items():
            yield _row(route, figures)
        ratios = (comparison.throughput, comparison.cpu, comparison.added_p50, comparison.added_p99)
        yield _ratios("  ratio", [f"x {ratio.median:.2f}" for ratio in ratios])
        yield _ratios("  in the rounds", [f"{ratio.least:.1f} - {ratio.greatest:.1f}" for ratio in ratios])
    yield ""
    yield from _verdict(comparisons)


def _ratios(title: str, texts: list[str]) -> str:
    calls_per_s, cpu, added_p50, added_p99 = texts
    return _COLUMNS.format(title, calls_per_s, cpu, "", "", added_p50, added_p99)


def _row(route: str, figures: Figures) -> str:
    added = (f"{figures.added_p50_ms:.2f}", f"{figures.added_p99_ms:.2f}") if route != DIRECT else ("", "")
    cpu = f"{figures.cpu_us:.0f}" if route != DIRECT else ""
    return _COLUMNS.format(
        f"  {route}", f"{figures.calls_per_s:.0f}", cpu, f"{figures.p50_ms:.2f}", f"{figures.p99_ms:.2f}", *added
    )


def _verdict(comparisons: list[Comparison]) -> Iterator[str]:
    for comparison in comparisons:
        if comparison.concurrency == AIM_CONCURRENCY:
            ratio = comparison.cpu.median
            word = "met" if ratio <= AIM_CPU_RATIO else "missed"
            yield (
                f"CPU per call at {AIM_CONCURRENCY} concurrent: {ratio:.2f} x the pass-through. "
                f"The aim, at most {AIM_CPU_RATIO:.1f} x, is {word}."
            )


def as_json(machine: Machine, comparisons: list[Comparison]) -> str:
    return json.dumps(
        {"machine": asdict(machine), "comparisons": [asdict(comparison) for comparison in comparisons]}, indent=2
    )
