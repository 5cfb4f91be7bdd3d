"""Fallback between routes of one API: only from what provably had no effect, in one step, under one intent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest

from paywitness.clock import SystemClock
from paywitness.core.account_rules import BackgroundCredentials
from paywitness.core.announcements import cloud_events
from paywitness.core.evidence import Evidence
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.operation import Finding, FindingKind, State
from paywitness.core.operator_actions import proposal_for
from paywitness.core.result import Classification, ResultClass
from paywitness.engine.policy_reload import reload_event
from paywitness.engine.policy_start import store_revisions
from paywitness.journal.base import OperationQuery
from paywitness.policy.book import PolicyBook, load_content
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import Origin, WireRequest
from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.engine.conftest import close
from tests.engine.world import POLICY, World, header, make_world, outcome
from tests.journal.memory import MemoryJournal

BEARER = {"Authorization": "Bearer test", "Content-Type": "application/json"}


def policy_text(name: str, upstream: str, *edits: tuple[str, str]) -> str:
    text = (
        POLICY.read_text()
        .replace("http://127.0.0.1:8702", upstream)
        .replace("provider: acme ", f"merchant: shop\nprovider: {name} ")
    )
    for old, new in (("hosts: [api.acme.test]", f"hosts: [{name.replace('_', '-')}.acme.test]"), *edits):
        assert old in text, old
        text = text.replace(old, new)
    return text


@dataclass
class TwoRoutes:
    first: Sandbox
    second: Sandbox
    world: World

    async def unreachable(self) -> None:
        await self.first.stop()

    def effects(self, order: str = "order-1") -> tuple[int, int]:
        return self.first.ledger.effects(order=order), self.second.ledger.effects(order=order)


async def two_routes(first: Sandbox, second: Sandbox, fallback: str) -> TwoRoutes:
    few = "{attempts: 2, base: 10ms, cap: 20ms}"
    quick = (
        ("network_connect_failure: {attempts: 4, base: 200ms, cap: 2s}", f"network_connect_failure: {few}"),
        ("rate_limited: {attempts: 4, base: 1s, cap: 20s}", f"rate_limited: {few}"),
    )
    elsewhere = ("\nunmatched: forward", f"\nfallback: [{fallback}]\nunmatched: forward")
    mirror = ("\nunmatched: forward", "\nsame_credentials_as: acme\nunmatched: forward")
    texts = (policy_text("acme", first.url, *quick, elsewhere), policy_text("acme_eu", second.url, *quick, mirror))
    world = await make_world(first, journal=MemoryJournal(clock=SystemClock()))
    book = PolicyBook.of([load_content(text.encode(), "test.yaml") for text in texts])
    await store_revisions(world.journal, book)
    world.engine.telemetry.emit(reload_event(book))
    world.engine.policies.book = book
    return TwoRoutes(first, second, world)


@pytest.fixture
async def routes() -> AsyncIterator[TwoRoutes]:
    async with Sandbox(SandboxOptions()) as first, Sandbox(SandboxOptions()) as second:
        built = await two_routes(first, second, "{to: acme_eu, when: [not_sent, rate_limited]}")
        yield built
        await close(built.world)


async def test_what_never_reached_the_first_route_is_paid_by_the_second(routes: TwoRoutes) -> None:
    await routes.unreachable()
    reply = await routes.world.charge()
    assert (reply.status_code, outcome(reply), header(reply, "Paywitness-Provider")) == (200, "succeeded", "acme_eu")
    assert routes.effects() == (0, 1)
    second = await routes.world.journal.read(header(reply, "Paywitness-Operation") or "")
    assert second is not None
    assert second.fallback_of is not None
    first = await routes.world.journal.read(second.fallback_of)
    assert first is not None
    assert (first.state, first.fallback_to, first.key_released) == (State.FAILED, second.id, False)
    assert (second.money, str(second.money)) == (first.money, "10.99 EUR")
    counted = routes.world.engine.telemetry.metrics.registry.get_sample_value(
        "payment_fallback_total",
        {"from_provider": "acme", "to_provider": "acme_eu", "reason": "network_connect_failure"},
    )
    assert counted == 1


async def test_a_fallback_is_announced_and_the_end_is_told_once(routes: TwoRoutes) -> None:
    await routes.unreachable()
    reply = await routes.world.charge()
    await routes.world.charge()
    second_id = header(reply, "Paywitness-Operation") or ""
    rows = await routes.world.journal.announcements(0, limit=50)
    fell, ended = [event for row in rows for event in cloud_events(row.operation, row.entry)]
    assert (fell["type"], ended["type"]) == ("paywitness.operation.fallback", "paywitness.operation.ended")
    assert (ended["subject"], ended["data"]["outcome"]) == (second_id, "succeeded")
    assert fell["data"]["fallback"] == {
        "from": "acme",
        "from_operation": fell["subject"],
        "to": "acme_eu",
        "to_operation": second_id,
        "reason": "network_connect_failure",
    }
    registry = routes.world.engine.telemetry.metrics.registry
    labels = {"from": "acme", "to": "acme_eu", "reason": "network_connect_failure", "outcome": "succeeded"}
    assert registry.get_sample_value("payment_fallback_outcomes_total", labels) == 1


async def test_each_route_counts_the_operation_that_was_started_there(routes: TwoRoutes) -> None:
    """The second is never called by its name. A share of its operations needs a count of its operations."""
    await routes.unreachable()
    await routes.world.charge()
    await routes.world.charge()  # a repeat starts nothing
    registry = routes.world.engine.telemetry.metrics.registry
    labels = {"operation": "sale", "kind": "sale"}
    started = [
        registry.get_sample_value("payment_operations_started_total", {"provider": provider, **labels})
        for provider in ("acme", "acme_eu")
    ]
    assert started == [1, 1]


async def test_the_first_key_answers_with_the_fallbacks_outcome_for_ever(routes: TwoRoutes) -> None:
    await routes.unreachable()
    first = await routes.world.charge()
    for key in ("key-1", "key-1", "a fresh key"):
        again = await routes.world.charge(key)
        assert (again.status_code, again.body) == (200, first.body)
    assert routes.effects() == (0, 1)


async def test_what_was_restored_with_an_incident_is_not_paid_elsewhere(routes: TwoRoutes) -> None:
    """After a rollback of the journal another call may have gone on under its key. A person looks first."""
    world = routes.world
    await routes.unreachable()
    world.leases.is_disputed = lambda operation_id: True  # type: ignore[method-assign]
    reply = await world.charge()
    assert (reply.status_code, outcome(reply), routes.effects()) == (503, "not_sent", (0, 0))


async def test_from_doubt_there_is_no_fallback(routes: TwoRoutes) -> None:
    reply = await routes.world.charge(fault="drop_after_commit*", timeout_s=1.5)
    assert reply.status_code == 504
    assert routes.effects() == (1, 0)


async def test_a_decline_is_no_reason_to_pay_elsewhere(routes: TwoRoutes) -> None:
    reply = await routes.world.charge(source="tok_stolen_card")
    assert (reply.status_code, routes.effects()) == (402, (0, 0))
    assert not routes.second.arrivals.arrivals


async def test_a_throttled_route_is_left_for_the_other(routes: TwoRoutes) -> None:
    routes.first.set_schedule({"faults": {"rate_limited": 1.0}})
    reply = await routes.world.charge()
    assert (reply.status_code, routes.effects()) == (200, (0, 1))


async def test_follow_ups_go_to_the_route_that_made_the_payment(routes: TwoRoutes) -> None:
    port = routes.first.port
    await routes.unreachable()
    charge = json.loads((await routes.world.charge()).body)["id"]
    await routes.first.start(port=port)
    headers = {**BEARER, "Idempotency-Key": "refund-1"}
    refund = await routes.world.post(f"/v1/charges/{charge}/refunds", {"amount": 100}, headers)
    assert (refund.status_code, header(refund, "Paywitness-Provider")) == (200, "acme_eu")
    assert routes.second.ledger.effects(kind="refund") == 1


async def test_after_so_many_tries_the_other_route_is_taken() -> None:
    async with Sandbox(SandboxOptions()) as first, Sandbox(SandboxOptions()) as second:
        routes = await two_routes(first, second, "{to: acme_eu, when: [not_sent], after: 1}")
        await routes.unreachable()
        reply = await routes.world.charge()
        assert (reply.status_code, routes.effects()) == (200, (0, 1))
        operations = await routes.world.journal.find_operations(OperationQuery(provider="acme"))
        assert [operation.attempts for operation in operations] == [1]
        await close(routes.world)


async def test_a_late_success_of_the_first_route_is_a_duplicate_and_shown_to_a_person(routes: TwoRoutes) -> None:
    """What was believed never to have been sent turns out to have been executed: an inquiry or event says so."""
    await routes.unreachable()
    await routes.world.charge()
    (first,) = await routes.world.journal.find_operations(OperationQuery(provider="acme"))
    policy = routes.world.engine.book.providers["acme"].policies[1]
    paid = Classification.of(ResultClass.SUCCEEDED, "test")
    told = Finding("webhook evt_1", FindingKind.HIT, 200, paid)
    await routes.world.parts.external_evidence.apply(first, policy, EvidenceSource.WEBHOOK, told)
    (disputed,) = await routes.world.journal.find_operations(OperationQuery(incidents_only=True))
    assert (disputed.id, disputed.state) == (first.id, State.FAILED)
    assert disputed.incident == "duplicate_success"
    assert "void" in (proposal_for(disputed) or "") or "refund" in (proposal_for(disputed) or "")
    again = await routes.world.charge()  # the purchase is paid: the first key goes on to say so
    assert (again.status_code, header(again, "Paywitness-Provider")) == (200, "acme_eu")


# --- another account's route


async def two_accounts(first: Sandbox, second: Sandbox) -> TwoRoutes:
    """The second route is another account's: it has credentials of its own."""
    routes = await two_routes(first, second, "{to: acme_eu, when: [not_sent]}")
    own = BackgroundCredentials((("Authorization", "EU_AUTHORIZATION"),))
    providers = [
        replace(each, policies=tuple(replace(policy, credentials=own) for policy in each.policies))
        if each.name == "acme_eu"
        else each
        for each in routes.world.engine.book.providers.values()
    ]
    routes.world.engine.policies.book = PolicyBook.of(providers)
    routes.world.engine.fallbacks = replace(
        routes.world.engine.fallbacks, environment={"EU_AUTHORIZATION": "Bearer of-the-second"}
    )
    pipeline = replace(routes.world.engine.pipeline, fallbacks=routes.world.engine.fallbacks)
    routes.world.engine.pipeline = pipeline
    return routes


