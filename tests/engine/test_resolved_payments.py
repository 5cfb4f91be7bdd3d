"""What a person resolves counts for its payment as an inquiry's finding does: over SQLite and Redis, with the sandbox's
ledger as the judge. Each operation here had an effect, or had none, that only the person could see."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paywitness.core.consequences import WriteContext
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import Finding, FindingKind, Operation, Posting, State
from paywitness.core.operator_actions import OperatorAction
from paywitness.core.payment import MovementStatus, Payment
from paywitness.core.result import Classification, ResultClass
from paywitness.engine.durability.journal_writer import change_of
from paywitness.engine.operator_commands import CommandExecutor, OperatorCommand
from paywitness.engine.payment_commands import PaymentKnown
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.test_intent_payments import authorised, follow, intent
from tests.engine.test_payment_commands import adopting, charged_elsewhere, commands_of
from tests.engine.world import World, make_world, outcome, problem_type

EVIDENCE = "Acme's dashboard shows it"
DONE = "drop_after_commit*"  # every request is executed and none is answered
NOT_DONE = "reset_before_commit*"  # every request is read and none is executed


def executor(world: World) -> CommandExecutor:
    parts = world.parts
    return CommandExecutor(
        parts.journal_writer,
        parts.external_evidence,
        world.journal,
        parts.pinned,
        lambda: world.engine.book,
        world.clock,
        world.engine.telemetry,
    )


async def resolve(world: World, operation: Operation, *, succeeded: bool, reference: str | None = None) -> Operation:
    command = OperatorCommand(OperatorAction.RESOLVE, "ada", "ticket 4711", succeeded, EVIDENCE, reference)
    return await executor(world).execute(operation.id, command)


async def operation_of(world: World, reply: Any) -> Operation:
    found = await world.journal.read(dict(reply.headers)[b"Paywitness-Operation"].decode())
    assert found is not None
    return found


async def lost_sale(world: World, key: str = "key-1", fault: str = DONE, **more: Any) -> tuple[Operation, str]:
    """A sale whose outcome is unknown, and the provider's name for it; empty if it was not made."""
    reply = await world.charge(key, amount=2500, fault=fault, timeout_s=1.0, **more)
    assert outcome(reply) == "unknown"
    charges = [entry for entry in world.sandbox.ledger.entries if str(entry.kind) == "charge" and entry.key == key]
    return await operation_of(world, reply), charges[0].charge if charges else ""


async def payment_of(world: World, operation: Operation) -> Payment:
    view = await world.engine.intents.payments.by_id(operation.payment)
    assert view is not None
    return view.payment


async def postings_of(world: World, operation: Operation) -> list[Posting]:
    entries = await world.journal.history(operation.id)
    told = [entry.announcement.posting for entry in entries if entry.announcement is not None]
    return [posting for posting in told if posting is not None]


async def told_by_inquiry(world: World, operation: Operation, reading: ResultClass, **numbers: Any) -> Operation:
    """An inquiry that finds the charge so, after the person has resolved it."""
    policy = await world.parts.pinned.policy_from_book(operation, world.engine.book)
    assert policy is not None
    finding = Finding("ask[0]", FindingKind.HIT, 200, Classification.of(reading, "charge"))
    found = {"amount": 2500, "currency": "EUR", **numbers}
    applied = await world.parts.external_evidence.apply(
        operation, policy, EvidenceSource.INQUIRY, finding, provider_object=found
    )
    return applied.operation


async def test_a_sale_that_a_person_found_paid_has_its_payment_under_its_name(stored_world: World) -> None:
    world = stored_world
    operation, reference = await lost_sale(world)
    after = await resolve(world, operation, succeeded=True, reference=reference)
    assert (after.state, after.reference, after.incident) == (State.SUCCEEDED, reference, None)
    payment = await payment_of(world, after)
    assert (payment.names, payment.currency, payment.paid_by) == ((reference,), "EUR", after.id)
    assert (payment.authorised, payment.captured, payment.refunded) == (2500, 2500, 0)
    assert await world.engine.intents.payments.find(reference) == (payment.id,)
    with pytest.raises(PaymentKnown, match="made through here"):
        await commands_of(world).adopt(adopting(reference))
    posted = [(line.kind, line.minor_units, line.currency) for line in await postings_of(world, after)]
    assert posted == [("sale", 2500, "EUR")]


