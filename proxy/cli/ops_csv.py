"""`paywitness ops list --csv`: a list for a spreadsheet, with a link to the provider's own page about each payment."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from proxy.telemetry.lines import printable

COLUMNS = (
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
# What makes a spreadsheet take a cell for a formula. A key or reference is somebody else's text.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_of(operations: Iterable[dict[str, Any]]) -> str:
    """The rows with their heading, as RFC 4180 has them."""
    written = io.StringIO()
    writer = csv.writer(written)
    writer.writerow(COLUMNS)
    for row in operations:
        writer.writerow([cell(value) for value in _cells(row)])
    return written.getvalue()


def _cells(row: dict[str, Any]) -> tuple[str | None, ...]:
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


def cell(value: str | None) -> str:
    """A text that a spreadsheet shows and does not run."""
    if not value:
        return ""
    return f"'{printable(value)}" if value.startswith(_FORMULA_STARTS) else printable(value)
