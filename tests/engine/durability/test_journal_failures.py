"""A journal that is down, slow, or loses its replies: nothing is sent without a record, nothing is told without one."""

from __future__ import annotations

import asyncio
import json

import pytest

from paywitness.clock import SystemClock
from paywitness.core.claim import Claim, ClaimRequest
from paywitness.core.errors import JournalUnavailable
from paywitness.core.operation import Operation, State
from paywitness.journal.base import OperationChange
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, header, make_world, outcome, problem_type
from tests.journal.memory import MemoryJournal


class MovableClock(SystemClock):
    """The journal's own time, which a test may move on."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


class TroubledJournal(MemoryJournal):
    """Fails as the test says: before the write, or after it, when only the reply is lost."""

    def __init__(self) -> None:
        self.time = MovableClock()
        super().__init__(clock=self.time)
        self.claims_lost_before = self.claims_lost_after = 0
        self.records_lost_before = self.records_lost_after = 0
        self.overtakes_next_record = False

    async def claim(self, request: ClaimRequest) -> Claim:
        if self.claims_lost_before:
            self.claims_lost_before -= 1
            raise JournalUnavailable("down")
        claim = await super().claim(request)
        if self.claims_lost_after:
            self.claims_lost_after -= 1
            raise JournalUnavailable("the reply was lost")
        return claim

    async def record(self, change: OperationChange) -> Operation:
        if self.overtakes_next_record:
            self.overtakes_next_record = False
            assert await self.expire_all() == (State.UNKNOWN,)
        if self.records_lost_before:
            self.records_lost_before -= 1
            raise JournalUnavailable("down")
        operation = await super().record(change)
        if self.records_lost_after:
            self.records_lost_after -= 1
            raise JournalUnavailable("the reply was lost")
        return operation

    async def expire_all(self) -> tuple[State, ...]:
        """Every lease runs out, and a sweep acts upon it."""
        self.time.ahead_s += 60
        return tuple(operation.state for operation in await self.expire_leases())


@pytest.fixture
def journal() -> TroubledJournal:
    return TroubledJournal()


@pytest.fixture
async def world(sandbox: Sandbox, journal: TroubledJournal):
    built = await make_world(sandbox, journal=journal)
    yield built
    await close(built)


async def test_a_journal_that_is_down_sends_nothing_and_says_so(world: World, journal: TroubledJournal) -> None:
    journal.claims_lost_before = 2
    reply = await world.charge()
    assert (reply.status_code, problem_type(reply)) == (504, "journal-unavailable")
    assert json.loads(reply.body)["sent"] is False
    assert not world.arrivals
    again = await world.charge()
    assert (again.status_code, world.effects(order="order-1")) == (200, 1)


async def test_a_claim_whose_reply_was_lost_is_regained_by_its_token(world: World, journal: TroubledJournal) -> None:
    journal.claims_lost_after = 1
    reply = await world.charge()
    assert (reply.status_code, header(reply, "Paywitness-Attempts")) == (200, "1")
    assert (len(world.arrivals), world.effects(order="order-1")) == (1, 1)


async def test_a_claim_that_is_not_regained_sends_nothing(world: World, journal: TroubledJournal) -> None:
    journal.claims_lost_after = 2
    reply = await world.charge()
    assert (reply.status_code, problem_type(reply)) == (504, "journal-unavailable")
    assert not world.arrivals


async def test_a_record_whose_reply_was_lost_is_recognised_and_not_written_twice(
    world: World, journal: TroubledJournal
) -> None:
    journal.records_lost_after = 1
    reply = await world.charge()
    assert (reply.status_code, outcome(reply)) == (200, "succeeded")
    history = await journal.history(header(reply, "Paywitness-Operation") or "")
    assert len(history) == 2


async def test_an_answer_whose_record_is_not_taken_is_504_and_becomes_doubt(
    world: World, journal: TroubledJournal
) -> None:
    journal.records_lost_before = 5
    reply = await world.charge()
    assert (reply.status_code, outcome(reply), json.loads(reply.body)["sent"]) == (504, "unknown", True)
    assert world.effects(order="order-1") == 1
    assert await journal.expire_all() == (State.UNKNOWN,)
    again = await world.charge()
    assert (again.status_code, world.effects(order="order-1")) == (200, 1)


async def test_evidence_is_applied_to_what_somebody_else_wrote_meanwhile(
    world: World, journal: TroubledJournal
) -> None:
    """A sweep takes the operation for dead just before its holder records the success."""
    journal.overtakes_next_record = True
    reply = await world.charge()
    assert (reply.status_code, outcome(reply), world.effects(order="order-1")) == (200, "succeeded", 1)
    operation = await journal.read(header(reply, "Paywitness-Operation") or "")
    assert operation is not None
    assert (operation.state, operation.doubt, operation.incident) == (State.SUCCEEDED, frozenset(), None)
    assert await journal.newest_credentials(operation.account, 1)  # it is kept by the second try to write


async def test_a_lost_answer_is_re_sent_under_a_new_lease_where_a_sweep_was_faster(
    world: World, journal: TroubledJournal
) -> None:
    journal.overtakes_next_record = True
    reply = await world.charge(fault="drop_after_commit")
    assert (reply.status_code, header(reply, "Paywitness-Attempts")) == (200, "2")
    assert world.effects(order="order-1") == 1


async def test_an_unexpected_fault_of_ours_after_the_first_byte_is_told_as_doubt(sandbox: Sandbox) -> None:
    class Broken:
        async def hit(self, name: str) -> None:
            if name == "answer_classified":
                raise RuntimeError("a fault of ours")

    world = await make_world(sandbox, failpoints=Broken())
    reply = await world.charge()
    assert (reply.status_code, outcome(reply), problem_type(reply)) == (504, "unknown", "unknown")
    assert world.effects(order="order-1") == 1
    await close(world)


async def test_a_process_that_ends_writes_down_what_it_leaves(sandbox: Sandbox) -> None:
    world = await make_world(sandbox)
    call = asyncio.ensure_future(world.charge(fault="hang_after_commit"))
    while not world.arrivals:  # noqa: ASYNC110  # real sockets: there is no event to wait for
        await asyncio.sleep(0.01)
    await world.engine.tasks.close(0.0)
    reply = await call
    assert (reply.status_code, outcome(reply)) == (504, "unknown")
    operation = await world.journal.read(header(reply, "Paywitness-Operation") or "")
    assert operation is not None
    assert (operation.state, operation.doubt, operation.lease) == (State.UNKNOWN, frozenset({1}), None)
    await close(world)
