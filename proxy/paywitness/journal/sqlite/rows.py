"""The rows of the embedded journal. The writer looks them up and writes them, always within its transaction."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from collections.abc import Iterable
from typing import Any

from paywitness.core.claim import Alias, AliasKind, Tombstone
from paywitness.core.credential_owners import Maker
from paywitness.core.operation import Lease, Operation, Outcome, State
from paywitness.journal import transitions
from paywitness.journal.base import LedgerRow, NextDue
from paywitness.journal.encoding import (
    COLUMNS,
    MUTABLE_COLUMNS,
    READ_COLUMNS,
    entry_to_text,
    fixed_values,
    mutable_values,
    operation_from_row,
)
from paywitness.journal.ledger import followed
from paywitness.journal.sqlite.schema import DUE

# Only constants of ours are put into the text of a statement; values are always bound.

SELECT = f"SELECT {', '.join(READ_COLUMNS)} FROM operations"
_NEWEST_OF_KEY = f"{SELECT} WHERE key = ? ORDER BY generation DESC LIMIT 1"
_DISPUTED_OF_KEY = f"{SELECT} WHERE key = ? AND incident IS NOT NULL ORDER BY generation DESC LIMIT 1"
_BY_ID = f"{SELECT} WHERE id = ?"
_GUARDED = f"{SELECT} INDEXED BY guards WHERE guard = ? ORDER BY number DESC LIMIT ?"
_GUARDED_BEFORE = (
    f"{SELECT} INDEXED BY guards WHERE guard = ? AND (state <> 'succeeded' OR incident IS NOT NULL "
    "OR lease_token IS NOT NULL) ORDER BY number DESC LIMIT ?"
)
_PAID = f"{SELECT} INDEXED BY guards WHERE guard = ? AND state = 'succeeded' ORDER BY number DESC LIMIT ?"
_EXPIRED = f"{SELECT} INDEXED BY leased WHERE lease_until_at <= ? ORDER BY lease_until_at, number LIMIT ?"
# The `seq` of an operation's last change shows whether its lease is ours or an earlier process's.
_OF_EARLIER_HOLDERS = (
    f"{SELECT} INDEXED BY leased WHERE lease_until_at IS NOT NULL AND (lease_until_at <= ? OR ? >= "
    "(SELECT seq FROM changes WHERE operation_id = operations.id AND changes.version = operations.version)) "
    "ORDER BY lease_until_at, number LIMIT ?"
)
_NEXT_PROVIDER_DUE = f"SELECT min(provider) FROM operations INDEXED BY due WHERE {DUE} AND provider > ?"
_DUE_OF_PROVIDER = (
    f"SELECT due_at, number FROM operations INDEXED BY due WHERE {DUE} AND provider = ? AND due_at <= ? "
    "AND lease_token IS NULL ORDER BY due_at, number LIMIT ?"
)
_NOT_YET_DUE = (
    f"SELECT id, state, due_at FROM operations INDEXED BY due WHERE {DUE} AND provider = ? AND due_at > ? "
    "AND lease_token IS NULL ORDER BY due_at, number LIMIT ?"
)
_FIRST_DUE_OF_PROVIDER = (
    f"SELECT due_at FROM operations INDEXED BY due WHERE {DUE} AND provider = ? AND lease_token IS NULL "
    "ORDER BY due_at LIMIT 1"
)
_FIRST_LEASE_END = "SELECT min(lease_until_at) FROM operations INDEXED BY leased WHERE lease_until_at IS NOT NULL"
_FIRST_WEBHOOK_EVENT = "SELECT min(due_at) FROM notices INDEXED BY notices_due WHERE due_at IS NOT NULL"
_FIRST_RELAY = "SELECT min(relay_due_at) FROM notices INDEXED BY notices_to_relay WHERE relay_due_at IS NOT NULL"
_FIRST_LEDGER_ROW = "SELECT min(due_at) FROM ledger INDEXED BY ledger_due WHERE due_at IS NOT NULL"
_LAST_ANNOUNCED = "SELECT max(seq) FROM changes INDEXED BY telling WHERE told = 1"
_BY_NUMBER = f"{SELECT} WHERE number = ?"
_ALIASES = "SELECT key, client_key, operation_id, kind, at FROM aliases"
_TOMBSTONE = """SELECT key, operation_id, provider, operation, client_key, outcome, reference, ended_at, maker
    FROM tombstones WHERE key = ?"""
_INSERT = (
    f"INSERT INTO operations ({', '.join(COLUMNS)}, sealed_request) VALUES ({', '.join('?' * (len(COLUMNS) + 1))})"
)
_INSERT_CHANGE = "INSERT INTO changes (operation_id, version, at, entry, told) VALUES (?, ?, ?, ?, ?)"


def _update_statement(*, erase_request: bool, keep_response: bool, same_guard: bool) -> str:
    """The UPDATE of an operation. It names large values and indexed columns only if they change, because SQLite would
    write them or their index again."""
    assignments = [f"{column} = ?" for column in MUTABLE_COLUMNS if column != "guard"]
    if erase_request:
        assignments.append("sealed_request = NULL")
    if keep_response:
        assignments.append("sealed_response = ?")
    if not same_guard:
        assignments.append("guard = ?")
    where = "id = ? AND version = ?" + " AND guard IS ?" * same_guard
    return f"UPDATE operations SET {', '.join(assignments)} WHERE {where}"


_UPDATES = {
    asked: _update_statement(erase_request=asked[0], keep_response=asked[1], same_guard=asked[2])
    for asked in itertools.product((False, True), repeat=3)
}


_ROW = "SELECT key, version, value, due_at FROM ledger WHERE key = ?"
_DUE_ROWS = """SELECT key, version, value, due_at FROM ledger INDEXED BY ledger_due
    WHERE due_at <= ? ORDER BY due_at, key LIMIT ?"""
_COUNT_DUE_ROWS = """SELECT count(*) FROM (SELECT key FROM ledger INDEXED BY ledger_due
    WHERE due_at <= ? ORDER BY due_at LIMIT ?) WHERE key GLOB 'p:*'"""
_INSERT_ROW = "INSERT OR IGNORE INTO ledger (key, version, value, due_at, touched_at) VALUES (?, ?, ?, ?, ?)"
_UPDATE_ROW = "UPDATE ledger SET version = ?, value = ?, due_at = ?, touched_at = ? WHERE key = ? AND version = ?"


class SqliteRows:
    """A `claim_answer.ClaimLookups` over one connection's cursor, with the writer's other look-ups."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    # The look-ups of a claim.

    def newest(self, key: str) -> Operation | None:
        row = self._cursor.execute(_NEWEST_OF_KEY, (key,)).fetchone()
        return None if row is None else operation_from_row(row)

    def by_id(self, operation_id: str) -> Operation | None:
        row = self._cursor.execute(_BY_ID, (operation_id,)).fetchone()
        return None if row is None else operation_from_row(row)

    def disputed(self, key: str) -> Operation | None:
        row = self._cursor.execute(_DISPUTED_OF_KEY, (key,)).fetchone()
        return None if row is None else operation_from_row(row)

    def alias(self, key: str) -> Alias | None:
        row = self._cursor.execute(f"{_ALIASES} WHERE key = ?", (key,)).fetchone()
        return None if row is None else _alias_from_row(*row)

    def aliases_of(self, operation_id: str) -> list[Alias]:
        rows = self._cursor.execute(f"{_ALIASES} WHERE operation_id = ?", (operation_id,)).fetchall()
        return [_alias_from_row(*row) for row in rows]

    def tombstone(self, key: str) -> Tombstone | None:
        row = self._cursor.execute(_TOMBSTONE, (key,)).fetchone()
        return None if row is None else _tombstone_from_row(*row)

    def guarded(self, guard: str) -> tuple[Operation, ...]:
        rows = self._cursor.execute(_GUARDED, (guard, transitions.GUARDED_MAX)).fetchall()
        newest = list(map(operation_from_row, reversed(rows)))
        if len(newest) < transitions.GUARDED_MAX:
            return tuple(newest)
        known = {operation.id for operation in newest}
        more = self._several(_GUARDED_BEFORE, guard, transitions.GUARDED_BEFORE_MAX)[::-1]
        return (*(operation for operation in more if operation.id not in known), *newest)

    def row(self, key: str) -> LedgerRow | None:
        found = self._cursor.execute(_ROW, (key,)).fetchone()
        return None if found is None else LedgerRow(*found)

    def accepted(self, account: str, credential: str) -> bool:
        query = "SELECT 1 FROM credentials WHERE account = ? AND credential = ?"
        return self._cursor.execute(query, (account, credential)).fetchone() is not None

    # The look-ups of the other steps.

    def row_or_linked(self, key: str) -> LedgerRow | None:
        """The row, or the row that it links to."""
        return followed(self.row(key), self.row)

    def due_rows(self, now: float, limit: int) -> list[LedgerRow]:
        return [LedgerRow(*found) for found in self._cursor.execute(_DUE_ROWS, (now, limit)).fetchall()]

    def count_due_payments(self, due_before: float, limit: int) -> int:
        (count,) = self._cursor.execute(_COUNT_DUE_ROWS, (due_before, limit)).fetchone()
        return int(count)

    def paid(self, guard: str) -> list[Operation]:
        """The operations under the guard that have succeeded."""
        rows = self._cursor.execute(_PAID, (guard, transitions.GUARDED_MAX)).fetchall()
        return list(map(operation_from_row, reversed(rows)))

    def expired(self, now: float) -> list[Operation]:
        return self._several(_EXPIRED, now, transitions.EXPIRED_LEASES_MAX)

    def of_earlier_holders(self, now: float, opened_at_seq: int) -> list[Operation]:
        return self._several(_OF_EARLIER_HOLDERS, now, opened_at_seq, transitions.EXPIRED_LEASES_MAX)

    def due(self, now: float, limit: int, full: frozenset[str]) -> list[Operation]:
        """The due operations without a lease, longest due first. The query runs for each provider, so that a provider
        at its limit costs nothing, however many operations are due there."""
        found: list[tuple[float, int]] = []
        provider = self.scalar(_NEXT_PROVIDER_DUE, "")
        while provider is not None:
            if provider not in full:
                found.extend(self._cursor.execute(_DUE_OF_PROVIDER, (provider, now, limit)))
            provider = self.scalar(_NEXT_PROVIDER_DUE, provider)
        numbers = [number for _, number in sorted(found)[:limit]]
        return [operation for number in numbers for operation in self._several(_BY_NUMBER, number)]

    def next_due(self) -> NextDue:
        operations = {}
        provider = self.scalar(_NEXT_PROVIDER_DUE, "")
        while provider is not None:
            due_at = self.scalar(_FIRST_DUE_OF_PROVIDER, provider)
            if due_at is not None:
                operations[provider] = due_at
            provider = self.scalar(_NEXT_PROVIDER_DUE, provider)
        lease, webhook_event, relay, ledger_row = (
            math.inf if (at := self.scalar(query)) is None else at
            for query in (_FIRST_LEASE_END, _FIRST_WEBHOOK_EVENT, _FIRST_RELAY, _FIRST_LEDGER_ROW)
        )
        announced_seq = int(self.scalar(_LAST_ANNOUNCED) or 0)
        return NextDue(operations, lease, min(webhook_event, relay), ledger_row, announced_seq)

    def not_yet_due(self, provider: str, now: float, limit: int) -> list[tuple[str, State, float]]:
        """The provider's operations that have no lease and are not due yet, earliest first: id, state, due_at."""
        rows = self._cursor.execute(_NOT_YET_DUE, (provider, now, limit))
        return [(operation_id, State(state), due_at) for operation_id, state, due_at in rows]

    def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        row = self._cursor.execute(
            "SELECT sealed_request, sealed_response FROM operations WHERE id = ?", (operation_id,)
        ).fetchone()
        return (None, None) if row is None else (row[0], row[1])

    def lease_of(self, operation_id: str) -> Lease | None:
        row = self._cursor.execute(
            "SELECT lease_token, lease_until_at FROM operations WHERE id = ?", (operation_id,)
        ).fetchone()
        return None if row is None or row[0] is None else Lease(*row)

    def lease_at(self, operation: Operation) -> Lease | None:
        """The lease that is held at exactly this version, else StaleWrite."""
        version = self.scalar("SELECT version FROM operations WHERE id = ?", operation.id)
        if version != operation.version:
            raise transitions.stale_write(operation.id, operation.version)
        return self.lease_of(operation.id)

    def scalar(self, query: str, *arguments: object) -> Any:
        row = self._cursor.execute(query, arguments).fetchone()
        return None if row is None else row[0]

    def _several(self, query: str, *arguments: object) -> list[Operation]:
        return list(map(operation_from_row, self._cursor.execute(query, arguments).fetchall()))

    # Writing.

    def insert(self, write: transitions.OperationWrite, sealed_request: bytes | None) -> None:
        operation = write.operation
        self._cursor.execute(_INSERT, (*fixed_values(operation), *mutable_values(operation), sealed_request))
        self._append_history(write)

    def update(self, write: transitions.OperationWrite, sealed_response: bytes | None = None) -> None:
        """Write the step over the version before it. If it raises StaleWrite, nothing was written."""
        operation = write.operation
        *standing, guard = mutable_values(operation)
        if sealed_response is not None:
            standing.append(sealed_response)
        which = (operation.id, operation.version - 1)
        kind = (write.erase_request, sealed_response is not None)
        update = self._cursor.execute
        # A guard that the operation holds after the step is mostly the one that it held before.
        same = guard is not None and update(_UPDATES[(*kind, True)], (*standing, *which, guard)).rowcount == 1
        if not same and update(_UPDATES[(*kind, False)], (*standing, guard, *which)).rowcount != 1:
            raise transitions.stale_write(*which)
        self._append_history(write)

    def update_all(self, taken: Iterable[transitions.OperationWrite]) -> tuple[Operation, ...]:
        written = []
        for write in taken:
            self.update(write)
            written.append(write.operation)
        return tuple(written)

    def _append_history(self, write: transitions.OperationWrite) -> None:
        entry = write.entry
        told = None if entry.announcement is None else 1
        self._cursor.execute(_INSERT_CHANGE, (write.operation.id, entry.version, entry.at, entry_to_text(entry), told))

    def store_rows(self, rows: Iterable[LedgerRow], now: float) -> None:
        """Write ledger rows, each over the version before it. Another version is a bug, because the caller has read
        these rows in the same transaction."""
        for row in rows:
            if row.version == 1:
                values: tuple[object, ...] = (row.key, row.version, row.text, row.due_at, now)
                written = self._cursor.execute(_INSERT_ROW, values).rowcount
            else:
                values = (row.version, row.text, row.due_at, now, row.key, row.version - 1)
                written = self._cursor.execute(_UPDATE_ROW, values).rowcount
            if written != 1:
                raise RuntimeError(f"the ledger row {row.key} changed within one transaction")

    def store_alias(self, alias: Alias) -> None:
        self._cursor.execute(
            "INSERT OR REPLACE INTO aliases (key, client_key, operation_id, kind, at) VALUES (?, ?, ?, ?, ?)",
            (alias.key, alias.client_key, alias.operation_id, alias.kind.value, alias.at),
        )


def _alias_from_row(key: str, client_key: str, operation_id: str, kind: str, at: float) -> Alias:
    return Alias(key, client_key, operation_id, AliasKind(kind), at)


def _tombstone_from_row(
    key: str,
    operation_id: str,
    provider: str,
    operation: str,
    client_key: str,
    outcome: str,
    reference: str | None,
    ended_at: float,
    made_by: str | None,
) -> Tombstone:
    maker = Maker(*json.loads(made_by)[:4]) if made_by else Maker()
    return Tombstone(key, operation_id, provider, operation, client_key, Outcome(outcome), reference, ended_at, maker)
