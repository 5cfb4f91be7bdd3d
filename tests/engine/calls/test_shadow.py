"""Observe mode: calls pass as they came, nothing of ours holds them up, and what would have been done is counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from paywitness.core.call import Call, CallerOptions
from paywitness.core.evidence import Evidence, NetworkPhase, Response, WireFault
from paywitness.core.operation import Guard, GuardKind, Operation, State
from paywitness.engine.calls.passthrough import StreamedReply
from paywitness.engine.calls.shadow import ShadowMemory, with_policy_timeouts
from paywitness.engine.policy_reload import reload_event
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, header, make_world, outcome, problem_type, until
from tests.telemetry.samples import operation as ended

OBSERVE = ("provider: acme ", "mode: observe\nprovider: acme ")


async def observing(sandbox: Sandbox, *edits: tuple[str, str]) -> World:
    world = await make_world(sandbox, OBSERVE, *edits)
    world.engine.telemetry.emit(reload_event(world.engine.book))
    return world


@pytest.fixture
async def world(sandbox: Sandbox) -> AsyncIterator[World]:
    built = await observing(sandbox)
    yield built
    await close(built)


def decisions(world: World) -> dict[tuple[str, str, str, str], float]:
    """Operation, class, action and rule of every decision, and how often it was counted."""
    found = {}
    for family in world.engine.telemetry.metrics.registry.collect():
        if family.name == "payment_observed_decisions":
            for sample in family.samples:
                labels = sample.labels
                assert labels["provider"] == "acme"
                found[labels["operation"], labels["class"], labels["action"], labels["rule"]] = sample.value
    return found


@dataclass
class Recorder:
    """A provider that keeps what reaches it, and answers alike."""

    answer: tuple[int, dict[str, str], bytes] = (200, {}, b"{}")
    seen: list[tuple[str, list[tuple[bytes, bytes]], bytes]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.seen.append((request.raw_path, list(request.raw_headers), await request.read()))
        status, headers, body = self.answer
        return web.Response(status=status, headers=headers, body=body)


@pytest.fixture
async def recorded() -> AsyncIterator[tuple[Recorder, World]]:
    recorder, application = Recorder(), web.Application()
    application.router.add_route("*", "/{path:.*}", recorder.handle)
    async with TestServer(application) as server:
        url = str(server.make_url("")).rstrip("/")
        world = await observing(SimpleNamespace(url=url))  # type: ignore[arg-type]  # all that it asks of a sandbox
        yield recorder, world
        await close(world)


CHARGE = b'{ "amount": 1099,  "currency":"EUR", "client_time": 1 }'


async def test_what_leaves_and_what_comes_back_is_as_it_came(recorded: tuple[Recorder, World]) -> None:
    recorder, world = recorded
    recorder.answer = (402, {"X-Theirs": "yes", "Content-Type": "application/json"}, b'{"error": {"code": "x"}}')
    sent = {"Content-Type": "application/json", "Accept-Encoding": "br, gzip", "X-Mine": "1", "Host": "api.acme.test"}
    reply = await world.post("/v1/charges", CHARGE, sent)
    ((path, headers, body),) = recorder.seen
    assert (path, body) == ("/v1/charges", CHARGE)
    assert [(name.decode(), value.decode()) for name, value in headers if name != b"Content-Length"] == list(
        sent.items()
    )
    assert (reply.status_code, reply.body) == (402, b'{"error": {"code": "x"}}')
    assert header(reply, "X-Theirs") == "yes"
    assert not [name for name, _ in reply.headers if name.lower().startswith(b"paywitness-")]


async def test_nothing_that_could_hold_a_call_back_is_asked(world: World) -> None:
    engine = world.engine
    gate, carry, journal = engine.gate, engine.pipeline, engine.journal
    engine.gate = engine.pipeline = engine.journal = engine.fallbacks = None  # type: ignore[assignment]
    reply = await world.charge()
    engine.gate, engine.pipeline, engine.journal = gate, carry, journal
    assert reply.status_code == 200
    assert world.effects() == 1
    assert decisions(world) == {("sale", "succeeded", "stop", "succeeded"): 1}


async def test_a_lost_answer_is_not_sent_again_and_counted_as_what_would_have_been(world: World) -> None:
    reply = await world.charge(fault="drop_after_commit")
    assert problem_type(reply) == "forward-failed"
    assert isinstance(reply.body, bytes)
    assert json.loads(reply.body)["side_effect_may_exist"] is True
    assert (len(world.arrivals), world.effects()) == (1, 1)
    assert decisions(world) == {("sale", "unknown_outcome", "retry_same_operation", "in_doubt_same_key_is_safe"): 1}


async def test_an_unreachable_provider_is_told_and_counted(sandbox: Sandbox) -> None:
    world = await make_world(SimpleNamespace(url="http://127.0.0.1:1"), OBSERVE)  # type: ignore[arg-type]
    world.engine.telemetry.emit(reload_event(world.engine.book))
    reply = await world.charge()
    await close(world)
    assert (reply.status_code, problem_type(reply)) == (503, "not-sent")
    key = ("sale", "network_connect_failure", "retry_same_operation", "no_effect_try_again")
    assert decisions(world) == {key: 1}


async def test_a_decline_goes_back_as_it_is(world: World) -> None:
    reply = await world.charge(source="tok_stolen_card")
    assert reply.status_code == 402
    key = ("sale", "issuer_hard_decline", "mark_terminal_failure", "provider_said_no")
    assert decisions(world) == {key: 1}


async def test_a_repeat_is_sent_and_counted_as_one_that_would_have_been_replayed(world: World) -> None:
    await world.charge()
    again = await world.charge()
    assert again.status_code == 200
    assert len(world.arrivals) == 2
    assert decisions(world)["sale", "succeeded", "replayed", "replay"] == 1


async def test_a_key_with_another_body_would_have_been_refused(world: World) -> None:
    await world.charge()
    await world.charge(amount=1)
    assert len(world.arrivals) == 2
    refused = [key for key in decisions(world) if key[2:] == ("refused", "key-reused")]
    assert refused


async def test_a_second_payment_of_an_order_would_not_have_been_made(world: World) -> None:
    await world.charge("key-1")
    await world.charge("key-2")
    await world.charge("key-3", amount=5)
    assert world.effects() == 3
    assert decisions(world)["sale", "succeeded", "replayed", "joined"] == 1
    assert decisions(world)["sale", "succeeded", "refused", "guarded"] == 1


async def test_a_call_under_way_would_have_been_waited_for(world: World) -> None:
    first = asyncio.ensure_future(world.charge(fault="slow(slow_s=0.3)"))
    await until(lambda: world.arrivals)
    await world.charge()
    await first
    assert decisions(world)["sale", "idempotency_in_flight", "replayed", "in_flight"] == 1


async def test_a_doubt_that_a_repeat_settles_is_replayed_from_then_on(world: World) -> None:
    await world.charge(fault="drop_after_commit")
    await world.charge()
    await world.charge()
    counted = decisions(world)
    assert counted["sale", "succeeded", "retry_same_operation", "in_doubt_same_key_is_safe"] == 1
    assert counted["sale", "succeeded", "replayed", "replay"] == 1
    assert world.effects() == 1


async def test_of_a_doubt_that_is_repeated_for_hours_a_bounded_number_of_attempts_is_remembered(
    recorded: tuple[Recorder, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, world = recorded
    recorder.answer = (502, {}, b"<html>Bad gateway</html>")
    monkeypatch.setattr("paywitness.engine.calls.shadow._REMEMBERED_ATTEMPTS", 2)
    for _ in range(4):
        await world.charge()
    (remembered,) = world.engine.shadow.memory._by_key.values()
    assert (remembered.attempts, remembered.doubt) == (2, frozenset({1, 2}))
    assert (
        decisions(world)["sale", "temporary_provider_error", "retry_same_operation", "in_doubt_same_key_is_safe"] == 4
    )


async def test_a_repeat_while_a_doubt_is_sent_again_would_have_been_waited_for(world: World) -> None:
    await world.charge(fault="drop_after_commit")
    again = asyncio.ensure_future(world.charge(fault="slow(slow_s=0.3)"))
    await until(lambda: len(world.arrivals) == 2)
    await world.charge()
    await again
    assert [key[2:] for key in decisions(world)].count(("replayed", "in_flight")) == 1


async def test_what_had_no_effect_may_start_again(world: World) -> None:
    await world.charge(fault="rate_limited")
    await world.charge()
    assert set(decisions(world)) == {
        ("sale", "rate_limited", "retry_same_operation", "no_effect_try_again"),
        ("sale", "succeeded", "stop", "succeeded"),
    }


async def test_an_answer_that_reached_nobody_is_taken_once(world: World) -> None:
    await world.charge("key-1", order=None, still_there=lambda: False)
    await world.charge("key-2", order=None)
    await world.charge("key-3", order=None)
    counted = decisions(world)
    assert counted["sale", "succeeded", "replayed", "taken"] == 1
    assert counted["sale", "succeeded", "stop", "succeeded"] == 2


async def test_no_intent_is_called_safe_while_its_payments_are_only_observed(world: World) -> None:
    await world.charge()
    told = json.loads((await world.engine.intents.describe("order-1")).body)
    assert told["safe_to_pay"] is False
    assert told["note"].endswith("so it is not known whether paying is safe: acme.")


async def test_what_would_have_been_refused_passes(sandbox: Sandbox) -> None:
    world = await observing(sandbox, ("required: false", "required: true"))
    reply = await world.charge(None, order=None)
    unreadable = await world.post("/v1/charges", b"{", {"Content-Type": "application/json"})
    await close(world)
    assert (reply.status_code, unreadable.status_code) == (200, 400)
    assert len(world.arrivals) == 2
    assert set(decisions(world)) == {
        ("sale", "none", "refused", "key-required"),
        ("none", "none", "refused", "body-unreadable"),
    }


async def test_what_is_no_operation_passes_though_the_policy_refuses_it(sandbox: Sandbox) -> None:
    world = await observing(sandbox, ("unmatched: forward", "unmatched: refuse"))
    call = Call("acme", "GET", "/v1/nothing", "", ("v1", "nothing"), (), b"", CallerOptions())
    reply = await world.engine.forward(call, None, None)
    assert isinstance(reply, StreamedReply)
    assert reply.status_code == 404
    assert not [name for name, _ in reply.headers if name.lower().startswith(b"paywitness-")]
    async for _ in reply.body:
        pass
    await close(world)
    assert set(decisions(world)) == {("none", "none", "refused", "operation-not-allowed")}


async def test_an_answer_in_a_coding_we_would_not_have_asked_for_is_not_judged(
    recorded: tuple[Recorder, World],
) -> None:
    recorder, world = recorded
    recorder.answer = (200, {"Content-Encoding": "br"}, b"\x0b\x01\x80{}\x03")
    reply = await world.charge()
    assert reply.body == b"\x0b\x01\x80{}\x03"
    await world.charge()  # and so it is not known to be a repeat of anything
    assert decisions(world) == {("sale", "none", "not_judged", "unreadable_coding"): 2}


@pytest.mark.parametrize("broken", ["operation_id", "draw"])
async def test_a_fault_of_the_observer_costs_no_call_its_answer(
    world: World, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise RuntimeError("the observer's own")

    monkeypatch.setattr(type(world.engine.randomness), broken, fail)
    assert (await world.charge()).status_code == 200
    assert decisions(world) == {}


def test_an_answer_slower_than_first_byte_is_judged_as_one_that_timed_out(world: World) -> None:
    policy = world.engine.book.providers["acme"].policies[0]
    answer = Response(200, b"OK", (), b"{}")
    quick = Evidence(NetworkPhase.COMPLETE, 10, None, answer, "", policy.timeouts.first_byte_s)
    slow = replace(quick, duration_s=policy.timeouts.first_byte_s + 0.1)
    assert with_policy_timeouts(quick, policy) is quick
    assert with_policy_timeouts(slow, policy).fault is WireFault.FIRST_BYTE_TIMEOUT
    assert with_policy_timeouts(slow, policy).sent


async def test_a_row_that_is_only_watched_is_counted_and_the_call_goes_on_without_it(sandbox: Sandbox) -> None:
    row = "  charge:\n    - {when: amount, as: failed, observe: true}\n"
    world = await make_world(sandbox, ("  charge:\n", row))
    world.engine.telemetry.emit(reload_event(world.engine.book))
    reply = await world.charge()
    await close(world)
    assert outcome(reply) == "succeeded"
    labels = {"provider": "acme", "operation": "sale", "kind": "sale", "row": "answers.charge[0]"}
    registry = world.engine.telemetry.metrics.registry
    assert registry.get_sample_value("payment_observed_rows_total", labels) == 1


class TestLately:
    def guarded(self, number: int, value: str = "g", state: State = State.UNKNOWN) -> Operation:
        guard = Guard(GuardKind.INTENT, value, "order")
        return replace(ended(state), key=f"k{number}", guard=guard, created_at=float(number))

    def test_the_oldest_is_forgotten_first(self) -> None:
        lately = ShadowMemory(operations_max=3)
        for number in range(5):
            lately.remember(self.guarded(number, f"g{number}"))
        assert len(lately) == 3
        assert lately.by_key("k1") is None
        assert lately.by_key("k4") is not None
        assert lately.guarded_by(Guard(GuardKind.INTENT, "g1")) == ()
        assert len(lately._keys_by_guard) == 3

    def test_a_guard_names_its_holders_oldest_first_and_not_those_that_let_go(self) -> None:
        lately = ShadowMemory()
        for number in (2, 1, 3):
            lately.remember(self.guarded(number))
        lately.remember(self.guarded(3, state=State.FAILED))
        assert [held.key for held in lately.guarded_by(Guard(GuardKind.INTENT, "g"))] == ["k1", "k2"]

    def test_one_guard_holds_a_bounded_number(self) -> None:
        lately = ShadowMemory()
        for number in range(100):
            lately.remember(self.guarded(number))
        assert len(lately.guarded_by(Guard(GuardKind.INTENT, "g"))) == 32
