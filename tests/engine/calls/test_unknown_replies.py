"""How long a caller is kept waiting for an unknown outcome: as long as something more can be learnt, and no longer."""

from __future__ import annotations

import asyncio
import json

from paywitness.core.policy import ResolutionRules
from paywitness_sandbox.server import Sandbox
from tests.engine.resolution.test_resolver import resolving
from tests.engine.world import World, header, outcome

PATIENT_S = 10.0  # far less than the caller's deadline, and enough for a busy machine
RARELY = ResolutionRules(settle_s=600.0, schedule_s=(15.0, 15.0, 15.0))  # within the deadline of twenty seconds
NO_ROW_FOR_PENDING = ("status == 'processing'", "status == 'processing by another name'")


def inquiries(world: World) -> int:
    return sum(arrival.method == "GET" for arrival in world.arrivals)


async def test_a_2xx_that_no_row_knows_is_passed_on_at_once(sandbox: Sandbox) -> None:
    """It was held until the next looks of the schedule were over: 34 to 43 seconds for each such call."""
    async with resolving(sandbox, NO_ROW_FOR_PENDING, resolve=RARELY) as world, asyncio.timeout(PATIENT_S):
        reply = await world.charge(source="tok_processing")
        assert (reply.status_code, outcome(reply), reply.problem) == (200, "unknown", None)
        assert json.loads(reply.body)["status"] == "processing"
        assert header(reply, "Paywitness-Advice") == "do_not_pay_again"
        assert world.effects(order="order-1") == 1


async def test_the_caller_of_a_stored_500_waits_for_the_look_that_can_be_trusted_and_no_longer(
    sandbox: Sandbox,
) -> None:
    async with resolving(sandbox, resolve=RARELY) as world, asyncio.timeout(PATIENT_S):
        reply = await world.charge(fault="error_500_before_commit")
        assert (reply.status_code, outcome(reply)) == (504, "unknown")
        assert "its answer leaves open" in json.loads(reply.body)["detail"]
        assert inquiries(world) == 2  # at once, and when the look-up cannot be behind any more


async def test_a_look_up_that_is_behind_for_longer_than_the_caller_waits_keeps_nobody_waiting(sandbox: Sandbox) -> None:
    slow_search = ("lag: 300ms ", "lag: 1m ")
    async with resolving(sandbox, slow_search, resolve=RARELY) as world, asyncio.timeout(PATIENT_S):
        reply = await world.charge(fault="error_500_before_commit")
        assert (reply.status_code, outcome(reply), inquiries(world)) == (504, "unknown", 1)


async def test_a_500_after_the_payment_is_answered_with_the_payment(sandbox: Sandbox) -> None:
    async with resolving(sandbox, resolve=RARELY) as world, asyncio.timeout(PATIENT_S):
        reply = await world.charge(fault="error_500_after_commit")
        assert (reply.status_code, outcome(reply)) == (200, "succeeded")
        assert world.effects(order="order-1") == 1
