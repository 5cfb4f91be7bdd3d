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
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from proxy.core.claim import Claim, ClaimRequest
from proxy.core.errors import JournalUnavailable
from proxy.core.operation import HistoryEntry, Operation
from proxy.journal.base import Change, DoubtCount, KeptNotice, Listing, OutcomeRow, Revision
from proxy.journal.sqlite_cursors import Cursors
from proxy.journal.sqlite_file import FileLock, make_file, unfit
from proxy.journal.sqlite_lane import Lane
from proxy.journal.sqlite_notices import Notices
from proxy.journal.sqlite_reads import Reader
from proxy.journal.sqlite_retirement import Retirement
from proxy.journal.sqlite_writes import Writer
from proxy.journal.steps import WallClock

BATCH_MAX = 256  # writes in one transaction: about 10 ms of work, so that the first of them does not wait long
ASIDE_S = 0.01  # what such a transaction computes; a disk that hangs holds the event loop up for so long, once
WAITING_MAX = 10_000  # some seconds' worth of writes: what waits longer would be given up anyway
READS_WAITING_MAX = 1_000
CALL_TIMEOUT_S = 5.0
REST_AFTER_S = 1.0  # of silence: then the log is moved into the file, off anybody's call
CLOSE_TIMEOUT_S = 30.0  # for what waits, and the log


