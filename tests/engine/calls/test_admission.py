"""Admission in the engine: who goes in, who waits, who is refused; and however a call ends, its place is free again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paywitness.clock import Clock
from paywitness.core.admission import ConcurrencyBounds
from paywitness.core.call import CallerOptions, Priority
from paywitness.core.operation import State
from paywitness.engine import failpoints
from paywitness.journal.base import OperationQuery
from paywitness.limits.admission import Admission
from paywitness.limits.circuits import CurrentRules, LocalCircuits
from paywitness.limits.factory import Limits
from paywitness.randomness import Randomness
from paywitness_sandbox.server import Sandbox
from tests.engine.durability.test_journal_failures import TroubledJournal
from tests.engine.limits_world import (
    FAST,
    NEVER_OPEN,
    ONE_TRY,
    ROOM,
    BookkeptBudgets,
    assert_nothing_is_held,
    counted,
    keys_in_journal,
    limited_by,
    limited_world,
    move,
    posts,
    together,
)
from tests.engine.resolution.test_resolver import QUICK
from tests.engine.world import World, header, outcome, problem_type, until

FEW = 4
LOW, HIGH = CallerOptions(priority=Priority.LOW), CallerOptions(priority=Priority.HIGH)
SLOW = "slow(slow_s=0.6)"


def few_places(book: CurrentRules, clock: Clock, chance: Randomness) -> Limits:
    admission = Admission(clock, chance, ConcurrencyBounds(FEW, FEW, FEW, 2 * FEW))
    return Limits(LocalCircuits(book, clock, chance), BookkeptBudgets(clock, chance), admission)


def crowd(world: World) -> tuple[int, int]:
    """In flight, and waiting."""
    crowds = world.parts.limits.admission.stats()
    return sum(one.in_flight for one in crowds), sum(one.waiting for one in crowds)


def start(world: World, name: str, **call: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(world.charge(name, order=name, **call))


# --- every way a call can end


@pytest.mark.parametrize(
    ("call", "status_code"),
    [
        ({}, 200),
        ({"source": "tok_stolen_card"}, 402),
        ({"source": "tok_3ds"}, 200),
        ({"fault": "drop_after_commit*"}, 504),
        ({"fault": "error_503*"}, 503),
        ({"fault": "error_503,drop_after_commit,-"}, 200),
        ({"fault": "rate_limited(retry_after_s=60)*"}, 429),
        ({"fault": "hang_before_commit*", "timeout_s": 0.2}, 504),
        ({"fault": "hang_before_commit*", "still_there": lambda: False}, 504),
        ({"fault": "garbage*"}, 504),
        ({"key": "k" * 300}, 400),
    ],
)
async def test_however_a_call_ends_its_place_is_free_again(
    sandbox: Sandbox, call: dict[str, Any], status_code: int
) -> None:
    async with limited_world(sandbox, *QUICK, *FAST, *ROOM, NEVER_OPEN[0], limits=few_places) as world:
        for number in range(FEW + 1):
            given = {"key": f"k-{number}", "order": f"o-{number}"} | call
            assert (await world.charge(**given)).status_code == status_code
            if status_code == 429:
                move(world, 61.0)  # until then its credential is held
        await until(lambda: len(world.engine.tasks) == 0)
        assert_nothing_is_held(world)


async def test_a_provider_that_cannot_be_reached_keeps_no_place(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FAST, limits=few_places) as world:
        await sandbox.stop()
        for number in range(FEW + 1):
            assert (await world.charge(f"k-{number}", order=f"o-{number}")).status_code == 503
        assert crowd(world) == (0, 0)


async def test_a_journal_that_is_down_at_the_claim_keeps_no_place(sandbox: Sandbox) -> None:
    journal = TroubledJournal()
    async with limited_world(sandbox, journal=journal, limits=few_places) as world:
        for _ in range(FEW + 1):
            journal.claims_lost_before = 2
            assert problem_type(await world.charge()) == "journal-unavailable"
        assert crowd(world) == (0, 0)
        assert (await world.charge()).status_code == 200


# The first is reached between the claim and the room that writes down what is abandoned, where production never waits;
# the second only by a repeat of something in doubt.
NOT_HERE = {failpoints.SENDING_RECORDED, failpoints.RESEND_RECORDED}


class FailingSteps:
    """Fails whoever reaches the step for the given time."""

    def __init__(self, name: str, times: int, error: BaseException) -> None:
        self.name, self.times, self.error = name, times, error

    async def hit(self, name: str) -> None:
        if name == self.name:
            self.times -= 1
            if self.times == 0:
                raise self.error


@pytest.mark.parametrize("error", [RuntimeError("a fault of ours"), asyncio.CancelledError()], ids=["fault", "cancel"])
@pytest.mark.parametrize("times", [1, 2], ids=["first try", "retry"])
@pytest.mark.parametrize("name", [name for name in failpoints.CALL_FAILPOINTS if name not in NOT_HERE])
async def test_a_fault_of_ours_keeps_no_place_no_grant_and_no_claim(
    sandbox: Sandbox, name: str, times: int, error: BaseException
) -> None:
    steps = FailingSteps(name, times, error)
    async with limited_world(sandbox, *FAST, *ROOM, failpoints=steps, limits=few_places) as world:
        reply = await world.charge(fault="error_503,-")
        await until(lambda: len(world.engine.tasks) == 0)
        assert_nothing_is_held(world)
        for operation in await world.journal.find_operations(OperationQuery()):
            assert operation.lease is None
            assert operation.state is not State.SENDING
            if reply.status_code == 504:
                assert operation.state in {State.UNKNOWN, State.FAILED, State.SUCCEEDED}
        assert world.effects(order="order-1") <= 1


async def test_a_hundred_repeats_at_once_are_one_payment_and_keep_no_place(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, limits=few_places) as world:
        replies = await together(*(world.charge(fault="slow(slow_s=0.2)") for _ in range(100)))
        assert {reply.status_code for reply in replies} == {200}
        assert (len(posts(world)), world.effects(order="order-1"), crowd(world)) == (1, 1, (0, 0))


async def test_a_shutdown_leaves_nothing_in_flight_waiting_or_claimed(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, limits=few_places) as world:
        calls = [start(world, f"k-{n}", fault="hang_before_commit*") for n in range(FEW + 3)]
        await until(lambda: crowd(world) == (FEW, 3) and len(posts(world)) == FEW)
        await world.engine.tasks.close(0.0)
        replies = await together(*calls)
        assert crowd(world) == (0, 0)
        assert [reply.status_code for reply in replies] == [504] * (FEW + 3)
        operations = await world.journal.find_operations(OperationQuery())
        assert len(operations) == FEW  # who waited had written nothing
        assert {(operation.state, operation.lease) for operation in operations} == {(State.UNKNOWN, None)}
        assert len(posts(world)) == FEW


# --- who waits, and who is refused


async def test_one_that_waits_too_long_is_refused_and_leaves_no_trace(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, limits=few_places) as world:
        full = [start(world, f"k-{n}", fault=SLOW) for n in range(FEW)]
        await until(lambda: crowd(world)[0] == FEW)
        reply = await world.charge("late", order="late", timeout_s=1.0)  # waits a quarter of that
        assert (reply.status_code, outcome(reply), limited_by(reply)) == (503, "not_sent", "provider_busy")
        assert int(header(reply, "Retry-After") or "0") >= 1
        assert "late" not in await keys_in_journal(world)
        assert {one.status_code for one in await together(*full)} == {200}
        assert "late" not in posts(world)
        assert counted(world, "payment_refusals_total", provider="acme", reason="provider_busy") == 1


async def test_one_that_waits_goes_in_when_a_place_is_free(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, limits=few_places) as world:
        full = [start(world, f"k-{n}", fault="slow(slow_s=0.3)") for n in range(FEW)]
        await until(lambda: crowd(world)[0] == FEW)
        assert (await world.charge("late", order="late")).status_code == 200
        await together(*full)


async def test_where_low_has_its_part_high_goes_in_at_once(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, limits=few_places) as world:
        assert (await world.charge(options=HIGH)).status_code == 200  # high is in use: a half is kept for it
        low = [
            start(world, f"low-{n}", fault=SLOW, options=CallerOptions(timeout_s=1.0, priority=Priority.LOW))
            for n in range(FEW)
        ]
        await until(lambda: crowd(world) == (FEW // 2, FEW // 2))
        assert (await world.charge("high", order="high", options=HIGH)).status_code == 200
        assert not any(call.done() for call in low)
        replies = await together(*low)
        assert sorted(reply.status_code for reply in replies) == [200, 200, 503, 503]
        assert {limited_by(reply) for reply in replies if reply.status_code == 503} == {"provider_busy"}


async def test_high_takes_the_place_of_a_low_one_that_waits_in_a_full_queue(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, limits=few_places) as world:
        full = [start(world, f"k-{n}", fault=SLOW, options=LOW) for n in range(FEW)]
        await until(lambda: crowd(world)[0] == FEW)
        waiting = [start(world, f"w-{n}", options=LOW) for n in range(2 * FEW)]
        await until(lambda: crowd(world)[1] == 2 * FEW)
        refused = await world.charge("one too many", order="one too many", options=LOW)
        assert (refused.status_code, limited_by(refused)) == (503, "provider_queue_full")
        high = start(world, "high", options=HIGH)
        evicted = await asyncio.wait_for(asyncio.shield(waiting[-1]), 0.3)
        assert (evicted.status_code, limited_by(evicted)) == (503, "provider_busy")
        assert (await high).status_code == 200
        assert {reply.status_code for reply in await together(*full, *waiting[:-1])} == {200}
        assert posts(world)[FEW] == "high"


async def test_what_the_policy_calls_low_waits_unless_its_caller_says_otherwise(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, limits=few_places) as world:
        assert (await world.charge(options=HIGH)).status_code == 200
        low = [start(world, f"low-{n}", fault=SLOW, options=LOW) for n in range(FEW // 2)]
        await until(lambda: crowd(world)[0] == FEW // 2)

        async def renew(name: str, wishes: CallerOptions) -> Any:
            body = {"amount": 500, "currency": "EUR", "source": "tok_ok"}
            about = {"metadata": {"order_id": name, "kind": "subscription"}}
            headers = {"Content-Type": "application/json", "Authorization": "Bearer test", "Idempotency-Key": name}
            return await world.post("/v1/charges", body | about, headers, wishes)

        refused = await renew("as the policy says", CallerOptions(timeout_s=1.0))
        assert (refused.status_code, limited_by(refused)) == (503, "provider_busy")
        passed = await renew("as its caller says", CallerOptions(timeout_s=1.0, priority=Priority.HIGH))
        assert passed.status_code == 200
        await together(*low)


async def test_nothing_is_sent_for_a_call_whose_time_is_up_while_it_waits(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, limits=few_places) as world:
        full = [start(world, f"k-{n}", fault=SLOW) for n in range(FEW)]
        await until(lambda: crowd(world)[0] == FEW)
        hasty = await together(*(world.charge(f"h-{n}", order=f"h-{n}", timeout_s=0.01) for n in range(3)))
        assert {(reply.status_code, outcome(reply)) for reply in hasty} == {(503, "not_sent")}
        await together(*full)
        await until(lambda: len(world.engine.tasks) == 0)
        assert set(posts(world)) == {f"k-{n}" for n in range(FEW)}
