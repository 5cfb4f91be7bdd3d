"""`paywitness ops inquire | park | resume | resolve | cancel | close-incident`: what a person does with operations.

By ids, each over the version that was shown; or by filters, where a dry run shows how many and how much money first,
and only what it showed is acted on. Exit code 1 where anything was not done.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from proxy.admin.client import AdminClient, AdminRefused, AdminUnreachable
from proxy.cli.ops_print import console, print_json, text_of
from proxy.cli.ops_where import EPILOG, Answer, ask, client_for, explained, filters, where
from proxy.core.proposal import Act

_BULK_MAX = 500
_REFUSED_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Told:
    """What a command says of itself."""

    act: Act
    summary: str
    story: str
    done: str
    asks_first: bool  # also for single ids: it says something of the money, or gives something up


_COMMANDS = (
    _Told(
        Act.INQUIRE,
        "Ask the provider now what became of them.",
        "The resolver asks at once instead of on its schedule. Nothing is paid, and nothing is decided by it.",
        "will be asked about now",
        asks_first=False,
    ),
    _Told(
        Act.PARK,
        "Stop looking by ourselves, and put them into review.",
        "For an outage, or while you talk to the provider. New evidence still ends them; `resume` goes on looking.",
        "is in review",
        asks_first=False,
    ),
    _Told(
        Act.RESUME,
        "Go on looking by ourselves, from the start of the schedule.",
        "Takes them out of review, back into doubt (or pending), due now.",
        "is being looked after again",
        asks_first=False,
    ),
    _Told(
        Act.RESOLVE,
        "Say how they ended, with the evidence.",
        "For what only a person can find out. --evidence is mandatory: what was seen, and where. What has ended is "
        "never overwritten.",
        "is resolved",
        asks_first=True,
    ),
    _Told(
        Act.CANCEL,
        "Give them up at the provider, where its policy knows how.",
        "The cancel is sent by the resolver. It ends the operation only if the provider's answer shows the cancelled "
        "payment.",
        "will be cancelled, if that can be shown",
        asks_first=True,
    ),
    _Told(
        Act.CLOSE_INCIDENT,
        "Close an incident that has been dealt with.",
        "Do first what `paywitness ops show` proposes (void, refund, compare): this only says that it was done. The "
        "operation stays as it stands, its answer is replayed again, and where it stands as failed its purchase counts "
        "as unpaid from then on.",
        "has no open incident any more",
        asks_first=True,
    ),
)


def _help_of(told: _Told) -> str:
    resolve = ' --as succeeded --evidence "dashboard shows ch_123"' if told.act is Act.RESOLVE else ""
    narrowed = "--incidents" if told.act is Act.CLOSE_INCIDENT else "--state unknown"
    narrowed = "--review" if told.act in {Act.RESUME, Act.RESOLVE} else narrowed
    return (
        f"{told.summary}\n\n{told.story}\n\n\b\n"
        f'  paywitness ops {told.act} op_01J...{resolve} --reason "ticket 4711"\n'
        f'  paywitness ops {told.act} --all --provider acme {narrowed}{resolve} --reason "ticket 4711" --dry-run\n\n'
        "By ids, or by --all with at least one filter: then what it would do is shown first, with count and money, and "
        "you are asked. Who and why is kept in the timeline."
    )


def _actor() -> str:
    try:
        return os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError):
        return ""


def _command_of(told: _Told) -> click.Command:
    """The command of one action."""

    def run(
        admin: str, token: str | None, home: Path, as_json: bool, ids: tuple[str, ...], every: bool, **given: Any
    ) -> None:
        states, narrowing = given.pop("states"), {name: given.pop(name) for name in _FILTERS}
        chosen = {name: value for name, value in narrowing.items() if value}
        if states:
            chosen["state"] = list(states)
        errand = _Errand(client_for(admin, token, home), told, given, as_json=as_json)
        if ids and (every or chosen):
            raise click.UsageError("Give ids, or --all with filters: not both.")
        if ids:
            errand.one_by_one(ids)
        elif every and chosen:
            errand.all_that_fit(chosen)
        elif every:
            raise click.UsageError("--all needs at least one filter, such as --provider or --state.")
        else:
            raise click.UsageError(
                "Give the ids of operations, or --all with filters. `paywitness ops list` shows ids."
            )

    command: Callable[..., None] = filters(where(run))
    for option in _options(told):
        command = option(command)
    command = click.argument("ids", metavar="[ID]...", nargs=-1)(command)
    return click.command(told.act.value, help=_help_of(told), short_help=told.summary, epilog=EPILOG)(command)


_FILTERS = ("provider", "operation", "doubt", "review", "incidents", "key", "order", "amount")


def _options(told: _Told) -> list[Callable[[Any], Any]]:
    options: list[Callable[[Any], Any]] = [
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Only show what would be done."),
        click.option(
            "--limit",
            default=100,
            show_default=True,
            type=click.IntRange(1, _BULK_MAX),
            help="With --all: at most so many.",
        ),
        click.option("--all", "every", is_flag=True, help="All that fit the filters."),
        click.option("--actor", default=_actor, show_default="you ($USER)", help="Who does it."),
        click.option("--reason", required=True, help="Why: kept in the timeline."),
    ]
    if told.act is Act.RESOLVE:
        options += [
            click.option("--reference", help="The provider's name for it: ch_..., a payment id. Only with one id."),
            click.option("--evidence", required=True, help="What was seen, and where. Mandatory."),
            click.option(
                "--as", "as_", required=True, type=click.Choice(["succeeded", "failed"]), help="How it ended."
            ),
        ]
    return options


class _Errand:
    """One run of a command."""

    def __init__(self, client: AdminClient, told: _Told, given: dict[str, Any], *, as_json: bool) -> None:
        self._client = client
        self._told = told
        self._dry_run: bool = given["dry_run"]
        self._yes: bool = given["yes"]
        self._limit: int = given["limit"]
        self._reference: str | None = given.get("reference")
        self._as_json = as_json
        self._order = {"actor": given["actor"], "reason": given["reason"]}
        if told.act is Act.RESOLVE:
            self._order |= {"as": given["as_"], "evidence": given["evidence"]}
        if not given["actor"].strip():
            raise click.UsageError("Say who does it: --actor.")

    def one_by_one(self, ids: tuple[str, ...]) -> None:
        if self._reference is not None and len(ids) > 1:
            raise click.UsageError("--reference names one payment: give one id with it.")
        shown = [ask(lambda each=each: self._client.operation(each)) for each in ids]  # type: ignore[misc]
        if not self._as_json:
            for row in shown:
                unfit = "" if self._told.act in row["actions"] else f"  [{self._told.act} is not offered]"
                console().print(text_of(f"{row['id']}  {row['verdict']}{unfit}"), soft_wrap=True)
        offered = [row for row in shown if self._told.act in row["actions"]]
        if self._dry_run or (self._told.asks_first and offered):
            self._say(f"To {self._told.act}: {_counted(len(offered))}, {_money_of(offered)}.")
        if self._dry_run:
            self._say("Nothing was done.")
            return
        if self._told.asks_first and offered:
            self._confirm()
        outcomes = [self._one(row) for row in shown]
        if self._as_json:
            print_json({"operations": outcomes})
        if any("error" in outcome for outcome in outcomes):
            raise click.exceptions.Exit(1)

    def _one(self, row: Answer) -> Answer:
        order = {**self._order, "version": row["version"]}
        if self._reference is not None:
            order["reference"] = self._reference
        try:
            after = self._client.act(row["id"], self._told.act, order)
        except (AdminRefused, AdminUnreachable) as error:
            why = explained(error) if isinstance(error, AdminRefused) else str(error)
            self._say(f"{row['id']}  {why}", err=True)
            return {"id": row["id"], "error": why}
        self._say(f"{row['id']}  {self._told.done}: {after['verdict']}")
        return after

    def all_that_fit(self, chosen: dict[str, Any]) -> None:
        if self._reference is not None:
            raise click.UsageError("--reference names one payment: give one id with it.")
        order = {**self._order, "filter": chosen, "limit": self._limit}
        found = ask(lambda: self._client.act_on_many(self._told.act, {**order, "dry_run": True}))
        if self._dry_run and self._as_json:
            print_json(found)
            return
        self._say(f"To {self._told.act}: {_counted(found['count'])}, {_shown_money(found['money'])}.")
        self._say_refused(found)
        if found["more"]:
            self._say(f"There are more than {self._limit}: run it again afterwards, or give --limit.")
        if self._dry_run or not found["count"]:
            self._say("Nothing was done." if self._dry_run else "There is nothing to do.")
            return
        self._confirm()
        seen = {**order, "dry_run": False, "operations": found["operations"]}
        done = ask(lambda: self._client.act_on_many(self._told.act, seen))
        if self._as_json:
            print_json(done)
        self._say(f"Done: {done['done']} of {found['count']}.")
        self._say_refused(done)
        if done["done"] < found["count"]:
            raise click.exceptions.Exit(1)

    def _say_refused(self, found: Answer) -> None:
        for refusal in found["refused"][:_REFUSED_SHOWN]:
            self._say(f"  not {refusal['id']}: {refusal['why']}")
        if len(found["refused"]) > _REFUSED_SHOWN:
            self._say(f"  and {len(found['refused']) - _REFUSED_SHOWN} others; --json lists them all.")

    def _confirm(self) -> None:
        if self._yes:
            return
        try:
            agreed = click.confirm("Go on?", err=self._as_json)
        except click.Abort:
            raise click.ClickException("Nothing was done. Give --yes where nobody can be asked.") from None
        if not agreed:
            raise click.ClickException("Nothing was done.")

    def _say(self, line: str, *, err: bool = False) -> None:
        if not self._as_json:
            click.echo(text_of(line).plain, err=err)


def _counted(number: int) -> str:
    return f"{number} operation{'' if number == 1 else 's'}"


def _money_of(rows: list[Answer]) -> str:
    totals: dict[str, Decimal] = {}
    for row in rows:
        if row["amount"] is not None:
            totals[row["currency"]] = totals.get(row["currency"], Decimal(0)) + Decimal(row["amount"])
    return _shown_money({currency: str(amount) for currency, amount in sorted(totals.items())})


def _shown_money(money: dict[str, str]) -> str:
    return " and ".join(f"{amount} {currency}" for currency, amount in money.items()) or "no known amount"


COMMANDS = tuple(_command_of(told) for told in _COMMANDS)
