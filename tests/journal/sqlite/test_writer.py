"""The embedded journal's writer: what comes together is committed together, and nobody suffers for another's fault."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from paywitness.core.claim import Claim, ClaimVerdict
from paywitness.core.errors import JournalUnavailable
from paywitness.core.operation import Operation, State
from paywitness.core.result import ResultClass
from paywitness.journal.base import OperationQuery
from paywitness.journal.sqlite import journal as journal_module
from paywitness.journal.sqlite.journal import SqliteJournal
from tests.journal.samples import HandClock, asking, doubting, owned, succeeding, summary


@pytest.fixture
async def journal(tmp_path: Path, clock: HandClock) -> AsyncIterator[SqliteJournal]:
    journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock)
    yield journal
    await journal.close()


class Held:
    """The writer's thread, held up until it is let go: so that calls come together, or wait."""

    def __init__(self, journal: SqliteJournal) -> None:
        self._go = threading.Event()
        self._reached = threading.Event()
        self._waits = journal._write_worker.submit(self._wait, None)

    def _wait(self, _: None) -> None:
        self._reached.set()
        self._go.wait(60)

    async def reached(self) -> None:
        await asyncio.to_thread(self._reached.wait, 60)

    async def let_go(self) -> None:
        self._go.set()
        await self._waits


async def together(journal: SqliteJournal, *calls: Any) -> list[Any]:
    """The calls, all of them waiting when the writer turns to them."""
    held = Held(journal)
    await held.reached()
    waiting = asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(0)
    await held.let_go()
    return await waiting


async def test_what_waits_together_is_one_commit(journal: SqliteJournal) -> None:
    before = journal.commits
    claims = await together(journal, *(journal.claim(asking(f"key-{number}")) for number in range(200)))
    assert {claim.verdict for claim in claims} == {ClaimVerdict.OWNED}
    assert journal.commits - before == 2  # one held the writer up, one took them all


async def test_no_more_than_a_batch_is_one_commit(journal: SqliteJournal) -> None:
    before = journal.commits
    await together(journal, *(journal.claim(asking(f"key-{number}")) for number in range(600)))
    assert journal.commits - before == 1 + 3  # of 256


async def test_a_thousand_clean_calls_at_once_take_far_fewer_commits(journal: SqliteJournal) -> None:
    async def clean_call(number: int) -> Operation:
        return await journal.record(succeeding(await owned(journal, f"key-{number}")))

    before = journal.commits
    await asyncio.gather(*(clean_call(number) for number in range(1000)))
    assert journal.commits - before < 100


class TestOneFaultAmongMany:
    """A call that fails half-way is undone whole; those that came with it are not."""

    @pytest.mark.parametrize(
        ("spoil", "error"),
        [
            (lambda request: replace(request, sealed_request=object()), JournalUnavailable),  # cannot be bound
            (lambda request: replace(request, fresh=replace(request.fresh, provider=None)), JournalUnavailable),
            (lambda request: replace(request, fresh=replace(request.fresh, client_key="\ud800")), UnicodeEncodeError),
            (lambda request: replace(request, fresh=replace(request.fresh, doubt=None)), TypeError),
        ],
        ids=["binding", "constraint", "surrogate", "python"],
    )
    async def test_a_claim(self, journal: SqliteJournal, spoil: Callable[[Any], Any], error: type[Exception]) -> None:
        results = await together(
            journal,
            journal.claim(asking("key-1")),
            journal.claim(spoil(asking("key-2"))),
            journal.claim(asking("key-3")),
        )
        first, spoilt, third = results
        assert isinstance(spoilt, error)
        assert (first.verdict, third.verdict) == (ClaimVerdict.OWNED, ClaimVerdict.OWNED)
        assert {operation.key for operation in await journal.find_operations(OperationQuery())} == {"key-1", "key-3"}

    async def test_a_record_whose_second_statement_fails(self, journal: SqliteJournal) -> None:
        first, second = await owned(journal, "key-1"), await owned(journal, "key-2")
        change = succeeding(second)
        attempt = replace(summary(ResultClass.SUCCEEDED), detail=cast(str, object()))  # not JSON: it cannot be told
        spoilt = replace(change, attempt=attempt)
        results = await together(journal, journal.record(succeeding(first)), journal.record(spoilt))
        assert isinstance(results[0], Operation)
        assert isinstance(results[1], TypeError)
        assert await journal.read(second.id) == second
        assert (await journal.record(change)).version == 2

    async def test_a_stale_write_needs_no_second_try(self, journal: SqliteJournal) -> None:
        operation = await owned(journal)
        before = journal.commits
        await together(journal, *(journal.record(doubting(operation)) for _ in range(5)))
        assert journal.commits - before == 2

    async def test_a_credential_of_an_undone_record_is_written_the_next_time(
        self, journal: SqliteJournal, tmp_path: Path, clock: HandClock
    ) -> None:
        """What was rolled back must not be remembered as known: it would never be written."""
        await journal.record(succeeding(await owned(journal, "key-1", credential="credential-1")))
        change = succeeding(await owned(journal, "key-2", credential="credential-2"), accepted_credential=True)
        results = await together(journal, journal.record(change), _failing_disk(journal))
        assert all(isinstance(result, JournalUnavailable) for result in results)
        assert await journal.healthy()  # the next commit is somebody else's
        await journal.record(change)
        await journal.close()
        journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock)
        assert (await journal.claim(asking("key-1", credential="credential-2"))).credential_accepted
        await journal.close()


