"""`paywitness circuits`: which providers are called and which are not, and how to force a circuit.

Talks to the admin port of a running proxy. Prints a table on a wide terminal, a few lines for each circuit on a
narrow one. Exit code 1 if anything was not done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from paywitness.admin.client import AdminRefused
from paywitness.cli.admin_options import EPILOG, AdminResponse, admin_options, call_admin, client_for
from paywitness.cli.ops.output import console, print_json
from paywitness.cli.ops.text import text_of, words
from paywitness.core.circuit import FORCIBLE, CallGroup, CircuitState
from paywitness.core.holds import LimitedBy
from paywitness.telemetry.logs import printable

_TABLE_COLUMNS_MIN = 120  # below it a table folds its cells beyond reading
_COLOURS = {"open": "bold red", "degraded": "bold yellow", "half_open": "yellow", "ramp": "yellow"}
_UNITS_S = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_TITLES = ("Circuit", "State", "Since", "For whom", "Calls", "Retries left", "Forced by")

JsonObject = dict[str, Any]


def print_circuit(row: JsonObject) -> None:
    """How a circuit stands after an order."""
    ends = f" It ends by itself in {_span(row['retry_after_s'])}." if row["forced"] else ""
    click.echo(text_of(f"{row['provider']} {row['group']} is {words(row['state'])}, {_scope_text(row)}.{ends}").plain)


def print_circuits(found: JsonObject) -> None:
    screen = console()
    if not found["circuits"]:
        screen.print("No policy names a provider yet.")
        return
    rows = list(_rows(found))
    if screen.width < _TABLE_COLUMNS_MIN:
        for row, calls, left in rows:
            state = text_of(words(row["state"]), _COLOURS.get(row["state"], ""))
            head = Text.assemble(text_of(f"{row['provider']} {row['group']}  "), state, text_of(f"  {_since(row)}"))
            screen.print(head, soft_wrap=True)
            facts = ", ".join(part for part in (_scope_text(row), calls, left and f"retries left: {left}") if part)
            screen.print(text_of(f"    {facts}"), soft_wrap=True)
            if row["forced"]:
                screen.print(text_of(f"    forced by {_forced(row)}"), soft_wrap=True)
        return
    table = Table(box=SIMPLE_HEAD)
    for title in _TITLES:
        table.add_column(title, overflow="fold")
    for row, calls, left in rows:
        state = text_of(words(row["state"]), _COLOURS.get(row["state"], ""))
        cells = (_since(row), _scope_text(row), calls, left, _forced(row))
        table.add_row(text_of(f"{row['provider']} {row['group']}"), state, *map(text_of, cells))
    screen.print(table)


def _rows(found: JsonObject) -> Iterator[tuple[JsonObject, str, str]]:
    """Each circuit, with its calls (which both groups share) and what is left for its retries."""
    admissions = {admission["provider"]: admission for admission in found["admission"]}
    budgets = {(budget["provider"], budget["group"]): budget for budget in found["budgets"]}
    for row in found["circuits"]:
        admission = admissions.get(row["provider"]) if row["group"] == CallGroup.WRITE else None
        budget = budgets.get((row["provider"], row["group"]))
        yield row, _calls(admission) if admission else "", _retries_left(budget) if budget else ""


def _since(row: JsonObject) -> str:
    untouched = row["state"] == CircuitState.CLOSED and not row["for_s"]
    since = "the start" if untouched and not row["forced"] else f"{_span(row['for_s'])} ago"
    if row["throttled"]:
        since = f"{since}; asked to wait {_span(row['retry_after_s'])}"
    elif row["retry_after_s"]:
        since = f"{since}, {_span(row['retry_after_s'])} to go"
    return "; ".join((since, *(_hold_text(hold) for hold in row["holds"] if hold["limited_by"] != LimitedBy.PROVIDER)))


def _hold_text(hold: JsonObject) -> str:
    whom = f"{hold['parties']} {hold['limited_by']}{'' if hold['parties'] == 1 else 's'}"
    return f"{whom} asked to wait, {_span(hold['longest_s'])} at most"


def _scope_text(row: JsonObject) -> str:
    return f"for the fleet of {max(1, row['sidecars'])}" if row["fleet"] else "for this sidecar"


def _calls(admission: JsonObject) -> str:
    waiting = f", {admission['waiting']} wait" if admission["waiting"] else ""
    return f"{admission['in_flight']} of {admission['limit']:.0f}{waiting}"


def _retries_left(budget: JsonObject) -> str:
    """In every scope that something was counted in; before that, all of it."""
    counted = [scope for scope in budget["scopes"] if scope["remaining"] is not None]
    left = ", ".join(f"{words(scope['scope'])} {scope['remaining']:.1f}" for scope in counted)
    return (left or "all") + ("" if budget["fleet"] else " (own)")


def _forced(row: JsonObject) -> str:
    return f"{row['forced']['actor']}: {row['forced']['reason']}" if row["forced"] else ""


def _span(seconds: float) -> str:
    """About how long, as people say it: 1h 30m."""
    if seconds < 1:
        return f"{seconds:.1f}s"
    left, parts = round(seconds), []
    for unit, size_s in _UNITS_S:
        count, left = divmod(left, size_s)
        parts += [f"{count}{unit}"] if count else []
    return " ".join(parts[:2])


# --- Commands


class _DefaultListGroup(click.Group):
    """`circuits` alone is `circuits list`, its options too."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in context.help_option_names):
            args = ["list", *args]
        return super().parse_args(context, args)


