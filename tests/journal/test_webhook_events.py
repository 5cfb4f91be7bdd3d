"""Notices: kept once, tried when they are due, woken by what they wait for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from paywitness.journal.base import Journal, StoredWebhookEvent, WebhookEventResult
from tests.journal.conftest import Store
from tests.journal.samples import HandClock


def notice(event_id: str = "evt_1", **changes: Any) -> StoredWebhookEvent:
    kept = StoredWebhookEvent(0, "acme", "", event_id, 1_700_000_000.0, b"sealed delivery", due_at=1_700_000_000.0)
    return replace(kept, **changes)


async def due(journal: Journal, limit: int = 100) -> tuple[StoredWebhookEvent, ...]:
    return await journal.due_webhook_events(limit=limit)


async def names(journal: Journal, limit: int = 100) -> list[str]:
    return [kept.event_id for kept in await due(journal, limit)]


async def test_a_notice_is_kept_as_it_came_under_a_number_of_its_own(store: Store) -> None:
    first = notice(account="eu", attempts=2, relay_due_at=1_600_000_000.0)
    assert await store.journal.store_webhook_event(first)
    assert await store.journal.store_webhook_event(notice("evt_2"))
    one, two = await due(await store.reopen())
    assert one == replace(first, number=one.number)
    assert 0 < one.number < two.number


@pytest.mark.parametrize("change", [{}, {"sealed": b"another"}, {"received_at": 1.0, "due_at": None}])
async def test_an_event_of_an_account_is_kept_once(store: Store, change: dict[str, Any]) -> None:
    assert await store.journal.store_webhook_event(notice())
    journal = await store.reopen()
    assert not await journal.store_webhook_event(notice(**change))
    (kept,) = await due(journal)
    assert kept.sealed == b"sealed delivery"


async def test_the_same_id_of_another_account_or_provider_is_another_event(journal: Journal) -> None:
    assert await journal.store_webhook_event(notice())
    assert await journal.store_webhook_event(notice(account="eu"))
    assert await journal.store_webhook_event(notice(provider="other"))


async def test_of_a_hundred_deliveries_of_one_event_exactly_one_is_new(journal: Journal) -> None:
    kept = await asyncio.gather(*(journal.store_webhook_event(notice()) for _ in range(100)))
    assert kept.count(True) == 1


async def test_it_is_due_at_its_time_longest_due_first_at_most_so_many(journal: Journal, clock: HandClock) -> None:
    now = clock.now()
    for name, after in (("later", 10.0), ("second", -1.0), ("first", -5.0), ("third", 0.0)):
        await journal.store_webhook_event(notice(name, due_at=now + after))
    await journal.store_webhook_event(notice("never", due_at=None, result=WebhookEventResult.APPLIED))
    assert await names(journal) == ["first", "second", "third"]
    assert await names(journal, limit=2) == ["first", "second"]
    clock.move(10)
    assert await names(journal) == ["first", "second", "third", "later"]


async def test_those_that_came_together_are_tried_in_the_order_they_came(journal: Journal) -> None:
    for number in range(5):
        await journal.store_webhook_event(notice(f"evt_{9 - number}"))
    assert await names(journal) == ["evt_9", "evt_8", "evt_7", "evt_6", "evt_5"]


async def test_what_is_applied_may_still_have_to_be_relayed(journal: Journal, clock: HandClock) -> None:
    now = clock.now()
    await journal.store_webhook_event(notice("both", due_at=now - 2, relay_due_at=now - 1))
    await journal.store_webhook_event(
        notice("relay", due_at=None, relay_due_at=now - 3, result=WebhookEventResult.APPLIED)
    )
    assert await names(journal) == ["relay", "both"]


async def test_moving_it_writes_how_it_stands_and_nothing_else(journal: Journal, clock: HandClock) -> None:
    await journal.store_webhook_event(notice())
    (kept,) = await due(journal)
    moved = replace(
        kept,
        result=WebhookEventResult.WAITING,
        operation_id="op_1",
        attempts=1,
        due_at=clock.now() + 5,
        relay_due_at=None,
    )
    await journal.update_webhook_event(replace(moved, sealed=b"another", event_id="another"))
    assert await due(journal) == ()
    clock.move(5)
    assert await due(journal) == (moved,)
    await journal.update_webhook_event(replace(moved, result=WebhookEventResult.APPLIED, due_at=None))
    assert await due(journal) == ()
    await journal.update_webhook_event(replace(moved, number=99))  # of nothing: nothing happens
    assert await due(journal) == ()
