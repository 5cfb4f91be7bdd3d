"""The retention of the embedded journal: it replaces old operations by tombstones, and deletes old tombstones and
webhook events that are done, a few at a time. The writer's thread runs it, within its transaction.

It walks operations in the order of their starts, which is their order in the file, so that no call has to maintain an
index for it. An operation that must stay is skipped. If a walk reaches its limit, the next walk goes on from there.
"""

from __future__ import annotations

import json

from paywitness.core.claim import Tombstone
from paywitness.core.operation import Operation
from paywitness.journal.ledger import may_forget
from paywitness.journal.sqlite.schema import REFUSED_ALIAS, WEBHOOK_EVENT_DONE
from paywitness.journal.sqlite.writer import SqliteWriter
from paywitness.journal.tombstones import (
    keys_kept_of,
    maker_to_value,
    may_retire,
    retired_together,
    row_kept_of,
    tombstones_of,
)

_SCAN_MAX = 5_000  # operations in one call: some milliseconds of the writer's time

_SCAN = """SELECT number, created_at, id, (state IN ('succeeded', 'failed') AND ended_at <= ?1
    OR state = 'requires_action' AND due_at IS NULL AND updated_at <= ?1)
    AND incident IS NULL AND lease_token IS NULL FROM operations WHERE number > ?2 ORDER BY number LIMIT ?3"""
_LAST_SEQ = "SELECT max(seq) FROM changes WHERE operation_id = ?"
_READ_TO = "SELECT min(seq) FROM cursors"
_STORE_TOMBSTONE = """INSERT INTO tombstones
    (key, operation_id, provider, operation, client_key, outcome, reference, ended_at, maker, buried_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET operation_id = excluded.operation_id, provider = excluded.provider,
    operation = excluded.operation, client_key = excluded.client_key, outcome = excluded.outcome,
    reference = excluded.reference, ended_at = excluded.ended_at, maker = excluded.maker, buried_at = excluded.buried_at
    WHERE excluded.ended_at >= ended_at"""
_PURGE_TOMBSTONES = """DELETE FROM tombstones WHERE key IN
    (SELECT key FROM tombstones WHERE buried_at <= ? ORDER BY buried_at, key LIMIT ?)"""
_PURGE_REFUSED = f"""DELETE FROM aliases WHERE key IN (SELECT key FROM aliases INDEXED BY aliases_refused
    WHERE {REFUSED_ALIAS} AND at <= ? ORDER BY at LIMIT ?)"""
_PURGE_WEBHOOK_EVENTS = f"""DELETE FROM notices WHERE number IN (SELECT number FROM notices INDEXED BY notices_done
    WHERE {WEBHOOK_EVENT_DONE} AND received_at <= ? ORDER BY received_at, number LIMIT ?)"""


# An account's newest credential that can be used again stays as long as its payments, because background calls need it.
_PURGE_CREDENTIALS = """DELETE FROM credentials WHERE (account, credential) IN
    (SELECT account, credential FROM credentials AS old
    WHERE accepted_at <= ? OR (accepted_at <= ? AND accepted_at < COALESCE((SELECT MAX(accepted_at)
    FROM credentials AS newer WHERE newer.account = old.account AND newer.sealed IS NOT NULL), 9e999))
    ORDER BY account, credential LIMIT ?)"""
_OLD_ROWS = "SELECT key FROM ledger INDEXED BY ledger_ages WHERE touched_at <= ? ORDER BY touched_at LIMIT ?"