@contextmanager
def credentials_sent(to: Sandbox) -> Iterator[set[bytes]]:
    """The credentials that go out to one route."""
    send, seen, port = UpstreamClient.send, set[bytes](), to.port

    async def spy(client: UpstreamClient, origin: Origin, request: WireRequest, *rest: Any, **options: Any) -> Evidence:
        if origin.port == port:
            seen.update(value for name, value in request.headers if name.lower() == b"authorization")
        return await send(client, origin, request, *rest, **options)

    with patch.object(UpstreamClient, "send", spy):
        yield seen


async def test_no_secret_of_one_route_is_sent_to_another() -> None:
    """N17: follow-ups of what a fallback made go out under that route's own credentials."""
    async with Sandbox(SandboxOptions()) as first, Sandbox(SandboxOptions()) as second:
        routes = await two_accounts(first, second)
        stack = ExitStack()
        sent = stack.enter_context(credentials_sent(second))
        port = first.port
        await routes.unreachable()
        charge = json.loads((await routes.world.charge()).body)["id"]
        await first.start(port=port)
        headers = {**BEARER, "Idempotency-Key": "refund-1"}
        refund = await routes.world.post(f"/v1/charges/{charge}/refunds", {"amount": 100}, headers)
        assert (refund.status_code, header(refund, "Paywitness-Provider")) == (200, "acme_eu")
        assert second.ledger.effects(kind="refund") == 1
        stack.close()
        assert sent == {b"Bearer of-the-second"}
        await close(routes.world)


async def test_a_strangers_credential_is_given_no_credential_of_another_route() -> None:
    async with Sandbox(SandboxOptions()) as first, Sandbox(SandboxOptions()) as second:
        routes = await two_accounts(first, second)
        stack = ExitStack()
        sent = stack.enter_context(credentials_sent(second))
        port = first.port
        await routes.unreachable()
        charge = json.loads((await routes.world.charge()).body)["id"]
        await first.start(port=port)
        headers = {**BEARER, "Authorization": "Bearer a-stranger", "Idempotency-Key": "refund-1"}
        await routes.world.post(f"/v1/charges/{charge}/refunds", {"amount": 100}, headers)
        assert second.ledger.effects(kind="refund") == 0
        stack.close()
        assert sent == {b"Bearer of-the-second"}
        await close(routes.world)
