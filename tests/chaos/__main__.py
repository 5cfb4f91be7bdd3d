"""Chaos on real processes: `python -m tests.chaos --journal redis --seconds 300 --kills 300`.

Ends with 1 where money moved twice, a payment was lost or stuck, an answer was a lie, or a sidecar was back too late.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

import click

from tests.chaos.chaos import Outcome, Plan, wreak
from tests.chaos.report import names_of, table_of
from tests.chaos.shop import FAULTS
from tests.chaos.world import CONTRACTS, JOURNALS


@click.command(help=__doc__)
@click.option("--journal", type=click.Choice([*JOURNALS, "both"]), default="both", show_default=True)
@click.option("--contract", type=click.Choice([*CONTRACTS, "all"]), default="replayed", show_default=True)
@click.option("--seconds", default=60.0, show_default=True, help="How long, for each journal and contract.")
@click.option("--kills", default=0, show_default=True, help="Of sidecars; goes on until they are made.")
@click.option("--redis-kills", default=0, show_default=True, help="As --kills, of Redis.")
@click.option("--rate", default=20.0, show_default=True, help="New payments a second.")
@click.option("--seed", default=1, show_default=True, help="Of the plan; what the machine makes of it is its own.")
@click.option("--only", default="", help="These mishaps alone, with commas: kill,kill_at_step.")
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="Write what is said at the end here too."
)
@click.option("--keep", is_flag=True, help="Leave journals and logs where they are, also where nothing is broken.")
def main(
    journal: str,
    contract: str,
    seconds: float,
    kills: int,
    redis_kills: int,
    rate: float,
    seed: int,
    only: str,
    report: Path | None,
    keep: bool,
) -> None:
    outcomes: dict[str, Outcome] = {}
    if report is not None:
        report.write_text("")
    for chosen in JOURNALS if journal == "both" else (journal,):
        for promised in CONTRACTS if contract == "all" else (contract,):
            mishaps = tuple(filter(None, only.split(",")))
            plan = Plan(chosen, promised, seconds, kills, redis_kills, rate, seed, mishaps)
            folder = Path(tempfile.mkdtemp(prefix="paywitness-chaos-"))
            outcomes[f"{chosen} {promised}"] = outcome = asyncio.run(wreak(plan, folder))
            _say(outcome.report, report)
            if outcome.broken or keep:
                click.echo(f"journals and logs: {folder}\n")
            else:
                shutil.rmtree(folder)
    met = {column: outcome.faults for column, outcome in outcomes.items()}
    _say(table_of(met, names_of(FAULTS)), report)
    sys.exit(1 if any(outcome.broken for outcome in outcomes.values()) else 0)


def _say(text: str, report: Path | None) -> None:
    click.echo(f"\n{text}\n")
    if report is not None:
        with report.open("a") as file:
            file.write(f"{text}\n\n")


if __name__ == "__main__":
    main()