async def test_limits_hold_for_it_and_a_full_refund_frees_its_purchase(stored_world: World) -> None:
    world = stored_world
    operation, reference = await lost_sale(world)
    await resolve(world, operation, succeeded=True, reference=reference)
    assert (await intent(world))["safe_to_pay"] is False
    assert (await follow(world, reference, "refunds", 1500)).status_code == 200
    exceeding = await follow(world, reference, "refunds", 1001)
    assert (exceeding.status_code, problem_type(exceeding)) == (422, "exceeds-remaining")
    assert (await intent(world))["safe_to_pay"] is False
    assert (await follow(world, reference, "refunds", 1000)).status_code == 200
    assert (await intent(world))["safe_to_pay"] is True
    assert world.effects() == 3


async def test_what_was_refunded_before_the_person_looked_counts(stored_world: World) -> None:
    """The refund made a payment under the name that it was given. It turns out to be this one."""
    world = stored_world
    operation, reference = await lost_sale(world)
    assert (await follow(world, reference, "refunds", 1500)).status_code == 200
    after = await resolve(world, operation, succeeded=True, reference=reference)
    payment = await payment_of(world, after)
    assert (payment.captured, payment.refunded) == (2500, 1500)
    exceeding = await follow(world, reference, "refunds", 1001)
    assert (exceeding.status_code, problem_type(exceeding)) == (422, "exceeds-remaining")


async def test_an_authorization_that_a_person_found_is_captured_up_to_its_amount(stored_world: World) -> None:
    world = stored_world
    body = {"amount": 2500, "currency": "EUR", "source": "tok_ok", "capture": False, "metadata": {"order_id": "o-1"}}
    headers = {"Authorization": "Bearer test", "Content-Type": "application/json", "Idempotency-Key": "auth"}
    reply = await world.post("/v1/charges", body, {**headers, "Sandbox-Fault": DONE})
    [made] = world.sandbox.ledger.entries
    after = await resolve(world, await operation_of(world, reply), succeeded=True, reference=made.charge)
    payment = await payment_of(world, after)
    assert (payment.authorised, payment.captured, payment.expires_at is not None) == (2500, 0, True)
    exceeding = await follow(world, made.charge, "capture", 2501)
    assert (exceeding.status_code, problem_type(exceeding)) == (422, "exceeds-remaining")
    assert (await follow(world, made.charge, "capture", 2500)).status_code == 200


@pytest.mark.parametrize(("action", "status"), [("refunds", 422), ("capture", 422)])
async def test_a_movement_that_a_person_found_done_is_posted(stored_world: World, action: str, status: int) -> None:
    world = stored_world
    reference = await authorised(world, 2500)
    if action == "refunds":
        assert (await follow(world, reference, "capture", 2500)).status_code == 200
    lost = await follow(world, reference, action, 1500, Sandbox_Fault=DONE)
    operation = await operation_of(world, lost)
    after = await resolve(world, operation, succeeded=True)
    payment = await payment_of(world, after)
    [movement] = [one for one in payment.movements if one.operation_id == after.id]
    assert (movement.status, movement.minor_units) == (MovementStatus.POSTED, 1500)
    assert (payment.refunded if action == "refunds" else payment.captured) == 1500
    exceeding = await follow(world, reference, action, 1001)
    assert (exceeding.status_code, problem_type(exceeding)) == (status, "exceeds-remaining")


async def test_a_movement_that_a_person_found_not_done_frees_its_reservation(stored_world: World) -> None:
    world = stored_world
    reference = str(json.loads((await world.charge(amount=2500)).body)["id"])
    lost = await follow(world, reference, "refunds", 2000, Sandbox_Fault=NOT_DONE)
    operation = await operation_of(world, lost)
    assert (await follow(world, reference, "refunds", 1000, key="early")).status_code == 409
    after = await resolve(world, operation, succeeded=False)
    payment = await payment_of(world, after)
    assert (payment.movements, payment.refunded) == ((), 0)
    assert (await follow(world, reference, "refunds", 2500, key="again")).status_code == 200
    assert world.effects() == 2


async def test_a_void_that_a_person_found_done_frees_the_purchase(stored_world: World) -> None:
    world = stored_world
    reference = await authorised(world, 2500)
    lost = await follow(world, reference, "void", Sandbox_Fault=DONE)
    assert (await intent(world))["safe_to_pay"] is False
    after = await resolve(world, await operation_of(world, lost), succeeded=True)
    assert (await payment_of(world, after)).given_back is True
    assert (await intent(world))["safe_to_pay"] is True


