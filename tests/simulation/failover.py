"""A store that comes back without its last writes: what a failover to a replica, a start from the disk, or a copy that
was put back forgets. Or it lost all that it had.

Everything of that time is gone, claims too. The sidecars see that the store is another one (`rolled_back_s`), and put
back what they know (`restore`, by the steps of the Redis journal)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from paywitness.core.operation import Operation
from paywitness.journal.ledger import restored_rows
from paywitness.journal.payouts import rows_of_changes
from paywitness.journal.redis.replication import plan_restore
from paywitness.journal.transitions import WallClock
from tests.journal.memory_tables import MemoryTables
from tests.simulation.store import IndexedJournal, IndexedTables

NUMBERS_SKIPPED = 1_000_000  # as `history_told.lua`: whoever read the feed up to a forgotten number misses nothing


class ForgetfulJournal(IndexedJournal):
    """The journal in memory as a Redis may be."""

    def __init__(self, *, clock: WallClock, tables: MemoryTables | None = None) -> None:
        super().__init__(clock=clock, tables=tables)
        self._rolled_back_at: float | None = None
        self._kept: dict[str, Any] = {}

    def reopened(self, clock: WallClock) -> IndexedJournal:
        return self  # its process is not ours

    @property
    def can_roll_back(self) -> bool:
        return True

    def rolled_back_s(self) -> float | None:
        return None if self._rolled_back_at is None else self._time.now() - self._rolled_back_at

    def replicate(self) -> None:
        """What a replica has now."""
        self._kept = {field.name: _copied(getattr(self._tables, field.name)) for field in fields(MemoryTables)}

    def lose_all(self) -> None:
        """As after FLUSHALL: the store lives on, and has nothing."""
        self._kept = {"identity": self._tables.identity}
        self.fail_over()

    def fail_over(self) -> None:
        """The replica is the journal from here on."""
        if not self._kept:
            return  # another failover has used it up
        tables, kept, self._kept = IndexedTables(), self._kept, {}
        for name, value in kept.items():
            setattr(tables, name, value)
        tables.seq += NUMBERS_SKIPPED
        tables.index_all()
        self._tables = tables
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
        tables = self.tables
        stored, newest = tables.by_id(operation.id), tables.newest(operation.key)
        guarded = tables.guarded(operation.guard.value) if operation.guard is not None else ()
        again = plan_restore(operation, stored, newest, guarded, lease_s, self._time.now())
        if again is None:
            assert stored is not None
            return stored
        rows = rows_of_changes([(stored, again.write.operation)], tables)
        tables.store_rows((*rows, *restored_rows(again.write.operation, tables, self._time.now())), self._time.now())
        if stored is not None:
            tables.write(again.write)
        else:
            tables.start(again.write, None if again.write.erase_request else sealed_request)
            if again.key_taken:
                ids = tables.generations[operation.key]
                ids.insert(0, ids.pop())
        if sealed_response is not None:
            tables.responses[operation.id] = sealed_response
        return again.write.operation


def _copied(value: Any) -> Any:
    """Deep enough: what is in the shelves' lists and sets never changes."""
    if isinstance(value, dict):
        return {key: _copied(inner) if isinstance(inner, (list, set)) else inner for key, inner in value.items()}
    return value.copy() if isinstance(value, (list, set)) else value
