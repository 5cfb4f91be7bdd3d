"""The resolver, with the sandbox's ledger as judge: doubt ends by evidence, in front of a person where there is none,
and never by a timer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from paywitness.core.call import CallerOptions
from paywitness.core.inquiry import FoundObject, InquiryReason
from paywitness.core.operation import Finding, FindingKind, Operation, State
from paywitness.core.policy import Policy, ResolutionRules
from paywitness.core.result import Classification, ResultClass
from paywitness.engine.calls.stored_messages import StoredRequest
from paywitness.engine.resolution.inquiries import InquiryClient, InquiryResult
from paywitness.journal.base import Journal, OperationChange, OperationQuery
from paywitness.tasks import Tasks
from paywitness_sandbox.bank.objects import ChargeStatus
from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.engine.conftest import close
from tests.engine.storm import WITHOUT_KEYS
from tests.engine.world import World, header, make_world, outcome

# Times short enough for a test. The settle rule is never under a lease and the first byte's timeout: 1.3 s here.
SOON = ResolutionRules(settle_s=1.0, resend_for_s=30.0, schedule_s=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8))
QUICK = (
    ("  connect: 2s\n  first_byte: 5s ", "  connect: 2s\n  write: 300ms\n  first_byte: 300ms "),
    ("lag: 5s ", "lag: 300ms "),
)
LEASE_S = 1.0
NOT_STORED = ("errors_under_key: replayed ", "errors_under_key: not_stored ")
REEXECUTED = ("errors_under_key: replayed ", "errors_under_key: reexecuted ")


@asynccontextmanager
async def resolving(
    sandbox: Sandbox,
    *edits: tuple[str, str],
    resolve: ResolutionRules = SOON,
    journal: Journal | None = None,
    environment: dict[str, str] | None = None,
) -> AsyncIterator[World]:
    """A world in which the resolver runs."""
    world = await make_world(
        sandbox, *QUICK, *edits, lease_s=LEASE_S, resolve=resolve, journal=journal, environment=environment
    )
    background = Tasks()
    background.start(world.parts.resolver.keep_resolving(), "resolver")
    background.start(world.leases.keep_renewing(), "leases")
    try:
        yield world
    finally:
        await background.stop()
        await close(world)


async def resolved(world: World, operation_id: str | None, is_over: Callable[[Operation], bool]) -> Operation:
    """The operation, once it is so. The test's own time limit ends a wait in vain."""
    while True:
        operation = await world.journal.read(operation_id or "")
        assert operation is not None
        if is_over(operation):
            return operation
        await asyncio.sleep(0.02)


def ended(operation: Operation) -> bool:
    return operation.state.ended


async def test_a_caller_that_still_waits_hears_what_the_inquiry_found(sandbox: Sandbox) -> None:
    sandbox.set_contract("none")
    async with resolving(sandbox, *WITHOUT_KEYS) as world:
        reply = await world.charge(fault="drop_after_commit")
        assert (reply.status_code, outcome(reply), world.effects(order="order-1")) == (200, "succeeded", 1)
        assert json.loads(reply.body)["status"] == "succeeded"


async def test_a_caller_that_cannot_wait_is_told_unknown_and_its_repeat_the_truth(sandbox: Sandbox) -> None:
    async with resolving(sandbox, NOT_STORED) as world:
        lost = await world.charge(fault="hang_after_commit", timeout_s=0.2)
        assert lost.status_code == 504
        found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert (found.state, found.reference is not None) == (State.SUCCEEDED, True)
        again = await world.charge()
        assert (again.status_code, json.loads(again.body)["id"]) == (200, found.reference)
        assert len([arrival for arrival in world.arrivals if arrival.method == "POST"]) == 1


