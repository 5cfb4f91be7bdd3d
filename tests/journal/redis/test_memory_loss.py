"""A Redis that loses its keys, or gets older ones back, and stays the same Redis: noticed before a claim returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from paywitness.core.claim import ClaimVerdict
from paywitness.core.operation import State
from paywitness.journal.redis.journal import RedisJournal
from tests.journal.redis_rollback import Backup
from tests.journal.redis_server import RedisServer
from tests.journal.samples import asking, owned, succeeding

Lose = Callable[[RedisServer], None]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def journal(server: RedisServer) -> AsyncIterator[RedisJournal]:
    journal = await RedisJournal.open(server.url)
    yield journal
    await journal.close()


def flush_all(server: RedisServer) -> None:
    server.ask("FLUSHALL")


def flush_database(server: RedisServer) -> None:
    server.ask("FLUSHDB")


@pytest.mark.parametrize("lose", [flush_all, flush_database])
async def test_lost_keys_are_noticed_by_the_next_claim_itself(
    server: RedisServer, journal: RedisJournal, lose: Lose
) -> None:
    await journal.record(succeeding(await owned(journal)))
    assert journal.rolled_back_s() is None
    lose(server)
    trips = journal.round_trips
    claim = await journal.claim(asking())
    assert claim.verdict is ClaimVerdict.OWNED
    since_s = journal.rolled_back_s()
    assert since_s is not None
    assert since_s < 10
    assert journal.round_trips == trips + 2  # the step that noticed, and the same step again


async def test_older_keys_that_are_put_back_are_noticed(server: RedisServer, journal: RedisJournal) -> None:
    await owned(journal)
    backup = Backup(server)
    await owned(journal, "key-2")
    backup.restore()
    await journal.claim(asking("key-2"))
    assert journal.rolled_back_s() is not None


async def test_every_sidecar_notices_and_one_that_starts_afterwards_too(
    server: RedisServer, journal: RedisJournal
) -> None:
    other = await RedisJournal.open(server.url)
    await owned(other)
    server.ask("FLUSHALL")
    assert await journal.healthy()
    assert journal.rolled_back_s() is not None
    assert other.rolled_back_s() is None
    await other.claim(asking())
    assert other.rolled_back_s() is not None
    third = await RedisJournal.open(server.url)
    assert third.rolled_back_s() is not None
    await other.close()
    await third.close()


async def test_sidecars_agree_on_the_journals_id_also_after_it_lost_its_keys(
    server: RedisServer, journal: RedisJournal
) -> None:
    """Else what one journal holds would be counted once for each of its sidecars."""
    other = await RedisJournal.open(server.url)
    before = journal.journal_id()
    assert other.journal_id() == before
    server.ask("FLUSHALL")
    assert await journal.healthy()
    await other.healthy()
    assert other.journal_id() == journal.journal_id()
    await other.close()


async def test_a_start_remembers_what_the_journal_was(server: RedisServer, tmp_path: Path) -> None:
    mark_path = tmp_path / "home" / "journal-mark"
    first = await RedisJournal.open(server.url, mark_path=mark_path)
    await owned(first)
    await first.close()
    again = await RedisJournal.open(server.url, mark_path=mark_path)
    assert again.rolled_back_s() is None
    await again.close()
    server.ask("FLUSHALL")
    after = await RedisJournal.open(server.url, mark_path=mark_path)
    assert after.rolled_back_s() is not None
    await after.close()


async def test_a_start_notices_that_the_journal_is_older_than_it_knew(server: RedisServer, tmp_path: Path) -> None:
    mark_path = tmp_path / "journal-mark"
    first = await RedisJournal.open(server.url, mark_path=mark_path)
    await owned(first)
    backup = Backup(server)
    await owned(first, "key-2")
    await first.close()
    backup.restore()
    after = await RedisJournal.open(server.url, mark_path=mark_path)
    assert after.rolled_back_s() is not None
    await after.close()


@pytest.mark.parametrize("content", ["", "nonsense", "another abc 1", "\x00"])
async def test_a_mark_that_says_nothing_of_this_journal_is_ignored(
    server: RedisServer, tmp_path: Path, content: str
) -> None:
    mark_path = tmp_path / "journal-mark"
    mark_path.write_text(content)
    journal = await RedisJournal.open(server.url, mark_path=mark_path)
    assert journal.rolled_back_s() is None
    await journal.close()


async def test_what_was_lost_is_noticed_once(server: RedisServer, journal: RedisJournal) -> None:
    await owned(journal)
    server.ask("FLUSHALL")
    first = await owned(journal)
    calls = journal.calls
    ended = await journal.record(succeeding(first))
    assert ended.state is State.SUCCEEDED
    assert journal.calls == calls + 1