class SqliteRetention:
    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer
        self._resume_after = 0  # the number of the operation after which the next walk goes on

    def retire(self, arguments: tuple[float, float, int, float, float]) -> int:
        retention_s, tombstone_s, limit, payments_s, now_max = arguments
        now = self._writer.time.now()
        counted_at = min(now, now_max)
        retired = self._retire_operations(counted_at - retention_s, limit, now)
        cursor = self._writer.cursor
        tombstones = cursor.execute(_PURGE_TOMBSTONES, (counted_at - tombstone_s, limit)).rowcount
        refused = cursor.execute(_PURGE_REFUSED, (counted_at - retention_s, limit)).rowcount
        notices = cursor.execute(_PURGE_WEBHOOK_EVENTS, (counted_at - retention_s, limit)).rowcount
        oldest_at = counted_at - max(payments_s, retention_s)
        credentials = cursor.execute(_PURGE_CREDENTIALS, (oldest_at, counted_at - retention_s, limit)).rowcount
        if credentials:
            self._writer.forget_acceptances()
        forgotten = tombstones + refused + notices + credentials
        return retired + forgotten + self._forget_ledger_rows(counted_at - payments_s, limit, now)

    def _forget_ledger_rows(self, touched_before: float, limit: int, now: float) -> int:
        cursor, rows = self._writer.cursor, self._writer.rows
        old = cursor.execute(_OLD_ROWS, (touched_before, limit)).fetchall()
        forgotten = 0
        for key in (key for (key,) in old):
            row = rows.row(key)
            if row is not None and may_forget(row, rows.row(row.text[1:]) if row.text.startswith("@") else None):
                forgotten += cursor.execute("DELETE FROM ledger WHERE key = ?", (key,)).rowcount
            else:
                cursor.execute("UPDATE ledger SET touched_at = ? WHERE key = ?", (now, key))
        return forgotten

    def _retire_operations(self, ended_before: float, limit: int, now: float) -> int:
        read_to = self._writer.rows.scalar(_READ_TO)

        def may_go(operation: Operation) -> bool:
            if not may_retire(operation, ended_before):
                return False
            return read_to is None or bool(self._writer.rows.scalar(_LAST_SEQ, operation.id) <= read_to)

        retired = 0
        scanned = self._writer.cursor.execute(_SCAN, (ended_before, self._resume_after, _SCAN_MAX)).fetchall()
        self._resume_after = scanned[-1][0] if len(scanned) == _SCAN_MAX else 0
        for _, created_at, operation_id, is_over in scanned:
            if created_at > ended_before or retired >= limit:
                self._resume_after = 0  # the next walk begins again
                break
            operation = self._writer.rows.by_id(operation_id) if is_over else None
            if operation is None or not may_go(operation) or self._fallback_stays(operation):
                continue
            together = retired_together(operation, self._writer.rows.by_id, may_go)
            for operation_to_retire in together:
                self._replace_by_tombstones(operation_to_retire, operation, now)
            retired += len(together)
        return retired

    def _fallback_stays(self, operation: Operation) -> bool:
        return operation.fallback_to is not None and self._writer.rows.by_id(operation.fallback_to) is not None

    def _replace_by_tombstones(self, operation: Operation, last: Operation, now: float) -> None:
        cursor, rows = self._writer.cursor, self._writer.rows
        rows.store_rows([row_kept_of(operation, key, rows.row(key)) for key in keys_kept_of(operation)], now)
        for tombstone in tombstones_of(operation, self._writer.rows.aliases_of(operation.id), last):
            cursor.execute(_STORE_TOMBSTONE, (*_tombstone_row(tombstone), now))
        cursor.execute("DELETE FROM aliases WHERE operation_id = ?", (operation.id,))
        cursor.execute("DELETE FROM changes WHERE operation_id = ?", (operation.id,))
        cursor.execute("DELETE FROM operations WHERE id = ?", (operation.id,))


def _tombstone_row(tombstone: Tombstone) -> tuple[object, ...]:
    return (
        tombstone.key,
        tombstone.operation_id,
        tombstone.provider,
        tombstone.operation,
        tombstone.client_key,
        tombstone.outcome.value,
        tombstone.reference,
        tombstone.ended_at,
        json.dumps(maker_to_value(tombstone.maker)),
    )
