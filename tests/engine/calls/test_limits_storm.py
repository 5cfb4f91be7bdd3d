"""A storm against the shipped limits: whatever they refuse or hold back, nobody pays twice, nothing that was paid is
called failed, and in the end nothing is held."""

from __future__ import annotations

import asyncio
import random

import pytest

from paywitness.core.call import CallerOptions, Priority
from paywitness.core.circuit import CircuitState
from paywitness.core.operation import State
from paywitness.journal.base import OperationQuery
from paywitness.tasks import Tasks
from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.engine.calls.test_admission import few_places
from tests.engine.limits_world import FAST, assert_nothing_is_held, force, limited_world, move
from tests.engine.resolution.test_resolver import CONTRACTS, QUICK, SOON
from tests.engine.world import World, outcome, until

PAYMENTS = 120
FAULTS = {
    "error_503": 0.15,
    "drop_after_commit": 0.1,
    "reset_before_commit": 0.1,
    "hang_after_commit": 0.05,
    "rate_limited(retry_after_s=0)": 0.05,
    "slow(slow_s=0.1)": 0.2,
}


async def one(world: World, number: int, dice: random.Random) -> None:
    """A purchase and its repeats, as impatient callers make them. Each answer is held against the ledger."""
    await asyncio.sleep(dice.uniform(0.0, 1.5))
    order, there = f"order-{number}", [True]
    for _ in range(dice.randint(1, 3)):
        wishes = CallerOptions(timeout_s=dice.choice([0.05, 0.3, 2.0]), priority=dice.choice(list(Priority)))
        there[0] = dice.random() < 0.8
        reply = await world.charge(f"key-{number}", order=order, options=wishes, still_there=lambda: there[0])
        if outcome(reply) == "succeeded":
            assert world.effects(order=order) == 1
        if outcome(reply) in {"failed", "not_sent"}:
            assert world.effects(order=order) == 0


async def weather(world: World) -> None:
    """An operator who closes and opens the circuit, and a fleet that reports."""
    for state in (CircuitState.OPEN, None, CircuitState.OPEN, CircuitState.CLOSED):
        await asyncio.sleep(0.4)
        await force(world, state)
        await world.parts.limits_sync.sync()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_storm_within_limits_ends_rightly_and_holds_nothing(contract: str, seed: int) -> None:
    dice = random.Random(seed)  # a storm that can be had again
    async with (
        Sandbox(SandboxOptions(contract=contract, hang_s=1.0)) as sandbox,
        limited_world(
            sandbox, *QUICK, *FAST, *CONTRACTS[contract], limits=few_places, lease_s=2.0, resolve=SOON
        ) as world,
    ):
        background = Tasks()
        background.start(world.parts.resolver.keep_resolving(), "resolver")
        background.start(world.leases.keep_renewing(), "leases")
        sandbox.set_schedule({"seed": seed, "faults": FAULTS})
        await asyncio.gather(weather(world), *(one(world, number, dice) for number in range(PAYMENTS)))
        sandbox.set_schedule({})
        await background.stop()
        await until(lambda: len(world.engine.tasks) == 0)
        assert_nothing_is_held(world)
        await ended_by_looks(world)
        known = await world.journal.find_operations(OperationQuery(limit=1000))
        for number in range(PAYMENTS):
            states = {operation.state for operation in known if operation.client_key == f"key-{number}"}
            paid = world.effects(order=f"order-{number}")
            assert (State.SUCCEEDED in states) == (paid == 1) or State.REQUIRES_REVIEW in states
        assert not sandbox.ledger.duplicates_by_order()


async def ended_by_looks(world: World) -> None:
    """Everything in doubt is known or in front of a person, within a bounded number of looks."""
    for _ in range(60):
        open_ones = [
            one for one in await world.journal.find_operations(OperationQuery(limit=1000)) if one.due_at is not None
        ]
        if not open_ones:
            return
        await world.journal.expire_leases()
        await world.parts.resolver.start_due()
        await until(lambda: len(world.engine.tasks) == 0)
        move(world, 1.0)
    raise AssertionError(f"still due: {[(one.id, one.state, one.because) for one in open_ones][:3]}")
