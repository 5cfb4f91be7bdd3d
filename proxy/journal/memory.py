"""A journal in memory: the same steps over dictionaries, no threads and no disk. For the simulator and fast tests.

Nothing here awaits, so every method is one step by itself. What it holds is lost with the process, which makes it unfit
for real money; `reopened` plays the restart that a file would survive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from proxy.core.claim import Claim, ClaimRequest
from proxy.core.errors import JournalUnavailable, JournalUnfit
from proxy.core.operation import HistoryEntry, Lease, Operation, State
from proxy.journal import claiming, haste, holding, steps
from proxy.journal.base import Change, DoubtCount, KeptNotice, Listing, OutcomeRow, Revision
from proxy.journal.memory_shelves import Shelves
from proxy.journal.steps import JournalTime, WallClock

_what_it_is = attrgetter(*steps.WHAT_IT_IS)


class MemoryJournal:
    """A `Journal` (see `base`) that lives as long as its process."""

    def __init__(self, *, clock: WallClock, shelves: Shelves | None = None) -> None:
        self._shelves = shelves or Shelves()
        self._time = JournalTime(clock, self._shelves.latest_at)
        self._opened_at_seq = self._shelves.seq
        self._open = True
        self._cursor_leases: dict[str, Lease] = {}  # whoever held one is gone with this process

    def reopened(self, clock: WallClock) -> MemoryJournal:
        """This journal as the next process finds it. This one is closed."""
        self._shelves.latest_at = self._time.latest_at
        self._open = False
        return MemoryJournal(clock=clock, shelves=self._shelves)

    async def claim(self, request: ClaimRequest) -> Claim:
        shelves = self._opened()
        now = self._time.now()
        taken = claiming.claim_steps(request, now, shelves)
        self._check_started(taken)
        for step in taken.before:
            shelves.write(step)
        if taken.alias is not None:
            shelves.aliases[taken.alias.key] = taken.alias
        if taken.started is not None:
            shelves.start(taken.started, request.sealed_request)
        return self._answer(taken, request, now)

    def _answer(self, taken: claiming.ClaimSteps, request: ClaimRequest, now: float) -> Claim:
        if not claiming.needs_sealed(taken):
            return claiming.answer(taken, now, (None, None), accepted=False)
        asked, credential = taken.asked, request.fresh.credential
        accepted = asked is not None and (
            asked.credential == credential or (asked.account, credential) in self._shelves.credentials
        )
        sealed = (None, None) if taken.holder is None else self._shelves.sealed(taken.holder.id)
        return claiming.answer(taken, now, sealed, accepted=accepted)

    def _check_started(self, taken: claiming.ClaimSteps) -> None:
        if taken.started is not None and taken.started.operation.id in self._shelves.operations:
            raise JournalUnavailable(f"the journal holds another operation of the id {taken.started.operation.id}")

    async def record(self, change: Change) -> Operation:
        shelves = self._opened()
        now = self._time.now()
        operation = change.operation
        stored = shelves.operations.get(operation.id)
        if stored is None or stored.version != operation.version:
            raise steps.stale(operation.id, operation.version)
        guard = operation.guard
        guarded = shelves.guarded(guard.value) if guard is not None and steps.needs_paid_before(change) else ()
        return self._record(change, steps.recorded(change, stored.lease, now, guarded), now)

    def _record(self, change: Change, step: steps.Step, now: float) -> Operation:
        shelves, operation = self._shelves, change.operation
        stored = shelves.operations[operation.id]
        if _what_it_is(operation) != _what_it_is(stored):
            name = next(name for name in steps.WHAT_IT_IS if getattr(operation, name) != getattr(stored, name))
            raise ValueError(f"{operation.id}: a change cannot touch {name}, which says what the operation is")
        shelves.write(step)
        if change.sealed_response is not None:
            shelves.responses[operation.id] = change.sealed_response
        if change.accepted_credential:
            shelves.accept((operation.account, operation.credential), change.sealed_credential, now)
        return step.operation

    async def fall_back(self, change: Change, request: ClaimRequest) -> tuple[Operation, Claim]:
        shelves = self._opened()
        now = self._time.now()
        taken = claiming.fall_back_steps(change, request, now, shelves)
        self._check_started(taken.second)
        if taken.ended is not None:
            self._record(change, taken.ended, now)
        if taken.second.started is not None:
            shelves.start(taken.second.started, request.sealed_request)
        return taken.first, self._answer(taken.second, request, now)

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
        stored = self._opened().operations.get(operation.id)
        step = steps.leased(stored, operation, token, lease_s, self._time.now(), source)
        if step is not None:
            self._shelves.write(step)
        return self._shelves.operations[operation.id]

    async def take_due(
        self, token: str, lease_s: float, *, limit: int, full: frozenset[str] = frozenset()
    ) -> tuple[Operation, ...]:
        shelves = self._opened()
        now = self._time.now()
        due = [
            (operation.due_at, shelves.numbers[operation.id], operation)
            for operation in shelves.operations.values()
            if operation.due_at is not None
            and operation.due_at <= now
            and operation.lease is None
            and operation.state in steps.MAY_BE_HELD
            and operation.provider not in full
        ]
        oldest_first = (operation for _, _, operation in sorted(due))
        taken = steps.taken(islice(oldest_first, limit), token, lease_s, now)
        for step in taken:
            shelves.write(step)
        return tuple(step.operation for step in taken)

    async def hasten(self, provider: str, *, within_s: float, limit: int) -> int:
        shelves = self._opened()
        now = self._time.now()
        limit = haste.bounded(limit)
        waiting = sorted(
            (operation.due_at, shelves.numbers[operation.id], operation)
            for operation in shelves.operations.values()
            if operation.provider == provider
            and operation.due_at is not None
            and operation.due_at > now
            and operation.lease is None
            and operation.state in steps.MAY_BE_HELD
        )[: limit * haste.LOOKED_AT]
        earliest_first = ((operation.id, operation.state, due_at) for due_at, _, operation in waiting)
        hastened = haste.hastened(earliest_first, now, within_s, limit)
        for operation_id, due_at in hastened:
            shelves.operations[operation_id] = shelves.operations[operation_id].changed(due_at=due_at)
        return len(hastened)

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        operations = self._opened().operations
        now = self._time.now()
        renewed = set()
        for operation_id in operation_ids:
            stored = operations.get(operation_id)
            lease = steps.renewed(stored.lease if stored else None, token_of.get(operation_id), lease_s, now)
            if stored is not None and lease is not None:
                operations[operation_id] = replace(stored, lease=lease)
                renewed.add(operation_id)
        return frozenset(renewed)

    async def expire_leases(self, *, all_of_earlier_holders: bool = False) -> tuple[Operation, ...]:
        shelves = self._opened()
        now = self._time.now()
        over = [
            (operation.lease.until_at, shelves.numbers[operation.id], operation)
            for operation in shelves.operations.values()
            if operation.lease is not None
            and (
                operation.lease.until_at <= now
                or (all_of_earlier_holders and shelves.seqs_of[operation.id][-1] <= self._opened_at_seq)
            )
        ]
        oldest_first = (operation for _, _, operation in sorted(over))
        expired = steps.expired(islice(oldest_first, steps.EXPIRED_LEASES_MAX), now)
        for step in expired:
            shelves.write(step)
        return tuple(step.operation for step in expired)

    async def read(self, operation_id: str) -> Operation | None:
        return self._opened().operations.get(operation_id)

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        return self._opened().sealed(operation_id)

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        shelves = self._opened()
        seqs = shelves.seqs_of.get(operation_id, [])
        return tuple(shelves.changes[seq][1] for seq in seqs[: steps.HISTORY_MAX])

    async def listing(self, listing: Listing) -> tuple[Operation, ...]:
        limit = max(1, min(listing.limit, steps.LISTING_MAX))
        return tuple(islice(self._listed(listing), limit))

    def _listed(self, listing: Listing) -> Iterator[Operation]:
        operations = self._opened().operations.values()
        aliased = {alias.operation_id for alias in self._shelves.aliases.values() if alias.client_key == listing.key}
        for operation in sorted(operations, key=lambda operation: operation.id, reverse=True):
            by_key = operation.id in aliased or listing.key in {operation.client_key, operation.provider_key}
            if (listing.key is None or by_key) and steps.is_listed(operation, listing):
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

    async def newest_credential(self, account: str) -> tuple[str, bytes] | None:
        shelves = self._opened()
        kept = [pair for pair in shelves.sealed_credentials if pair[0] == account]
        if not kept:
            return None
        newest = max(kept, key=lambda pair: (shelves.credentials[pair].at, pair))
        return newest[1], shelves.sealed_credentials[newest]

    async def keep_notice(self, notice: KeptNotice) -> bool:
        shelves = self._opened()
        event = (notice.provider, notice.account, notice.event_id)
        if any((kept.provider, kept.account, kept.event_id) == event for kept in shelves.notices.values()):
            return False
        shelves.notice_number += 1
        shelves.notices[shelves.notice_number] = replace(notice, number=shelves.notice_number)
        return True

    async def notices_due(self, *, limit: int) -> tuple[KeptNotice, ...]:
        now = self._time.now()
        due = []
        for notice in self._opened().notices.values():
            times = [at for at in (notice.due_at, notice.relay_due_at) if at is not None and at <= now]
            if times:
                due.append((min(times), notice.number, notice))
        return tuple(notice for _, _, notice in sorted(due)[:limit])

    async def move_notice(self, notice: KeptNotice) -> None:
        notices = self._opened().notices
        kept = notices.get(notice.number)
        if kept is not None:
            notices[notice.number] = replace(
                kept,
                result=notice.result,
                operation_id=notice.operation_id,
                tries=notice.tries,
                due_at=notice.due_at,
                relay_due_at=notice.relay_due_at,
            )

    async def outcomes(self, after: int, *, limit: int) -> tuple[OutcomeRow, ...]:
        shelves = self._opened()
        telling = (
            OutcomeRow(seq, shelves.operations[operation_id], entry)
            for seq, (operation_id, entry) in shelves.changes.items()
            if seq > after and entry.told is not None
        )
        return tuple(islice(telling, limit))

    async def cursor(self, name: str) -> int:
        return self._opened().cursors.get(name, 0)

    async def take_cursor(self, name: str, token: str, lease_s: float) -> int | None:
        shelves = self._opened()
        lease = holding.held_on(self._cursor_leases.get(name), token, lease_s, self._time.now())
        if lease is None:
            return None
        self._cursor_leases[name] = lease
        return shelves.cursors.get(name, 0)

    async def move_cursor(self, name: str, seq: int, token: str = "") -> bool:
        cursors = self._opened().cursors
        if token and not holding.holds(self._cursor_leases.get(name), token, self._time.now()):
            return False
        cursors[name] = max(seq, cursors.get(name, 0))
        return True

    async def retire(self, *, retention_s: float, tombstone_s: float, limit: int) -> int:
        shelves = self._opened()
        now = self._time.now()
        gone = shelves.retire(now - retention_s, limit, now)
        forgotten = shelves.forget_old(buried_before=now - tombstone_s, received_before=now - retention_s, limit=limit)
        return gone + forgotten

    async def keep_revision(self, provider: str, revision: str, content: str) -> None:
        revisions = self._opened().revisions
        latest = await self.latest_revision(provider)
        if latest is None or latest.revision != revision:
            revisions.pop((provider, revision), None)  # one that comes back after another is the latest again
            revisions[provider, revision] = Revision(provider, revision, content, self._time.now())

    async def revision(self, provider: str, revision: str) -> Revision | None:
        return self._opened().revisions.get((provider, revision))

    async def latest_revision(self, provider: str) -> Revision | None:
        kept = reversed(self._opened().revisions.values())
        return next((revision for revision in kept if revision.provider == provider), None)

    async def check_identity(self, check_value: str) -> None:
        shelves = self._opened()
        shelves.identity = shelves.identity or check_value
        if shelves.identity != check_value:
            raise JournalUnfit(steps.OTHER_IDENTITY)

    @property
    def may_forget(self) -> bool:
        return False

    def rolled_back_s(self) -> float | None:
        return None

    async def healthy(self) -> bool:
        return self._open

    async def close(self) -> None:
        self._open = False

    def _opened(self) -> Shelves:
        if not self._open:
            raise JournalUnavailable("the journal is closed")
        return self._shelves
