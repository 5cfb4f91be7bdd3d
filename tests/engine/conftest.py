"""A running sandbox, and a world around it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.engine.world import World, make_world


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(SandboxOptions(hang_s=5.0, late_s=0.5)) as running:
        yield running


@pytest.fixture
async def world(sandbox: Sandbox) -> AsyncIterator[World]:
    built = await make_world(sandbox)
    yield built
    await close(built)


async def close(world: World) -> None:
    await world.engine.tasks.close(5.0)
    await world.engine.pipeline.sender.upstream.close()
    await world.journal.close()
