"""The writer of the SQLite journal: all waiting calls become one transaction and one fsync. It also moves the cursors
of outbox readers.

Each method first reads and judges, and writes last. It raises an error of ours only before it has written anything. So
a batch needs no savepoints: if a call fails half-way by its own fault, the batch is rolled back and each call runs
again alone. The leases of cursors are kept in memory, not in the file, because only this process can hold the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paywitness.core.claim import Claim, ClaimRequest
from paywitness.core.errors import JournalUnavailable, JournalUnusable, PaywitnessError
from paywitness.core.levels import JournalLevel
from paywitness.core.operation import Lease, Operation
from paywitness.journal import claim_plan, fallback_plan, transitions
from paywitness.journal.base import AGES_KEY, DUE_ROWS_COUNTED_MAX, LedgerRow, OperationChange, StoreClock
from paywitness.journal.payouts import rows_of_writes
from paywitness.journal.sqlite.file import (
    FileLock,
    move_wal_into_file,
    open_for_writing,
    truncate_wal,
    unavailable,
)
from paywitness.journal.sqlite.rows import SqliteRows

_LAST_SEQ = "SELECT seq FROM sqlite_sequence WHERE name = 'changes'"
_log = logging.getLogger("paywitness.journal")
_KNOWN_CREDENTIALS_MAX = 10_000  # pairs remembered, to save writing them again with every success
_STORED_CREDENTIAL = "SELECT accepted_at, sealed IS NOT NULL FROM credentials WHERE account = ? AND credential = ?"
_STORE_CREDENTIAL = """INSERT INTO credentials (account, credential, accepted_at, sealed) VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET accepted_at = excluded.accepted_at, sealed = coalesce(excluded.sealed, sealed)"""

# The method, its argument, the future for the result, and whether the call may be dropped once its caller gives up.
WorkerCall = tuple[Callable[[Any], Any], Any, "asyncio.Future[Any]", bool]
_MARK_WORDS = 2


class HighWaterMark:
    """The journal's id and its last `seq`, in a small file beside it. A journal that was restored from a copy, or lost
    its log, is behind its mark. The mark is written after every commit, without a sync, because it must outlive this
    process, not the machine."""

    def __init__(self, journal: Path) -> None:
        path = journal.with_name(journal.name + ".mark")
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalUnusable(f"the journal's mark {path} cannot be made: {error.strerror}") from error

    def read(self) -> tuple[str, int] | None:
        """The journal's id and the `seq` of its last change. None: there is no mark yet."""
        words = os.pread(self._descriptor, 128, 0).decode("ascii", errors="replace").split()
        return (words[0], int(words[1])) if len(words) == _MARK_WORDS and words[1].isdecimal() else None

    def store(self, journal_id: str, seq: int) -> None:
        with contextlib.suppress(OSError):  # if the disk is full, the next commit fails and reports it
            os.pwrite(self._descriptor, f"{journal_id} {seq:020d}\n".encode(), 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SqliteWriter:
    """Owns the writing connection and the lock. Made anywhere, then used by one thread alone."""

    def __init__(
        self,
        path: Path,
        clock: transitions.WallClock,
        lock: FileLock,
        wall_clock: transitions.WallClock,
        level: int,
    ) -> None:
        self._path = path
        self._lock = lock
        self._wall_clock = wall_clock
        self._connection = open_for_writing(path)
        self.cursor = self._connection.cursor()
        self.rows = SqliteRows(self.cursor)
        self._inode = path.stat().st_ino
        self.time = transitions.JournalTime(clock, self._latest_at())
        # A lease that was written at or before this change belongs to an earlier process.
        self._opened_at_seq = int(self.rows.scalar("SELECT coalesce(max(seq), 0) FROM changes"))
        self._accepted: dict[tuple[str, str], transitions.AcceptedCredential] = {}
        self._newly_accepted: dict[tuple[str, str], transitions.AcceptedCredential] = {}
        self._broken = False
        self.level = self._raised_level(level)
        self.commits = 0
        self._wal_path = path.with_name(path.name + "-wal")
        self._wal_inode: int | None = None  # of the log that we write, once there is one
        self._wal_removed = False  # somebody removed the log, so each commit is moved into the file at once
        self._mark = HighWaterMark(path)
        self.journal_id = self._stored_journal_id()
        self.rolled_back_s = self._check_mark()

    def _raised_level(self, level: int) -> JournalLevel:
        """The file's level, raised to ours, because no other process holds it. Raises JournalUnusable if it is higher
        than ours."""
        stored = self.rows.scalar("SELECT value FROM meta WHERE name = 'level'")
        if stored is not None and int(stored) > level:
            raise JournalUnusable(
                f"the journal is at level {int(stored)}, and this release keeps level {level}: run the newer release "
                "again, or give this one a journal of its own"
            )
        if stored is None or int(stored) < level:
            is_new = stored is None and self._opened_at_seq == 0
            raised_at = 0.0 if is_new else self.time.now()
            self.cursor.execute("BEGIN IMMEDIATE")
            self.cursor.execute("INSERT OR REPLACE INTO meta VALUES ('level', ?)", (level,))
            self.cursor.execute("INSERT OR REPLACE INTO meta VALUES ('level_raised_at', ?)", (raised_at,))
            self.cursor.execute("COMMIT")
        raised_at = float(self.rows.scalar("SELECT value FROM meta WHERE name = 'level_raised_at'") or 0.0)
        return JournalLevel(level, raised_at)

    def _latest_at(self) -> float:
        changed_at = self.rows.scalar("SELECT at FROM changes ORDER BY seq DESC LIMIT 1")
        stored_at = self.rows.scalar("SELECT value FROM meta WHERE name = 'latest_at'")
        return max(float(changed_at or 0.0), float(stored_at or 0.0))

    def _stored_journal_id(self) -> str:
        self.cursor.execute("INSERT OR IGNORE INTO meta VALUES ('journal_id', lower(hex(randomblob(16))))")
        return str(self.rows.scalar("SELECT value FROM meta WHERE name = 'journal_id'"))

    def _check_mark(self) -> float | None:
        """How long ago this file turned out to be another journal than the mark names, or an older one; None: never."""
        known, now, seq = self._mark.read(), self.time.now(), self.rows.scalar(_LAST_SEQ) or 0
        if known is not None and (known[0] != self.journal_id or seq < known[1]):
            _log.error("the journal %s is another or an older one than stood here before", self._path)
            self.cursor.execute("INSERT OR REPLACE INTO meta VALUES ('rolled_back_at', ?)", (now,))
        self._mark.store(self.journal_id, seq)
        rolled_back_at = self.rows.scalar("SELECT value FROM meta WHERE name = 'rolled_back_at'")
        return None if rolled_back_at is None else max(0.0, now - float(rolled_back_at))

    # The transaction.

    def run_batch(self, calls: list[WorkerCall], computed: Callable[[], None]) -> list[Any]:
        """Run all calls in one transaction. If one fails half-way by its own fault, run each in a transaction of its
        own."""
        results: list[Any] = []
        try:
            self._check_files()
        except sqlite3.Error as error:
            return [unavailable(error) for _ in calls]
        except PaywitnessError as error:
            return [JournalUnavailable(str(error)) for _ in calls]
        try:
            self.cursor.execute("BEGIN IMMEDIATE")
            for method, argument, future, droppable in calls:
                if droppable and future.done():
                    results.append(None)
                    continue
                try:
                    results.append(method(argument))
                except PaywitnessError as error:
                    results.append(error)  # raised before it wrote anything
            computed()
            self.cursor.execute("COMMIT")
            if self._wal_removed and not move_wal_into_file(self._connection):
                raise sqlite3.OperationalError("the log was removed, and cannot be moved into the file now")
        except sqlite3.OperationalError as error:  # the disk, not the call
            self._roll_back()
            return [unavailable(error) for _ in calls]
        except Exception as error:  # noqa: BLE001  # one call's own fault: the other calls must not fail with it
            self._roll_back()
            if len(calls) > 1:
                return [self.run_batch([call], computed)[0] for call in calls]
            return [unavailable(error) if isinstance(error, sqlite3.Error) else error]
        self._after_commit()
        return results

    def _after_commit(self) -> None:
        self.commits += 1
        if self._wal_inode is None:
            with contextlib.suppress(OSError):
                self._wal_inode = self._wal_path.stat().st_ino
        last = self.cursor.execute(_LAST_SEQ).fetchone()
        self._mark.store(self.journal_id, last[0] if last else 0)
        if self._newly_accepted:
            if len(self._accepted) >= _KNOWN_CREDENTIALS_MAX:
                self._accepted.clear()
            self._accepted.update(self._newly_accepted)
            self._newly_accepted.clear()

    def _roll_back(self) -> None:
        self._newly_accepted.clear()
        try:
            if self._connection.in_transaction:
                self.cursor.execute("ROLLBACK")
        except sqlite3.Error:
            self._connection.close()  # closing rolls back too
            self._broken = True

    def _reconnect(self) -> None:
        self._check_file()  # another file in its place would know no payment, so every claim would be owned
        self._connection = open_for_writing(self._path)
        self.cursor = self._connection.cursor()
        self.rows = SqliteRows(self.cursor)
        self._broken, self._wal_inode, self._wal_removed = False, None, False

    def on_idle(self) -> None:
        truncate_wal(self._connection)

    def close(self) -> None:
        try:
            with contextlib.suppress(sqlite3.Error, PaywitnessError):
                self.store_time(None)
            truncate_wal(self._connection)
            self._connection.close()
        finally:
            self._mark.close()
            self._lock.release()

    # The steps.

    def claim(self, request: ClaimRequest) -> Claim:
        now = self.time.now()
        plan = claim_plan.plan_answer(request, now, self.rows)
        if plan.updates:
            self.rows.update_all(plan.updates)
        if plan.alias is not None:
            self.rows.store_alias(plan.alias)
        if plan.insert is not None:
            self.rows.insert(plan.insert, request.sealed_request)
        if plan.rows:
            self.rows.store_rows(plan.rows, now)
        return claim_plan.claim_result(plan, now, self.rows.sealed)

    def record(self, change: OperationChange) -> Operation:
        now = self.time.now()
        stored_lease = self.rows.lease_at(change.operation) if transitions.needs_stored_lease(change) else None
        guard = change.operation.guard
        paid = self.rows.paid(guard.value) if guard is not None and transitions.needs_duplicate_check(change) else ()
        plan = transitions.plan_record(change, stored_lease, now, self.rows, paid)
        self.rows.update(plan.write, change.sealed_response)
        if change.accepted_credential:
            self._store_acceptance(change, now)
        if plan.rows:
            self.rows.store_rows(plan.rows, now)
        return plan.write.operation

    def write_ledger_rows(self, rows: tuple[LedgerRow, ...]) -> bool:
        for row in rows:
            stored = self.rows.row(row.key)
            if (0 if stored is None else stored.version) != row.version - 1:
                return False
        self.rows.store_rows(rows, self.time.now())
        return True

    def due_ledger_rows(self, limit: int) -> tuple[LedgerRow, ...]:
        return tuple(self.rows.due_rows(self.time.now(), limit))

    def count_due_ledger_rows(self, within_s: float) -> int:
        return self.rows.count_due_payments(self.time.now() + within_s, DUE_ROWS_COUNTED_MAX)

    def fall_back(self, asked: tuple[OperationChange, ClaimRequest]) -> tuple[Operation, Claim]:
        change, request = asked
        now = self.time.now()
        plan = fallback_plan.plan_fallback(change, request, now, self.rows)
        if plan.end is not None:
            self.rows.update(plan.end, change.sealed_response)
            if change.accepted_credential:
                self._store_acceptance(change, now)
        if plan.second.insert is not None:
            self.rows.insert(plan.second.insert, request.sealed_request)
        self.rows.store_rows(plan.second.rows, now)
        return plan.first, claim_plan.claim_result(plan.second, now, self.rows.sealed)

    def take_due(self, asked: tuple[str, float, int, frozenset[str]]) -> tuple[Operation, ...]:
        token, lease_s, limit, full = asked
        now = self.time.now()
        return self.rows.update_all(transitions.lease_due_writes(self.rows.due(now, limit, full), token, lease_s, now))

    def expedite(self, asked: tuple[str, float, int]) -> int:
        provider, within_s, limit = asked
        now, limit = self.time.now(), transitions.bounded_expedite_limit(limit)
        waiting = self.rows.not_yet_due(provider, now, limit * transitions.EXPEDITE_SCAN_FACTOR)
        expedited = transitions.expedited_due_times(waiting, now, within_s, limit)
        for operation_id, due_at in expedited:
            self.cursor.execute("UPDATE operations SET due_at = ? WHERE id = ?", (due_at, operation_id))
        return len(expedited)

    def renew(self, asked: tuple[tuple[str, ...], Mapping[str, str], float]) -> frozenset[str]:
        operation_ids, token_of, lease_s = asked
        now = self.time.now()
        renewed = set()
        for operation_id in operation_ids:
            lease = transitions.renewed_lease(
                self.rows.lease_of(operation_id), token_of.get(operation_id), lease_s, now
            )
            if lease is None:
                continue
            self.cursor.execute("UPDATE operations SET lease_until_at = ? WHERE id = ?", (lease.until_at, operation_id))
            renewed.add(operation_id)
        return frozenset(renewed)

    def expire_leases(self, asked: tuple[bool, float]) -> tuple[Operation, ...]:
        all_of_earlier_holders, over_at = asked
        now = self.time.now()
        if all_of_earlier_holders:
            over = self.rows.of_earlier_holders(min(now, over_at), self._opened_at_seq)
        else:
            over = self.rows.expired(min(now, over_at))
        writes = transitions.expired_lease_writes(over, now)
        rows = rows_of_writes(over, (write.operation for write in writes), self.rows)
        expired = self.rows.update_all(writes)
        self.rows.store_rows(rows, now)
        return expired

    def keep_revision(self, asked: tuple[str, str, str]) -> None:
        provider, revision, content = asked
        latest = self.rows.scalar(
            "SELECT revision FROM revisions WHERE provider = ? ORDER BY seq DESC LIMIT 1", provider
        )
        if latest == revision:
            return
        self.cursor.execute(  # a revision that returns after another one is the latest again
            "INSERT OR REPLACE INTO revisions (provider, revision, content, kept_at) VALUES (?, ?, ?, ?)",
            (provider, revision, content, self.time.now()),
        )

    def check_identity(self, check_value: str) -> None:
        kept = self.rows.scalar("SELECT value FROM meta WHERE name = 'identity_check'")
        if kept is None:
            self.cursor.execute("INSERT INTO meta VALUES ('identity_check', ?)", (check_value,))
        elif kept != check_value:
            raise JournalUnusable(transitions.WRONG_IDENTITY_SECRET)

    def read_clock(self, _: None) -> StoreClock:
        return StoreClock(self.time.now(), self._wall_clock.now(), self.rows.row(AGES_KEY), self.rows.next_due())

    def store_time(self, _: None) -> None:
        """Store the journal's time: a small real write for the health check. A restart goes on from the stored time."""
        self._check_file()  # a write to a file that was deleted is lost at the next start
        self.cursor.execute("INSERT OR REPLACE INTO meta VALUES ('latest_at', ?)", (self.time.now(),))

    # Parts of the steps.

    def _check_files(self) -> None:
        """Check before a write that the file and its log are still the ones that were opened. If somebody removed the
        log, it is still open here, with all its commits. It is then moved into the file, and so is every later commit.
        Nothing is lost."""
        if self._broken:
            self._reconnect()
        self._check_file()
        if self._wal_removed or self._wal_inode is None:
            return
        with contextlib.suppress(OSError):
            if self._wal_path.stat().st_ino == self._wal_inode:
                return
        _log.error(
            "the log of the journal %s was removed while it was open: its content is moved into the file", self._path
        )
        try:
            moved = move_wal_into_file(self._connection)
        except sqlite3.ProgrammingError:
            self._broken = True  # the connection was closed, and the removed log is gone with it
            raise
        if not moved:
            raise JournalUnavailable("the journal's log was removed, and cannot be moved into the file now")
        self._wal_removed = True

    def _check_file(self) -> None:
        try:
            inode = self._path.stat().st_ino
        except OSError:
            inode = None
        if inode != self._inode:
            self._broken = True  # a new connection is opened when the file is back
            raise JournalUnavailable(f"the journal {self._path} was moved or deleted while it was open")

    def forget_acceptances(self) -> None:
        """Forget the acceptances in memory after some were deleted, so that only the file counts."""
        self._accepted.clear()

    def _store_acceptance(self, change: OperationChange, now: float) -> None:
        pair, sealed = (change.operation.account, change.operation.credential), change.sealed_credential
        before = self._newly_accepted.get(pair) or self._accepted.get(pair)
        if before is None:
            row = self.cursor.execute(_STORED_CREDENTIAL, pair).fetchone()
            before = None if row is None else transitions.AcceptedCredential(row[0], bool(row[1]))
        accepted = transitions.refreshed_acceptance(before, sealed, now)
        if accepted is not None:
            self.cursor.execute(_STORE_CREDENTIAL, (*pair, now, sealed))
            self._newly_accepted[pair] = accepted


# --- Cursors

_MOVE_CURSOR = """INSERT INTO cursors (name, seq) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET seq = max(seq, excluded.seq)"""


class SqliteCursors:
    """The writer's steps on cursors. They run in its thread and within its transaction."""

    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer
        self._leases: dict[str, Lease] = {}

    def take(self, arguments: tuple[str, str, float]) -> int | None:
        name, token, lease_s = arguments
        lease = transitions.cursor_lease(self._leases.get(name), token, lease_s, self._writer.time.now())
        if lease is None:
            return None
        self._leases[name] = lease
        return int(self._writer.rows.scalar("SELECT seq FROM cursors WHERE name = ?", name) or 0)

    def move(self, arguments: tuple[str, int, str]) -> bool:
        name, seq, token = arguments
        if token and not transitions.holds_cursor(self._leases.get(name), token, self._writer.time.now()):
            return False
        self._writer.cursor.execute(_MOVE_CURSOR, (name, seq))
        return True
