"""`paywitness ops adopt | not-paid | balance`: an operator imports or corrects a payment. None of them moves money."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paywitness.cli.admin_options import EPILOG, actor_option, admin_options, call_admin, client_for
from paywitness.cli.ops.output import print_json, print_payment
from paywitness.cli.ops.text import text_of

_NUMBERS = ("authorised", "captured", "refunded", "voided", "disputed")


@click.command(epilog=EPILOG)
@click.argument("reference")
@click.option("--provider", required=True, help="The payment's provider.")
@click.option("--account", default="", metavar="NAME", help="The account at the provider, as callers name it.")
@click.option("--reason", required=True, help="Why: kept with the payment.")
@actor_option
@admin_options
def adopt(admin: str, token: str | None, home: Path, as_json: bool, **command: str) -> None:
    """Import a payment that did not come through here.

    The sidecar inquires at the provider for REFERENCE, its own name for the payment. The response becomes the balance,
    so that limits hold for captures and refunds of it, and its purchase counts as paid. Numbers that the response does
    not show stay unknown.

    \b
      paywitness ops adopt ch_9Zx1 --provider acme --reason "paid by the old shop, ticket 4720"
    """
    client = client_for(admin, token, home)
    found = call_admin(lambda: client.adopt(command))
    if as_json:
        print_json(found)
    else:
        click.echo(text_of(f"{command['reference']} is adopted as payment {found['payment']}.").plain)
        print_payment(found)


@click.command("not-paid", epilog=EPILOG)
@click.argument("payment")
@click.option("--evidence", required=True, help="What you saw, and in which place. Mandatory.")
@click.option("--reason", required=True, help="Why: kept with the payment.")
@actor_option
@click.option("--provider", help="The payment's provider, if several providers know a payment of this name.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def not_paid(admin: str, token: str | None, home: Path, as_json: bool, payment: str, yes: bool, **given: Any) -> None:
    """Declare that nobody has paid a payment, with the evidence.

    PAYMENT is its id, or the provider's name for it. Use it if the provider called the payment "already done" and no
    inquiry could read it: until then its purchase counts as paid. Afterwards the purchase may be paid: check it twice.

    \b
      paywitness ops not-paid ch_9Zx1 --reason "ticket 4722" \\
          --evidence "Acme's dashboard shows ch_9Zx1 as cancelled, nothing was charged"
    """
    client = client_for(admin, token, home)
    provider = given.pop("provider")
    found = call_admin(lambda: client.payment(payment, [("provider", provider)] if provider else []))
    if not as_json:
        click.echo(text_of(f"{found['payment']}  {found['explanation']}").plain)
        click.echo("To declare: nobody has paid it.")
    if not yes:
        _confirm(as_json=as_json)
    command = given | {"version": found["version"]}
    after = call_admin(lambda: client.declare_unpaid(found["payment"], command))
    if as_json:
        print_json(after)
    else:
        click.echo(text_of(f"{after['payment']}  {after['explanation']}").plain)


@click.command(epilog=EPILOG)
@click.argument("payment")
@click.option("--authorised", metavar="AMOUNT", help="The amount authorised, such as 25.00.")
@click.option("--captured", metavar="AMOUNT", help="The amount captured in all.")
@click.option("--refunded", metavar="AMOUNT", help="The amount refunded in all.")
@click.option("--voided", metavar="AMOUNT", help="The amount released without being captured.")
@click.option("--disputed", metavar="AMOUNT", help="The amount in dispute.")
@click.option("--currency", help="Needed only if the payment's is not known.")
@click.option("--evidence", required=True, help="What you saw, and in which place. Mandatory.")
@click.option("--reason", required=True, help="Why: kept with the payment.")
@actor_option
@click.option("--provider", help="The payment's provider, if several providers know a payment of this name.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def balance(admin: str, token: str | None, home: Path, as_json: bool, payment: str, yes: bool, **given: Any) -> None:
    """State numbers of a payment's balance, with the evidence.

    PAYMENT is its id, or the provider's name for it. Use it for a number that is unknown and that no inquiry shows. If
    you state that everything captured is refunded, the purchase may be paid again: check it twice.

    \b
      paywitness ops balance ch_9Zx1 --captured 10.00 --reason "ticket 4721" \\
          --evidence "Acme's dashboard shows 10.00 EUR captured"
    """
    client = client_for(admin, token, home)
    provider = given.pop("provider")
    filters = [("provider", provider)] if provider else []
    found = call_admin(lambda: client.payment(payment, filters))
    stated = {name: given[name] for name in _NUMBERS if given[name] is not None}
    if not stated:
        raise click.UsageError(f"State at least one number: {', '.join(f'--{name}' for name in _NUMBERS)}.")
    if not as_json:
        click.echo(text_of(f"{found['payment']}  {found['explanation']}").plain)
        numbers = ", ".join(f"{text} {name}" for name, text in stated.items())
        click.echo(text_of(f"To state: {numbers}.").plain)
    if not yes:
        _confirm(as_json=as_json)
    command = {name: value for name, value in given.items() if value is not None} | {"version": found["version"]}
    after = call_admin(lambda: client.state_balance(found["payment"], command))
    if as_json:
        print_json(after)
    else:
        click.echo(text_of(f"{after['payment']}  {after['explanation']}").plain)


def _confirm(*, as_json: bool) -> None:
    try:
        agreed = click.confirm("Go on?", err=as_json)
    except click.Abort:
        raise click.ClickException("Nothing was done. Without a terminal, give --yes.") from None
    if not agreed:
        raise click.ClickException("Nothing was done.")
