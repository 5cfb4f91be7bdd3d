"""A journal in memory: the same steps over dictionaries, no threads and no disk. For the simulator and fast tests.

Nothing here awaits, so every method is one step by itself. What it holds is lost with the process, which makes it unfit
for real money; `reopened` plays the restart that a file would survive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from proxy.core.claim import Claim, ClaimRequest
from proxy.core.errors import JournalUnavailable, JournalUnfit
from proxy.core.operation import HistoryEntry, Operation, State
from proxy.journal import steps
from proxy.journal.base import Change, DoubtCount, Listing, Revision
from proxy.journal.steps import JournalTime, WallClock


@dataclass(slots=True)
class _Shelves:
    """All that a restart leaves behind."""

    operations: dict[str, Operation] = field(default_factory=dict)
    newest_of_key: dict[str, str] = field(default_factory=dict)
    requests: dict[str, bytes] = field(default_factory=dict)
    responses: dict[str, bytes] = field(default_factory=dict)
    changes: list[tuple[str, HistoryEntry]] = field(default_factory=list)
    seq_of: dict[str, int] = field(default_factory=dict)  # of each operation's last change
    revisions: dict[tuple[str, str], Revision] = field(default_factory=dict)  # in the order they were kept
    credentials: set[tuple[str, str]] = field(default_factory=set)
    identity: str | None = None
    latest_at: float = 0.0


class MemoryJournal:
    """A `Journal` (see `base`) that lives as long as its process."""

    def __init__(self, *, clock: WallClock, shelves: _Shelves | None = None) -> None:
        self._shelves = shelves or _Shelves()
        self._time = JournalTime(clock, self._shelves.latest_at)
        self._opened_at_seq = len(self._shelves.changes)
        self._open = True

    def reopened(self, clock: WallClock) -> MemoryJournal:
        """This journal as the next process finds it. This one is closed."""
        self._shelves.latest_at = self._time.latest_at
        self._open = False
        return MemoryJournal(clock=clock, shelves=self._shelves)

    async def claim(self, request: ClaimRequest) -> Claim:
        shelves = self._opened()
        now = self._time.now()
        newest = shelves.newest_of_key.get(request.fresh.key)
        existing = None if newest is None else shelves.operations[newest]
        taken = steps.claim_steps(existing, request, now, self._disputed)
        if taken.started is not None and taken.started.operation.id in shelves.operations:
            raise JournalUnavailable(f"the journal holds another operation of the id {taken.started.operation.id}")
        if taken.expired is not None:
            self._write(taken.expired)
        if taken.started is not None:
            operation = taken.started.operation
            self._write(taken.started)
            shelves.newest_of_key[operation.key] = operation.id
            if request.sealed_request is not None:
                shelves.requests[operation.id] = request.sealed_request
        holder, fresh = taken.holder, request.fresh
        accepted = holder is None or holder.credential == fresh.credential
        accepted = accepted or (fresh.account, fresh.credential) in shelves.credentials
        return steps.answer(taken, now, self._sealed(holder.id) if holder else (None, None), accepted=accepted)

    async def record(self, change: Change) -> Operation:
        shelves = self._opened()
        now = self._time.now()
        operation = change.operation
        stored = shelves.operations.get(operation.id)
        if stored is None or stored.version != operation.version:
            raise steps.stale(operation.id, operation.version)
        step = steps.recorded(change, stored.lease, now)
        for name in steps.WHAT_IT_IS:
            if getattr(operation, name) != getattr(stored, name):
                raise ValueError(f"{operation.id}: a change cannot touch {name}, which says what the operation is")
        self._write(step)
        if change.sealed_response is not None:
            shelves.responses[operation.id] = change.sealed_response
        if change.accepted_credential:
            shelves.credentials.add((operation.account, operation.credential))
        return step.operation

    async def take_lease(
        self, operation: Operation, token: str, lease_s: float, *, source: str = "resolver"
    ) -> Operation:
        stored = self._opened().operations.get(operation.id)
        step = steps.leased(stored, operation, token, lease_s, self._time.now(), source)
        if step is not None:
            self._write(step)
        return self._shelves.operations[operation.id]

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
        over = (
            operation
            for operation in shelves.operations.values()
            if operation.lease is not None
            and (
                operation.lease.until_at <= now
                or (all_of_earlier_holders and shelves.seq_of[operation.id] <= self._opened_at_seq)
            )
        )
        expired = steps.expired(islice(over, steps.EXPIRED_LEASES_MAX), now)
        for step in expired:
            self._write(step)
        return tuple(step.operation for step in expired)

    async def read(self, operation_id: str) -> Operation | None:
        return self._opened().operations.get(operation_id)

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        self._opened()
        return self._sealed(operation_id)

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        entries = (entry for changed, entry in self._opened().changes if changed == operation_id)
        return tuple(islice(entries, steps.HISTORY_MAX))

    async def listing(self, listing: Listing) -> tuple[Operation, ...]:
        limit = max(1, min(listing.limit, steps.LISTING_MAX))
        return tuple(islice(self._listed(listing), limit))

    def _listed(self, listing: Listing) -> Iterator[Operation]:
        for operation in sorted(self._opened().operations.values(), key=lambda operation: operation.id, reverse=True):
            if (
                (listing.provider is None or operation.provider == listing.provider)
                and (listing.operation is None or operation.operation == listing.operation)
                and (not listing.states or operation.state in listing.states)
                and (listing.key is None or listing.key in {operation.client_key, operation.provider_key})
                and (listing.reference is None or operation.reference == listing.reference)
                and (not listing.incidents_only or operation.incident is not None)
                and (listing.before is None or operation.id < listing.before)
            ):
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

    async def healthy(self) -> bool:
        return self._open

    async def close(self) -> None:
        self._open = False

    def _opened(self) -> _Shelves:
        if not self._open:
            raise JournalUnavailable("the journal is closed")
        return self._shelves

    def _disputed(self, key: str) -> Operation | None:
        found = (operation for operation in self._shelves.operations.values() if operation.key == key)
        disputed = [operation for operation in found if operation.incident is not None]
        return max(disputed, key=lambda operation: operation.generation, default=None)

    def _write(self, step: steps.Step) -> None:
        shelves = self._shelves
        operation = step.operation
        shelves.operations[operation.id] = operation
        if step.erase_request:
            shelves.requests.pop(operation.id, None)
        shelves.changes.append((operation.id, step.entry))
        shelves.seq_of[operation.id] = len(shelves.changes)

    def _sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        return self._shelves.requests.get(operation_id), self._shelves.responses.get(operation_id)
