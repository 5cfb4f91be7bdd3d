"""What is due: taken by one, oldest first, never more than can be borne."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.errors import StaleWrite
from paywitness.core.lifecycle import Event, advance
from paywitness.core.operation import Lease, Operation, State
from paywitness.journal.base import Journal, LedgerRow, NextDue, OperationChange, StoredWebhookEvent
from tests.journal.conftest import Store
from tests.journal.samples import (
    LEASE_S,
    HandClock,
    acting,
    declining,
    doubting,
    owned,
    pending,
    read,
    succeeding,
    telling,
    touching,
)


async def due(journal: Journal, key: str, due_at: float | None, **changes: Any) -> Operation:
    doubted = doubting(await owned(journal, key, **changes))
    return await journal.record(replace(doubted, operation=replace(doubted.operation, due_at=due_at)))


def ids(operations: tuple[Operation, ...]) -> list[str]:
    return [operation.id for operation in operations]


async def test_what_is_taken_is_held_and_told_as_it_now_stands(journal: Journal, clock: HandClock) -> None:
    doubted = await due(journal, "key-1", clock.now())
    (held,) = await journal.take_due("resolver-1", LEASE_S, limit=10)
    assert held == replace(doubted, version=3, lease=Lease("resolver-1", clock.now() + LEASE_S))
    assert await read(journal, doubted) == held
    entry = (await journal.history(doubted.id))[-1]
    assert (entry.source, entry.note, entry.events, entry.announcement) == ("resolver", "lease taken", (), None)
    with pytest.raises(StaleWrite):
        await journal.record(succeeding(doubted))


async def test_longest_due_first_and_no_more_than_asked_for(journal: Journal, clock: HandClock) -> None:
    now = clock.now()
    kept = {at: await due(journal, f"key-{at}", now - at, provider=f"provider-{at % 2}") for at in (3, 1, 5, 0, 4)}
    first = await journal.take_due("a", LEASE_S, limit=2)
    second = await journal.take_due("a", LEASE_S, limit=2)
    third = await journal.take_due("a", LEASE_S, limit=2)
    assert [ids(taken) for taken in (first, second, third)] == [
        [kept[5].id, kept[4].id],
        [kept[3].id, kept[1].id],
        [kept[0].id],
    ]
    assert await journal.take_due("a", LEASE_S, limit=2) == ()


async def test_due_at_the_same_time_in_the_order_they_started(journal: Journal, clock: HandClock) -> None:
    kept = [await due(journal, f"key-{number}", clock.now()) for number in range(5)]
    taken = await journal.take_due("a", LEASE_S, limit=5)
    assert ids(taken) == [operation.id for operation in kept]


async def test_nothing_before_its_time(journal: Journal, clock: HandClock) -> None:
    await due(journal, "never", None)
    later = await due(journal, "later", clock.now() + 10)
    clock.move(9.9)
    assert await journal.take_due("a", LEASE_S, limit=10) == ()
    clock.move(0.1)
    assert ids(await journal.take_due("a", LEASE_S, limit=10)) == [later.id]


async def test_providers_that_are_full_are_passed_over(journal: Journal, clock: HandClock) -> None:
    now = clock.now()
    for number in range(20):
        await due(journal, f"full-{number}", now - 100, provider="full")
    others = [await due(journal, name, now - 1, provider=name) for name in ("a", "z")]
    assert ids(await journal.take_due("t", LEASE_S, limit=5, full=frozenset({"full", "nobody"}))) == [
        operation.id for operation in others
    ]
    assert len(await journal.take_due("t", LEASE_S, limit=50)) == 20


async def test_two_takers_share_nothing(journal: Journal, clock: HandClock) -> None:
    for number in range(60):
        await due(journal, f"key-{number}", clock.now() - number)
    takers = await asyncio.gather(*(journal.take_due(f"taker-{number}", LEASE_S, limit=7) for number in range(10)))
    taken = [operation.id for operations in takers for operation in operations]
    assert len(taken) == len(set(taken)) == 60
    for number, operations in enumerate(takers):
        assert {operation.lease.token for operation in operations if operation.lease} <= {f"taker-{number}"}


async def test_asked_again_with_the_same_token_it_takes_others(journal: Journal, clock: HandClock) -> None:
    for number in range(4):
        await due(journal, f"key-{number}", clock.now())
    first = await journal.take_due("same", LEASE_S, limit=2)
    second = await journal.take_due("same", LEASE_S, limit=2)
    assert not set(ids(first)) & set(ids(second))


async def test_what_was_taken_and_left_lying_is_due_again(journal: Journal, clock: HandClock) -> None:
    doubted = await due(journal, "key-1", clock.now())
    await journal.take_due("gone", LEASE_S, limit=1)
    clock.move(LEASE_S)
    await journal.expire_leases()
    (held,) = await journal.take_due("next", LEASE_S, limit=1)
    assert (held.id, held.version) == (doubted.id, 5)


async def test_every_open_state_that_nobody_sends_in_can_be_taken(journal: Journal, clock: HandClock) -> None:
    now = clock.now()
    waits = await journal.record(pending(await owned(journal, "pending"), due_at=now))
    asked = await journal.record(acting(await owned(journal, "action")))
    asked = await journal.record(touching(replace(asked, due_at=now)))
    parked = advance(await due(journal, "parked", None), Event.PARKED)
    parked = await journal.record(OperationChange(replace(parked, due_at=now), (Event.PARKED,)))
    taken = await journal.take_due("a", LEASE_S, limit=10)
    assert {operation.state for operation in taken} == {State.PENDING, State.REQUIRES_ACTION, State.REQUIRES_REVIEW}
    assert set(ids(taken)) == {waits.id, asked.id, parked.id}


async def test_what_has_ended_or_is_being_sent_is_not(journal: Journal, clock: HandClock) -> None:
    now = clock.now()
    for number, end in enumerate((succeeding, declining)):
        change = end(await owned(journal, f"key-{number}"))
        await journal.record(replace(change, operation=replace(change.operation, due_at=now)))
    sending = await owned(journal, "sending")
    await journal.record(touching(replace(sending, due_at=now)))
    assert await journal.take_due("a", LEASE_S, limit=10) == ()


async def test_it_is_due_after_a_restart(store: Store) -> None:
    doubted = await due(store.journal, "key-1", store.clock.now())
    journal = await store.reopen()
    assert ids(await journal.take_due("a", LEASE_S, limit=1)) == [doubted.id]


# --- What is due next


async def test_an_empty_journal_has_nothing_due(journal: Journal) -> None:
    assert (await journal.read_clock()).next_due == NextDue()


async def test_the_first_of_each_kind_is_told_with_the_clock(journal: Journal, clock: HandClock) -> None:
    now = clock.now()
    await due(journal, "key-1", now + 30.0)
    await due(journal, "key-2", now + 20.0)
    await due(journal, "key-3", now - 5.0, provider="other")
    await owned(journal, "key-4")
    event = StoredWebhookEvent(0, "acme", "", "evt-1", now, b"sealed", due_at=now + 9.0, relay_due_at=now + 7.0)
    assert await journal.store_webhook_event(event)
    assert await journal.write_ledger_rows((LedgerRow("p:1", 1, "{}", due_at=now + 60.0), LedgerRow("p:2", 1, "{}")))
    read = await journal.read_clock()
    found = read.next_due
    assert read.at == pytest.approx(now)
    assert found.operations == pytest.approx({"acme": now + 20.0, "other": now - 5.0})
    assert (found.lease, found.webhook_event, found.ledger_row) == pytest.approx((now + LEASE_S, now + 7.0, now + 60.0))


async def test_what_is_held_is_due_for_nobody_and_its_lease_ends(journal: Journal, clock: HandClock) -> None:
    await due(journal, "key-1", clock.now())
    await journal.take_due("resolver", LEASE_S, limit=10)
    found = (await journal.read_clock()).next_due
    assert found.operations == {}
    assert found.lease == pytest.approx(clock.now() + LEASE_S)


async def test_what_has_ended_is_due_no_more(journal: Journal) -> None:
    await journal.record(succeeding(await owned(journal)))
    found = (await journal.read_clock()).next_due
    assert (found.operations, found.lease) == ({}, math.inf)


async def test_a_change_that_tells_something_is_seen_in_the_last_number(journal: Journal) -> None:
    operation = await owned(journal)
    before = (await journal.read_clock()).next_due.announced_seq
    await journal.record(telling(operation, succeeding(operation)))
    (row,) = await journal.announcements(before, limit=10)
    assert (await journal.read_clock()).next_due.announced_seq == row.seq > before
