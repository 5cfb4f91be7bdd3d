"""With replicas: a write before a send is acknowledged only when a replica has it, so that no failover forgets it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from paywitness.core.claim import ClaimVerdict
from paywitness.core.errors import JournalUnavailable, StaleWrite
from paywitness.journal.redis.journal import RedisJournal
from paywitness.redis.connection import ReplicationInfo, parse_replication_info
from paywitness.redis.pipeline import REPLICATION_CHECK_S
from tests.journal.redis_server import RedisServer
from tests.journal.samples import asking, doubting, owned, read, resending, succeeding, telling
from tests.journal.tcp_forwarder import Forwarder


def _wait_until_replicated(primary: RedisServer, replica: RedisServer) -> None:
    """Until it has everything, says so, and is done with what it does after its first sync."""
    until = time.monotonic() + 30
    for _ in range(2):
        primary.ask("SET", "marker", "1")
        while not _is_acknowledged(primary) or replica.info("persistence")["aof_rewrite_in_progress"] != "0":
            assert time.monotonic() < until, "the replica does not come online"
            time.sleep(0.05)


def _is_acknowledged(primary: RedisServer) -> bool:
    told = primary.info("replication")
    return f"state=online,offset={told['master_repl_offset']}," in told.get("slave0", "")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    with ExitStack() as stack:  # also if one of them does not come up
        primary = RedisServer(tmp_path / "primary", "--repl-diskless-sync-delay", "0")
        stack.callback(primary.kill)
        primary.start()
        replica = RedisServer(tmp_path / "replica", "--replicaof", f"127.0.0.1 {primary.port}")
        stack.callback(replica.kill)
        replica.start()
        _wait_until_replicated(primary, replica)
        yield primary, replica


@pytest.fixture
async def journal(servers: tuple[RedisServer, RedisServer]) -> AsyncIterator[RedisJournal]:
    journal = await RedisJournal.open(servers[0].url, call_timeout_s=2.0)
    yield journal
    await journal.close()


def test_only_replicas_that_have_all_are_counted() -> None:
    """One that is being filled may take minutes: waiting for it would refuse every payment meanwhile."""
    replicas = (
        "slave0:ip=a,port=1,state=online,offset=77,lag=0",
        "slave1:ip=b,port=1,state=send_bulk,offset=0,lag=0",
        "slave2:ip=c,port=1,state=online,offset=0,lag=1",
    )
    info = "\r\n".join(("# Replication", "role:master", "connected_slaves:3", *replicas, "master_replid:abc"))
    assert parse_replication_info(info.encode()) == ReplicationInfo(True, 1, "abc")


async def test_what_was_owned_or_is_under_way_survives_the_primary(
    servers: tuple[RedisServer, RedisServer], journal: RedisJournal
) -> None:
    primary, replica = servers
    requests = [asking(f"key-{number}") for number in range(50)]
    claims = await asyncio.gather(*map(journal.claim, requests))
    assert {claim.verdict for claim in claims} == {ClaimVerdict.OWNED}
    primary.kill()
    replica.ask("REPLICAOF", "NO", "ONE")
    after = await RedisJournal.open(replica.url)
    for claim in claims:
        assert claim.operation is not None
        assert await after.read(claim.operation.id) == claim.operation
    await after.close()


async def test_too_few_replicas_are_as_a_lost_reply(
    servers: tuple[RedisServer, RedisServer], journal: RedisJournal
) -> None:
    _, replica = servers
    ended = await journal.record(succeeding(await owned(journal, "ended")))
    request = asking()
    replica.freeze()
    try:
        for _ in range(2):  # asked again it is not owned either, for no replica has it yet
            with pytest.raises(JournalUnavailable, match="0 of 1 replicas"):
                await journal.claim(request)
        # What sends nothing does not wait for anybody.
        assert (await journal.claim(asking("ended"))).operation == ended
        assert (await journal.claim(asking())).verdict is ClaimVerdict.IN_FLIGHT
    finally:
        replica.thaw()
    assert (await journal.claim(request)).verdict is ClaimVerdict.OWNED


async def test_a_change_that_leaves_an_attempt_under_way_waits_too(
    servers: tuple[RedisServer, RedisServer], journal: RedisJournal
) -> None:
    _, replica = servers
    doubted = await journal.record(doubting(await owned(journal)))
    change = resending(doubted, "resolver")
    replica.freeze()
    try:
        for _ in range(2):  # stale by its own first write, which nobody may act upon yet
            with pytest.raises(JournalUnavailable, match="0 of 1 replicas"):
                await journal.record(change)
    finally:
        replica.thaw()
    with pytest.raises(StaleWrite):
        await journal.record(change)
    assert (await read(journal, doubted)).attempts == 2


async def test_once_seen_a_replica_is_waited_for_unless_the_operator_says_otherwise(
    servers: tuple[RedisServer, RedisServer], journal: RedisJournal
) -> None:
    """A primary that was cut off from its replicas would go on alone, and be forgotten."""
    primary, replica = servers
    await owned(journal)
    replica.kill()
    with pytest.raises(JournalUnavailable, match="0 of 1 replicas"):
        await journal.claim(asking("key-2"))
    alone = await RedisJournal.open(f"{primary.url}?replicas=0")
    assert (await alone.claim(asking("key-3"))).verdict is ClaimVerdict.OWNED
    await alone.close()


async def test_a_sidecar_that_starts_while_the_replica_is_cut_off_waits_for_it_too(
    servers: tuple[RedisServer, RedisServer], journal: RedisJournal
) -> None:
    """The journal remembers that it had replicas: the next process does not take the primary for one that is alone."""
    primary, replica = servers
    await owned(journal)
    replica.kill()
    await _until(lambda: primary.info("replication")["connected_slaves"] == "0")
    after = await RedisJournal.open(primary.url)
    with pytest.raises(JournalUnavailable, match="0 of 1 replicas"):
        await after.claim(asking("key-2"))
    await after.close()
    alone = await RedisJournal.open(f"{primary.url}?replicas=0")
    assert (await alone.claim(asking("key-3"))).verdict is ClaimVerdict.OWNED
    await alone.close()


async def test_one_that_was_idle_while_a_replica_came_and_went_waits_for_it_too(tmp_path: Path) -> None:
    """It has seen none itself, but others have, and told the journal."""
    primary = RedisServer(tmp_path / "primary", "--repl-diskless-sync-delay", "0")
    primary.start()
    idle = await RedisJournal.open(primary.url)
    await owned(idle)
    replica = RedisServer(tmp_path / "replica", "--replicaof", f"127.0.0.1 {primary.port}")
    replica.start()
    _wait_until_replicated(primary, replica)
    other = await RedisJournal.open(primary.url, call_timeout_s=2.0)
    await owned(other, "key-2")
    replica.kill()
    await _until(lambda: primary.info("replication")["connected_slaves"] == "0")
    request = asking("key-3")
    for _ in range(2):
        with pytest.raises(JournalUnavailable, match="0 of 1 replicas"):
            await idle.claim(request)
    for journal in (idle, other):
        await journal.close()
    primary.kill()


async def test_a_primary_that_never_had_one_is_alone(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "alone")
    server.start()
    for _ in range(2):
        journal = await RedisJournal.open(server.url)
        await owned(journal, f"key-{_}")
        assert journal.rolled_back_s() is None
        await journal.close()
    server.kill()


async def test_a_replica_that_was_promoted_may_have_forgotten_something(
    servers: tuple[RedisServer, RedisServer],
) -> None:
    primary, replica = servers
    journal = await RedisJournal.open(f"{primary.url}?replicas=0")
    await owned(journal)
    assert journal.rolled_back_s() is None
    await journal.close()
    _wait_until_replicated(primary, replica)
    primary.kill()
    replica.ask("REPLICAOF", "NO", "ONE")
    first = await RedisJournal.open(f"{replica.url}?replicas=0")
    second = await RedisJournal.open(f"{replica.url}?replicas=0")  # told by the journal, although the first noticed
    for after in (first, second):
        since_s = after.rolled_back_s()
        assert since_s is not None
        assert 0 <= since_s < 5
        await after.close()


async def test_a_redis_that_started_again_may_have_too_and_a_running_journal_notices(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "restarted")
    server.start()
    journal = await RedisJournal.open(server.url)
    operation = await owned(journal)
    told = await journal.record(telling(operation, succeeding(operation)))
    (first,) = await journal.announcements(0, limit=10)
    assert journal.rolled_back_s() is None
    server.kill()
    server.start()
    assert await journal.healthy() or await journal.healthy()  # on the connection that broke, and on the next
    assert journal.rolled_back_s() is not None
    # Who has read the feed up to a number that was given and forgotten misses nothing that is given later.
    operation = await owned(journal, "key-2")
    await journal.record(telling(operation, succeeding(operation)))
    _, second = await journal.announcements(0, limit=10)
    assert second.seq > first.seq + 100_000
    assert await read(journal, told) == told
    await journal.close()
    server.kill()


async def test_a_first_replica_changes_the_replication_id_and_forgets_nothing(tmp_path: Path) -> None:
    primary = RedisServer(tmp_path / "primary", "--repl-diskless-sync-delay", "0")
    primary.start()
    journal = await RedisJournal.open(primary.url)
    before = journal.replication_id
    replica = RedisServer(tmp_path / "replica", "--replicaof", f"127.0.0.1 {primary.port}")
    replica.start()
    _wait_until_replicated(primary, replica)
    await asyncio.sleep(REPLICATION_CHECK_S)
    assert await journal.healthy()
    assert journal.replication_id not in {"", before}
    assert journal.rolled_back_s() is None
    await journal.close()
    replica.kill()
    primary.kill()


async def test_reads_go_to_the_primary_that_writes_go_to(servers: tuple[RedisServer, RedisServer]) -> None:
    """The old primary may still answer, as it stood."""
    primary, replica = servers
    address = Forwarder(primary.port)
    journal = await RedisJournal.open(f"redis://127.0.0.1:{address.port}/0?replicas=0")
    operation = await owned(journal)
    assert await read(journal, operation) == operation  # both connections stand
    _wait_until_replicated(primary, replica)
    replica.ask("REPLICAOF", "NO", "ONE")
    address.lead_to(replica.port)
    primary.ask("CLIENT", "KILL", "ID", _id_of_writes(primary))
    with pytest.raises(JournalUnavailable):
        await journal.record(succeeding(operation))
    ended = await journal.record(succeeding(operation))
    assert await read(journal, operation) == ended
    await journal.close()
    address.close()


def _id_of_writes(server: RedisServer) -> str:
    """Of the journal's two connections, the one that claimed."""
    lines = server.ask("CLIENT", "LIST", "TYPE", "normal").decode().splitlines()
    (line,) = (line for line in lines if "cmd=evalsha" in line or "cmd=info" in line)
    return dict(part.split("=", 1) for part in line.split())["id"]


async def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_sentinels_lead_to_the_primary_and_after_a_failover_to_the_next(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    primary, _ = servers
    sentinel = RedisServer(tmp_path / "sentinel")
    sentinel.start_sentinel("payments", primary.port)
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/payments"
    journal = await RedisJournal.open(f"{url}?replicas=0")
    try:
        operation = await owned(journal)
        await asyncio.sleep(1.5)  # the replica has it, and the sentinel knows the replica
        primary.kill()
        for _ in range(60):
            try:
                ended = await journal.record(succeeding(operation))
                break
            except JournalUnavailable:
                await asyncio.sleep(0.5)
        assert await read(journal, operation) == ended
        with pytest.raises(JournalUnavailable, match="knows no other"):
            await RedisJournal.open(f"redis+sentinel://127.0.0.1:{sentinel.port}/other")
    finally:
        await journal.close()
        sentinel.kill()
