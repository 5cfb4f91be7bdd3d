"""The traces of the design about payments, through the engine over SQLite and Redis. The sandbox's ledger is the judge.

Each test names the trace that it plays. What an earlier release told wrongly (M7, M14, M16, B1 to B6) is here too."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from paywitness.core.call import CallerOptions
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import Finding, FindingKind, Operation, State
from paywitness.core.payment import PaidElsewhere, Payment
from paywitness.core.reply import Reply
from paywitness.core.result import Classification, ResultClass
from paywitness.journal.base import Journal, OperationQuery
from paywitness.journal.ledger import payment_from_row, payment_row
from paywitness.journal.redis.journal import RedisJournal
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, header, make_world, outcome, problem_type, until

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer test"}
ORDER = "order-1"
LOST = "reset_before_commit*"  # every request is read and none is executed: the outcome stays unknown


async def call(
    world: World, path: str, key: str, body: dict[str, Any], fault: str = "", options: CallerOptions | None = None
) -> Reply:
    headers = {**HEADERS, "Idempotency-Key": key, **({"Sandbox-Fault": fault} if fault else {})}
    return await world.post(path, body, headers, options or CallerOptions(timeout_s=3.0))


async def create(world: World, key: str, order: str | None = ORDER, **more: Any) -> str:
    """A charge that is not confirmed yet."""
    body = {"amount": 1000, "currency": "EUR", "confirm": False, "metadata": {"order_id": order} if order else {}}
    reply = await call(world, "/v1/charges", key, {**body, **more})
    assert reply.status_code == 200, reply.body
    return str(json.loads(reply.body)["id"])


async def authorise(world: World, key: str = "auth", amount: int = 1000, order: str = ORDER) -> str:
    body = {"amount": amount, "currency": "EUR", "source": "tok_ok", "capture": False, "metadata": {"order_id": order}}
    reply = await call(world, "/v1/charges", key, body)
    assert reply.status_code == 200, reply.body
    return str(json.loads(reply.body)["id"])


async def confirm(world: World, charge: str, key: str, source: str = "tok_ok", **more: Any) -> Reply:
    return await call(world, f"/v1/charges/{charge}/confirm", key, {"source": source}, **more)


async def elsewhere(world: World, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A request that does not come through us."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{world.sandbox.url}{path}", json=body, headers=HEADERS) as response,
    ):
        found: dict[str, Any] = await response.json()
        return found


async def operation_of(world: World, reply: Reply) -> Operation:
    found = await world.journal.read(header(reply, "Paywitness-Operation") or "")
    assert found is not None
    return found


async def payment_of(world: World, name: str) -> Payment:
    [payment_id] = await world.engine.intents.payments.find(name)
    view = await world.engine.intents.payments.by_id(payment_id)
    assert view is not None
    return view.payment


def lines(world: World, order: str = ORDER) -> list[tuple[str, int]]:
    """What the provider's ledger shows of an order."""
    return [(str(entry.kind), entry.amount) for entry in world.sandbox.ledger.entries if entry.order == order]


# --- Steps of one payment


async def test_a_repeated_confirm_is_replayed_and_another_after_success_is_refused(stored_world: World) -> None:
    """N14: the retry of a confirm that succeeded was sent, refused by the provider, and told as failed."""
    world = stored_world
    charge = await create(world, "create")
    assert (await confirm(world, charge, "first")).status_code == 200
    arrivals = len(world.arrivals)
    equal = await confirm(world, charge, "a fresh key")
    assert (equal.status_code, outcome(equal), header(equal, "Paywitness-Replayed")) == (200, "succeeded", "true")
    other = await confirm(world, charge, "another card", source="tok_visa")
    assert (other.status_code, problem_type(other)) == (409, "guarded")
    assert len(world.arrivals) == arrivals
    assert lines(world) == [("charge", 1000)]