async def _failing_disk(journal: SqliteJournal) -> None:
    def fail(_: None) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    await journal._write_worker.submit(fail, None)


class TestBounds:
    @staticmethod
    async def held_up(journal: SqliteJournal) -> Held:
        """The writer held up, and nobody patient: what is asked from now on is given up soon."""
        journal._write_worker._call_timeout_s = 0.05
        held = Held(journal)
        await held.reached()
        return held

    async def test_a_call_is_given_up_after_its_time(self, journal: SqliteJournal) -> None:
        held = await self.held_up(journal)
        with pytest.raises(JournalUnavailable, match=r"did not answer in 0.05 s"):
            await journal.claim(asking())
        assert not await journal.healthy()
        with pytest.raises(JournalUnavailable):
            await held.let_go()

    @pytest.mark.slow
    async def test_a_record_that_was_given_up_is_still_written(
        self, journal: SqliteJournal, tmp_path: Path, clock: HandClock
    ) -> None:
        """It holds evidence."""
        operation = await owned(journal)
        held = await self.held_up(journal)
        with pytest.raises(JournalUnavailable):
            await journal.record(succeeding(operation))
        assert await self.after_letting_go(held, journal, tmp_path, clock) == [State.SUCCEEDED]

    async def test_a_claim_that_was_given_up_before_its_turn_is_not_written(
        self, journal: SqliteJournal, tmp_path: Path, clock: HandClock
    ) -> None:
        """Its caller was told that nothing is sent; a record of it would be a doubt about nothing."""
        held = await self.held_up(journal)
        with pytest.raises(JournalUnavailable):
            await journal.claim(asking())
        assert await self.after_letting_go(held, journal, tmp_path, clock) == []

    async def after_letting_go(
        self, held: Held, journal: SqliteJournal, tmp_path: Path, clock: HandClock
    ) -> list[State]:
        with pytest.raises(JournalUnavailable):
            await held.let_go()
        await journal.close()
        journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock)
        states = [operation.state for operation in await journal.find_operations(OperationQuery())]
        await journal.close()
        return states

    async def test_a_claim_whose_caller_left_before_its_turn_is_not_written(self, journal: SqliteJournal) -> None:
        held = Held(journal)
        await held.reached()
        request = asking()
        claim = asyncio.ensure_future(journal.claim(request))
        await asyncio.sleep(0)
        claim.cancel()
        await asyncio.wait([claim])
        await held.let_go()
        assert await journal.read(request.fresh.id) is None

    async def test_a_full_queue_refuses_at_once(self, tmp_path: Path, clock: HandClock) -> None:
        journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock, waiting_max=10)
        held = Held(journal)
        await held.reached()
        waiting = [asyncio.ensure_future(journal.claim(asking(f"key-{number}"))) for number in range(10)]
        await asyncio.sleep(0)
        with pytest.raises(JournalUnavailable, match="10 calls wait"):
            await journal.claim(asking("one too many"))
        await held.let_go()
        claims: list[Claim] = await asyncio.gather(*waiting)
        assert {claim.verdict for claim in claims} == {ClaimVerdict.OWNED}
        await journal.close()

    async def test_a_read_that_takes_too_long_is_ended(self, journal: SqliteJournal) -> None:
        journal._read_worker._call_timeout_s = 0.2
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
        connection = journal._reader._connection
        with pytest.raises(JournalUnavailable):
            await journal._read_worker.submit(lambda _: connection.execute(endless).fetchone(), None)
        for _ in range(50):  # the thread needs a moment to notice
            try:
                assert await journal.read("op_1") is None
                break
            except JournalUnavailable:
                continue
        else:
            pytest.fail("the reader did not come back")


