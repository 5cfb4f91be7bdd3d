"""Retry budgets in the engine: what a budget refuses is not tried again, what is in doubt stays so, and every grant
ends once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from paywitness.clock import Clock
from paywitness.core.call import CallerOptions, Priority
from paywitness.core.circuit import CircuitState
from paywitness.core.errors import StoreUnavailable
from paywitness.core.operation import State
from paywitness.journal.base import OperationQuery
from paywitness.limits.admission import Admission
from paywitness.limits.circuits import CurrentRules
from paywitness.limits.factory import Limits
from paywitness.limits.redis_budgets import RedisBudgets
from paywitness.limits.redis_circuits import RedisCircuits
from paywitness.limits.redis_scripts import Argument
from paywitness.randomness import Randomness
from paywitness.redis.pipeline import LuaScript
from paywitness.tasks import Tasks
from paywitness_sandbox.server import Sandbox
from tests.engine.durability.test_journal_failures import TroubledJournal
from tests.engine.limits_world import (
    FAST,
    NEVER_OPEN,
    ROOM,
    counted,
    ended_grants,
    force,
    limited_by,
    limited_world,
    members,
    move,
    posts,
)
from tests.engine.resolution.test_resolver import QUICK, SOON
from tests.engine.world import World, header, outcome, until

MANY_PER_INTENT = (("  per_intent: 3 ", "  per_intent: 100 "),)
FIVE_TRIES = (
    ("default: {attempts: 3, backoff: full, base: 100ms, cap: 5s}", "default: {attempts: 5, base: 10ms, cap: 20ms}"),
    (
        "network_connect_failure: {attempts: 4, base: 200ms, cap: 2s}",
        "network_connect_failure: {attempts: 9, base: 10ms, cap: 20ms}",
    ),
)
THREE = (  # retries of an account in a minute: on a busy machine a test takes longer than the ten seconds of the policy
    (
        "  window: 10s\n  provider: {floor: 100, ratio: 5%, ceiling: 100%} ",
        "  window: 60s\n  provider: {floor: 100, ratio: 5%, ceiling: 100%}\n  account: {floor: 3} ",
    ),
)
SLOW_RETRY = (
    ("default: {attempts: 3, backoff: full, base: 100ms, cap: 5s}", "default: {attempts: 3, base: 400ms, cap: 400ms}"),
)


# --- exhausted


async def test_without_an_allowance_nothing_more_is_tried_and_the_call_ends_as_not_sent(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FIVE_TRIES, *THREE, *MANY_PER_INTENT) as world:
        await sandbox.stop()
        reply = await world.charge()
        assert (reply.status_code, outcome(reply)) == (503, "not_sent")
        assert limited_by(reply) == "budget_exhausted"
        assert members(reply) | {"own_retries_in_s": 0} == {
            "by": "budget_exhausted",
            "scope": "account",
            "remaining": 0.0,
            "own_retries_in_s": 0,
        }
        (operation,) = await world.journal.find_operations(OperationQuery())
        assert (operation.state, operation.because) == (State.FAILED, "no_effect_budget_exhausted")
        assert operation.attempts == 1 + 3  # the account's floor
        labels = {"provider": "acme", "operation": "sale", "kind": "sale", "scope": "account"}
        assert counted(world, "payment_retry_budget_exhausted_total", **labels) == 1
        assert ended_grants(world) == {"failed": 3}


async def test_a_providers_answer_passes_with_the_scope_that_kept_it_from_being_tried_again(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FIVE_TRIES, *THREE, *MANY_PER_INTENT) as world:
        reply = await world.charge(fault="error_503*")
        assert (reply.status_code, len(posts(world))) == (503, 4)
        assert b"We are busy" in reply.body
        assert (header(reply, "Paywitness-Limited-By") or "").startswith("budget_exhausted; scope=account; remaining=")


async def test_one_in_doubt_without_an_allowance_is_asked_about_and_never_failed(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FIVE_TRIES, *THREE, *MANY_PER_INTENT) as world:
        reply = await world.charge(fault="drop_after_commit*")
        assert (reply.status_code, outcome(reply), limited_by(reply)) == (504, "unknown", "budget_exhausted")
        assert len(posts(world)) == 4
        (operation,) = await world.journal.find_operations(OperationQuery())
        assert (operation.state, operation.because) == (State.UNKNOWN, "in_doubt_ask")
        assert operation.due_at is not None
        assert world.effects(order="order-1") == 1


async def test_one_in_doubt_without_an_allowance_is_answered_by_what_the_resolver_finds(sandbox: Sandbox) -> None:
    async with limited_world(
        sandbox, *QUICK, *FIVE_TRIES, *THREE, *MANY_PER_INTENT, lease_s=1.0, resolve=SOON
    ) as world:
        background = Tasks()
        background.start(world.parts.resolver.keep_resolving(), "resolver")
        reply = await world.charge(fault="drop_after_commit*")
        await background.stop()
        assert (reply.status_code, outcome(reply), len(posts(world))) == (200, "succeeded", 4)
        assert header(reply, "Paywitness-Limited-By") is None
        assert world.effects(order="order-1") == 1


@pytest.mark.parametrize(("fault", "tries"), [("drop_after_commit*", 4), ("error_500_after_commit*", 1)])
async def test_what_is_refused_another_try_is_asked_about_on_schedule_and_all_else_at_once(
    sandbox: Sandbox, fault: str, tries: int
) -> None:
    """In an outage a question for every lost answer would double what the provider gets, before any circuit opens."""
    on_schedule_s = 1.0
    resolve = replace(SOON, schedule_s=(on_schedule_s, 9.0))
    async with limited_world(
        sandbox, *QUICK, *FIVE_TRIES, *THREE, *MANY_PER_INTENT, lease_s=1.0, resolve=resolve
    ) as world:
        background = Tasks()
        background.start(world.parts.resolver.keep_resolving(), "resolver")
        reply = await world.charge(fault=fault)
        await background.stop()
        assert (reply.status_code, len(posts(world))) == (200, tries)
        lost_at, asked_at = (
            max(arrival.at for arrival in world.arrivals if arrival.method == method) for method in ("POST", "GET")
        )
        refused = tries > 1
        assert (asked_at - lost_at >= 0.8 * on_schedule_s) is refused  # steps are jittered by a fifth


async def test_two_lost_responses_in_a_row_at_an_idle_provider_are_both_retried(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FAST) as world:
        for number in range(2):
            reply = await world.charge(f"key-{number}", order=f"order-{number}", fault="drop_after_commit")
            assert (reply.status_code, outcome(reply), limited_by(reply)) == (200, "succeeded", "")
            assert world.effects(order=f"order-{number}") == 1
        assert len(posts(world)) == 4


async def test_a_response_lost_twice_and_another_lost_beside_it_are_retried(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FAST) as world:
        calls = [
            world.charge(f"key-{number}", order=f"order-{number}", fault="drop_after_commit,drop_after_commit,-")
            for number in range(2)
        ]
        replies = await asyncio.gather(*calls)
        assert {(reply.status_code, limited_by(reply)) for reply in replies} == {(200, "")}
        assert len(posts(world)) == 6


async def test_the_fourth_retry_of_a_purchase_is_refused_whatever_operation_asks(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FAST, *ROOM, *NEVER_OPEN) as world:
        first = await world.charge("sale", fault="error_503*")
        assert (first.status_code, posts(world), limited_by(first)) == (503, ["sale"] * 3, "")
        body = {"amount": 1099, "currency": "EUR", "source": "tok_ok", "capture": False}
        headers = {
            "Content-Type": "application/json",
            "Authorization": "Bearer test",
            "Idempotency-Key": "hold",
            "Sandbox-Fault": "error_503*",
        }
        second = await world.post("/v1/charges", body | {"metadata": {"order_id": "order-1"}}, headers)
        assert second.status_code == 503
        assert posts(world)[3:] == ["hold"] * 2
        assert "scope=intent; remaining=0.0" in (header(second, "Paywitness-Limited-By") or "")
        labels = {"provider": "acme", "operation": "authorization", "kind": "authorization", "scope": "intent"}
        assert counted(world, "payment_retry_budget_exhausted_total", **labels) == 1
        other = await world.charge("other", order="order-2", fault="error_503,-")
        assert other.status_code == 200


async def test_low_priority_has_half_of_the_allowance(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FIVE_TRIES, *THREE, *MANY_PER_INTENT) as world:
        await world.charge(fault="error_503*", options=CallerOptions(priority=Priority.LOW))
        assert len(posts(world)) == 1 + 1  # of 3 a half


# --- every grant ends once


async def test_a_retry_that_helps_and_one_that_does_not_are_told_apart(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FAST, *ROOM) as world:
        assert (await world.charge(fault="error_503,error_503,-")).status_code == 200
        assert ended_grants(world) == {"failed": 1, "succeeded": 1}


async def test_a_decline_is_a_retry_that_helped(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FAST, *ROOM) as world:
        assert (await world.charge(fault="error_503,-", source="tok_stolen_card")).status_code == 402
        assert ended_grants(world) == {"succeeded": 1}


async def test_a_retry_is_debited_at_its_decision_and_given_back_if_the_caller_leaves(sandbox: Sandbox) -> None:
    there = True
    async with limited_world(sandbox, *SLOW_RETRY, *ROOM) as world:
        call = asyncio.ensure_future(world.charge(fault="error_503*", still_there=lambda: there))
        await until(lambda: ended_grants(world))
        assert (ended_grants(world), len(posts(world))) == ({"never": 1}, 1)
        there = False
        assert (await call).status_code == 503
        assert (ended_grants(world), len(posts(world))) == ({"refunded": 1}, 1)
        (operation,) = await world.journal.find_operations(OperationQuery())
        assert (operation.state, operation.because) == (State.FAILED, "no_effect_caller_left")


@pytest.mark.parametrize("fault", ["error_503*", "drop_after_commit*"])
async def test_a_retry_is_given_back_if_the_circuit_opens_meanwhile(sandbox: Sandbox, fault: str) -> None:
    async with limited_world(sandbox, *SLOW_RETRY, *ROOM) as world:
        call = asyncio.ensure_future(world.charge(fault=fault))
        await until(lambda: ended_grants(world))
        await force(world, CircuitState.OPEN)
        await call
        assert (ended_grants(world), len(posts(world))) == ({"refunded": 1}, 1)


async def test_a_retry_is_given_back_if_the_journal_does_not_take_its_record(sandbox: Sandbox) -> None:
    journal = TroubledJournal()
    async with limited_world(sandbox, *FAST, *ROOM, journal=journal) as world:
        journal.records_lost_before = 5
        reply = await world.charge(fault="error_503*")
        assert (reply.status_code, outcome(reply)) == (504, "unknown")
        assert (ended_grants(world), len(posts(world))) == ({"refunded": 1}, 1)


async def test_what_was_given_back_can_be_spent_by_another(sandbox: Sandbox) -> None:
    """The account's floor is 2: two retries whose callers left leave all of it."""
    two = ((THREE[0][0], THREE[0][1].replace("account: {floor: 3}", "account: {floor: 2}")),)
    async with limited_world(sandbox, *SLOW_RETRY, *two) as world:
        for number in range(2):
            gone = asyncio.Event()
            name, there = f"left-{number}", partial(_not, gone)
            call = asyncio.ensure_future(world.charge(name, order=name, fault="error_503*", still_there=there))
            await until(lambda: ended_grants(world)["never"] == 1)
            gone.set()
            await call
        assert ended_grants(world) == {"refunded": 2}
        assert (await world.charge(fault="error_503,error_503,-")).status_code == 200


