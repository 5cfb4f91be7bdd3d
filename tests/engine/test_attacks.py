"""Attacks: two hands on one payment at the worst moment, each played once and slowly, with the ledger as judge.

Every test here was a trace on paper first: a pause, a lease that ran out, an answer that came late, a caller that had
gone. Time is moved by hand, and the resolver looks when it is told to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from paywitness.clock import SystemClock
from paywitness.core.call import CallerOptions
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.operation import Finding, FindingKind, Operation, State
from paywitness.core.policy import Policy, ResolutionRules
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply
from paywitness.core.result import Classification, Effect, ResultClass
from paywitness.engine.resolution.external_evidence import AppliedEvidence
from paywitness.journal.base import OperationChange, OperationQuery
from paywitness_sandbox.bank.objects import ChargeStatus
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, make_world, outcome, until
from tests.journal.memory import MemoryJournal
from tests.journal.samples import holding

LEASE_S = 30.0
ONE_TRY = ("default: {attempts: 3, backoff: full", "default: {attempts: 1, backoff: full")
NOT_STORED = ("errors_under_key: replayed ", "errors_under_key: not_stored ")
# Asked on a schedule, never sent again in the background.
ASK_ONLY = ResolutionRules(settle_s=40.0, resend_for_s=0.0, schedule_s=(1.0,) * 50)
SETTLED_S = 60.0


class Time(SystemClock):
    """The machine's clock, which can be put forward and back."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s

    def boot(self) -> float:
        return super().boot() + max(0.0, self.ahead_s)


class Halts:
    """Holds whoever reaches the step, from when it is told to until it is told to let go."""

    def __init__(self) -> None:
        self.step = ""
        self.halted = 0
        self._go = asyncio.Event()

    def at(self, step: str) -> None:
        self.step = step
        self._go.clear()

    def go(self) -> None:
        self.step = ""
        self._go.set()

    async def hit(self, name: str) -> None:
        if name == self.step:
            self.halted += 1
            await self._go.wait()
            self.halted -= 1


class Scene:
    """A world whose time, resolver and steps the test moves by hand."""

    def __init__(self, world: World, time: Time, halts: Halts) -> None:
        self.world, self.time, self.halts = world, time, halts

    @property
    def journal(self) -> MemoryJournal:
        assert isinstance(self.world.journal, MemoryJournal)
        return self.world.journal

    async def lease_runs_out(self) -> None:
        self.time.ahead_s += LEASE_S + 1
        await self.journal.expire_leases()

    async def look(self, *, until_done: bool = True) -> int:
        """One round of the resolver."""
        taken = await self.world.parts.resolver.start_due()
        if until_done:
            await until(lambda: not len(self.world.engine.tasks))
        return taken

    async def newest(self, key: str = "key-1") -> Operation:
        found = await self.journal.find_operations(OperationQuery(key=key))
        return max(found, key=lambda operation: operation.generation)

    async def policy(self, operation: Operation) -> Policy:
        policy = await self.world.parts.pinned.policy_from_book(operation, self.world.engine.book)
        assert policy is not None
        return policy

    async def told(
        self,
        operation: Operation,
        reading: ResultClass,
        source: EvidenceSource = EvidenceSource.WEBHOOK,
        reference: str | None = None,
    ) -> AppliedEvidence:
        """Evidence from outside, as an event or an inquiry would bring it."""
        shown = Classification(reading, Classification.of(reading, "test").effect, "test", reference=reference)
        finding = Finding(source, FindingKind.HIT, 200, shown)
        await self.world.parts.ages.count()  # as the heartbeat does, whatever else goes on
        return await self.world.parts.external_evidence.apply(operation, await self.policy(operation), source, finding)

    async def settle_what_is_missing(self, operation_id: str, looks: int) -> Operation:
        """The resolver looks so often, each time when it is due."""
        for _ in range(looks):
            operation = await self.journal.read(operation_id)
            assert operation is not None
            if operation.due_at is None:
                return operation
            self.time.ahead_s += max(0.0, operation.due_at - self.time.now()) + 0.01
            await self.look()
        operation = await self.journal.read(operation_id)
        assert operation is not None
        return operation


