"""The fleet's journal: one Redis primary, with replicas and sentinels, shared by any number of sidecars.

Writes ride on one connection, reads on another; whatever waits goes out as one pipeline (`redis_lane`). Every step is
one script, or two of which the second writes only over exactly what the first one read (`redis_writes`). The rules are
those of every store, in Python; the scripts look up, compare and write. Time is Redis' own.

A call that is not answered in `call_timeout_s` raises JournalUnavailable, and its write may have happened: a claim is
asked again with its token, a record meets StaleWrite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from redis.exceptions import AuthenticationError, RedisError

from proxy.core.claim import Claim, ClaimRequest
from proxy.core.errors import JournalUnavailable, JournalUnfit
from proxy.core.operation import HistoryEntry, Operation
from proxy.journal import haste, redis_fitness, redis_scripts, steps
from proxy.journal.base import Change, DoubtCount, KeptNotice, Listing, OutcomeRow, Revision
from proxy.journal.redis_connection import ASK_REPLICATION, connected, replication_in, unavailable
from proxy.journal.redis_lane import CALL_TIMEOUT_S, Lane
from proxy.journal.redis_notices import Notices
from proxy.journal.redis_reads import Reader
from proxy.journal.redis_replication import Standing
from proxy.journal.redis_retirement import Retirement
from proxy.journal.redis_url import Place, place_of
from proxy.journal.redis_writes import Writer
from proxy.journal.steps import WallClock

_OPEN_TIMEOUT_S = 5.0


class RedisJournal:
    """A `Journal` (see `base`) that a fleet shares. Open it with `open`; use it from that event loop alone."""

    def __init__(
        self, place: Place, standing: Standing, taker: str, *, clock: WallClock | None, call_timeout_s: float
    ) -> None:
        self._prefix = place.prefix
        self._standing = standing
        self._writes = Lane("journal-writes", place, call_timeout_s=call_timeout_s, standing=standing, binds=True)
        self._reads = Lane("journal-reads", place, call_timeout_s=call_timeout_s, standing=standing)
        self._writer = Writer(self._writes, clock)
        self._reader = Reader(self._reads, place.prefix)
        self._notices = Notices(self._writer, self._writes, taker)
        self._retirement = Retirement(self._writer, self._writes)

    @classmethod
    async def open(
        cls, url: str, *, clock: WallClock | None = None, call_timeout_s: float = CALL_TIMEOUT_S
    ) -> RedisJournal:
        """Open the journal (`redis_url` says how URLs look). Time is Redis' own; a `clock` is for the simulator and
        tests alone, for no two sidecars' clocks agree. Raises SettingsError for a URL that cannot be read, JournalUnfit
        for a Redis that may not hold money, JournalUnavailable for one that does not answer now."""
        place = place_of(url)
        standing = Standing(place)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                taker = await _opened(place, standing)
        except AuthenticationError as error:
            raise JournalUnfit(f"Redis at {place} does not take this user and password: {error}") from error
        except (RedisError, OSError, TimeoutError) as error:
            raise unavailable(error) from error
        return cls(place, standing, taker, clock=clock, call_timeout_s=call_timeout_s)

    async def claim(self, request: ClaimRequest) -> Claim:
        return await self._writer.claim(request)

    async def record(self, change: Change) -> Operation:
        return await self._writer.record(change)

    async def restore(
        self,
        operation: Operation,
        sealed_request: bytes | None = None,
        sealed_response: bytes | None = None,
        *,
        lease_s: float | None = None,
    ) -> Operation:
        return await self._writer.restore(operation, (sealed_request, sealed_response), lease_s)

    async def take_lease(
        self, operation: Operation, token: str, lease_s: float, *, source: str = "resolver"
    ) -> Operation:
        return await self._writer.take_lease(operation, token, lease_s, source)

    async def take_due(
        self, token: str, lease_s: float, *, limit: int, full: frozenset[str] = frozenset()
    ) -> tuple[Operation, ...]:
        return await self._writer.take_due(token, lease_s, limit, full)

    async def hasten(self, provider: str, *, within_s: float, limit: int) -> int:
        limit = haste.bounded(limit)
        bounds = (repr(within_s), str(limit), str(limit * haste.LOOKED_AT))
        states = sorted(haste.HASTENED)
        return int(await self._writer.run(redis_scripts.HASTEN, provider, *bounds, *states, moot=True))

    async def fall_back(self, change: Change, request: ClaimRequest) -> tuple[Operation, Claim]:
        return await self._writer.fall_back(change, request)

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        return await self._writer.renew(operation_ids, token_of, lease_s)

    async def expire_leases(self, *, all_of_earlier_holders: bool = False) -> tuple[Operation, ...]:
        """Expired leases alone, whatever is asked: that an earlier process of ours is gone says nothing of others."""
        return await self._writer.expire_leases()

    async def read(self, operation_id: str) -> Operation | None:
        return await self._reader.read(operation_id)

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        return await self._reader.sealed(operation_id)

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        return await self._reader.history(operation_id)

    async def listing(self, listing: Listing) -> tuple[Operation, ...]:
        return await self._reader.listing(listing)

    async def doubt_counts(self) -> tuple[DoubtCount, ...]:
        return await self._reader.doubt_counts()

    async def newest_credential(self, account: str) -> tuple[str, bytes] | None:
        return await self._reader.newest_credential(account)

    async def keep_notice(self, notice: KeptNotice) -> bool:
        return await self._notices.keep(notice)

    async def notices_due(self, *, limit: int) -> tuple[KeptNotice, ...]:
        return await self._notices.due(limit)

    async def move_notice(self, notice: KeptNotice) -> None:
        await self._notices.move(notice)

    async def outcomes(self, after: int, *, limit: int) -> tuple[OutcomeRow, ...]:
        return await self._reader.outcomes(after, limit)

    async def cursor(self, name: str) -> int:
        return await self._reader.cursor(name)

    async def take_cursor(self, name: str, token: str, lease_s: float) -> int | None:
        come_to = await self._writer.run(redis_scripts.CURSOR_TAKE, name, token, repr(lease_s), moot=True)
        return None if come_to is None else int(come_to)

    async def move_cursor(self, name: str, seq: int, token: str = "") -> bool:
        return bool(await self._writer.run(redis_scripts.CURSOR_MOVE, name, str(seq), token))

    async def retire(self, *, retention_s: float, tombstone_s: float, limit: int) -> int:
        return await self._retirement.retire(retention_s, tombstone_s, limit)

    async def keep_revision(self, provider: str, revision: str, content: str) -> None:
        named = f"{provider}\0{revision}"
        await self._writer.run(redis_scripts.REVISION, provider, named, revision, content)

    async def revision(self, provider: str, revision: str) -> Revision | None:
        return await self._reader.revision(provider, revision)

    async def latest_revision(self, provider: str) -> Revision | None:
        return await self._reader.latest_revision(provider)

    async def check_identity(self, check_value: str) -> None:
        await self._writes.ask("HSETNX", f"{self._prefix}meta", "identity_check", check_value)
        kept = await self._writes.ask("HGET", f"{self._prefix}meta", "identity_check")
        if kept.decode() != check_value:
            raise JournalUnfit(steps.OTHER_IDENTITY)

    async def healthy(self) -> bool:
        try:
            await self._writer.run(redis_scripts.TIME, moot=True)
        except JournalUnavailable:
            return False
        return True

    async def close(self) -> None:
        """Send what waits, then let go of both connections."""
        await self._writes.close()
        await self._reads.close()

    @property
    def may_forget(self) -> bool:
        return True

    def rolled_back_s(self) -> float | None:
        return self._standing.rolled_back_s

    @property
    def replication_id(self) -> str:
        """Of the data set, as Redis told it last: another one after a failover, which may have forgotten something."""
        return self._standing.replication_id

    @property
    def round_trips(self) -> int:
        """Pipelines written so far, of writes; fewer than calls, where calls came together."""
        return self._writes.round_trips

    @property
    def calls(self) -> int:
        """Scripts and commands so far, of writes."""
        return self._writes.calls


async def _opened(place: Place, standing: Standing) -> str:
    """Check that it is fit, and teach it the scripts. The number that this journal takes notices under."""
    connection = await connected(place)
    try:
        await redis_fitness.check(connection, place)
        for script in redis_scripts.ALL:
            await connection.send_command("SCRIPT", "LOAD", script.text, check_health=False)
            await connection.read_response()
        await connection.send_command(*ASK_REPLICATION, check_health=False)
        told = replication_in(await connection.read_response(disable_decoding=True))
        if not told.primary:
            raise JournalUnavailable(f"Redis at {place} is a replica: a failover may be under way")
        await standing.hear(connection, told)
        await connection.send_command("INCR", f"{place.prefix}takers", check_health=False)
        return str(await connection.read_response())
    finally:
        await connection.disconnect(nowait=True)
