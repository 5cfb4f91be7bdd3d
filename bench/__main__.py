"""`python -m bench`: one run, progress on standard error, the figures on standard output."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from bench import (
    aims,
    classifying,
    crowd,
    hostile,
    intercepted,
    page,
    scrape,
    secure,
    sidecars,
    startup,
    telemetry,
    waiting,
)
from bench.compare.verdicts import Aim
from bench.engine_alone import measure_engine
from bench.figures import Comparison, compare
from bench.machine import look_at
from bench.memory import measure_memory
from bench.processes import BenchError, NotMeasured
from bench.report import as_json, conditions, engine_line, memory_lines, table
from bench.rounds import FULL, QUICK, Plan, run

TOP = Path(__file__).resolve().parent.parent
_FILES = 16384  # a thousand connections have two ends, and a proxy both


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that is measured, in processes of its own; and how it is told."""

    name: str
    measure: Callable[[], Any]
    lines: Callable[[Any], Iterable[str]]


@dataclass(slots=True)
class Told:
    measured: dict[str, Any] = field(default_factory=dict)  # by part; a text, where nothing was, which says why
    texts: dict[str, list[str]] = field(default_factory=dict)
    broken: bool = False

    def of(self, name: str) -> Any:
        found = self.measured.get(name)
        return None if isinstance(found, str) else found


@dataclass(frozen=True, slots=True)
class Clean:
    """What the rounds came to."""

    comparisons: list[Comparison]
    notes: list[str]


def parts_of(plan: Plan, *, quick: bool) -> list[Part]:
    """In the order of the report. A new part is one line here: a function that measures, and one that tells."""
    operations = scrape.OPERATIONS_QUICK if quick else scrape.OPERATIONS
    levels = waiting.LEVELS_QUICK if quick else waiting.LEVELS
    return [
        Part("clean", lambda: _clean(plan), lambda clean: table(clean.comparisons, clean.notes)),
        Part("engine", lambda: measure_engine(TOP), lambda engine_us: [engine_line(engine_us)]),
        Part("telemetry", lambda: telemetry.measure(TOP, _say), telemetry.lines),
        Part("tls", lambda: secure.measure(plan, TOP, _say), secure.lines),
        Part("sidecars", lambda: sidecars.measure(plan, TOP, _say), sidecars.lines),
        Part("connections", lambda: crowd.measure(TOP, _say), crowd.lines),
        Part("waiting", lambda: waiting.measure(TOP, _say, levels), waiting.lines),
        Part("startup", lambda: startup.measure(plan, TOP, _say), startup.lines),
        Part("memory", lambda: measure_memory(plan.memory_operations, TOP, _say), memory_lines),
        Part("million", lambda: scrape.measure(TOP, _say, operations), scrape.lines),
        Part("classifying", classifying.largest, lambda cost: [classifying.line(cost)]),
        Part("hostile", lambda: hostile.measure(TOP, _say, 3 if quick else hostile.ROUNDS), hostile.lines),
        Part("intercepted", lambda: intercepted.measure(TOP, _say), intercepted.lines),
    ]


def _clean(plan: Plan) -> Clean:
    measured = run(plan, TOP, _say)
    return Clean(compare(measured.cells), measured.notes)


