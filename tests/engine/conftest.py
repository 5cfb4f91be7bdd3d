"""A running sandbox, and a world around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from paywitness.clock import SystemClock
from paywitness.journal.base import Journal
from paywitness.journal.redis.journal import RedisJournal
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.engine.world import World, make_world
from tests.journal.redis_server import RedisServer


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(SandboxOptions(hang_s=5.0, late_s=0.5)) as running:
        yield running


@pytest.fixture
async def world(sandbox: Sandbox) -> AsyncIterator[World]:
    built = await make_world(sandbox)
    yield built
    await close(built)


@pytest.fixture(scope="session")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "redis"])
async def stored_journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    """Each store that keeps real money. Whoever builds a world over it closes it."""
    if request.param == "sqlite":
        return await SqliteJournal.open(tmp_path / "journal.db", clock=SystemClock())
    server: RedisServer = request.getfixturevalue("running_redis")
    return await RedisJournal.open(f"{server.url}?prefix={tmp_path.name}:", clock=SystemClock())


@pytest.fixture
async def stored_world(sandbox: Sandbox, stored_journal: Journal) -> AsyncIterator[World]:
    """A world over each store that keeps real money."""
    built = await make_world(sandbox, journal=stored_journal)
    yield built
    await close(built)


async def close(world: World) -> None:
    await world.engine.tasks.close(5.0)
    await world.engine.pipeline.sender.upstream.close()
    await world.journal.close()
