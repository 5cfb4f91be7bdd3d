"""The writer of the embedded journal: everything that is waiting becomes one transaction, and one fsync.

Each method is one step: it reads and judges first and writes last, and raises an error of our own house only before it
has written anything. So a batch needs no savepoints: the rare call that fails half-way by its own fault has the batch
rolled back, and each call of it done again alone.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proxy.core.claim import Claim, ClaimRequest, Verdict
from proxy.core.errors import JournalUnavailable, JournalUnfit, PaywitnessError
from proxy.core.operation import Lease, Operation
from proxy.journal import steps
from proxy.journal.base import Change
from proxy.journal.encoding import COLUMNS, MOVING_COLUMNS, entry_text_of, fixed_row_of, moving_row_of, operation_of
from proxy.journal.sqlite_file import FileLock, cut_log, open_for_writing, unavailable
from proxy.journal.sqlite_lane import Call

_KNOWN_CREDENTIALS_MAX = 10_000  # pairs remembered, to save writing them again with every success

# Every name put into a statement here is a constant of ours; values are always bound

_SELECT = f"SELECT {', '.join(COLUMNS)} FROM operations"
_NEWEST_OF_KEY = f"{_SELECT} WHERE key = ? ORDER BY generation DESC LIMIT 1"
_DISPUTED_OF_KEY = f"{_SELECT} WHERE key = ? AND incident IS NOT NULL ORDER BY generation DESC LIMIT 1"
_BY_ID = f"{_SELECT} WHERE id = ?"
_EXPIRED = f"{_SELECT} INDEXED BY leased WHERE lease_until_at <= ? ORDER BY lease_until_at LIMIT ?"
# The change that made an operation what it is tells who holds it: us, or whoever had the journal before.
_OF_EARLIER_HOLDERS = (
    f"{_SELECT} INDEXED BY leased WHERE lease_until_at IS NOT NULL AND (lease_until_at <= ? OR ? >= "
    "(SELECT seq FROM changes WHERE operation_id = operations.id AND changes.version = operations.version)) LIMIT ?"
)
_INSERT = (
    f"INSERT INTO operations ({', '.join(COLUMNS)}, sealed_request) VALUES ({', '.join('?' * (len(COLUMNS) + 1))})"
)
_INSERT_CHANGE = "INSERT INTO changes (operation_id, version, at, entry) VALUES (?, ?, ?, ?)"


def _update(*, erase_request: bool, keep_response: bool) -> str:
    """Large values are named only where they change."""
    assignments = [f"{column} = ?" for column in MOVING_COLUMNS]
    if erase_request:
        assignments.append("sealed_request = NULL")
    if keep_response:
        assignments.append("sealed_response = ?")
    return f"UPDATE operations SET {', '.join(assignments)} WHERE id = ? AND version = ?"


_UPDATES = {
    (erase, keep): _update(erase_request=erase, keep_response=keep) for erase in (False, True) for keep in (False, True)
}


class Writer:
    """Owns the writing connection and the lock. Made anywhere, then used by one thread alone."""

    def __init__(self, path: Path, clock: steps.WallClock, lock: FileLock) -> None:
        self._path = path
        self._lock = lock
        self._connection = open_for_writing(path)
        self._cursor = self._connection.cursor()
        self._inode = path.stat().st_ino
        self._time = steps.JournalTime(clock, self._latest_at())
        # What stands at or before this change was held by whoever had the journal before us.
        self._opened_at_seq = int(self._scalar("SELECT coalesce(max(seq), 0) FROM changes"))
        self._known_credentials: set[tuple[str, str]] = set()
        self._newly_known: list[tuple[str, str]] = []
        self._broken = False
        self.commits = 0

    def _latest_at(self) -> float:
        changed_at = self._scalar("SELECT at FROM changes ORDER BY seq DESC LIMIT 1")
        told_at = self._scalar("SELECT value FROM meta WHERE name = 'latest_at'")
        return max(float(changed_at or 0.0), float(told_at or 0.0))

    def _scalar(self, query: str, *arguments: object) -> Any:
        row = self._cursor.execute(query, arguments).fetchone()
        return None if row is None else row[0]

    # The transaction.

    def serve(self, calls: list[Call], computed: Callable[[], None]) -> list[Any]:
        try:
            if self._broken:
                self._connect_again()
        except sqlite3.Error as error:
            return [unavailable(error) for _ in calls]
        except PaywitnessError as error:
            return [JournalUnavailable(str(error)) for _ in calls]
        results = self._together(calls, computed)
        if results is None:
            results = [self._alone(call, computed) for call in calls]
        return results

    def _together(self, calls: list[Call], computed: Callable[[], None]) -> list[Any] | None:
        """All calls in one transaction; None where one failed half-way by its own fault, and nothing was written."""
        results: list[Any] = []
        try:
            self._cursor.execute("BEGIN IMMEDIATE")
            for method, argument, future, moot in calls:
                if moot and future.done():
                    results.append(None)
                    continue
                try:
                    results.append(method(argument))
                except PaywitnessError as error:
                    results.append(error)  # raised before it wrote anything
            computed()
            self._cursor.execute("COMMIT")
        except sqlite3.OperationalError as error:  # the disk, not the call
            self._roll_back()
            return [unavailable(error) for _ in calls]
        except Exception as error:  # noqa: BLE001  # any call's own fault: it alone is to suffer
            self._roll_back()
            if len(calls) > 1:
                return None
            return [unavailable(error) if isinstance(error, sqlite3.Error) else error]
        self._committed()
        return results

    def _alone(self, call: Call, computed: Callable[[], None]) -> Any:
        (result,) = self._together([call], computed) or (None,)
        return result

    def _committed(self) -> None:
        self.commits += 1
        if self._newly_known:
            if len(self._known_credentials) >= _KNOWN_CREDENTIALS_MAX:
                self._known_credentials.clear()
            self._known_credentials.update(self._newly_known)
            self._newly_known.clear()

    def _roll_back(self) -> None:
        self._newly_known.clear()
        try:
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")
        except sqlite3.Error:
            self._connection.close()  # closing rolls back too
            self._broken = True

    def _connect_again(self) -> None:
        self._check_file()  # another file in its place would know no payment, and own every claim
        self._connection = open_for_writing(self._path)
        self._cursor = self._connection.cursor()
        self._broken = False

    def rest(self) -> None:
        cut_log(self._connection)

    def finish(self) -> None:
        try:
            with contextlib.suppress(sqlite3.Error, PaywitnessError):
                self.keep_time(None)
            cut_log(self._connection)
            self._connection.close()
        finally:
            self._lock.release()

    # The steps.

    def claim(self, request: ClaimRequest) -> Claim:
        now = self._time.now()
        row = self._cursor.execute(_NEWEST_OF_KEY, (request.fresh.key,)).fetchone()
        taken = steps.claim_steps(None if row is None else operation_of(row), request, now, self._disputed)
        if taken.expired is not None:
            self._write_over(taken.expired)
        if taken.started is not None:
            operation = taken.started.operation
            self._cursor.execute(_INSERT, (*fixed_row_of(operation), *moving_row_of(operation), request.sealed_request))
            self._tell(taken.started)
            return Claim(Verdict.OWNED, operation, now)
        return self._answer(taken, request, now)

    def _answer(self, taken: steps.ClaimSteps, request: ClaimRequest, now: float) -> Claim:
        holder = taken.holder
        if holder is None or taken.verdict not in {Verdict.REPLAY, Verdict.IN_DOUBT}:
            return Claim(taken.verdict, holder, now)
        sealed = self._cursor.execute(
            "SELECT sealed_request, sealed_response FROM operations WHERE id = ?", (holder.id,)
        ).fetchone()
        fresh = request.fresh
        accepted = holder.credential == fresh.credential or self._knows(fresh.account, fresh.credential)
        return steps.answer(taken, now, sealed, accepted=accepted)

    def record(self, change: Change) -> Operation:
        now = self._time.now()
        stored_lease = self._lease_at(change.operation) if steps.needs_stored_lease(change) else None
        step = steps.recorded(change, stored_lease, now)
        self._write_over(step, change.sealed_response)
        if change.accepted_credential:
            self._accept(step.operation.account, step.operation.credential, now)
        return step.operation

    def take_lease(self, asked: tuple[Operation, str, float, str]) -> Operation:
        operation, token, lease_s, source = asked
        stored = self._by_id(operation.id)
        step = steps.leased(stored, operation, token, lease_s, self._time.now(), source)
        if step is None and stored is not None:
            return stored
        if step is None:
            raise steps.stale(operation.id, operation.version)
        self._write_over(step)
        return step.operation

    def renew(self, asked: tuple[tuple[str, ...], Mapping[str, str], float]) -> frozenset[str]:
        operation_ids, token_of, lease_s = asked
        now = self._time.now()
        renewed = set()
        for operation_id in operation_ids:
            lease = steps.renewed(self._lease_of(operation_id), token_of.get(operation_id), lease_s, now)
            if lease is None:
                continue
            self._cursor.execute(
                "UPDATE operations SET lease_until_at = ? WHERE id = ?", (lease.until_at, operation_id)
            )
            renewed.add(operation_id)
        return frozenset(renewed)

    def expire_leases(self, all_of_earlier_holders: bool) -> tuple[Operation, ...]:
        now = self._time.now()
        if all_of_earlier_holders:
            self._cursor.execute(_OF_EARLIER_HOLDERS, (now, self._opened_at_seq, steps.EXPIRED_LEASES_MAX))
        else:
            self._cursor.execute(_EXPIRED, (now, steps.EXPIRED_LEASES_MAX))
        expired = steps.expired(map(operation_of, self._cursor.fetchall()), now)
        for step in expired:
            self._write_over(step)
        return tuple(step.operation for step in expired)

    def keep_revision(self, asked: tuple[str, str, str]) -> None:
        provider, revision, content = asked
        latest = self._scalar("SELECT revision FROM revisions WHERE provider = ? ORDER BY seq DESC LIMIT 1", provider)
        if latest == revision:
            return
        self._cursor.execute(  # one that comes back after another is the latest again
            "INSERT OR REPLACE INTO revisions (provider, revision, content, kept_at) VALUES (?, ?, ?, ?)",
            (provider, revision, content, self._time.now()),
        )

    def check_identity(self, check_value: str) -> None:
        kept = self._scalar("SELECT value FROM meta WHERE name = 'identity_check'")
        if kept is None:
            self._cursor.execute("INSERT INTO meta VALUES ('identity_check', ?)", (check_value,))
        elif kept != check_value:
            raise JournalUnfit(steps.OTHER_IDENTITY)

    def keep_time(self, _: None) -> None:
        """A small real write, which health asks for; and a restart goes on from the time it holds."""
        self._check_file()  # what is written to a file without a name is lost at the next start
        self._cursor.execute("INSERT OR REPLACE INTO meta VALUES ('latest_at', ?)", (self._time.now(),))

    # What the steps are made of.

    def _check_file(self) -> None:
        try:
            there = self._path.stat().st_ino == self._inode
        except OSError:
            there = False
        if not there:
            raise JournalUnavailable(f"the journal {self._path} was moved or deleted while it was open")

    def _by_id(self, operation_id: str) -> Operation | None:
        row = self._cursor.execute(_BY_ID, (operation_id,)).fetchone()
        return None if row is None else operation_of(row)

    def _disputed(self, key: str) -> Operation | None:
        row = self._cursor.execute(_DISPUTED_OF_KEY, (key,)).fetchone()
        return None if row is None else operation_of(row)

    def _lease_of(self, operation_id: str) -> Lease | None:
        row = self._cursor.execute(
            "SELECT lease_token, lease_until_at FROM operations WHERE id = ?", (operation_id,)
        ).fetchone()
        return None if row is None or row[0] is None else Lease(*row)

    def _lease_at(self, operation: Operation) -> Lease | None:
        """The lease that is held at exactly this version, else StaleWrite."""
        version = self._scalar("SELECT version FROM operations WHERE id = ?", operation.id)
        if version != operation.version:
            raise steps.stale(operation.id, operation.version)
        return self._lease_of(operation.id)

    def _write_over(self, step: steps.Step, sealed_response: bytes | None = None) -> None:
        """Write the step over the version before it, or raise StaleWrite and have written nothing."""
        operation = step.operation
        row = moving_row_of(operation)
        if sealed_response is not None:
            row += (sealed_response,)
        update = _UPDATES[step.erase_request, sealed_response is not None]
        if self._cursor.execute(update, (*row, operation.id, operation.version - 1)).rowcount != 1:
            raise steps.stale(operation.id, operation.version - 1)
        self._tell(step)

    def _tell(self, step: steps.Step) -> None:
        entry = step.entry
        self._cursor.execute(_INSERT_CHANGE, (step.operation.id, entry.version, entry.at, entry_text_of(entry)))

    def _knows(self, account: str, credential: str) -> bool:
        if (account, credential) in self._known_credentials:
            return True
        query = "SELECT 1 FROM credentials WHERE account = ? AND credential = ?"
        return self._scalar(query, account, credential) is not None

    def _accept(self, account: str, credential: str, now: float) -> None:
        pair = (account, credential)
        if pair in self._known_credentials:
            return
        self._cursor.execute("INSERT OR IGNORE INTO credentials VALUES (?, ?, ?)", (*pair, now))
        self._newly_known.append(pair)
