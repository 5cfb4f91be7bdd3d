"""The journal's id: which journal it is that a sidecar counts in."""

from __future__ import annotations

from pathlib import Path

from paywitness.journal.sqlite.journal import SqliteJournal
from tests.journal.conftest import Store
from tests.journal.samples import HandClock


async def test_the_next_process_finds_the_same_journal(store: Store) -> None:
    first = store.journal.journal_id()
    assert len(first) >= 8
    assert set(first) <= set("0123456789abcdef")
    assert (await store.reopen()).journal_id() == first


async def test_two_files_are_two_journals(tmp_path: Path, clock: HandClock) -> None:
    journals = [await SqliteJournal.open(tmp_path / name, clock=clock) for name in ("one.db", "two.db")]
    assert journals[0].journal_id()[:8] != journals[1].journal_id()[:8]
    for journal in journals:
        await journal.close()
