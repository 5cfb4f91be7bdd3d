"""The outbox: at least once, in order for each operation, whatever the sink does and whenever we are restarted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from paywitness.clock import SystemClock
from paywitness.core.announcements import announcement_of
from paywitness.core.errors import JournalUnavailable, SettingsError
from paywitness.core.lifecycle import Event, advance
from paywitness.core.operation import Operation
from paywitness.core.policy import UpstreamTimeouts
from paywitness.core.provider_contract import OperationKind
from paywitness.core.retry import Jitter, RetryRule
from paywitness.engine.durability.due_times import Wakeup
from paywitness.engine.outbox import CURSOR, Outbox, Sink
from paywitness.journal.base import Journal, OperationChange
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.tasks import Tasks
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import OutboxDelivered, TelemetryEvent
from paywitness.telemetry.logs import LogWriter
from paywitness.telemetry.metrics import Metrics
from paywitness.upstream.client import UpstreamClient
from tests.engine.sink import HANG, SECRET, Delivery, HttpSink, until
from tests.journal.memory import MemoryJournal
from tests.journal.samples import doubting, owned, succeeding
from tests.randomness import own_randomness

IMPATIENT = UpstreamTimeouts(connect_s=0.5, write_s=0.5, first_byte_s=0.15, body_idle_s=0.5)
BRIEF = RetryRule(jitter=Jitter.EQUAL, base_s=0.005, cap_s=0.03)


class Told(Telemetry):
    def __init__(self) -> None:
        logger = logging.getLogger("paywitness.outbox_tests")
        super().__init__(Metrics("test", lambda: 0.0), LogWriter(logger))
        self.records: list[OutboxDelivered] = []

    def emit(self, record: TelemetryEvent) -> None:
        if isinstance(record, OutboxDelivered):
            self.records.append(record)
        super().emit(record)


class Bench:
    """A journal, a sink, and an outbox between them that can be stopped and started."""

    def __init__(self, journal: Journal, sink: HttpSink) -> None:
        self.noted = 0  # how far the cursor was moved
        self.journal = self.noting(journal)
        self.sink = sink
        self.telemetry = Told()
        self.upstream = UpstreamClient()
        self.tasks = Tasks()
        self.announced = Wakeup()

    def outbox(self) -> Outbox:
        to = Sink(self.sink.url, SECRET, IMPATIENT, BRIEF)
        return Outbox(self.journal, self.upstream, to, self.announced, SystemClock(), own_randomness(), self.telemetry)

    def start(self) -> None:
        self.tasks.start(self.outbox().keep_delivering(), "outbox")

    async def stop(self) -> None:
        await self.tasks.stop()
        self.tasks = Tasks()

    async def close(self) -> None:
        await self.stop()
        await self.upstream.close()
        await self.sink.stop()
        await self.journal.close()

    async def tell(self, key: str) -> Operation:
        """Three changes that tell something: a doubt, a review, an end. And one that does not."""
        operation = await owned(self.journal, key)
        change = doubting(operation)
        operation = await self.journal.record(with_told(operation, change))
        operation = await self.journal.record(OperationChange(operation, (), source="operator", note="touched"))
        for event in (Event.PARKED, Event.INQUIRY_FOUND_SUCCESS):
            after = advance(operation, event)
            operation = await self.journal.record(
                with_told(operation, OperationChange(after, (event,), source="resolver"))
            )
        self.announced.set()
        return operation

    async def everything_told(self) -> list[tuple[str, int]]:
        rows = await self.journal.announcements(0, limit=500)
        return [(row.operation.id, row.entry.version) for row in rows]

    async def all_taken(self) -> None:
        wanted = set(await self.everything_told())
        await until(lambda: {(each.operation, each.version) for each in self.sink.taken} >= wanted)

    async def all_noted(self) -> None:
        last = (await self.journal.announcements(0, limit=500))[-1].seq
        await until(lambda: self.noted >= last)

    def noting(self, journal: Journal) -> Journal:
        """The journal, which now says how far the cursor was moved."""
        move_cursor = journal.move_cursor

        async def move_and_note(name: str, seq: int, token: str = "") -> bool:
            moved = await move_cursor(name, seq, token)
            if moved and name == CURSOR:
                self.noted = max(self.noted, seq)
            return moved

        journal.move_cursor = move_and_note  # type: ignore[method-assign]
        return journal


def with_told(before: Operation, change: OperationChange) -> OperationChange:
    facts = {name: getattr(change, name) for name in ("source", "note", "attempt")}
    return OperationChange(
        change.operation, change.events, announcement=announcement_of(before, change.operation), **facts
    )


@pytest.fixture
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    journal: Journal = MemoryJournal(clock=SystemClock())
    if getattr(request, "param", "memory") == "sqlite":
        journal = await SqliteJournal.open(tmp_path / "journal.db", clock=SystemClock())
    sink = HttpSink()
    await sink.start()
    built = Bench(journal, sink)
    yield built
    await built.close()


both = pytest.mark.parametrize("bench", ["memory", "sqlite"], indirect=True)


@both
async def test_what_changes_tell_is_delivered_signed_and_in_order(bench: Bench) -> None:
    operations = [await bench.tell(f"key-{number}") for number in range(12)]
    outbox = bench.outbox()
    assert await outbox.deliver_page() == 36
    assert bench.sink.first_versions() == {operation.id: [2, 4, 5] for operation in operations}
    assert len(bench.sink.taken) == 36
    for delivery in bench.sink.taken:
        assert delivery.is_signed
        assert delivery.path == "/hooks/money?from=paywitness"
        assert delivery.headers["content-type"] == "application/cloudevents+json"
        assert delivery.event["id"] == delivery.id == f"{delivery.operation}:{delivery.version}"
    assert 1 < bench.sink.most_at_once <= 8
    kinds = [each.event["type"].rsplit(".")[-1] for each in bench.sink.taken if each.operation == operations[0].id]
    assert kinds == ["doubt_opened", "review_opened", "ended"]
    assert await outbox.deliver_page() == 0
    assert all(record == OutboxDelivered(1, failed=False, lag=record.lag) for record in bench.telemetry.records)
    assert bench.telemetry.records[-1].lag == 0


@both
async def test_the_two_events_of_one_change_are_taken_one_after_the_other(bench: Bench) -> None:
    """A second event that is refused holds the cursor: after a restart the first one comes again under its id."""
    operation = await owned(bench.journal, "payout", kind=OperationKind.PAYOUT)
    await bench.journal.record(with_told(operation, succeeding(operation)))
    ids = [f"{operation.id}:1:payout", f"{operation.id}:2", f"{operation.id}:2:payout"]
    bench.sink.answer = lambda delivery: 500 if delivery.id == ids[-1] else 204
    bench.start()
    await until(lambda: [each.id for each in bench.sink.offered].count(ids[-1]) >= 2)
    await bench.stop()
    assert [each.id for each in bench.sink.taken] == ids[:2]
    bench.sink.answer = lambda _: 204
    assert await bench.outbox().deliver_page() in {1, 2}
    assert [each.id for each in bench.sink.taken][-2:] == ids[-2:]
    assert all(each.is_signed for each in bench.sink.taken)


@both
async def test_a_sink_that_is_down_for_a_while_loses_no_event(bench: Bench) -> None:
    for number in range(10):
        await bench.tell(f"early-{number}")
    await bench.sink.stop()  # refused
    bench.start()
    await until(lambda: len(bench.telemetry.records) > 20)
    assert all(record.failed for record in bench.telemetry.records)
    assert bench.sink.taken == []
    weather = iter([500] * 20 + [HANG] * 10 + [429, 302, 404, 503] * 3)
    bench.sink.answer = lambda _: next(weather, 200)
    await bench.sink.start()
    for number in range(10):
        await bench.tell(f"late-{number}")
    await bench.all_taken()
    assert all(versions == [2, 4, 5] for versions in bench.sink.first_versions().values())
    assert len(bench.sink.first_versions()) == 20
    # What hung was offered again, under its id and with the same bytes.
    bodies: dict[str, set[bytes]] = {}
    for delivery in bench.sink.offered:
        bodies.setdefault(delivery.id, set()).add(delivery.body)
    assert {len(variants) for variants in bodies.values()} == {1}


async def test_a_restart_in_the_middle_goes_on_where_the_sink_had_come(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    bench = Bench(await SqliteJournal.open(path, clock=SystemClock()), HttpSink())
    await bench.sink.start()
    operations = [await bench.tell(f"key-{number}") for number in range(30)]
    stuck = operations[20]
    bench.sink.answer = lambda delivery: 500 if delivery.operation == stuck.id else 200
    bench.start()
    await until(lambda: len(bench.sink.taken) == 87)
    refused = len(bench.sink.offered) - 87
    await until(lambda: len(bench.sink.offered) - 87 > refused + 2)  # and with each refusal the cursor is moved
    await bench.stop()
    await bench.journal.close()
    bench.journal = bench.noting(await SqliteJournal.open(path, clock=SystemClock()))
    before = len(bench.sink.taken)
    bench.sink.answer = lambda _: 200
    bench.start()
    await bench.all_noted()
    again = {delivery.operation for delivery in bench.sink.taken[before:]}
    assert again == {operation.id for operation in operations[20:]}  # up to the gap the cursor had been moved
    assert all(versions == [2, 4, 5] for versions in bench.sink.first_versions().values())
    await bench.close()


async def test_an_event_that_is_not_taken_holds_up_its_operation_and_no_other(bench: Bench) -> None:
    first, second = await bench.tell("key-1"), await bench.tell("key-2")
    broken = True

    def answer(delivery: Delivery) -> int:
        return 400 if broken and delivery.id == f"{first.id}:2" else 200

    bench.sink.answer = answer
    bench.start()
    await until(lambda: sum(each.id == f"{first.id}:2" for each in bench.sink.offered) > 5)
    await until(lambda: len(bench.sink.taken) == 3)
    assert bench.sink.first_versions() == {second.id: [2, 4, 5]}
    assert {each.version for each in bench.sink.offered if each.operation == first.id} == {2}
    assert bench.noted == 0
    broken = False
    await bench.all_taken()
    assert bench.sink.first_versions()[first.id] == [2, 4, 5]


async def test_an_end_that_comes_while_it_waits_is_delivered_after(bench: Bench) -> None:
    bench.start()
    operation = await bench.tell("key-1")
    await bench.all_taken()
    assert bench.sink.first_versions() == {operation.id: [2, 4, 5]}


async def test_a_sink_that_is_gone_is_said_loudly_and_still_tried(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.tell("key-1")
    answers = iter([410, 410])
    bench.sink.answer = lambda _: next(answers, 200)
    assert await bench.outbox().deliver_page() == 3
    [said] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert said.getMessage() == "sink_down"
    assert said.__dict__["fields"]["why"].startswith("status 410, it wants no more events")


async def test_an_outage_does_not_fill_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.tell("key-1")
    answers = iter([500] * 30)
    bench.sink.answer = lambda _: next(answers, 200)
    await bench.outbox().deliver_page()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["sink_down", "sink_back"]


# --- the journal


class Wavering(MemoryJournal):
    """Does not answer when it is told not to."""

    failing: frozenset[str] = frozenset()

    async def announcements(self, after: int, *, limit: int) -> Any:
        return await self._unless("outcomes", lambda: MemoryJournal.announcements(self, after, limit=limit))

    async def take_cursor(self, name: str, token: str, lease_s: float) -> Any:
        return await self._unless("take_cursor", lambda: MemoryJournal.take_cursor(self, name, token, lease_s))

    async def move_cursor(self, name: str, seq: int, token: str = "") -> Any:
        return await self._unless("move_cursor", lambda: MemoryJournal.move_cursor(self, name, seq, token))

    async def _unless(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if name in self.failing:
            raise JournalUnavailable("gone")
        return await call()


async def wavering() -> tuple[Wavering, Bench]:
    journal = Wavering(clock=SystemClock())
    bench = Bench(journal, HttpSink())
    await bench.sink.start()
    return journal, bench


async def test_a_journal_that_does_not_answer_is_asked_again() -> None:
    journal, bench = await wavering()
    await bench.tell("key-1")
    journal.failing = frozenset({"outcomes"})
    bench.start()
    await asyncio.sleep(0.05)
    assert bench.sink.offered == []
    journal.failing = frozenset()
    await bench.all_taken()
    await bench.close()


async def test_a_cursor_that_was_not_taken_makes_nothing_twice_while_we_run() -> None:
    journal, bench = await wavering()
    await bench.tell("key-1")
    journal.failing = frozenset({"move_cursor"})
    outbox = bench.outbox()
    assert await outbox.deliver_page() == 3
    journal.failing = frozenset()
    assert await outbox.deliver_page() == 0
    assert len(bench.sink.taken) == 3
    assert bench.noted > 0
    await bench.close()


async def test_a_fault_of_ours_does_not_end_the_telling(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.tell("key-1")
    outbox = bench.outbox()
    good, broken = outbox.upstream, UpstreamClient()
    monkeypatch.setattr(broken, "send", lambda *_: (_ for _ in ()).throw(RuntimeError("canary")))
    outbox.upstream = broken
    bench.tasks.start(outbox.keep_delivering(), "outbox")
    await until(lambda: "delivering failed by RuntimeError" in caplog.text)
    outbox.upstream = good
    await bench.all_taken()
    assert "canary" not in caplog.text
    await broken.close()


# --- settings


@pytest.mark.parametrize(
    ("url", "secret", "says"),
    [
        ("ftp://sink.test/", SECRET, "http or https"),
        ("http://", SECRET, "needs a host"),
        ("http://me:secret@sink.test/", SECRET, "carries no user"),
        ("http://sink.test/", b"", "secret"),
        ("http://sink.test/", b"whsec_", "secret"),
    ],
)
def test_a_sink_that_cannot_be_is_refused_at_the_start(url: str, secret: bytes, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Sink(url, secret)


def test_a_sink_does_not_show_its_secret() -> None:
    assert "whsec" not in repr(Sink("https://sink.test", SECRET))
    assert Sink("https://sink.test", SECRET).target == b"/"
