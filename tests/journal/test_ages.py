"""What the journals keep for ages: the store's clocks, a row that is written over its version, and bounds on what a
clock that jumped may end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paywitness.core.ages import table_from_text
from paywitness.core.claim import ClaimVerdict
from paywitness.core.operation import State
from paywitness.journal.base import AGES_KEY, Journal, LedgerRow
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.journal.transitions import JournalTime
from tests.ages import ages_for
from tests.journal.conftest import Store
from tests.journal.earlier.fixture import Fixture, fixtures
from tests.journal.samples import LEASE_S, HandClock, asking, owned, read, succeeding
from tests.step_clock import StepClock

DAY_S = 86_400.0


async def test_the_clock_is_read_with_the_row_in_one_step(journal: Journal, clock: HandClock) -> None:
    told = await journal.read_clock()
    assert (told.at, told.raw_at, told.ages) == (clock.now(), clock.now(), None)
    row = LedgerRow(AGES_KEY, 1, '{"a":1}')
    assert await journal.write_ledger_rows((row,))
    assert not await journal.write_ledger_rows((row,))
    assert (await journal.read_clock()).ages == row


async def test_the_journals_time_goes_on_after_the_clock_was_set_back(journal: Journal, clock: HandClock) -> None:
    """M6: it stood still until the clock had caught up, and nothing was due for two days."""
    began_at = (await journal.read_clock()).at
    clock.move(-2 * DAY_S)
    told = await journal.read_clock()
    assert (told.at, told.raw_at) == (began_at, began_at - 2 * DAY_S)
    for _ in range(10):
        clock.move(10.0)
        told = await journal.read_clock()
    assert told.at == pytest.approx(began_at + 50.0, abs=0.01)
    clock.move(3 * DAY_S)
    told = await journal.read_clock()
    assert told.at == clock.now()  # it has caught up


def test_a_clock_that_caught_up_counts_again() -> None:
    clock = HandClock()
    time = JournalTime(clock)
    began_at = time.now()
    clock.move(-10.0)
    assert time.now() == began_at
    clock.move(8.0)
    assert time.now() == began_at + 4.0
    clock.move(7.0)
    assert time.now() == clock.now() == began_at + 5.0
    clock.move(5.0)
    assert time.now() == clock.now() == began_at + 10.0


class TestLeases:
    async def test_a_lease_that_ends_later_is_not_over(self, journal: Journal, clock: HandClock) -> None:
        """M19: the store's clock was set ahead, and the holder still sends."""
        operation = await owned(journal)
        sent_at = clock.now()
        clock.move(1200.0)
        assert await journal.expire_leases(over_at=sent_at + 5.0) == ()
        assert (await read(journal, operation)).state is State.SENDING
        (expired,) = await journal.expire_leases(over_at=sent_at + LEASE_S)
        assert expired.state is State.UNKNOWN

    async def test_neither_is_it_for_a_repeat(self, journal: Journal, clock: HandClock) -> None:
        await owned(journal)
        sent_at = clock.now()
        clock.move(1200.0)
        repeat = replace(asking(), token="another", leases_over_at=sent_at + 5.0)
        assert (await journal.claim(repeat)).verdict is ClaimVerdict.IN_FLIGHT
        assert (await journal.claim(replace(repeat, leases_over_at=sent_at + 31.0))).verdict is ClaimVerdict.IN_DOUBT

    async def test_whoever_held_a_file_before_is_gone_whatever_the_time(self, store: Store) -> None:
        await owned(store.journal)
        journal = await store.reopen()
        expired = await journal.expire_leases(all_of_earlier_holders=True, over_at=0.0)
        assert len(expired) == (0 if store.shared else 1)