@asynccontextmanager
async def scene(sandbox: Sandbox, *edits: tuple[str, str], resolve: ResolutionRules = ASK_ONLY) -> AsyncIterator[Scene]:
    time, halts = Time(), Halts()
    world = await make_world(
        sandbox,
        *edits,
        clock=time,
        journal=MemoryJournal(clock=time),
        failpoints=halts,
        lease_s=LEASE_S,
        resolve=resolve,
    )
    try:
        yield Scene(world, time, halts)
    finally:
        halts.go()
        await close(world)


async def another_sidecar(play: Scene, *edits: tuple[str, str]) -> World:
    return await make_world(play.world.sandbox, *edits, clock=play.time, journal=play.journal, lease_s=LEASE_S)


async def gone(world: World, key: str, *, order: str | None = None, **charge: Any) -> Reply:
    """A charge whose caller hangs up as soon as the provider has the request."""
    seen = len(world.arrivals)
    call = asyncio.ensure_future(
        world.charge(key, order=order, still_there=lambda: len(world.arrivals) == seen, **charge)
    )
    reply = await call
    await until(lambda: not world.engine.in_flight)
    return reply


# --- absent


async def test_absence_that_was_proven_before_a_repeat_sent_again_ends_nothing(sandbox: Sandbox) -> None:
    """The resolver is paused between its last miss and its record; its lease runs out; a repeat sends, pays, and loses
    the answer. What was missing then is not missing now."""
    async with scene(sandbox, ONE_TRY) as play:
        script = "reset_before_commit,drop_after_commit"
        lost = await play.world.charge(fault=script, timeout_s=0.5)
        assert lost.operation_id is not None
        play.time.ahead_s += SETTLED_S
        while (await play.newest()).misses < 2:
            await play.settle_what_is_missing(lost.operation_id, 1)
        play.time.ahead_s += 6
        play.halts.at("inquiry_answered")
        await play.look(until_done=False)
        await until(lambda: play.halts.halted)
        await play.lease_runs_out()
        await play.world.charge(fault=script)
        assert play.world.effects(order="order-1") == 1
        play.halts.go()
        await until(lambda: not len(play.world.engine.tasks))
        operation = await play.newest()
        assert operation.state is not State.FAILED
        ended = await play.settle_what_is_missing(operation.id, 5)
        assert (ended.state, play.world.effects(order="order-1")) == (State.SUCCEEDED, 1)


async def test_a_miss_from_before_a_re_send_is_not_counted_after_it(sandbox: Sandbox) -> None:
    async with scene(sandbox, ONE_TRY) as play:
        script = "reset_before_commit,drop_after_commit"
        await play.world.charge(fault=script, timeout_s=0.5)
        play.time.ahead_s += SETTLED_S
        play.halts.at("inquiry_answered")
        await play.look(until_done=False)
        await until(lambda: play.halts.halted)
        await play.lease_runs_out()
        await play.world.charge(fault=script)
        play.time.ahead_s += SETTLED_S  # the pause lasts until all has settled again
        play.halts.go()
        await until(lambda: not len(play.world.engine.tasks))
        operation = await play.newest()
        assert (operation.state, operation.misses) == (State.UNKNOWN, 0)


async def test_a_look_from_before_all_had_settled_is_no_miss_however_late_its_answer_is_read(sandbox: Sandbox) -> None:
    async with scene(sandbox, ONE_TRY, NOT_STORED) as play:
        await play.world.charge(fault="black_hole(heal_s=60)", timeout_s=0.2)
        await until(lambda: not play.world.engine.in_flight)
        play.time.ahead_s += 1.5
        play.halts.at("inquiry_answered")
        await play.look(until_done=False)
        await until(lambda: play.halts.halted)
        play.time.ahead_s += SETTLED_S
        play.halts.go()
        await until(lambda: not len(play.world.engine.tasks))
        assert (await play.newest()).misses == 0


