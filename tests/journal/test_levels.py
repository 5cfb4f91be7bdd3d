"""N7: two releases at one journal. What the older one cannot keep begins when the level is raised; from then on the
journal refuses it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paywitness.core.claim import ClaimVerdict
from paywitness.core.errors import JournalLevelError, JournalUnavailable, JournalUnusable
from paywitness.core.levels import LEVEL, JournalLevel
from paywitness.engine.durability.levels import Levels
from paywitness.journal.base import Journal
from paywitness.journal.redis.journal import RedisJournal
from paywitness.journal.sqlite.journal import SqliteJournal
from tests.ages import ages_for
from tests.journal.conftest import Store
from tests.journal.earlier.fixture import Fixture, fixtures
from tests.journal.memory import MemoryJournal
from tests.journal.redis_server import RedisServer
from tests.journal.samples import HandClock, asking, owned, read, succeeding
from tests.step_clock import StepClock

LEASE_S = 30.0


@pytest.fixture(params=["memory", "redis"])
async def pair(request: pytest.FixtureRequest, clock: HandClock) -> tuple[Journal, Journal]:
    """One journal, held by a sidecar of the level before and by one of ours, which came later."""
    if request.param == "memory":
        older = MemoryJournal(clock=clock, level=LEVEL - 1)
        older._tables.level = JournalLevel(LEVEL - 1, 0.0)
        return older, MemoryJournal(clock=clock, tables=older._tables)
    url = request.getfixturevalue("redis_url")
    return (
        await RedisJournal.open(url, clock=clock, level=LEVEL - 1),
        await RedisJournal.open(url, clock=clock),
    )


async def test_a_new_journal_starts_at_the_newest_level(journal: Journal) -> None:
    assert await journal.level() == JournalLevel(LEVEL, 0.0)


async def test_two_releases_share_a_journal_until_its_level_is_raised(
    pair: tuple[Journal, Journal], clock: HandClock
) -> None:
    older, newer = pair
    assert (await newer.level()).level == LEVEL - 1
    operation = await owned(older, "key-1")
    assert (await newer.claim(asking("key-1"))).verdict is ClaimVerdict.IN_FLIGHT
    clock.move(5.0)
    assert await newer.raise_level(LEVEL) == JournalLevel(LEVEL, clock.now())
    assert await older.level() == await newer.level()
    for refused in (older.claim(asking("key-2")), older.claim(asking("key-1")), older.record(succeeding(operation))):
        with pytest.raises(JournalLevelError):
            await refused
    assert issubclass(JournalLevelError, JournalUnavailable)  # so nothing is sent, and evidence waits in the spool
    assert await read(newer, operation) == operation
    assert (await newer.claim(asking("key-2"))).verdict is ClaimVerdict.OWNED
    await newer.record(succeeding(operation))
    for each in pair:
        await each.close()


async def test_a_level_is_never_lowered(journal: Journal) -> None:
    assert (await journal.raise_level(LEVEL - 1)).level == LEVEL
    assert (await journal.level()).level == LEVEL


async def test_a_file_that_is_higher_is_refused_in_words(tmp_path: Path, clock: HandClock) -> None:
    """SQLite has one process: it raises the level when it opens the file."""
    path = tmp_path / "journal.db"
    older = await SqliteJournal.open(path, clock=clock, level=LEVEL)
    await owned(older)
    await older.close()
    clock.move(9.0)
    newer = await SqliteJournal.open(path, clock=clock, level=LEVEL + 1)
    assert await newer.level() == JournalLevel(LEVEL + 1, clock.now())
    await newer.close()
    with pytest.raises(JournalUnusable, match="run the newer release"):
        await SqliteJournal.open(path, clock=clock)
    again = await SqliteJournal.open(path, clock=clock, level=LEVEL + 1)
    assert await again.level() == JournalLevel(LEVEL + 1, clock.now())
    await again.close()


@pytest.mark.parametrize("fixture", fixtures(), ids=lambda fixture: fixture.name)
async def test_a_journal_of_a_release_without_levels_is_at_the_first_one(fixture: Fixture, tmp_path: Path) -> None:
    fixture.unpack(tmp_path)
    if fixture.journal == "sqlite":
        clock = HandClock(4_000_000_000.0)
        journal: Journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock)
        assert await journal.level() == JournalLevel(LEVEL, clock.now())
        await journal.close()
        return
    redis = RedisServer(tmp_path / "redis")
    redis.folder.mkdir()
    os.rename(tmp_path / "appendonly.aof", redis.folder / "appendonly.aof")
    redis.start()
    journal = await RedisJournal.open(redis.url)
    try:
        assert (await journal.level()).level == 1
        raised = await journal.raise_level(LEVEL)
        assert (raised.level, raised.raised_at > 0.0) == (LEVEL, True)
    finally:
        await journal.close()
        redis.stop()


async def sidecars(pair: tuple[Journal, Journal], clock: HandClock) -> tuple[tuple[Levels, Levels], StepClock]:
    step = StepClock(clock, "a")
    made = []
    for journal, name, level in zip(pair, ("old", "new"), (LEVEL - 1, LEVEL), strict=True):
        ages = ages_for(journal, step)
        await ages.count()
        made.append((Levels(journal, step, ages, LEASE_S, name=name, release=name, level=level), ages))
    return (made[0][0], made[1][0]), step


async def test_it_is_raised_by_itself_once_no_older_one_has_lived_for_ten_leases(
    pair: tuple[Journal, Journal], clock: HandClock
) -> None:
    (old, new), step = await sidecars(pair, clock)
    await new.announce()

    async def pass_s(seconds: float, *living: Levels) -> None:
        for _ in range(int(seconds / 15.0)):
            clock.move(15.0)
            step.pass_s(15.0)
            for each in living:
                await each._ages.count()
                await each.announce()

    await pass_s(600.0, old, new)
    assert new.journal_level == JournalLevel(LEVEL - 1, 0.0)
    assert new.older_lives
    assert new.fleet is not None
    assert [(one.name, one.level) for one in new.fleet.sidecars] == [("new", LEVEL), ("old", LEVEL - 1)]
    assert new.limits_from > "op_ZZZZ"  # limits only warn
    await pass_s(270.0, new)
    assert new.journal_level.level == LEVEL - 1
    await pass_s(60.0, new)
    assert new.journal_level is not None
    assert (new.journal_level.level, new.older_lives, new.raises_in_s) == (LEVEL, False, None)
    assert "op_" < new.limits_from < "op_ZZZZ"  # for payments that were made since
    with pytest.raises(JournalLevelError):
        await pair[0].claim(asking("late"))
    for each in pair:
        await each.close()


async def test_a_jump_of_the_clock_does_not_raise_it(pair: tuple[Journal, Journal], clock: HandClock) -> None:
    (_, new), step = await sidecars(pair, clock)
    await new.announce()
    clock.move(86_400.0)
    step.pass_s(2.0)
    await new._ages.count()
    await new.announce()
    assert new.journal_level == JournalLevel(LEVEL - 1, 0.0)
    for each in pair:
        await each.close()


async def test_a_payment_of_a_release_that_announces_nothing_is_noticed(
    pair: tuple[Journal, Journal], clock: HandClock
) -> None:
    (_, new), step = await sidecars(pair, clock)
    await new.announce()
    for _ in range(15):
        clock.move(15.0)
        step.pass_s(15.0)
    await owned(pair[0], "of-an-older-one")  # without a payment, as 0.1 writes it
    await new._ages.count()
    await new.announce()
    assert new.older_lives
    assert new.fleet is not None
    assert new.fleet.older_at == clock.now()
    for each in pair:
        await each.close()


async def test_the_fleet_is_never_forgotten(store: Store) -> None:
    ages = ages_for(store.journal, StepClock(store.clock, "a"))
    await ages.count()
    await Levels(store.journal, StepClock(store.clock, "a"), ages, LEASE_S, name="one", release="1").announce()
    store.clock.move(500 * 86_400.0)
    assert await store.journal.retire(retention_s=1.0, tombstone_s=1.0, limit=10, payments_s=1.0) == 0
