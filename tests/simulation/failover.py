"""A store that comes back without its last second: what a failover to a replica, or a start from the disk, forgets.

Everything of that second is gone, claims too. The sidecars see that the store is another one (`rolled_back_s`), and put
back what they know (`restore`, by the steps of the Redis journal)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from proxy.core.operation import Operation
from proxy.journal.memory_shelves import Shelves
from proxy.journal.redis_restoring import put_back
from proxy.journal.steps import WallClock
from tests.simulation.store import IndexedJournal, IndexedShelves

LOST_S = 1.0
NUMBERS_SKIPPED = 1_000_000  # as `history_told.lua`: whoever read the feed up to a forgotten number misses nothing


class ForgetfulJournal(IndexedJournal):
    """The journal in memory as a Redis may be."""

    def __init__(self, *, clock: WallClock, shelves: Shelves | None = None) -> None:
        super().__init__(clock=clock, shelves=shelves)
        self._rolled_back_at: float | None = None
        self._kept: dict[str, Any] = {}

    def reopened(self, clock: WallClock) -> IndexedJournal:
        return self  # its process is not ours

    @property
    def may_forget(self) -> bool:
        return True

    def rolled_back_s(self) -> float | None:
        return None if self._rolled_back_at is None else self._time.now() - self._rolled_back_at

    def replicate(self) -> None:
        """What a replica has now."""
        self._kept = {field.name: _copied(getattr(self._shelves, field.name)) for field in fields(Shelves)}

    def fail_over(self) -> None:
        """The replica is the journal from here on."""
        if not self._kept:
            return  # another failover has used it up
        shelves, kept, self._kept = IndexedShelves(), self._kept, {}
        for name, value in kept.items():
            setattr(shelves, name, value)
        shelves.seq += NUMBERS_SKIPPED
        shelves.index_all()
        self._shelves = shelves
        self._cursor_leases = {}
        self._rolled_back_at = self._time.now()

    async def restore(
        self,
        operation: Operation,
        sealed_request: bytes | None = None,
        sealed_response: bytes | None = None,
        *,
        lease_s: float | None = None,
    ) -> Operation:
        shelves = self.shelves
        stored, newest = shelves.by_id(operation.id), shelves.newest(operation.key)
        guarded = shelves.guarded(operation.guard.value) if operation.guard is not None else ()
        again = put_back(operation, stored, newest, guarded, lease_s, self._time.now())
        if again is None:
            assert stored is not None
            return stored
        if stored is not None:
            shelves.write(again.step)
        else:
            shelves.start(again.step, None if again.step.erase_request else sealed_request)
            if again.in_front:
                ids = shelves.generations[operation.key]
                ids.insert(0, ids.pop())
        if sealed_response is not None:
            shelves.responses[operation.id] = sealed_response
        return again.step.operation


def _copied(value: Any) -> Any:
    """Deep enough: what is in the shelves' lists and sets never changes."""
    if isinstance(value, dict):
        return {key: _copied(inner) if isinstance(inner, (list, set)) else inner for key, inner in value.items()}
    return value.copy() if isinstance(value, (list, set)) else value