async def test_a_denial_that_an_inquiry_showed_says_nothing_of_a_later_attempt(sandbox: Sandbox) -> None:
    """Where failed work is done again, the later attempt may be the one that pays."""
    sandbox.set_contract("reexecuted")
    edits = (ONE_TRY, ("errors_under_key: replayed ", "errors_under_key: reexecuted "))
    async with scene(sandbox, *edits) as play:
        script = "reset_before_commit,drop_after_commit"
        await play.world.charge(fault=script, timeout_s=0.5)
        before = await play.newest()
        await play.world.charge(fault=script)
        assert play.world.effects(order="order-1") == 1
        play.time.ahead_s += SETTLED_S
        await play.told(before, ResultClass.FAILED, EvidenceSource.INQUIRY)
        assert (await play.newest()).state is State.UNKNOWN


async def test_what_was_accepted_is_never_absent_however_often_an_operator_asks(sandbox: Sandbox) -> None:
    short = ResolutionRules(settle_s=40.0, resend_for_s=0.0, schedule_s=(1.0, 1.0))
    async with scene(sandbox, ONE_TRY, NOT_STORED, resolve=short) as play:
        reply = await play.world.charge(source="tok_processing", fault="drop_after_commit", timeout_s=0.5)
        await play.settle_what_is_missing(reply.operation_id or "", 1)
        assert (await play.newest()).state is State.PENDING
        sandbox.bank._charges.clear()  # the provider's look-up has lost it
        parked = await play.settle_what_is_missing(reply.operation_id or "", 10)
        assert parked.state is State.REQUIRES_REVIEW
        for _ in range(6):
            play.time.ahead_s += SETTLED_S
            now = await play.newest()
            await play.journal.record(OperationChange(now.changed(due_at=play.time.now()), (), source="operator"))
            await play.look()
        assert (await play.newest()).state is State.REQUIRES_REVIEW


# --- who heard


async def test_an_answer_that_its_own_event_overtook_was_heard_by_its_caller(sandbox: Sandbox) -> None:
    """The event comes while the caller waits. Without this its next equal purchase would be given this answer: one
    payment too few."""
    async with scene(sandbox) as play:
        first = asyncio.ensure_future(play.world.charge("first", order=None, fault="slow(slow_s=0.3)"))
        await until(lambda: play.world.arrivals)
        await play.told(await play.newest("first"), ResultClass.SUCCEEDED)
        assert (await first).status_code == 200
        assert not (await play.newest("first")).undelivered
        second = await play.world.charge("second", order=None)
        assert (second.operation_id != (await first).operation_id, play.world.effects()) == (True, 2)


async def test_while_an_answer_is_on_its_way_its_event_lets_no_second_payment_begin(sandbox: Sandbox) -> None:
    async with scene(sandbox) as play:
        first = asyncio.ensure_future(play.world.charge("first", order=None, fault="slow(slow_s=0.3)"))
        await until(lambda: play.world.arrivals)
        await play.told(await play.newest("first"), ResultClass.SUCCEEDED)
        second = await play.world.charge("second", order=None)
        assert (second.status_code, second.problem) == (409, Problem.GUARDED)
        await first
        assert play.world.effects() == 1


async def test_an_answer_whose_holder_died_after_its_event_reached_nobody(sandbox: Sandbox) -> None:
    async with scene(sandbox) as play:
        first = asyncio.ensure_future(play.world.charge("first", order=None, fault="slow(slow_s=0.3)"))
        await until(lambda: play.world.arrivals)
        await play.told(await play.newest("first"), ResultClass.SUCCEEDED)
        await play.lease_runs_out()
        assert (await play.newest("first")).undelivered
        await first