class SqliteJournal:
    """A `Journal` (see `base`) in one file. Open it with `open`; use it from that event loop alone."""

    def __init__(self, writer: Writer, reader: Reader, *, call_timeout_s: float, waiting_max: int) -> None:
        self._writer = writer
        self._reader = reader
        self._cursors = Cursors(writer)
        self._notices = Notices(writer)
        self._retirement = Retirement(writer)
        self._writes = Lane(
            "journal-writer",
            writer,
            batch_max=BATCH_MAX,
            waiting_max=waiting_max,
            call_timeout_s=call_timeout_s,
            rest_after_s=REST_AFTER_S,
            aside_s=ASIDE_S,
        )
        self._reads = Lane(
            "journal-reader",
            reader,
            batch_max=1,
            waiting_max=READS_WAITING_MAX,
            call_timeout_s=call_timeout_s,
            rest_after_s=REST_AFTER_S,
            overdue=reader.interrupt,
        )

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        clock: WallClock,
        call_timeout_s: float = CALL_TIMEOUT_S,
        waiting_max: int = WAITING_MAX,
    ) -> SqliteJournal:
        """Open the journal, or make it. Raises JournalUnfit where it cannot be used, JournalUnavailable where it
        cannot be used now; then nothing is held."""
        writer, reader = await asyncio.to_thread(_open, Path(path), clock)
        return cls(writer, reader, call_timeout_s=call_timeout_s, waiting_max=waiting_max)

    async def claim(self, request: ClaimRequest) -> Claim:
        claim: Claim = await self._writes.ask(self._writer.claim, request, moot=True)
        return claim

    async def record(self, change: Change) -> Operation:
        operation: Operation = await self._writes.ask(self._writer.record, change)
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

    async def take_lease(
        self, operation: Operation, token: str, lease_s: float, *, source: str = "resolver"
    ) -> Operation:
        asked = (operation, token, lease_s, source)
        held: Operation = await self._writes.ask(self._writer.take_lease, asked, moot=True)
        return held

    async def take_due(
        self, token: str, lease_s: float, *, limit: int, full: frozenset[str] = frozenset()
    ) -> tuple[Operation, ...]:
        asked = (token, lease_s, limit, full)
        taken: tuple[Operation, ...] = await self._writes.ask(self._writer.take_due, asked, moot=True)
        return taken

    async def hasten(self, provider: str, *, within_s: float, limit: int) -> int:
        hastened: int = await self._writes.ask(self._writer.hasten, (provider, within_s, limit), moot=True)
        return hastened

    async def fall_back(self, change: Change, request: ClaimRequest) -> tuple[Operation, Claim]:
        asked = (change, request)
        both: tuple[Operation, Claim] = await self._writes.ask(self._writer.fall_back, asked, moot=True)
        return both

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        asked = (operation_ids, token_of, lease_s)
        renewed: frozenset[str] = await self._writes.ask(self._writer.renew, asked)
        return renewed

    async def expire_leases(self, *, all_of_earlier_holders: bool = False) -> tuple[Operation, ...]:
        expired: tuple[Operation, ...] = await self._writes.ask(self._writer.expire_leases, all_of_earlier_holders)
        return expired

    async def read(self, operation_id: str) -> Operation | None:
        operation: Operation | None = await self._reads.ask(self._reader.read, operation_id)
        return operation

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        sealed: tuple[bytes | None, bytes | None] = await self._reads.ask(self._reader.sealed, operation_id)
        return sealed

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        history: tuple[HistoryEntry, ...] = await self._reads.ask(self._reader.history, operation_id)
        return history

    async def listing(self, listing: Listing) -> tuple[Operation, ...]:
        operations: tuple[Operation, ...] = await self._reads.ask(self._reader.listing, listing)
        return operations

    async def doubt_counts(self) -> tuple[DoubtCount, ...]:
        counts: tuple[DoubtCount, ...] = await self._reads.ask(self._reader.doubt_counts, None)
        return counts

    async def newest_credential(self, account: str) -> tuple[str, bytes] | None:
        newest: tuple[str, bytes] | None = await self._reads.ask(self._reader.newest_credential, account)
        return newest

    async def keep_notice(self, notice: KeptNotice) -> bool:
        is_new: bool = await self._writes.ask(self._notices.keep, notice)
        return is_new

    async def notices_due(self, *, limit: int) -> tuple[KeptNotice, ...]:
        due: tuple[KeptNotice, ...] = await self._writes.ask(self._notices.due, limit, moot=True)
        return due

    async def move_notice(self, notice: KeptNotice) -> None:
        await self._writes.ask(self._notices.move, notice)

    async def outcomes(self, after: int, *, limit: int) -> tuple[OutcomeRow, ...]:
        rows: tuple[OutcomeRow, ...] = await self._reads.ask(self._reader.outcomes, (after, limit))
        return rows

    async def cursor(self, name: str) -> int:
        seq: int = await self._reads.ask(self._reader.cursor, name)
        return seq

    async def take_cursor(self, name: str, token: str, lease_s: float) -> int | None:
        come_to: int | None = await self._writes.ask(self._cursors.take, (name, token, lease_s), moot=True)
        return come_to

    async def move_cursor(self, name: str, seq: int, token: str = "") -> bool:
        moved: bool = await self._writes.ask(self._cursors.move, (name, seq, token))
        return moved

    async def retire(self, *, retention_s: float, tombstone_s: float, limit: int) -> int:
        asked = (retention_s, tombstone_s, limit)
        retired: int = await self._writes.ask(self._retirement.retire, asked, moot=True)
        return retired

    async def keep_revision(self, provider: str, revision: str, content: str) -> None:
        await self._writes.ask(self._writer.keep_revision, (provider, revision, content))

    async def revision(self, provider: str, revision: str) -> Revision | None:
        kept: Revision | None = await self._reads.ask(self._reader.revision, (provider, revision))
        return kept

    async def latest_revision(self, provider: str) -> Revision | None:
        revision: Revision | None = await self._reads.ask(self._reader.latest_revision, provider)
        return revision

    async def check_identity(self, check_value: str) -> None:
        await self._writes.ask(self._writer.check_identity, check_value)

    @property
    def may_forget(self) -> bool:
        return False

    def rolled_back_s(self) -> float | None:
        return None

    async def healthy(self) -> bool:
        try:
            await self._writes.ask(self._writer.keep_time, None, moot=True)
        except Exception:  # noqa: BLE001  # whatever it is, it is not health
            return False
        return True

    async def close(self) -> None:
        """Write what waits, move the log into the file, let go of it. Raises JournalUnavailable where the disk does
        not let it end in time: then it stays locked for as long as this process lives."""
        await self._reads.close(CLOSE_TIMEOUT_S)
        if not await self._writes.close(CLOSE_TIMEOUT_S):
            raise JournalUnavailable(f"the journal did not close in {CLOSE_TIMEOUT_S:g} s: its disk does not answer")

    @property
    def commits(self) -> int:
        """Transactions so far; fewer than writes, where writes came together."""
        return self._writer.commits


def _open(path: Path, clock: WallClock) -> tuple[Writer, Reader]:
    path = Path(os.path.realpath(path))  # a link to a journal is that journal
    make_file(path)
    with contextlib.ExitStack() as undo:
        lock = FileLock(path)
        undo.callback(lock.release)
        try:
            writer = Writer(path, clock, lock)
            undo.callback(writer.finish)
            reader = Reader(path)
        except sqlite3.Error as error:
            raise unfit(error, path) from error
        undo.pop_all()
    return writer, reader
