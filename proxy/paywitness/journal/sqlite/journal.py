"""The embedded journal: one SQLite file, one process, two threads.

Writes go to a thread that commits all waiting writes as one transaction (WAL, synchronous=FULL: a method returns after
its fsync). Reads go to another thread, on a connection that cannot write. The event loop's thread never touches the
file. Each thread takes all waiting calls as one batch, and never touches a future: one callback in the loop delivers
the results of the whole batch.

A thread has one batch at a time. While the writer computes, the loop may wait for it, for a few milliseconds at most;
while the writer waits for its disk, the loop runs. The loop waits because two threads that both compute take the
interpreter from each other at every statement, which costs several times as much as the statements.

A call that gets no answer within `call_timeout_s` raises JournalUnavailable, and its write may still happen. A caller
repeats a claim with the same token and gets the same answer. A repeated record raises StaleWrite. If nobody waits for a
claim or lease any more when its turn comes, it is not written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

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
from paywitness.journal.sqlite.writer import SqliteCursors, SqliteWriter, WorkerCall
from paywitness.journal.transitions import WallClock
from paywitness.repeated_lines import REPEATS, repeats

_log = logging.getLogger("paywitness.journal")
_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

BATCH_MAX = 256  # writes in one transaction: about 10 ms of work, so that the first of them does not wait long
LOOP_YIELD_S = 0.01  # such a transaction computes this long; a disk that hangs blocks the event loop this long, once
WAITING_MAX = 10_000  # some seconds of writes: a call that waits longer would time out anyway
READS_WAITING_MAX = 1_000
CALL_TIMEOUT_S = 5.0
IDLE_AFTER_S = 1.0  # without calls: then the thread moves the log into the file, while no call waits for it
CLOSE_TIMEOUT_S = 30.0  # for the waiting calls, and for moving the log
_LOOP_CHECK_S = 5.0  # how often an idle thread checks that its loop is still open


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
        """Open the journal, or create it. Raises JournalUnusable if it cannot be used, and JournalUnavailable if it
        cannot be used now; in both cases nothing stays locked. `wall_clock` is the machine's own clock, if `clock` is a
        steadier one."""
        writer, reader = await asyncio.to_thread(_open, Path(path), clock, wall_clock or clock, level)
        return cls(writer, reader, call_timeout_s=call_timeout_s, waiting_max=waiting_max)

    async def claim(self, request: ClaimRequest) -> Claim:
        return await self._write_worker.submit(self._writer.claim, request, droppable=True)

    async def record(self, change: OperationChange) -> Operation:
        return await self._write_worker.submit(self._writer.record, change)

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
        return await self._write_worker.submit(self._writer.take_due, arguments, droppable=True)

    async def expedite(self, provider: str, *, within_s: float, limit: int) -> int:
        return await self._write_worker.submit(self._writer.expedite, (provider, within_s, limit), droppable=True)

    async def fall_back(self, change: OperationChange, request: ClaimRequest) -> tuple[Operation, Claim]:
        arguments = (change, request)
        return await self._write_worker.submit(self._writer.fall_back, arguments, droppable=True)

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        arguments = (operation_ids, token_of, lease_s)
        return await self._write_worker.submit(self._writer.renew, arguments)

    async def expire_leases(
        self, *, all_of_earlier_holders: bool = False, over_at: float = math.inf
    ) -> tuple[Operation, ...]:
        return await self._write_worker.submit(self._writer.expire_leases, (all_of_earlier_holders, over_at))

    async def read(self, operation_id: str) -> Operation | None:
        return await self._read_worker.submit(self._reader.read, operation_id)

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        return await self._read_worker.submit(self._reader.sealed, operation_id)

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        return await self._read_worker.submit(self._reader.history, operation_id)

    async def find_operations(self, query: OperationQuery) -> tuple[Operation, ...]:
        return await self._read_worker.submit(self._reader.find_operations, query)

    async def doubt_counts(self) -> tuple[DoubtCount, ...]:
        return await self._read_worker.submit(self._reader.doubt_counts, None)

    async def accepts_credential(self, account: str, credential: str) -> bool:
        return bool(await self._read_worker.submit(self._reader.accepts_credential, (account, credential)))

    async def newest_credentials(self, account: str, limit: int) -> tuple[tuple[str, bytes], ...]:
        asked = (account, limit)
        return await self._read_worker.submit(self._reader.newest_credentials, asked)

    async def store_webhook_event(self, webhook_event: StoredWebhookEvent) -> bool:
        return await self._write_worker.submit(self._webhook_events.store, webhook_event)

    async def due_webhook_events(self, *, limit: int) -> tuple[StoredWebhookEvent, ...]:
        return await self._write_worker.submit(self._webhook_events.due, limit, droppable=True)

    async def update_webhook_event(self, webhook_event: StoredWebhookEvent) -> None:
        await self._write_worker.submit(self._webhook_events.update, webhook_event)

    async def announcements(self, after: int, *, limit: int) -> tuple[AnnouncementRow, ...]:
        return await self._read_worker.submit(self._reader.announcements, (after, limit))

    async def ledger_rows(self, keys: tuple[str, ...]) -> tuple[LedgerRow | None, ...]:
        return await self._read_worker.submit(self._reader.ledger_rows, keys)

    async def write_ledger_rows(self, rows: tuple[LedgerRow, ...]) -> bool:
        return await self._write_worker.submit(self._writer.write_ledger_rows, rows)

    async def due_ledger_rows(self, *, limit: int) -> tuple[LedgerRow, ...]:
        return await self._write_worker.submit(self._writer.due_ledger_rows, limit, droppable=True)

    async def count_due_ledger_rows(self, within_s: float) -> int:
        return await self._write_worker.submit(self._writer.count_due_ledger_rows, within_s, droppable=True)

    async def take_cursor(self, name: str, token: str, lease_s: float) -> int | None:
        return await self._write_worker.submit(self._cursors.take, (name, token, lease_s), droppable=True)

    async def move_cursor(self, name: str, seq: int, token: str = "") -> bool:
        return await self._write_worker.submit(self._cursors.move, (name, seq, token))

    async def level(self) -> JournalLevel:
        return self._writer.level

    async def raise_level(self, level: int) -> JournalLevel:
        """The level was raised when the journal was opened, because only one process holds it."""
        return self._writer.level

    async def read_clock(self) -> StoreClock:
        return await self._write_worker.submit(self._writer.read_clock, None, droppable=True)

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
        return await self._write_worker.submit(self._retention.retire, arguments, droppable=True)

    async def keep_revision(self, provider: str, revision: str, content: str) -> None:
        await self._write_worker.submit(self._writer.keep_revision, (provider, revision, content))

    async def revision(self, provider: str, revision: str) -> PolicyRevision | None:
        return await self._read_worker.submit(self._reader.revision, (provider, revision))

    async def latest_revision(self, provider: str) -> PolicyRevision | None:
        return await self._read_worker.submit(self._reader.latest_revision, provider)

    async def check_identity(self, check_value: str) -> None:
        await self._write_worker.submit(self._writer.check_identity, check_value)

    @property
    def shared(self) -> bool:
        return False

    @property
    def can_roll_back(self) -> bool:
        """An open journal cannot roll back. But somebody may have restored the file from a copy before it was
        opened."""
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
        """Write the waiting changes, move the log into the file, and release the file. Raises JournalUnavailable if the
        disk is too slow: then the journal stays locked for as long as this process lives."""
        await self._read_worker.close(CLOSE_TIMEOUT_S)
        if not await self._write_worker.close(CLOSE_TIMEOUT_S):
            raise JournalUnavailable(f"the journal did not close in {CLOSE_TIMEOUT_S:g} s: its disk does not answer")

    @property
    def commits(self) -> int:
        """Transactions so far; fewer than writes if writes came together."""
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


# --- The threads


class WorkerBackend(Protocol):
    """The work of a thread. All methods run in the thread."""

    def run_batch(self, calls: list[WorkerCall], computed: Callable[[], None]) -> list[Any]:
        """Returns one result for each call, in order. If a result is an exception, it is raised to the caller. The
        backend may call `computed`, any number of times, when it only waits from then on."""
        ...

    def on_idle(self) -> None:
        """Runs once after a batch, if no call has come for a while."""
        ...

    def close(self) -> None:
        """Runs at the end, after the last batch."""
        ...


class SqliteWorker:
    def __init__(
        self,
        name: str,
        backend: WorkerBackend,
        *,
        batch_max: int,
        waiting_max: int,
        call_timeout_s: float,
        idle_after_s: float,
        loop_yield_s: float = 0.0,
        on_timeout: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._backend = backend
        self._batch_max = batch_max
        self._waiting_max = waiting_max
        self._call_timeout_s = call_timeout_s
        self._idle_after_s = idle_after_s
        self._loop_yield_s = loop_yield_s  # how long the loop waits for a batch at most
        self._on_timeout = on_timeout  # called in the loop after a call has timed out
        self._loop = asyncio.get_running_loop()
        self._queued: list[WorkerCall] = []  # not handed over yet
        self._hand_over_scheduled = False  # in this turn of the loop
        self._busy = False  # the thread has a batch
        self._computed = threading.Event()
        self._queue: SimpleQueue[list[WorkerCall] | None] = SimpleQueue()  # at most one batch, and the end
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()  # oldest first; all wait equally long
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._ended = self._loop.create_future()
        # A daemon, because a process that is stopping must not wait for a disk that hangs.
        self._thread = threading.Thread(target=self._run, name=f"paywitness-{name}", daemon=True)
        self._thread.start()

    def submit(
        self, method: Callable[[_Argument], _Result], argument: _Argument, *, droppable: bool = False
    ) -> asyncio.Future[_Result]:
        """Run `method(argument)` in the thread. `droppable`: do not run it if its caller has given up by then."""
        if self._closed:
            raise JournalUnavailable("the journal is closed")
        if len(self._queued) >= self._waiting_max:
            raise JournalUnavailable(f"{self._waiting_max} calls wait for the journal already")
        loop = self._loop
        future: asyncio.Future[_Result] = loop.create_future()
        self._waiting.append((loop.time() + self._call_timeout_s, future))
        if self._timer is None:
            self._timer = loop.call_later(self._call_timeout_s, self._fail_overdue)
        self._queued.append((method, argument, future, droppable))
        self._hand_over_soon()
        return future

    async def close(self, timeout_s: float) -> bool:
        """Run the waiting calls, then end the thread. False: it did not end in time, and may still be writing."""
        if not self._closed:
            self._closed = True
            self._hand_over_soon()
        await asyncio.wait((self._ended,), timeout=timeout_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._ended.done():
            return False
        self._thread.join()
        return True

    def _hand_over_soon(self) -> None:
        """Hand over a batch at the end of this turn of the loop, so that all calls of the turn share it. If the thread
        is busy, wait until it is free."""
        if not self._hand_over_scheduled and not self._busy:
            self._hand_over_scheduled = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._hand_over_scheduled = False
        calls = self._queued[: self._batch_max]
        if not calls:
            self._queue.put(None)  # closed, and nothing is left
            return
        del self._queued[: self._batch_max]
        self._busy = True
        self._computed.clear()
        self._queue.put(calls)
        if self._loop_yield_s:
            self._computed.wait(self._loop_yield_s)

    def _fail_overdue(self) -> None:
        self._timer = None
        now = self._loop.time()
        timed_out = False
        waiting = self._waiting
        while waiting and (waiting[0][1].done() or waiting[0][0] <= now):
            _, future = waiting.popleft()
            if not future.done():
                future.set_exception(JournalUnavailable(f"the journal did not answer in {self._call_timeout_s:g} s"))
                timed_out = True
        if waiting:
            self._timer = self._loop.call_at(waiting[0][0], self._fail_overdue)
        if timed_out and self._on_timeout is not None:
            self._on_timeout()

    def _deliver(self, calls: list[WorkerCall], results: list[Any]) -> None:
        for (_, _, future, _), result in zip(calls, results, strict=True):
            if future.done():
                continue  # its caller has gone, or has already got an error because of the timeout
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        waiting = self._waiting
        while waiting and waiting[0][1].done():
            waiting.popleft()
        self._busy = False
        if self._queued or self._closed:
            self._hand_over_soon()

    def _mark_ended(self) -> None:
        self._closed = True
        if not self._ended.done():
            self._ended.set_result(None)

    # From here on the methods run in the thread.

    def _run(self) -> None:
        try:
            self._run_batches()
        finally:
            try:
                self._backend.close()
            finally:
                with contextlib.suppress(RuntimeError):  # the loop was closed before the journal was
                    self._loop.call_soon_threadsafe(self._mark_ended)

    def _run_batches(self) -> None:
        idle = True
        while True:
            try:
                calls = self._queue.get(timeout=_LOOP_CHECK_S if idle else self._idle_after_s)
            except Empty:
                if self._loop.is_closed():
                    return  # abandoned: no more calls will come, and nobody will close this worker
                if not idle:
                    self._run_idle()
                idle = True
                continue
            if calls is None:
                return
            try:
                results = self._backend.run_batch(calls, self._computed.set)
            except Exception as error:  # noqa: BLE001  # no caller may wait for ever, and the thread goes on
                name = type(error).__name__
                _log.error("journal %s failed with %s", self._name, name, exc_info=error, extra=repeats(name))
                results = [JournalUnavailable(f"the journal failed: {name}") for _ in calls]
            self._computed.set()
            try:
                self._loop.call_soon_threadsafe(self._deliver, calls, results)
            except RuntimeError:
                return  # the loop was closed before the journal was, so no more calls will come
            idle = False

    def _run_idle(self) -> None:
        try:
            self._backend.on_idle()
        except Exception as error:  # noqa: BLE001  # it tries again when it is idle next time; the thread goes on
            _log.warning(
                "journal %s could not rest: %s", self._name, type(error).__name__, exc_info=error, extra=REPEATS
            )
