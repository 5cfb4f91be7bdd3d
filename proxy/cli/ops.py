"""`paywitness ops list | show`: what became of the money, asked of a running proxy by its admin port."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.admin.client import AdminClient, AdminRefused, AdminUnreachable
from proxy.core.operation import State
from proxy.telemetry.lines import printable

_PIPE_COLUMNS = 200  # little is folded where nobody looks at a screen
_TABLE_COLUMNS_MIN = 120  # below it a table folds its cells beyond reading

# What a person should see first. What ended without effect needs no colour.
_COLOURS = {"succeeded": "green", "unknown": "bold yellow", "pending": "cyan", "in_flight": "cyan"}

_STATES = [state.value for state in State]

_EPILOG = """
\b
The token is that of the running proxy: --token, or PAYWITNESS_ADMIN_TOKEN, or the file
admin-token in --home, which `paywitness run` makes.
"""

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(epilog=_EPILOG)
def ops() -> None:
    """Look up operations: was it charged, what is in doubt, and why.

    \b
      paywitness ops list --doubt            money that may or may not have moved
      paywitness ops list --key order-17     what became of one order
      paywitness ops show op_01J...          one operation and everything that happened to it
    """


def _where(command: Command) -> Command:
    """The options of every command: where the proxy is, who asks, and how to print."""
    options = (
        click.option("--json", "as_json", is_flag=True, help="Print the admin API's JSON instead of text."),
        click.option(
            "--home",
            default=".paywitness",
            envvar="PAYWITNESS_HOME",
            show_envvar=True,
            type=click.Path(path_type=Path),
            show_default=True,
            help="Where `paywitness run` keeps the admin token.",
        ),
        click.option(
            "--token",
            envvar="PAYWITNESS_ADMIN_TOKEN",
            show_envvar=True,
            help="The admin token. Better by the variable: arguments can be read by others on the machine.",
        ),
        click.option(
            "--admin",
            default="http://127.0.0.1:8701",
            envvar="PAYWITNESS_ADMIN",
            show_envvar=True,
            show_default=True,
            help="The proxy's admin port.",
        ),
    )
    for option in options:
        command = option(command)
    return command


@ops.command("list", epilog=_EPILOG)
@click.option("--provider", help="Only this provider's.")
@click.option("--operation", help="Only this operation's, as the policy names it: authorization, refund, ...")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(_STATES),
    metavar="STATE",
    help=f"Only in this state; repeatable. One of {', '.join(_STATES)}.",
)
@click.option("--doubt", is_flag=True, help="Only where money may or may not have moved: unknown, and in review.")
@click.option("--review", is_flag=True, help="Only what waits for a person.")
@click.option("--incidents", is_flag=True, help="Only where evidence contradicts what was final.")
@click.option("--key", help="Only under this key: the service's own, or the one that went to the provider.")
@click.option("--reference", help="Only with this name at the provider: ch_..., a payment id.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 200), help="How many, newest first.")
@click.option("--before", metavar="ID", help="The next page: those older than this operation.")
@_where
def list_operations(
    admin: str,
    token: str | None,
    home: Path,
    as_json: bool,
    states: tuple[str, ...],
    limit: int,
    **filters: str | bool | None,
) -> None:
    """List operations, newest first.

    Every line answers "was it charged?". Filters narrow the list together; --state, --doubt and --review add up.
    """
    query = [("state", state) for state in states]
    query += [(name, "true" if value is True else str(value)) for name, value in filters.items() if value]
    client = AdminClient(admin, token or _kept_token(home))
    found = _ask(lambda: client.operations([*query, ("limit", str(limit))]))
    if as_json:
        _print_json(found)
    else:
        _print_list(found, narrowed=bool(query))


@ops.command("show", epilog=_EPILOG)
@click.argument("operation_id", metavar="ID")
@_where
def show_operation(admin: str, token: str | None, home: Path, as_json: bool, operation_id: str) -> None:
    """Show one operation and its timeline.

    The first line answers "was it charged?". The timeline tells every attempt: how far it got, what came back, what was
    made of it, and what was decided because of which rule.
    """
    client = AdminClient(admin, token or _kept_token(home))
    found = _ask(lambda: client.operation(operation_id))
    if as_json:
        _print_json(found)
    else:
        _print_operation(found)


def _kept_token(home: Path) -> str | None:
    """The token that `paywitness run` made, where there is one."""
    try:
        return (home / "admin-token").read_text("utf-8").strip() or None
    except (OSError, ValueError):
        return None


def _ask(question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return question()
    except AdminUnreachable as error:
        raise click.ClickException(str(error)) from None
    except AdminRefused as error:
        raise click.ClickException(printable(_explained(error))) from None


def _explained(error: AdminRefused) -> str:
    if error.status_code == 401:
        return (
            "The proxy does not accept the admin token, or none was given. Give the one it was started with: "
            "--token, PAYWITNESS_ADMIN_TOKEN, or --home with the directory that holds its admin-token."
        )
    if error.status_code == 404:
        return f"{error} `paywitness ops list` shows what it holds; what has ended leaves it after a while."
    return str(error)


# --- printing


def _console() -> Console:
    return Console(width=shutil.get_terminal_size((_PIPE_COLUMNS, 0)).columns, highlight=False)


def _print_json(found: dict[str, Any]) -> None:
    click.echo(json.dumps(found, indent=2, ensure_ascii=True))  # escaped: what a provider wrote commands no terminal


def _print_list(found: dict[str, Any], *, narrowed: bool) -> None:
    console = _console()
    operations = found["operations"]
    if not operations:
        console.print("No operation fits these filters." if narrowed else "The journal holds no operation yet.")
        return
    if console.width < _TABLE_COLUMNS_MIN:
        for row in operations:
            key = f"{row['provider']} {row['operation']}, {row['client_key']}"
            console.print(_text(f"{row['id']}  {_moment(row['created_at'])}  {key}"), soft_wrap=True)
            console.print(Text.assemble("    ", _text(row["verdict"], _colour(row))), soft_wrap=True)
    else:
        console.print(_table(operations))
    if found["next"]:
        console.print(_text(f"There are more: --before {found['next']}"))


def _table(operations: list[dict[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("Operation", no_wrap=True)
    table.add_column("Created (UTC)", no_wrap=True)
    table.add_column("Provider", overflow="fold")
    table.add_column("Key", overflow="fold")
    table.add_column("Was it charged?", overflow="fold")
    for row in operations:
        table.add_row(
            _text(row["id"]),
            _text(_moment(row["created_at"])),
            _text(f"{row['provider']} {row['operation']}"),
            _text(row["client_key"]),
            _text(row["verdict"], _colour(row)),
        )
    return table


def _print_operation(found: dict[str, Any]) -> None:
    console = _console()
    console.print(Text.assemble(_text(found["id"]), " ", _text(found["verdict"], _colour(found))))
    facts = Table(box=None, show_header=False, pad_edge=True)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(found):
        facts.add_row(name, _text(value))
    console.print(facts)
    console.print("\nTimeline (UTC)")
    for entry in found["timeline"]:
        events = ", ".join(_words(event) for event in entry["events"]) or "written"
        console.print(_text(f"  {_moment(entry['at'])}  {events} -> {_words(entry['state'])}  ({entry['source']})"))
        for line in _details(entry):
            console.print(_text(f"      {line}", "dim" if line.startswith(" ") else ""))


def _facts(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is worth a line, leaving out what is not known."""
    amount = f"{found['amount']} {found['currency']}" if found["amount"] else None
    doubt = f", in doubt: {_numbers(found['doubt'])}" if found["doubt"] else ""
    under_way = ", one under way" if found["attempt_under_way"] else ""
    guard = found["guard"]
    about = f"{guard['kind']} {guard['shown']}" if guard and guard["shown"] else None
    lines = (
        ("provider", found["provider"]),
        ("operation", f"{found['operation']} ({found['kind']})"),
        ("amount", amount),
        ("key", f"{found['client_key']} ({found['key_source']})"),
        ("key at provider", found["provider_key"]),
        ("reference", found["reference"]),
        ("about", about),
        ("state", _words(found["state"])),
        ("attempts", f"{found['attempts']}{doubt}{under_way}"),
        ("read as", _words(found["reading"]) if found["reading"] else None),
        ("because", found["because"]),
        ("customer advice", _words(found["advice"])),
        ("incident", found["incident"]),
        ("created", _moment(found["created_at"])),
        ("ended", _moment(found["ended_at"]) if found["ended_at"] else None),
        ("next check", _moment(found["next_check_at"]) if found["next_check_at"] else None),
        ("policy revision", found["revision"]),
    )
    return ((name, value) for name, value in lines if value)