async def test_a_decline_beside_an_unknown_step_advises_not_to_pay_again(stored_world: World) -> None:
    """N14: the customer was told to use another method while the first confirm may have paid."""
    world = stored_world
    charge = await create(world, "create")
    assert (await confirm(world, charge, "first", fault=LOST)).status_code == 504
    declined = await confirm(world, charge, "second", source="tok_stolen_card")
    assert (outcome(declined), header(declined, "Paywitness-Advice")) == ("declined", "do_not_pay_again")
    again = await confirm(world, charge, "second", source="tok_stolen_card")
    assert header(again, "Paywitness-Advice") == "do_not_pay_again"
    anew = await world.charge("begun anew", amount=1000)
    assert (anew.status_code, problem_type(anew)) == (409, "guarded")  # the intent stays held
    assert lines(world) == []


async def test_a_decline_alone_says_what_a_decline_says(stored_world: World) -> None:
    """N14: no earlier step is open."""
    charge = await create(stored_world, "create")
    for key in ("first", "second"):
        declined = await confirm(stored_world, charge, key, source="tok_stolen_card")
        assert header(declined, "Paywitness-Advice") == "use_another_method"
    assert (await confirm(stored_world, charge, "third")).status_code == 200


async def test_the_intent_of_an_object_that_nobody_saw_is_read_before_the_first_byte(stored_world: World) -> None:
    """N15 and M16: the create did not come through us. The job begins anew after a lost confirm."""
    world = stored_world
    seen = await elsewhere(
        world, "/v1/charges", {"amount": 1000, "currency": "EUR", "confirm": False, "metadata": {"order_id": ORDER}}
    )
    reply = await confirm(world, str(seen["id"]), "first", fault=LOST)
    assert reply.status_code == 504
    guard = (await operation_of(world, reply)).guard
    assert guard is not None
    assert (guard.kind, guard.label) == ("intent", ORDER)
    anew = await elsewhere(
        world, "/v1/charges", {"amount": 1000, "currency": "EUR", "confirm": False, "metadata": {"order_id": ORDER}}
    )
    second = await confirm(world, str(anew["id"]), "second")
    assert (second.status_code, problem_type(second)) == (409, "guarded")
    assert lines(world) == []


async def test_if_the_object_cannot_be_read_the_call_passes_and_its_target_guards_it(stored_world: World) -> None:
    """N15: a failed read does not stop the call, and is counted."""
    world = stored_world
    seen = await elsewhere(
        world, "/v1/charges", {"amount": 1000, "currency": "EUR", "confirm": False, "metadata": {"order_id": ORDER}}
    )
    world.sandbox.set_schedule({"read_faults": "error_500*"})
    reply = await confirm(world, str(seen["id"]), "first")
    assert reply.status_code == 200
    guard = (await operation_of(world, reply)).guard
    assert guard is not None
    assert (guard.kind, guard.label) == ("target", seen["id"])
    samples = [sample for metric in world.engine.telemetry.metrics.registry.collect() for sample in metric.samples]
    checks = [sample for sample in samples if sample.name == "payment_limit_checks_total"]
    assert sum(sample.value for sample in checks if sample.labels["result"] == "intent_unknown") == 1
    assert len(world.sandbox.ledger.entries) == 1


async def test_the_intent_that_a_step_names_wins_over_that_of_its_create(stored_world: World) -> None:
    """P41: the object was made at page load, with a draft's number."""
    world = stored_world
    charge = await create(world, "create", order="draft-9")
    options = CallerOptions(intent=ORDER, timeout_s=3.0)
    assert (await confirm(world, charge, "first", options=options)).status_code == 200
    told = json.loads((await world.engine.intents.describe(ORDER)).body)
    assert told["safe_to_pay"] is False
    again = await world.charge("the same order", amount=1000)
    assert (again.status_code, problem_type(again)) == (409, "guarded")
    assert len(world.sandbox.ledger.entries) == 1


