"""The writer of the Redis journal. Each step takes two scripts. The first looks up, Python judges (`claim_plan`,
`transitions`), and the second writes, if the data is still exactly what the first one read. Otherwise the second script
returns the present data, and Python judges again.

The two steps of every clean call need only one script: a claim of a new key, and a change that needs no look-up.
Python judges them beforehand, from assumptions, and the script writes the result if the assumptions hold.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from paywitness.core.claim import Alias, Claim, ClaimRequest, after_expired_lease
from paywitness.core.errors import JournalUnavailable
from paywitness.core.operation import Operation
from paywitness.core.payment import payment_key
from paywitness.journal import claim_plan, fallback_plan, transitions
from paywitness.journal.base import LedgerRow, OperationChange
from paywitness.journal.claim_answer import ClaimPlan
from paywitness.journal.ledger import restored_rows
from paywitness.journal.payouts import rows_of_changes
from paywitness.journal.redis import scripts
from paywitness.journal.redis.lookups import AssumedLookups, LookupQuery, NeedsLookup, RedisLookups
from paywitness.journal.redis.replication import (
    JournalForgot,
    ReplicationStatus,
    owned_by,
    plan_restore,
    replication_need,
)
from paywitness.journal.redis.rows import (
    AT_WRITE,
    RedisRow,
    WriteArgs,
    alias_to_text,
    bound_argument,
    insert_args,
    insert_args_of,
    ledger_args,
    parse_row,
    sealed_argument,
    with_write_time,
    write_args,
)
from paywitness.redis.connection import Argument
from paywitness.redis.pipeline import LuaScript, NeedsReplication, RedisPipeline

TRIES_MAX = 32  # a try fails only if another writer was faster, or if the rules needed one more look-up
PLAN_VALID_S = 1.0  # if a judgement would be written later than this, the step judges again with the new time
_SWEEP_SIZE = 100  # operations in one script: about 5 ms of Redis' time
_KNOWN_ROWS_MAX = 20_000  # ledger rows remembered
_CAPS_TURN_S = 2.0  # how long a step on caps waits for the steps before it
_KNOWN_CREDENTIALS_MAX = 10_000  # pairs remembered, to save writing them again with every success


@dataclass(frozen=True, slots=True)
class _PlannedWrite:
    """The writes that follow from a judgement, and the result once they are written. If there is nothing to write, the
    result holds at once."""

    result: Any
    updates: tuple[WriteArgs, ...] = ()
    insert: WriteArgs | None = None
    alias: Alias | None = None
    acceptance: tuple[Argument, ...] = ("", "", "")
    rows: tuple[LedgerRow, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.updates and self.insert is None and self.alias is None and not self.rows


class RedisWriter:
    """The methods of a `Journal` that change operations."""

    def __init__(
        self,
        pipeline: RedisPipeline,
        prefix: str,
        clock: transitions.WallClock | None,
        replication: ReplicationStatus,
        level: int,
    ) -> None:
        self._write_pipeline = pipeline
        self._keys = (prefix, f"{prefix}level/{level}")
        self._clock = clock
        self._accepted: dict[tuple[str, str], transitions.AcceptedCredential] = {}
        self._latest_at = 0.0  # the latest time in an answer
        self._ledger: dict[str, LedgerRow] = {}  # rows as last seen: a step on them needs only one script
        self._assumed = AssumedLookups(self._ledger)
        self._caps_lock = asyncio.Lock()
        self._replication = replication
        self._losses = 0

    def time_argument(self) -> str:
        """For scripts: the time (empty: Redis' own), and the epoch and latest time that we know, which must hold."""
        replication = self._replication
        if self._losses != replication.losses:
            self._losses = replication.losses
            self._accepted.clear()
            self._ledger.clear()
            self._latest_at = 0.0
        time = "" if self._clock is None else repr(self._clock.now())
        return f"{time}|{replication.epoch}|{replication.mark}"

    async def run(
        self,
        script: LuaScript,
        *arguments: Argument,
        droppable: bool = False,
        needs_replication: NeedsReplication | None = None,
    ) -> Any:
        """Run a script that takes the time. If the script finds another journal than the one we know, it has done
        nothing yet, and runs again. Callers that send then check `rolled_back_s`, because writes may be lost."""

        ask = partial(
            self._write_pipeline.run, script, self._keys, droppable=droppable, needs_replication=needs_replication
        )
        try:
            return await ask((self.time_argument(), *arguments))
        except JournalForgot:
            return await ask((self.time_argument(), *arguments))

    def run_without_time(self, script: LuaScript, *arguments: Argument) -> Awaitable[Any]:
        """Run a script that needs no time, or that gets a time read before."""
        return self._write_pipeline.run(script, self._keys, arguments)

    # Claims.

    async def claim(self, request: ClaimRequest, *, has_turn: bool = False) -> Claim:
        if request.payout is not None and not has_turn:
            async with self._caps_turn():
                return await self.claim(request, has_turn=True)
        query, owns = LookupQuery.of_claim(request), owned_by(request)
        assumed = self._assumed_claim(request)
        start: WriteArgs = []
        rows: tuple[LedgerRow, ...] = ()
        if assumed is not None and assumed.insert is not None:
            start, rows = insert_args(assumed.insert, request.sealed_request, request.lease_s), assumed.rows
            guard = assumed.insert.operation.guard
            query = replace(query, guard=guard.value if guard is not None else "")
        reply = await self.run(
            scripts.CLAIM,
            *query.arguments(),
            str(len(rows)),
            *ledger_args(rows),
            *start,
            droppable=True,
            needs_replication=owns,
        )
        if reply[0] == b"owned" and assumed is not None and assumed.insert is not None:
            now = self._note_time(reply[1])
            self._remember_rows(rows)
            started = with_write_time(assumed.insert.operation, now, request.lease_s)
            return Claim(assumed.verdict, started, now, payment=assumed.payment, limit=assumed.limit)
        if reply[0] == b"another":
            raise _id_taken_error()
        claim: Claim = await self._plan_and_commit(query, lambda found: self._plan_claim(request, found), owns, reply)
        return claim

    @asynccontextmanager
    async def _caps_turn(self) -> AsyncIterator[None]:
        """Let steps on caps run one at a time, because each would make the others that use the same caps try again."""
        try:
            async with asyncio.timeout(_CAPS_TURN_S):
                await self._caps_lock.acquire()
        except TimeoutError:
            raise JournalUnavailable(
                "others count on the same caps, and the journal is slow: nothing was written"
            ) from None
        try:
            yield
        finally:
            self._caps_lock.release()

    def _assumed_claim(self, request: ClaimRequest) -> ClaimPlan | None:
        """The plan of the claim if its key and guard are new and the ledger is as it was last seen. None: the claim
        needs a look-up. A payout always does, because caps and approvals depend on the time of the write."""
        if request.payout is not None:
            return None
        try:
            return claim_plan.plan_claim(request, AT_WRITE, self._assumed)
        except NeedsLookup:
            return None

    def _remember_rows(self, rows: Iterable[LedgerRow]) -> None:
        if len(self._ledger) >= _KNOWN_ROWS_MAX:
            self._ledger.clear()
        for row in rows:
            self._ledger[row.key] = row

    def _plan_claim(self, request: ClaimRequest, found: RedisLookups) -> _PlannedWrite:
        if request.payout is not None:
            request = replace(request, payout=replace(request.payout, rolled_back_s=self._replication.rolled_back_s))
        taken = claim_plan.plan_answer(request, found.now, found)
        answer = claim_plan.claim_result(taken, found.now, found.sealed)
        return _PlannedWrite(
            answer,
            tuple(write_args(write) for write in taken.updates),
            insert_args_of(taken, request),
            taken.alias,
            rows=taken.rows,
        )

    async def fall_back(self, change: OperationChange, request: ClaimRequest) -> tuple[Operation, Claim]:
        query = LookupQuery(request.fresh.key, ids=(change.operation.id, request.fresh.id))

        def judge(found: RedisLookups) -> _PlannedWrite:
            taken = fallback_plan.plan_fallback(change, request, found.now, found)
            second = taken.second
            answer = claim_plan.claim_result(second, found.now, found.sealed)
            if taken.end is None:
                return _PlannedWrite((taken.first, answer))
            ended = write_args(taken.end, sealed_response=change.sealed_response)
            return _PlannedWrite(
                (taken.first, answer),
                (ended,),
                insert_args_of(second, request),
                acceptance=self._acceptance_args(change),
                rows=second.rows,
            )

        result: tuple[Operation, Claim] = await self._plan_and_commit(query, judge, owned_by(request))
        self._remember_acceptance(change)
        return result

    # Changes.

    async def record(self, change: OperationChange) -> Operation:
        if change.spent_change:
            async with self._caps_turn():
                return await self._record_after_lookup(change)
        if transitions.needs_stored_lease(change) or self._needs_look(change):
            return await self._record_after_lookup(change)
        plan = transitions.plan_record(change, None, AT_WRITE, self._assumed)
        write = plan.write
        lease_s = change.lease_s or 0.0
        guard = change.operation.guard
        paid = guard.value if guard is not None and transitions.needs_duplicate_check(change) else ""
        reply = await self.run(
            scripts.RECORD,
            paid,
            *self._acceptance_args(change),
            str(len(plan.rows)),
            *ledger_args(plan.rows),
            *write_args(write, lease_s=lease_s, sealed_response=change.sealed_response),
            needs_replication=replication_need(change),
        )
        if reply[0] == b"stale":
            raise transitions.stale_write(change.operation.id, change.operation.version)
        if reply[0] == b"judge":
            return await self._record_after_lookup(change)
        now = self._note_time(reply[1])
        self._remember_acceptance(change)
        self._remember_rows(plan.rows)
        return with_write_time(write.operation, now, lease_s)

    def _needs_look(self, change: OperationChange) -> bool:
        """Whether the change needs a look-up: its payment has not been seen, and the operation does not create it; or
        the other payments of the intent matter too."""
        operation, shown = change.operation, change.shown
        if shown is None or not operation.payment:
            return False
        makes_it = operation.payment == operation.id and shown.creates
        is_seen = payment_key(operation.payment) in self._ledger or makes_it
        return not is_seen or transitions.needs_intent(change)

    async def _record_after_lookup(self, change: OperationChange) -> Operation:
        """Record a change that depends on stored data: the lease, the payment, caps, or other payments."""
        requested = change.operation
        guard = (
            requested.guard.value if requested.guard is not None and transitions.needs_duplicate_check(change) else ""
        )

        def judge(found: RedisLookups) -> _PlannedWrite:
            stored = found.by_id(requested.id)
            if stored is None or stored.version != requested.version:
                raise transitions.stale_write(requested.id, requested.version)
            guarded = found.guarded(guard) if guard else ()
            plan = transitions.plan_record(change, stored.lease, found.now, found, guarded)
            return _PlannedWrite(
                plan.write.operation,
                (write_args(plan.write, sealed_response=change.sealed_response),),
                acceptance=self._acceptance_args(change),
                rows=plan.rows,
            )

        query = LookupQuery(guard=guard, ids=(requested.id,), rows=_rows_of(change))
        recorded: Operation = await self._plan_and_commit(query, judge, replication_need(change))
        self._remember_acceptance(change)
        return recorded

    async def restore(
        self,
        operation: Operation,
        sealed_request: bytes | None = None,
        sealed_response: bytes | None = None,
        *,
        lease_s: float | None = None,
    ) -> Operation:
        guard = operation.guard.value if operation.guard is not None else ""

        def judge(found: RedisLookups) -> _PlannedWrite:
            stored, newest = found.by_id(operation.id), found.newest(operation.key)
            under_guard = found.guarded(guard) if guard else ()
            plan = plan_restore(operation, stored, newest, under_guard, lease_s, found.now)
            if plan is None:
                return _PlannedWrite(stored)
            write = plan.write
            rows = rows_of_changes([(stored, write.operation)], found)
            rows = (*rows, *restored_rows(write.operation, found, found.now))
            if stored is not None:
                return _PlannedWrite(write.operation, (write_args(write, sealed_response=sealed_response),), rows=rows)
            kept = None if write.erase_request else sealed_request
            start = insert_args(write, kept, lease_s or 0.0, sealed_response=sealed_response)
            return _PlannedWrite(write.operation, insert=[*start, "1" if plan.key_taken else ""], rows=rows)

        payment = (payment_key(operation.payment),) if operation.payment else ()
        query = LookupQuery(operation.key, guard, ids=(operation.id,), rows=(*operation.caps, *payment))
        stands: Operation = await self._plan_and_commit(query, judge)
        return stands

    # Leases.

    async def take_due(
        self, token: str, lease_s: float, *, limit: int, full: frozenset[str] = frozenset()
    ) -> tuple[Operation, ...]:
        taken: list[Operation] = []
        newer = 0
        for _ in range(TRIES_MAX):
            wanted = min(limit - len(taken), _SWEEP_SIZE)
            if wanted <= 0:
                break
            now, due = await self.run(scripts.DUE, str(wanted + newer), *sorted(full), droppable=True)
            read = [parse_row(values) for values in due]
            rows = [row for row in read if not row.from_newer_version]
            passed, newer = newer, len(read) - len(rows)
            if not rows and newer <= passed:  # otherwise there may be more operations behind the unreadable ones
                break
            held = transitions.lease_due_writes((row.operation for row in rows), token, lease_s, self._note_time(now))
            taken.extend(await self._write_each(now, rows, held))
        return tuple(taken)

    async def expire_leases(
        self, *, all_of_earlier_holders: bool = False, over_at: float = math.inf
    ) -> tuple[Operation, ...]:
        """Act upon expired leases only, whatever `all_of_earlier_holders` is: that an earlier process of ours is gone
        does not mean that the other sidecars are."""
        acted_upon: list[Operation] = []
        passed = 0
        for _ in range(transitions.EXPIRED_LEASES_MAX // _SWEEP_SIZE + TRIES_MAX):
            wanted = min(transitions.EXPIRED_LEASES_MAX - len(acted_upon), _SWEEP_SIZE)
            if wanted <= 0:
                break
            now, over = await self.run(
                scripts.EXPIRED_LEASES, str(passed), str(wanted), bound_argument(over_at), droppable=True
            )
            rows = [parse_row(values) for values in over]
            if not rows:
                break
            expired = transitions.expired_lease_writes(
                (row.operation for row in rows if not row.from_newer_version), self._note_time(now)
            )
            passed += len(rows) - len(expired)  # an operation that cannot be acted upon does not block the rest
            counted = {row.operation.id for row in rows if row.operation.caps}
            plain = [write for write in expired if write.operation.id not in counted]
            acted_upon.extend(await self._write_each(now, rows, plain))
            for operation_id in sorted(counted & {write.operation.id for write in expired}):
                acted_upon.extend(await self._expire_counted(operation_id, over_at))
        return tuple(acted_upon)

    async def _expire_counted(self, operation_id: str, over_at: float) -> list[Operation]:
        """Act upon the expired lease of a payout with caps. The same step writes the amount that it gives back."""

        def judge(found: RedisLookups) -> _PlannedWrite:
            stored = found.by_id(operation_id)
            current = stored and after_expired_lease(stored, found.now, over_at)
            if stored is None or current is None or current is stored:
                return _PlannedWrite([])  # another sidecar was faster
            write = transitions.lease_end_write(stored, current, found.now)
            rows = rows_of_changes([(stored, write.operation)], found)
            return _PlannedWrite([write.operation], (write_args(write),), rows=rows)

        async with self._caps_turn():
            expired: list[Operation] = await self._plan_and_commit(LookupQuery(ids=(operation_id,)), judge)
        return expired

    # What the steps are made of.

    async def _write_each(
        self, now: bytes, rows: list[RedisRow], taken: Iterable[transitions.OperationWrite]
    ) -> list[Operation]:
        """Write each step whose operation has not changed since it was read. Returns the operations written."""
        held = {row.operation.id: row.lease_end for row in rows}
        written = {write.operation.id: write.operation for write in taken}
        updates = [argument for write in taken for argument in write_args(write, lease_end=held[write.operation.id])]
        if not updates:
            return []
        ids = await self.run(scripts.WRITE_MANY, now, repr(PLAN_VALID_S), *updates)
        return [written[found.decode()] for found in ids]

    async def _plan_and_commit(
        self,
        query: LookupQuery,
        judge: Callable[[RedisLookups], _PlannedWrite],
        needs_replication: NeedsReplication | None = None,
        reply: Any = None,
    ) -> Any:
        """Look up, judge, and write over the data that was looked up. If another writer was faster, do it again."""
        for _ in range(TRIES_MAX):
            if reply is None:
                reply = await self.run(
                    scripts.LOOKUP, *query.arguments(), droppable=True, needs_replication=needs_replication
                )
            found = RedisLookups(query, reply[1])
            self._note_time(found.now_text)
            self._remember_rows(found.ledger.values())
            try:
                written = judge(found)
            except NeedsLookup as missing:
                query, reply = missing.extend(query), None
                continue
            if written.is_empty:
                return written.result
            reply = await self._commit(found, written, needs_replication)
            if reply[0] == b"written":
                self._remember_rows(written.rows)
                return written.result
        raise JournalUnavailable(f"others were faster {TRIES_MAX} times: nothing was written")

    async def _commit(
        self, found: RedisLookups, written: _PlannedWrite, needs_replication: NeedsReplication | None
    ) -> Any:
        alias = written.alias
        reply = await self.run(
            scripts.COMMIT,
            *found.query.arguments(),
            found.token,
            found.now_text,
            repr(PLAN_VALID_S),
            *written.acceptance,
            "" if alias is None else alias.key,
            b"" if alias is None else alias_to_text(alias),
            str(len(written.updates)),
            str(len(written.rows)),
            *(argument for update in written.updates for argument in update),
            *ledger_args(written.rows),
            *(written.insert or ()),
            needs_replication=needs_replication,
        )
        if reply[0] == b"another":
            raise _id_taken_error()
        return reply

    def _note_time(self, now: bytes) -> float:
        at = float(now)
        if at > self._latest_at:
            self._latest_at = at
            self._replication.note_time(now)
        return at

    def _acceptance_args(self, change: OperationChange) -> tuple[Argument, ...]:
        """The arguments that store the acceptance of the credential; empty if the stored one is good enough."""
        operation, sealed = change.operation, change.sealed_credential
        if not change.accepted_credential:
            return ("", "", "")
        before = self._accepted.get((operation.account, operation.credential))
        if transitions.refreshed_acceptance(before, sealed, self._latest_at) is None:
            return ("", "", "")
        return (operation.account, operation.credential, sealed_argument(sealed))

    def _remember_acceptance(self, change: OperationChange) -> None:
        if not change.accepted_credential:
            return
        pair = (change.operation.account, change.operation.credential)
        accepted = transitions.refreshed_acceptance(self._accepted.get(pair), change.sealed_credential, self._latest_at)
        if accepted is not None:
            if len(self._accepted) >= _KNOWN_CREDENTIALS_MAX:
                self._accepted.clear()
            self._accepted[pair] = accepted


def _rows_of(change: OperationChange) -> tuple[str, ...]:
    """The ledger rows that a change always looks up."""
    if change.spent_change:
        return change.operation.caps
    if change.shown is None or not change.operation.payment:
        return ()
    return (payment_key(change.operation.payment), *(name.key for name in change.shown.names))


def _id_taken_error() -> JournalUnavailable:
    return JournalUnavailable("the journal holds another operation of the id that would start")
