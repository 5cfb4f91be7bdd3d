"""Who moves a cursor: one at a time, the next one when its time is over, and never one who has lost it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from paywitness.journal.base import Journal
from paywitness.journal.redis.journal import RedisJournal
from tests.journal.conftest import Store
from tests.journal.redis_server import RedisServer
from tests.journal.samples import LEASE_S, HandClock


async def test_one_holds_it_and_only_that_one_moves_it(journal: Journal) -> None:
    assert await journal.take_cursor("sink", "one", LEASE_S) == 0
    assert await journal.take_cursor("sink", "other", LEASE_S) is None
    assert await journal.move_cursor("sink", 7, "other") is False
    assert await journal.take_cursor("sink", "one", LEASE_S) == 0
    assert await journal.move_cursor("sink", 7, "one") is True
    assert await journal.take_cursor("sink", "one", LEASE_S) == 7


async def test_cursors_are_held_each_by_itself(journal: Journal) -> None:
    assert await journal.take_cursor("sink", "one", LEASE_S) == 0
    assert await journal.take_cursor("other", "other", LEASE_S) == 0
    assert await journal.move_cursor("other", 3, "one") is False


async def test_of_a_hundred_that_ask_at_once_one_has_it(journal: Journal) -> None:
    asked = (journal.take_cursor("sink", f"token-{number}", LEASE_S) for number in range(100))
    assert [come_to for come_to in await asyncio.gather(*asked) if come_to is not None] == [0]


async def test_who_holds_on_keeps_it(journal: Journal, clock: HandClock) -> None:
    for come_to in range(5):
        assert await journal.take_cursor("sink", "one", LEASE_S) == come_to
        assert await journal.move_cursor("sink", come_to + 1, "one") is True
        clock.move(LEASE_S - 1)
        assert await journal.take_cursor("sink", "other", LEASE_S) is None


async def test_the_next_one_goes_on_where_the_last_one_was(journal: Journal, clock: HandClock) -> None:
    await journal.take_cursor("sink", "one", LEASE_S)
    await journal.move_cursor("sink", 7, "one")
    clock.move(LEASE_S)
    assert await journal.take_cursor("sink", "other", LEASE_S) == 7
    assert await journal.move_cursor("sink", 9, "one") is False
    assert await journal.take_cursor("sink", "one", LEASE_S) is None
    assert await journal.take_cursor("sink", "other", LEASE_S) == 7
    assert await journal.move_cursor("sink", 8, "other") is True


async def test_who_slept_past_its_time_has_lost_it_even_where_nobody_came(journal: Journal, clock: HandClock) -> None:
    await journal.take_cursor("sink", "one", LEASE_S)
    clock.move(LEASE_S)
    assert await journal.move_cursor("sink", 7, "one") is False
    assert await journal.take_cursor("sink", "one", LEASE_S) is None
    assert await journal.take_cursor("sink", "a new one", LEASE_S) == 0


async def test_what_is_given_back_is_anybodys_at_once(journal: Journal) -> None:
    await journal.take_cursor("sink", "one", LEASE_S)
    assert await journal.take_cursor("sink", "other", 0.0) is None  # nobody gives back what is another's
    assert await journal.take_cursor("sink", "other", LEASE_S) is None
    assert await journal.take_cursor("sink", "one", 0.0) == 0
    assert await journal.move_cursor("sink", 7, "one") is False
    assert await journal.take_cursor("sink", "other", LEASE_S) == 0


async def test_it_never_goes_back(store: Store) -> None:
    journal = store.journal
    await journal.take_cursor("sink", "one", LEASE_S)
    await journal.move_cursor("sink", 10, "one")
    assert await journal.move_cursor("sink", 9, "one") is True
    await journal.move_cursor("sink", 3)
    journal = await store.reopen()
    assert await journal.take_cursor("sink", "one", LEASE_S) == 10


async def test_after_a_restart_it_is_the_fleets_or_nobodys(store: Store) -> None:
    """A journal that one process can hold does not wait for a reader that is gone with it."""
    await store.journal.take_cursor("sink", "one", LEASE_S)
    await store.journal.move_cursor("sink", 7, "one")
    journal = await store.reopen()
    assert await journal.take_cursor("sink", "other", LEASE_S) == (None if store.shared else 7)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """One of its own: it is restarted."""
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("how", ["failover", "restart"])
async def test_on_another_data_set_its_holder_has_lost_it(server: RedisServer, clock: HandClock, how: str) -> None:
    """Redis may have forgotten changes that were read, and given their numbers to others: a cursor moved over them
    would leave those out."""
    journal = await RedisJournal.open(server.url, clock=clock)
    assert await journal.take_cursor("sink", "one", LEASE_S) == 0
    assert await journal.take_cursor("sink", "one", LEASE_S) == 0
    if how == "failover":
        server.ask("REPLICAOF", "127.0.0.1", "1")
        server.ask("REPLICAOF", "NO", "ONE")
    else:
        server.stop()
        server.start()
    await journal.close()
    journal = await RedisJournal.open(server.url, clock=clock)
    assert await journal.move_cursor("sink", 7, "one") is False
    assert await journal.take_cursor("sink", "one", LEASE_S) is None
    assert await journal.take_cursor("sink", "other", LEASE_S) is None  # its holder may still be at work
    clock.move(LEASE_S)
    assert await journal.take_cursor("sink", "other", LEASE_S) == 0
    assert await journal.move_cursor("sink", 7, "other") is True
    await journal.close()
