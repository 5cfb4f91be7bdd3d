"""`paywitness ops`: look up operations, and act on them, through the admin port of a running sidecar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from paywitness.admin.client import AdminClient, AdminRefused, AdminUnreachable
from paywitness.cli.admin_options import (
    EPILOG,
    AdminResponse,
    admin_options,
    call_admin,
    client_for,
    error_text,
    filter_options,
)
from paywitness.cli.ops.actions import COMMANDS
from paywitness.cli.ops.approvals import APPROVAL_COMMANDS
from paywitness.cli.ops.credentials import credential
from paywitness.cli.ops.output import csv_of, print_intent, print_json, print_list, print_operation, print_payment
from paywitness.cli.ops.payments import adopt, balance, not_paid
from paywitness.clock import SystemClock
from paywitness.randomness import OPERATION_ID_PREFIX
from paywitness.telemetry.logs import printable

_PAGE = 50
_NOT_FOUND = 404
_CSV_PAGE, _CSV_ROWS_MAX = 200, 20_000


@click.group(epilog=EPILOG)
def ops() -> None:
    """Look up operations (was it charged, which are in doubt, and why), and act on those that wait for a person.

    \b
      paywitness ops list --doubt            operations whose outcome is unknown
      paywitness ops list --order order-17   the operations of one order
      paywitness ops list --incidents        contradicting evidence, and what to do
      paywitness ops show op_01J...          one operation with its timeline
      paywitness ops show ch_9Zx1            the balance of one payment, with one timeline
      paywitness ops show order-17           whether a purchase may be paid again, and why not
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
@click.option("--expired", is_flag=True, help="Only payments that the customer did not confirm (3DS) in time.")
@click.option("--reference", help="Only with this name at the provider: ch_..., a payment id.")
@click.option("--id", "id", metavar="START", help="Only operations whose id begins with START.")
@click.option(
    "--limit", type=click.IntRange(1, 200), help="How many, newest first.  [default: 50, and all of them with --csv]"
)
@click.option("--before", metavar="ID", help="The next page: operations older than this one.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV for a spreadsheet, with links to the provider's pages.")
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
    Payments that the customer did not confirm in time are left out; --expired lists them.

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
    """At most `limit` rows. Without a limit, the rows of all pages, up to _CSV_ROWS_MAX."""
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
            f"There are more than {_CSV_ROWS_MAX}: narrow the list, or continue with --before {following}", err=True
        )
    return rows[:limit]


def _page(client: AdminClient, query: list[tuple[str, str]], limit: int, before: str | None) -> AdminResponse:
    narrowed = [(name, value) for name, value in query if before is None or name != "before"]
    further = [("before", before)] if before is not None else []
    return call_admin(lambda: client.operations([*narrowed, *further, ("limit", str(limit))]))


@ops.command("show", epilog=EPILOG)
@click.argument("name", metavar="ID")
@click.option("--provider", help="The payment's provider, if several providers know a payment of this name.")
@click.option("--leases", "with_leases", is_flag=True, help="Also changes of the lease only.")
@admin_options
def show(
    admin: str, token: str | None, home: Path, as_json: bool, name: str, provider: str | None, with_leases: bool
) -> None:
    """Show an operation, a payment or a purchase, and its timeline.

    ID is an operation's id, the provider's name for a payment (ch_..., pi_...), or the order's number. The first line
    answers "was it charged?", or shows the balance. The timeline shows every attempt: its last phase, the response or
    fault, the result class, and the decision with the rule that made it. It also shows what operators did, and why. The
    timeline of a payment covers all its steps, captures, refunds and voids.
    """
    client = client_for(admin, token, home)
    if name.startswith(OPERATION_ID_PREFIX):
        operation = _known(lambda: client.operation(name))
        if operation is not None:
            payment = _known(lambda: client.payment(name)) if operation["payment"] and not as_json else None
            _print(
                operation,
                lambda: print_operation(operation, payment, now=SystemClock().now(), with_leases=with_leases),
                as_json=as_json,
            )
            return
    payment = _known(lambda: client.payment(name, [("provider", provider)] if provider else []))
    if payment is not None:
        _print(payment, lambda: print_payment(payment, with_leases=with_leases), as_json=as_json)
        return
    if name.startswith(OPERATION_ID_PREFIX):
        call_admin(lambda: client.operation(name))  # exits with the message that there is none
    intent = call_admin(lambda: client.intent(name))
    if not intent["operations"] and not intent["payments"] and not intent["why_not"]:
        raise click.ClickException(
            "The journal knows no operation, payment or order of this name. `paywitness ops list` shows its "
            "operations. Ended ones leave the journal after a while."
        )
    _print(intent, lambda: print_intent(intent, with_leases=with_leases), as_json=as_json)


def _known(request: Callable[[], AdminResponse]) -> AdminResponse | None:
    """The reply, or None for a 404."""
    try:
        return request()
    except AdminRefused as error:
        if error.status_code == _NOT_FOUND:
            return None
        raise click.ClickException(printable(error_text(error))) from None
    except AdminUnreachable as error:
        raise click.ClickException(str(error)) from None


def _print(found: AdminResponse, print_text: Callable[[], None], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_text()


for command in (*COMMANDS, adopt, not_paid, balance, credential, *APPROVAL_COMMANDS):
    ops.add_command(command)
