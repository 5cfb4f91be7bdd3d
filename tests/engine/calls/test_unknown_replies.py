"""How long a caller is kept waiting for an unknown outcome: as long as something more can be learnt, and no longer. And
what may be done with a reply of which nobody knows whether it was told."""

from __future__ import annotations

import asyncio
import json

from paywitness.core.call import CallerOptions
from paywitness.core.operation import State
from paywitness.core.policy import ResolutionRules
from paywitness.core.problems import Problem
from paywitness_sandbox.bank.objects import ChargeStatus
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.resolution.test_resolver import REEXECUTED, resolving
from tests.engine.test_attacks import gone, scene
from tests.engine.test_visibility import question
from tests.engine.world import World, header, make_world, outcome, until

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
        assert "its response leaves open" in json.loads(reply.body)["detail"]
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


async def test_a_2xx_that_no_row_knows_is_not_asked_for_again_first(sandbox: Sandbox) -> None:
    """It was sent again as often as a lost response, and the caller was told that the answer was lost."""
    async with resolving(sandbox, NO_ROW_FOR_PENDING, REEXECUTED, resolve=RARELY) as world, asyncio.timeout(PATIENT_S):
        reply = await world.charge(source="tok_processing")
        assert (reply.status_code, outcome(reply), reply.problem) == (200, "unknown", None)
        assert sum(arrival.method == "POST" for arrival in world.arrivals) == 1


async def test_a_2xx_that_was_passed_on_is_not_given_to_the_next_equal_payment(sandbox: Sandbox) -> None:
    """An inquiry found later that it was paid. Its caller has had the provider's response: a second payment that was
    meant got the same reply, and was never made."""
    async with scene(sandbox, NO_ROW_FOR_PENDING) as play:
        first = await play.world.charge("first", order=None, source="tok_processing")
        assert (first.status_code, outcome(first)) == (200, "unknown")
        sandbox.bank.settle(sandbox.bank.charge(json.loads(first.body)["id"]), ChargeStatus.SUCCEEDED)
        await play.settle_what_is_missing(first.operation_id or "", 3)
        assert (await play.newest("first")).state is State.SUCCEEDED
        again = await play.world.charge("second", order=None, source="tok_processing")
        assert (again.status_code, again.problem, again.replayed) == (409, Problem.GUARDED, False)
        assert "not known whether its caller was told" in json.loads(again.body)["detail"]
        same = await play.world.charge("first", order=None, source="tok_processing")
        assert (same.status_code, outcome(same), same.replayed) == (200, "succeeded", True)
        await play.world.charge("second", order=None, source="tok_processing")
        assert play.world.effects() == 2  # its own key has heard of the first: the next one is another payment


async def test_a_2xx_whose_caller_had_gone_is_taken_by_the_next_equal_payment(sandbox: Sandbox) -> None:
    async with scene(sandbox, NO_ROW_FOR_PENDING) as play:
        await gone(play.world, "first", source="tok_processing", fault="slow(slow_s=0.1)")
        await until(lambda: not play.world.engine.in_flight and not len(play.world.engine.tasks))
        made = await play.newest("first")
        sandbox.bank.settle(sandbox.bank.charge(made.reference or ""), ChargeStatus.SUCCEEDED)
        await play.settle_what_is_missing(made.id, 3)
        again = await play.world.charge("second", order=None, source="tok_processing")
        assert (again.status_code, again.replayed, play.world.effects()) == (200, True, 1)


async def test_a_reply_of_which_somebody_asked_is_not_given_to_the_next_equal_payment(sandbox: Sandbox) -> None:
    """A caller that was told 504 asks by the operation's id, as the problem says, and hears that it was paid. The next
    equal payment was meant, and got that reply in place of one of its own."""
    async with scene(sandbox) as play:
        await gone(play.world, "first", fault="slow(slow_s=0.1)")
        made = await play.newest("first")
        assert made.undelivered
        stranger = await play.world.engine.describe(made.id, question({"Authorization": "Bearer other"}))
        assert (stranger.status_code, (await play.newest("first")).delivery_unknown) == (404, False)
        asked = await play.world.engine.describe(made.id, question({"Authorization": "Bearer test"}))
        assert outcome(asked) == "succeeded"
        again = await play.world.charge("second", order=None)
        assert (again.status_code, again.problem, play.world.effects()) == (409, Problem.GUARDED, 1)
        distinct = CallerOptions(distinct="two of them")
        await play.world.charge("third", order=None, options=distinct)
        assert play.world.effects() == 2


async def test_who_asks_of_an_order_takes_nothing_from_its_retry(sandbox: Sandbox) -> None:
    async with scene(sandbox) as play:
        await gone(play.world, "first", order="order-1", fault="slow(slow_s=0.1)")
        made = await play.newest("first")
        await play.world.engine.describe(made.id, question({"Authorization": "Bearer test"}))
        again = await play.world.charge("second", order="order-1")
        assert (again.status_code, again.replayed, play.world.effects()) == (200, True, 1)


async def test_a_payment_that_was_refused_and_then_did_not_reach_the_provider_is_not_told_as_never_sent(
    sandbox: Sandbox,
) -> None:
    world = await make_world(sandbox)
    sent = asyncio.ensure_future(world.charge(fault="rate_limited(retry_after_s=1)"))
    await until(lambda: len(world.arrivals) == 1)
    await sandbox.stop()
    reply = await sent
    told = json.loads(reply.body)
    assert (reply.status_code, told["sent"], told["side_effect_may_exist"]) == (503, True, False)
    assert told["title"] == "The provider refused it, and nothing more will be sent"
    await close(world)
