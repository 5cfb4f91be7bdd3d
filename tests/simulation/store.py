"""The store of a world: the journal in memory, with indexes so that a look costs what it finds, and a door to it for
each sidecar, behind which replies are lost, writes come late, and whole calls stall.

`IndexedJournal` must say what `MemoryJournal` says: `test_store` compares the two.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

from paywitness.core.errors import JournalUnavailable
from paywitness.core.operation import DoubtCount, Operation, State
from paywitness.journal import transitions
from paywitness.journal.base import AnnouncementRow, OperationQuery, StoredWebhookEvent
from paywitness.journal.transitions import WallClock
from tests.journal.memory import MemoryJournal
from tests.journal.memory_tables import MemoryTables
from tests.simulation.history import History
from tests.simulation.loop import Life, SimLoop
from tests.simulation.swarm import Mix

Timed = tuple[float, int, str]


class IndexedTables(MemoryTables):
    """Shelves that know what is due, held, telling, and in which state."""

    __slots__ = ("_by_name", "_unnamed", "by_state", "due", "events", "held", "notices_waiting", "telling")

    def __init__(self) -> None:
        super().__init__()
        self.due: list[Timed] = []  # heaps; what they hold may be out of date, and is looked at again
        self.held: list[Timed] = []
        self.notices_waiting: list[tuple[float, int]] = []
        self.events: set[tuple[str, str, str]] = set()
        self.telling: list[int] = []
        self.by_state: dict[State, dict[str, None]] = {state: {} for state in State}
        self._by_name: dict[tuple[str, str], dict[str, None]] = {}
        self._unnamed: list[Operation] = []  # names are written down when somebody looks for one

    def write(self, step: transitions.OperationWrite) -> None:
        operation = step.operation
        before = self.operations.get(operation.id)
        MemoryTables.write(self, step)
        self.index(operation)
        if step.entry.announcement is not None:
            self.telling.append(self.seq)
        if before is None or before.state is not operation.state:
            if before is not None:
                self.by_state[before.state].pop(operation.id, None)
            self.by_state[operation.state][operation.id] = None
        if before is None or (before.reference, before.payment) != (operation.reference, operation.payment):
            self._unnamed.append(operation)  # the other names stay

    def index_all(self) -> None:
        """After a rollback: everything anew."""
        for operation in self.operations.values():
            self.index(operation)
            self.by_state[operation.state][operation.id] = None
            self._unnamed.append(operation)
        self.telling = [seq for seq, (_, entry) in self.changes.items() if entry.announcement is not None]
        for notice in self.notices.values():
            self.events.add((notice.provider, notice.account, notice.event_id))
            for at in (notice.due_at, notice.relay_due_at):
                if at is not None:
                    heapq.heappush(self.notices_waiting, (at, notice.number))

    def index(self, operation: Operation) -> None:
        number = self.numbers[operation.id]
        if operation.due_at is not None:
            heapq.heappush(self.due, (operation.due_at, number, operation.id))
        if operation.lease is not None:
            heapq.heappush(self.held, (operation.lease.until_at, number, operation.id))

    def _forget(self, operation: Operation) -> None:
        MemoryTables._forget(self, operation)
        del self.by_state[operation.state][operation.id]
        for name in _names_of(operation):
            self.named(name).pop(operation.id, None)

    def named(self, name: tuple[str, str]) -> dict[str, None]:
        """The ids of what bears a name."""
        for operation in self._unnamed:
            for one in _names_of(operation):
                self._by_name.setdefault(one, {})[operation.id] = None
        self._unnamed.clear()
        return self._by_name.get(name, {})

    def newest_stamped(self, stamp: str) -> Operation | None:
        """The newest of a key's generations that share a stamp, which is the id of the first of them."""
        first = self.operations.get(stamp)
        for operation_id in reversed(self.generations[first.key]) if first is not None else ():
            operation = self.operations[operation_id]
            if operation.stamp == stamp:
                return operation
        return first


