"""A re-send in the background that our limits hold back comes when they let it, not when the schedule looks again."""

from __future__ import annotations

from dataclasses import replace

from paywitness.core.circuit import CircuitState
from paywitness.core.operation import State
from paywitness.journal.base import OperationQuery
from paywitness_sandbox.server import Sandbox
from tests.engine.durability.test_journal_failures import TroubledJournal
from tests.engine.limits_world import ONE_TRY, ROOM, force, limited_world, move, posts
from tests.engine.resolution.test_resolver import QUICK, SOON
from tests.engine.world import World, problem_type, until

RARELY = replace(SOON, settle_s=900.0, resend_for_s=300.0, schedule_s=(0.1, 600.0, 600.0))


def later(world: World, journal: TroubledJournal, seconds: float) -> None:
    move(world, seconds)
    journal.time.ahead_s += seconds


async def test_a_resend_that_was_held_back_is_sent_when_the_limits_let_it_and_uses_up_no_look(sandbox: Sandbox) -> None:
    journal = TroubledJournal()
    async with limited_world(sandbox, *QUICK, *ONE_TRY, *ROOM, journal=journal, lease_s=1.0, resolve=RARELY) as world:
        assert problem_type(await world.charge(fault="close_before_commit")) == "unknown"
        await force(world, CircuitState.OPEN)
        later(world, journal, 0.2)
        assert await world.parts.resolver.start_due() == 1
        await until(lambda: len(world.engine.tasks) == 0)
        (operation,) = await world.journal.find_operations(OperationQuery())
        assert (operation.state, operation.checks_done, operation.lease) == (State.UNKNOWN, 0, None)
        assert len(posts(world)) == 1
        await force(world, None)
        while operation.state is State.UNKNOWN:  # once or twice: a circuit that was open is tried with reads first
            assert operation.due_at is not None
            later(world, journal, operation.due_at - world.clock.now())
            assert world.clock.now() - operation.created_at < RARELY.resend_for_s
            assert await world.parts.resolver.start_due() == 1
            await until(lambda: len(world.engine.tasks) == 0)
            (operation,) = await world.journal.find_operations(OperationQuery())
        assert (operation.state, len(posts(world)), world.effects(order="order-1")) == (State.SUCCEEDED, 2, 1)