@click.command()
@click.option("--quick", is_flag=True, help="A third of the time: for a first look, not for a claim.")
@click.option("--rounds", type=click.IntRange(min=1), help="How many rounds, instead of what the plan says.")
@click.option("--only", default="", help="Only these parts, by name, with commas between.")
@click.option("--json", "wants_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--write", is_flag=True, help="Write tables and pictures into docs/benchmarks.md too.")
@click.option("--docs", default=TOP / "docs", type=click.Path(path_type=Path), help="Where that is.")
def main(quick: bool, rounds: int | None, only: str, wants_json: bool, write: bool, docs: Path) -> None:
    """What a clean call costs through Paywitness, side by side with what else there is.

    Starts a fake provider and before it a bare aiohttp pass-through, nginx, HAProxy, Envoy, mitmproxy, nginx with the
    same two Redis scripts in Lua, and `paywitness run` on SQLite and on Redis; drives all in turns at 1, 16 and 64
    concurrent calls. Then TLS to the provider, two sidecars, a thousand connections, memory, start-up, a million
    operations in the journal. docs/benchmarks.md says what is measured and how far to trust it.
    """
    began_mono = time.monotonic()
    plan = QUICK if quick else FULL
    plan = plan if rounds is None else replace(plan, rounds=rounds, side_rounds=rounds)
    parts = chosen(parts_of(plan, quick=quick), only)
    if write and only:
        raise click.UsageError("--write wants a whole run: with --only the page would lose the rest")
    _allow_files()
    machine = look_at(TOP)
    stood_on = list(conditions(machine))
    _print(stood_on, err=wants_json)
    told = tell(parts, say=_say, show=lambda lines: None if wants_json else _print(["", *lines]))
    verdicts = verdicts_of(told)
    if wants_json:
        click.echo(as_json(machine, {**told.measured, "aims": verdicts}))
    elif told.of("clean") is not None or told.of("million") is not None:
        _print(["", *aims.lines(verdicts)])
    minutes = (time.monotonic() - began_mono) / 60
    _say(f"{minutes:.1f} minutes")
    if write and told.broken:
        _say("not written: a part broke off")
    elif write:
        command = " ".join(["make bench", *(["QUICK=1"] if quick else [])])
        _write(docs, page.made(command, minutes, verdicts, _pictures(told), [stood_on, *told.texts.values()]), told)
    sys.exit(1 if told.broken else 0)


def chosen(parts: Sequence[Part], only: str) -> list[Part]:
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    unknown = set(wanted) - {part.name for part in parts}
    if unknown:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; known: {', '.join(part.name for part in parts)}")
    return [part for part in parts if not wanted or part.name in wanted]


def tell(parts: Sequence[Part], say: Callable[[str], None], show: Callable[[list[str]], None]) -> Told:
    """Measure part by part. One that breaks off says so and costs no other; the run then ends with status 1."""
    told = Told()
    for part in parts:
        began_mono = time.monotonic()
        try:
            measured = part.measure()
            lines = list(part.lines(measured))
        except NotMeasured as error:
            measured = f"not measured: {error}"
            lines = [f"{part.name}: {measured}"]
        except BenchError as error:
            say(str(error))
            told.broken = True
            measured = f"not measured, it broke off: {str(error).strip().splitlines()[0]}"
            lines = [f"{part.name}: {measured}"]
        told.measured[part.name] = measured
        told.texts[part.name] = lines
        show(lines)
        say(f"{part.name}: {time.monotonic() - began_mono:.0f} s")
    return told


def verdicts_of(told: Told) -> list[Aim]:
    clean, million = told.of("clean"), told.of("million")
    stores = () if million is None else million.stores
    full = [store for store in stores if store.full.operations >= scrape.OPERATIONS]
    flat = {store.name: scrape.flat_ratio(store) for store in full}
    scrapes_ms = {store.name: scrape.scrape_ms(store) for store in full}
    return list(aims.aims(() if clean is None else clean.comparisons, flat, scrapes_ms))


def _pictures(told: Told) -> Mapping[str, page.Drawn]:
    clean = told.of("clean")
    return page.pictures(() if clean is None else clean.comparisons, told.of("tls"), told.of("waiting"))


def _write(docs: Path, made: str, told: Told) -> None:
    file = docs / "benchmarks.md"
    file.write_text(page.rewritten(file.read_text("utf-8"), made), "utf-8")
    (docs / "pictures").mkdir(exist_ok=True)
    for name, drawn in _pictures(told).items():
        (docs / "pictures" / name).write_text(drawn.svg, "utf-8")
    _say(f"written: {file}")


def _allow_files() -> None:
    """For the processes that we start, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _print(lines: Iterable[str] | Iterator[str], *, err: bool = False) -> None:
    for line in lines:
        click.echo(line, err=err)


def _say(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    main()