def _names_of(operation: Operation) -> list[tuple[str, str]]:
    """By what it is looked for."""
    names = [("stamp", operation.id), ("key", operation.client_key)]
    if operation.stamp and operation.stamp != operation.id:
        names.append(("stamp", operation.stamp))
    if operation.provider_key:
        names.append(("key", operation.provider_key))
    if operation.reference:
        names.append(("reference", operation.reference))
    if operation.payment:
        names.append(("payment", operation.payment))
    if operation.guard is not None:
        names += [("guard", operation.guard.value), ("subject", operation.guard.label)]
    return names


class IndexedJournal(MemoryJournal):
    """The journal in memory, in less time."""

    def __init__(self, *, clock: WallClock, tables: MemoryTables | None = None) -> None:
        super().__init__(clock=clock, tables=tables or IndexedTables())

    @property
    def tables(self) -> IndexedTables:
        assert isinstance(self._tables, IndexedTables)
        return self._tables

    def reopened(self, clock: WallClock) -> IndexedJournal:
        self._tables.latest_at = self._time.latest_at
        self._open = False
        return IndexedJournal(clock=clock, tables=self._tables)

    async def take_due(
        self, token: str, lease_s: float, *, limit: int, full: frozenset[str] = frozenset()
    ) -> tuple[Operation, ...]:
        tables, now = self.tables, self._time.now()
        if not tables.due or tables.due[0][0] > now:
            return ()
        due: list[Operation] = []
        passed: list[Timed] = []
        while tables.due and tables.due[0][0] <= now and len(due) < limit:
            entry = heapq.heappop(tables.due)
            operation = tables.operations.get(entry[2])
            if operation is None or operation.due_at != entry[0] or operation.state not in transitions.LEASABLE_STATES:
                continue
            if operation.provider in full:
                passed.append(entry)
            elif operation.lease is None and operation not in due:
                due.append(operation)  # held, it is entered again with the change that gives it back
        for entry in passed:
            heapq.heappush(tables.due, entry)
        taken = transitions.lease_due_writes(due, token, lease_s, now)
        for step in taken:
            tables.write(step)
        return tuple(step.operation for step in taken)

    async def expedite(self, provider: str, *, within_s: float, limit: int) -> int:
        moved = await super().expedite(provider, within_s=within_s, limit=limit)
        if moved:
            for operation in self.tables.operations.values():
                if operation.due_at is not None:
                    self.tables.index(operation)
        return moved

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        renewed = await super().renew(operation_ids, token_of, lease_s)
        for operation_id in operation_ids:
            if operation_id in renewed:
                self.tables.index(self.tables.operations[operation_id])
        return renewed

    async def expire_leases(
        self, *, all_of_earlier_holders: bool = False, over_at: float = math.inf
    ) -> tuple[Operation, ...]:
        if all_of_earlier_holders:
            return await super().expire_leases(all_of_earlier_holders=True, over_at=over_at)
        tables, now = self.tables, self._time.now()
        over: list[Operation] = []
        while tables.held and tables.held[0][0] <= min(now, over_at) and len(over) < transitions.EXPIRED_LEASES_MAX:
            until_at, _, operation_id = heapq.heappop(tables.held)
            operation = tables.operations.get(operation_id)
            lease = operation.lease if operation is not None else None
            if operation is not None and lease is not None and lease.until_at == until_at and operation not in over:
                over.append(operation)
        expired = transitions.expired_lease_writes(over, now)
        for step in expired:
            tables.write(step)
        return tuple(step.operation for step in expired)

    def _listed(self, listing: OperationQuery) -> Iterator[Operation]:
        tables = self.tables
        names = {"stamp": listing.stamp, "key": listing.key, "reference": listing.reference, "guard": listing.guard}
        names |= {"subject": listing.subject, "payment": listing.payment}
        given = next(((name, value) for name, value in names.items() if value is not None), None)
        if given is not None and not (given[0] == "key" and tables.aliases):
            found = tables.named(given)
        elif given is None and listing.states:
            found = {operation_id: None for state in listing.states for operation_id in tables.by_state[state]}
        else:
            yield from super()._listed(listing)
            return
        for operation_id in sorted(found, reverse=True):
            operation = tables.operations.get(operation_id)
            if operation is None:
                continue  # retired, and looked for by a reference that it had once
            by_key = listing.key is None or listing.key in {operation.client_key, operation.provider_key}
            if by_key and transitions.matches_query(operation, listing):
                yield operation

    def _open_operations(self) -> Iterable[Operation]:
        tables = self.tables
        return (tables.operations[one] for state in transitions.LEASABLE_STATES for one in tables.by_state[state])

    def _held_operations(self) -> Iterable[Operation]:
        """The one whose lease ends first."""
        tables = self.tables
        while tables.held:
            until_at, _, operation_id = tables.held[0]
            operation = tables.operations.get(operation_id)
            if operation is not None and operation.lease is not None and operation.lease.until_at == until_at:
                return (operation,)
            heapq.heappop(tables.held)
        return ()

    async def doubt_counts(self) -> tuple[DoubtCount, ...]:
        return ()  # gauges, which nobody reads here

    async def store_webhook_event(self, notice: StoredWebhookEvent) -> bool:
        tables = self.tables
        event = (notice.provider, notice.account, notice.event_id)
        if event in tables.events:
            return False
        tables.events.add(event)
        tables.notice_number += 1
        self._index_webhook_event(replace(notice, number=tables.notice_number))
        return True

    async def update_webhook_event(self, notice: StoredWebhookEvent) -> None:
        await super().update_webhook_event(notice)
        if notice.number in self.tables.notices:
            self._index_webhook_event(self.tables.notices[notice.number])

    def _index_webhook_event(self, notice: StoredWebhookEvent) -> None:
        self.tables.notices[notice.number] = notice
        for at in (notice.due_at, notice.relay_due_at):
            if at is not None:
                heapq.heappush(self.tables.notices_waiting, (at, notice.number))

    async def due_webhook_events(self, *, limit: int) -> tuple[StoredWebhookEvent, ...]:
        tables, now = self.tables, self._time.now()
        if not tables.notices_waiting or tables.notices_waiting[0][0] > now:
            return ()
        due: dict[int, StoredWebhookEvent] = {}
        seen = []
        while tables.notices_waiting and tables.notices_waiting[0][0] <= now and len(due) < limit:
            at, number = entry = heapq.heappop(tables.notices_waiting)
            notice = tables.notices.get(number)  # None: it was done, and has been forgotten
            if notice is not None and at in (notice.due_at, notice.relay_due_at) and number not in due:
                due[number] = notice
                seen.append(entry)  # it is due until it is moved
        for entry in seen:
            heapq.heappush(tables.notices_waiting, entry)
        return tuple(due.values())

    async def announcements(self, after: int, *, limit: int) -> tuple[AnnouncementRow, ...]:
        tables = self.tables
        rows = []
        for seq in islice(tables.telling, bisect_right(tables.telling, after), None):
            found = tables.changes.get(seq)
            if found is not None:
                rows.append(AnnouncementRow(seq, tables.operations[found[0]], found[1]))
            if len(rows) >= limit:
                break
        return tuple(rows)


