"""Everything that proves the promises, one part after the other: `make prove`. Ends with 1 if a part failed.

| part | what it runs |
|---|---|
| simulation | a million payments in simulated worlds |
| focus on ... | simulated worlds in which one enemy is certain and alone, for each of them |
| planted bugs | each of them must be caught |
| chaos | real sidecars killed, on SQLite and on Redis |
| movements | captures and refunds at once, and kill -9, on both journals |
| duplicates | many calls at once under each key, on both journals |
| fuzz | policies, webhooks, framing, responses, bodies, rows |

A part that fails ends none of the others. What each printed is kept in its own file.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tests.simulation.focus import FOCUSES

TOP = Path(__file__).resolve().parents[1]
_TOLD_EVERY_S = 30.0
# Of a quick run, one of each kind that is caught within a few seeds: a re-send, an answer, a limit, an intent.
_QUICK_BUGS = ("new_key_per_retry", "foreign_answer_believed", "movements_in_flight_together", "part_refund_frees")


@dataclass(frozen=True)
class Sizes:
    """How much of everything. Those of a quick run take some minutes."""

    seeds: str
    payments: int
    processes: int
    focus_seeds: str  # of each focus
    focus_payments: int
    planted_seeds: int
    bugs: tuple[str, ...]  # empty: all
    seconds: int  # of chaos on each journal, before the kills that are still owed
    kills: int
    redis_kills: int
    movements: int
    movement_payments: int
    movement_kills: int
    keys: int
    each: int
    fuzz_seconds: int  # of each target


FULL = Sizes("1-1000", 1000, 2, "1-60", 300, 50, (), 60, 300, 20, 10_000, 100, 20, 1_000, 100, 60)
QUICK = Sizes("1-20", 100, 2, "1-2", 60, 10, _QUICK_BUGS, 10, 4, 2, 400, 10, 2, 20, 20, 2)


@dataclass(frozen=True)
class Part:
    name: str
    size: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Proved:
    part: Part
    failed: bool
    took_s: float
    printed: Path


def parts_of(sizes: Sizes) -> list[Part]:
    """What is run, in this order."""
    chaos = ("--seconds", sizes.seconds, "--kills", sizes.kills)
    moved = ("--payments", sizes.movement_payments, "--movements", sizes.movements, "--kills", sizes.movement_kills)
    calls = ("--keys", sizes.keys, "--each", sizes.each)
    simulated = ("--seeds", sizes.seeds, "--payments", sizes.payments, "--processes", sizes.processes)
    focused = ("--seeds", sizes.focus_seeds, "--payments", sizes.focus_payments, "--processes", sizes.processes)
    focus_size = f"seeds {sizes.focus_seeds} of {sizes.focus_payments} payments"
    hunt = ("--seeds", sizes.planted_seeds, "--processes", sizes.processes, *sizes.bugs)
    killing = "kill,kill_at_step"
    parts = [
        _part("simulation", f"seeds {sizes.seeds} of {sizes.payments} payments", "tests.simulation", *simulated),
        *(_part(f"focus on {name}", focus_size, "tests.simulation", "--focus", name, *focused) for name in FOCUSES),
        _part("planted bugs", "all" if not sizes.bugs else f"{len(sizes.bugs)}", "tests.simulation.planted", *hunt),
        _part(
            "chaos on SQLite",
            f"{sizes.kills} kills",
            *("tests.chaos", "--journal", "sqlite", *chaos, "--only", killing),
        ),
        _part(
            "chaos on Redis",
            f"{sizes.kills} kills, {sizes.redis_kills} of Redis",
            *("tests.chaos", "--journal", "redis", *chaos),
            *("--redis-kills", sizes.redis_kills, "--only", f"{killing},kill_redis"),
        ),
    ]
    for journal, shown in (("sqlite", "SQLite"), ("redis", "Redis")):
        told = f"{sizes.movements}, {sizes.movement_kills} kills"
        parts.append(_part(f"movements on {shown}", told, "tests.chaos.movements", "--journal", journal, *moved))
    for journal, shown in (("sqlite", "SQLite"), ("redis", "Redis")):
        told = f"{sizes.keys} keys, {sizes.each} calls of each"
        parts.append(_part(f"duplicates on {shown}", told, "tests.chaos.duplicates", "--journal", journal, *calls))
    fuzz = ("tests.fuzz", "--seconds", sizes.fuzz_seconds)
    return [*parts, _part("fuzz", f"{sizes.fuzz_seconds} s for each target", *fuzz)]


def _part(name: str, size: str, *command: object) -> Part:
    return Part(name, size, (sys.executable, "-m", *(str(word) for word in command)))


def prove(parts: Sequence[Part], folder: Path) -> list[Proved]:
    """Run each part to its end, and tell how far it is."""
    folder.mkdir(parents=True, exist_ok=True)
    proved = []
    for number, part in enumerate(parts, 1):
        click.echo(f"[{number} of {len(parts)}] {part.name}: {part.size}")
        proved.append(_run(part, folder / f"{part.name.replace(' ', '_')}.txt"))
        click.echo(f"    {'FAILED' if proved[-1].failed else 'ok'} after {_minutes(proved[-1].took_s)}")
    return proved


def _run(part: Part, printed: Path) -> Proved:
    began_mono = time.monotonic()
    with printed.open("wb") as out:
        running = subprocess.Popen(part.command, cwd=TOP, stdout=out, stderr=subprocess.STDOUT)
        try:
            while True:
                try:
                    code = running.wait(_TOLD_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    click.echo(f"    {_minutes(time.monotonic() - began_mono)}: {_last_line(printed)}")
        except BaseException:
            running.terminate()
            running.wait()
            raise
    return Proved(part, code != 0, time.monotonic() - began_mono, printed)


def _last_line(printed: Path) -> str:
    lines = printed.read_text("utf-8", "replace").replace("\r", "\n").split("\n")
    return next((line.strip()[:160] for line in reversed(lines) if line.strip()), "nothing printed yet")


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def table_of(proved: Sequence[Proved]) -> str:
    rows = [("part", "size", "result", "took", "printed in")]
    for one in proved:
        result = "FAILED" if one.failed else "ok"
        rows.append((one.part.name, one.part.size, result, _minutes(one.took_s), str(one.printed)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _sizes(quick: bool, given: dict[str, str | int | None]) -> Sizes:
    sizes = vars(QUICK if quick else FULL)
    return Sizes(**{**sizes, **{name: value for name, value in given.items() if value is not None}})


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="A little of everything, in some minutes.")
@click.option("--seeds", help="Of the simulation.")
@click.option("--payments", type=int, help="In each simulated world.")
@click.option("--processes", type=int, help="Worlds and hunts side by side.")
@click.option("--focus-seeds", help="Of each focus.")
@click.option("--focus-payments", type=int, help="In each world with a focus.")
@click.option("--planted-seeds", type=int, help="So many are tried for a planted bug at most.")
@click.option("--seconds", type=int, help="Of chaos on each journal.")
@click.option("--kills", type=int, help="Of sidecars, on each journal.")
@click.option("--redis-kills", type=int)
@click.option("--movements", type=int, help="Captures and refunds.")
@click.option("--movement-payments", type=int)
@click.option("--movement-kills", type=int)
@click.option("--keys", type=int, help="Of duplicates.")
@click.option("--each", type=int, help="Calls of each key, all at once.")
@click.option("--fuzz-seconds", type=int, help="Of each target.")
@click.option("--only", default="", help="Parts whose names have this in them.")
@click.option(
    "--into", type=click.Path(path_type=Path), default=TOP / "build" / "prove", help="Where outputs are kept."
)
def main(quick: bool, only: str, into: Path, **given: str | int | None) -> None:
    parts = [part for part in parts_of(_sizes(quick, given)) if only in part.name]
    proved = prove(parts, into)
    click.echo(f"\n{table_of(proved)}")
    sys.exit(1 if not proved or any(one.failed for one in proved) else 0)


if __name__ == "__main__":
    main()
