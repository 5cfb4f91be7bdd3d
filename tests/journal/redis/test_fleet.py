"""Two sidecars on one Redis: one brain, one winner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from paywitness.core.claim import AliasKind, ClaimRequest, ClaimVerdict
from paywitness.core.operation import State
from paywitness.journal.base import StoredWebhookEvent
from paywitness.journal.redis.journal import RedisJournal
from tests.journal.samples import (
    FINGERPRINT,
    LEASE_S,
    HandClock,
    asking,
    declining,
    doubting,
    intent,
    owned,
    read,
    succeeding,
    telling,
    unheard,
)

Pair = tuple[RedisJournal, RedisJournal]


@pytest.fixture
async def pair(redis_url: str, clock: HandClock) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        journals = []
        for _ in range(2):
            journal = await RedisJournal.open(redis_url, clock=clock, call_timeout_s=10)
            stack.push_async_callback(journal.close)
            journals.append(journal)
        yield journals[0], journals[1]


async def race(pair: Pair, request: Callable[[int], ClaimRequest]) -> list[ClaimVerdict]:
    claims = await asyncio.gather(*(pair[number % 2].claim(request(number)) for number in range(100)))
    return [claim.verdict for claim in claims]


async def test_of_a_hundred_claims_of_one_key_exactly_one_is_owned(pair: Pair) -> None:
    verdicts = await race(pair, lambda _: asking())
    assert (verdicts.count(ClaimVerdict.OWNED), verdicts.count(ClaimVerdict.IN_FLIGHT)) == (1, 99)


async def test_of_a_hundred_claims_of_one_intent_exactly_one_is_owned(pair: Pair) -> None:
    verdicts = await race(pair, lambda number: asking(f"key-{number}", guard=intent()))
    assert (verdicts.count(ClaimVerdict.OWNED), verdicts.count(ClaimVerdict.IN_FLIGHT)) == (1, 99)


async def test_of_a_hundred_claims_after_a_released_end_exactly_one_starts(pair: Pair) -> None:
    await pair[0].record(declining(await owned(pair[0]), released=True))
    verdicts = await race(pair, lambda _: asking())
    assert (verdicts.count(ClaimVerdict.OWNED), verdicts.count(ClaimVerdict.IN_FLIGHT)) == (1, 99)


async def test_of_a_hundred_fresh_keys_exactly_one_takes_an_unheard_answer(pair: Pair) -> None:
    await pair[0].record(unheard(succeeding(await owned(pair[0], guard=FINGERPRINT))))
    requests = [asking(f"other-{number}", guard=FINGERPRINT) for number in range(100)]
    claims = await asyncio.gather(*(pair[number % 2].claim(request) for number, request in enumerate(requests)))
    assert [claim.alias for claim in claims].count(AliasKind.TAKEN) == 1


async def test_a_dead_holders_operation_is_ended_once_by_whoever_sweeps(pair: Pair, clock: HandClock) -> None:
    for number in range(150):
        await owned(pair[0], f"key-{number}")
    clock.move(LEASE_S)
    swept = await asyncio.gather(*(journal.expire_leases() for journal in pair))
    ids = [operation.id for operations in swept for operation in operations]
    assert len(ids) == len(set(ids)) == 150


async def test_what_is_due_is_taken_by_one_of_them(pair: Pair, clock: HandClock) -> None:
    for number in range(40):
        doubted = doubting(await owned(pair[0], f"key-{number}"))
        await pair[0].record(replace(doubted, operation=doubted.operation.changed(due_at=clock.now())))
    taken = await asyncio.gather(*(journal.take_due("me", LEASE_S, limit=30) for journal in pair))
    ids = [operation.id for operations in taken for operation in operations]
    assert len(ids) == len(set(ids)) == 40


async def test_one_sidecar_ends_what_the_other_started_and_both_know(pair: Pair) -> None:
    operation = await owned(pair[0])
    ended = await pair[1].record(succeeding(operation))
    assert await read(pair[0], operation) == ended
    claim = await pair[0].claim(asking())
    assert (claim.verdict, claim.operation, claim.sealed_response) == (ClaimVerdict.REPLAY, ended, b"sealed response")
    assert ended.state is State.SUCCEEDED


async def test_a_notice_that_one_is_at_is_not_given_to_the_other(pair: Pair, clock: HandClock) -> None:
    now = clock.now()
    for name in ("one", "two", "three"):
        await pair[0].store_webhook_event(StoredWebhookEvent(0, "acme", "", name, now, b"sealed", due_at=now))
    (first,) = await pair[0].due_webhook_events(limit=1)
    others = await pair[1].due_webhook_events(limit=10)
    assert [notice.event_id for notice in others] == ["two", "three"]
    assert await pair[0].due_webhook_events(limit=10) == (first,)
    clock.move(31)  # whoever was at them is gone
    assert len(await pair[1].due_webhook_events(limit=10)) == 3


async def test_a_notice_that_was_moved_is_anybodys_when_it_is_due_again(pair: Pair, clock: HandClock) -> None:
    now = clock.now()
    await pair[0].store_webhook_event(StoredWebhookEvent(0, "acme", "", "one", now, b"sealed", due_at=now))
    (notice,) = await pair[0].due_webhook_events(limit=1)
    await pair[0].update_webhook_event(notice)
    assert await pair[1].due_webhook_events(limit=1) == (notice,)


async def test_numbers_told_rise_in_the_order_they_were_written(pair: Pair) -> None:
    async def tell(journal: RedisJournal, name: str) -> None:
        for number in range(25):
            operation = await owned(journal, f"{name}-{number}")
            await journal.record(telling(operation, succeeding(operation)))

    await asyncio.gather(tell(pair[0], "one"), tell(pair[1], "other"))
    rows = await pair[0].announcements(0, limit=1000)
    assert [row.seq for row in rows] == list(range(1, 51))