async def test_several_payments_of_one_intent_pass_up_to_their_total(sandbox: Sandbox) -> None:
    """P41: a deposit of 30% and the balance of 70%."""
    total = ("    after_success: block\n    reference: id\n    also_known_as: error.charge\n    captures: automatic",)
    edit = (total[0], "    intent_total: metadata.total\n" + total[0])
    world = await make_world(sandbox, edit)

    async def pay(key: str, amount: int) -> Reply:
        body = {"amount": amount, "currency": "EUR", "source": "tok_ok"}
        return await call(world, "/v1/charges", key, {**body, "metadata": {"order_id": ORDER, "total": 1000}})

    assert [(await pay(key, amount)).status_code for key, amount in (("a", 300), ("b", 700), ("c", 1))] == [
        200,
        200,
        409,
    ]
    assert (await pay("d", 300)).status_code == 200  # an equal one is told the first's reply
    assert lines(world) == [("charge", 300), ("charge", 700)]
    await close(world)


# --- The order of what a claim asks


async def test_a_repeat_is_replayed_before_any_limit_is_asked(stored_world: World) -> None:
    """P32: the repeat of a capture that succeeded was 422."""
    world = stored_world
    charge = await authorise(world)
    first = await call(world, f"/v1/charges/{charge}/capture", "capture", {"amount": 1000})
    again = await call(world, f"/v1/charges/{charge}/capture", "capture", {"amount": 1000})
    assert (first.status_code, again.status_code, again.body) == (200, 200, first.body)
    assert header(again, "Paywitness-Replayed") == "true"
    more = await call(world, f"/v1/charges/{charge}/capture", "more", {"amount": 1})
    assert (more.status_code, problem_type(more)) == (422, "exceeds-remaining")
    assert lines(world) == [("authorization", 1000), ("capture", 1000)]


async def test_an_own_earlier_generation_reserves_nothing(stored_world: World) -> None:
    """P32: a refund that was not executed is made again under its own key, for all that is left."""
    world = stored_world
    charge = json.loads((await world.charge(amount=1000)).body)["id"]
    refused = await call(world, f"/v1/charges/{charge}/refunds", "refund", {"amount": 1000}, fault="unauthorized")
    assert outcome(refused) in {"failed", "not_sent"}
    assert (await call(world, f"/v1/charges/{charge}/refunds", "refund", {"amount": 1000})).status_code == 200
    assert lines(world) == [("charge", 1000), ("refund", 1000)]


# --- What others did


async def shown(world: World, operation: Operation, **numbers: int) -> None:
    """An inquiry that shows the charge with these numbers."""
    policy = await world.parts.payment_sweep.pinned.policy_from_book(operation, world.parts.payment_sweep.book())
    assert policy is not None
    finding = Finding("ask[0]", FindingKind.HIT, 200, Classification.of(ResultClass.SUCCEEDED, "charge"))
    found = {"amount": 1000, "currency": "EUR", **numbers}
    await world.parts.external_evidence.apply(operation, policy, EvidenceSource.INQUIRY, finding, provider_object=found)


async def test_a_negative_remainder_does_not_take_the_replay_of_a_paid_order_away(stored_world: World) -> None:
    """N23: a goodwill refund made more of the payment than it had, and the paid order was told as 504."""
    world = stored_world
    first = await world.charge(amount=1000)
    await shown(world, await operation_of(world, first), amount_captured=1000, amount_refunded=1200)
    assert (await operation_of(world, first)).incident == IncidentKind.NEGATIVE_REMAINDER
    again = await world.charge(amount=1000)
    assert (again.status_code, outcome(again), again.body) == (200, "succeeded", first.body)
    assert header(again, "Paywitness-Incident") == "negative_remainder"
    assert lines(world) == [("charge", 1000)]


