"""The reader of the SQLite journal: look-ups and lists, on a connection that cannot write, in a thread of its own. The
module also has the stored webhook events, which the writer's thread uses within its transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paywitness.core.operation import DoubtCount, HistoryEntry, Operation, State
from paywitness.journal.base import (
    AnnouncementRow,
    LedgerRow,
    OperationQuery,
    PolicyRevision,
    StoredWebhookEvent,
    WebhookEventResult,
)
from paywitness.journal.encoding import READ_COLUMNS, entry_from_text, operation_from_row
from paywitness.journal.sqlite.file import open_for_reading, unavailable
from paywitness.journal.sqlite.rows import SqliteRows
from paywitness.journal.sqlite.schema import IN_DOUBT, LISTED_BY_STATE
from paywitness.journal.sqlite.writer import SqliteWriter, WorkerCall
from paywitness.journal.transitions import HISTORY_MAX, LISTING_MAX

# Only constants of ours are put into the text of a statement; values are always bound.

_SELECT = f"SELECT {', '.join(READ_COLUMNS)} FROM operations"
# Sums in two halves, because SQLite's own sum of whole numbers fails if it does not fit 64 bits.
_DOUBT_COUNTS = f"""SELECT provider, operation, coalesce(currency, ''), state, count(*),
    sum(minor_units >> 32), sum(minor_units & 4294967295), min(created_at)
    FROM operations INDEXED BY in_doubt WHERE {IN_DOUBT} GROUP BY provider, operation, currency, state"""
# Changes are committed in the order of their `seq`, because one writer does both.
_ANNOUNCEMENTS = f"""SELECT changes.seq, changes.at, changes.version, changes.entry,
    {", ".join(f"operations.{column}" for column in READ_COLUMNS)}
    FROM changes INDEXED BY telling CROSS JOIN operations ON operations.id = changes.operation_id
    WHERE changes.told = 1 AND changes.seq > ? ORDER BY changes.seq LIMIT ?"""
_NEWEST_CREDENTIALS = """SELECT credential, sealed FROM credentials WHERE account = ? AND sealed IS NOT NULL
    ORDER BY accepted_at DESC, credential DESC LIMIT ?"""
# Amounts, accounts and kinds have no index, because every call would pay for one. A list by them searches this many of
# the newest operations.
_SCANNED_MAX = 200_000


class SqliteReader:
    """Owns the reading connection. Made anywhere, then used by one thread alone, except for `interrupt`."""

    def __init__(self, path: Path) -> None:
        self._connection = open_for_reading(path)

    def run_batch(self, calls: list[WorkerCall], computed: Callable[[], None]) -> list[Any]:
        return [self._run_one(call) for call in calls]

    def _run_one(self, call: WorkerCall) -> Any:
        method, argument, future, _ = call
        if future.done():
            return None  # its caller has given up
        try:
            return method(argument)
        except sqlite3.Error as error:
            return unavailable(error)
        except Exception as error:  # noqa: BLE001  # raised to its caller; the other calls still run
            return error

    def on_idle(self) -> None:
        pass

    def close(self) -> None:
        self._connection.close()

    def interrupt(self) -> None:
        """End the running query, because its caller has given up."""
        self._connection.interrupt()

    def read(self, operation_id: str) -> Operation | None:
        row = self._connection.execute(f"{_SELECT} WHERE id = ?", (operation_id,)).fetchone()
        return None if row is None else operation_from_row(row)

    def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        row = self._connection.execute(
            "SELECT sealed_request, sealed_response FROM operations WHERE id = ?", (operation_id,)
        ).fetchone()
        return (None, None) if row is None else (row[0], row[1])

    def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        rows = self._connection.execute(
            "SELECT at, version, entry FROM changes WHERE operation_id = ? ORDER BY version LIMIT ?",
            (operation_id, HISTORY_MAX),
        )
        return tuple(entry_from_text(*row) for row in rows)

    def ledger_rows(self, keys: tuple[str, ...]) -> tuple[LedgerRow | None, ...]:
        rows = SqliteRows(self._connection.cursor())
        return tuple(rows.row_or_linked(key) for key in keys)

    def doubt_counts(self, _: None) -> tuple[DoubtCount, ...]:
        return tuple(
            DoubtCount(
                provider=provider,
                operation=operation,
                currency=currency,
                state=State(state),
                count=count,
                minor_units=((high or 0) << 32) + (low or 0),
                oldest_at=oldest_at,
            )
            for provider, operation, currency, state, count, high, low, oldest_at in self._connection.execute(
                _DOUBT_COUNTS
            )
        )

    def announcements(self, arguments: tuple[int, int]) -> tuple[AnnouncementRow, ...]:
        rows = self._connection.execute(_ANNOUNCEMENTS, arguments)
        return tuple(
            AnnouncementRow(seq, operation_from_row(row), entry_from_text(at, version, entry))
            for seq, at, version, entry, *row in rows
        )

    def accepts_credential(self, pair: tuple[str, str]) -> bool:
        query = "SELECT 1 FROM credentials WHERE account = ? AND credential = ?"
        return self._connection.execute(query, pair).fetchone() is not None

    def newest_credentials(self, asked: tuple[str, int]) -> tuple[tuple[str, bytes], ...]:
        rows = self._connection.execute(_NEWEST_CREDENTIALS, asked)
        return tuple((credential, sealed) for credential, sealed in rows)

    def revision(self, named: tuple[str, str]) -> PolicyRevision | None:
        row = self._connection.execute(
            "SELECT provider, revision, content, kept_at FROM revisions WHERE provider = ? AND revision = ?", named
        ).fetchone()
        return None if row is None else PolicyRevision(*row)

    def latest_revision(self, provider: str) -> PolicyRevision | None:
        row = self._connection.execute(
            "SELECT provider, revision, content, kept_at FROM revisions WHERE provider = ? ORDER BY seq DESC LIMIT 1",
            (provider,),
        ).fetchone()
        return None if row is None else PolicyRevision(*row)

    def find_operations(self, listing: OperationQuery) -> tuple[Operation, ...]:
        limit = max(1, min(listing.limit, LISTING_MAX))
        rows: list[Any] = []
        for query, arguments in listing_queries(listing):
            rows.extend(self._connection.execute(query, (*arguments, limit)))
        rows.sort(key=lambda row: str(row[0]), reverse=True)
        return tuple(operation_from_row(row) for row in rows[:limit])


def listing_queries(listing: OperationQuery) -> list[tuple[str, tuple[Any, ...]]]:
    """The queries whose first rows together contain the rows of the list: one for each state, so that each can use its
    index."""
    conditions, arguments = _conditions(listing)
    if not listing.states:
        return [(_query("", conditions), arguments)]
    queries = []
    for state in sorted(listing.states):
        if _has_selective_filter(listing):
            where = ["state = ?", *conditions]
            queries.append((_query("", where), (state.value, *arguments)))
        elif state is State.SENDING:  # an operation that is being sent always has a lease
            where = ["lease_until_at IS NOT NULL", "state = ?", *conditions]
            queries.append((_query("INDEXED BY leased", where), (state.value, *arguments)))
        elif state is State.SUCCEEDED:  # most operations, so there is no index for it
            queries.append((_query("", ["state = ?", *conditions]), (state.value, *arguments)))
        else:
            where = [LISTED_BY_STATE, "state = ?", *conditions]
            queries.append((_query("INDEXED BY by_state", where), (state.value, *arguments)))
    return queries


def _has_selective_filter(listing: OperationQuery) -> bool:
    searched = (listing.key, listing.reference, listing.stamp, listing.guard, listing.subject, listing.payment)
    return listing.incidents_only or any(value is not None for value in searched)


_BY_KEY = """number IN (SELECT number FROM operations WHERE client_key = ?
    UNION SELECT number FROM operations WHERE provider_key = ? AND provider_key <> client_key
    UNION SELECT number FROM operations WHERE id IN (SELECT operation_id FROM aliases WHERE client_key = ?))"""
_BY_PAYMENT = """number IN (SELECT number FROM operations WHERE id = ? AND json_extract(standing, '$.payment') = id
    UNION SELECT number FROM operations WHERE payment = ?)"""
_BY_STAMP = """number IN (SELECT number FROM operations WHERE id = ?
    UNION SELECT number FROM operations WHERE stamp = ?)"""


def _conditions(listing: OperationQuery) -> tuple[list[str], tuple[Any, ...]]:
    arguments: list[tuple[str, str | None]] = [
        (_BY_KEY, listing.key),
        (_BY_STAMP, listing.stamp),
        (_BY_PAYMENT, listing.payment),
        ("guard = ?", listing.guard),
        ("subject = ?", listing.subject),
        ("reference = ?", listing.reference),
        ("provider = ?", listing.provider),
        ("operation = ?", listing.operation),
        ("json_extract(identity, '$.kind') = ?", listing.kind),
        ("id < ?", listing.before),
    ]
    pairs: list[tuple[str, tuple[Any, ...]]] = [
        (condition, (value,) * condition.count("?")) for condition, value in arguments if value is not None
    ]
    if listing.incidents_only:
        pairs.append(("incident IS NOT NULL", ()))
    if listing.accounts:
        places = ", ".join("?" * len(listing.accounts))
        pairs.append((f"json_extract(identity, '$.account') IN ({places})", tuple(sorted(listing.accounts))))
    if listing.money is not None:
        pairs.append(("currency = ? AND minor_units = ?", (listing.money.currency, listing.money.minor_units)))
    if listing.money is not None or listing.accounts or listing.kind is not None:
        pairs.extend(_scan_conditions(listing))
    return [condition for condition, _ in pairs], tuple(value for _, values in pairs for value in values)


def _scan_conditions(listing: OperationQuery) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The bound for a list that needs a scan."""
    if not _has_selective_filter(listing) and listing.before is None:
        yield "number > (SELECT max(number) FROM operations) - ?", (_SCANNED_MAX,)
    elif not _has_selective_filter(listing):
        newest = "number > (SELECT number FROM operations WHERE id <= ? ORDER BY id DESC LIMIT 1) - ?"
        yield newest, (listing.before, _SCANNED_MAX)


