"""Guards, with the sandbox's ledger as judge: fresh keys on every retry, and one effect all the same."""

from __future__ import annotations

import asyncio
import json

import pytest

from paywitness.core.call import CallerOptions
from paywitness.core.operation import State
from paywitness.journal.base import OperationQuery
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, header, make_world, outcome, problem_type, until

BEARER = {"Authorization": "Bearer test", "Content-Type": "application/json"}


async def refund(world: World, charge: str, key: str, fault: str = "") -> tuple[int, str | None]:
    headers = {**BEARER, "Idempotency-Key": key, **({"Sandbox-Fault": fault} if fault else {})}
    reply = await world.post(f"/v1/charges/{charge}/refunds", {"amount": 100}, headers)
    return reply.status_code, reply.problem


async def in_doubt(sandbox: Sandbox) -> World:
    """A world in which a lost answer stays lost: nothing is re-sent, and nobody asks."""
    return await make_world(sandbox, ("errors_under_key: replayed ", "errors_under_key: not_stored "))


async def test_an_equal_call_with_a_fresh_key_joins_the_first_in_flight(world: World) -> None:
    calls = [world.charge(f"fresh-{number}", fault="slow(slow_s=0.3)") for number in range(20)]
    replies = await asyncio.gather(*calls)
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.body for reply in replies}) == 1
    assert len({header(reply, "Paywitness-Operation") for reply in replies}) == 1
    assert world.effects(order="order-1") == 1


async def test_each_joined_keys_own_repeat_gets_the_firsts_answer(world: World) -> None:
    first, joined = await asyncio.gather(
        world.charge("first", fault="slow(slow_s=0.2)"), world.charge("joined", fault="slow(slow_s=0.2)")
    )
    for key in ("first", "joined", "joined"):
        again = await world.charge(key)
        assert (again.status_code, again.body) == (200, first.body)
        assert header(again, "Paywitness-Operation") == header(joined, "Paywitness-Operation")
    assert world.effects(order="order-1") == 1
    other_body = await world.charge("joined", amount=5)
    assert (other_body.status_code, problem_type(other_body)) == (422, "key-reused")


async def test_an_equal_call_joins_a_doubt_and_another_body_is_refused_naming_it(sandbox: Sandbox) -> None:
    world = await in_doubt(sandbox)
    lost = await world.charge("first", fault="drop_after_commit")
    operation = header(lost, "Paywitness-Operation")
    joined = await world.charge("second")
    assert (joined.status_code, header(joined, "Paywitness-Operation")) == (504, operation)
    refused = await world.charge("third", amount=5)
    assert (refused.status_code, problem_type(refused)) == (409, "guarded")
    assert json.loads(refused.body)["operation"] == operation
    assert json.loads(refused.body)["sent"] is False
    assert outcome(refused) == "unknown"
    assert world.effects(order="order-1") == 1
    await close(world)


async def test_a_fresh_key_in_doubt_may_carry_the_same_key_re_send_of_the_first(sandbox: Sandbox) -> None:
    world = await make_world(sandbox)
    lost = await world.charge("first", fault="drop_after_commit*", timeout_s=0.3)
    assert lost.status_code == 504
    await until(lambda: not world.engine.in_flight)
    again = await world.charge("fresh")
    assert again.status_code in {200, 504}
    if again.status_code == 504:  # the fault is in the kept request, which is what is sent again
        assert world.effects(order="order-1") == 1
    assert {arrival.key for arrival in world.arrivals} == {"first"}
    await close(world)


async def test_a_pending_payment_is_joined(world: World) -> None:
    first = await world.charge("first", source="tok_processing")
    joined = await world.charge("second", source="tok_processing")
    assert (outcome(first), outcome(joined)) == ("pending", "pending")
    assert header(first, "Paywitness-Operation") == header(joined, "Paywitness-Operation")
    assert len(world.arrivals) == 1


async def test_a_paid_intent_is_replayed_to_an_equal_call_and_refused_to_another(world: World) -> None:
    first = await world.charge("first")
    again = await world.charge("second")
    assert (again.status_code, again.body, header(again, "Paywitness-Replayed")) == (200, first.body, "true")
    assert (header(again, "Paywitness-Key"), again.operation_id) == ("first", first.operation_id)  # whose answer it is
    other = await world.charge("third", amount=5)
    assert (other.status_code, problem_type(other)) == (409, "guarded")
    assert world.effects(order="order-1") == 1


async def test_after_a_decline_a_fresh_key_is_a_new_operation(world: World) -> None:
    declined = await world.charge("first", source="tok_stolen_card")
    paid = await world.charge("second")
    assert (declined.status_code, paid.status_code) == (402, 200)
    assert header(declined, "Paywitness-Operation") != header(paid, "Paywitness-Operation")


