"""What a Redis does to its clients: forgets scripts, dies and comes back, refuses, hangs. Nothing acknowledged is lost,
and everything goes on by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from paywitness.clock import SystemClock
from paywitness.core.claim import ClaimRequest, ClaimVerdict
from paywitness.core.errors import JournalUnavailable
from paywitness.core.operation import Operation
from paywitness.journal.base import OperationQuery
from paywitness.journal.redis.journal import RedisJournal
from tests.journal.redis_server import RedisServer
from tests.journal.samples import asking, intent, owned, read, succeeding


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One that may be ill-treated."""
    server = RedisServer(tmp_path_factory.mktemp("own"), "--appendfsync", "always")  # a kill loses nothing
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def journal(own_server: RedisServer) -> AsyncIterator[RedisJournal]:
    own_server.ask("FLUSHALL")
    journal = await RedisJournal.open(own_server.url)
    yield journal
    await journal.close()


async def test_time_is_redis_own(journal: RedisJournal) -> None:
    before = SystemClock().now()
    claim = await journal.claim(asking())
    assert before - 1 < claim.now < SystemClock().now() + 1
    assert claim.operation is not None
    assert await read(journal, claim.operation) == claim.operation
    ended = await journal.record(succeeding(claim.operation))
    assert await read(journal, ended) == ended
    assert ended.updated_at >= claim.now


async def test_time_does_not_go_back_when_redis_clock_does(journal: RedisJournal, own_server: RedisServer) -> None:
    await journal.healthy()
    own_server.ask("SET", "paywitness:{j}:time", "4000000000.500000")
    claims = [await journal.claim(asking(f"key-{number}")) for number in range(2)]
    assert claims[0].now == 4_000_000_000.5
    assert 0.0 < claims[1].now - claims[0].now < 60.0  # at half the clock's pace, until the clock has caught up


async def test_scripts_that_redis_forgot_are_sent_again(journal: RedisJournal, own_server: RedisServer) -> None:
    operation = await owned(journal)
    own_server.ask("SCRIPT", "FLUSH")
    await journal.record(succeeding(operation))
    own_server.ask("SCRIPT", "FLUSH")
    claims = await asyncio.gather(*(journal.claim(asking(f"other-{number}")) for number in range(20)))
    assert {claim.verdict for claim in claims} == {ClaimVerdict.OWNED}
    assert len(await journal.history(operation.id)) == 2


async def test_nothing_that_was_acknowledged_is_lost_by_kill_9(journal: RedisJournal, own_server: RedisServer) -> None:
    # By `everysec` Redis holds back what follows a sync that takes long: on a busy disk a kill may lose it.
    assert own_server.ask("CONFIG", "SET", "appendfsync", "always") == b"+OK\r\n"
    acknowledged: dict[str, Operation] = {}
    enough = asyncio.Event()

    async def caller(name: int) -> None:
        for number in range(1000):
            try:
                operation = await owned(journal, f"key-{name}-{number}")
                acknowledged[operation.id] = operation
                ended = await journal.record(succeeding(operation))
                acknowledged[operation.id] = ended
                if len(acknowledged) > 100:
                    enough.set()
            except JournalUnavailable:
                return

    callers = [asyncio.ensure_future(caller(name)) for name in range(8)]
    await enough.wait()
    await asyncio.to_thread(own_server.kill)
    await asyncio.gather(*callers)
    assert not await journal.healthy()
    await asyncio.to_thread(own_server.start)
    assert await journal.healthy()  # by itself, its scripts forgotten
    for operation in acknowledged.values():
        found = await read(journal, operation)
        assert found.version >= operation.version
        assert found.version > operation.version or found == operation


