"""A SQLite journal that lost its log, or was put back from an older copy: noticed before anything is claimed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from paywitness.core.claim import ClaimVerdict
from paywitness.core.errors import JournalUnavailable
from paywitness.journal.sqlite.journal import SqliteJournal
from tests.journal.samples import HandClock, asking, owned, succeeding


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


async def test_a_log_that_was_removed_while_it_was_open_loses_nothing(path: Path, clock: HandClock) -> None:
    journal = await SqliteJournal.open(path, clock=clock)
    await journal.record(succeeding(await owned(journal)))
    path.with_name("journal.db-wal").unlink()
    await journal.record(succeeding(await owned(journal, "key-2")))
    copy = path.with_name("after-the-kill.db")
    shutil.copy(path, copy)  # what a process that is killed now leaves behind: the file, and no log
    found = await SqliteJournal.open(copy, clock=clock)
    for key in ("key-1", "key-2"):
        assert (await found.claim(asking(key))).verdict is ClaimVerdict.REPLAY
    assert journal.rolled_back_s() is None
    await found.close()
    await journal.close()


async def test_an_older_copy_that_is_put_back_is_noticed_at_the_start(path: Path, clock: HandClock) -> None:
    journal = await SqliteJournal.open(path, clock=clock)
    await owned(journal)
    await journal.close()
    shutil.copy(path, path.with_name("old.db"))
    journal = await SqliteJournal.open(path, clock=clock)
    assert journal.rolled_back_s() is None
    await owned(journal, "key-2")
    await journal.close()
    shutil.copy(path.with_name("old.db"), path)
    journal = await SqliteJournal.open(path, clock=clock)
    since_s = journal.rolled_back_s()
    assert since_s is not None
    assert since_s < 5
    assert journal.can_roll_back
    await journal.close()
    clock.move(20)
    again = await SqliteJournal.open(path, clock=clock)  # the next start still knows how long ago that was
    since_s = again.rolled_back_s()
    assert since_s is not None
    assert 20 <= since_s < 25
    await again.close()


async def test_a_log_that_was_removed_before_the_start_is_noticed(path: Path, clock: HandClock) -> None:
    journal = await SqliteJournal.open(path, clock=clock)
    await owned(journal)
    killed = path.with_name("killed")
    killed.mkdir()
    for name in ("journal.db", "journal.db.mark"):  # as a kill leaves it, and a clean-up job its log
        shutil.copy(path.with_name(name), killed / name)
    found = await SqliteJournal.open(killed / "journal.db", clock=clock)
    assert found.rolled_back_s() is not None
    await found.close()
    await journal.close()


async def test_another_journal_in_its_place_is_noticed(path: Path, clock: HandClock) -> None:
    await (await SqliteJournal.open(path, clock=clock)).close()
    os.unlink(path)
    journal = await SqliteJournal.open(path, clock=clock)
    assert journal.rolled_back_s() is not None
    await journal.close()


async def test_a_file_that_is_replaced_while_it_is_open_takes_no_claim(path: Path, clock: HandClock) -> None:
    journal = await SqliteJournal.open(path, clock=clock)
    await owned(journal)
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)
    with pytest.raises(JournalUnavailable, match="was moved or deleted"):
        await journal.claim(asking("key-2"))
    await journal.close()