async def test_already_done_is_asked_about_until_one_inquiry_reads_the_object(stored_world: World) -> None:
    """N19: one inquiry that failed held the order until a person came. The object was voided, and is not paid."""
    world = stored_world
    charge = await create(world, "create")
    await elsewhere(world, f"/v1/charges/{charge}/void", {})
    refused = await confirm(world, charge, "late")
    operation = await operation_of(world, refused)
    assert (outcome(refused), operation.state, operation.paid_elsewhere) == ("failed", State.FAILED, True)
    assert (await world.charge("anew", amount=1100)).status_code == 409  # until somebody has looked it counts as paid
    world.sandbox.set_schedule({"read_faults": "error_500"})
    await sweep_when_due(world, charge)
    unread = await payment_of(world, charge)
    assert (unread.elsewhere, unread.verifications) == (PaidElsewhere.UNVERIFIED, 1)
    world.sandbox.set_schedule({})
    await sweep_when_due(world, charge)
    assert (await payment_of(world, charge)).elsewhere is PaidElsewhere.NO
    assert (await world.charge("anew", amount=1100)).status_code == 200


async def sweep_when_due(world: World, name: str) -> None:
    """Let the sweep act on the payment now."""
    payment = await payment_of(world, name)
    [row] = await world.journal.ledger_rows((f"p:{payment.id}",))
    assert row is not None
    due = replace(payment_from_row(row), verify_at=world.clock.now() - 1.0)
    assert await world.journal.write_ledger_rows((payment_row(due, row),))
    await world.parts.payment_sweep.sweep()


async def test_a_second_capture_that_the_provider_refuses_is_not_told_as_done(stored_world: World) -> None:
    """M14 and B1: the charge did not come through us, so that no limit is known and the provider decides."""
    world = stored_world
    body = {"amount": 1000, "currency": "EUR", "source": "tok_ok", "capture": False, "metadata": {"order_id": ORDER}}
    charge = str((await elsewhere(world, "/v1/charges", body))["id"])
    first = await call(world, f"/v1/charges/{charge}/capture", "first", {"amount": 300})
    second = await call(world, f"/v1/charges/{charge}/capture", "second", {"amount": 700})
    assert (first.status_code, outcome(first)) == (200, "succeeded")
    assert (second.status_code >= 400, outcome(second) != "succeeded") == (True, True)
    assert lines(world) == [("authorization", 1000), ("capture", 300)]


async def test_an_unknown_confirm_is_named_by_its_order(stored_world: World) -> None:
    """M7: the page of the order said that it is safe to pay elsewhere."""
    charge = await create(stored_world, "create")
    assert (await confirm(stored_world, charge, "first", fault="drop_after_commit*")).status_code == 504
    told = json.loads((await stored_world.engine.intents.describe(ORDER)).body)
    assert told["safe_to_pay"] is False
    assert lines(stored_world) == [("charge", 1000)]


async def test_a_refunded_order_is_not_paid_by_a_late_duplicate(stored_world: World) -> None:
    """B3 and P34: told as 409, with another body paid anew."""
    world = stored_world
    charge = json.loads((await world.charge(amount=900)).body)["id"]
    assert (await call(world, f"/v1/charges/{charge}/refunds", "refund", {})).status_code == 200
    late = await world.charge("late", amount=900)
    assert (late.status_code, problem_type(late)) == (409, "refunded")
    assert (await world.charge("anew", amount=901)).status_code == 200
    assert lines(world) == [("charge", 900), ("refund", 900), ("charge", 901)]


async def test_a_key_that_joined_a_payment_is_told_that_it_was_given_back(stored_world: World) -> None:
    """The success was recorded after all had been refunded, and a call that waited for it was told that it is paid."""
    world = stored_world
    first = asyncio.create_task(world.charge("first", amount=900, fault="slow(slow_s=0.3)"))
    await until(lambda: world.arrivals)
    joined = await world.charge("joined", amount=900)
    assert (joined.status_code, joined.replayed) == (200, True)
    charge = json.loads((await first).body)["id"]
    assert (await call(world, f"/v1/charges/{charge}/refunds", "refund", {})).status_code == 200
    again = await world.charge("joined", amount=900)
    assert (again.status_code, problem_type(again)) == (409, "refunded")
    assert (await world.charge("first", amount=900)).status_code == 200  # its own key: replayed
    assert lines(world) == [("charge", 900), ("refund", 900)]