async def test_m29_a_jump_of_thirty_days_retires_no_key(journal: Journal, clock: HandClock) -> None:
    operation = await journal.record(succeeding(await owned(journal)))
    ended_at = clock.now()
    clock.move(200 * DAY_S)
    assert await journal.retire(retention_s=30 * DAY_S, tombstone_s=90 * DAY_S, limit=10, now_max=ended_at + 60.0) == 0
    assert await read(journal, operation) == operation
    assert (await journal.claim(asking())).verdict is ClaimVerdict.REPLAY
    assert (
        await journal.retire(retention_s=30 * DAY_S, tombstone_s=90 * DAY_S, limit=10, now_max=ended_at + 31 * DAY_S)
        == 1
    )
    assert (await journal.claim(asking())).verdict is ClaimVerdict.EXPIRED
    assert (
        await journal.retire(retention_s=30 * DAY_S, tombstone_s=90 * DAY_S, limit=10, now_max=ended_at + 31 * DAY_S)
        == 0
    )


async def test_the_row_of_ages_is_never_forgotten(journal: Journal, clock: HandClock) -> None:
    await journal.write_ledger_rows((LedgerRow(AGES_KEY, 1, "{}"), LedgerRow("i:x", 1, "{}")))
    clock.move(500 * DAY_S)
    assert await journal.retire(retention_s=1.0, tombstone_s=1.0, limit=10, payments_s=400 * DAY_S) == 1
    assert (await journal.read_clock()).ages is not None


async def test_two_sidecars_count_the_same_minutes_once(store: Store) -> None:
    """N2, over every store: each of them reads and writes, and ten minutes are ten minutes."""
    first, second = (StepClock(store.clock, host) for host in ("a", "b"))
    fleet = [ages_for(store.journal, first), ages_for(store.journal, second)]
    for each in fleet:
        await each.count()
    sent_at = store.clock.now()
    for _ in range(300):
        store.clock.move(2.0)
        for clock in (first, second):
            clock.pass_s(2.0)
        for each in fleet:
            await each.count()
    for each in fleet:
        assert each.low_age_s(sent_at) == pytest.approx(600.0, abs=1.0)
        if store.shared:
            assert each.high_age_s(sent_at, "acme") == pytest.approx(600.0, abs=1.0)
    stored = (await store.journal.read_clock()).ages
    assert stored is not None
    assert sum(jump.low_s for jump in table_from_text(stored.text).jumps) == 0.0
    assert stored.version < 70  # one of them writes every ten seconds


async def test_one_that_starts_later_knows_of_an_earlier_jump(store: Store) -> None:
    clock = StepClock(store.clock, "a")
    first = ages_for(store.journal, clock)
    await first.count()
    sent_at = store.clock.now()
    clock.pass_s(2.0)
    store.clock.move(1202.0)
    await first.count()
    clock.pass_s(8.0)
    store.clock.move(8.0)
    second = ages_for(store.journal, StepClock(store.clock, "b"))
    await second.count()
    assert second.low_age_s(sent_at) <= 10.0
    assert second.high_age_s(sent_at, "acme") >= 1210.0 or not store.journal.shared


@pytest.mark.parametrize("fixture", fixtures("sqlite"), ids=lambda fixture: fixture.name)
async def test_operations_of_an_earlier_release_are_counted_from_the_upgrade(fixture: Fixture, tmp_path: Path) -> None:
    """Low from the upgrade on; high by the clocks."""
    earlier = fixture.unpack(tmp_path)
    clock = HandClock(earlier.leases_over_at + 40 * DAY_S)
    journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock)
    step = StepClock(clock, "a")
    ages = ages_for(journal, step)
    await ages.count()
    sent = await journal.read(earlier.of_key("unknown")["id"])
    assert sent is not None
    assert sent.first_sent_at is not None
    assert ages.low_age_s(sent.first_sent_at) == 0.0
    assert ages.high_age_s(sent.first_sent_at, "acme") >= 40 * DAY_S
    seconds = ages.journal_seconds(30 * DAY_S)
    assert seconds >= ages.now_max
    assert await journal.retire(retention_s=seconds, tombstone_s=seconds, limit=500, now_max=ages.now_max) == 0
    await journal.close()