class TestBrokenConnection:
    async def test_the_writer_opens_another_one(self, journal: SqliteJournal) -> None:
        known = await owned(journal)
        journal._writer._connection.close()
        with pytest.raises(JournalUnavailable):
            await journal.claim(asking("key-2"))
        assert (await journal.claim(asking("key-2"))).verdict is ClaimVerdict.OWNED
        assert (await journal.record(doubting(known))).version == 2

    async def test_never_an_empty_file_in_place_of_a_lost_one(self, journal: SqliteJournal, tmp_path: Path) -> None:
        """An empty journal would know no payment, and own every claim."""
        await owned(journal)
        (tmp_path / "journal.db").rename(tmp_path / "moved.db")
        journal._writer._connection.close()
        for _ in range(3):
            with pytest.raises(JournalUnavailable):
                await journal.claim(asking())
        (tmp_path / "journal.db").touch()
        with pytest.raises(JournalUnavailable, match="moved or deleted"):
            await journal.claim(asking())
        assert not await journal.healthy()
        (tmp_path / "moved.db").rename(tmp_path / "journal.db")
        assert (await journal.claim(asking())).verdict is ClaimVerdict.IN_FLIGHT


class TestLoop:
    async def test_a_thread_that_hangs_holds_the_loop_up_once_and_for_a_moment(self, journal: SqliteJournal) -> None:
        held = Held(journal)
        await held.reached()
        waiting = [asyncio.ensure_future(journal.claim(asking(f"key-{number}"))) for number in range(5)]
        async with asyncio.timeout(5.0):  # every turn that was held up would cost 10 ms
            for _ in range(1000):
                await asyncio.sleep(0)
        await held.let_go()
        assert {claim.verdict for claim in await asyncio.gather(*waiting)} == {ClaimVerdict.OWNED}

    async def test_what_is_asked_while_a_batch_is_written_goes_with_the_next(self, journal: SqliteJournal) -> None:
        first = asyncio.ensure_future(journal.claim(asking("key-1")))
        await asyncio.sleep(0)
        before = journal.commits
        others = [asyncio.ensure_future(journal.claim(asking(f"other-{number}"))) for number in range(20)]
        await asyncio.gather(first, *others)
        assert journal.commits - before <= 2


class TestSomebodyElseOnTheFile:
    async def test_another_programs_lock_makes_calls_fail_until_it_is_gone(
        self, journal: SqliteJournal, tmp_path: Path
    ) -> None:
        journal._writer._connection.execute("PRAGMA busy_timeout = 50")
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalUnavailable, match="another program holds the file"):
            await journal.claim(asking())
        assert not await journal.healthy()
        other.execute("ROLLBACK")
        other.close()
        assert (await journal.claim(asking())).verdict is ClaimVerdict.OWNED
        assert await journal.healthy()

    async def test_a_file_that_was_replaced_is_not_healthy(self, journal: SqliteJournal, tmp_path: Path) -> None:
        """What is written to a file without a name is lost at the next start."""
        assert await journal.healthy()
        (tmp_path / "journal.db").rename(tmp_path / "moved.db")
        assert not await journal.healthy()
        (tmp_path / "journal.db").touch()
        assert not await journal.healthy()
        (tmp_path / "moved.db").rename(tmp_path / "journal.db")
        assert await journal.healthy()


def test_an_abandoned_event_loop_hangs_nobody(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop ends, the journal was not closed: the threads end by themselves once they notice, and let go."""

    monkeypatch.setattr(journal_module, "_LOOP_CHECK_S", 0.01)
    monkeypatch.setattr(journal_module, "IDLE_AFTER_S", 0.01)

    async def abandon() -> SqliteJournal:
        journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock)
        journal._write_worker.submit(journal._writer.claim, asking())
        journal._read_worker.submit(journal._reader.read, "op_1")
        return journal

    journal = asyncio.run(abandon())
    journal._write_worker._thread.join(30)
    assert not journal._write_worker._thread.is_alive()

    async def again() -> ClaimVerdict:
        journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock)
        verdict = (await journal.claim(asking())).verdict
        await journal.close()
        return verdict

    assert asyncio.run(again()) is ClaimVerdict.IN_FLIGHT
