"""The fleet's journal: one Redis primary, with replicas and sentinels, shared by any number of sidecars.

Writes use one connection, reads another. All waiting commands go out as one pipeline (`paywitness.redis.pipeline`).
Every step is one script, or two, of which the second writes only if the data is still exactly what the first one read
(`writer`). The rules are in Python and the same for every store; the scripts look up, compare and write. Time is Redis'
own.

A call that Redis does not answer within `call_timeout_s` raises JournalUnavailable, and its write may have happened. A
caller repeats a claim with the same token and gets the same answer. A repeated record raises StaleWrite.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path

from redis.exceptions import AuthenticationError

from paywitness.core.errors import JournalUnavailable, JournalUnusable
from paywitness.core.levels import LEVEL, JournalLevel
from paywitness.journal import transitions
from paywitness.journal.base import (
    AGES_KEY,
    DUE_ROWS_COUNTED_MAX,
    PAYMENTS_KEPT_S,
    LedgerRow,
    StoreClock,
    StoredWebhookEvent,
)
from paywitness.journal.redis import checks, scripts
from paywitness.journal.redis.reader import RedisReader
from paywitness.journal.redis.replication import JournalMark, ReplicationStatus
from paywitness.journal.redis.retention import RedisRetention
from paywitness.journal.redis.rows import ledger_args, parse_ledger_row, parse_next_due
from paywitness.journal.redis.webhook_events import RedisWebhookEvents
from paywitness.journal.redis.writer import RedisWriter
from paywitness.journal.transitions import WallClock
from paywitness.redis.connection import (
    CONNECTION_FAILURES,
    JOURNAL_CALL_TIMEOUT_S,
    REPLICATION_INFO_COMMAND,
    connect_primary,
    disconnect,
    parse_replication_info,
    unavailable,
)
from paywitness.redis.pipeline import RedisPipeline
from paywitness.redis.url import RedisTarget, parse_redis_url

_OPEN_TIMEOUT_S = 5.0
_RENEWALS_SIZE = 100  # leases in one script: about 5 ms of Redis' time


class RedisJournal(RedisWriter, RedisReader):
    """A `Journal` (see `base`) that a fleet shares. Open it with `open`; use it from that event loop alone."""

    def __init__(
        self,
        target: RedisTarget,
        replication: ReplicationStatus,
        consumer: str,
        *,
        clock: WallClock | None,
        call_timeout_s: float,
        level: int,
    ) -> None:
        options = scripts.pipeline_options(call_timeout_s, replication.journal_unavailable)
        writes = RedisPipeline("journal-writes", target, options, replication=replication, guards_sends=True)
        reads = RedisPipeline("journal-reads", target, options, replication=replication)
        RedisWriter.__init__(self, writes, target.prefix, clock, replication, level)
        RedisReader.__init__(self, reads, target.prefix)
        self._webhook_events = RedisWebhookEvents(self, consumer)
        self._retention = RedisRetention(self)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: WallClock | None = None,
        call_timeout_s: float = JOURNAL_CALL_TIMEOUT_S,
        mark_path: Path | None = None,
        level: int = LEVEL,
    ) -> RedisJournal:
        """Open the journal. `paywitness.redis.url` describes the URLs. Time is Redis' own; pass a `clock` only in the
        simulator and in tests, because no two sidecars' clocks agree. `mark_path`: the file that keeps the epoch and
        time of the journal, so that the next start notices a rollback. Raises SettingsError for a URL that cannot be
        read, JournalUnusable for a Redis that may not hold money, JournalUnavailable for one that does not answer."""
        target = parse_redis_url(url)
        replication = ReplicationStatus(target, JournalMark(mark_path, target) if mark_path is not None else None)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                consumer = await _check_and_load_scripts(target, replication, level)
        except AuthenticationError as error:
            raise JournalUnusable(f"Redis at {target} does not take this user and password: {error}") from error
        except CONNECTION_FAILURES as error:
            raise scripts.journal_unavailable(unavailable(error)) from error
        return cls(target, replication, consumer, clock=clock, call_timeout_s=call_timeout_s, level=level)

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        held = [(operation_id, token_of[operation_id]) for operation_id in operation_ids if operation_id in token_of]
        renewed: set[str] = set()
        for first in range(0, len(held), _RENEWALS_SIZE):
            pairs = [text for pair in held[first : first + _RENEWALS_SIZE] for text in pair]
            renewed.update(found.decode() for found in await self.run(scripts.RENEW, repr(lease_s), *pairs))
        return frozenset(renewed)

    async def expedite(self, provider: str, *, within_s: float, limit: int) -> int:
        limit = transitions.bounded_expedite_limit(limit)
        bounds = (repr(within_s), str(limit), str(limit * transitions.EXPEDITE_SCAN_FACTOR))
        states = sorted(transitions.EXPEDITABLE_STATES)
        return int(await self.run(scripts.EXPEDITE, provider, *bounds, *states, droppable=True))

    async def store_webhook_event(self, webhook_event: StoredWebhookEvent) -> bool:
        return await self._webhook_events.store(webhook_event)

    async def due_webhook_events(self, *, limit: int) -> tuple[StoredWebhookEvent, ...]:
        return await self._webhook_events.due(limit)

    async def update_webhook_event(self, webhook_event: StoredWebhookEvent) -> None:
        await self._webhook_events.update(webhook_event)

    async def write_ledger_rows(self, rows: tuple[LedgerRow, ...]) -> bool:
        return bool(await self.run(scripts.LEDGER_STORE, *ledger_args(rows)))

    async def due_ledger_rows(self, *, limit: int) -> tuple[LedgerRow, ...]:
        found = await self.run(scripts.LEDGER_DUE, str(limit), droppable=True)
        return tuple(parse_ledger_row(values) for values in found)

    async def count_due_ledger_rows(self, within_s: float) -> int:
        counted_max = str(DUE_ROWS_COUNTED_MAX)
        return int(await self.run(scripts.LEDGER_DUE_COUNT, repr(within_s), counted_max, droppable=True))

    async def take_cursor(self, name: str, token: str, lease_s: float) -> int | None:
        seq = await self.run(scripts.CURSOR_TAKE, name, token, repr(lease_s), droppable=True)
        return None if seq is None else int(seq)

    async def move_cursor(self, name: str, seq: int, token: str = "") -> bool:
        return bool(await self.run(scripts.CURSOR_MOVE, name, str(seq), token))

    async def level(self) -> JournalLevel:
        return await self._level("")

    async def raise_level(self, level: int) -> JournalLevel:
        return await self._level(str(level))

    async def _level(self, raised_to: str) -> JournalLevel:
        level, raised_at = await self.run(scripts.LEVEL, raised_to)
        return JournalLevel(int(level), float(raised_at))

    async def read_clock(self) -> StoreClock:
        now, raw, row, due = await self.run(scripts.CLOCK, AGES_KEY, droppable=True)
        return StoreClock(float(now), float(raw), parse_ledger_row(row) if row else None, parse_next_due(*due))

    async def retire(
        self,
        *,
        retention_s: float,
        tombstone_s: float,
        limit: int,
        payments_s: float = PAYMENTS_KEPT_S,
        now_max: float = math.inf,
    ) -> int:
        return await self._retention.retire(retention_s, tombstone_s, limit, payments_s, now_max)

    async def keep_revision(self, provider: str, revision: str, content: str) -> None:
        named = f"{provider}\0{revision}"
        await self.run(scripts.STORE_REVISION, provider, named, revision, content)

    async def check_identity(self, check_value: str) -> None:
        await self._write_pipeline.execute("HSETNX", f"{self._prefix}meta", "identity_check", check_value)
        kept = await self._write_pipeline.execute("HGET", f"{self._prefix}meta", "identity_check")
        if kept.decode() != check_value:
            raise JournalUnusable(transitions.WRONG_IDENTITY_SECRET)

    async def healthy(self) -> bool:
        try:
            await self.run(scripts.TIME, droppable=True)
        except JournalUnavailable:
            return False
        return True

    async def close(self) -> None:
        """Send the waiting commands, then close both connections."""
        await self._write_pipeline.close()
        await self._read_pipeline.close()
        await asyncio.to_thread(self._replication.close)

    @property
    def shared(self) -> bool:
        return True

    @property
    def can_roll_back(self) -> bool:
        return True

    def journal_id(self) -> str:
        return self._replication.epoch

    def rolled_back_s(self) -> float | None:
        return self._replication.rolled_back_s

    @property
    def replication_id(self) -> str:
        """The replication id in Redis' last answer. After a failover it is another one, and writes may be lost."""
        return self._replication.replication_id

    @property
    def round_trips(self) -> int:
        """Pipelines of writes sent so far; fewer than calls if calls came together."""
        return self._write_pipeline.round_trips

    @property
    def calls(self) -> int:
        """Scripts and commands of writes so far."""
        return self._write_pipeline.calls


async def _check_and_load_scripts(target: RedisTarget, replication: ReplicationStatus, level: int) -> str:
    """Check that Redis is fit to hold the journal, and load the scripts. Returns the number under which this sidecar
    takes webhook events."""
    connection = await connect_primary(target)
    try:
        await checks.check(connection, target, level)
        for script in scripts.ALL:
            await connection.send_command("SCRIPT", "LOAD", script.text, check_health=False)
            await connection.read_response()
        await connection.send_command(*REPLICATION_INFO_COMMAND, check_health=False)
        info = parse_replication_info(await connection.read_response(disable_decoding=True))
        if not info.is_primary:
            raise JournalUnavailable(f"Redis at {target} is a replica: a failover may be under way")
        await replication.update(connection, info)
        await connection.send_command("INCR", f"{target.prefix}takers", check_health=False)
        return str(await connection.read_response())
    finally:
        await disconnect(connection)
