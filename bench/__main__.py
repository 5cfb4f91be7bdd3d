"""`python -m bench`: one run, progress on standard error, the figures on standard output."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from bench import classifying, intercepted
from bench.engine_alone import measure_engine
from bench.figures import compare
from bench.machine import look_at
from bench.memory import Memory, measure_memory
from bench.processes import BenchError, NotMeasured
from bench.report import as_json, conditions, engine_line, memory_lines, table
from bench.rounds import FULL, QUICK, Plan, Run, run

TOP = Path(__file__).resolve().parent.parent


@click.command()
@click.option("--quick", is_flag=True, help="About 40 seconds instead of 130: for a first look, not for a claim.")
@click.option("--rounds", type=click.IntRange(min=1), help="How many rounds, instead of what the plan says.")
@click.option("--memory", "only_memory", is_flag=True, help="Only what an ended operation takes in Redis.")
@click.option("--json", "wants_json", is_flag=True, help="Print the figures as JSON.")
def main(quick: bool, rounds: int | None, only_memory: bool, wants_json: bool) -> None:
    """What a clean call costs through Paywitness, beside a bare aiohttp pass-through.

    Starts a fake provider, the pass-through, `paywitness run` with a journal on this disk and with one in Redis, nginx
    with the same two Redis scripts in Lua, and the callers; drives all routes in turns at 1, 16 and 64 concurrent
    calls; prints medians over the rounds and the ratios. Then what an ended operation takes in Redis.
    docs/benchmarks.md says what is measured and how far to trust it.
    """
    plan = QUICK if quick else FULL
    if rounds is not None:
        plan = replace(plan, rounds=rounds)
    machine = look_at(TOP)
    for line in conditions(machine):
        click.echo(line, err=wants_json)
    try:
        measured = Run() if only_memory else run(plan, TOP, _say)
        engine_us = None if only_memory else measure_engine(TOP)
        comparisons = compare(measured.cells)
        if not wants_json and not only_memory:
            for line in table(comparisons, measured.notes):
                click.echo(line)
            if engine_us is not None:
                click.echo(engine_line(engine_us))
        memory, why_not = _memory(plan)
    except BenchError as error:
        raise click.ClickException(str(error)) from None
    if wants_json:
        click.echo(as_json(machine, comparisons, measured.notes, engine_us, memory, why_not))
        return
    click.echo("")
    for line in memory_lines(memory) if memory is not None else [f"Memory in Redis: not measured: {why_not}"]:
        click.echo(line)
    click.echo(classifying.line(classifying.largest()))
    if not only_memory:
        _print_intercepted()


def _print_intercepted() -> None:
    click.echo("")
    for line in intercepted.lines(intercepted.measure(TOP, _say)):
        click.echo(line)


def _memory(plan: Plan) -> tuple[Memory | None, str]:
    try:
        return measure_memory(plan.memory_operations, TOP, _say), ""
    except NotMeasured as error:
        return None, str(error)


def _say(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    sys.exit(main())