def _query(index: str, conditions: list[str]) -> str:
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{_SELECT} {index} {where} ORDER BY id DESC LIMIT ?"


# --- Stored webhook events
# Webhook events in the embedded journal, stored before the sidecar acknowledges them. The writer's thread uses this,
# within its transaction.

_COLUMNS = "number, provider, account, event_id, received_at, sealed, result, operation_id, tries, due_at, relay_due_at"
_STORE = """INSERT OR IGNORE INTO notices
    (provider, account, event_id, received_at, sealed, result, operation_id, tries, due_at, relay_due_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_UPDATE = "UPDATE notices SET result = ?, operation_id = ?, tries = ?, due_at = ?, relay_due_at = ? WHERE number = ?"
_DUE = "SELECT due_at, number FROM notices INDEXED BY notices_due WHERE due_at <= ? ORDER BY due_at, number LIMIT ?"
_TO_RELAY = (
    "SELECT relay_due_at, number FROM notices INDEXED BY notices_to_relay WHERE relay_due_at <= ? "
    "ORDER BY relay_due_at, number LIMIT ?"
)


class SqliteWebhookEvents:
    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer

    def store(self, webhook_event: StoredWebhookEvent) -> bool:
        what = (
            webhook_event.provider,
            webhook_event.account,
            webhook_event.event_id,
            webhook_event.received_at,
            webhook_event.sealed,
        )
        return self._writer.cursor.execute(_STORE, (*what, *_progress_values(webhook_event))).rowcount == 1

    def due(self, limit: int) -> tuple[StoredWebhookEvent, ...]:
        """The due events. This runs in the writer's thread, because it needs the journal's own clock."""
        now = self._writer.time.now()
        cursor = self._writer.cursor
        found: dict[int, float] = {}
        for query in (_DUE, _TO_RELAY):
            for due_at, number in cursor.execute(query, (now, limit)).fetchall():
                found[number] = min(due_at, found.get(number, due_at))
        oldest_first = sorted(found, key=lambda number: (found[number], number))[:limit]
        query = f"SELECT {_COLUMNS} FROM notices WHERE number = ?"
        return tuple(_event_from_row(*cursor.execute(query, (number,)).fetchone()) for number in oldest_first)

    def update(self, webhook_event: StoredWebhookEvent) -> None:
        self._writer.cursor.execute(_UPDATE, (*_progress_values(webhook_event), webhook_event.number))


def _progress_values(webhook_event: StoredWebhookEvent) -> tuple[object, ...]:
    return (
        webhook_event.result.value,
        webhook_event.operation_id,
        webhook_event.attempts,
        webhook_event.due_at,
        webhook_event.relay_due_at,
    )


def _event_from_row(
    number: int,
    provider: str,
    account: str,
    event_id: str,
    received_at: float,
    sealed: bytes,
    result: str,
    operation_id: str | None,
    tries: int,
    due_at: float | None,
    relay_due_at: float | None,
) -> StoredWebhookEvent:
    what = (number, provider, account, event_id, received_at, sealed)
    return StoredWebhookEvent(*what, WebhookEventResult(result), operation_id, tries, due_at, relay_due_at)