async def test_a_repeat_that_waited_has_heard_what_the_first_caller_left(sandbox: Sandbox) -> None:
    async with scene(sandbox) as play:
        first = asyncio.ensure_future(gone(play.world, "first", fault="slow(slow_s=0.3)"))
        await until(lambda: play.world.arrivals)
        repeat = await play.world.charge("first", order=None)
        await first
        assert (repeat.status_code, (await play.newest("first")).undelivered) == (200, False)
        other = await play.world.charge("second", order=None)
        assert (other.operation_id != repeat.operation_id, play.world.effects()) == (True, 2)


async def test_a_repeat_at_another_sidecar_has_heard_it_too(sandbox: Sandbox) -> None:
    async with scene(sandbox) as play:
        other = await another_sidecar(play)
        first = asyncio.ensure_future(gone(play.world, "first", fault="slow(slow_s=0.3)"))
        await until(lambda: play.world.arrivals)
        repeat = await other.charge("first", order=None)
        await first
        assert (repeat.status_code, (await play.newest("first")).undelivered) == (200, False)
        await other.engine.tasks.close(5.0)
        await other.engine.pipeline.sender.upstream.close()


async def test_an_answer_taken_by_a_caller_that_had_gone_waits_for_its_key_alone(sandbox: Sandbox) -> None:
    async with scene(sandbox) as play:
        await gone(play.world, "first", fault="slow(slow_s=0.1)")
        await play.world.charge("second", order=None, still_there=lambda: False)
        third = await play.world.charge("third", order=None)
        assert (third.status_code, third.replayed, play.world.effects()) == (409, False, 1)
        again = await play.world.charge("second", order=None)
        assert (again.status_code, again.replayed, play.world.effects()) == (200, True, 1)


async def test_an_answer_that_its_own_key_was_given_waits_for_that_key_alone(sandbox: Sandbox) -> None:
    """Of two calls under the key at once one was told, and the other gave the answer back."""
    async with scene(sandbox) as play:
        await gone(play.world, "first", fault="slow(slow_s=0.1)")
        await play.world.charge("first", order=None, still_there=lambda: False)
        other = await play.world.charge("second", order=None)
        assert (other.status_code, other.replayed, play.world.effects()) == (409, False, 1)
        again = await play.world.charge("first", order=None)
        assert (again.status_code, again.replayed, play.world.effects()) == (200, True, 1)


async def test_an_answer_withheld_for_its_takers_credential_is_still_to_be_taken(sandbox: Sandbox) -> None:
    async with scene(sandbox) as play:
        await gone(play.world, "first", fault="slow(slow_s=0.1)")
        rotated = {"Authorization": "Bearer rotated"}
        refused = await play.world.charge("second", order=None, headers=rotated)
        assert refused.problem is Problem.ACCOUNT_UNKNOWN
        third = await play.world.charge("third", order=None)
        assert (third.status_code, third.replayed, play.world.effects()) == (200, True, 1)


async def test_a_pending_payment_that_was_heard_of_is_not_given_to_the_next_equal_call(sandbox: Sandbox) -> None:
    async with scene(sandbox) as play:
        reply = await play.world.charge("first", order=None, source="tok_processing")
        assert outcome(reply) == "pending"
        sandbox.bank.settle(sandbox.bank.charge(json.loads(reply.body)["id"]), ChargeStatus.SUCCEEDED)
        await play.settle_what_is_missing(reply.operation_id or "", 3)
        operation = await play.newest("first")
        assert (operation.state, operation.undelivered) == (State.SUCCEEDED, False)


async def test_a_pending_payment_that_nobody_heard_of_is_taken_by_the_next_equal_call(sandbox: Sandbox) -> None:
    async with scene(sandbox) as play:
        await gone(play.world, "first", source="tok_processing", fault="slow(slow_s=0.1)")
        again = await play.world.charge("second", order=None, source="tok_processing")
        assert (outcome(again), len(play.world.arrivals)) == ("pending", 1)


# --- what contradicts a failure