def _details(entry: dict[str, Any]) -> Iterator[str]:
    attempt, decision = entry["attempt"], entry["decision"]
    if attempt is not None:
        answer = f"answered {attempt['status_code']}" if attempt["status_code"] else "no whole answer"
        fault = f", {_words(attempt['fault'])}" if attempt["fault"] else ""
        reach = f"reached {attempt['phase']}, {attempt['bytes_written']} bytes written"
        yield f"attempt {attempt['number']}: {answer}{fault}; {reach}, {attempt['duration_ms']:.0f} ms"
        meaning = f"read as {_words(attempt['reading'])}, effect {attempt['effect']} (rule {attempt['rule']})"
        yield f"  {meaning}{'; ' + attempt['detail'] if attempt['detail'] else ''}"
    if entry["doubt"]:
        yield f"in doubt: attempt {_numbers(entry['doubt'])}"
    if decision is not None:
        delay = f" after {decision['delay_s']:g} s" if decision["delay_s"] else ""
        yield f"decided: {_words(decision['action'])}{delay}, because {decision['because']}"
    if entry["note"]:
        yield f"note: {entry['note']}"


def _text(value: str, style: str = "") -> Text:
    """As it is: no markup is read in it, and nothing in it commands the terminal."""
    return Text(printable(value), style=style)


def _colour(row: dict[str, Any]) -> str:
    return "bold red" if row["incident"] else _COLOURS.get(row["outcome"], "")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _numbers(attempts: list[int]) -> str:
    return ", ".join(str(number) for number in attempts)


def _moment(iso: str) -> str:
    """2026-01-31T12:00:00.123Z as people write it."""
    return iso[:19].replace("T", " ")