@pytest.mark.parametrize("again", ["flag", "allow"])
async def test_a_second_payment_of_an_intent_may_start_where_the_policy_lets_it(sandbox: Sandbox, again: str) -> None:
    world = await make_world(sandbox, ("after_success: block", f"after_success: {again}"))
    first = await world.charge("first")
    second = await world.charge("second", amount=5)
    assert first.status_code == 200
    assert world.effects(order="order-1") == 2
    if again == "flag":  # both were paid: a person must look, and nothing is replayed over it
        assert (second.status_code, "duplicate_success" in second.body.decode()) == (504, True)
        (disputed,) = await world.journal.find_operations(OperationQuery(incidents_only=True))
        assert disputed.incident == "duplicate_success"
    else:
        assert second.status_code == 200
    await close(world)


async def test_saying_that_it_is_meant_twice_is_believed_and_kept(world: World) -> None:
    await world.charge("first")
    again = await world.charge("second", options=CallerOptions(distinct="a second ticket"))
    assert (again.status_code, header(again, "Paywitness-Replayed")) == (200, None)
    assert world.effects(order="order-1") == 2
    operation = await world.journal.read(header(again, "Paywitness-Operation") or "")
    assert operation is not None
    assert (operation.distinct, operation.incident) == ("a second ticket", None)


async def test_an_open_intent_is_not_lifted_by_saying_so(sandbox: Sandbox) -> None:
    world = await in_doubt(sandbox)
    await world.charge("first", fault="drop_after_commit")
    again = await world.charge("second", amount=5, options=CallerOptions(distinct="really"))
    assert (again.status_code, problem_type(again)) == (409, "guarded")
    await close(world)


async def test_two_equal_refunds_at_once_are_one_effect_and_one_after_the_other_two(world: World) -> None:
    charge = json.loads((await world.charge()).body)["id"]
    answers = await asyncio.gather(
        refund(world, charge, "refund-1", "slow(slow_s=0.3)"), refund(world, charge, "refund-2", "slow(slow_s=0.3)")
    )
    assert sorted(answers, key=str) == [(200, None), (409, "guarded")]
    assert world.effects(kind="refund") == 1
    assert await refund(world, charge, "refund-3") == (200, None)
    assert await refund(world, charge, "refund-4") == (200, None)
    assert world.effects(kind="refund") == 3


async def test_an_answer_that_reached_nobody_is_taken_by_the_next_equal_call_once(world: World) -> None:
    gone = False
    call = asyncio.ensure_future(
        world.charge("first", order=None, fault="slow(slow_s=0.2)", still_there=lambda: not gone)
    )
    await until(lambda: world.arrivals)
    gone = True
    first = await call
    await until(lambda: not world.engine.in_flight)
    taken = await world.charge("second", order=None)
    assert (taken.status_code, taken.body) == (200, first.body)
    assert header(taken, "Paywitness-Operation") == header(first, "Paywitness-Operation")
    assert world.effects() == 1
    third = await world.charge("third", order=None)  # the answer was taken: this is another payment
    assert header(third, "Paywitness-Operation") != header(first, "Paywitness-Operation")
    assert world.effects() == 2


async def test_one_answer_for_which_both_keys_come_back_is_an_incident(world: World) -> None:
    gone = False
    call = asyncio.ensure_future(
        world.charge("first", order=None, fault="slow(slow_s=0.2)", still_there=lambda: not gone)
    )
    await until(lambda: world.arrivals)
    gone = True
    await call
    await until(lambda: not world.engine.in_flight)
    assert (await world.charge("second", order=None)).status_code == 200
    assert (await world.charge("second", order=None)).status_code == 200
    back = await world.charge("first", order=None)
    assert (back.status_code, "both_keys_returned" in back.body.decode()) == (504, True)
    assert world.effects() == 1


async def test_a_key_of_ours_escapes_the_fingerprints_guard(world: World) -> None:
    first, second = await asyncio.gather(
        world.charge(None, order=None, options=CallerOptions(key="a"), fault="slow(slow_s=0.2)"),
        world.charge(None, order=None, options=CallerOptions(key="b"), fault="slow(slow_s=0.2)"),
    )
    assert (first.status_code, second.status_code, world.effects()) == (200, 200, 2)


async def test_without_an_intent_equal_calls_at_once_are_one_effect(world: World) -> None:
    replies = await asyncio.gather(
        *(world.charge(f"fresh-{number}", order=None, fault="slow(slow_s=0.3)") for number in range(5))
    )
    assert sorted(reply.status_code for reply in replies) == [200, 409, 409, 409, 409]
    assert world.effects() == 1


async def test_a_refused_key_is_free_when_the_guard_is(world: World) -> None:
    charge = json.loads((await world.charge()).body)["id"]
    slow = asyncio.ensure_future(refund(world, charge, "refund-1", "slow(slow_s=0.3)"))
    await until(lambda: len(world.arrivals) == 2)
    assert await refund(world, charge, "refund-2") == (409, "guarded")
    assert await slow == (200, None)
    assert await refund(world, charge, "refund-2") == (200, None)
    found = await world.journal.find_operations(OperationQuery(key="refund-2"))
    assert {operation.state for operation in found} == {State.SUCCEEDED}
