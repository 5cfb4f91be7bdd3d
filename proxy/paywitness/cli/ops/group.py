"""`paywitness ops`: what became of the money, and what a person does about it, by a running proxy's admin port."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paywitness.admin.client import AdminClient
from paywitness.cli.admin_options import EPILOG, AdminResponse, admin_options, call_admin, client_for, filter_options
from paywitness.cli.ops.actions import COMMANDS
from paywitness.cli.ops.approvals import APPROVAL_COMMANDS
from paywitness.cli.ops.output import csv_of, print_json, print_list, print_operation

_PAGE = 50
_CSV_PAGE, _CSV_ROWS_MAX = 200, 20_000


@click.group(epilog=EPILOG)
def ops() -> None:
    """Look up operations (was it charged, what is in doubt, and why), and act on what waits for a person.

    \b
      paywitness ops list --doubt            money that may or may not have moved
      paywitness ops list --order order-17   what became of one order
      paywitness ops list --incidents        where evidence contradicts itself, and what to do
      paywitness ops show op_01J...          one operation and everything that happened to it
    \b
      paywitness ops inquire op_01J... --reason "customer on the phone"
      paywitness ops resolve op_01J... --as succeeded --reason "ticket 4711" \\
          --evidence "Acme's dashboard shows ch_123 captured" --reference ch_123
      paywitness ops park --all --provider acme --state unknown --reason "Acme is down" --dry-run
    \b
      paywitness ops approvals               payouts that wait for a person
      paywitness ops approve ap_3f2c... --reason "invoice 88 checked"
    """


@ops.command("list", epilog=EPILOG)
@filter_options
@click.option("--reference", help="Only with this name at the provider: ch_..., a payment id.")
@click.option("--id", "id", metavar="START", help="Only those whose id begins so.")
@click.option(
    "--limit", type=click.IntRange(1, 200), help="How many, newest first.  [default: 50, and all of them with --csv]"
)
@click.option("--before", metavar="ID", help="The next page: those older than this operation.")
@click.option("--csv", "as_csv", is_flag=True, help="For a spreadsheet, with a link to the provider's page about each.")
@admin_options
def list_operations(
    admin: str,
    token: str | None,
    home: Path,
    as_json: bool,
    as_csv: bool,
    states: tuple[str, ...],
    limit: int | None,
    **narrowing: str | bool | None,
) -> None:
    """List operations, newest first.

    Every line answers "was it charged?". Filters narrow the list together; --state, --doubt and --review add up.
    Payments that a customer was asked to confirm and never did are left out; --state requires_action shows them.

    \b
      paywitness ops list --review --csv > review.csv
      paywitness ops list --provider acme --amount "10.99 EUR"
    """
    query = [("state", state) for state in states]
    query += [(name, "true" if value is True else str(value)) for name, value in narrowing.items() if value]
    client = client_for(admin, token, home)
    if as_csv:
        click.echo(csv_of(_all_pages(client, query, limit)), nl=False)
        return
    found = call_admin(lambda: client.operations([*query, ("limit", str(limit or _PAGE))]))
    if as_json:
        print_json(found)
    else:
        print_list(found, narrowed=bool(query))


def _all_pages(client: AdminClient, query: list[tuple[str, str]], limit: int | None) -> list[dict[str, Any]]:
    """The page that was asked for, or all of them."""
    rows: list[dict[str, Any]] = []
    following: str | None = None
    while len(rows) < (limit or _CSV_ROWS_MAX):
        page = _page(client, query, limit or _CSV_PAGE, following)
        rows += page["operations"]
        following = page["next"]
        if following is None:
            return rows
    if limit is None:
        click.echo(
            f"There are more than {_CSV_ROWS_MAX}: narrow the list, or go on with --before {following}", err=True
        )
    return rows[:limit]


def _page(client: AdminClient, query: list[tuple[str, str]], limit: int, before: str | None) -> AdminResponse:
    narrowed = [(name, value) for name, value in query if before is None or name != "before"]
    further = [("before", before)] if before is not None else []
    return call_admin(lambda: client.operations([*narrowed, *further, ("limit", str(limit))]))


@ops.command("show", epilog=EPILOG)
@click.argument("operation_id", metavar="ID")
@admin_options
def show_operation(admin: str, token: str | None, home: Path, as_json: bool, operation_id: str) -> None:
    """Show one operation and its timeline.

    The first line answers "was it charged?". The timeline tells every attempt: how far it got, what came back, what was
    made of it, and what was decided because of which rule; and what people did, and why.
    """
    client = client_for(admin, token, home)
    found = call_admin(lambda: client.operation(operation_id))
    if as_json:
        print_json(found)
    else:
        print_operation(found)


for command in (*COMMANDS, *APPROVAL_COMMANDS):
    ops.add_command(command)