@click.group(cls=_DefaultListGroup, epilog=EPILOG)
def circuits() -> None:
    """See which providers are called, and force it where you know better.

    A circuit opens by itself when a provider is down, and closes when it is back: nothing has to be done. Force it
    where you know more than the calls show: announced maintenance, or an outage that looks like success.

    \b
      paywitness circuits                    how every circuit stands, and what is left for retries
      paywitness circuits force acme write open --reason "maintenance until 14:00" --for 2h
      paywitness circuits release acme write --reason "maintenance is over"

    The group `write` is payments; `inquiry` is our own questions about what became of them, which go on while payments
    are stopped.
    """


@circuits.command("list", epilog=EPILOG)
@admin_options
def list_circuits(admin: str, token: str | None, home: Path, as_json: bool) -> None:
    """Show how every circuit stands, how full it is at each provider, and what is left for retries.

    "Retries left" is in units of cost, in the tightest of each scope: a retry costs 1 after what was not sent, 2 after
    an error, 4 after a lost answer.

    \b
      paywitness circuits list --json
    """
    client = client_for(admin, token, home)
    found = _call_circuits_api(client.circuits) | _call_circuits_api(client.budgets)
    if as_json:
        print_json(found)
    else:
        print_circuits(found)


_ACTOR = click.option("--actor", envvar="USER", show_envvar=True, required=True, help="Who does it.")
_PROVIDER = click.argument("provider")
_GROUP = click.argument("group", type=click.Choice([group.value for group in CallGroup]))


@circuits.command("force", epilog=EPILOG)
@_PROVIDER
@_GROUP
@click.argument("state", type=click.Choice(sorted(state.value for state in FORCIBLE)))
@click.option("--reason", required=True, help="Why: others see it beside the circuit, and it is in the log.")
@click.option(
    "--for", "lasts", metavar="DURATION", default="1h", show_default=True, help="How long: 15m, 2h, at most 7d."
)
@_ACTOR
@admin_options
def force_circuit(
    admin: str, token: str | None, home: Path, as_json: bool, provider: str, group: str, state: str, **given: str
) -> None:
    """Put a circuit into a state for a while, whatever the calls show.

    \b
      open      nothing is sent: new calls get 503 at once; what is in doubt is still looked after
      degraded  calls pass, low priority is shed, retries go only as far as they help
      closed    calls pass, also where the circuit would have opened or the provider asked to wait
    \b
      paywitness circuits force acme write open --reason "maintenance until 14:00" --for 2h

    It holds for all sidecars that share --limits, else for this one. After a forced open a few probes come first.
    """
    command = {"state": state, "actor": given["actor"], "reason": given["reason"], "for": given["lasts"]}
    client = client_for(admin, token, home)
    found = _call_circuits_api(lambda: client.force(provider, group, command))
    _show(found, as_json=as_json)


@circuits.command("release", epilog=EPILOG)
@_PROVIDER
@_GROUP
@click.option("--reason", required=True, help="Why: it is in the log.")
@_ACTOR
@admin_options
def release_circuit(
    admin: str, token: str | None, home: Path, as_json: bool, provider: str, group: str, actor: str, reason: str
) -> None:
    """Take an order back before its time. Where none is in force nothing changes.

    \b
      paywitness circuits release acme write --reason "maintenance is over"
    """
    client = client_for(admin, token, home)
    command = {"state": None, "actor": actor, "reason": reason}
    found = _call_circuits_api(lambda: client.force(provider, group, command))
    _show(found, as_json=as_json)


def _show(found: AdminResponse, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_circuit(found)


def _call_circuits_api(request: Callable[[], AdminResponse]) -> AdminResponse:
    def with_plain_404() -> AdminResponse:
        try:
            return request()
        except AdminRefused as error:
            if error.status_code == 404:  # of no operation: what there is instead is in the answer
                raise click.ClickException(printable(str(error))) from None
            raise

    return call_admin(with_plain_404)
