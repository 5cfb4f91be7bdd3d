"""The embedded journal: one SQLite file, one process, two threads.

Writes go to a thread that commits everything waiting as one transaction (WAL, synchronous=FULL: a method returns after
its fsync); reads go to another, on a connection that cannot write. The event loop's thread never touches the file.

A call that is not answered in `call_timeout_s` raises JournalUnavailable, and its write may still happen: a claim is
asked again with its token, a record meets StaleWrite. A claim or lease that nobody waits for any more when its turn
comes is not written.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from paywitness.core.claim import Claim, ClaimRequest
from paywitness.core.errors import JournalUnavailable
from paywitness.core.levels import LEVEL, JournalLevel
from paywitness.core.operation import DoubtCount, HistoryEntry, Operation
from paywitness.journal.base import (
    PAYMENTS_KEPT_S,
    AnnouncementRow,
    LedgerRow,
    OperationChange,
    OperationQuery,
    PolicyRevision,
    StoreClock,
    StoredWebhookEvent,
)
from paywitness.journal.sqlite.file import FileLock, make_file, unfit
from paywitness.journal.sqlite.reader import SqliteReader, SqliteWebhookEvents
from paywitness.journal.sqlite.retention import SqliteRetention
from paywitness.journal.sqlite.worker import SqliteWorker
from paywitness.journal.sqlite.writer import SqliteCursors, SqliteWriter
from paywitness.journal.transitions import WallClock

BATCH_MAX = 256  # writes in one transaction: about 10 ms of work, so that the first of them does not wait long
LOOP_YIELD_S = 0.01  # what such a transaction computes; a disk that hangs holds the event loop up for so long, once
WAITING_MAX = 10_000  # some seconds' worth of writes: what waits longer would be given up anyway
READS_WAITING_MAX = 1_000
CALL_TIMEOUT_S = 5.0
IDLE_AFTER_S = 1.0  # of silence: then the log is moved into the file, off anybody's call
CLOSE_TIMEOUT_S = 30.0  # for what waits, and the log


class SqliteJournal:
    """A `Journal` (see `base`) in one file. Open it with `open`; use it from that event loop alone."""

    def __init__(self, writer: SqliteWriter, reader: SqliteReader, *, call_timeout_s: float, waiting_max: int) -> None:
        self._writer = writer
        self._reader = reader
        since_s = writer.rolled_back_s
        self._rolled_back_mono = None if since_s is None else asyncio.get_running_loop().time() - since_s
        self._cursors = SqliteCursors(writer)
        self._webhook_events = SqliteWebhookEvents(writer)
        self._retention = SqliteRetention(writer)
        self._write_worker = SqliteWorker(
            "journal-writer",
            writer,
            batch_max=BATCH_MAX,
            waiting_max=waiting_max,
            call_timeout_s=call_timeout_s,
            idle_after_s=IDLE_AFTER_S,
            loop_yield_s=LOOP_YIELD_S,
        )
        self._read_worker = SqliteWorker(
            "journal-reader",
            reader,
            batch_max=1,
            waiting_max=READS_WAITING_MAX,
            call_timeout_s=call_timeout_s,
            idle_after_s=IDLE_AFTER_S,
            on_timeout=reader.interrupt,
        )

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        clock: WallClock,
        wall_clock: WallClock | None = None,
        level: int = LEVEL,
        call_timeout_s: float = CALL_TIMEOUT_S,
        waiting_max: int = WAITING_MAX,
    ) -> SqliteJournal:
        """Open the journal, or make it. Raises JournalUnusable where it cannot be used, JournalUnavailable where it
        cannot be used now; then nothing is held. `wall_clock` is the machine's, if `clock` is a steadier one."""
        writer, reader = await asyncio.to_thread(_open, Path(path), clock, wall_clock or clock, level)
        return cls(writer, reader, call_timeout_s=call_timeout_s, waiting_max=waiting_max)

    async def claim(self, request: ClaimRequest) -> Claim:
        claim: Claim = await self._write_worker.submit(self._writer.claim, request, droppable=True)
        return claim

    async def record(self, change: OperationChange) -> Operation:
        operation: Operation = await self._write_worker.submit(self._writer.record, change)
        return operation

    async def restore(
        self,
        operation: Operation,
        sealed_request: bytes | None = None,
        sealed_response: bytes | None = None,
        *,
        lease_s: float | None = None,
    ) -> Operation:
        raise JournalUnavailable(f"the journal has lost {operation.id}, and cannot have")

    async def take_due(
        self, token: str, lease_s: float, *, limit: int, full: frozenset[str] = frozenset()
    ) -> tuple[Operation, ...]:
        arguments = (token, lease_s, limit, full)
        taken: tuple[Operation, ...] = await self._write_worker.submit(self._writer.take_due, arguments, droppable=True)
        return taken

    async def expedite(self, provider: str, *, within_s: float, limit: int) -> int:
        expedited: int = await self._write_worker.submit(
            self._writer.expedite, (provider, within_s, limit), droppable=True
        )
        return expedited

    async def fall_back(self, change: OperationChange, request: ClaimRequest) -> tuple[Operation, Claim]:
        arguments = (change, request)
        result: tuple[Operation, Claim] = await self._write_worker.submit(
            self._writer.fall_back, arguments, droppable=True
        )
        return result

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        arguments = (operation_ids, token_of, lease_s)
        renewed: frozenset[str] = await self._write_worker.submit(self._writer.renew, arguments)
        return renewed

    async def expire_leases(
        self, *, all_of_earlier_holders: bool = False, over_at: float = math.inf
    ) -> tuple[Operation, ...]:
        expired: tuple[Operation, ...] = await self._write_worker.submit(
            self._writer.expire_leases, (all_of_earlier_holders, over_at)
        )
        return expired

    async def read(self, operation_id: str) -> Operation | None:
        operation: Operation | None = await self._read_worker.submit(self._reader.read, operation_id)
        return operation

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        sealed: tuple[bytes | None, bytes | None] = await self._read_worker.submit(self._reader.sealed, operation_id)
        return sealed

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        history: tuple[HistoryEntry, ...] = await self._read_worker.submit(self._reader.history, operation_id)
        return history

    async def find_operations(self, query: OperationQuery) -> tuple[Operation, ...]:
        operations: tuple[Operation, ...] = await self._read_worker.submit(self._reader.find_operations, query)
        return operations

    async def doubt_counts(self) -> tuple[DoubtCount, ...]:
        counts: tuple[DoubtCount, ...] = await self._read_worker.submit(self._reader.doubt_counts, None)
        return counts

    async def accepts_credential(self, account: str, credential: str) -> bool:
        return bool(await self._read_worker.submit(self._reader.accepts_credential, (account, credential)))

    async def newest_credentials(self, account: str, limit: int) -> tuple[tuple[str, bytes], ...]:
        asked = (account, limit)
        newest: tuple[tuple[str, bytes], ...] = await self._read_worker.submit(self._reader.newest_credentials, asked)
        return newest

    async def store_webhook_event(self, webhook_event: StoredWebhookEvent) -> bool:
        is_new: bool = await self._write_worker.submit(self._webhook_events.store, webhook_event)
        return is_new

    async def due_webhook_events(self, *, limit: int) -> tuple[StoredWebhookEvent, ...]:
        due: tuple[StoredWebhookEvent, ...] = await self._write_worker.submit(
            self._webhook_events.due, limit, droppable=True
        )
        return due

    async def update_webhook_event(self, webhook_event: StoredWebhookEvent) -> None:
        await self._write_worker.submit(self._webhook_events.update, webhook_event)

    async def announcements(self, after: int, *, limit: int) -> tuple[AnnouncementRow, ...]:
        rows: tuple[AnnouncementRow, ...] = await self._read_worker.submit(self._reader.announcements, (after, limit))
        return rows

    async def ledger_rows(self, keys: tuple[str, ...]) -> tuple[LedgerRow | None, ...]:
        rows: tuple[LedgerRow | None, ...] = await self._read_worker.submit(self._reader.ledger_rows, keys)
        return rows

    async def write_ledger_rows(self, rows: tuple[LedgerRow, ...]) -> bool:
        written: bool = await self._write_worker.submit(self._writer.write_ledger_rows, rows)
        return written

    async def due_ledger_rows(self, *, limit: int) -> tuple[LedgerRow, ...]:
        due: tuple[LedgerRow, ...] = await self._write_worker.submit(
            self._writer.due_ledger_rows, limit, droppable=True
        )
        return due

    async def count_due_ledger_rows(self, within_s: float) -> int:
        count: int = await self._write_worker.submit(self._writer.count_due_ledger_rows, within_s, droppable=True)
        return count

    async def take_cursor(self, name: str, token: str, lease_s: float) -> int | None:
        seq: int | None = await self._write_worker.submit(self._cursors.take, (name, token, lease_s), droppable=True)
        return seq

    async def move_cursor(self, name: str, seq: int, token: str = "") -> bool:
        moved: bool = await self._write_worker.submit(self._cursors.move, (name, seq, token))
        return moved

    async def level(self) -> JournalLevel:
        return self._writer.level

    async def raise_level(self, level: int) -> JournalLevel:
        """Done when it was opened: only one process holds it."""
        return self._writer.level

    async def read_clock(self) -> StoreClock:
        clock: StoreClock = await self._write_worker.submit(self._writer.read_clock, None, droppable=True)
        return clock

    async def retire(
        self,
        *,
        retention_s: float,
        tombstone_s: float,
        limit: int,
        payments_s: float = PAYMENTS_KEPT_S,
        now_max: float = math.inf,
    ) -> int:
        arguments = (retention_s, tombstone_s, limit, payments_s, now_max)
        retired: int = await self._write_worker.submit(self._retention.retire, arguments, droppable=True)
        return retired

    async def keep_revision(self, provider: str, revision: str, content: str) -> None:
        await self._write_worker.submit(self._writer.keep_revision, (provider, revision, content))

    async def revision(self, provider: str, revision: str) -> PolicyRevision | None:
        kept: PolicyRevision | None = await self._read_worker.submit(self._reader.revision, (provider, revision))
        return kept

    async def latest_revision(self, provider: str) -> PolicyRevision | None:
        revision: PolicyRevision | None = await self._read_worker.submit(self._reader.latest_revision, provider)
        return revision

    async def check_identity(self, check_value: str) -> None:
        await self._write_worker.submit(self._writer.check_identity, check_value)

    @property
    def shared(self) -> bool:
        return False

    @property
    def can_roll_back(self) -> bool:
        """While it is open it cannot. It may have been put back from a copy before that."""
        return self._rolled_back_mono is not None

    def journal_id(self) -> str:
        return self._writer.journal_id

    def rolled_back_s(self) -> float | None:
        return None if self._rolled_back_mono is None else asyncio.get_running_loop().time() - self._rolled_back_mono

    async def healthy(self) -> bool:
        try:
            await self._write_worker.submit(self._writer.store_time, None, droppable=True)
        except Exception:  # noqa: BLE001  # whatever it is, it is not health
            return False
        return True

    async def close(self) -> None:
        """Write what waits, move the log into the file, let go of it. Raises JournalUnavailable where the disk does
        not let it end in time: then it stays locked for as long as this process lives."""
        await self._read_worker.close(CLOSE_TIMEOUT_S)
        if not await self._write_worker.close(CLOSE_TIMEOUT_S):
            raise JournalUnavailable(f"the journal did not close in {CLOSE_TIMEOUT_S:g} s: its disk does not answer")

    @property
    def commits(self) -> int:
        """Transactions so far; fewer than writes, where writes came together."""
        return self._writer.commits


def _open(path: Path, clock: WallClock, wall_clock: WallClock, level: int) -> tuple[SqliteWriter, SqliteReader]:
    path = Path(os.path.realpath(path))  # a link to a journal is that journal
    make_file(path)
    with contextlib.ExitStack() as undo:
        lock = FileLock(path)
        undo.callback(lock.release)
        try:
            writer = SqliteWriter(path, clock, lock, wall_clock, level)
            undo.callback(writer.close)
            reader = SqliteReader(path)
        except sqlite3.Error as error:
            raise unfit(error, path) from error
        undo.pop_all()
    return writer, reader
