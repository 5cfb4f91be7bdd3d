"""`paywitness circuits`: the circuits of the providers, and how to force one.

It uses the admin port of a running sidecar. It prints a table on a wide terminal, and a few lines for each circuit on a
narrow one. The exit code is 1 if anything was not done.
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
from paywitness.cli.admin_options import EPILOG, AdminResponse, actor_option, admin_options, call_admin, client_for
from paywitness.cli.ops.output import console, print_json
from paywitness.cli.ops.text import text_of, words
from paywitness.core.circuit import FORCIBLE, CallGroup, CircuitState
from paywitness.core.holds import LimitedBy
from paywitness.telemetry.logs import printable

_TABLE_COLUMNS_MIN = 120  # on a narrower terminal a table folds its cells beyond reading
_COLOURS = {"open": "bold red", "degraded": "bold yellow", "half_open": "yellow", "ramp": "yellow"}
_UNITS_S = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_TITLES = ("Circuit", "State", "Since", "For whom", "Calls", "Retries left", "Forced by")

JsonObject = dict[str, Any]


def print_circuit(row: JsonObject) -> None:
    """The state of a circuit after a command."""
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
    """Each circuit, with the calls at its provider (both groups share them) and the rest of its retry budget."""
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
    """The rest of the retry budget, in every scope in which retries were counted; "all" before the first."""
    counted = [scope for scope in budget["scopes"] if scope["remaining"] is not None]
    left = ", ".join(f"{words(scope['scope'])} {scope['remaining']:.1f}" for scope in counted)
    return (left or "all") + ("" if budget["fleet"] else " (own)")


def _forced(row: JsonObject) -> str:
    return f"{row['forced']['actor']}: {row['forced']['reason']}" if row["forced"] else ""


def _span(seconds: float) -> str:
    """About how long, in the largest two units: 1h 30m."""
    if seconds < 1:
        return f"{seconds:.1f}s"
    left, parts = round(seconds), []
    for unit, size_s in _UNITS_S:
        count, left = divmod(left, size_s)
        parts += [f"{count}{unit}"] if count else []
    return " ".join(parts[:2])


# --- Commands


class _DefaultListGroup(click.Group):
    """`circuits` alone means `circuits list`, with its options."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in context.help_option_names):
            args = ["list", *args]
        return super().parse_args(context, args)


@click.group(cls=_DefaultListGroup, epilog=EPILOG)
def circuits() -> None:
    """Show which providers are called, and force a circuit if you know better.

    A circuit opens by itself when a provider is down, and closes when it is back. You need not do anything. Force it if
    you know more than the calls show: announced maintenance, or an outage that looks like success.

    \b
      paywitness circuits                    the state of every circuit, and the rest of the retry budgets
      paywitness circuits force acme write open --reason "maintenance until 14:00" --for 2h
      paywitness circuits release acme write --reason "maintenance is over"

    The group `write` is payments. The group `inquiry` is our own inquiries about their outcome, which go on while
    payments are stopped.
    """


@circuits.command("list", epilog=EPILOG)
@admin_options
def list_circuits(admin: str, token: str | None, home: Path, as_json: bool) -> None:
    """Show the state of every circuit, the calls in flight at each provider, and the rest of the retry budgets.

    "Retries left" is in units of cost, in the tightest of each scope: a retry costs 1 if nothing was sent, 2 after an
    error response, 4 after a lost response.

    \b
      paywitness circuits list --json
    """
    client = client_for(admin, token, home)
    found = _call_circuits_api(client.circuits) | _call_circuits_api(client.budgets)
    if as_json:
        print_json(found)
    else:
        print_circuits(found)


_PROVIDER = click.argument("provider")
_GROUP = click.argument("group", type=click.Choice([group.value for group in CallGroup]))


@circuits.command("force", epilog=EPILOG)
@_PROVIDER
@_GROUP
@click.argument("state", type=click.Choice(sorted(state.value for state in FORCIBLE)))
@click.option("--reason", required=True, help="Why: shown beside the circuit, and in the log.")
@click.option(
    "--for", "lasts", metavar="DURATION", default="1h", show_default=True, help="How long: 15m, 2h, at most 7d."
)
@actor_option
@admin_options
def force_circuit(
    admin: str, token: str | None, home: Path, as_json: bool, provider: str, group: str, state: str, **given: str
) -> None:
    """Put a circuit into a state for a limited time, whatever the calls show.

    \b
      open      nothing is sent: new calls get 503 at once; inquiries for unknown outcomes go on
      degraded  calls pass, low priority is shed, retries go only as far as they help
      closed    calls pass, even if the circuit would have opened or the provider asked to wait
    \b
      paywitness circuits force acme write open --reason "maintenance until 14:00" --for 2h

    It holds for all sidecars that share --limits, or else for this one. A forced open ends with a few probes.
    """
    command = {"state": state, "actor": given["actor"], "reason": given["reason"], "for": given["lasts"]}
    client = client_for(admin, token, home)
    found = _call_circuits_api(lambda: client.force(provider, group, command))
    _show(found, as_json=as_json)


@circuits.command("release", epilog=EPILOG)
@_PROVIDER
@_GROUP
@click.option("--reason", required=True, help="Why: shown in the log.")
@actor_option
@admin_options
def release_circuit(
    admin: str, token: str | None, home: Path, as_json: bool, provider: str, group: str, actor: str, reason: str
) -> None:
    """Take a forced state back before its time. If none is in force, nothing changes.

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
            if error.status_code == 404:  # not about an operation: the reply already says what exists instead
                raise click.ClickException(printable(str(error))) from None
            raise

    return call_admin(with_plain_404)
