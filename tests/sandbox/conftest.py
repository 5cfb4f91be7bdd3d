"""A sandbox on a real socket, with little patience: it hangs for half a second, and is late by 50 ms."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.sandbox.webhook_receiver import SECRET, Receiver


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(SandboxOptions(hang_s=0.5, late_s=0.05)) as running:
        yield running


@pytest.fixture
async def make_sandbox():
    """Sandboxes with options of one's own, closed at the end of the test."""
    running: list[Sandbox] = []

    async def make(**options) -> Sandbox:
        made = Sandbox(SandboxOptions(**{"hang_s": 0.5, "late_s": 0.05, **options}))
        await made.start()
        running.append(made)
        return made

    yield make
    for made in running:
        await made.stop()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    listening = Receiver()
    await listening.start()
    yield listening
    await listening.stop()


@pytest.fixture
async def telling(receiver, make_sandbox) -> Sandbox:
    """A sandbox that tells the receiver."""
    return await make_sandbox(webhooks={"url": receiver.url, "secret": SECRET})
