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

from proxy.core.claim import Claim, ClaimRequest
from proxy.core.errors import JournalUnavailable, JournalUnfit, PaywitnessError
from proxy.core.operation import Operation
from proxy.journal import claiming, haste, steps
from proxy.journal.base import Change
from proxy.journal.sqlite_file import FileLock, cut_log, open_for_writing, unavailable
from proxy.journal.sqlite_lane import Call
from proxy.journal.sqlite_shelf import SqliteShelf

_KNOWN_CREDENTIALS_MAX = 10_000  # pairs remembered, to save writing them again with every success
_KEEP_CREDENTIAL = """INSERT INTO credentials (account, credential, accepted_at, sealed) VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET accepted_at = excluded.accepted_at, sealed = coalesce(excluded.sealed, sealed)"""


class Writer:
    """Owns the writing connection and the lock. Made anywhere, then used by one thread alone."""

    def __init__(self, path: Path, clock: steps.WallClock, lock: FileLock) -> None:
        self._path = path
        self._lock = lock
        self._connection = open_for_writing(path)
        self.cursor = self._connection.cursor()
        self.shelf = SqliteShelf(self.cursor)
        self._inode = path.stat().st_ino
        self.time = steps.JournalTime(clock, self._latest_at())
        # What stands at or before this change was held by whoever had the journal before us.
        self._opened_at_seq = int(self.shelf.scalar("SELECT coalesce(max(seq), 0) FROM changes"))
        self._accepted: dict[tuple[str, str], steps.Accepted] = {}
        self._newly_accepted: dict[tuple[str, str], steps.Accepted] = {}
        self._broken = False
        self.commits = 0

    def _latest_at(self) -> float:
        changed_at = self.shelf.scalar("SELECT at FROM changes ORDER BY seq DESC LIMIT 1")
        told_at = self.shelf.scalar("SELECT value FROM meta WHERE name = 'latest_at'")
        return max(float(changed_at or 0.0), float(told_at or 0.0))

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
            self.cursor.execute("BEGIN IMMEDIATE")
            for method, argument, future, moot in calls:
                if moot and future.done():
                    results.append(None)
                    continue
                try:
                    results.append(method(argument))
                except PaywitnessError as error:
                    results.append(error)  # raised before it wrote anything
            computed()
            self.cursor.execute("COMMIT")
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

    def _connect_again(self) -> None:
        self._check_file()  # another file in its place would know no payment, and own every claim
        self._connection = open_for_writing(self._path)
        self.cursor = self._connection.cursor()
        self.shelf = SqliteShelf(self.cursor)
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
        now = self.time.now()
        taken = claiming.claim_steps(request, now, self.shelf)
        self.shelf.write_all_over(taken.before)
        if taken.alias is not None:
            self.shelf.keep_alias(taken.alias)
        if taken.started is not None:
            self.shelf.start(taken.started, request.sealed_request)
        return self._answer(taken, request, now)

    def _answer(self, taken: claiming.ClaimSteps, request: ClaimRequest, now: float) -> Claim:
        asked, credential = taken.asked, request.fresh.credential
        if taken.holder is None or asked is None or not claiming.needs_sealed(taken):
            return claiming.answer(taken, now, (None, None), accepted=True)
        accepted = asked.credential == credential or self._accepted_before((asked.account, credential)) is not None
        return claiming.answer(taken, now, self.shelf.sealed(taken.holder.id), accepted=accepted)

    def record(self, change: Change) -> Operation:
        now = self.time.now()
        stored_lease = self.shelf.lease_at(change.operation) if steps.needs_stored_lease(change) else None
        guard = change.operation.guard
        paid = self.shelf.paid(guard.value) if guard is not None and steps.needs_paid_before(change) else ()
        return self._record(change, steps.recorded(change, stored_lease, now, paid), now)

    def _record(self, change: Change, step: steps.Step, now: float) -> Operation:
        self.shelf.write_over(step, change.sealed_response)
        if change.accepted_credential:
            self._accept((step.operation.account, step.operation.credential), change.sealed_credential, now)
        return step.operation

    def fall_back(self, asked: tuple[Change, ClaimRequest]) -> tuple[Operation, Claim]:
        change, request = asked
        now = self.time.now()
        taken = claiming.fall_back_steps(change, request, now, self.shelf)
        if taken.ended is not None:
            self._record(change, taken.ended, now)
        if taken.second.started is not None:
            self.shelf.start(taken.second.started, request.sealed_request)
        return taken.first, self._answer(taken.second, request, now)

    def take_lease(self, asked: tuple[Operation, str, float, str]) -> Operation:
        operation, token, lease_s, source = asked
        stored = self.shelf.by_id(operation.id)
        step = steps.leased(stored, operation, token, lease_s, self.time.now(), source)
        if step is None and stored is not None:
            return stored
        if step is None:
            raise steps.stale(operation.id, operation.version)
        self.shelf.write_over(step)
        return step.operation

    def take_due(self, asked: tuple[str, float, int, frozenset[str]]) -> tuple[Operation, ...]:
        token, lease_s, limit, full = asked
        now = self.time.now()
        return self.shelf.write_all_over(steps.taken(self.shelf.due(now, limit, full), token, lease_s, now))

    def hasten(self, asked: tuple[str, float, int]) -> int:
        provider, within_s, limit = asked
        now, limit = self.time.now(), haste.bounded(limit)
        waiting = self.shelf.waiting(provider, now, limit * haste.LOOKED_AT)
        hastened = haste.hastened(waiting, now, within_s, limit)
        for operation_id, due_at in hastened:
            self.cursor.execute("UPDATE operations SET due_at = ? WHERE id = ?", (due_at, operation_id))
        return len(hastened)

    def renew(self, asked: tuple[tuple[str, ...], Mapping[str, str], float]) -> frozenset[str]:
        operation_ids, token_of, lease_s = asked
        now = self.time.now()
        renewed = set()
        for operation_id in operation_ids:
            lease = steps.renewed(self.shelf.lease_of(operation_id), token_of.get(operation_id), lease_s, now)
            if lease is None:
                continue
            self.cursor.execute("UPDATE operations SET lease_until_at = ? WHERE id = ?", (lease.until_at, operation_id))
            renewed.add(operation_id)
        return frozenset(renewed)

    def expire_leases(self, all_of_earlier_holders: bool) -> tuple[Operation, ...]:
        now = self.time.now()
        if all_of_earlier_holders:
            over = self.shelf.of_earlier_holders(now, self._opened_at_seq)
        else:
            over = self.shelf.expired(now)
        return self.shelf.write_all_over(steps.expired(over, now))

    def keep_revision(self, asked: tuple[str, str, str]) -> None:
        provider, revision, content = asked
        latest = self.shelf.scalar(
            "SELECT revision FROM revisions WHERE provider = ? ORDER BY seq DESC LIMIT 1", provider
        )
        if latest == revision:
            return
        self.cursor.execute(  # one that comes back after another is the latest again
            "INSERT OR REPLACE INTO revisions (provider, revision, content, kept_at) VALUES (?, ?, ?, ?)",
            (provider, revision, content, self.time.now()),
        )

    def check_identity(self, check_value: str) -> None:
        kept = self.shelf.scalar("SELECT value FROM meta WHERE name = 'identity_check'")
        if kept is None:
            self.cursor.execute("INSERT INTO meta VALUES ('identity_check', ?)", (check_value,))
        elif kept != check_value:
            raise JournalUnfit(steps.OTHER_IDENTITY)

    def keep_time(self, _: None) -> None:
        """A small real write, which health asks for; and a restart goes on from the time it holds."""
        self._check_file()  # what is written to a file without a name is lost at the next start
        self.cursor.execute("INSERT OR REPLACE INTO meta VALUES ('latest_at', ?)", (self.time.now(),))

    # What the steps are made of.

    def _check_file(self) -> None:
        try:
            there = self._path.stat().st_ino == self._inode
        except OSError:
            there = False
        if not there:
            raise JournalUnavailable(f"the journal {self._path} was moved or deleted while it was open")

    def _accepted_before(self, pair: tuple[str, str]) -> steps.Accepted | None:
        accepted = self._newly_accepted.get(pair) or self._accepted.get(pair)
        if accepted is None:
            query = "SELECT accepted_at, sealed IS NOT NULL FROM credentials WHERE account = ? AND credential = ?"
            row = self.cursor.execute(query, pair).fetchone()
            accepted = None if row is None else steps.Accepted(row[0], bool(row[1]))
        return accepted

    def _accept(self, pair: tuple[str, str], sealed: bytes | None, now: float) -> None:
        accepted = steps.accepted_again(self._accepted_before(pair), sealed, now)
        if accepted is not None:
            self.cursor.execute(_KEEP_CREDENTIAL, (*pair, now, sealed))
            self._newly_accepted[pair] = accepted
