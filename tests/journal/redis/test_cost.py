"""What the Redis journal costs: round trips of a call, memory of an operation that ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from paywitness.journal.base import OperationChange
from paywitness.journal.redis.journal import RedisJournal
from tests.journal.cost import RESPONSE_BYTES, requests
from tests.journal.redis_server import RedisServer
from tests.journal.samples import LEASE_S, asking, intent, owned, succeeding, telling, waiting

OPERATIONS = 1_000


@pytest.fixture
async def journal(redis_url: str) -> AsyncIterator[RedisJournal]:
    journal = await RedisJournal.open(redis_url, call_timeout_s=10)
    yield journal
    await journal.close()


@pytest.mark.parametrize("guard", [None, intent()])
async def test_a_clean_call_is_two_scripts(journal: RedisJournal, redis_server: RedisServer, guard: object) -> None:
    await journal.healthy()
    scripts, calls, trips = _scripts(redis_server), journal.calls, journal.round_trips
    operation = await owned(journal, guard=guard)
    await journal.record(succeeding(operation, accepted_credential=True))
    assert _scripts(redis_server) - scripts == 2
    assert (journal.calls - calls, journal.round_trips - trips) == (2, 2)


async def test_each_further_attempt_is_one_more_and_a_replay_is_one(
    journal: RedisJournal, redis_server: RedisServer
) -> None:
    operation = await journal.record(waiting(await owned(journal)))
    scripts = _scripts(redis_server)
    await journal.record(OperationChange(operation, (), lease_s=LEASE_S))
    assert _scripts(redis_server) - scripts == 1
    ended = await journal.record(succeeding(await owned(journal, "ended")))
    scripts = _scripts(redis_server)
    assert (await journal.claim(asking("ended"))).operation == ended
    assert _scripts(redis_server) - scripts == 1


async def test_calls_at_once_ride_together(journal: RedisJournal) -> None:
    await journal.healthy()
    trips = journal.round_trips
    operations = await asyncio.gather(*(owned(journal, f"key-{number}") for number in range(100)))
    await asyncio.gather(*(journal.record(succeeding(operation)) for operation in operations))
    assert journal.round_trips - trips <= 6


async def test_memory_of_an_operation_that_ended(
    journal: RedisJournal, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async def call(number: int) -> None:
        (request,) = requests(number, 1)
        claim = await journal.claim(request)
        assert claim.operation is not None
        change = replace(succeeding(claim.operation), sealed_response=b"p" * RESPONSE_BYTES)
        await journal.record(telling(claim.operation, change))

    await call(0)
    before = int(redis_server.info("memory")["used_memory_dataset"])
    await asyncio.gather(*(call(number) for number in range(1, OPERATIONS + 1)))
    each = (int(redis_server.info("memory")["used_memory_dataset"]) - before) / OPERATIONS
    with capsys.disabled():
        print(f"\nan ended operation takes {each:.0f} bytes of Redis, {RESPONSE_BYTES} of them the kept response")
    assert each < 6_000


def _scripts(server: RedisServer) -> int:
    """Scripts that Redis was asked to run so far, by its own count."""
    told = server.info("commandstats")
    runs = (told.get(f"cmdstat_{name}", "calls=0") for name in ("evalsha", "eval"))
    return sum(int(run.split(",")[0].removeprefix("calls=")) for run in runs)