async def test_through_a_restart_every_key_is_owned_by_one(journal: RedisJournal, own_server: RedisServer) -> None:
    """Four claimers of each key, at two sidecars, each asking again with its token until it is answered."""
    other = await RedisJournal.open(own_server.url)
    requests = [asking(f"key-{number % 100}", guard=intent(f"intent-{number % 50}")) for number in range(400)]
    owners: dict[str, list[str]] = {}
    answered = asyncio.Event()

    async def claim(number: int, request: ClaimRequest) -> None:
        sidecar = (journal, other)[number % 2]
        for _ in range(500):
            try:
                claimed = await sidecar.claim(request)
                break
            except JournalUnavailable:
                await asyncio.sleep(0.02)
        if claimed.verdict is ClaimVerdict.OWNED:
            assert claimed.operation is not None
            owners.setdefault(claimed.operation.key, []).append(request.token)
        if len(owners) > 5:
            answered.set()

    async def claim_some(first: int) -> None:
        for number in range(first, len(requests), 20):
            await claim(number, requests[number])

    claimers = [asyncio.ensure_future(claim_some(first)) for first in range(20)]
    await answered.wait()
    await asyncio.to_thread(own_server.kill)
    await asyncio.to_thread(own_server.start)
    await asyncio.gather(*claimers)
    assert all(len(tokens) == 1 for tokens in owners.values())
    operations = await journal.find_operations(OperationQuery(limit=500))
    assert len(operations) == len(owners) == 50  # one of each intent
    assert {operation.lease.token for operation in operations if operation.lease} == {
        token for tokens in owners.values() for token in tokens
    }
    await other.close()


async def test_a_primary_that_became_a_replica_takes_nothing_and_is_left(
    journal: RedisJournal, own_server: RedisServer
) -> None:
    await owned(journal)
    own_server.ask("REPLICAOF", "127.0.0.1", "1")
    try:
        for _ in range(2):  # on the connection that stood, and on the next
            with pytest.raises(JournalUnavailable, match="replica"):
                await journal.claim(asking("key-2"))
        assert not await journal.healthy()
    finally:
        own_server.ask("REPLICAOF", "NO", "ONE")
    assert (await journal.claim(asking("key-2"))).verdict is ClaimVerdict.OWNED


async def test_full_memory_takes_nothing_half(journal: RedisJournal, own_server: RedisServer) -> None:
    operation = await owned(journal)
    own_server.ask("CONFIG", "SET", "maxmemory", "1mb")
    try:
        with pytest.raises(JournalUnavailable, match="memory is full"):
            await journal.record(succeeding(operation))
    finally:
        own_server.ask("CONFIG", "SET", "maxmemory", "0")
    assert await journal.find_operations(OperationQuery()) == (operation,)
    await journal.record(succeeding(operation))


async def test_min_replicas_to_write_is_told_in_words(journal: RedisJournal, own_server: RedisServer) -> None:
    own_server.ask("CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        with pytest.raises(JournalUnavailable, match="too few replicas"):
            await journal.claim(asking())
    finally:
        own_server.ask("CONFIG", "SET", "min-replicas-to-write", "0")


async def test_a_redis_that_hangs_is_told_of_within_a_second_or_so(
    journal: RedisJournal, own_server: RedisServer
) -> None:
    await owned(journal)
    own_server.freeze()
    try:
        began = time.monotonic()
        results = await asyncio.gather(
            *(journal.claim(asking(f"key-{number}")) for number in range(20)),
            journal.read("op_1"),
            return_exceptions=True,
        )
        assert all(isinstance(result, JournalUnavailable) for result in results)
        assert not await journal.healthy()
        assert time.monotonic() - began < 10  # one after the other they would take 22
    finally:
        own_server.thaw()
    assert (await journal.claim(asking("another"))).verdict is ClaimVerdict.OWNED


async def test_what_waits_for_a_redis_that_is_gone_is_bounded_in_time(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "gone")
    server.start()
    journal = await RedisJournal.open(server.url)
    server.kill()
    began = time.monotonic()
    with pytest.raises(JournalUnavailable):
        await journal.claim(asking())
    assert time.monotonic() - began < 10
    await journal.close()
    with pytest.raises(JournalUnavailable):
        await RedisJournal.open(server.url)


async def test_one_calls_error_is_not_the_others(journal: RedisJournal, own_server: RedisServer) -> None:
    """A value of the wrong kind under one operation: the calls that ride with it are answered."""
    own_server.ask("SET", "paywitness:{j}:o:op_bad", "not a hash")
    bad = journal.claim(asking("bad", id="op_bad"))
    good = [journal.claim(asking(f"key-{number}")) for number in range(10)]
    first, *others = await asyncio.gather(bad, *good, return_exceptions=True)
    assert isinstance(first, JournalUnavailable)
    assert [getattr(claim, "verdict", claim) for claim in others] == [ClaimVerdict.OWNED] * 10
