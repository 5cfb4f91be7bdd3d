"""The stores that the suite runs over. A further one adds itself to `_STORES`, and every test holds for it too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.journal.base import Journal
from proxy.journal.memory import MemoryJournal
from proxy.journal.sqlite import SqliteJournal
from tests.journal.sample import HandClock


@dataclass
class Store:
    """A journal and how the next process would find it."""

    journal: Journal
    clock: HandClock
    _reopen: Callable[[Journal], Awaitable[Journal]]

    async def reopen(self) -> Journal:
        self.journal = await self._reopen(self.journal)
        return self.journal


async def _sqlite(directory: Path, clock: HandClock) -> Store:
    async def reopen(journal: Journal) -> Journal:
        await journal.close()
        return await SqliteJournal.open(directory / "journal.db", clock=clock)

    return Store(await SqliteJournal.open(directory / "journal.db", clock=clock), clock, reopen)


async def _memory(_: Path, clock: HandClock) -> Store:
    async def reopen(journal: Journal) -> Journal:
        assert isinstance(journal, MemoryJournal)
        return journal.reopened(clock)

    return Store(MemoryJournal(clock=clock), clock, reopen)


_STORES = {"sqlite": _sqlite, "memory": _memory}


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=sorted(_STORES))
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> AsyncIterator[Store]:
    store = await _STORES[request.param](tmp_path, clock)
    yield store
    await store.journal.close()


@pytest.fixture
def journal(store: Store) -> Journal:
    return store.journal
