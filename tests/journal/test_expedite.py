"""What is asked sooner when a provider is back: all of it, one after the other, and nobody's write is lost over it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.lifecycle import Event, advance
from paywitness.core.operation import Operation
from paywitness.journal.base import Journal, OperationChange
from tests.journal.conftest import Store
from tests.journal.samples import (
    LEASE_S,
    HandClock,
    acting,
    doubting,
    holding,
    owned,
    pending,
    read,
    succeeding,
    touching,
)

WITHIN_S = 10.0


async def doubted(journal: Journal, key: str, due_at: float | None, **changes: Any) -> Operation:
    change = doubting(await owned(journal, key, **changes))
    return await journal.record(replace(change, operation=replace(change.operation, due_at=due_at)))


async def due_of(journal: Journal, *operations: Operation) -> list[float | None]:
    return [(await read(journal, operation)).due_at for operation in operations]


async def test_what_waits_is_due_within_the_time_one_after_the_other(journal: Journal, clock: HandClock) -> None:
    now = clock.now()
    kept = [await doubted(journal, f"key-{after}", now + after) for after in (400, 100, 300, 200)]
    assert await journal.expedite("acme", within_s=WITHIN_S, limit=10) == 4
    assert await due_of(journal, *kept) == [now + 7.5, now, now + 5, now + 2.5]
    taken = await journal.take_due("resolver", LEASE_S, limit=10)
    assert [operation.id for operation in taken] == [kept[1].id]
    clock.move(5)
    taken = await journal.take_due("resolver", LEASE_S, limit=10)
    assert [operation.id for operation in taken] == [kept[3].id, kept[2].id]


async def test_what_is_pending_is_asked_sooner_too(journal: Journal, clock: HandClock) -> None:
    waits = await journal.record(pending(await owned(journal), due_at=clock.now() + 3600))
    assert await journal.expedite("acme", within_s=WITHIN_S, limit=10) == 1
    assert await due_of(journal, waits) == [clock.now()]


async def test_nothing_else_changes(store: Store) -> None:
    journal, now = store.journal, store.clock.now()
    kept = await doubted(journal, "key-1", now + 100.123456, reference='a, "quoted" [reference]')
    history = await journal.history(kept.id)
    await journal.expedite("acme", within_s=WITHIN_S, limit=10)
    journal = await store.reopen()
    assert await read(journal, kept) == replace(kept, due_at=now)
    assert await journal.history(kept.id) == history


async def test_none_is_later_than_it_was(journal: Journal, clock: HandClock) -> None:
    now = clock.now()
    afters = (-5, 0, 1, 2, 10, 11, 100)
    kept = [await doubted(journal, f"key-{after}", now + after) for after in afters]
    assert await journal.expedite("acme", within_s=WITHIN_S, limit=10) == 2
    assert await due_of(journal, *kept) == [now - 5, now, now + 1, now + 2, now + 10, now + 6, now + 8]


async def test_only_what_waits_for_the_next_look(journal: Journal, clock: HandClock) -> None:
    """Not what waits for the customer or a person, is held, is being sent, or has ended."""
    later = clock.now() + 3600
    asked = await journal.record(acting(await owned(journal, "action")))
    asked = await journal.record(touching(replace(asked, due_at=later)))
    parked = advance(await doubted(journal, "parked", None), Event.PARKED)
    parked = await journal.record(OperationChange(replace(parked, due_at=later), (Event.PARKED,)))
    held = await journal.record(holding(await doubted(journal, "held", later), "resolver"))
    sending = await journal.record(touching(replace(await owned(journal, "sending"), due_at=later)))
    change = succeeding(await owned(journal, "ended"))
    ended = await journal.record(replace(change, operation=replace(change.operation, due_at=later)))
    never = await doubted(journal, "never", None)
    other = await doubted(journal, "other", later, provider="other")
    kept = (asked, parked, held, sending, ended, never, other)
    assert await journal.expedite("acme", within_s=WITHIN_S, limit=10) == 0
    assert [await read(journal, operation) for operation in kept] == list(kept)
    assert await journal.expedite("nobody", within_s=WITHIN_S, limit=10) == 0


async def test_what_may_not_be_hastened_does_not_hide_what_may(journal: Journal, clock: HandClock) -> None:
    for number in range(9):
        asked = await journal.record(acting(await owned(journal, f"action-{number}")))
        await journal.record(touching(replace(asked, due_at=clock.now() + 60)))
    kept = await doubted(journal, "key-1", clock.now() + 3600)
    assert await journal.expedite("acme", within_s=WITHIN_S, limit=1) == 1
    assert await due_of(journal, kept) == [clock.now()]


@pytest.mark.parametrize("limit", [0, 2])
async def test_no_more_than_asked_for_and_the_earliest_first(journal: Journal, clock: HandClock, limit: int) -> None:
    now = clock.now()
    kept = [await doubted(journal, f"key-{after}", now + after) for after in (300, 100, 200)]
    assert await journal.expedite("acme", within_s=WITHIN_S, limit=limit) == limit
    assert await due_of(journal, *kept) == ([now + 300, now, now + 5] if limit else [now + 300, now + 100, now + 200])


async def test_several_that_ask_at_once_ask_for_no_more_than_one(journal: Journal, clock: HandClock) -> None:
    now = clock.now()
    for number in range(60):
        await doubted(journal, f"key-{number}", now + 1000 + number)
    counts = await asyncio.gather(*(journal.expedite("acme", within_s=WITHIN_S, limit=20) for _ in range(10)))
    assert counts[0] == 20
    assert sum(counts) <= 20 + 9  # one for each that has come due meanwhile
    assert len(await journal.take_due("resolver", LEASE_S, limit=60)) <= 10
    few = await doubted(journal, "few", now + 1000, provider="few")
    counts = await asyncio.gather(*(journal.expedite("few", within_s=WITHIN_S, limit=20) for _ in range(10)))
    assert sum(counts) == 1
    assert await due_of(journal, few) == [now]


async def test_who_read_it_before_can_still_write(journal: Journal, clock: HandClock) -> None:
    """A webhook's evidence must not be refused because somebody meant to ask sooner."""
    kept = await doubted(journal, "key-1", clock.now() + 100)
    another = await doubted(journal, "key-2", clock.now() + 100)
    third = await doubted(journal, "key-3", clock.now() + 100)
    assert await journal.expedite("acme", within_s=WITHIN_S, limit=10) == 3
    ended = await journal.record(succeeding(kept))
    touched = await journal.record(touching(another))
    held = await journal.record(holding(third, "resolver"))
    assert [await read(journal, operation) for operation in (kept, another, third)] == [ended, touched, held]
    clock.move(WITHIN_S)
    assert await journal.take_due("resolver", LEASE_S, limit=10) == ()  # what was written last is what is true
    clock.move(100 - WITHIN_S)
    assert [operation.id for operation in await journal.take_due("a", LEASE_S, limit=10)] == [another.id]
