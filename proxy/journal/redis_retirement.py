"""How the Redis journal forgets: operations become tombstones, tombstones and done notices go. A few at a time.

Operations are walked in the order of their ids, which is about that of their start, so that no index has to be kept for
it. What may not go yet is passed by; the next walk goes on from there.
"""

from __future__ import annotations

import asyncio

from proxy.core.claim import Alias
from proxy.core.operation import Operation
from proxy.journal import redis_scripts, retirement
from proxy.journal.claiming import FALLBACKS_MAX
from proxy.journal.redis_connection import Argument
from proxy.journal.redis_lane import Lane
from proxy.journal.redis_sheets import (
    Row,
    alias_in,
    fixed_index_of,
    row_of,
    tombstone_text_of,
)
from proxy.journal.redis_writes import Writer

_PASSED_MAX = 500  # operations in one script: about 2 ms of Redis' time
_BURIED_AT_ONCE = 100


class Retirement:
    def __init__(self, writer: Writer, lane: Lane) -> None:
        self._writer = writer
        self._lane = lane
        self._passed = ""  # the id that the next walk goes on after

    async def retire(self, retention_s: float, tombstone_s: float, limit: int) -> int:
        now, read_to, last, old = await self._writer.run(
            redis_scripts.WALK, repr(retention_s), self._passed, str(_PASSED_MAX), moot=True
        )
        grave = _Grave(float(now) - retention_s, None if read_to is None else int(read_to))
        ids = [found.decode() for found in old]
        await self._dig(grave, ids)
        gone, stopped = await self._bury(grave, ids, limit, now)
        if not stopped:
            self._passed = last.decode()
        forgotten = await self._lane.run(
            redis_scripts.FORGET, repr(float(now) - tombstone_s), repr(float(now) - retention_s), str(limit)
        )
        return gone + int(forgotten)

    async def _dig(self, grave: _Grave, ids: list[str]) -> None:
        """Read the operations, and those that they are the fallbacks of, or that are theirs."""
        wanted = ids
        for _ in range(2 * FALLBACKS_MAX):
            if not wanted:
                break
            for values, aliases in await self._lane.run(redis_scripts.GRAVE, *wanted):
                row = row_of(values)
                kept = [alias_in(key.decode(), text) for key, text in aliases]
                grave.rows[row.operation.id], grave.aliases[row.operation.id] = row, kept
            grave.asked.update(wanted)
            wanted = sorted(grave.links() - grave.asked)

    async def _bury(self, grave: _Grave, ids: list[str], limit: int, now: bytes) -> tuple[int, bool]:
        """How many operations went, and whether some that may go had to stay for the next time."""
        groups: list[list[Operation]] = []
        buried: set[str] = set()
        stopped = False
        for operation_id in ids:
            operation = grave.by_id(operation_id)
            if operation is None or operation_id in buried or not grave.may_go(operation):
                continue
            if operation.fallback_to is not None and grave.by_id(operation.fallback_to) is not None:
                continue  # it goes with what stands for it
            if len(buried) >= limit:
                stopped = True
                break
            groups.append(retirement.going_together(operation, grave.by_id, grave.may_go))
            buried.update(each.id for each in groups[-1])
        went = 0
        for first in range(0, len(groups), _BURIED_AT_ONCE):
            some = [grave.arguments(together) for together in groups[first : first + _BURIED_AT_ONCE]]
            buried_now = (self._lane.run(redis_scripts.BURY, now, *arguments) for arguments in some)
            went += sum(await asyncio.gather(*buried_now))
        return went, stopped


class _Grave:
    """What was read of operations that may go."""

    def __init__(self, ended_before: float, read_to: int | None) -> None:
        self._ended_before = ended_before
        self._read_to = read_to
        self.rows: dict[str, Row] = {}
        self.aliases: dict[str, list[Alias]] = {}
        self.asked: set[str] = set()

    def by_id(self, operation_id: str) -> Operation | None:
        row = self.rows.get(operation_id)
        return None if row is None else row.operation

    def may_go(self, operation: Operation) -> bool:
        if not retirement.may_go(operation, self._ended_before):
            return False
        return self._read_to is None or self.rows[operation.id].told_to <= self._read_to

    def links(self) -> set[str]:
        linked = ((row.operation.fallback_of, row.operation.fallback_to) for row in self.rows.values())
        return {operation_id for pair in linked for operation_id in pair if operation_id is not None}

    def arguments(self, together: list[Operation]) -> list[Argument]:
        """For `bury.lua`."""
        arguments: list[Argument] = [str(len(together))]
        for operation in together:
            held = self.rows[operation.id].held
            what = (operation.id, str(operation.version), held, operation.key, operation.provider)
            arguments.extend((*what, fixed_index_of(operation)))
        for operation in together:
            for tombstone in retirement.tombstones_of(operation, self.aliases[operation.id], together[0]):
                arguments.extend((tombstone.key, repr(tombstone.ended_at), tombstone_text_of(tombstone)))
        return arguments
