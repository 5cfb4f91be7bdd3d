"""`paywitness demo`: a hundred payments to a broken provider, with and without us."""

from __future__ import annotations

import json

import click
from rich.console import Console

from paywitness.core.errors import PaywitnessError
from paywitness.demo.main import print_result, run_demo

_PAYMENTS_MIN, _PAYMENTS_MAX = 10, 1000
_PIPE_COLUMNS = 120  # columns


@click.command(context_settings={"show_default": True})
@click.option(
    "--payments",
    default=100,
    type=click.IntRange(_PAYMENTS_MIN, _PAYMENTS_MAX),
    help="How many payments; 300 take half a minute.",
)
@click.option("--seed", default=1, help="Decides the payments and every fault.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON: verdicts, the callers' replies, ledgers.")
def demo(payments: int, seed: int, as_json: bool) -> None:
    """Show the difference in under a minute.

    The same payments meet the same faults twice: with an SDK's retries straight to the provider, and through
    Paywitness. Providers and sidecar use free ports and a temporary journal. Nothing else is needed, and nothing is
    left behind. The numbers at the end are counted in the providers' ledgers.
    """
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS
    try:
        result = run_demo(payments, seed, console)
    except PaywitnessError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        print_result(result, console)
