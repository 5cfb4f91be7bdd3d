"""Customers who must act and do not: their time ends once, with evidence, loudly; and a cancel that the policy wants
goes out only over a payment that is shown to be unconfirmed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.announcements import cloud_events
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.inquiry import Cancel, FoundObject, InquiryReason
from paywitness.core.operation import Operation, State
from paywitness.core.operator_actions import OperatorAction
from paywitness.core.policy import Policy
from paywitness.core.result import ResultClass
from paywitness.engine.calls.stored_messages import StoredRequest
from paywitness.engine.operator_commands import CommandExecutor, OperatorCommand
from paywitness.engine.resolution.inquiries import InquiryClient
from paywitness.journal.base import Journal, OperationChange
from paywitness_sandbox.bank.objects import Charge, ChargeStatus
from paywitness_sandbox.server import Sandbox
from tests.engine.resolution.test_resolver import SOON, ended, resolved, resolving
from tests.engine.world import World, header, outcome

BRIEF = replace(SOON, action_expires_s=0.3)
CANCELS = replace(BRIEF, cancels_expired_action=True)
CANCEL = (
    "    kind: sale\n",
    '    kind: sale\n    cancel:\n      needs: reference\n      request: "POST /v1/charges/{reference}/void"\n'
    "      read: [{when: \"status == 'voided'\", as: cancelled}]\n",
)


@asynccontextmanager
async def cancelling(sandbox: Sandbox, journal: Journal | None = None) -> AsyncIterator[World]:
    async with resolving(sandbox, CANCEL, resolve=CANCELS, journal=journal) as world:
        yield world


async def asked_to_act(world: World, key: str = "key-1", order: str = "order-1") -> tuple[str, Charge]:
    reply = await world.charge(key, order=order, source="tok_3ds")
    assert outcome(reply) == "requires_action"
    return header(reply, "Paywitness-Operation") or "", world.sandbox.bank.charge(json.loads(reply.body)["id"])


async def told(journal: Journal, operation_id: str) -> list[dict[str, Any]]:
    rows = [row for row in await journal.announcements(0, limit=500) if row.operation.id == operation_id]
    return [event for row in rows for event in cloud_events(row.operation, row.entry)]


async def words(journal: Journal, operation_id: str) -> list[list[str]]:
    return [event["data"]["words"] for event in await told(journal, operation_id)]


async def inquire_now(world: World, operation_id: str) -> None:
    """An operator's command."""
    parts = world.parts
    executor = CommandExecutor(
        parts.journal_writer,
        parts.external_evidence,
        world.journal,
        parts.pinned,
        lambda: world.engine.book,
        world.clock,
        parts.journal_writer.telemetry,
    )
    await executor.execute(operation_id, OperatorCommand(OperatorAction.INQUIRE, "ann", "the customer called"))


def voids(world: World) -> int:
    return sum(arrival.path.endswith("/void") for arrival in world.arrivals)


def is_set_aside(operation: Operation) -> bool:
    return operation.abandoned


async def nothing() -> None:
    """Nothing happens."""


def set_before_cancel(
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[], Awaitable[None]],
    followed_by: Callable[[], Awaitable[None]] = nothing,
) -> None:
    """What happens between the inquiry and the cancel that follows it, and right after that."""
    cancel_it = InquiryClient.cancel

    async def cancel(
        self: InquiryClient, operation: Operation, policy: Policy, cancel: Cancel, request: StoredRequest | None
    ) -> FoundObject:
        await happens()
        found = await cancel_it(self, operation, policy, cancel, request)
        await followed_by()
        return found

    monkeypatch.setattr(InquiryClient, "cancel", cancel)


# --- the end of the customer's time


