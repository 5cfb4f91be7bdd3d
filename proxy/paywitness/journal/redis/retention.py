"""The retention of the Redis journal: it replaces old operations by tombstones, and deletes old tombstones and webhook
events that are done, a few at a time.

It walks operations in the order of their ids, which is roughly the order of their starts, so that this needs no index
of its own. An operation that must stay is skipped. The next walk goes on after the last one.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

from paywitness.core.claim import Alias
from paywitness.core.fallback import FALLBACKS_MAX
from paywitness.core.operation import Operation
from paywitness.journal.base import LedgerRow
from paywitness.journal.ledger import may_forget
from paywitness.journal.redis import scripts
from paywitness.journal.redis.rows import (
    RedisRow,
    fixed_index_lines,
    ledger_args,
    parse_alias,
    parse_ledger_row,
    parse_row,
    tombstone_to_text,
)
from paywitness.journal.redis.writer import RedisWriter
from paywitness.journal.tombstones import keys_kept_of, may_retire, retired_together, row_kept_of, tombstones_of
from paywitness.redis.connection import Argument

_SCAN_MAX = 500  # operations in one script: about 2 ms of Redis' time
_TOMBSTONES_PER_PIPELINE = 100


class RedisRetention:
    def __init__(self, writer: RedisWriter) -> None:
        self._writer = writer
        self._credentials_from: Argument = "0"  # the position at which the next scan of accepted credentials goes on
        self._resume_after = ""  # the id that the next walk goes on after

    async def retire(
        self, retention_s: float, tombstone_s: float, limit: int, payments_s: float, now_max: float
    ) -> int:
        now, read_to, last, old = await self._writer.run(
            scripts.SCAN_EXPIRED,
            repr(retention_s),
            self._resume_after,
            str(_SCAN_MAX),
            "" if now_max == math.inf else repr(now_max),
            droppable=True,
        )
        counted_at = min(float(now), now_max)
        expired = _ExpiredRows(counted_at - retention_s, None if read_to is None else int(read_to))
        ids = [found.decode() for found in old]
        await self._read_expired(expired, ids)
        retired, stopped = await self._write_tombstones(expired, ids, limit, now)
        if not stopped:
            self._resume_after = last.decode()
        bounds = (repr(counted_at - tombstone_s), repr(counted_at - retention_s), str(limit))
        oldest_at = counted_at - max(payments_s, retention_s)
        forgotten, self._credentials_from = await self._writer.run_without_time(
            scripts.PURGE, *bounds, repr(oldest_at), self._credentials_from
        )
        return retired + int(forgotten) + await self._forget_ledger_rows(float(now), counted_at - payments_s, limit)

    async def _keep_rows(self, operations: list[Operation]) -> bool:
        """Write the ledger rows of operations that are about to be retired. False: another sidecar was faster. Writing
        them twice does no harm."""
        keys = dict.fromkeys(key for operation in operations for key in keys_kept_of(operation))
        if not keys:
            return True
        found = await self._writer.run_without_time(scripts.LEDGER_ROWS, *keys)
        before = {key: None if row is None else parse_ledger_row(row) for key, row in zip(keys, found, strict=True)}
        after: dict[str, LedgerRow] = {}
        for operation in operations:
            for key in keys_kept_of(operation):
                known = after.get(key)
                row = row_kept_of(operation, key, known or before[key])
                after[key] = row if known is None else replace(row, version=known.version)
        return bool(await self._writer.run(scripts.LEDGER_STORE, *ledger_args(after.values())))

    async def _forget_ledger_rows(self, now: float, touched_before: float, limit: int) -> int:
        old = await self._writer.run_without_time(scripts.LEDGER_OLD, repr(touched_before), str(limit))
        arguments: list[Argument] = [repr(now)]
        for values, linked_values in old:
            row = parse_ledger_row(values)
            linked = None if linked_values is None else parse_ledger_row(linked_values)
            arguments += [row.key, str(row.version), "1" if may_forget(row, linked) else ""]
        if not old:
            return 0
        return int(await self._writer.run_without_time(scripts.LEDGER_FORGET, *arguments))

    async def _read_expired(self, expired: _ExpiredRows, ids: list[str]) -> None:
        """Read the operations, and all operations in their chains of fallbacks."""
        next_ids = ids
        for _ in range(2 * FALLBACKS_MAX):
            if not next_ids:
                break
            for values, aliases in await self._writer.run_without_time(scripts.EXPIRED_ROWS, *next_ids):
                row = parse_row(values)
                kept = [parse_alias(key.decode(), text) for key, text in aliases]
                expired.rows[row.operation.id], expired.aliases[row.operation.id] = row, kept
            expired.requested.update(next_ids)
            next_ids = sorted(expired.linked_ids() - expired.requested)

    async def _write_tombstones(
        self, expired: _ExpiredRows, ids: list[str], limit: int, now: bytes
    ) -> tuple[int, bool]:
        """Replace operations by tombstones. Returns how many, and whether some were left for the next walk."""
        groups: list[list[Operation]] = []
        retired_ids: set[str] = set()
        stopped = False
        for operation_id in ids:
            operation = expired.by_id(operation_id)
            if operation is None or operation_id in retired_ids or not expired.may_retire(operation):
                continue
            if operation.fallback_to is not None and expired.by_id(operation.fallback_to) is not None:
                continue  # it is retired together with its fallback
            if len(retired_ids) >= limit:
                stopped = True
                break
            groups.append(retired_together(operation, expired.by_id, expired.may_retire))
            retired_ids.update(each.id for each in groups[-1])
        retired_count = 0
        if not await self._keep_rows([operation for group in groups for operation in group]):
            return 0, True  # another sidecar was faster: the next walk reads the rows again
        for first in range(0, len(groups), _TOMBSTONES_PER_PIPELINE):
            some = [expired.arguments(group) for group in groups[first : first + _TOMBSTONES_PER_PIPELINE]]
            tombstone_calls = (self._writer.run_without_time(scripts.TOMBSTONE, now, *arguments) for arguments in some)
            retired_count += sum(await asyncio.gather(*tombstone_calls))
        return retired_count, stopped


class _ExpiredRows:
    """The rows and aliases of operations that may be retired."""

    def __init__(self, ended_before: float, read_to: int | None) -> None:
        self._ended_before = ended_before
        self._read_to = read_to
        self.rows: dict[str, RedisRow] = {}
        self.aliases: dict[str, list[Alias]] = {}
        self.requested: set[str] = set()

    def by_id(self, operation_id: str) -> Operation | None:
        row = self.rows.get(operation_id)
        return None if row is None else row.operation

    def may_retire(self, operation: Operation) -> bool:
        if not may_retire(operation, self._ended_before):
            return False
        return self._read_to is None or self.rows[operation.id].last_announced_seq <= self._read_to

    def linked_ids(self) -> set[str]:
        linked = ((row.operation.fallback_of, row.operation.fallback_to) for row in self.rows.values())
        return {operation_id for pair in linked for operation_id in pair if operation_id is not None}

    def arguments(self, group: list[Operation]) -> list[Argument]:
        """The arguments of `tombstone.lua` for a group that is retired together."""
        arguments: list[Argument] = [str(len(group))]
        for operation in group:
            held = self.rows[operation.id].lease_end
            what = (operation.id, str(operation.version), held, operation.key, operation.provider)
            arguments.extend((*what, fixed_index_lines(operation)))
        for operation in group:
            for tombstone in tombstones_of(operation, self.aliases[operation.id], group[0]):
                arguments.extend((tombstone.key, repr(tombstone.ended_at), tombstone_to_text(tombstone)))
        return arguments
