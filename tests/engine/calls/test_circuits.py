"""Circuits in the engine, with the sandbox as judge: what is refused was not sent, and resolution goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

import pytest

from paywitness.core.circuit import PROBES_MAX, CallGroup, CircuitState
from paywitness.core.claim import Claim, ClaimRequest
from paywitness.core.errors import JournalUnavailable
from paywitness.core.operation import State
from paywitness.core.policy import ResolutionRules
from paywitness.engine.policy_reload import reload_event
from paywitness.engine.policy_start import store_revisions
from paywitness.journal.base import OperationQuery
from paywitness.policy.book import PolicyBook, load_content
from paywitness.tasks import Tasks
from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.engine.calls.test_fallback import TwoRoutes, policy_text
from tests.engine.limits_world import (
    ONE_TRY,
    ROOM,
    counted,
    fail,
    force,
    free_probes,
    half_open_circuit,
    judged,
    keys_in_journal,
    limited_by,
    limited_world,
    members,
    move,
    open_circuit,
    posts,
    state_of,
    together,
)
from tests.engine.resolution.test_resolver import NOT_STORED, QUICK, SOON, ended, resolved
from tests.engine.storm import WITHOUT_KEYS
from tests.engine.world import World, header, outcome, problem_type, until
from tests.journal.memory import MemoryJournal

# --- open


async def test_after_enough_failures_the_next_call_is_refused_and_leaves_no_trace(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        await open_circuit(world)
        arrived = len(world.arrivals)
        refused = counted(world, "payment_refusals_total", provider="acme", reason="circuit_open")
        reply = await world.charge("refused", order="refused")
        assert (reply.status_code, problem_type(reply), outcome(reply)) == (503, "not-sent", "not_sent")
        assert limited_by(reply) == "circuit_open"
        assert members(reply)["by"] == "circuit_open"
        assert int(header(reply, "Retry-After") or "0") >= 1
        assert len(world.arrivals) == arrived
        assert "refused" not in await keys_in_journal(world)
        assert counted(world, "payment_refusals_total", provider="acme", reason="circuit_open") == refused + 1


async def test_fewer_failures_than_the_minimum_open_nothing(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        await fail(world, 19)
        await judged(world)
        assert (await world.charge()).status_code == 200


async def test_declines_never_open_a_circuit(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        for number in range(30):
            reply = await world.charge(f"no-{number}", order=f"no-{number}", source="tok_stolen_card")
            assert reply.status_code == 402
        await judged(world)
        assert (await world.charge()).status_code == 200


async def test_what_is_known_is_replayed_while_the_circuit_is_open(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        first = await world.charge("known", order="known")
        await open_circuit(world)
        arrived = len(world.arrivals)
        again = await world.charge("known", order="known")
        assert (again.status_code, again.body, again.replayed) == (200, first.body, True)
        assert header(again, "Paywitness-Limited-By") is None
        mismatch = await world.charge("known", order="known", amount=1)
        assert problem_type(mismatch) == "key-reused"
        assert len(world.arrivals) == arrived


async def test_what_is_in_doubt_stays_so_and_is_not_sent_again_while_the_circuit_is_open(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        lost = await world.charge("lost", order="lost", fault="drop_after_commit")
        assert lost.status_code == 504
        await open_circuit(world)
        arrived = len(world.arrivals)
        again = await world.charge("lost", order="lost")
        assert (again.status_code, outcome(again)) == (504, "unknown")
        assert len(world.arrivals) == arrived
        operation = await world.journal.read(header(lost, "Paywitness-Operation") or "")
        assert operation is not None
        assert (operation.state, operation.attempts) == (State.UNKNOWN, 1)
        move(world, 1.3)
        fetched = await world.charge("lost", order="lost")  # a probe: the re-send is deduped
        assert (fetched.status_code, world.effects(order="lost")) == (200, 1)


@pytest.mark.parametrize(("amount", "problem", "status_code"), [(1099, "unknown", 504), (42, "guarded", 409)])
async def test_a_fresh_key_of_an_order_in_doubt_is_not_told_not_sent_while_the_circuit_is_open(
    sandbox: Sandbox, amount: int, problem: str, status_code: int
) -> None:
    """P40: what our limits refuse has asked the guard, and not its own key alone."""
    async with limited_world(sandbox, *ONE_TRY) as world:
        lost = await world.charge("lost", order="lost", fault="drop_after_commit")
        assert lost.status_code == 504
        await open_circuit(world)
        arrived = len(world.arrivals)
        fresh = await world.charge("fresh", order="lost", amount=amount)
        assert (fresh.status_code, problem_type(fresh), outcome(fresh)) == (status_code, problem, "unknown")
        assert header(fresh, "Paywitness-Operation") == header(lost, "Paywitness-Operation")
        assert header(fresh, "Paywitness-Advice") == "do_not_pay_again"
        assert (len(world.arrivals), world.effects(order="lost")) == (arrived, 1)


async def test_a_fresh_key_of_a_paid_order_gets_its_reply_while_the_circuit_is_open(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        paid = await world.charge("paid", order="paid")
        await open_circuit(world)
        fresh = await world.charge("fresh", order="paid")
        assert (fresh.status_code, fresh.body, outcome(fresh)) == (200, paid.body, "succeeded")
        assert world.effects(order="paid") == 1


async def test_a_refused_call_is_not_told_not_sent_if_the_journal_cannot_be_asked(sandbox: Sandbox) -> None:
    """P40: journal down and circuit open."""
    async with limited_world(sandbox, *ONE_TRY) as world:
        await open_circuit(world)
        with patch.object(MemoryJournal, "claim", side_effect=JournalUnavailable("down")):
            reply = await world.charge("refused", order="refused")
        assert (reply.status_code, problem_type(reply), outcome(reply)) == (504, "journal-unavailable", "unknown")
        told = json.loads(reply.body)
        assert (told["sent"], told["side_effect_may_exist"], told["advice"]) == (False, True, "do_not_pay_again")


async def test_the_look_ups_of_refused_calls_are_shared_and_bounded(sandbox: Sandbox) -> None:
    """P40: over the bound the reply is 504, never 503."""
    async with limited_world(sandbox, *ONE_TRY) as world:
        await open_circuit(world)
        lookups = replace(world.engine.pipeline.refused_lookups, lookups_max=3)
        world.engine.pipeline = replace(world.engine.pipeline, refused_lookups=lookups)
        asked, release = list[str](), asyncio.Event()
        claim = MemoryJournal.claim

        async def slow(journal: MemoryJournal, request: ClaimRequest) -> Claim:
            asked.append(request.fresh.client_key)
            await release.wait()
            return await claim(journal, request)

        with patch.object(MemoryJournal, "claim", slow):
            calls = [asyncio.ensure_future(world.charge(f"key-{number}", order=f"o-{number}")) for number in range(5)]
            await until(lambda: sum(call.done() for call in calls) == 2)
            assert sorted(asked) == ["key-0", "key-1", "key-2"]
            release.set()
            replies = [await call for call in calls]
        assert [reply.status_code for reply in replies] == [503, 503, 503, 504, 504]
        assert problem_type(replies[4]) == "journal-unavailable"
        assert "so many are refused at once" in json.loads(replies[4].body)["detail"]


async def test_a_retry_that_the_circuit_holds_back_ends_without_effect(sandbox: Sandbox) -> None:
    """It opens between two tries of one call. Nothing is in doubt, so nothing stays open."""
    slow_retry = ("default: {attempts: 3, backoff: full, base: 100ms, cap: 5s}", "default: {attempts: 3, base: 300ms}")
    async with limited_world(sandbox, slow_retry, *ROOM) as world:
        call = asyncio.ensure_future(world.charge(fault="error_503*"))
        await until(lambda: len(posts(world)) == 1)
        await force(world, CircuitState.OPEN)
        reply = await call
        assert (reply.status_code, limited_by(reply)) == (503, "circuit_forced_open")
        (operation,) = await world.journal.find_operations(OperationQuery())
        assert (operation.state, operation.because, operation.key_released) == (
            State.FAILED,
            "no_effect_held_back",
            True,
        )
        assert len(posts(world)) == 1
        await force(world, CircuitState.CLOSED)
        move(world, 61.0)
        assert (await world.charge()).status_code == 200
        assert world.effects(order="order-1") == 1


async def test_a_re_send_that_the_circuit_holds_back_stays_in_doubt(sandbox: Sandbox) -> None:
    slow_retry = ("default: {attempts: 3, backoff: full, base: 100ms, cap: 5s}", "default: {attempts: 3, base: 300ms}")
    async with limited_world(sandbox, slow_retry, *ROOM) as world:
        call = asyncio.ensure_future(world.charge(fault="drop_after_commit*", timeout_s=5.0))
        await until(lambda: len(posts(world)) == 1)
        await force(world, CircuitState.OPEN)
        reply = await call
        assert (reply.status_code, outcome(reply)) == (504, "unknown")
        (operation,) = await world.journal.find_operations(OperationQuery())
        assert operation.state is State.UNKNOWN
        assert (1 in operation.doubt, operation.due_at is not None, operation.lease) == (True, True, None)
        assert (len(posts(world)), world.effects(order="order-1")) == (1, 1)


# --- half open, and the way back


async def test_three_probes_go_at_once_five_good_ones_ramp_and_then_it_is_closed(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        await half_open_circuit(world)
        arrived = len(world.arrivals)
        replies = await together(*(world.charge(f"p-{n}", order=f"p-{n}", fault="slow(slow_s=0.2)") for n in range(10)))
        refused = [reply for reply in replies if reply.status_code == 503]
        assert (len(world.arrivals) - arrived, len(refused)) == (PROBES_MAX, 10 - PROBES_MAX)
        assert {limited_by(reply) for reply in refused} == {"circuit_half_open"}
        assert state_of(world) is CircuitState.HALF_OPEN
        await together(*(world.charge(f"q-{n}", order=f"q-{n}") for n in range(2)))
        assert state_of(world) is CircuitState.RAMP
        ramped = await together(*(world.charge(f"r-{n}", order=f"r-{n}") for n in range(20)))
        assert {reply.status_code for reply in ramped} == {200, 503}
        assert {limited_by(reply) for reply in ramped if reply.status_code == 503} == {"circuit_ramp"}
        move(world, 3.0)
        assert state_of(world) is CircuitState.CLOSED
        assert (await world.charge()).status_code == 200


async def test_bad_probes_open_it_again(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        await half_open_circuit(world)
        arrived = len(world.arrivals)
        await fail(world, 5, name="probe")
        assert state_of(world) is CircuitState.OPEN
        assert len(world.arrivals) - arrived <= PROBES_MAX
        assert limited_by(await world.charge()) == "circuit_open"


async def test_a_call_that_needs_no_probe_gives_it_back_without_a_vote(sandbox: Sandbox) -> None:
    """A replay, another payload, a doubt of another credential, a guarded purchase: more of them than there are probes
    or votes."""
    async with limited_world(sandbox, *ONE_TRY) as world:
        assert (await world.charge("known", order="known")).status_code == 200
        await world.charge("lost", order="lost", fault="drop_after_commit")
        await half_open_circuit(world)
        arrived = len(world.arrivals)
        for _ in range(4):
            assert (await world.charge("known", order="known")).status_code == 200
            assert (await world.charge("known", order="known", amount=1)).status_code == 422
            other = await world.charge("lost", order="lost", headers={"Authorization": "Bearer other"})
            assert other.status_code == 504
            assert (await world.charge("another", order="lost", amount=7)).status_code == 409
        assert len(world.arrivals) == arrived
        assert state_of(world) is CircuitState.HALF_OPEN
        assert await free_probes(world) == PROBES_MAX


async def test_repeats_of_a_call_under_way_wait_without_a_probe(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        await half_open_circuit(world)
        first = asyncio.ensure_future(world.charge(fault="slow(slow_s=0.5)"))
        await until(lambda: posts(world)[-1] == "key-1")
        repeats = [asyncio.ensure_future(world.charge(fault="slow(slow_s=0.5)")) for _ in range(10)]
        await until(lambda: len(world.engine.tasks) == 11)
        await asyncio.sleep(0.05)
        assert not first.done()
        assert await free_probes(world) == PROBES_MAX - 1
        assert {reply.status_code for reply in await together(first, *repeats)} == {200}
        assert world.effects(order="order-1") == 1


async def test_what_the_provider_does_not_dedupe_is_never_a_probe(sandbox: Sandbox) -> None:
    sandbox.set_contract("none")
    async with limited_world(sandbox, *ONE_TRY, *WITHOUT_KEYS) as world:
        await half_open_circuit(world)
        arrived = len(world.arrivals)
        replies = [await world.charge(f"n-{n}", order=f"n-{n}") for n in range(3)]
        assert {(reply.status_code, limited_by(reply)) for reply in replies} == {(503, "circuit_half_open")}
        assert len(world.arrivals) == arrived
        await world.parts.limits_sync.sync()
        move(world, 10.1)  # nobody may try it: after a while some of the calls are the first
        assert state_of(world) is CircuitState.RAMP


# --- Retry-After


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def told_to_wait(world: World, *names: str, seconds: int = 30, headers: Mapping[str, str] | None = None) -> None:
    for name in names:
        fault = f"rate_limited(retry_after_s={seconds})"
        given = {**bearer(name), **(headers or {})}
        reply = await world.charge(f"told-{name}", order=f"told-{name}", fault=fault, headers=given)
        assert reply.status_code == 429


async def test_who_was_told_to_wait_is_held_as_long_and_nobody_else(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        await told_to_wait(world, "one", seconds=120)
        for key in ("bad-1", "bad-2"):
            await world.charge(key, order=key, fault="error_503*", headers=bearer("two"))
        await judged(world)
        arrived = len(world.arrivals)
        reply = await world.charge(headers=bearer("one"))
        assert (reply.status_code, limited_by(reply)) == (503, "throttled")
        assert members(reply)["scope"] == "credential"
        assert 118 <= int(header(reply, "Retry-After") or "0") <= 120
        assert len(world.arrivals) == arrived
        assert counted(world, "payment_refusals_total", provider="acme", reason="throttled") == 1
        assert (await world.charge(headers=bearer("other"))).status_code == 200
        move(world, 120.0)
        assert (await world.charge("late", order="late", headers=bearer("one"))).status_code == 200


@pytest.mark.parametrize(
    ("limited_by_whom", "same_account", "elsewhere"),
    [("credential", 200, 200), ("account", 503, 200), ("provider", 503, 503)],
)
async def test_the_policy_says_whom_a_429_concerns(
    sandbox: Sandbox, limited_by_whom: str, same_account: int, elsewhere: int
) -> None:
    edit = ("\nlimits: enforce", f"\nlimits: enforce\nlimited_by: {limited_by_whom}")
    here, there = {"Acme-Account": "here"}, {"Acme-Account": "there"}
    async with limited_world(sandbox, *ONE_TRY, edit) as world:
        await told_to_wait(world, "one", headers=here)
        reply = await world.charge("a", order="a", headers=here | bearer("two"))
        assert reply.status_code == same_account
        assert (await world.charge("b", order="b", headers=there | bearer("three"))).status_code == elsewhere
        held = await world.charge("c", order="c", headers=here | bearer("one"))
        assert (held.status_code, members(held)["scope"]) == (503, limited_by_whom)


async def test_several_that_were_told_to_wait_hold_everybody_back_for_half_a_minute(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        await told_to_wait(world, "one", "two", "three", seconds=120)
        await judged(world)
        arrived = len(world.arrivals)
        reply = await world.charge(headers=bearer("other"))
        assert (reply.status_code, limited_by(reply), members(reply)["scope"]) == (503, "throttled", "provider")
        assert 28 <= int(header(reply, "Retry-After") or "0") <= 30
        assert len(world.arrivals) == arrived
        move(world, 30.0)
        assert (await world.charge(headers=bearer("other"))).status_code == 200
        assert (await world.charge("held", order="held", headers=bearer("two"))).status_code == 503


async def test_two_that_were_told_to_wait_hold_nobody_else_back(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY) as world:
        await told_to_wait(world, "one", "two")
        await judged(world)
        assert (await world.charge(headers=bearer("other"))).status_code == 200


async def test_a_retry_waits_for_the_end_of_its_own_hold_and_a_new_call_is_told_when(sandbox: Sandbox) -> None:
    async with limited_world(sandbox) as world:
        started = world.clock.mono()
        retried = asyncio.create_task(world.charge(fault="rate_limited(retry_after_s=1)", headers=bearer("one")))
        await until(lambda: len(world.arrivals) == 1 and bool(world.parts.limits.circuits.statuses()))
        reply = await world.charge("new", order="new", headers=bearer("one"))
        assert (reply.status_code, limited_by(reply), header(reply, "Retry-After")) == (503, "throttled", "1")
        assert (await retried).status_code == 200
        assert (world.clock.mono() - started >= 1.0, len(world.arrivals)) == (True, 2)


# --- fallback


async def two_limited_routes(first: Sandbox, second: Sandbox, world: World, when: str) -> TwoRoutes:
    elsewhere = ("\nunmatched: forward", f"\nfallback: [{{to: acme_eu, when: [{when}]}}]\nunmatched: forward")
    texts = (policy_text("acme", first.url, *ONE_TRY, elsewhere), policy_text("acme_eu", second.url, *ONE_TRY))
    book = PolicyBook.of([load_content(text.encode(), "test.yaml") for text in texts])
    await store_revisions(world.journal, book)
    world.engine.telemetry.emit(reload_event(book))
    world.engine.policies.book = book
    return TwoRoutes(first, second, world)


async def test_with_its_circuit_open_a_payment_is_made_by_the_other_route_at_once(sandbox: Sandbox) -> None:
    async with Sandbox(SandboxOptions()) as second, limited_world(sandbox) as world:
        routes = await two_limited_routes(sandbox, second, world, "circuit_open")
        await force(world, CircuitState.OPEN)
        reply = await world.charge()
        assert (reply.status_code, header(reply, "Paywitness-Provider")) == (200, "acme_eu")
        assert header(reply, "Paywitness-Limited-By") is None
        assert (routes.effects(), len(sandbox.arrivals.arrivals)) == ((0, 1), 0)
        paid = await world.journal.read(header(reply, "Paywitness-Operation") or "")
        assert paid is not None
        held = await world.journal.read(paid.fallback_of or "")
        assert held is not None
        assert (held.state, held.fallback_to, held.outcome) == (State.FAILED, paid.id, "not_sent")
        labels = {"from_provider": "acme", "to_provider": "acme_eu", "reason": "circuit_open"}
        assert counted(world, "payment_fallback_total", **labels) == 1
        again = await world.charge()
        assert (again.status_code, again.body, routes.effects()) == (200, reply.body, (0, 1))


async def test_with_both_circuits_open_nothing_is_sent_anywhere(sandbox: Sandbox) -> None:
    async with Sandbox(SandboxOptions()) as second, limited_world(sandbox) as world:
        routes = await two_limited_routes(sandbox, second, world, "circuit_open")
        await force(world, CircuitState.OPEN, "acme", "acme_eu")
        reply = await world.charge()
        assert (reply.status_code, outcome(reply), limited_by(reply)) == (503, "not_sent", "circuit_forced_open")
        assert not sandbox.arrivals.arrivals
        assert not second.arrivals.arrivals
        assert {operation.state for operation in await world.journal.find_operations(OperationQuery())} <= {
            State.FAILED
        }
        assert routes.effects() == (0, 0)


async def test_a_call_that_both_circuits_refused_can_pay_later_under_the_same_key(sandbox: Sandbox) -> None:
    async with Sandbox(SandboxOptions()) as second, limited_world(sandbox) as world:
        routes = await two_limited_routes(sandbox, second, world, "circuit_open")
        await force(world, CircuitState.OPEN, "acme", "acme_eu")
        assert (await world.charge()).status_code == 503
        await force(world, CircuitState.CLOSED, "acme", "acme_eu")
        move(world, 61.0)
        later = await world.charge()
        assert (later.status_code, sum(routes.effects())) == (200, 1)


async def test_without_that_cause_an_open_circuit_is_no_reason_for_the_other_route(sandbox: Sandbox) -> None:
    async with Sandbox(SandboxOptions()) as second, limited_world(sandbox) as world:
        await two_limited_routes(sandbox, second, world, "rate_limited")
        await force(world, CircuitState.OPEN)
        reply = await world.charge()
        assert (reply.status_code, limited_by(reply)) == (503, "circuit_forced_open")
        assert not second.arrivals.arrivals
        assert not await world.journal.find_operations(OperationQuery())


async def test_what_is_in_doubt_is_not_paid_elsewhere_because_the_circuit_is_open(sandbox: Sandbox) -> None:
    async with Sandbox(SandboxOptions()) as second, limited_world(sandbox) as world:
        routes = await two_limited_routes(sandbox, second, world, "circuit_open")
        lost = await world.charge(fault="drop_after_commit")
        assert lost.status_code == 504
        await force(world, CircuitState.OPEN)
        again = await world.charge()
        assert (again.status_code, outcome(again)) == (504, "unknown")
        assert (routes.effects(), len(second.arrivals.arrivals), len(posts(world))) == ((1, 0), 0, 1)
        operation = await world.journal.read(header(lost, "Paywitness-Operation") or "")
        assert operation is not None
        assert (operation.state, operation.fallback_to) == (State.UNKNOWN, None)


# --- resolution


async def test_an_open_write_circuit_does_not_stop_resolution(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *QUICK, *ONE_TRY, NOT_STORED, lease_s=1.0, resolve=SOON) as world:
        lost = [await world.charge(f"l-{n}", order=f"l-{n}", fault="drop_after_commit") for n in range(3)]
        assert {reply.status_code for reply in lost} == {504}
        await force(world, CircuitState.OPEN)
        background = Tasks()
        background.start(world.parts.resolver.keep_resolving(), "resolver")
        for reply in lost:
            found = await resolved(world, header(reply, "Paywitness-Operation"), ended)
            assert found.state is State.SUCCEEDED
        await background.stop()
        assert len(posts(world)) == 3


async def test_an_open_inquiry_circuit_counts_no_look_and_uses_no_schedule_up(sandbox: Sandbox) -> None:
    short = replace(SOON, schedule_s=(0.05, 0.05))
    async with limited_world(sandbox, *QUICK, *ONE_TRY, NOT_STORED, lease_s=1.0, resolve=short) as world:
        lost = await world.charge(fault="drop_after_commit")
        await force(world, CircuitState.OPEN, group=CallGroup.INQUIRY)
        move(world, 1.0)
        for _ in range(5):
            assert await world.parts.resolver.start_due() == 0
            move(world, 1.0)
        operation = await world.journal.read(header(lost, "Paywitness-Operation") or "")
        assert operation is not None
        assert (operation.state, operation.checks_done, operation.lease) == (State.UNKNOWN, 0, None)
        assert [arrival.method for arrival in world.arrivals] == ["POST"]
        await force(world, None, group=CallGroup.INQUIRY)
        assert await world.parts.resolver.start_due() == 1  # half open: a safe read is a probe
        found = await resolved(world, operation.id, ended)
        assert found.state is State.SUCCEEDED


LATER = ResolutionRules(settle_s=600.0, resend_for_s=120.0, schedule_s=(3600.0,) * 8)


async def test_the_first_success_after_an_outage_pulls_due_inquiries_forward(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, NOT_STORED, resolve=LATER) as world:
        lost = await world.charge("lost", order="lost", fault="drop_after_commit")
        await fail(world, 3)
        await world.parts.limits_sync.sync()
        operation = await world.journal.read(header(lost, "Paywitness-Operation") or "")
        assert operation is not None
        assert operation.due_at is not None
        assert operation.due_at > world.clock.now() + 3000
        assert (await world.charge()).status_code == 200
        await world.parts.limits_sync.sync()
        sooner = await world.journal.read(operation.id)
        assert sooner is not None
        assert sooner.due_at is not None
        assert sooner.due_at <= world.clock.now() + 5.0
        move(world, 5.0)
        assert await world.parts.resolver.start_due() == 1
        assert (await resolved(world, operation.id, ended)).state is State.SUCCEEDED


async def test_a_circuit_that_closes_pulls_due_inquiries_forward(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, NOT_STORED, resolve=LATER) as world:
        lost = await world.charge("lost", order="lost", fault="drop_after_commit")
        await open_circuit(world)
        for number in range(5):
            move(world, 1.3 if number == 0 else 0.0)
            assert (await world.charge(f"p-{number}", order=f"p-{number}")).status_code == 200
        await world.parts.limits_sync.sync()
        operation = await world.journal.read(header(lost, "Paywitness-Operation") or "")
        assert operation is not None
        assert operation.due_at is not None
        assert operation.due_at <= world.clock.now() + 5.0


@pytest.mark.parametrize("well", [1, 2])
async def test_one_failure_and_a_success_are_no_outage(sandbox: Sandbox, well: int) -> None:
    async with limited_world(sandbox, *ONE_TRY, NOT_STORED, resolve=LATER) as world:
        lost = await world.charge("lost", order="lost", fault="drop_after_commit")
        for number in range(well):
            await world.charge(f"w-{number}", order=f"w-{number}")
            await fail(world, 1, name=f"ill-{number}")
        await world.charge()
        await world.parts.limits_sync.sync()
        operation = await world.journal.read(header(lost, "Paywitness-Operation") or "")
        assert operation is not None
        assert operation.due_at is not None
        assert operation.due_at > world.clock.now() + 3000
