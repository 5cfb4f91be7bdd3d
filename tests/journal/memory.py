"""A journal in memory: the same steps over dictionaries, no threads and no disk. For the simulator and fast tests.

Nothing here awaits, so every method is one step by itself. What it holds is lost with the process, which makes it unfit
for real money; `reopened` plays the restart that a file would survive.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from paywitness.core.claim import Claim, ClaimRequest
from paywitness.core.errors import JournalLevelError, JournalUnavailable, JournalUnusable
from paywitness.core.levels import LEVEL, JournalLevel
from paywitness.core.operation import DoubtCount, HistoryEntry, Lease, Operation, State
from paywitness.journal import claim_plan, fallback_plan, transitions
from paywitness.journal.base import (
    AGES_KEY,
    DUE_ROWS_COUNTED_MAX,
    PAYMENTS_KEPT_S,
    AnnouncementRow,
    LedgerRow,
    NextDue,
    OperationChange,
    OperationQuery,
    PolicyRevision,
    StoreClock,
    StoredWebhookEvent,
)
from paywitness.journal.claim_answer import ClaimPlan
from paywitness.journal.payouts import rows_of_writes
from paywitness.journal.transitions import JournalTime, WallClock
from tests.journal.memory_tables import MemoryTables

_identity_values = attrgetter(*transitions.IDENTITY_FIELDS)


class MemoryJournal:
    """A `Journal` (see `base`) that lives as long as its process."""

    def __init__(self, *, clock: WallClock, tables: MemoryTables | None = None, level: int = LEVEL) -> None:
        self._tables = tables or MemoryTables()
        self._clock = clock
        self._level = level
        self._time = JournalTime(clock, self._tables.latest_at)
        self._opened_at_seq = self._tables.seq
        self._open = True
        self._cursor_leases: dict[str, Lease] = {}  # whoever held one is gone with this process

    def reopened(self, clock: WallClock) -> MemoryJournal:
        """This journal as the next process finds it. This one is closed."""
        self._tables.latest_at = self._time.latest_at
        self._open = False
        return MemoryJournal(clock=clock, tables=self._tables)

    async def claim(self, request: ClaimRequest) -> Claim:
        tables = self._opened()
        self._check_level()
        now = self._time.now()
        taken = claim_plan.plan_answer(request, now, tables)
        self._check_started(taken)
        for write in taken.updates:
            tables.write(write)
        if taken.alias is not None:
            tables.aliases[taken.alias.key] = taken.alias
        if taken.insert is not None:
            tables.start(taken.insert, request.sealed_request)
        tables.store_rows(taken.rows, now)
        return claim_plan.claim_result(taken, now, tables.sealed)

    def _check_started(self, taken: ClaimPlan) -> None:
        if taken.insert is not None and taken.insert.operation.id in self._tables.operations:
            raise JournalUnavailable(f"the journal holds another operation of the id {taken.insert.operation.id}")

    async def record(self, change: OperationChange) -> Operation:
        tables = self._opened()
        self._check_level()
        now = self._time.now()
        operation = change.operation
        stored = tables.operations.get(operation.id)
        if stored is None or stored.version != operation.version:
            raise transitions.stale_write(operation.id, operation.version)
        guard = operation.guard
        guarded = tables.guarded(guard.value) if guard is not None and transitions.needs_duplicate_check(change) else ()
        plan = transitions.plan_record(change, stored.lease, now, tables, guarded)
        recorded = self._write_change(change, plan.write, now)
        tables.store_rows(plan.rows, now)
        return recorded

    def _write_change(self, change: OperationChange, write: transitions.OperationWrite, now: float) -> Operation:
        tables, operation = self._tables, change.operation
        stored = tables.operations[operation.id]
        if _identity_values(operation) != _identity_values(stored):
            name = next(
                name for name in transitions.IDENTITY_FIELDS if getattr(operation, name) != getattr(stored, name)
            )
            raise ValueError(f"{operation.id}: a change cannot touch {name}, which says what the operation is")
        tables.write(write)
        if change.sealed_response is not None:
            tables.responses[operation.id] = change.sealed_response
        if change.accepted_credential:
            tables.accept((operation.account, operation.credential), change.sealed_credential, now)
        return write.operation

    async def fall_back(self, change: OperationChange, request: ClaimRequest) -> tuple[Operation, Claim]:
        tables = self._opened()
        now = self._time.now()
        self._check_level()
        taken = fallback_plan.plan_fallback(change, request, now, tables)
        self._check_started(taken.second)
        if taken.end is not None:
            self._write_change(change, taken.end, now)
        if taken.second.insert is not None:
            tables.start(taken.second.insert, request.sealed_request)
        tables.store_rows(taken.second.rows, now)
        return taken.first, claim_plan.claim_result(taken.second, now, tables.sealed)

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
        tables = self._opened()
        now = self._time.now()
        due = [
            (operation.due_at, tables.numbers[operation.id], operation)
            for operation in tables.operations.values()
            if operation.due_at is not None
            and operation.due_at <= now
            and operation.lease is None
            and operation.state in transitions.LEASABLE_STATES
            and operation.provider not in full
        ]
        oldest_first = (operation for _, _, operation in sorted(due))
        taken = transitions.lease_due_writes(islice(oldest_first, limit), token, lease_s, now)
        for write in taken:
            tables.write(write)
        return tuple(write.operation for write in taken)

    async def expedite(self, provider: str, *, within_s: float, limit: int) -> int:
        tables = self._opened()
        now = self._time.now()
        limit = transitions.bounded_expedite_limit(limit)
        waiting = sorted(
            (operation.due_at, tables.numbers[operation.id], operation)
            for operation in tables.operations.values()
            if operation.provider == provider
            and operation.due_at is not None
            and operation.due_at > now
            and operation.lease is None
            and operation.state in transitions.LEASABLE_STATES
        )[: limit * transitions.EXPEDITE_SCAN_FACTOR]
        earliest_first = ((operation.id, operation.state, due_at) for due_at, _, operation in waiting)
        expedited = transitions.expedited_due_times(earliest_first, now, within_s, limit)
        for operation_id, due_at in expedited:
            tables.operations[operation_id] = tables.operations[operation_id].changed(due_at=due_at)
        return len(expedited)

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        operations = self._opened().operations
        now = self._time.now()
        renewed = set()
        for operation_id in operation_ids:
            stored = operations.get(operation_id)
            lease = transitions.renewed_lease(
                stored.lease if stored else None, token_of.get(operation_id), lease_s, now
            )
            if stored is not None and lease is not None:
                operations[operation_id] = replace(stored, lease=lease)
                renewed.add(operation_id)
        return frozenset(renewed)

    async def expire_leases(
        self, *, all_of_earlier_holders: bool = False, over_at: float = math.inf
    ) -> tuple[Operation, ...]:
        tables = self._opened()
        now = self._time.now()
        over = [
            (operation.lease.until_at, tables.numbers[operation.id], operation)
            for operation in tables.operations.values()
            if operation.lease is not None
            and (
                operation.lease.until_at <= min(now, over_at)
                or (all_of_earlier_holders and tables.seqs_of[operation.id][-1] <= self._opened_at_seq)
            )
        ]
        oldest_first = (operation for _, _, operation in sorted(over))
        stored = list(islice(oldest_first, transitions.EXPIRED_LEASES_MAX))
        expired = transitions.expired_lease_writes(stored, now)
        rows = rows_of_writes(stored, (write.operation for write in expired), tables)
        for write in expired:
            tables.write(write)
        tables.store_rows(rows, now)
        return tuple(write.operation for write in expired)

    async def read(self, operation_id: str) -> Operation | None:
        return self._opened().operations.get(operation_id)

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        return self._opened().sealed(operation_id)

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        tables = self._opened()
        seqs = tables.seqs_of.get(operation_id, [])
        return tuple(tables.changes[seq][1] for seq in seqs[: transitions.HISTORY_MAX])

    async def find_operations(self, query: OperationQuery) -> tuple[Operation, ...]:
        limit = max(1, min(query.limit, transitions.LISTING_MAX))
        return tuple(islice(self._listed(query), limit))

    def _listed(self, query: OperationQuery) -> Iterator[Operation]:
        operations = self._opened().operations.values()
        aliased = {alias.operation_id for alias in self._tables.aliases.values() if alias.client_key == query.key}
        for operation in sorted(operations, key=lambda operation: operation.id, reverse=True):
            by_key = operation.id in aliased or query.key in {operation.client_key, operation.provider_key}
            if (query.key is None or by_key) and transitions.matches_query(operation, query):
                yield operation

    async def doubt_counts(self) -> tuple[DoubtCount, ...]:
        groups: dict[tuple[str, str, str, State], list[Operation]] = defaultdict(list)
        for operation in self._opened().operations.values():
            if operation.state.in_doubt:
                currency = operation.money.currency if operation.money else ""
                groups[operation.provider, operation.operation, currency, operation.state].append(operation)
        return tuple(
            DoubtCount(
                *group,
                count=len(operations),
                minor_units=sum(operation.money.minor_units for operation in operations if operation.money),
                oldest_at=min(operation.created_at for operation in operations),
            )
            for group, operations in sorted(groups.items())
        )

    async def accepts_credential(self, account: str, credential: str) -> bool:
        return (account, credential) in self._opened().credentials

    async def newest_credentials(self, account: str, limit: int) -> tuple[tuple[str, bytes], ...]:
        tables = self._opened()
        kept = [pair for pair in tables.sealed_credentials if pair[0] == account]
        kept.sort(key=lambda pair: (tables.credentials[pair].at, pair), reverse=True)
        return tuple((pair[1], tables.sealed_credentials[pair]) for pair in kept[:limit])

    async def store_webhook_event(self, webhook_event: StoredWebhookEvent) -> bool:
        tables = self._opened()
        event = (webhook_event.provider, webhook_event.account, webhook_event.event_id)
        if any((kept.provider, kept.account, kept.event_id) == event for kept in tables.notices.values()):
            return False
        tables.notice_number += 1
        tables.notices[tables.notice_number] = replace(webhook_event, number=tables.notice_number)
        return True

    async def due_webhook_events(self, *, limit: int) -> tuple[StoredWebhookEvent, ...]:
        now = self._time.now()
        due = []
        for webhook_event in self._opened().notices.values():
            times = [at for at in (webhook_event.due_at, webhook_event.relay_due_at) if at is not None and at <= now]
            if times:
                due.append((min(times), webhook_event.number, webhook_event))
        return tuple(webhook_event for _, _, webhook_event in sorted(due)[:limit])

    async def update_webhook_event(self, webhook_event: StoredWebhookEvent) -> None:
        notices = self._opened().notices
        kept = notices.get(webhook_event.number)
        if kept is not None:
            notices[webhook_event.number] = replace(
                kept,
                result=webhook_event.result,
                operation_id=webhook_event.operation_id,
                attempts=webhook_event.attempts,
                due_at=webhook_event.due_at,
                relay_due_at=webhook_event.relay_due_at,
            )

    async def announcements(self, after: int, *, limit: int) -> tuple[AnnouncementRow, ...]:
        tables = self._opened()
        announced = (
            AnnouncementRow(seq, tables.operations[operation_id], entry)
            for seq, (operation_id, entry) in tables.changes.items()
            if seq > after and entry.announcement is not None
        )
        return tuple(islice(announced, limit))

    async def ledger_rows(self, keys: tuple[str, ...]) -> tuple[LedgerRow | None, ...]:
        return tuple(self._opened().row_or_linked(key) for key in keys)

    async def write_ledger_rows(self, rows: tuple[LedgerRow, ...]) -> bool:
        tables = self._opened()
        for row in rows:
            stored = tables.row(row.key)
            if row.version != (1 if stored is None else stored.version + 1):
                return False
        tables.store_rows(rows, self._time.now())
        return True

    async def due_ledger_rows(self, *, limit: int) -> tuple[LedgerRow, ...]:
        now = self._time.now()
        due = sorted(
            (row.due_at, row.key)
            for row, _ in self._opened().ledger.values()
            if row.due_at is not None and row.due_at <= now
        )
        return tuple(self._tables.ledger[key][0] for _, key in due[:limit])

    async def count_due_ledger_rows(self, within_s: float) -> int:
        due_before = self._time.now() + within_s
        due = sorted(
            (row.due_at, row.key)
            for row, _ in self._opened().ledger.values()
            if row.due_at is not None and row.due_at <= due_before
        )
        return sum(key.startswith("p:") for _, key in due[:DUE_ROWS_COUNTED_MAX])

    async def take_cursor(self, name: str, token: str, lease_s: float) -> int | None:
        tables = self._opened()
        lease = transitions.cursor_lease(self._cursor_leases.get(name), token, lease_s, self._time.now())
        if lease is None:
            return None
        self._cursor_leases[name] = lease
        return tables.cursors.get(name, 0)

    async def move_cursor(self, name: str, seq: int, token: str = "") -> bool:
        cursors = self._opened().cursors
        if token and not transitions.holds_cursor(self._cursor_leases.get(name), token, self._time.now()):
            return False
        cursors[name] = max(seq, cursors.get(name, 0))
        return True

    async def level(self) -> JournalLevel:
        return self._opened().level

    async def raise_level(self, level: int) -> JournalLevel:
        tables = self._opened()
        if level > tables.level.level:
            tables.level = JournalLevel(level, self._time.now())
        return tables.level

    def _check_level(self) -> None:
        if self._tables.level.level > self._level:
            raise JournalLevelError(f"the journal is at level {self._tables.level.level}: nothing was written")

    async def read_clock(self) -> StoreClock:
        return StoreClock(self._time.now(), self._clock.now(), self._opened().row(AGES_KEY), self._next_due())

    def _next_due(self) -> NextDue:
        tables = self._opened()
        due: dict[str, float] = {}
        for operation in self._open_operations():
            if operation.due_at is not None and operation.lease is None:
                due[operation.provider] = min(operation.due_at, due.get(operation.provider, math.inf))
        leases = (operation.lease.until_at for operation in self._held_operations() if operation.lease is not None)
        notices = (at for notice in tables.notices.values() for at in (notice.due_at, notice.relay_due_at))
        rows = (row.due_at for row, _ in tables.ledger.values())
        return NextDue(due, min(leases, default=math.inf), _first(notices), _first(rows), announced_seq=tables.seq)

    def _open_operations(self) -> Iterable[Operation]:
        return (one for one in self._tables.operations.values() if one.state in transitions.LEASABLE_STATES)

    def _held_operations(self) -> Iterable[Operation]:
        return self._tables.operations.values()

    async def retire(
        self,
        *,
        retention_s: float,
        tombstone_s: float,
        limit: int,
        payments_s: float = PAYMENTS_KEPT_S,
        now_max: float = math.inf,
    ) -> int:
        tables = self._opened()
        now = self._time.now()
        counted_at = min(now, now_max)
        gone = tables.retire(counted_at - retention_s, limit, now)
        forgotten = tables.forget_old(
            buried_before=counted_at - tombstone_s, received_before=counted_at - retention_s, limit=limit
        )
        oldest_at = counted_at - max(payments_s, retention_s)
        forgotten += tables.forget_credentials(counted_at - retention_s, oldest_at, limit)
        return gone + forgotten + tables.forget_ledger_rows(counted_at - payments_s, limit, now)

    async def keep_revision(self, provider: str, revision: str, content: str) -> None:
        revisions = self._opened().revisions
        latest = await self.latest_revision(provider)
        if latest is None or latest.revision != revision:
            revisions.pop((provider, revision), None)  # one that comes back after another is the latest again
            revisions[provider, revision] = PolicyRevision(provider, revision, content, self._time.now())

    async def revision(self, provider: str, revision: str) -> PolicyRevision | None:
        return self._opened().revisions.get((provider, revision))

    async def latest_revision(self, provider: str) -> PolicyRevision | None:
        kept = reversed(self._opened().revisions.values())
        return next((revision for revision in kept if revision.provider == provider), None)

    async def check_identity(self, check_value: str) -> None:
        tables = self._opened()
        tables.identity = tables.identity or check_value
        if tables.identity != check_value:
            raise JournalUnusable(transitions.WRONG_IDENTITY_SECRET)

    @property
    def shared(self) -> bool:
        return True

    @property
    def can_roll_back(self) -> bool:
        return False

    def journal_id(self) -> str:
        return "0" * 32

    def rolled_back_s(self) -> float | None:
        return None

    async def healthy(self) -> bool:
        return self._open

    async def close(self) -> None:
        self._open = False

    def _opened(self) -> MemoryTables:
        if not self._open:
            raise JournalUnavailable("the journal is closed")
        return self._tables


def _first(times: Iterable[float | None]) -> float:
    return min((at for at in times if at is not None), default=math.inf)