async def test_evidence_that_denies_what_a_person_found_is_an_incident(stored_world: World) -> None:
    world = stored_world
    operation, reference = await lost_sale(world)
    resolved = await resolve(world, operation, succeeded=True, reference=reference)
    denied = await told_by_inquiry(world, resolved, ResultClass.FAILED, id=reference, status="failed")
    assert (denied.state, denied.incident) == (State.SUCCEEDED, IncidentKind.FAILURE_AFTER_SUCCESS)
    assert (await world.charge("again", amount=2400)).status_code == 409


async def test_evidence_that_confirms_what_a_person_found_posts_nothing_more(stored_world: World) -> None:
    world = stored_world
    operation, reference = await lost_sale(world)
    resolved = await resolve(world, operation, succeeded=True, reference=reference)
    numbers = {"amount_captured": 2500, "amount_refunded": 0, "amount_disputed": 0}
    after = await told_by_inquiry(world, resolved, ResultClass.SUCCEEDED, id=reference, **numbers)
    assert after.incident is None
    payment = await payment_of(world, after)
    assert (payment.captured, payment.times_paid) == (2500, 1)
    assert len(await postings_of(world, after)) == 1


async def test_an_incident_that_is_closed_as_paid_posts_the_payment_as_a_success_does(stored_world: World) -> None:
    world = stored_world
    declined = await operation_of(world, await world.charge(amount=2500, source="tok_insufficient_funds"))
    [name] = (await payment_of(world, declined)).names
    doubted = declined.changed(incident=IncidentKind.DOUBT_AFTER_FAILURE)
    opened = await world.journal.record(change_of(declined, doubted, (), WriteContext(world.clock.now())))
    command = OperatorCommand(OperatorAction.CLOSE_INCIDENT, "ada", "ticket 4711", succeeded=True)
    after = await executor(world).execute(opened.id, command)
    assert (after.state, after.incident) == (State.SUCCEEDED, None)
    payment = await payment_of(world, after)
    assert (payment.names, payment.authorised, payment.captured) == ((name,), 2500, 2500)
    exceeding = await follow(world, name, "refunds", 2501)
    assert (exceeding.status_code, problem_type(exceeding)) == (422, "exceeds-remaining")


async def test_a_reference_of_another_payment_is_an_incident_and_changes_nothing_of_that_one(
    stored_world: World,
) -> None:
    world = stored_world
    reference = str(json.loads((await world.charge("first", amount=1000, order="order-9")).body)["id"])
    operation, _ = await lost_sale(world, fault=NOT_DONE)
    after = await resolve(world, operation, succeeded=True, reference=reference)
    assert (after.state, after.incident, after.reference) == (State.SUCCEEDED, IncidentKind.REFERENCE_TAKEN, None)
    [payment_id] = await world.engine.intents.payments.find(reference)
    found = await world.engine.intents.payments.by_id(payment_id)
    assert found is not None
    assert (found.payment.captured, found.payment.times_paid) == (1000, 1)


async def test_a_payment_that_was_adopted_first_is_the_one_that_the_person_names(stored_world: World) -> None:
    world = stored_world
    operation, _ = await lost_sale(world, fault=NOT_DONE)
    reference = await charged_elsewhere(world)
    adopted = await commands_of(world).adopt(adopting(reference))
    assert (await follow(world, reference, "refunds", 500)).status_code == 200
    after = await resolve(world, operation, succeeded=True, reference=reference)
    payment = await payment_of(world, after)
    assert (payment.id, payment.captured, payment.refunded) == (adopted.payment.id, 2500, 500)


async def test_whether_it_was_captured_stays_unknown_if_only_a_response_can_show_it(sandbox: Sandbox) -> None:
    """The limit is not checked then: a person states the number."""
    edit = ("    captures: automatic                    #", "    captures: \"status == 'succeeded'\" #")
    world = await make_world(sandbox, edit)
    operation, reference = await lost_sale(world)
    after = await resolve(world, operation, succeeded=True, reference=reference)
    payment = await payment_of(world, after)
    assert (payment.names, payment.authorised, payment.captured) == ((reference,), 2500, None)
    await close(world)