async def test_an_intent_whose_failure_turned_out_to_be_paid_is_not_paid_again(sandbox: Sandbox) -> None:
    """Told not sent, and found paid: until a person has looked, another key must not pay it again."""
    async with scene(sandbox, ONE_TRY, NOT_STORED) as play:
        lost = await play.world.charge("first", fault="drop_after_commit")
        operation = await play.newest("first")
        await play.told(operation, ResultClass.FAILED, EvidenceSource.OPERATOR)
        await play.told(await play.newest("first"), ResultClass.SUCCEEDED)
        disputed = await play.newest("first")
        assert (disputed.state, disputed.incident) == (State.FAILED, "success_after_failure")
        for again in (await play.world.charge("second"), await play.world.charge("third", amount=5)):
            assert again.status_code in {409, 504}
            assert again.operation_id == lost.operation_id
        assert play.world.effects(order="order-1") == 1


async def test_a_payment_that_its_answer_contradicts_is_not_made_again_under_a_fresh_key(
    sandbox: Sandbox,
) -> None:
    """Found by a storm (seed 20, a job paid three times): its event showed it paid, its answer showed another name. It
    is paid all the same: its reply stands, and carries the incident."""
    async with scene(sandbox, ONE_TRY) as play:
        call = asyncio.ensure_future(play.world.charge("first", order=None, fault="slow(slow_s=0.2)"))
        await until(lambda: play.world.arrivals)
        operation = await play.newest("first")
        await play.told(operation, ResultClass.SUCCEEDED, reference="ch_of_another_name")
        reply = await call
        assert (reply.status_code, dict(reply.headers)[b"Paywitness-Incident"]) == (200, b"two_references")
        again = await play.world.charge("second", order=None)
        assert (again.status_code, play.world.effects()) == (409, 1)


async def test_a_waiting_repeat_is_not_told_that_nothing_was_sent_over_an_open_incident(sandbox: Sandbox) -> None:
    async with scene(sandbox, ONE_TRY, NOT_STORED) as play:
        await play.world.charge("first", fault="drop_after_commit")
        operation = await play.newest("first")
        play.time.ahead_s += SETTLED_S
        held = await play.journal.record(holding(operation, "resolver"))
        other = await another_sidecar(play, NOT_STORED)
        repeat = asyncio.ensure_future(other.charge("first"))
        await asyncio.sleep(0.02)
        absent = held.changed(
            state=State.FAILED,
            doubt=frozenset(),
            result_class=ResultClass.ABSENT,
            effect=Effect.NONE,
            key_released=True,
            lease=None,
        )
        await play.journal.record(OperationChange(absent.changed(incident="success_after_failure"), ()))
        assert (await repeat).status_code == 504
        await other.engine.tasks.close(5.0)
        await other.engine.pipeline.sender.upstream.close()


async def test_a_decline_after_its_event_told_success_is_a_contradiction_and_no_answer(sandbox: Sandbox) -> None:
    async with scene(sandbox) as play:
        call = asyncio.ensure_future(play.world.charge(source="tok_stolen_card", fault="slow(slow_s=0.2)"))
        await until(lambda: play.world.arrivals)
        await play.told(await play.newest(), ResultClass.SUCCEEDED)
        reply = await call
        assert (reply.status_code, "failure_after_success" in reply.body.decode()) == (504, True)
        assert (await play.newest()).state is State.SUCCEEDED


async def test_an_older_event_that_comes_after_a_decline_contradicts_nothing(sandbox: Sandbox) -> None:
    """Found by a storm (seed 1, out of order): accepted, declined, told the other way round. It was a 504 for ever."""
    async with scene(sandbox) as play:
        declined = await play.world.charge("first", source="tok_stolen_card")
        await play.told(await play.newest("first"), ResultClass.PENDING)
        assert (await play.newest("first")).incident is None
        assert (await play.world.charge("first", source="tok_stolen_card")).body == declined.body
        assert (await play.world.charge("second")).status_code == 200


async def test_an_acceptance_told_of_what_was_never_to_have_arrived_is_a_contradiction(sandbox: Sandbox) -> None:
    async with scene(sandbox, ONE_TRY, NOT_STORED) as play:
        lost = await play.world.charge(fault="reset_before_commit", timeout_s=0.5)
        play.time.ahead_s += SETTLED_S
        absent = await play.settle_what_is_missing(lost.operation_id or "", 8)
        assert absent.result_class is ResultClass.ABSENT
        await play.told(absent, ResultClass.PENDING)
        assert (await play.newest()).incident == "success_after_failure"


