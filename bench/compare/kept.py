"""What a run has measured so far, as a file: a run that was broken off goes on at the next scenario."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.compare.figures import Figures
from bench.compare.scenarios import Pace


@dataclass(slots=True)
class Measured:
    """All figures by scenario and lane. `done`: the scenarios that all lanes have been through."""

    table: dict[str, dict[str, Figures]] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)  # lane or scenario -> why
    done: list[str] = field(default_factory=list)
    took_s: float = 0.0  # of the runs that came before this one


def keep(measured: Measured, pace: Pace, took_s: float, file: Path) -> None:
    """In one move: whoever breaks off while it is written has the one before."""
    told = {
        "pace": asdict(pace),
        "table": {
            name: {lane: asdict(figures) for lane, figures in lanes.items()}
            for name, lanes in measured.table.items()
            if name in measured.done
        },
        "not_measured": measured.not_measured,
        "done": measured.done,
        "took_s": measured.took_s + took_s,
    }
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(told, indent=1), "utf-8")
    beside.replace(file)


def taken_up(file: Path, pace: Pace) -> Measured:
    """What was kept. Raises ValueError where it is of another pace, or of other figures: they would not compare."""
    told: dict[str, Any] = json.loads(file.read_text("utf-8"))
    if told["pace"] != asdict(pace):
        raise ValueError("it was measured at another pace")
    try:
        table = {
            name: {lane: _figures(values) for lane, values in lanes.items()} for name, lanes in told["table"].items()
        }
    except TypeError as error:
        raise ValueError("it holds other figures") from error
    return Measured(table, told["not_measured"], told["done"], told["took_s"])


def _figures(values: dict[str, Any]) -> Figures:
    return Figures(**{**values, "requests_per_s": tuple(values["requests_per_s"])})