async def test_a_voided_order_is_not_paid_by_a_late_duplicate(stored_world: World) -> None:
    """P34: a void is no less a cancelled order than a refund."""
    world = stored_world
    charge = await authorise(world)
    assert (await call(world, f"/v1/charges/{charge}/void", "void", {})).status_code == 200
    body = {"amount": 1000, "currency": "EUR", "source": "tok_ok", "capture": False, "metadata": {"order_id": ORDER}}
    late = await call(world, "/v1/charges", "late", body)
    assert (late.status_code, problem_type(late)) == (409, "refunded")
    meant = await call(world, "/v1/charges", "meant", body, options=CallerOptions(distinct="ordered again"))
    assert meant.status_code == 200
    assert lines(world) == [("authorization", 1000), ("void", 1000), ("authorization", 1000)]


async def test_a_void_beside_a_capture_in_flight_waits_for_it(stored_world: World) -> None:
    """B6: both were sent, and the void was told as done."""
    world = stored_world
    charge = await authorise(world, amount=800)
    capture = asyncio.ensure_future(
        call(world, f"/v1/charges/{charge}/capture", "capture", {}, fault="late_commit(late_s=0.3)")
    )
    while not any(arrival.path.endswith("/capture") for arrival in world.arrivals):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    void = await call(world, f"/v1/charges/{charge}/void", "void", {})
    await capture
    assert outcome(void) != "succeeded"
    assert lines(world) == [("authorization", 800), ("capture", 800)]


# --- Further parts of the traces


