"""`python -m bench`: one run, progress on standard error, the figures on standard output."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from bench.figures import compare
from bench.machine import look_at
from bench.processes import BenchError
from bench.report import as_json, conditions, table
from bench.rounds import FULL, QUICK, run

TOP = Path(__file__).resolve().parent.parent


@click.command()
@click.option("--quick", is_flag=True, help="About 15 seconds instead of 75: for a first look, not for a claim.")
@click.option("--rounds", type=click.IntRange(min=1), help="How many rounds, instead of what the plan says.")
@click.option("--json", "wants_json", is_flag=True, help="Print the figures as JSON.")
def main(quick: bool, rounds: int | None, wants_json: bool) -> None:
    """What a clean call costs through Paywitness, beside a bare aiohttp pass-through.

    Starts a fake provider, the pass-through, `paywitness run` with a journal on this disk, and the callers; drives all
    routes in turns at 1 and at 64 concurrent calls; prints medians over the rounds and the ratios. docs/benchmarks.md
    says what is measured and how far to trust it.
    """
    plan = QUICK if quick else FULL
    if rounds is not None:
        plan = replace(plan, rounds=rounds)
    machine = look_at(TOP)
    for line in conditions(machine):
        click.echo(line, err=wants_json)
    try:
        comparisons = compare(run(plan, TOP, say=lambda text: click.echo(text, err=True)))
    except BenchError as error:
        raise click.ClickException(str(error)) from None
    if wants_json:
        click.echo(as_json(machine, comparisons))
        return
    for line in table(comparisons):
        click.echo(line)


if __name__ == "__main__":
    sys.exit(main())
