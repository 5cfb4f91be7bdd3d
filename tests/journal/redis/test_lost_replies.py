"""Replies that are lost after the script ran: asked again, everything gives the same answer, nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from paywitness.core.claim import AliasKind, ClaimVerdict
from paywitness.core.errors import JournalUnavailable, StaleWrite
from paywitness.core.operation import State
from paywitness.journal.base import OperationQuery
from paywitness.journal.redis.journal import RedisJournal
from tests.journal.lossy_proxy import Lossy
from tests.journal.redis_server import RedisServer
from tests.journal.samples import (
    HandClock,
    asking,
    declining,
    falling_back,
    intent,
    owned,
    read,
    succeeding,
)


@pytest.fixture
async def lossy(redis_server: RedisServer) -> AsyncIterator[Lossy]:
    async with Lossy(redis_server.port) as lossy:
        yield lossy


@pytest.fixture
async def journal(lossy: Lossy, redis_url: str, redis_server: RedisServer) -> AsyncIterator[RedisJournal]:
    url = redis_url.replace(f":{redis_server.port}/", f":{lossy.port}/")
    journal = await RedisJournal.open(url, clock=HandClock())
    await journal.healthy()  # connected
    yield journal
    await journal.close()


async def test_a_claim_asked_again_with_its_token_is_owned_once(journal: RedisJournal, lossy: Lossy) -> None:
    request = asking(guard=intent())
    lossy.lose_reply()
    with pytest.raises(JournalUnavailable):
        await journal.claim(request)
    claim = await journal.claim(request)
    assert (claim.verdict, claim.operation) == (ClaimVerdict.OWNED, await read(journal, request.fresh))
    assert await journal.claim(request) == claim
    assert len(await journal.history(request.fresh.id)) == 1
    assert len(await journal.find_operations(OperationQuery())) == 1
    assert (await journal.claim(asking(guard=intent()))).verdict is ClaimVerdict.IN_FLIGHT


async def test_a_claim_that_never_came_is_owned_when_it_is_asked_again(journal: RedisJournal, lossy: Lossy) -> None:
    request = asking()
    lossy.lose_request()
    with pytest.raises(JournalUnavailable):
        await journal.claim(request)
    assert await journal.read(request.fresh.id) is None
    assert (await journal.claim(request)).verdict is ClaimVerdict.OWNED


async def test_a_later_generation_is_started_once(journal: RedisJournal, lossy: Lossy) -> None:
    """Its claim takes two scripts; the reply of either may be lost."""
    for lost in (1, 2):
        key = f"key-{lost}"
        await journal.record(declining(await owned(journal, key), released=True))
        request = asking(key)
        lossy.lose_reply(lost)
        with pytest.raises(JournalUnavailable):
            await journal.claim(request)
        claim = await journal.claim(request)
        assert claim.verdict is ClaimVerdict.OWNED
        assert claim.operation is not None
        assert (claim.operation.id, claim.operation.generation) == (request.fresh.id, 2)
        assert len(await journal.find_operations(OperationQuery(key=f"client-{key}"))) == 2


async def test_a_key_that_joined_has_joined(journal: RedisJournal, lossy: Lossy) -> None:
    first = await owned(journal, guard=intent())
    request = asking("key-2", guard=intent())
    lossy.lose_reply(2)
    with pytest.raises(JournalUnavailable):
        await journal.claim(request)
    claim = await journal.claim(request)
    assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.IN_FLIGHT, first, AliasKind.JOINED)


async def test_a_record_asked_again_is_stale_and_stands(journal: RedisJournal, lossy: Lossy) -> None:
    change = succeeding(await owned(journal))
    lossy.lose_reply()
    with pytest.raises(JournalUnavailable):
        await journal.record(change)
    with pytest.raises(StaleWrite):
        await journal.record(change)
    stands = await read(journal, change.operation)
    assert (stands.state, stands.version, stands.lease) == (State.SUCCEEDED, 2, None)
    assert len(await journal.history(stands.id)) == 2


async def test_a_fallback_is_both_or_neither_and_once(journal: RedisJournal, lossy: Lossy) -> None:
    change, request = falling_back(await owned(journal, guard=intent()))
    lossy.lose_reply(2)
    with pytest.raises(JournalUnavailable):
        await journal.fall_back(change, request)
    first, claim = await journal.fall_back(change, request)
    assert (first.state, claim.verdict) == (State.FAILED, ClaimVerdict.OWNED)
    assert len(await journal.find_operations(OperationQuery())) == 2


async def test_another_token_does_not_get_what_was_claimed(journal: RedisJournal, lossy: Lossy) -> None:
    request = asking()
    lossy.lose_reply()
    with pytest.raises(JournalUnavailable):
        await journal.claim(request)
    assert (await journal.claim(replace(request, token="another"))).verdict is ClaimVerdict.IN_FLIGHT


async def test_those_that_rode_with_it_are_asked_again_too(journal: RedisJournal, lossy: Lossy) -> None:
    """One pipeline, one reply lost: every one of them gives the same answer when it is asked again."""
    requests = [asking(f"key-{number}") for number in range(50)]
    lossy.lose_reply()
    lost = await asyncio.gather(*map(journal.claim, requests), return_exceptions=True)
    assert all(isinstance(result, JournalUnavailable) for result in lost)
    claims = await asyncio.gather(*map(journal.claim, requests))
    assert {claim.verdict for claim in claims} == {ClaimVerdict.OWNED}
    assert len(await journal.find_operations(OperationQuery(limit=100))) == 50