async def test_a_customer_who_does_not_act_in_time_is_announced_once_and_never_again(sandbox: Sandbox) -> None:
    async with resolving(sandbox, resolve=BRIEF) as world:
        operation_id, _ = await asked_to_act(world)
        expired = await resolved(world, operation_id, is_set_aside)
        assert (expired.state, expired.action_expired, expired.because) == (
            State.REQUIRES_ACTION,
            True,
            "action_expired",
        )
        assert await words(world.journal, operation_id) == [["requires_action"], ["action_expired"]]
        await inquire_now(world, operation_id)
        await resolved(world, operation_id, lambda op: op.version > expired.version + 1 and op.abandoned)
        assert await words(world.journal, operation_id) == [["requires_action"], ["action_expired"]]
        assert voids(world) == 0


async def test_a_customer_who_acts_after_that_has_paid_without_an_incident(sandbox: Sandbox) -> None:
    async with resolving(sandbox, resolve=BRIEF) as world:
        operation_id, charge = await asked_to_act(world)
        expired = await resolved(world, operation_id, is_set_aside)
        sandbox.bank.settle(charge, ChargeStatus.SUCCEEDED)
        await world.journal.record(OperationChange(expired.changed(due_at=world.clock.now()), ()))
        paid = await resolved(world, operation_id, ended)
        assert (paid.state, paid.incident, paid.action_expired) == (State.SUCCEEDED, None, False)
        assert await words(world.journal, operation_id) == [["requires_action"], ["action_expired"], ["ended"]]


async def test_an_operator_who_asks_early_does_not_end_the_customers_time(sandbox: Sandbox) -> None:
    """Before, that one check was the last: the payment left every list a day too early."""
    async with resolving(sandbox, CANCEL, resolve=replace(CANCELS, action_expires_s=600.0)) as world:
        operation_id, _ = await asked_to_act(world)
        waiting = await world.journal.read(operation_id)
        assert waiting is not None
        await inquire_now(world, operation_id)
        after = await resolved(world, operation_id, lambda op: op.checks_done > waiting.checks_done and not op.lease)
        assert after.due_at is not None
        assert 500 < after.due_at - world.clock.now() < 700
        assert (after.action_expired, after.cancel_wanted, after.check_asked_by, voids(world)) == (False, False, "", 0)


async def test_an_inquiry_that_is_never_answered_ends_the_time_and_says_so(sandbox: Sandbox) -> None:
    async with cancelling(sandbox) as world:
        operation_id, _ = await asked_to_act(world)
        sandbox.set_schedule({"read_faults": {"unauthorized": 1.0}})
        expired = await resolved(world, operation_id, is_set_aside)
        assert (expired.because, expired.cancel_sent, expired.cancel_wanted) == (
            "action_expired_unanswered",
            False,
            False,
        )
        assert await words(world.journal, operation_id) == [["requires_action"], ["action_expired"]]
        assert voids(world) == 0  # nobody has shown that the customer had not acted


# --- cancels


async def test_what_is_not_confirmed_in_time_is_cancelled_if_the_policy_says_so(sandbox: Sandbox) -> None:
    async with cancelling(sandbox) as world:
        operation_id, charge = await asked_to_act(world)
        gone = await resolved(world, operation_id, ended)
        assert (gone.state, gone.result_class, gone.cancel_sent, gone.incident) == (
            State.FAILED,
            ResultClass.CANCELLED,
            True,
            None,
        )
        assert (charge.status, voids(world), world.effects(order="order-1")) == (ChargeStatus.VOIDED, 1, 0)
        assert await words(world.journal, operation_id) == [["requires_action"], ["action_expired"], ["ended"]]
        sent = [entry for entry in await world.journal.history(operation_id) if entry.action == "cancel"]
        assert [entry.because for entry in sent] == ["action_expired_cancel"]


