"""A journal that forgot its last writes: whoever knows them puts them back, and until then nobody pays twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paywitness.clock import JournalClock, SystemClock
from paywitness.core.claim import ClaimVerdict
from paywitness.core.errors import JournalUnavailable
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import State
from paywitness.engine import failpoints
from paywitness.engine.durability.leases import Leases
from paywitness.engine.durability.rollback import RollbackMonitor
from paywitness.engine.failpoints import Failpoints
from paywitness.journal.base import OperationChange, OperationQuery
from paywitness.journal.redis.journal import RedisJournal
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import IncidentOpened, JournalRolledBack, TelemetryEvent
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, header, make_world, outcome, problem_type, telemetry_for
from tests.journal.redis_rollback import Backup
from tests.journal.redis_server import RedisServer
from tests.journal.samples import LEASE_S, asking, doubting, owned, succeeding, waiting

NO_KEY = (
    ("send_as: header:Idempotency-Key          # where Acme takes the key", "send_as: none"),
    ("  window: 24h ", "  # window: 24h "),
    ("  max_length: 255", "  # max_length"),
    ("  errors_under_key: replayed ", "  # errors_under_key: replayed "),
    ("  key_space: account ", "  # key_space: account "),
)
MakeWorld = Callable[..., Awaitable[World]]


class At(Failpoints):
    """Does something once, at one step."""

    def __init__(self, name: str, do: Callable[[], Awaitable[None]]) -> None:
        self._name: str | None = name
        self._do = do

    async def hit(self, name: str) -> None:
        if name == self._name:
            self._name = None
            await self._do()


class Told(Telemetry):
    """What was told, as it was told."""

    def __init__(self) -> None:
        plain = telemetry_for(SystemClock())
        super().__init__(plain.metrics, plain.logs)
        self.records: list[TelemetryEvent] = []

    def emit(self, record: TelemetryEvent) -> None:
        self.records.append(record)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def journal(server: RedisServer) -> AsyncIterator[RedisJournal]:
    journal = await RedisJournal.open(server.url)
    yield journal
    await journal.close()


@pytest.fixture
async def sidecar(sandbox: Sandbox, server: RedisServer) -> AsyncIterator[MakeWorld]:
    made: list[World] = []

    async def make(*edits: tuple[str, str], failpoints: Failpoints | None = None) -> World:
        made.append(
            await make_world(sandbox, *edits, journal=await RedisJournal.open(server.url), failpoints=failpoints)
        )
        return made[-1]

    yield make
    for world in made:
        await close(world)


async def test_a_call_whose_operation_is_forgotten_under_way_is_written_down_all_the_same(
    server: RedisServer, sidecar: MakeWorld
) -> None:
    before: list[Backup] = []

    async def forget() -> None:
        before[0].restore()

    world = await sidecar(failpoints=At(failpoints.ANSWER_CLASSIFIED, forget))
    before.append(Backup(server))
    paid = await world.charge()
    assert (paid.status_code, outcome(paid)) == (200, "succeeded")
    (operation,) = await world.journal.find_operations(OperationQuery())
    assert (operation.state, operation.incident) == (State.SUCCEEDED, None)
    assert [entry.events[0] for entry in await world.journal.history(operation.id)] == ["put_back", "success_seen"]
    again = await (await sidecar()).charge()
    assert (again.body, header(again, "Paywitness-Replayed"), world.effects()) == (paid.body, "true", 1)


async def test_a_wait_between_two_tries_that_was_forgotten_goes_on(server: RedisServer, sidecar: MakeWorld) -> None:
    """The journal has it as it was claimed; the holder knows that the first attempt had no effect."""
    before: list[Backup] = []

    async def look() -> None:
        before.append(Backup(server))

    async def forget() -> None:
        before[0].restore()

    class Both(Failpoints):
        def __init__(self) -> None:
            self._steps = (At(failpoints.SENDING_RECORDED, look), At(failpoints.ANSWER_RECORDED, forget))

        async def hit(self, name: str) -> None:
            for each in self._steps:
                await each.hit(name)

    world = await sidecar(failpoints=Both())
    reply = await world.charge(fault="rate_limited(retry_after_s=0)")
    assert (reply.status_code, header(reply, "Paywitness-Attempts"), world.effects()) == (200, "2", 1)
    (operation,) = await world.journal.find_operations(OperationQuery())
    assert (operation.state, operation.attempts, operation.incident) == (State.SUCCEEDED, 2, None)


async def test_what_the_resolver_puts_back_can_still_be_inquired_about(
    server: RedisServer, journal: RedisJournal, sandbox: Sandbox, sidecar: MakeWorld
) -> None:
    """It was put back without its request, and no inquiry could name it: a person was called in vain."""
    world = await sidecar()
    before = Backup(server)
    lost = await world.charge(fault="drop_after_commit*")
    assert lost.status_code == 504
    (known,) = await world.journal.find_operations(OperationQuery())
    before.restore()
    writer = world.engine.pipeline.journal_writer
    assert writer.rollback is not None
    assert (await writer.current(known)).state is State.UNKNOWN
    request, _ = await world.journal.sealed(known.id)
    assert request is not None


async def test_where_another_was_started_meanwhile_both_are_kept_and_a_person_is_called(
    server: RedisServer, sidecar: MakeWorld
) -> None:
    before: list[Backup] = []

    async def forget_and_pay_elsewhere() -> None:
        before[0].restore()
        await other.charge()

    world = await sidecar(failpoints=At(failpoints.ANSWER_CLASSIFIED, forget_and_pay_elsewhere))
    other = await sidecar()
    before.append(Backup(server))
    await world.charge()
    first, second = sorted(
        await world.journal.find_operations(OperationQuery()), key=lambda operation: operation.incident or ""
    )
    assert (first.incident, second.incident) == (None, IncidentKind.JOURNAL_ROLLBACK)
    assert first.key == second.key
    assert first.provider_key == second.provider_key
    assert second.state is State.SUCCEEDED  # what its holder saw
    assert await world.journal.find_operations(OperationQuery(incidents_only=True)) == (second,)
    assert world.effects() == 1  # by the provider's own key


async def test_a_holder_whom_others_overtook_does_not_try_again(server: RedisServer, sidecar: MakeWorld) -> None:
    before: list[Backup] = []

    async def forget_and_pay_elsewhere() -> None:
        before[0].restore()
        await other.charge()

    world = await sidecar(failpoints=At(failpoints.ANSWER_CLASSIFIED, forget_and_pay_elsewhere))
    other = await sidecar()
    before.append(Backup(server))
    reply = await world.charge(fault="rate_limited(retry_after_s=0)")
    assert (reply.status_code, len(world.arrivals), world.effects()) == (504, 2, 1)


async def test_a_fresh_key_of_a_paid_order_waits_until_what_is_known_here_was_put_back(
    server: RedisServer, sidecar: MakeWorld
) -> None:
    """Also at a provider that dedupes: it knows nothing of a fresh key, and the guard of the order is forgotten."""
    world = await sidecar()
    assert (await world.charge("first")).status_code == 200
    server.ask("FLUSHALL")
    for amount in (1099, 2000):
        again = await world.charge(f"fresh-{amount}", amount=amount)
        assert (again.status_code, problem_type(again), world.effects()) == (504, "journal-unavailable", 1)
        told = await world.engine.intents.describe("order-1")
        assert (told.status_code, problem_type(told)) == (504, "journal-unavailable")  # never that it may be paid
    assert world.parts.rollback is not None
    assert await world.parts.rollback.check() >= 1
    told = await world.engine.intents.describe("order-1")
    assert (told.status_code, json.loads(told.body)["safe_to_pay"]) == (200, False)
    other = await world.charge("fresh-2000", amount=2000)
    assert (other.status_code, problem_type(other), world.effects()) == (409, "guarded", 1)
    new = await world.charge("another", order="order-2")
    assert (new.status_code, world.effects(order="order-2")) == (200, 1)


async def test_a_renewal_puts_back_what_is_gone(server: RedisServer, journal: RedisJournal) -> None:
    leases = Leases(journal, SystemClock(), LEASE_S)
    before = Backup(server)
    request = asking()
    claim = await journal.claim(request)
    assert claim.operation is not None
    known = claim.operation
    leases.hold(known.id, request.token, SystemClock().boot(), known, b"sealed request")
    before.restore()
    await leases.renew()
    found = await journal.read(known.id)
    assert found is not None
    assert (found.state, found.version, found.incident) == (State.SENDING, 1, None)
    assert await journal.sealed(known.id) == (b"sealed request", None)
    assert leases.outlasts(known.id, request.token, LEASE_S - 5)
    leases.release(known.id)
    before.restore()
    await leases.renew()
    assert await journal.read(known.id) is None


async def test_what_its_resolver_holds_is_put_back_with_the_request_of_its_sender(
    server: RedisServer, journal: RedisJournal
) -> None:
    """A resolver knows no request. The operation was put back without one, and nobody could ask what became of it."""
    leases = Leases(journal, SystemClock(), LEASE_S)
    rollback = RollbackMonitor(journal, leases, SystemClock(), Told())
    before = Backup(server)
    request = asking()
    claim = await journal.claim(request)
    assert claim.operation is not None
    rollback.remember(claim.operation, sealed_request=b"sealed request")
    leases.hold(claim.operation.id, request.token, SystemClock().boot(), claim.operation)
    before.restore()
    await leases.renew()
    assert await journal.sealed(claim.operation.id) == (b"sealed request", None)


async def test_what_others_went_on_with_is_not_sent_by_its_holder(server: RedisServer, journal: RedisJournal) -> None:
    telemetry = Told()
    leases = Leases(journal, SystemClock(), LEASE_S, telemetry)
    before = Backup(server)
    request = asking()
    claim = await journal.claim(request)
    assert claim.operation is not None
    leases.hold(claim.operation.id, request.token, SystemClock().boot(), claim.operation)
    before.restore()
    await owned(journal)
    await leases.renew()
    (stands,) = await journal.find_operations(OperationQuery(incidents_only=True))
    assert stands.id == claim.operation.id
    assert telemetry.records == [IncidentOpened(stands, IncidentKind.JOURNAL_ROLLBACK)]
    assert not leases.outlasts(stands.id, request.token, 0.0)


async def test_a_record_that_was_planned_before_its_operation_was_restored_keeps_the_incident(
    server: RedisServer, journal: RedisJournal, sidecar: MakeWorld
) -> None:
    """Its attempt was under way. Another call under its key had been started and ended unsent meanwhile. The record of
    the attempt removed the incident, so the key started anew, and the order was paid twice."""
    world = await sidecar()
    leases = Leases(journal, SystemClock(), LEASE_S, Told())
    writer = replace(world.parts.journal_writer, journal=journal, leases=leases, rollback=None)
    before = Backup(server)
    request = asking()
    claim = await journal.claim(request)
    assert claim.operation is not None
    leases.hold(claim.operation.id, request.token, SystemClock().boot(), claim.operation)
    before.restore()
    await owned(journal)
    await leases.renew()
    recorded = await writer.write_with_retry(claim.operation, succeeding)
    assert (recorded.state, recorded.incident) == (State.SUCCEEDED, IncidentKind.JOURNAL_ROLLBACK)


async def test_after_a_rollback_what_was_written_from_here_is_put_back_and_it_is_told_once(
    server: RedisServer, journal: RedisJournal
) -> None:
    telemetry = Told()
    leases = Leases(journal, SystemClock(), LEASE_S)
    rollback = RollbackMonitor(journal, leases, SystemClock(), telemetry)
    assert (await rollback.check(), rollback.recently_rolled_back(), telemetry.records) == (0, False, [])
    older = await owned(journal, "older")
    before = Backup(server)
    ended = await journal.record(succeeding(await owned(journal, "ended")))
    rollback.remember(ended, sealed_response=b"sealed response")
    request = asking("held")
    claim = await journal.claim(request)
    assert claim.operation is not None
    leases.hold(claim.operation.id, request.token, SystemClock().boot(), claim.operation)
    between = await journal.record(waiting(older))  # the journal has it older, under the same token
    assert between.lease is not None
    leases.hold(older.id, between.lease.token, SystemClock().boot(), between)
    doubted = await journal.record(doubting(await owned(journal, "not of this process")))
    before.take_over()
    await _connected_again(journal)
    assert rollback.recently_rolled_back()
    assert (await rollback.check(), await rollback.check()) == (3, 0)
    assert [type(record) for record in telemetry.records] == [JournalRolledBack]
    found = {operation.id: operation.state for operation in await journal.find_operations(OperationQuery())}
    assert found == {ended.id: State.SUCCEEDED, claim.operation.id: State.SENDING, older.id: State.BACKOFF}
    assert doubted.id not in found
    again = await journal.claim(asking("ended"))
    assert (again.verdict, again.sealed_response) == (ClaimVerdict.REPLAY, b"sealed response")


async def test_caution_lasts_one_lease_and_what_is_noticed_later_is_told_and_mended_all_the_same(
    server: RedisServer, journal: RedisJournal
) -> None:
    telemetry, leases = Told(), Leases(journal, SystemClock(), 0.5)
    rollback = RollbackMonitor(journal, leases, SystemClock(), telemetry)
    before = Backup(server)
    ended = await journal.record(succeeding(await owned(journal)))
    rollback.remember(ended)
    before.take_over()
    await _connected_again(journal)
    assert rollback.recently_rolled_back()
    async with asyncio.timeout(5):
        while rollback.recently_rolled_back():  # noqa: ASYNC110  # the clock is the loop's own
            await asyncio.sleep(0.02)
    assert (await rollback.check(), len(telemetry.records)) == (1, 1)
    # A process that starts when all that is over has nothing to tell.
    later = RollbackMonitor(journal, leases, SystemClock(), telemetry)
    assert (await later.check(), later.recently_rolled_back(), len(telemetry.records)) == (0, False, 1)


async def test_the_end_of_what_was_sent_before_a_rollback_may_be_forgotten_for_ever(
    server: RedisServer, journal: RedisJournal
) -> None:
    lease_s, time = 0.3, JournalClock(SystemClock())
    rollback = RollbackMonitor(journal, Leases(journal, SystemClock(), lease_s), SystemClock(), Told(), time)
    before = await owned(journal, "before")
    time.update(before.updated_at)
    assert not rollback.end_may_be_lost(before)
    Backup(server).take_over()
    await _connected_again(journal)
    soon = await owned(journal, "soon")
    await asyncio.sleep(2 * lease_s)
    after = await owned(journal, "after")
    time.update(after.updated_at)
    assert not rollback.recently_rolled_back()
    assert [rollback.end_may_be_lost(operation) for operation in (before, soon, after)] == [True, True, False]


async def test_what_was_written_from_here_is_kept_within_bounds(journal: RedisJournal) -> None:
    rollback = RollbackMonitor(journal, Leases(journal, SystemClock(), LEASE_S), SystemClock(), Told())
    operation = await owned(journal)
    for number in range(200):
        rollback.remember(operation.changed(id=f"op_{number}"), sealed_request=b"x" * 1_000_000)
    assert rollback._recent_bytes <= 32 * 1024 * 1024
    for number in range(6_000):
        rollback.remember(operation.changed(id=f"op_{number}", state=State.SUCCEEDED))
    assert (rollback.remembered, rollback._recent_bytes) == (5_000, 0)


@pytest.mark.parametrize(("edits", "status_code", "effects"), [(NO_KEY, 504, 0), ((), 200, 1)])
async def test_a_claim_that_the_rollback_came_before_sends_nothing_that_could_be_done_twice(
    server: RedisServer, sidecar: MakeWorld, edits: tuple[tuple[str, str], ...], status_code: int, effects: int
) -> None:
    """The gate had let it through; the journal came back as another while it was claimed."""
    world = await sidecar(*edits)
    journal = world.journal
    world.engine.gate.recently_rolled_back = lambda: False
    Backup(server).take_over()
    await _connected_again(journal)
    assert world.parts.rollback is not None
    await world.parts.rollback.check()  # what is known here has been put back; others may still be doing so
    reply = await world.charge()
    assert (reply.status_code, world.effects()) == (status_code, effects)
    (operation,) = await journal.find_operations(OperationQuery())
    assert (operation.state, operation.key_released) == (State.SUCCEEDED if effects else State.FAILED, not effects)


async def test_nobody_is_told_not_sent_while_the_journal_may_have_forgotten_who_paid(
    server: RedisServer, sidecar: MakeWorld
) -> None:
    """A duplicate at another sidecar saw a claim that was ended unsent, because the journal had just come back as
    another, and was told 503. The journal had forgotten the payment that its first call was told."""
    world = await sidecar()
    Backup(server).take_over()
    await _connected_again(world.journal)
    assert world.parts.rollback is not None
    await world.parts.rollback.check()
    await world.sandbox.stop()
    not_sent = await world.charge()
    assert (not_sent.status_code, problem_type(not_sent), world.effects()) == (504, "journal-unavailable", 0)


async def _connected_again(journal: object) -> None:
    assert isinstance(journal, RedisJournal)
    for _ in range(20):
        with contextlib.suppress(JournalUnavailable):
            if await journal.healthy():
                return
        await asyncio.sleep(0.05)
    raise AssertionError("the journal does not come back")


async def test_an_answer_to_an_attempt_that_was_forgotten_while_others_went_on_calls_a_person(
    journal: RedisJournal, sidecar: MakeWorld
) -> None:
    """What is known does not fit into what the journal has: nothing is overwritten, and a spool is to keep it."""
    records = (await sidecar()).parts.journal_writer
    stored = await owned(journal)
    ours = stored.changed(attempts=3, version=stored.version - 1)
    with pytest.raises(JournalUnavailable):
        await records.write_with_retry(ours, lambda current: OperationChange(current, ()))
    found = await journal.read(stored.id)
    assert found is not None
    assert (found.incident, found.state, found.attempts) == ("journal_rollback", State.SENDING, 1)


async def test_a_paid_key_is_not_paid_again_after_its_journal_lost_its_keys(
    server: RedisServer, sidecar: MakeWorld
) -> None:
    """FLUSHALL between a payment and its repeat, at a provider that would pay twice."""
    world = await sidecar(*NO_KEY)
    assert (await world.charge()).status_code == 200
    server.ask("FLUSHALL")
    for key in ("key-1", "a fresh key"):
        repeat = await world.charge(key)
        assert (repeat.status_code, problem_type(repeat), outcome(repeat)) == (504, "journal-unavailable", "unknown")
    assert world.effects() == 1
    assert world.parts.rollback is not None
    assert await world.parts.rollback.check() >= 1  # its holder writes it again from what it holds
    again = await world.charge()
    assert (again.status_code, world.effects()) == (504, 1)  # both went on under one key: a person looks
