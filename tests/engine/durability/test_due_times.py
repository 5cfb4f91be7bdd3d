"""A loop sleeps until something is due: never longer, and never without end for what it can do nothing about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from paywitness.core.errors import JournalUnavailable
from paywitness.engine.durability.due_times import LONGEST_SLEEP_S, DueTimes, Wakeup
from paywitness.journal.base import Journal, NextDue, StoreClock
from tests.simulation.loop import SimLoop


class StoreOfTimes:
    """A journal of which only the clock is read. `due_at` and `now_at` are in its own time."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.ahead_s = 0.0
        self.reads: list[float] = []
        self.due: dict[str, float] = {}
        self.announced_seq = 0
        self.down = False

    async def read_clock(self) -> StoreClock:
        self.reads.append(self.loop.now_mono)
        if self.down:
            raise JournalUnavailable("away")
        next_due = NextDue(self.due, announced_seq=self.announced_seq)
        return StoreClock(self.now(), self.now(), None, next_due)

    def now(self) -> float:
        return self.loop.now_mono + self.ahead_s


class World:
    """One loop that takes what is due of the providers that may be asked, in virtual time."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.store = StoreOfTimes(loop)
        self.due_times = DueTimes(cast(Journal, self.store))
        self.turns: list[float] = []
        self.taken: dict[str, float] = {}
        self.began_mono = loop.now_mono

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        self.loop.call_later(seconds, do)

    async def keep_taking(self) -> None:
        while True:
            self.turns.append(self.loop.now_mono - self.began_mono)
            held_back = self.due_times.providers_held_back
            found = {name for name, at in self.store.due.items() if at <= self.store.now() and name not in held_back}
            for name in found:
                del self.store.due[name]
                self.taken[name] = self.loop.now_mono - self.began_mono
            await self.due_times.wait(self.due_times.operations, did_something=bool(found))

    async def beat(self, every_s: float = 2.0) -> None:
        """The heartbeat of `ages`."""
        while True:
            await asyncio.sleep(every_s)
            self.due_times.update(await self.store.read_clock())

    async def run(self, seconds: float, *coroutines: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.ensure_future(each) for each in (self.keep_taking(), *coroutines)]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def play(script: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    loop = SimLoop()
    world = World(loop)
    try:
        loop.run_until_complete(script(world))
    finally:
        loop.close()
    assert not loop.faults
    return world


def test_what_is_due_is_taken_when_it_is_due() -> None:
    async def script(world: World) -> None:
        now = world.store.now()
        world.store.due = {"a": now + 30.0, "b": now + 30.4, "c": now + 30.5}
        await world.run(60.0, world.beat())

    world = play(script)
    assert world.taken == pytest.approx({"a": 30.0, "b": 30.4, "c": 30.5}, abs=0.001)
    assert len(world.turns) == 4


def test_a_loop_that_has_nothing_to_do_reads_nothing_beside_the_heartbeat() -> None:
    async def script(world: World) -> None:
        await world.run(60.5, world.beat())

    world = play(script)
    assert world.turns == [0.0]
    assert len(world.store.reads) == 1 + 30


def test_without_a_heartbeat_it_reads_by_itself() -> None:
    async def script(world: World) -> None:
        world.after(10.0, lambda: world.store.due.update(unseen=world.store.now()))
        await world.run(20.0)

    world = play(script)
    assert world.taken["unseen"] <= 10.0 + LONGEST_SLEEP_S
    assert len(world.turns) == 2


def test_what_another_sidecar_wrote_is_taken_within_a_heartbeat() -> None:
    async def script(world: World) -> None:
        world.after(9.1, lambda: world.store.due.update(unseen=world.store.now()))
        await world.run(20.0, world.beat())

    assert play(script).taken["unseen"] == pytest.approx(10.0)


def test_a_store_whose_clock_was_set_and_one_that_went_back_are_seen_within_a_heartbeat() -> None:
    async def script(world: World) -> None:
        world.store.due = {"a": world.store.now() + 3_600.0}

        def set_ahead() -> None:
            world.store.ahead_s = 3_600.0

        world.after(9.1, set_ahead)
        world.after(15.1, lambda: world.store.due.update(again=world.store.now() - 50.0))
        await world.run(20.0, world.beat())

    assert play(script).taken == pytest.approx({"a": 10.0, "again": 16.0})


def test_what_stays_due_though_nothing_can_be_done_is_left_alone_for_a_while() -> None:
    """And hides nothing that is due later."""

    async def script(world: World) -> None:
        now = world.store.now()
        world.due_times.operations = Wakeup(rest_s=5.0)
        world.store.due = {"taken by somebody": now + 1.0}

        async def never(self: object = None) -> StoreClock:
            world.store.reads.append(0.0)
            return StoreClock(world.store.now(), world.store.now(), None, NextDue({"phantom": now + 1.0}))

        world.store.read_clock = never  # type: ignore[method-assign]
        await world.run(61.0, world.beat())

    world = play(script)
    assert len(world.turns) <= 2 + 60 / 5


def test_a_provider_that_is_held_back_hides_no_other() -> None:
    async def script(world: World) -> None:
        now = world.store.now()
        world.due_times.providers_held_back = frozenset({"refusing"})
        world.store.due = {"refusing": now + 1.0, "a": now + 20.3}
        await world.run(40.0, world.beat())

    world = play(script)
    assert world.taken == pytest.approx({"a": 20.3}, abs=0.001)
    assert len(world.turns) == 2


def test_a_write_of_ours_wakes_at_once_also_during_a_turn() -> None:
    async def script(world: World) -> None:
        wakeup = world.due_times.operations
        world.after(5.1, wakeup.set)
        world.after(6.0, lambda: wakeup.set_within(0.5))
        world.after(6.0, lambda: wakeup.set_within(7.0))  # later than what it is set to: its turn names it again
        await world.run(20.0, world.beat())

    assert play(script).turns == pytest.approx([0.0, 5.1, 6.5])


def test_a_loop_tells_that_the_journal_is_away() -> None:
    async def script(world: World) -> None:
        def go_away() -> None:
            world.store.down = True

        world.after(5.0, go_away)
        with pytest.raises(JournalUnavailable):
            await world.keep_taking()
        assert world.loop.now_mono - world.began_mono <= 5.0 + LONGEST_SLEEP_S

    play(script)


def test_announcements_wake_the_outbox_whichever_way_their_number_moved() -> None:
    async def script(world: World) -> None:
        announced = world.due_times.announcements
        woken = []
        for seq in (7, 7, 9, 3, 3):  # a store that came back without its last writes counts from before
            world.store.announced_seq = seq
            world.due_times.update(await world.store.read_clock())
            woken.append(await announced.wait(0.1))
        assert woken == [True, False, True, True, False]

    play(script)