@pytest.mark.parametrize("capture", [True, False])
async def test_a_customer_who_acts_between_inquiry_and_cancel_has_paid(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capture: bool
) -> None:
    """A sale is paid, and the provider refuses the cancel. An authorization it releases: then nothing was taken, and
    the event of the authorization, which comes late, contradicts nothing."""
    async with cancelling(sandbox) as world:
        if capture:
            operation_id, charge = await asked_to_act(world)
        else:
            body = {
                "amount": 500,
                "currency": "EUR",
                "source": "tok_3ds",
                "capture": False,
                "metadata": {"order_id": "h"},
            }
            headers = {"Authorization": "Bearer test", "Content-Type": "application/json", "Idempotency-Key": "h"}
            reply = await world.post("/v1/charges", body, headers)
            operation_id = header(reply, "Paywitness-Operation") or ""
            charge = sandbox.bank.charge(json.loads(reply.body)["id"])

        async def acts() -> None:
            sandbox.bank.settle(charge, ChargeStatus.SUCCEEDED)

        set_before_cancel(monkeypatch, acts)
        over = await resolved(world, operation_id, ended)
        assert (over.incident, voids(world)) == (None, 1)
        assert over.state is (State.SUCCEEDED if capture else State.FAILED)
        assert charge.status is (ChargeStatus.SUCCEEDED if capture else ChargeStatus.VOIDED)
        assert await words(world.journal, operation_id) == [["requires_action"], ["action_expired"], ["ended"]]


async def test_an_event_that_tells_of_the_payment_while_the_cancel_is_sent_wins(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cancelling(sandbox) as world:
        operation_id, charge = await asked_to_act(world)

        async def acts_and_is_told() -> None:
            sandbox.bank.settle(charge, ChargeStatus.SUCCEEDED)
            current = await world.journal.read(operation_id)
            assert current is not None
            policy = await world.parts.resolver.pinned.policy_from_book(current, world.engine.book)
            assert policy is not None
            client, evidence = world.parts.resolver.inquiry_client, world.parts.external_evidence
            seen = (await client.inquire(current, policy, None, InquiryReason.WEBHOOK)).seen  # as for a hint
            await evidence.apply(current, policy, EvidenceSource.INQUIRY, seen.finding)

        set_before_cancel(monkeypatch, acts_and_is_told)
        paid = await resolved(world, operation_id, lambda op: op.state.ended and op.lease is None)
        assert (paid.state, paid.incident) == (State.SUCCEEDED, None)
        assert await words(world.journal, operation_id) == [["requires_action"], ["action_expired"], ["ended"]]


async def test_a_cancel_whose_answer_is_lost_is_sent_once_and_found_by_asking(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cancelling(sandbox) as world:
        operation_id, charge = await asked_to_act(world)

        async def loses() -> None:
            sandbox.set_schedule({"faults": {"drop_after_commit": 1.0}})

        async def is_well_again() -> None:
            sandbox.set_schedule({})

        set_before_cancel(monkeypatch, loses, is_well_again)
        gone = await resolved(world, operation_id, ended)
        assert (gone.state, gone.result_class, charge.status) == (
            State.FAILED,
            ResultClass.CANCELLED,
            ChargeStatus.VOIDED,
        )
        assert voids(world) == 1


async def test_a_sidecar_that_died_with_its_cancel_under_way_sends_no_second_one(sandbox: Sandbox) -> None:
    async with cancelling(sandbox) as world:
        operation_id, _ = await asked_to_act(world)
        waiting = await world.journal.read(operation_id)
        assert waiting is not None
        died = waiting.changed(action_expired=True, cancel_sent=True, due_at=world.clock.now())
        await world.journal.record(OperationChange(died, ()))
        await resolved(world, operation_id, is_set_aside)  # the whole schedule shows it unconfirmed
        assert voids(world) == 0


async def test_another_open_step_of_the_payment_keeps_it_from_being_cancelled(sandbox: Sandbox) -> None:
    async with cancelling(sandbox) as world:
        operation_id, charge = await asked_to_act(world)
        first = await world.journal.read(operation_id)
        assert first is not None
        assert first.payment
        other_id, _ = await asked_to_act(world, "key-2", "order-2")
        other = await world.journal.read(other_id)
        assert other is not None
        later = other.changed(payment=first.payment, due_at=world.clock.now() + 600.0)
        await world.journal.record(OperationChange(later, ()))
        set_aside = await resolved(world, operation_id, is_set_aside)
        assert (set_aside.cancel_sent, set_aside.action_expired, voids(world)) == (False, True, 0)
        assert charge.status is ChargeStatus.REQUIRES_ACTION