async def test_the_step_that_completes_an_action_is_not_refused_by_the_guard_of_its_own_payment(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    """P4 D: with `during_action: block` the intent refused the very call that completes the action."""
    world = await make_world(
        sandbox,
        ("    after_success: block\n", "    after_success: block\n    during_action: block\n"),
        journal=stored_journal,
    )
    charge = await create(world, "create")  # the customer must act: it waits to be confirmed
    other = await world.charge("another", amount=900)
    assert (other.status_code, problem_type(other)) == (409, "guarded")
    assert (await confirm(world, charge, "confirm")).status_code == 200
    assert lines(world) == [("charge", 1000)]
    assert not await world.journal.find_operations(OperationQuery(incidents_only=True))
    await close(world)


async def test_a_confirm_that_only_reserves_leaves_everything_to_capture(stored_world: World) -> None:
    """P5 C: a sale with manual capture counted as captured, and the real capture was 422."""
    charge = await create(stored_world, "create", capture=False)
    assert (await confirm(stored_world, charge, "confirm")).status_code == 200
    captured = await call(stored_world, f"/v1/charges/{charge}/capture", "capture", {"amount": 1000})
    assert captured.status_code == 200
    refunded = await call(stored_world, f"/v1/charges/{charge}/refunds", "refund", {"amount": 1000})
    assert refunded.status_code == 200
    assert lines(stored_world) == [("authorization", 1000), ("capture", 1000), ("refund", 1000)]


@pytest.mark.parametrize("capture", [False, True])
async def test_a_reversal_needs_either_remainder(stored_world: World, capture: bool) -> None:
    """P5 D: the reversal of a payment that was not captured is a void, and no refund beyond what was captured."""
    charge = await authorise(stored_world)
    if capture:
        assert (await call(stored_world, f"/v1/charges/{charge}/capture", "capture", {})).status_code == 200
    reversed_ = await call(stored_world, f"/v1/charges/{charge}/reverse", "reverse", {})
    assert (reversed_.status_code, outcome(reversed_)) == (200, "succeeded")
    told = json.loads((await stored_world.engine.intents.describe(ORDER)).body)
    assert told["safe_to_pay"] is True


async def test_already_confirmed_elsewhere_is_not_told_as_free_to_pay(stored_world: World) -> None:
    """P12 A: the browser has confirmed the charge, and the job's confirm is refused. The job must not begin anew."""
    world = stored_world
    charge = await create(world, "create")
    await elsewhere(world, f"/v1/charges/{charge}/confirm", {"source": "tok_ok"})
    refused = await confirm(world, charge, "job")
    assert (refused.status_code >= 400, outcome(refused)) == (True, "failed")
    assert header(refused, "Paywitness-Advice") == "do_not_pay_again"
    assert json.loads((await world.engine.intents.describe(ORDER)).body)["safe_to_pay"] is False
    anew = await world.charge("anew", amount=1000)
    assert (anew.status_code, problem_type(anew)) == (409, "guarded")
    assert lines(world) == [("charge", 1000)]


async def test_already_refunded_on_a_first_attempt_is_passed_on_at_once(stored_world: World) -> None:
    """U3: it took 38 seconds, became unknown, and was told as not sent ten minutes later."""
    world = stored_world
    paid = {"amount": 1000, "currency": "EUR", "source": "tok_ok", "metadata": {"order_id": ORDER}}
    charge = str((await elsewhere(world, "/v1/charges", paid))["id"])
    await elsewhere(world, f"/v1/charges/{charge}/refunds", {})
    arrivals = len(world.arrivals)
    refused = await call(world, f"/v1/charges/{charge}/refunds", "refund", {"amount": 1000})
    told = json.loads(refused.body)
    assert (refused.status_code, told["error"]["code"]) == (409, "charge_already_refunded")  # the provider's own
    operation = await operation_of(world, refused)
    assert (operation.state, operation.attempts, operation.key_released) == (State.FAILED, 1, False)
    assert [arrival.path for arrival in list(world.arrivals)[arrivals:]] == [f"/v1/charges/{charge}/refunds"]
    assert lines(world) == [("charge", 1000), ("refund", 1000)]


async def test_a_capture_still_passes_after_the_date_at_which_the_authorization_expires(stored_world: World) -> None:
    """P24: our own date refused captures that the provider would have taken. It only tells."""
    world = stored_world
    charge = await authorise(world)
    payment = await payment_of(world, charge)
    [row] = await world.journal.ledger_rows((f"p:{payment.id}",))
    assert row is not None
    over = replace(payment_from_row(row), expires_at=world.clock.now() - 86_400.0)
    assert await world.journal.write_ledger_rows((payment_row(over, row),))
    await world.parts.payment_sweep.sweep()
    assert (await payment_of(world, charge)).expiry_announced == "expired"
    assert lines(world) == [("authorization", 1000)]  # nobody has voided it
    captured = await call(world, f"/v1/charges/{charge}/capture", "capture", {"amount": 1000})
    assert (captured.status_code, outcome(captured)) == (200, "succeeded")


# --- Cost


@pytest.mark.parametrize("stored_journal", ["redis"], indirect=True)
async def test_a_clean_authorization_capture_and_refund_ask_the_journal_twice_each(stored_world: World) -> None:
    """A payment beside the operation costs no step of its own. A confirm costs more: it looks for the order of its
    object, and what stands under that order is asked for once the object is known."""
    journal = stored_world.journal
    assert isinstance(journal, RedisJournal)
    await authorise(stored_world, "warm", order="warm")

    async def steps_of(path: str, key: str, body: dict[str, Any]) -> int:
        before = journal.calls
        reply = await call(stored_world, path, key, body, options=CallerOptions(timeout_s=20.0))
        assert reply.status_code == 200, reply.body
        return journal.calls - before

    money = {"amount": 1000, "currency": "EUR", "source": "tok_ok", "capture": False}
    assert await steps_of("/v1/charges", "authorise", {**money, "metadata": {"order_id": "cost"}}) == 2
    [authorised] = [entry for entry in stored_world.sandbox.ledger.entries if entry.order == "cost"]
    charge = f"/v1/charges/{authorised.charge}"
    assert await steps_of(f"{charge}/capture", "capture", {"amount": 600, "final": False}) == 2
    assert await steps_of(f"{charge}/refunds", "refund", {"amount": 100}) == 2
    created = await create(stored_world, "create", order="two steps")
    assert await steps_of(f"/v1/charges/{created}/confirm", "confirm", {"source": "tok_ok"}) <= 6