@pytest.mark.parametrize("source", [EvidenceSource.INQUIRY, EvidenceSource.WEBHOOK])
async def test_a_denial_of_the_attempt_that_was_told_no_does_not_end_the_doubt_of_the_other(
    sandbox: Sandbox, source: EvidenceSource
) -> None:
    """Failed work is done again: the denial that is found is the re-send's own, and the first may still be paid."""
    edits = (ONE_TRY, ("errors_under_key: replayed ", "errors_under_key: reexecuted "))
    async with scene(sandbox, *edits) as play:
        script = "reset_before_commit,declined"
        await play.world.charge(fault=script, timeout_s=0.5)
        await play.world.charge(fault=script)
        operation = await play.newest()
        assert (operation.state, operation.doubt) == (State.UNKNOWN, frozenset({1}))
        await play.told(operation, ResultClass.ISSUER_HARD_DECLINE, source)
        assert (await play.newest()).state is State.UNKNOWN
        play.time.ahead_s += SETTLED_S
        await play.told(await play.newest(), ResultClass.ISSUER_HARD_DECLINE, source)
        # What an inquiry finds then is how it stands; an event tells of one execution, and not of which.
        assert (await play.newest()).state is (State.FAILED if source is EvidenceSource.INQUIRY else State.UNKNOWN)


async def test_an_operators_failure_that_the_inquiry_under_way_refutes_is_an_incident(sandbox: Sandbox) -> None:
    async with scene(sandbox, ONE_TRY, NOT_STORED) as play:
        await play.world.charge(fault="drop_after_commit", timeout_s=0.5)
        await until(lambda: not play.world.engine.in_flight)
        play.time.ahead_s += 2
        play.halts.at("inquiry_answered")
        await play.look(until_done=False)
        await until(lambda: play.halts.halted)
        await play.told(await play.newest(), ResultClass.FAILED, EvidenceSource.OPERATOR)
        play.halts.go()
        await until(lambda: not len(play.world.engine.tasks))
        operation = await play.newest()
        assert (operation.state, operation.incident) == (State.FAILED, "success_after_failure")
        assert (await play.world.charge()).status_code == 504


