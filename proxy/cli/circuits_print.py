"""How `paywitness circuits` prints: a table for wide terminals, a few lines each for narrow ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from proxy.cli.ops_print import console, text_of, words
from proxy.core.circuit import CircuitState, Group

_TABLE_COLUMNS_MIN = 120  # below it a table folds its cells beyond reading
_COLOURS = {"open": "bold red", "degraded": "bold yellow", "half_open": "yellow", "ramp": "yellow"}
_UNITS_S = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_TITLES = ("Circuit", "State", "Since", "For whom", "Calls", "Retries left", "Forced by")

Row = dict[str, Any]


def print_circuit(row: Row) -> None:
    """How a circuit stands after an order."""
    ends = f" It ends by itself in {_span(row['retry_after_s'])}." if row["forced"] else ""
    click.echo(text_of(f"{row['provider']} {row['group']} is {words(row['state'])}, {_whose(row)}.{ends}").plain)


def print_circuits(found: Row) -> None:
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
            facts = ", ".join(part for part in (_whose(row), calls, left and f"retries left: {left}") if part)
            screen.print(text_of(f"    {facts}"), soft_wrap=True)
            if row["forced"]:
                screen.print(text_of(f"    forced by {_forced(row)}"), soft_wrap=True)
        return
    table = Table(box=SIMPLE_HEAD)
    for title in _TITLES:
        table.add_column(title, overflow="fold")
    for row, calls, left in rows:
        state = text_of(words(row["state"]), _COLOURS.get(row["state"], ""))
        cells = (_since(row), _whose(row), calls, left, _forced(row))
        table.add_row(text_of(f"{row['provider']} {row['group']}"), state, *map(text_of, cells))
    screen.print(table)


def _rows(found: Row) -> Iterator[tuple[Row, str, str]]:
    """Each circuit, with its calls (which both groups share) and what is left for its retries."""
    crowds = {crowd["provider"]: crowd for crowd in found["admission"]}
    budgets = {(budget["provider"], budget["group"]): budget for budget in found["budgets"]}
    for row in found["circuits"]:
        crowd = crowds.get(row["provider"]) if row["group"] == Group.WRITE else None
        budget = budgets.get((row["provider"], row["group"]))
        yield row, _calls(crowd) if crowd else "", _left(budget) if budget else ""


def _since(row: Row) -> str:
    untouched = row["state"] == CircuitState.CLOSED and not row["for_s"]
    since = "the start" if untouched and not row["forced"] else f"{_span(row['for_s'])} ago"
    if row["throttled"]:
        return f"{since}; asked to wait {_span(row['retry_after_s'])}"
    return f"{since}, {_span(row['retry_after_s'])} to go" if row["retry_after_s"] else since


def _whose(row: Row) -> str:
    return f"for the fleet of {max(1, row['sidecars'])}" if row["fleet"] else "for this sidecar"


def _calls(crowd: Row) -> str:
    waiting = f", {crowd['waiting']} wait" if crowd["waiting"] else ""
    return f"{crowd['in_flight']} of {crowd['limit']:.0f}{waiting}"


def _left(budget: Row) -> str:
    """In every scope that something was counted in; before that, all of it."""
    counted = [scope for scope in budget["scopes"] if scope["remaining"] is not None]
    left = ", ".join(f"{words(scope['scope'])} {scope['remaining']:.1f}" for scope in counted)
    return (left or "all") + ("" if budget["fleet"] else " (own)")


def _forced(row: Row) -> str:
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
