"""Attacks on what joins the limits to the engine: a place, a probe or a grant that is never given back, a refusal that
is taken for the provider's illness, a doubt that is made or lost by our own limits. The ledger is the judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from paywitness.clock import Clock
from paywitness.core.call import Headers
from paywitness.core.circuit import CallGroup, CircuitState
from paywitness.core.holds import EVERYONE
from paywitness.core.operation import State
from paywitness.core.policy import ResolutionRules
from paywitness.core.provider_health import HealthSample
from paywitness.engine.resolution.background_credentials import CredentialSource
from paywitness.journal.base import OperationChange, OperationQuery
from paywitness.limits.admission import Admission
from paywitness.limits.budgets import LocalBudgets
from paywitness.limits.circuits import CurrentRules, LocalCircuits, Probe
from paywitness.limits.factory import Limits
from paywitness.randomness import Randomness
from paywitness_sandbox.server import Sandbox
from tests.engine.calls.test_admission import FEW, SLOW, crowd, few_places, start
from tests.engine.durability.test_journal_failures import TroubledJournal
from tests.engine.limits_world import (
    FAST,
    NEVER_OPEN,
    ONE_TRY,
    ROOM,
    assert_nothing_is_held,
    ended_grants,
    fail,
    force,
    half_open_circuit,
    limited_world,
    members,
    move,
    posts,
    state_of,
)
from tests.engine.resolution.test_resolver import NOBODY_TO_ASK, NOT_STORED, QUICK, ended, resolved
from tests.engine.world import World, header, outcome, until

HOURS = ResolutionRules(settle_s=1e6, resend_for_s=120.0, schedule_s=(3600.0,) * 4)


async def looked(world: World) -> None:
    """One look of the resolver, to its end."""
    assert await world.parts.resolver.start_due() == 1
    await until(lambda: len(world.engine.tasks) == 0)


# --- given back


async def test_a_background_re_send_that_the_journal_does_not_take_gives_everything_back(sandbox: Sandbox) -> None:
    journal = TroubledJournal()
    resolve = replace(HOURS, schedule_s=(0.1,) * 8)
    async with limited_world(sandbox, *ONE_TRY, *NOBODY_TO_ASK, *ROOM, journal=journal, resolve=resolve) as world:
        lost = await world.charge(fault="drop_after_commit")
        assert lost.status_code == 504
        journal.time.ahead_s += 1.0
        journal.records_lost_before = 1
        await looked(world)
        assert len(posts(world)) == 1
        assert_nothing_is_held(world)


async def test_a_hedge_ends_its_grant(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *QUICK, *ONE_TRY, NOT_STORED, resolve=HOURS) as world:
        lost = await world.charge(fault="drop_after_commit")
        sandbox.set_schedule({"read_faults": "hang,-*"})
        move(world, 3601.0 * 1.5)
        await looked(world)
        found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert found.state is State.SUCCEEDED
        assert len([arrival for arrival in world.arrivals if arrival.method == "GET"]) == 2
        assert sum(ended_grants(world).values()) == 1
        assert "never" not in ended_grants(world)


# --- not the provider's illness


async def test_an_inquiry_that_our_own_budget_refused_says_nothing_of_the_provider(sandbox: Sandbox) -> None:
    """Nobody asked, so nobody failed: else a refusal would open the circuit of inquiries by itself."""
    async with limited_world(sandbox, *QUICK, *ONE_TRY, NOT_STORED, *NO_READS_AGAIN, resolve=HOURS) as world:
        lost = await world.charge(fault="drop_after_commit")
        operation = await world.journal.read(header(lost, "Paywitness-Operation") or "")
        assert operation is not None
        sandbox.set_schedule({"read_faults": "error_500*"})
        seen = watched(world)
        move(world, 3601.0 * 1.5)
        await looked(world)
        assert [one is None or one.healthy for one in seen] == [False]
        asked = len(world.arrivals)
        move(world, 3601.0 * 1.5)
        await looked(world)
        assert len(world.arrivals) == asked
        assert seen[1:] == [None]


async def test_an_inquiry_that_our_own_budget_refused_is_still_one_that_asks_for_an_allowance(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *QUICK, *ONE_TRY, NOT_STORED, *NO_READS_AGAIN, resolve=HOURS) as world:
        await world.charge(fault="drop_after_commit")
        sandbox.set_schedule({"read_faults": "error_500*"})
        for _ in range(4):
            move(world, 3601.0 * 1.5)
            await looked(world)
        assert len([arrival for arrival in world.arrivals if arrival.method == "GET"]) == 1


NO_READS_AGAIN = (
    (
        "  provider: {floor: 100, ratio: 5%, ceiling: 100%} ",
        "  provider: {floor: 0, ratio: 0%, ceiling: 0%} ",
    ),
)


def watched(world: World) -> list[HealthSample | None]:
    """What the circuit of inquiries is told from now on."""
    circuits, seen = world.parts.limits.circuits, list[HealthSample | None]()
    observe = circuits.add_sample

    def told(provider: str, group: CallGroup, sample: HealthSample | None, party: str = EVERYONE) -> None:
        if group is CallGroup.INQUIRY:
            seen.append(sample)
        observe(provider, group, sample, party)

    circuits.add_sample = told  # type: ignore[method-assign]
    return seen


async def test_an_operation_that_nobody_can_ask_about_says_nothing_of_the_provider(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *QUICK, *ONE_TRY, NOT_STORED, resolve=HOURS) as world:
        await world.charge(fault="drop_after_commit")
        seen = watched(world)

        async def no_credential(*_: object) -> AsyncIterator[Headers]:
            for headers in list[Headers]():
                yield headers

        with patch.object(CredentialSource, "candidates", no_credential):
            move(world, 3601.0 * 1.5)
            await looked(world)
        assert [arrival.method for arrival in world.arrivals] == ["POST"]
        assert set(seen) == {None}


# --- doubt, and what is told of it


async def test_a_provider_that_comes_and_goes_does_not_use_up_the_schedule(sandbox: Sandbox) -> None:
    """Four looks, an hour apart, at a payment that is pending. Twenty minutes of bad and good moments must not bring it
    in front of a person."""
    async with limited_world(sandbox, *QUICK, *ONE_TRY, *NEVER_OPEN, resolve=HOURS) as world:
        accepted = await world.charge("pending", order="pending", source="tok_processing")
        assert outcome(accepted) == "pending"
        for minute in range(20):
            await fail(world, 3, name=f"ill-{minute}")
            assert (await world.charge(f"w-{minute}", order=f"w-{minute}")).status_code == 200
            await world.parts.limits_sync.sync()
            move(world, 61.0)
            await world.parts.resolver.start_due()
            await until(lambda: len(world.engine.tasks) == 0)
        operation = await world.journal.read(header(accepted, "Paywitness-Operation") or "")
        assert operation is not None
        assert operation.state is State.PENDING
        assert operation.due_at is not None


async def test_a_doubt_whose_purchase_has_no_retries_left_is_asked_about_as_any_other(sandbox: Sandbox) -> None:
    """The re-send is refused for a day. Asking is not sending."""
    often = replace(HOURS, schedule_s=(1.0, 10.0, 30.0, 60.0))
    none = ("  per_intent: 3 ", "  per_intent: 0 ")
    async with limited_world(sandbox, *QUICK, *ONE_TRY, *ROOM, none, resolve=often) as world:
        lost = await world.charge(fault="reset_before_commit")
        move(world, 2.0)
        await looked(world)
        operation = await world.journal.read(header(lost, "Paywitness-Operation") or "")
        assert operation is not None
        assert operation.due_at is not None
        assert (operation.state, len(posts(world)), operation.checks_done) == (State.UNKNOWN, 1, 1)
        assert operation.due_at < world.clock.now() + 60.0


async def test_a_doubt_is_asked_about_as_any_other_while_an_operator_holds_the_writes(sandbox: Sandbox) -> None:
    often = replace(HOURS, schedule_s=(1.0, 10.0, 30.0, 60.0))
    async with limited_world(sandbox, *QUICK, *ONE_TRY, *ROOM, resolve=often) as world:
        lost = await world.charge(fault="reset_before_commit")
        await force(world, CircuitState.OPEN)  # for ten minutes
        move(world, 2.0)
        await looked(world)
        operation = await world.journal.read(header(lost, "Paywitness-Operation") or "")
        assert operation is not None
        assert operation.due_at is not None
        assert (operation.state, len(posts(world)), operation.checks_done) == (State.UNKNOWN, 1, 1)
        assert operation.due_at < world.clock.now() + 60.0


async def test_a_purchase_without_retries_left_does_not_send_its_caller_away_until_tomorrow(sandbox: Sandbox) -> None:
    """An intent's retries are counted for a day, and hold back our own tries; the caller's next one asks no budget."""
    async with limited_world(sandbox, *FAST, *ROOM, ("  per_intent: 3 ", "  per_intent: 0 ")) as world:
        await sandbox.stop()
        reply = await world.charge()
        assert (reply.status_code, members(reply)["scope"]) == (503, "intent")
        assert int(header(reply, "Retry-After") or "0") <= 60


async def test_a_retry_that_waits_for_its_place_at_a_shutdown_is_no_doubt(sandbox: Sandbox) -> None:
    """Its first try was answered: no effect. Of the second not a byte has left."""
    async with limited_world(sandbox, *SLOWER, *ROOM, limits=few_places) as world:
        retried = start(world, "retried", fault="error_503*")
        await until(lambda: posts(world) == ["retried"])
        full = [start(world, f"k-{n}", fault="hang_before_commit*") for n in range(FEW)]
        await until(lambda: crowd(world) == (FEW, 1))
        await world.engine.tasks.close(0.0)
        await asyncio.gather(retried, *full)
        (operation,) = [
            one for one in await world.journal.find_operations(OperationQuery()) if one.client_key == "retried"
        ]
        assert (operation.state, operation.lease) == (State.FAILED, None)


SLOWER = (
    ("default: {attempts: 3, backoff: full, base: 100ms, cap: 5s}", "default: {attempts: 3, base: 300ms, cap: 300ms}"),
)


async def test_nothing_is_sent_for_a_caller_that_left_while_it_waited_for_its_place(sandbox: Sandbox) -> None:
    there = True
    async with limited_world(sandbox, *ONE_TRY, limits=few_places) as world:
        full = [start(world, f"k-{n}", fault=SLOW) for n in range(FEW)]
        await until(lambda: crowd(world)[0] == FEW)
        gone = start(world, "gone", still_there=lambda: there)
        await until(lambda: crowd(world)[1] == 1)
        there = False
        await asyncio.gather(*full, gone)
        assert "gone" not in posts(world)


async def test_a_repeat_that_was_refused_itself_names_one_reason(sandbox: Sandbox) -> None:
    """It waited for the first call, which was held back too, and gets the same answer."""
    async with limited_world(sandbox, *SLOWER, *ROOM) as world:
        first = start(world, "same", fault="error_503*")
        await until(lambda: ended_grants(world))
        await force(world, CircuitState.OPEN)
        again = start(world, "same", fault="error_503*")
        for reply in await asyncio.gather(first, again):
            assert reply.status_code == 503
            assert [name for name, _ in reply.headers].count(b"Paywitness-Limited-By") == 1
        assert len(posts(world)) == 1


# --- limits that fail by themselves


class FaultyCircuits(LocalCircuits):
    """Votes that cannot be counted: a reply of a store that nobody foresaw."""

    async def end_probe(self, probe: Probe, observation: HealthSample | None) -> None:
        raise TypeError("a reply that cannot be read")


def faulty_circuits(book: CurrentRules, clock: Clock, chance: Randomness) -> Limits:
    return Limits(FaultyCircuits(book, clock, chance), LocalBudgets(clock, chance), Admission(clock, chance))


async def test_a_payment_that_was_made_is_told_whatever_the_limits_say_to_it(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, limits=faulty_circuits) as world:
        await half_open_circuit(world)
        reply = await world.charge()
        assert world.effects(order="order-1") == 1
        assert (reply.status_code, outcome(reply)) == (200, "succeeded")


class FaultyBudgets(LocalBudgets):
    async def acquire(self, ask: Any) -> Any:
        raise TypeError("a reply that cannot be read")


def faulty_budgets(book: CurrentRules, clock: Clock, chance: Randomness) -> Limits:
    return Limits(LocalCircuits(book, clock, chance), FaultyBudgets(clock, chance), Admission(clock, chance))


async def test_a_budget_that_fails_by_itself_costs_the_retry_and_not_the_answer(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *FAST, limits=faulty_budgets) as world:
        reply = await world.charge(fault="error_503*")
        assert (reply.status_code, len(posts(world))) == (503, 1)
        (operation,) = await world.journal.find_operations(OperationQuery())
        assert (operation.state, operation.because) == (State.FAILED, "no_effect_budget_exhausted")


# --- cancels


async def test_a_cancel_waits_while_the_circuit_is_open(sandbox: Sandbox) -> None:
    """It is sent once, and rules out every re-send: not at a provider that is known to be down."""
    async with limited_world(sandbox, *QUICK, *ONE_TRY, NOT_STORED, *CANCELLABLE, resolve=HOURS) as world:
        lost = await world.charge(fault="drop_after_commit")
        operation = await world.journal.read(header(lost, "Paywitness-Operation") or "")
        assert operation is not None
        wanted = operation.changed(cancel_wanted=True, due_at=world.clock.now())
        await world.journal.record(OperationChange(wanted, ()))
        await force(world, CircuitState.OPEN)
        assert state_of(world) is CircuitState.OPEN
        await looked(world)
        held = await world.journal.read(operation.id)
        assert held is not None
        assert (held.cancel_sent, held.cancel_wanted, len(posts(world))) == (False, True, 1)


CANCELLABLE = (
    (
        "    ask: *ask_for_a_charge ",
        '    cancel:\n      request: POST /v1/cancels\n      body: {operation: "{operation_id}"}\n'
        "      read: [{when: \"status == 'voided'\", as: cancelled}]\n    ask: *ask_for_a_charge ",
    ),
)
