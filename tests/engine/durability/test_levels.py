"""N7: a sidecar of an older level at a journal that was raised. It sends nothing, and says nothing that is false."""

from __future__ import annotations

import json

from paywitness.clock import SystemClock
from paywitness.core.levels import LEVEL, JournalLevel
from paywitness.core.operation import State
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import header, make_world, outcome, problem_type
from tests.journal.memory import MemoryJournal


async def test_a_refused_sidecar_sends_nothing_and_another_one_goes_on(sandbox: Sandbox) -> None:
    clock = SystemClock()
    shared = MemoryJournal(clock=clock, level=LEVEL - 1)
    shared._tables.level = JournalLevel(LEVEL - 1, 0.0)
    older = await make_world(sandbox, journal=shared)
    newer = await make_world(sandbox, journal=MemoryJournal(clock=clock, tables=shared._tables))
    assert outcome(await older.charge("before", order="order-1")) == "succeeded"
    await newer.journal.raise_level(LEVEL)
    refused = await older.charge("after", order="order-2")
    assert (refused.status_code, problem_type(refused), json.loads(refused.body)["sent"]) == (
        504,
        "journal-unavailable",
        False,
    )
    assert sandbox.ledger.effects(order="order-2") == 0
    assert outcome(await newer.charge("after", order="order-2")) == "succeeded"
    assert outcome(await newer.charge("before", order="order-1")) == "succeeded"
    assert (sandbox.ledger.effects(order="order-1"), sandbox.ledger.effects(order="order-2")) == (1, 1)
    await close(newer)
    await close(older)


async def test_what_it_had_under_way_is_not_lost(sandbox: Sandbox) -> None:
    """The level is raised while its response is on the way. It cannot record it: the operation is unknown after its
    lease, and the newer one resolves it."""
    clock = SystemClock()
    shared = MemoryJournal(clock=clock, level=LEVEL - 1)
    shared._tables.level = JournalLevel(LEVEL - 1, 0.0)
    older = await make_world(sandbox, journal=shared)
    newer = await make_world(sandbox, journal=MemoryJournal(clock=clock, tables=shared._tables))
    lost = await older.charge("key-1", fault="drop_after_commit", timeout_s=0.2)
    await newer.journal.raise_level(LEVEL)
    assert (await older.charge("key-1", timeout_s=0.3)).status_code == 504
    operation = await newer.journal.read(header(lost, "Paywitness-Operation") or "")
    assert operation is not None
    assert operation.state is State.UNKNOWN
    assert outcome(await newer.charge("key-1")) == "succeeded"
    assert sandbox.ledger.effects(order="order-1") == 1
    await close(newer)
    await close(older)
