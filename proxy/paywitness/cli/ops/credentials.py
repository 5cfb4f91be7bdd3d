"""`paywitness ops credential show | map | unmap`: the owner of the credential that made an operation."""

from __future__ import annotations

from pathlib import Path

import click

from paywitness.cli.admin_options import EPILOG, AdminResponse, actor_option, admin_options, call_admin, client_for
from paywitness.cli.ops.output import print_json
from paywitness.cli.ops.text import text_of


@click.group("credential")
def credential() -> None:
    """Show or state the owner of the credential that made an operation.

    You name a credential by an operation that it made. If a provider cannot tell the owner of a new credential, its
    calls get 504 `account-unknown` whenever the operation of another credential would give the reply.
    """


def _print(found: AdminResponse, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    lines = [f"the credential that made {found['operation']}"]
    lines += [f"  is known to belong to one {each['of']}, by the {each['said_by']}" for each in found["known"]]
    if not found["known"]:
        lines.append("  its owner is not known")
    for line in lines:
        click.echo(text_of(line).plain)


@credential.command("show", epilog=EPILOG)
@click.argument("operation")
@admin_options
def show(admin: str, token: str | None, home: Path, as_json: bool, operation: str) -> None:
    """Show the known owners of the credential that made OPERATION."""
    client = client_for(admin, token, home)
    _print(call_admin(lambda: client.credential(operation)), as_json=as_json)


@credential.command("map", epilog=EPILOG)
@click.argument("operation")
@click.option("--same-as", required=True, metavar="OPERATION", help="An operation that the other credential made.")
@click.option("--evidence", required=True, help="What you saw, and in which place. Mandatory.")
@click.option("--reason", required=True, help="Why: kept in the timeline.")
@actor_option
@admin_options
def map_credential(admin: str, token: str | None, home: Path, as_json: bool, operation: str, **command: str) -> None:
    """State that the credential that made OPERATION is of the same account as another one.

    From then on it gets the replies of the other one's operations, may send for them, and "not found" under it counts.
    If your statement is wrong, a payment may be made twice: check it twice.

    \b
      paywitness ops credential map op_01H... --same-as op_01G... --reason "key rolled, ticket 4730" \\
          --evidence "Stripe's dashboard lists both keys under acct_1"
    """
    client = client_for(admin, token, home)
    _print(call_admin(lambda: client.map_credential(operation, command)), as_json=as_json)


@credential.command("unmap", epilog=EPILOG)
@click.argument("operation")
@click.option("--evidence", required=True, help="What you saw, and in which place. Mandatory.")
@click.option("--reason", required=True, help="Why: kept in the timeline.")
@actor_option
@admin_options
def unmap_credential(admin: str, token: str | None, home: Path, as_json: bool, operation: str, **command: str) -> None:
    """Forget what operators and control questions showed about the credential that made OPERATION.

    What the provider showed about it stays.
    """
    client = client_for(admin, token, home)
    _print(call_admin(lambda: client.unmap_credential(operation, command)), as_json=as_json)