async def test_what_is_found_for_a_caller_whose_deadline_then_passes_was_told_to_nobody(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end was recorded while the caller waited, and its reply was read from the journal after the deadline: the
    caller was told 504. An equal call under a fresh key must take the answer, not pay again."""
    async with resolving(sandbox, NOT_STORED) as world:
        at_once, timeout_s = world.journal.sealed, 1.0

        async def slowly(operation_id: str) -> tuple[bytes | None, bytes | None]:
            operation = await world.journal.read(operation_id)
            if operation is not None and operation.state.ended:  # the resolver reads the request, before
                await asyncio.sleep(timeout_s)
            return await at_once(operation_id)

        body, headers = {"amount": 1099, "currency": "EUR"}, {"Authorization": "Bearer test"}
        charged = await world.charge()
        path = f"/v1/charges/{json.loads(charged.body)['id']}/refunds"
        lost = {**headers, "Idempotency-Key": "first", "Sandbox-Fault": "drop_after_commit"}
        monkeypatch.setattr(world.journal, "sealed", slowly)
        reply = await world.post(path, body, lost, CallerOptions(timeout_s=timeout_s))
        assert reply.status_code == 504
        await resolved(world, header(reply, "Paywitness-Operation"), lambda found: found.undelivered)
        again = await world.post(path, body, {**headers, "Idempotency-Key": "second"})
        assert (again.status_code, outcome(again)) == (200, "succeeded")
        assert world.sandbox.ledger.effects(kind="refund") == 1


async def test_what_never_arrived_is_absent_only_after_all_has_settled(sandbox: Sandbox) -> None:
    sandbox.set_contract("none")
    async with resolving(sandbox, *WITHOUT_KEYS) as world:
        began_mono = world.clock.mono()
        lost = await world.charge(fault="reset_before_commit", timeout_s=0.1)
        operation_id = header(lost, "Paywitness-Operation")
        found = await resolved(world, operation_id, ended)
        assert (found.state, found.result_class, found.key_released) == (State.FAILED, ResultClass.ABSENT, True)
        assert world.clock.mono() - began_mono > 1.3 + 0.3  # settle, and the misses spread over the lag
        history = await world.journal.history(found.id)
        counted = [entry for entry in history if entry.events == ("inquiry_missed",)]
        assert len(counted) >= 2
        again = await world.charge()
        assert (again.status_code, world.effects(order="order-1")) == (200, 1)


async def test_one_stale_look_at_a_shared_object_after_all_has_settled_ends_nothing(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica showed a payment as it was before our confirm, with the decline of the confirm before. It was believed
    after `settle`, and the order was paid again. Such a look counts as a miss does."""
    ask = InquiryClient.inquire
    denied = Classification.of(ResultClass.ISSUER_HARD_DECLINE, "status: declined")
    stale = FoundObject(Finding("ask[0]", FindingKind.HIT, 200, denied), may_be_stale=True)

    async def lags(
        client: InquiryClient,
        operation: Operation,
        policy: Policy,
        request: StoredRequest | None,
        reason: InquiryReason,
    ) -> InquiryResult:
        if operation.misses:
            return await ask(client, operation, policy, request, reason)
        return InquiryResult(stale, policy.inquiries[:1])

    monkeypatch.setattr(InquiryClient, "inquire", lags)
    async with resolving(sandbox, NOT_STORED) as world:
        lost = await world.charge(fault="drop_after_commit", timeout_s=0.1)
        found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert (found.state, found.incident, found.misses) == (State.SUCCEEDED, None, 1)
        again = await world.charge()
        assert (again.status_code, world.effects(order="order-1")) == (200, 1)


async def test_a_denial_that_is_shown_as_often_as_misses_count_is_believed(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = Classification.of(ResultClass.ISSUER_HARD_DECLINE, "status: declined")
    stale = FoundObject(Finding("ask[0]", FindingKind.HIT, 200, denied), may_be_stale=True)

    async def stands(
        client: InquiryClient,
        operation: Operation,
        policy: Policy,
        request: StoredRequest | None,
        reason: InquiryReason,
    ) -> InquiryResult:
        return InquiryResult(stale, policy.inquiries[:1])

    monkeypatch.setattr(InquiryClient, "inquire", stands)
    async with resolving(sandbox, NOT_STORED) as world:
        lost = await world.charge(fault="reset_before_commit", timeout_s=0.1)
        found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert (found.state, found.result_class) == (State.FAILED, ResultClass.ISSUER_HARD_DECLINE)
        assert found.misses > 0


async def test_a_black_hole_that_heals_after_not_found_is_one_effect_and_no_failure(sandbox: Sandbox) -> None:
    sandbox.set_contract("none")
    async with resolving(sandbox, *WITHOUT_KEYS) as world:
        lost = await world.charge(fault="black_hole(heal_s=1.0)", timeout_s=0.1)
        found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert (found.state, world.effects(order="order-1")) == (State.SUCCEEDED, 1)


async def test_in_the_background_the_same_key_fetches_the_answer_where_nobody_can_be_asked(sandbox: Sandbox) -> None:
    async with resolving(sandbox, *NOBODY_TO_ASK) as world:
        lost = await world.charge(fault="drop_after_commit", timeout_s=0.2)
        operation_id = header(lost, "Paywitness-Operation")
        found = await resolved(world, operation_id, ended)
        assert (found.state, world.effects(order="order-1")) == (State.SUCCEEDED, 1)
        assert {arrival.key for arrival in world.arrivals} == {"key-1"}


async def test_what_no_inquiry_can_name_is_sent_again_under_the_same_key(sandbox: Sandbox) -> None:
    async with resolving(sandbox, *BY_REFERENCE_ALONE) as world:
        lost = await world.charge(fault="drop_after_commit", timeout_s=0.2)
        found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert (found.state, world.effects(order="order-1")) == (State.SUCCEEDED, 1)
        assert {(arrival.method, arrival.key) for arrival in world.arrivals} == {("POST", "key-1")}


BY_REFERENCE_ALONE = (
    (
        "    ask: *ask_for_a_charge ",
        '    ask: [{needs: reference, request: "GET /v1/charges/{reference}", answer: charge}] ',
    ),
)
NOBODY_TO_ASK = (("    ask: *ask_for_a_charge ", "    # nobody to ask "),)


async def test_where_no_evidence_can_be_had_it_ends_in_front_of_a_person(sandbox: Sandbox) -> None:
    sandbox.set_contract("none")
    async with resolving(sandbox, *WITHOUT_KEYS, *NOBODY_TO_ASK, *NO_WEBHOOK) as world:
        lost = await world.charge(fault="drop_after_commit")
        found = await resolved(world, header(lost, "Paywitness-Operation"), lambda op: op.due_at is None)
        assert (found.state, found.because) == (State.REQUIRES_REVIEW, "in_doubt_nobody_to_ask")
        assert (await world.charge()).status_code == 504
        assert len(world.arrivals) == 1


NO_WEBHOOK = (("  sale:\n    kind: sale\n", "  sale:\n    kind: sale\n    webhook: none\n"),)


async def test_what_never_got_a_stamp_is_not_looked_for_by_one_and_never_told_absent(sandbox: Sandbox) -> None:
    sandbox.set_contract("none")
    edit = ("stamp: body:metadata.paywitness", "stamp: body:source.paywitness")
    async with resolving(sandbox, *WITHOUT_KEYS, edit) as world:
        lost = await world.charge(fault="drop_after_commit", timeout_s=0.1)
        found = await resolved(world, header(lost, "Paywitness-Operation"), lambda seen: seen.due_at is None)
        assert (found.state, found.unstamped, found.misses) == (State.REQUIRES_REVIEW, True, 0)
        assert world.effects(order="order-1") == 1


async def test_a_schedule_that_runs_out_is_a_review_and_never_a_failure(sandbox: Sandbox) -> None:
    async with resolving(sandbox, NOT_STORED) as world:
        sandbox.set_schedule({"read_faults": "error_500*"})
        lost = await world.charge(fault="drop_after_commit", timeout_s=0.1)
        found = await resolved(world, header(lost, "Paywitness-Operation"), lambda op: op.due_at is None)
        assert (found.state, found.because, found.doubt) == (
            State.REQUIRES_REVIEW,
            "schedule_ran_out",
            frozenset({1}),
        )
        exhausted = world.engine.telemetry.metrics.registry.get_sample_value(
            "payment_schedule_exhausted_total", {"provider": "acme", "operation": "sale", "kind": "sale"}
        )
        assert exhausted == 1
        told = [entry.announcement.kinds for entry in await world.journal.history(found.id) if entry.announcement]
        assert told == [("doubt_opened",), ("review_opened",)]


async def test_errors_and_refusals_of_an_inquiry_are_no_misses(sandbox: Sandbox) -> None:
    sandbox.set_contract("none")
    async with resolving(sandbox, *WITHOUT_KEYS) as world:
        sandbox.set_schedule({"read_faults": "error_500,unauthorized,rate_limited(retry_after_s=0),html_502,-*"})
        lost = await world.charge(fault="reset_before_commit", timeout_s=0.1)
        found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert found.result_class is ResultClass.ABSENT


async def test_a_provider_that_asks_for_too_long_a_wait_does_not_put_a_doubt_off_for_ever(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "paywitness.engine.resolution.resolver._RETRY_AFTER_MAX_S", 1800.0
    )  # the sandbox asks for an hour at most
    sandbox.set_contract("none")
    async with resolving(sandbox, *WITHOUT_KEYS) as world:
        sandbox.set_schedule({"read_faults": "rate_limited(retry_after_s=3600)"})
        lost = await world.charge(fault="reset_before_commit", timeout_s=0.1)
        found = await resolved(
            world, header(lost, "Paywitness-Operation"), lambda op: op.checks_done > 0 and op.lease is None
        )
        assert found.due_at is not None
        assert 60 < found.due_at - world.clock.now() <= 1800


async def test_a_pending_payment_is_asked_about_until_it_has_ended(sandbox: Sandbox) -> None:
    async with resolving(sandbox) as world:
        reply = await world.charge(source="tok_processing")
        charge = json.loads(reply.body)["id"]
        assert outcome(reply) == "pending"
        await asyncio.sleep(0.3)
        sandbox.bank.settle(sandbox.bank.charge(charge), ChargeStatus.SUCCEEDED)
        found = await resolved(world, header(reply, "Paywitness-Operation"), ended)
        assert found.state is State.SUCCEEDED
        again = await world.charge(source="tok_processing")
        assert (again.status_code, json.loads(again.body)["status"]) == (200, "succeeded")


async def test_an_abandoned_authentication_is_set_aside_and_a_later_success_is_still_applied(sandbox: Sandbox) -> None:
    async with resolving(sandbox, resolve=replace(SOON, action_expires_s=0.3)) as world:
        reply = await world.charge(source="tok_3ds")
        operation_id = header(reply, "Paywitness-Operation")
        assert outcome(reply) == "requires_action"
        set_aside = await resolved(world, operation_id, lambda op: op.due_at is None)
        assert set_aside.state is State.REQUIRES_ACTION
        sandbox.bank.settle(sandbox.bank.charge(json.loads(reply.body)["id"]), ChargeStatus.SUCCEEDED)
        record = set_aside.changed(due_at=world.clock.now())
        await world.journal.record(OperationChange(record, ()))  # as an operator's inquiry, or an event, would have it
        found = await resolved(world, operation_id, ended)
        assert (found.state, found.incident) == (State.SUCCEEDED, None)


async def test_an_inquiry_from_before_the_customer_was_to_act_is_not_the_last_one(sandbox: Sandbox) -> None:
    """An event told of the action while an inquiry was under way, which found nothing. Nobody looked ever again."""
    world = await make_world(sandbox, *QUICK)
    reply = await world.charge(source="tok_3ds")
    waiting = await world.journal.read(header(reply, "Paywitness-Operation") or "")
    assert waiting is not None
    asked = waiting.changed(state=State.UNKNOWN, version=waiting.version - 1)
    policy = await world.parts.resolver.pinned.policy_from_book(waiting, world.engine.book)
    assert policy is not None
    await world.parts.resolver._reschedule(asked, policy, "", None)
    after = await world.journal.read(waiting.id)
    assert after is not None
    assert (after.state, after.due_at) == (State.REQUIRES_ACTION, waiting.due_at)
    await close(world)


async def test_an_inquiry_that_failed_when_the_customers_time_was_over_is_made_again(sandbox: Sandbox) -> None:
    """Its customer had acted. One refused inquiry in the place of the answer, and nobody would ever have known."""
    async with resolving(sandbox, resolve=replace(SOON, action_expires_s=0.3)) as world:
        reply = await world.charge(source="tok_3ds")
        operation_id = header(reply, "Paywitness-Operation")
        sandbox.set_schedule({"read_faults": {"unauthorized": 1.0}})
        sandbox.bank.settle(sandbox.bank.charge(json.loads(reply.body)["id"]), ChargeStatus.SUCCEEDED)
        await resolved(world, operation_id, lambda op: op.checks_done > 0 and op.lease is None)
        sandbox.set_schedule({})
        assert (await resolved(world, operation_id, ended)).state is State.SUCCEEDED


CONTRACTS: dict[str, tuple[tuple[str, str], ...]] = {
    "replayed": (),
    "reexecuted": (REEXECUTED,),
    "not_stored": (NOT_STORED,),
    "none": WITHOUT_KEYS,
}


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_storm_of_lost_answers_ends_rightly_under_each_contract(contract: str) -> None:
    async with (
        Sandbox(SandboxOptions(contract=contract, hang_s=1.0)) as sandbox,
        resolving(sandbox, *CONTRACTS[contract]) as world,
    ):
        sandbox.set_schedule({"seed": 3, "faults": {"drop_after_commit": 0.2, "reset_after_commit": 0.2}})
        replies = await asyncio.gather(
            *(world.charge(f"key-{n}", order=f"order-{n}", timeout_s=0.5) for n in range(60))
        )
        sandbox.set_schedule({})
        for number, reply in enumerate(replies):
            found = await resolved(world, header(reply, "Paywitness-Operation"), ended)
            not_sent = reply.status_code == 503  # its time was up before a byte could leave: a busy machine
            assert found.state is (State.FAILED if not_sent else State.SUCCEEDED)
            assert world.effects(order=f"order-{number}") == (0 if not_sent else 1)
        assert not await world.journal.find_operations(OperationQuery(incidents_only=True))


async def test_a_slow_inquiry_is_hedged_and_the_first_answer_counts(sandbox: Sandbox) -> None:
    sandbox.set_contract("none")
    async with resolving(sandbox, *WITHOUT_KEYS) as world:
        sandbox.set_schedule({"read_faults": "hang,-*"})
        reply = await world.charge(fault="drop_after_commit")
        assert reply.status_code == 200
        reads = [arrival for arrival in world.arrivals if arrival.method == "GET"]
        assert len(reads) == 2


async def test_a_late_answer_is_harvested(sandbox: Sandbox) -> None:
    world = await make_world(sandbox, *QUICK, NOT_STORED, harvest_s=3.0, resolve=SOON)
    lost = await world.charge(fault="late_response", timeout_s=0.4)
    assert lost.status_code == 504
    found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
    assert (found.state, found.undelivered) == (State.SUCCEEDED, True)
    assert (await world.charge()).status_code == 200
    await close(world)