class JournalDoor:
    """One sidecar's way to the journal. What has been asked for is done, whatever becomes of whoever asked."""

    def __init__(
        self, journal: Callable[[], IndexedJournal], loop: SimLoop, life: Life, mix: Mix, dice: Random, history: History
    ) -> None:
        self._journal = journal
        self._loop = loop
        self._life = life
        self._mix = mix
        self._dice = dice
        self._history = history
        self.stalled_since_mono = self.stalled_until_mono = 0.0
        self.refuses = False  # while it is stalled, at once
        self.calm = False
        self._slow = mix.journal_latency > 0
        self._faults = mix.journal_lost_replies + mix.journal_refusals + mix.journal_late_writes
        self._plain = not self._slow and not self._faults

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **values: Any) -> Coroutine[Any, Any, Any]:
            if self._plain and self._life.alive and self._loop.now_mono >= self.stalled_until_mono:
                return getattr(self._journal(), name)(*args, **values)
            return self._call(name, args, values)

        self.__dict__[name] = call
        return call

    def was_away(self, since_mono: float) -> bool:
        """Whether nothing came through from then until now."""
        return self.stalled_since_mono <= since_mono and self._loop.now_mono < self.stalled_until_mono

    def rolled_back_s(self) -> float | None:
        return self._journal().rolled_back_s()

    def journal_id(self) -> str:
        return self._journal().journal_id()

    @property
    def can_roll_back(self) -> bool:
        return self._journal().can_roll_back

    @property
    def shared(self) -> bool:
        """A journal of one sidecar is a file on its machine: while nobody holds it, nobody counts its time."""
        return self._mix.sidecars > 1 or self._journal().can_roll_back

    async def healthy(self) -> bool:
        return self._loop.now_mono >= self.stalled_until_mono

    async def _call(self, name: str, args: tuple[Any, ...], values: dict[str, Any]) -> Any:
        if not self._life.alive:
            raise JournalUnavailable("its process is dead")  # from the last words of what is swept up after the world
        fault = self._fault()
        if fault is None and not self._slow:
            return await getattr(self._journal(), name)(*args, **values)
        reply = self._loop.create_future()
        latency_s = self._mix.journal_latency * self._dice.random()
        if fault == "stall":
            waits_s = 2.0 if not self.refuses else 0.001
            self._loop.after(waits_s, _unavailable, reply, "no reply in time")
            return await reply
        if fault is not None:
            self._history.say(self._life.name, f"journal: {fault}", "", name)
        if fault == "refusal":
            self._loop.after(latency_s, _unavailable, reply, "refused")
        else:
            late_s = self._dice.uniform(2.0, 4.0) if fault == "late write" else 0.0
            self._loop.after(latency_s + late_s, self._do, name, args, values, reply, latency_s)
            if fault == "lost reply":
                self._loop.after(latency_s, _unavailable, reply, "the reply was lost")
            elif fault == "late write":
                self._loop.after(2.0, _unavailable, reply, "no reply in time")
        return await reply

    def _fault(self) -> str | None:
        if self._loop.now_mono < self.stalled_until_mono:
            return "stall"
        if self.calm or not self._faults:
            return None
        draw = self._dice.random()
        for name, rate in (
            ("lost reply", self._mix.journal_lost_replies),
            ("refusal", self._mix.journal_refusals),
            ("late write", self._mix.journal_late_writes),
        ):
            draw -= rate
            if draw < 0:
                return name
        return None

    def _do(
        self, name: str, args: tuple[Any, ...], values: dict[str, Any], reply: asyncio.Future[Any], latency_s: float
    ) -> None:
        try:
            result = _at_once(getattr(self._journal(), name)(*args, **values))
        except Exception as error:  # noqa: BLE001  # whatever the journal says is its reply
            self._loop.after(latency_s, _reply_error, reply, error)
        else:
            self._loop.after(latency_s, _reply, reply, result)


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """A call of the journal in memory awaits nothing: it is one step."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a call of the journal in memory is one step")


def _reply(reply: asyncio.Future[Any], result: Any) -> None:
    if not reply.done():
        reply.set_result(result)


def _reply_error(reply: asyncio.Future[Any], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)


def _unavailable(reply: asyncio.Future[Any], why: str) -> None:
    _reply_error(reply, JournalUnavailable(why))
