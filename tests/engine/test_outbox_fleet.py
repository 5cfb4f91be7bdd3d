"""The outbox in a fleet: one delivers at a time, the next goes on when it is gone, and who lost it is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from paywitness.clock import SystemClock
from paywitness.core.errors import JournalUnavailable
from paywitness.engine.outbox import CURSOR, CURSOR_LEASE_S, RENEWALS_PER_LEASE, Outbox, Sink
from paywitness.journal.base import AnnouncementRow
from paywitness.randomness import SystemRandomness
from tests.engine.sink import SECRET, Delivery, HttpSink, until
from tests.engine.test_outbox import BRIEF, IMPATIENT, Bench
from tests.journal.memory import MemoryJournal

SHORT_S = 0.3


class MovedClock(SystemClock):
    """Goes on by itself, and is moved by hand."""

    moved_s = 0.0

    def now(self) -> float:
        return super().now() + self.moved_s

    def boot(self) -> float:
        return super().boot() + self.moved_s


class Shared(MemoryJournal):
    """Counts what it is asked; does not answer when it is told not to."""

    def __init__(self, clock: SystemClock) -> None:
        super().__init__(clock=clock)
        self.asked: list[str] = []
        self.silent = False

    def _note(self, name: str) -> None:
        if self.silent:
            raise JournalUnavailable("gone")
        self.asked.append(name)

    async def take_cursor(self, name: str, token: str, lease_s: float) -> int | None:
        self._note("take_cursor")
        return await super().take_cursor(name, token, lease_s)

    async def move_cursor(self, name: str, seq: int, token: str = "") -> bool:
        self._note("move_cursor")
        return await super().move_cursor(name, seq, token)

    async def announcements(self, after: int, *, limit: int) -> tuple[AnnouncementRow, ...]:
        self._note("outcomes")
        return await super().announcements(after, limit=limit)


class Fleet(Bench):
    def __init__(self, clock: MovedClock, journal: Shared) -> None:
        super().__init__(journal, HttpSink())
        self.clock = clock
        self.shared = journal

    def member(self, lease_s: float = CURSOR_LEASE_S) -> Outbox:
        to = Sink(self.sink.url, SECRET, IMPATIENT, BRIEF)
        outside = (self.clock, SystemRandomness(), self.telemetry)
        return Outbox(self.journal, self.upstream, to, self.announced, *outside, lease_s)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    clock = MovedClock()
    built = Fleet(clock, Shared(clock))
    await built.sink.start()
    yield built
    built.shared.silent = False
    await built.close()


async def test_of_several_one_delivers_and_nothing_comes_twice(fleet: Fleet) -> None:
    operations = [await fleet.tell(f"key-{number}") for number in range(40)]
    for number in range(4):
        fleet.tasks.start(fleet.member().keep_delivering(), f"outbox-{number}")
    await fleet.all_noted()
    assert fleet.sink.first_versions() == {operation.id: [2, 4, 5] for operation in operations}
    assert len(fleet.sink.offered) == 120


async def test_who_does_not_deliver_asks_now_and_then_and_nothing_else(fleet: Fleet) -> None:
    await fleet.tell("key-1")
    assert await fleet.member().deliver_page() == 3
    fleet.shared.asked.clear()
    waits: list[float] = []
    standby = fleet.member()
    for _ in range(3):
        waits.append(await standby._deliver_once())
    assert waits == [CURSOR_LEASE_S / RENEWALS_PER_LEASE] * 3
    assert fleet.shared.asked == ["take_cursor"] * 3


async def test_the_next_one_goes_on_when_the_deliverer_is_gone(fleet: Fleet) -> None:
    first, second = fleet.member(), fleet.member()
    early = await fleet.tell("early")
    assert await first.deliver_page() == 3
    late = await fleet.tell("late")
    assert await second.deliver_page() is None
    fleet.clock.moved_s += CURSOR_LEASE_S
    assert await second.deliver_page() == 3
    assert await first.deliver_page() is None
    assert fleet.sink.first_versions() == {early.id: [2, 4, 5], late.id: [2, 4, 5]}
    assert len(fleet.sink.offered) == 6


async def test_who_stops_properly_lets_the_next_one_deliver_at_once(fleet: Fleet) -> None:
    await fleet.tell("early")
    fleet.tasks.start(fleet.member().keep_delivering(), "outbox")
    await fleet.all_noted()
    await fleet.stop()
    await fleet.tell("late")
    assert await fleet.member().deliver_page() == 3


async def test_who_slept_past_its_time_offers_nothing_more_and_moves_nothing(fleet: Fleet) -> None:
    """It slept while an event was under way: what the sink said to that counts for nobody."""
    operation = await fleet.tell("key-1")
    first, second = fleet.member(), fleet.member()
    asleep = True

    def answer(_: Delivery) -> int:
        if asleep:
            fleet.clock.moved_s += CURSOR_LEASE_S
        return 200

    fleet.sink.answer = answer
    assert await first.deliver_page() is None
    asleep = False
    assert [delivery.version for delivery in fleet.sink.offered] == [2]
    assert fleet.noted == 0
    assert await second.deliver_page() == 3
    assert [delivery.version for delivery in fleet.sink.offered] == [2, 2, 4, 5]
    assert fleet.sink.offered[0].body == fleet.sink.offered[1].body
    assert fleet.sink.first_versions() == {operation.id: [2, 4, 5]}


async def test_a_sink_that_is_down_for_longer_than_the_lease_does_not_lose_it(fleet: Fleet) -> None:
    await fleet.tell("key-1")
    await fleet.sink.stop()
    fleet.tasks.start(fleet.member(SHORT_S).keep_delivering(), "outbox")
    await until(lambda: len(fleet.telemetry.records) > 2)
    began = fleet.clock.boot()
    while fleet.clock.boot() < began + 3 * SHORT_S:
        assert await fleet.journal.take_cursor(CURSOR, "another's", 0.0) is None
        await asyncio.sleep(SHORT_S / 10)
    await fleet.sink.start()
    await fleet.all_noted()
    assert len(fleet.sink.taken) == 3


async def test_without_a_journal_it_delivers_for_as_long_as_it_may_and_then_asks_anew(fleet: Fleet) -> None:
    await fleet.tell("key-1")
    fleet.sink.answer = lambda _: 500
    fleet.tasks.start(fleet.member(SHORT_S).keep_delivering(), "outbox")
    await until(lambda: len(fleet.sink.offered) > 2)
    fleet.shared.silent = True
    fleet.clock.moved_s += SHORT_S
    await asyncio.sleep(0.05)
    offered = len(fleet.sink.offered)
    await asyncio.sleep(0.2)
    assert len(fleet.sink.offered) == offered
    fleet.shared.silent = False
    fleet.sink.answer = lambda _: 200
    await fleet.all_noted()
    assert len(fleet.sink.taken) == 3


async def test_a_token_whose_reply_was_lost_is_asked_with_again(fleet: Fleet) -> None:
    """Else its own lease would shut it out, and everybody with it."""
    await fleet.tell("key-1")
    outbox = fleet.member()
    taken = fleet.shared.take_cursor

    async def loses_reply(name: str, token: str, lease_s: float) -> int | None:
        await taken(name, token, lease_s)
        raise JournalUnavailable("the reply was lost")

    fleet.shared.take_cursor = loses_reply  # type: ignore[method-assign]
    with pytest.raises(JournalUnavailable):
        await outbox.deliver_page()
    fleet.shared.take_cursor = taken  # type: ignore[method-assign]
    assert await outbox.deliver_page() == 3
