"""`paywitness ops approvals | approve`: payouts whose amount needs a person's approval."""

from __future__ import annotations

from pathlib import Path

import click

from paywitness.cli.admin_options import EPILOG, AdminResponse, actor_option, admin_options, call_admin, client_for
from paywitness.cli.ops.output import console, print_json
from paywitness.cli.ops.text import text_of


@click.command("approvals", epilog=EPILOG)
@admin_options
def list_approvals(admin: str, token: str | None, home: Path, as_json: bool) -> None:
    """List payouts that wait for approval, oldest first.

    Their callers got `approval-needed`, and nothing was sent. An approved payout stays on the list until its caller
    repeats the call. If the approval lapses first, the payout needs a new one.
    """
    client = client_for(admin, token, home)
    found = call_admin(client.approvals)
    if as_json:
        print_json(found)
        return
    screen = console()
    if not found["approvals"]:
        screen.print("No payout waits for approval.")
    for approval in found["approvals"]:
        screen.print(text_of(_line(approval)), soft_wrap=True)


@click.command("approve", epilog=EPILOG)
@click.argument("approval_id", metavar="ID")
@click.option("--reason", required=True, help="Why: kept with the approval, and in the payout's timeline.")
@actor_option
@admin_options
def approve_payout(
    admin: str, token: str | None, home: Path, as_json: bool, approval_id: str, reason: str, actor: str
) -> None:
    """Approve one payout.

    The approval is for exactly this payout: account, content, reference, amount, currency and beneficiary. It sends
    nothing. The next call for the payout passes, once. The approval lapses after the policy's `approval_valid`.
    """
    client = client_for(admin, token, home)
    approved = call_admin(lambda: client.approve(approval_id, {"actor": actor, "reason": reason}))
    if as_json:
        print_json(approved)
    else:
        click.echo(text_of(_line(approved)).plain)


def _line(approval: AdminResponse) -> str:
    amount = f"{approval['amount']} {approval['currency']}" if approval["amount"] else "an unknown amount"
    about = f", reference {approval['reference']}" if approval["reference"] else ""
    what = f"{approval['provider']} {approval['operation']}, {amount}{about}"
    line = f"{approval['id']}  {approval['status']}  {what}, requested {approval['requested_at']}"
    if approval["approved_by"]:
        line += f"; approved by {approval['approved_by']}, good until {approval['valid_until']}"
    return line


APPROVAL_COMMANDS = (list_approvals, approve_payout)