def _not(event: asyncio.Event) -> bool:
    return not event.is_set()


# --- what a clean call costs


class CountedRuns:
    """A store of limits that counts who asks, and does not answer."""

    available = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception = StoreUnavailable("down")

    async def run(self, script: LuaScript, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        self.asked.append(script.name)
        raise self.error


def limits_over(runs: CountedRuns) -> Any:
    def opened(book: CurrentRules, clock: Clock, chance: Randomness) -> Limits:
        circuits = RedisCircuits(runs, "test", book, clock, chance, {})
        return Limits(circuits, RedisBudgets(runs, clock, chance, "test", {}), Admission(clock, chance))

    return opened


async def test_a_call_that_needs_no_retry_asks_no_store(sandbox: Sandbox) -> None:
    runs = CountedRuns()
    async with limited_world(sandbox, *FAST, limits=limits_over(runs)) as world:
        assert (await world.charge()).status_code == 200
        assert (await world.charge()).replayed
        assert (await world.charge("no", order="no", source="tok_stolen_card")).status_code == 402
        assert runs.asked == []
        assert (await world.charge("again", order="again", fault="error_503,-")).status_code == 200
        assert runs.asked == ["budget"]


async def test_a_store_that_is_gone_costs_no_payment(sandbox: Sandbox) -> None:
    runs = CountedRuns()
    async with limited_world(sandbox, *FAST, limits=limits_over(runs)) as world:
        await world.parts.limits_sync.sync()
        assert (await world.charge(fault="error_503,-")).status_code == 200
        move(world, 20.0)
        lost = await world.charge("lost", order="lost", fault="drop_after_commit,-")
        assert (lost.status_code, world.effects(order="lost")) == (200, 1)


async def waited_for(world: World, seconds: float) -> None:
    move(world, seconds)
    await world.parts.limits_sync.sync()


async def test_an_allowance_comes_back_with_time(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FIVE_TRIES, *THREE, *MANY_PER_INTENT) as world:
        await world.charge("a", order="a", fault="error_503*")
        spent = len(posts(world))
        await world.charge("b", order="b", fault="error_503*")
        assert len(posts(world)) == spent + 1
        await waited_for(world, 120.0)
        assert (await world.charge("c", order="c", fault="error_503,-")).status_code == 200
