"""How `paywitness ops` prints: tables for wide terminals, two lines for narrow ones, the timeline of one operation,
CSV.

Keys and references are foreign text. They must not control the terminal, and a spreadsheet must not run them.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paywitness.cli.ops.text import moment, moment_ahead, numbers, text_of, words
from paywitness.cli.ops.timeline import print_timeline
from paywitness.telemetry.logs import printable

_PIPE_COLUMNS = 200  # a pipe has no width; fold little
_TABLE_COLUMNS_MIN = 120  # on a narrower terminal a table folds its cells beyond reading

# Colours for outcomes that a person should see first. An operation that ended without effect gets none.
_COLOURS = {"succeeded": "green", "unknown": "bold yellow", "pending": "cyan", "in_flight": "cyan"}


def console() -> Console:
    return Console(width=shutil.get_terminal_size((_PIPE_COLUMNS, 0)).columns, highlight=False)


def print_json(found: dict[str, Any]) -> None:
    # escaped: text of a provider must not control the terminal
    click.echo(json.dumps(found, indent=2, ensure_ascii=True))


def print_list(found: dict[str, Any], *, narrowed: bool) -> None:
    screen = console()
    operations = found["operations"]
    if not operations:
        screen.print("No operation fits these filters." if narrowed else "The journal holds no operation yet.")
        return
    if screen.width < _TABLE_COLUMNS_MIN:
        for row in operations:
            key = f"{row['provider']} {row['operation']}, {row['client_key']}"
            screen.print(text_of(f"{row['id']}  {moment(row['created_at'])}  {key}"), soft_wrap=True)
            screen.print(Text.assemble("    ", text_of(row["verdict"], _colour(row))), soft_wrap=True)
            if row["proposal"]:
                screen.print(Text.assemble("    to do: ", text_of(row["proposal"])), soft_wrap=True)
    else:
        screen.print(_table(operations))
    if found["next"]:
        screen.print(text_of(f"There are more: --before {found['next']}"))


def _table(operations: list[dict[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("Operation", no_wrap=True)
    table.add_column("Created (UTC)", no_wrap=True)
    table.add_column("Provider", overflow="fold")
    table.add_column("Key", overflow="fold")
    table.add_column("Was it charged?", overflow="fold")
    for row in operations:
        table.add_row(
            text_of(row["id"]),
            text_of(moment(row["created_at"])),
            text_of(f"{row['provider']} {row['operation']}"),
            text_of(row["client_key"]),
            _verdict_cell(row),
        )
    return table


def _verdict_cell(row: dict[str, Any]) -> Text:
    verdict = text_of(row["verdict"], _colour(row))
    return Text.assemble(verdict, "\nto do: ", text_of(row["proposal"])) if row["proposal"] else verdict


def print_operation(
    found: dict[str, Any], payment: dict[str, Any] | None = None, *, now: float, with_leases: bool = False
) -> None:
    """An operation. If its payment has other operations, the timeline covers all of them."""
    screen = console()
    screen.print(Text.assemble(text_of(found["id"]), " ", text_of(found["verdict"], _colour(found))))
    _print_facts(screen, _facts(found, now))
    if payment is None or (len(payment["operations"]) <= 1 and not _has_commands(payment)):
        print_timeline(screen, found["timeline"], with_leases=with_leases)
        return
    screen.print("\nPayment")
    _print_balance(screen, payment)
    print_timeline(screen, payment["timeline"], with_leases=with_leases)


def print_payment(found: dict[str, Any], *, with_leases: bool = False) -> None:
    screen = console()
    screen.print(text_of(f"{_name_of(found)} at {found['provider']}"))
    _print_balance(screen, found)
    print_timeline(screen, found["timeline"], with_leases=with_leases)


def print_intent(found: dict[str, Any], *, with_leases: bool = False) -> None:
    screen = console()
    safe = found["safe_to_pay"]
    answer = "may be paid" if safe else "must not be paid now"
    screen.print(Text.assemble(text_of(found["intent"]), " ", text_of(answer, "green" if safe else "bold yellow")))
    screen.print(text_of(f"  {found['explanation']}"), soft_wrap=True)
    if found["note"]:
        screen.print(text_of(f"  {found['note']}"), soft_wrap=True)
    for payment in found["payments"]:
        screen.print()
        screen.print(text_of(f"{_name_of(payment)} at {payment['provider']}"))
        _print_facts(screen, _payment_facts(payment))
    _print_operations(screen, found["operations"])
    print_timeline(screen, found["timeline"], with_leases=with_leases)


def _name_of(payment: dict[str, Any]) -> str:
    return str(payment["names"][0] if payment["names"] else payment["payment"])


def _has_commands(payment: dict[str, Any]) -> bool:
    return any(entry["command"] for entry in payment["timeline"])


def _print_balance(screen: Console, payment: dict[str, Any]) -> None:
    screen.print(text_of(f"  {payment['explanation']}"), soft_wrap=True)
    _print_facts(screen, _payment_facts(payment))
    _print_operations(screen, payment["operations"])


def _print_facts(screen: Console, lines: Iterable[tuple[str, str]]) -> None:
    facts = Table(box=None, show_header=False, pad_edge=True)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in lines:
        facts.add_row(name, text_of(value))
    screen.print(facts)


def _payment_facts(payment: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The balance. An unknown number is printed as unknown."""

    def amount(text: str | None) -> str:
        return "unknown" if text is None else f"{text} {payment['currency']}"

    yield "payment", payment["payment"]
    yield "known as", ", ".join(payment["names"])
    if payment["intent"]:
        yield "order", payment["intent"]
    yield "account", payment["account"]
    if payment["priority"]:
        yield "priority", payment["priority"]
    for name in ("authorised", "captured", "refunded", "voided", "disputed", "stands"):
        yield name, amount(payment[name])
    for kind, text in payment["reserved"].items():
        yield f"open {kind}", amount(text)
    if payment["expires_at"]:
        yield "expires", moment(payment["expires_at"])


