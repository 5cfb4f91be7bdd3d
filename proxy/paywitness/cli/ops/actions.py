"""`paywitness ops inquire | park | resume | resolve | cancel | close-incident`: operator actions on operations.

By ids, an action applies to the version that was shown. By filters, a dry run first shows the number of operations and
their money, and the action applies only to those. The exit code is 1 if anything was not done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from paywitness.admin.client import AdminClient, AdminRefused, AdminUnreachable
from paywitness.cli.admin_options import (
    EPILOG,
    AdminResponse,
    actor_option,
    admin_options,
    call_admin,
    client_for,
    error_text,
    filter_options,
)
from paywitness.cli.ops.output import console, print_json
from paywitness.cli.ops.text import text_of
from paywitness.core.operation import State
from paywitness.core.operator_actions import OperatorAction, close_refusal

_BULK_MAX = 500
_REFUSED_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _ActionText:
    """The texts of one command."""

    action: OperatorAction
    summary: str
    details: str
    done: str
    confirms_first: bool  # also for single ids: it states an outcome, or gives the payment up


_ACTION_TEXTS = (
    _ActionText(
        OperatorAction.INQUIRE,
        "Inquire at the provider now.",
        "The resolver inquires at once instead of on its schedule. This pays nothing and decides nothing.",
        "an inquiry is due now",
        confirms_first=False,
    ),
    _ActionText(
        OperatorAction.PARK,
        "Stop the inquiries, and put the operations into review.",
        "For an outage, or while the provider checks. New evidence still ends them. `resume` restarts the inquiries.",
        "is in review",
        confirms_first=False,
    ),
    _ActionText(
        OperatorAction.RESUME,
        "Start the inquiries again, from the start of the schedule.",
        "The operations leave review for unknown (or pending), and are due now.",
        "inquiries start again",
        confirms_first=False,
    ),
    _ActionText(
        OperatorAction.RESOLVE,
        "State how the operations ended, with the evidence.",
        "For an outcome that only a person can find out. --evidence is mandatory: what you saw, and in which place. An "
        "operation that has ended is never overwritten.",
        "is resolved",
        confirms_first=True,
    ),
    _ActionText(
        OperatorAction.CANCEL,
        "Cancel the operations at the provider, if its policy says how.",
        "The resolver sends the cancel. It ends the operation only if the provider's response shows the cancelled "
        "payment.",
        "will be cancelled, if that can be shown",
        confirms_first=True,
    ),
    _ActionText(
        OperatorAction.CLOSE_INCIDENT,
        "Close an incident after you have dealt with it.",
        "First do what `paywitness ops show` proposes (void, refund, compare): this command only records that it was "
        "done. --as states how the operation ended, and is needed if evidence has contradicted its end. Closed as "
        "succeeded, it counts as paid: its key and its purchase start nothing more. Closed as failed, nothing of it "
        "counts as paid any more.",
        "has no open incident any more",
        confirms_first=True,
    ),
)


def _help_of(text: _ActionText) -> str:
    resolve = ' --as succeeded --evidence "dashboard shows ch_123"' if text.action is OperatorAction.RESOLVE else ""
    resolve = " --as succeeded" if text.action is OperatorAction.CLOSE_INCIDENT else resolve
    narrowed = "--incidents" if text.action is OperatorAction.CLOSE_INCIDENT else "--state unknown"
    narrowed = "--review" if text.action in {OperatorAction.RESUME, OperatorAction.RESOLVE} else narrowed
    return (
        f"{text.summary}\n\n{text.details}\n\n\b\n"
        f'  paywitness ops {text.action} op_01J...{resolve} --reason "ticket 4711"\n'
        f'  paywitness ops {text.action} --all --provider acme {narrowed}{resolve} --reason "ticket 4711" --dry-run\n\n'
        "By ids, or by --all with at least one filter. With --all the command first shows the operations with count "
        "and money, and asks you. The timeline keeps the actor and the reason."
    )


def _command_of(text: _ActionText) -> click.Command:
    """The click command of one action."""

    def run(
        admin: str, token: str | None, home: Path, as_json: bool, ids: tuple[str, ...], every: bool, **given: Any
    ) -> None:
        states, narrowing = given.pop("states"), {name: given.pop(name) for name in _FILTERS}
        chosen = {name: value for name, value in narrowing.items() if value}
        if states:
            chosen["state"] = list(states)
        action_run = _ActionRun(client_for(admin, token, home), text, given, as_json=as_json)
        if ids and (every or chosen):
            raise click.UsageError("Give ids, or --all with filters: not both.")
        if ids:
            action_run.run_by_ids(ids)
        elif every and chosen:
            action_run.run_by_filters(chosen)
        elif every:
            raise click.UsageError("--all needs at least one filter, such as --provider or --state.")
        else:
            raise click.UsageError(
                "Give the ids of operations, or --all with filters. `paywitness ops list` shows ids."
            )

    command: Callable[..., None] = filter_options(admin_options(run))
    for option in _options(text):
        command = option(command)
    command = click.argument("ids", metavar="[ID]...", nargs=-1)(command)
    return click.command(text.action.value, help=_help_of(text), short_help=text.summary, epilog=EPILOG)(command)


_FILTERS = (
    *("provider", "operation", "kind", "doubt", "review", "incidents"),
    *("key", "order", "payment", "account", "amount"),
)


def _options(text: _ActionText) -> list[Callable[[Any], Any]]:
    options: list[Callable[[Any], Any]] = [
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Only show what the command would do."),
        click.option(
            "--limit",
            default=100,
            show_default=True,
            type=click.IntRange(1, _BULK_MAX),
            help="With --all: the largest number of operations.",
        ),
        click.option("--all", "every", is_flag=True, help="All operations that fit the filters."),
        actor_option,
        click.option("--reason", required=True, help="Why: kept in the timeline."),
    ]
    if text.action is OperatorAction.CLOSE_INCIDENT:
        options.append(
            click.option(
                "--as", "as_", type=click.Choice(["succeeded", "failed"]), help="How it ended, if that is in question."
            )
        )
    if text.action is OperatorAction.RESOLVE:
        options += [
            click.option("--reference", help="The provider's name for it: ch_..., a payment id. Only with one id."),
            click.option("--evidence", required=True, help="What you saw, and in which place. Mandatory."),
            click.option(
                "--as", "as_", required=True, type=click.Choice(["succeeded", "failed"]), help="How it ended."
            ),
        ]
    return options


class _ActionRun:
    """One run of an action's command."""

    def __init__(self, client: AdminClient, text: _ActionText, given: dict[str, Any], *, as_json: bool) -> None:
        self._client = client
        self._text = text
        self._dry_run: bool = given["dry_run"]
        self._yes: bool = given["yes"]
        self._limit: int = given["limit"]
        self._reference: str | None = given.get("reference")
        self._as_json = as_json
        self._command = {"actor": given["actor"], "reason": given["reason"]}
        if text.action is OperatorAction.RESOLVE:
            self._command |= {"as": given["as_"], "evidence": given["evidence"]}
        elif given.get("as_") is not None:
            self._command |= {"as": given["as_"]}

    def run_by_ids(self, ids: tuple[str, ...]) -> None:
        if self._reference is not None and len(ids) > 1:
            raise click.UsageError("--reference names one payment: give one id with it.")
        rows = [call_admin(lambda each=each: self._client.operation(each)) for each in ids]  # type: ignore[misc]
        refusals = {row["id"]: self._refusal_of(row) for row in rows}
        if not self._as_json:
            for row in rows:
                refusal = f"  [{refusals[row['id']]}]" if refusals[row["id"]] else ""
                console().print(text_of(f"{row['id']}  {row['verdict']}{refusal}"), soft_wrap=True)
        offered = [row for row in rows if refusals[row["id"]] is None]
        if self._dry_run or (self._text.confirms_first and offered):
            self._echo(f"To {self._text.action}: {_counted(len(offered))}, {_money_of(offered)}.")
        if self._dry_run:
            self._echo("Nothing was done.")
            return
        if self._text.confirms_first and offered:
            self._confirm()
        outcomes = [self._run_one(row) for row in rows]
        if self._as_json:
            print_json({"operations": outcomes})
        if any("error" in outcome for outcome in outcomes):
            raise click.exceptions.Exit(1)

    def _refusal_of(self, row: AdminResponse) -> str | None:
        """Why the sidecar will refuse the action for this operation, as far as the row shows it. The person is not
        asked to confirm what cannot be done."""
        if self._text.action not in row["actions"]:
            return f"{self._text.action} is not allowed"
        if self._text.action is not OperatorAction.CLOSE_INCIDENT or row["state"] not in list(State):
            return None
        end = self._command.get("as")
        paid = None if end is None else end == "succeeded"
        return close_refusal(State(row["state"]), row["incident"], row["payment"] or row["id"], paid=paid)

    def _run_one(self, row: AdminResponse) -> AdminResponse:
        command = {**self._command, "version": row["version"]}
        if self._reference is not None:
            command["reference"] = self._reference
        try:
            after = self._client.run_action(row["id"], self._text.action, command)
        except (AdminRefused, AdminUnreachable) as error:
            why = error_text(error) if isinstance(error, AdminRefused) else str(error)
            self._echo(f"{row['id']}  {why}", err=True)
            return {"id": row["id"], "error": why}
        self._echo(f"{row['id']}  {self._text.done}: {after['verdict']}")
        return after

    def run_by_filters(self, chosen: dict[str, Any]) -> None:
        if self._reference is not None:
            raise click.UsageError("--reference names one payment: give one id with it.")
        command = {**self._command, "filter": chosen, "limit": self._limit}
        found = call_admin(lambda: self._client.run_bulk_action(self._text.action, {**command, "dry_run": True}))
        if self._dry_run and self._as_json:
            print_json(found)
            return
        self._echo(f"To {self._text.action}: {_counted(found['count'])}, {_shown_money(found['money'])}.")
        self._echo_refused(found)
        if found["more"]:
            self._echo(f"There are more than {self._limit}: run it again afterwards, or give --limit.")
        if self._dry_run or not found["count"]:
            self._echo("Nothing was done." if self._dry_run else "There is nothing to do.")
            return
        self._confirm()
        confirmed = {**command, "dry_run": False, "operations": found["operations"]}
        done = call_admin(lambda: self._client.run_bulk_action(self._text.action, confirmed))
        if self._as_json:
            print_json(done)
        self._echo(f"Done: {done['done']} of {found['count']}.")
        self._echo_refused(done)
        if done["done"] < found["count"]:
            raise click.exceptions.Exit(1)

    def _echo_refused(self, found: AdminResponse) -> None:
        for refusal in found["refused"][:_REFUSED_SHOWN]:
            self._echo(f"  not {refusal['id']}: {refusal['why']}")
        if len(found["refused"]) > _REFUSED_SHOWN:
            self._echo(f"  and {len(found['refused']) - _REFUSED_SHOWN} others; --json lists them all.")

    def _confirm(self) -> None:
        if self._yes:
            return
        try:
            agreed = click.confirm("Go on?", err=self._as_json)
        except click.Abort:
            raise click.ClickException("Nothing was done. Without a terminal, give --yes.") from None
        if not agreed:
            raise click.ClickException("Nothing was done.")

    def _echo(self, line: str, *, err: bool = False) -> None:
        if not self._as_json:
            click.echo(text_of(line).plain, err=err)


def _counted(number: int) -> str:
    return f"{number} operation{'' if number == 1 else 's'}"


def _money_of(rows: list[AdminResponse]) -> str:
    totals: dict[str, Decimal] = {}
    for row in rows:
        if row["amount"] is not None:
            totals[row["currency"]] = totals.get(row["currency"], Decimal(0)) + Decimal(row["amount"])
    return _shown_money({currency: str(amount) for currency, amount in sorted(totals.items())})


def _shown_money(money: dict[str, str]) -> str:
    return " and ".join(f"{amount} {currency}" for currency, amount in money.items()) or "no known amount"


COMMANDS = tuple(_command_of(text) for text in _ACTION_TEXTS)
