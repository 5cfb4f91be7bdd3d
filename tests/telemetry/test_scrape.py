"""What a scrape shows costs by what is open, never by what is journalled: counted in rows and keys, not in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from paywitness.clock import SystemClock
from paywitness.engine.durability.recovery import Recovery
from paywitness.journal.base import Journal
from paywitness.journal.redis.journal import RedisJournal
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.logs import LogWriter
from paywitness.telemetry.metrics import Metrics
from tests.ages import ages_for
from tests.journal.redis_server import RedisServer
from tests.journal.samples import doubting, owned, succeeding
from tests.telemetry.samples import ACME

OPEN, ENDED = 20, 2_000
Counting = Callable[[Callable[[], Awaitable[object]]], Awaitable[int]]
Counted = tuple[Journal, Counting]


async def pay(journal: Journal, first: int, count: int) -> None:
    async def one(number: int) -> None:
        await journal.record(succeeding(await owned(journal, f"paid-{number}")))

    await asyncio.gather(*(one(number) for number in range(first, first + count)))


async def sqlite(folder: Path) -> AsyncIterator[Counted]:
    """Counts steps of SQLite's machine: some ten for each row that it visits."""
    journal = await SqliteJournal.open(folder / "journal.db", clock=SystemClock())
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    async def counting(look: Callable[[], Awaitable[object]]) -> int:
        before = steps
        for connection in (journal._reader._connection, journal._writer._connection):
            connection.set_progress_handler(step, 1)
        await look()
        for connection in (journal._reader._connection, journal._writer._connection):
            connection.set_progress_handler(None, 0)
        return steps - before

    yield journal, counting
    await journal.close()


async def redis(folder: Path) -> AsyncIterator[Counted]:
    """Counts the keys that Redis looks up, and the bytes that it answers with."""
    server = RedisServer(folder)
    server.start()
    journal = await RedisJournal.open(server.url, call_timeout_s=10)

    def counted() -> int:
        told = server.info("stats")
        return sum(int(told[name]) for name in ("keyspace_hits", "keyspace_misses", "total_net_output_bytes"))

    async def counting(look: Callable[[], Awaitable[object]]) -> int:
        first, before = counted(), counted()
        await look()
        return counted() - before - (before - first)  # less what the counting itself costs

    yield journal, counting
    await journal.close()
    server.stop()


@pytest.fixture(params=[sqlite, redis])
async def counted(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Counted]:
    async for found in request.param(tmp_path):
        yield found


async def test_what_a_scrape_shows_reads_no_more_of_a_larger_journal(counted: Counted) -> None:
    journal, counting = counted
    clock = SystemClock()
    metrics = Metrics("1", clock.now)
    recovery = Recovery(
        journal,
        clock,
        Telemetry(metrics, LogWriter(logging.getLogger("paywitness.test"))),
        30.0,
        ages_for(journal, clock),
    )
    for number in range(OPEN):
        await journal.record(doubting(await owned(journal, f"open-{number}")))
    await pay(journal, 0, OPEN)
    await recovery._update_gauges()
    # The least of some: what a connection says of itself now and then is counted too.
    few = min([await counting(recovery._update_gauges) for _ in range(3)])
    await pay(journal, OPEN, ENDED)
    many = min([await counting(recovery._update_gauges) for _ in range(3)])
    assert few > OPEN
    assert many < few * 1.2  # ended ones come in by the thousand; not one of them is read
    in_journal = {"journal": journal.journal_id()[:8], **ACME}
    assert metrics.registry.get_sample_value("payment_operations_in_doubt", in_journal) == float(OPEN)


async def test_a_scrape_itself_asks_no_journal(counted: Counted) -> None:
    journal, counting = counted
    clock = SystemClock()
    metrics = Metrics("1", clock.now)
    await Recovery(
        journal,
        clock,
        Telemetry(metrics, LogWriter(logging.getLogger("paywitness.test"))),
        30.0,
        ages_for(journal, clock),
    )._update_gauges()
    await pay(journal, 0, OPEN)

    async def scrape() -> None:
        metrics.refresh_gauges()
        assert b"payment_operations_in_doubt" in generate_latest(metrics.registry)

    assert abs(await counting(scrape)) < OPEN
