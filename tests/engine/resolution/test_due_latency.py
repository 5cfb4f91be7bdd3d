"""How soon a due operation is taken, by a whole sidecar in virtual time: when it is due, if its journal knew that, and
within a heartbeat of whatever the sidecar could not know. And an idle sidecar leaves its journal alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.operation import Operation
from paywitness.engine.durability.ages import BEAT_S
from paywitness.engine.durability.journal_writer import JournalWriter
from tests.journal.samples import doubting, owned
from tests.simulation.failover import ForgetfulJournal
from tests.simulation.sidecars import Sidecar
from tests.simulation.swarm import Mix
from tests.simulation.world import World

KNOWN_S = 0.02  # of what the journal said beforehand
UNSEEN_S = BEAT_S + KNOWN_S  # of what only a heartbeat shows


class OneSidecar:
    """A sidecar that has just started, and the store that it shares with others."""

    def __init__(self, mix: Mix) -> None:
        self.simulated = World(mix)
        self.fleet = self.simulated.fleet

    @property
    def sidecar(self) -> Sidecar:
        sidecar = self.fleet.sidecars[0]
        assert sidecar is not None
        return sidecar

    @property
    def journal_writer(self) -> JournalWriter:
        return self.sidecar.parts.journal_writer

    def now(self) -> float:
        return self.fleet.store_clock.now()

    async def doubt(self, key: str, due_in_s: float) -> Operation:
        """Another sidecar writes that an operation is in doubt."""
        change = doubting(await owned(self.fleet.journal, key))
        return await self.fleet.journal.record(
            replace(change, operation=replace(change.operation, due_at=self.now() + due_in_s))
        )

    async def taken_after_s(self, operation: Operation) -> float:
        """How long after its due time it was taken."""
        entries = await self.fleet.journal.history(operation.id)
        (entry,) = [entry for entry in entries if entry.note == "lease taken"][-1:]
        assert operation.due_at is not None
        return entry.at - operation.due_at


def play(script: Callable[[OneSidecar], Coroutine[Any, Any, None]], **mix: Any) -> None:
    world = OneSidecar(replace(Mix(1, 1, sidecars=2, webhooks=False), **mix))
    loop = world.fleet.loop

    async def run() -> None:
        world.fleet.start(0)
        await asyncio.sleep(9.3)
        await script(world)

    try:
        loop.run_until_complete(loop.start(run()))
    finally:
        world.simulated._sweep_up()
    assert not loop.faults


@pytest.mark.parametrize("due_in_s", [2.5, 7.0, 30.0, 30.3])
def test_what_another_sidecar_wrote_ahead_of_its_time_is_taken_at_its_time(due_in_s: float) -> None:
    async def script(world: OneSidecar) -> None:
        operation = await world.doubt("key-1", due_in_s)
        await asyncio.sleep(due_in_s + 5.0)
        assert 0.0 <= await world.taken_after_s(operation) <= KNOWN_S

    play(script)


def test_several_that_are_due_one_after_the_other_are_each_taken_at_their_time() -> None:
    async def script(world: OneSidecar) -> None:
        due = [await world.doubt(f"key-{number}", 10.0 + 0.3 * number) for number in range(10)]
        await asyncio.sleep(20.0)
        for operation in due:
            assert 0.0 <= await world.taken_after_s(operation) <= KNOWN_S

    play(script)


@pytest.mark.parametrize("due_in_s", [0.0, 0.1, 0.5])
def test_what_this_sidecar_writes_is_taken_at_its_time(due_in_s: float) -> None:
    async def script(world: OneSidecar) -> None:
        change = doubting(await owned(world.fleet.journal))
        due_at = world.now() + due_in_s
        own = replace(change, operation=replace(change.operation, due_at=due_at))
        world.sidecar.run(world.journal_writer.try_write(own))
        await asyncio.sleep(due_in_s + 1.0)
        operation = replace(change.operation, due_at=due_at)
        assert 0.0 <= await world.taken_after_s(operation) <= KNOWN_S

    play(script)


def test_what_another_sidecar_wrote_as_due_is_taken_within_a_heartbeat() -> None:
    async def script(world: OneSidecar) -> None:
        operation = await world.doubt("key-1", 0.0)
        await asyncio.sleep(5.0)
        assert await world.taken_after_s(operation) <= UNSEEN_S

    play(script)


def test_after_a_suspension_what_became_due_is_taken_within_a_heartbeat() -> None:
    async def script(world: OneSidecar) -> None:
        operation = await world.doubt("key-1", 60.0)
        await asyncio.sleep(5.0)
        world.fleet._pause(world.sidecar, 100.0)
        await asyncio.sleep(110.0)
        assert await world.taken_after_s(operation) <= 100.0 + 5.0 - 60.0 + UNSEEN_S

    play(script, suspends=True)


def test_if_the_clock_of_the_store_is_set_ahead_what_became_due_is_taken_within_a_heartbeat() -> None:
    async def script(world: OneSidecar) -> None:
        operation = await world.doubt("key-1", 600.0)
        await asyncio.sleep(5.0)
        world.fleet.store_clock.ahead_s += 600.0
        await asyncio.sleep(5.0)
        assert await world.taken_after_s(operation) <= 5.0 + UNSEEN_S

    play(script)


def test_if_a_failover_brings_back_an_older_due_time_it_is_taken_within_a_heartbeat() -> None:
    async def script(world: OneSidecar) -> None:
        journal = world.fleet.journal
        assert isinstance(journal, ForgetfulJournal)
        operation = await world.doubt("key-1", 10.0)
        journal.replicate()
        later = replace(operation, due_at=world.now() + 10_000.0)
        await journal.record(replace(doubting(operation), operation=later))
        await asyncio.sleep(20.0)
        failed_over_at = world.now()
        journal.fail_over()
        await asyncio.sleep(5.0)
        assert await world.taken_after_s(operation) <= failed_over_at - (operation.due_at or 0.0) + UNSEEN_S

    play(script, failovers=1)


def test_the_lease_of_a_sidecar_that_died_is_recovered_when_it_ends() -> None:
    async def script(world: OneSidecar) -> None:
        operation = await owned(world.fleet.journal, "key-1")
        assert operation.lease is not None
        await asyncio.sleep(operation.lease.until_at - world.now() + 2 * UNSEEN_S)
        found = await world.fleet.journal.read(operation.id)
        assert found is not None
        assert found.state.in_doubt

    play(script)


def test_an_idle_sidecar_reads_the_clock_and_nothing_else() -> None:
    async def script(world: OneSidecar) -> None:
        calls: Counter[str] = Counter()
        door = world.sidecar.door
        for name in ("take_due", "due_webhook_events", "due_ledger_rows", "expire_leases", "announcements"):
            door.__dict__[name] = _counting(getattr(world.fleet.journal, name), name, calls)
        await asyncio.sleep(60.0)
        assert calls == {"announcements": 12}  # whoever holds the outbox's cursor looks whenever it renews it

    play(script)


def _counting(
    method: Callable[..., Coroutine[Any, Any, Any]], name: str, calls: Counter[str]
) -> Callable[..., Coroutine[Any, Any, Any]]:
    def call(*args: Any, **values: Any) -> Coroutine[Any, Any, Any]:
        calls[name] += 1
        return method(*args, **values)

    return call
