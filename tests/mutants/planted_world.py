"""Simulated worlds with a mutant planted, until one of them breaks a promise. For `hunt.py`, which reads the last line:
the seed and the promises, or seed 0 and none."""

from __future__ import annotations

import json
import sys

import click

from tests.mutants.all_mutants import mutant_named
from tests.simulation.__main__ import played, seeds_in
from tests.simulation.planted import plant


@click.command(help=__doc__)
@click.option("--seeds", required=True)
@click.option("--payments", required=True, type=int)
@click.option("--between/--plain", default=True)
@click.option("--mutant", default="")
def main(seeds: str, payments: int, between: bool, mutant: str) -> None:
    if mutant:
        plant(mutant_named(mutant))
    found: tuple[int, tuple[str, ...]] = 0, ()
    for one in played(seeds_in(seeds), payments, None, 1, between=between, focus="", brief=True):
        if one.broken:
            found = one.seed, one.broken
            break
    sys.stdout.write(json.dumps({"seed": found[0], "broken": found[1]}) + "\n")


if __name__ == "__main__":
    main()