async def test_what_ended_while_its_last_look_was_under_way_is_left_as_it_is(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    once = ResolutionRules(settle_s=40.0, resend_for_s=0.0, schedule_s=(1.0,))
    async with scene(sandbox, ONE_TRY, NOT_STORED, resolve=once) as play:
        await play.world.charge(fault="drop_after_commit", timeout_s=0.5)
        await until(lambda: not play.world.engine.in_flight)
        sandbox.set_schedule({"read_faults": "error_500*"})
        play.time.ahead_s += 2
        play.halts.at("inquiry_answered")
        await play.look(until_done=False)
        await until(lambda: play.halts.halted)
        await play.told(await play.newest(), ResultClass.SUCCEEDED)
        play.halts.go()
        await until(lambda: not len(play.world.engine.tasks))
        operation = await play.newest()
        assert (operation.state, operation.lease, operation.due_at) == (State.SUCCEEDED, None, None)
        assert "died" not in caplog.text


# --- joined keys


async def test_both_keys_of_a_purchase_that_was_not_sent_may_try_again_at_once_and_one_pays(sandbox: Sandbox) -> None:
    once = ("network_connect_failure: {attempts: 4", "network_connect_failure: {attempts: 1")
    async with scene(sandbox, once) as play:
        sandbox.add_outage({"mode": "refuse", "duration_s": 0.3})
        await until(lambda: not sandbox.listening)
        both = await asyncio.gather(play.world.charge("first"), play.world.charge("joined"))
        assert {reply.status_code for reply in both} == {503}
        await until(lambda: sandbox.listening)
        slow = "slow(slow_s=0.1)"
        again = await asyncio.gather(*(play.world.charge(key, fault=slow) for key in ("joined", "first") * 3))
        assert {reply.status_code for reply in again} == {200}
        assert len({reply.operation_id for reply in again}) == 1
        assert play.world.effects(order="order-1") == 1
        for key in ("first", "joined"):
            assert (await play.world.charge(key)).operation_id == again[0].operation_id


async def test_a_joined_key_under_another_credential_neither_sends_nor_hears(sandbox: Sandbox) -> None:
    async with scene(sandbox, ONE_TRY) as play:
        await play.world.charge("first", fault="drop_after_commit", timeout_s=0.5)
        arrived = len(play.world.arrivals)
        other = {"Authorization": "Bearer somebody else's"}
        joined = await play.world.charge("second", headers=other)
        assert (joined.status_code, len(play.world.arrivals)) == (504, arrived)
        assert (await play.world.charge("first")).status_code == 200
        again = await play.world.charge("second", headers=other)
        assert again.problem is Problem.ACCOUNT_UNKNOWN


async def test_saying_distinct_joins_an_open_purchase_and_pays_after_it(sandbox: Sandbox) -> None:
    async with scene(sandbox, ONE_TRY, NOT_STORED) as play:
        lost = await play.world.charge("first", fault="drop_after_commit", timeout_s=0.5)
        meant = CallerOptions(distinct="two seats")
        joined = await play.world.charge("second", options=meant)
        assert (joined.status_code, joined.operation_id) == (504, lost.operation_id)
        await play.told(await play.newest("first"), ResultClass.SUCCEEDED)
        third = await play.world.charge("third", options=meant)
        assert (third.status_code, play.world.effects(order="order-1")) == (200, 2)


# --- clocks


async def test_a_wall_clock_that_was_put_back_does_not_use_up_the_schedule(sandbox: Sandbox) -> None:
    short = ResolutionRules(settle_s=40.0, resend_for_s=0.0, schedule_s=(1.0,) * 8)
    async with scene(sandbox, ONE_TRY, NOT_STORED, resolve=short) as play:
        sandbox.set_schedule({"read_faults": "error_500*"})
        await play.world.charge("before", order="another")
        play.time.ahead_s -= 3600
        await play.world.charge(fault="drop_after_commit", timeout_s=0.5)
        await until(lambda: not play.world.engine.in_flight)
        for _ in range(20):
            await play.look()
        operation = await play.newest()
        assert (operation.state, operation.checks_done < 4) == (State.UNKNOWN, True)


# --- late evidence


async def test_a_late_success_while_a_re_send_is_under_way_is_one_effect_and_heard(sandbox: Sandbox) -> None:
    async with scene(sandbox, ONE_TRY) as play:
        script = "drop_after_commit,slow(slow_s=0.3)"
        await play.world.charge("first", order=None, fault=script, timeout_s=0.5)
        operation = await play.newest("first")
        repeat = asyncio.ensure_future(play.world.charge("first", order=None, fault=script))
        await until(lambda: len(play.world.arrivals) == 2)
        charge = sandbox.ledger.entries[0].charge
        await play.told(operation, ResultClass.SUCCEEDED, reference=charge)
        reply = await repeat
        ended = await play.newest("first")
        assert (reply.status_code, ended.state, ended.incident, ended.lease) == (200, State.SUCCEEDED, None, None)
        assert (ended.undelivered, play.world.effects()) == (False, 1)


async def test_the_same_event_applied_ten_times_at_once_is_one_change(sandbox: Sandbox) -> None:
    async with scene(sandbox, ONE_TRY, NOT_STORED) as play:
        await play.world.charge(fault="drop_after_commit", timeout_s=0.5)
        operation = await play.newest()
        applied = await asyncio.gather(
            *(play.told(operation, ResultClass.SUCCEEDED, reference="ch_1") for _ in range(10))
        )
        assert len([each for each in applied if each.event is not None]) == 1
        assert (await play.newest()).version == operation.version + 1