def _print_operations(screen: Console, operations: list[dict[str, Any]]) -> None:
    if operations:
        screen.print("\nOperations")
    for row in operations:
        screen.print(
            Text.assemble(
                text_of(f"  {row['id']}  {row['operation']} ({row['kind']})  "), text_of(row["verdict"], _colour(row))
            ),
            soft_wrap=True,
        )


def _facts(found: dict[str, Any], now: float) -> Iterator[tuple[str, str]]:
    """The facts that are known about an operation, each for one line."""
    amount = f"{found['amount']} {found['currency']}" if found["amount"] else None
    doubt = f", in doubt: {numbers(found['doubt'])}" if found["doubt"] else ""
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
        ("account", found["account"]),
        ("priority", found["priority"]),
        ("state", words(found["state"])),
        ("attempts", f"{found['attempts']}{doubt}{under_way}"),
        ("read as", words(found["reading"]) if found["reading"] else None),
        ("because", found["because"]),
        ("fallback for", _first_route(found)),
        ("fell back to", found.get("fallback_to")),
        ("customer advice", words(found["advice"])),
        ("incident", words(found["incident"]) if found["incident"] else None),
        ("other amount", _other_amount(found.get("other_payment"))),
        ("other payment", _other_payment(found.get("other_payment"))),
        ("to do", found["proposal"]),
        ("provider's page", found["dashboard"]),
        ("you may", ", ".join(found["actions"])),
        ("created", moment(found["created_at"])),
        ("ended", moment(found["ended_at"]) if found["ended_at"] else None),
        ("next check", moment_ahead(found["next_check_at"], now) if found["next_check_at"] else None),
        ("inquiry", _inquiry(found.get("inquiry"), now)),
        ("policy revision", found["revision"]),
    )
    return ((name, value) for name, value in lines if value)


def _inquiry(inquiry: dict[str, Any] | None, now: float) -> str | None:
    """The next inquiry and the end of the schedule: 3 of 8, gives up at 2026-01-31 12:00:00 (in 5 h)."""
    if inquiry is None:
        return None
    return f"{inquiry['next']} of {inquiry['of']}, gives up at {moment_ahead(inquiry['gives_up_at'], now)}"


def _other_amount(other: dict[str, Any] | None) -> str | None:
    return f"{other['amount']} {other['currency']}" if other and other["amount"] else None


def _other_payment(other: dict[str, Any] | None) -> str | None:
    """The other side of the incident: its operation, its reference, its provider."""
    if not other or not (other["operation"] or other["reference"]):
        return None
    return " ".join(part for part in (other["operation"], other["reference"], "at", other["provider"]) if part)


def _first_route(found: dict[str, Any]) -> str | None:
    """The operation that this fallback replaces. Fallbacks of an earlier release do not name its route, nor why it
    ended."""
    first: str | None = found.get("fallback_of")
    if first is None or not found.get("fallback_from"):
        return first
    return f"{first} at {found['fallback_from']} ({words(found['fallback_reason'])})"


def _colour(row: dict[str, Any]) -> str:
    return "bold red" if row["incident"] else _COLOURS.get(row["outcome"], "")


# --- CSV

CSV_COLUMNS = (
    "operation",
    "created_at",
    "provider",
    "name",
    "kind",
    "state",
    "outcome",
    "was_it_charged",
    "amount",
    "currency",
    "key",
    "reference",
    "order",
    "incident",
    "to_do",
    "next_check_at",
    "dashboard",
)
# A spreadsheet takes a cell that starts so for a formula. Keys and references are foreign text.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_of(operations: Iterable[dict[str, Any]]) -> str:
    """The rows with a heading, in the format of RFC 4180."""
    written = io.StringIO()
    writer = csv.writer(written)
    writer.writerow(CSV_COLUMNS)
    for row in operations:
        writer.writerow([csv_cell(value) for value in _csv_cells(row)])
    return written.getvalue()


def _csv_cells(row: dict[str, Any]) -> tuple[str | None, ...]:
    return (
        row["id"],
        row["created_at"],
        row["provider"],
        row["operation"],
        row["kind"],
        row["state"],
        row["outcome"],
        row["verdict"],
        row["amount"],
        row["currency"],
        row["client_key"],
        row["reference"],
        row["guard"]["shown"] if row["guard"] else None,
        row["incident"],
        row["proposal"],
        row["next_check_at"],
        row["dashboard"],
    )


def csv_cell(value: str | None) -> str:
    """A text that a spreadsheet shows and does not run."""
    if not value:
        return ""
    return f"'{printable(value)}" if value.startswith(_FORMULA_STARTS) else printable(value)
