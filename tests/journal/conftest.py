"""The stores that the suite runs over. A further one adds itself to `_STORES`, and every test holds for it too."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from paywitness.journal.base import Journal
from paywitness.journal.redis.journal import RedisJournal
from paywitness.journal.sqlite.journal import SqliteJournal
from tests.journal.memory import MemoryJournal
from tests.journal.redis_server import RedisServer
from tests.journal.samples import HandClock

_PATIENCE_S = 10.0  # of a call, on a machine that has much else to do; `redis/test_server_failures.py` has the real one


@dataclass
class Store:
    """A journal and how the next process would find it."""

    journal: Journal
    clock: HandClock
    _reopen: Callable[[Journal], Awaitable[Journal]]
    shared: bool = False  # others may hold it at the same time

    async def reopen(self) -> Journal:
        self.journal = await self._reopen(self.journal)
        return self.journal


async def _sqlite(directory: Path, clock: HandClock, _: pytest.FixtureRequest) -> Store:
    async def reopen(journal: Journal) -> Journal:
        await journal.close()
        return await SqliteJournal.open(directory / "journal.db", clock=clock)

    return Store(await SqliteJournal.open(directory / "journal.db", clock=clock), clock, reopen)


async def _memory(_: Path, clock: HandClock, __: pytest.FixtureRequest) -> Store:
    async def reopen(journal: Journal) -> Journal:
        assert isinstance(journal, MemoryJournal)
        return journal.reopened(clock)

    return Store(MemoryJournal(clock=clock), clock, reopen)


async def _redis(_: Path, clock: HandClock, request: pytest.FixtureRequest) -> Store:
    url: str = request.getfixturevalue("redis_url")

    async def reopen(journal: Journal) -> Journal:
        await journal.close()
        return await RedisJournal.open(url, clock=clock, call_timeout_s=_PATIENCE_S)

    return Store(await RedisJournal.open(url, clock=clock, call_timeout_s=_PATIENCE_S), clock, reopen, shared=True)


_STORES = {"sqlite": _sqlite, "memory": _memory, "redis": _redis}
_prefixes = itertools.count(1)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests of this worker."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """A journal of its own for each test."""
    return f"{redis_server.url}?prefix=test-{next(_prefixes)}:"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=sorted(_STORES))
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> AsyncIterator[Store]:
    store = await _STORES[request.param](tmp_path, clock, request)
    yield store
    await store.journal.close()


@pytest.fixture
def journal(store: Store) -> Journal:
    return store.journal
