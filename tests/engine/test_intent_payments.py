"""Intents with payments behind them, read from a real store after real calls: what stands is what the ledger says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paywitness.clock import SystemClock
from paywitness.core.call import CallerOptions
from paywitness.core.reply import Reply
from paywitness.journal.base import LedgerRow
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, make_world

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer test"}


async def intent(stored_world: World, order: str = "order-1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await stored_world.engine.intents.describe(order)).body)
    return found


async def follow(stored_world: World, reference: str, action: str, amount: int | None = None, **headers: str) -> Reply:
    body = {} if amount is None else {"amount": amount}
    key = {"Idempotency-Key": headers.pop("key", f"{action}-{amount}")}
    given = {**HEADERS, **key, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await stored_world.post(f"/v1/charges/{reference}/{action}", body, given, CallerOptions())


async def authorised(stored_world: World, amount: int = 10_000, order: str = "order-1") -> str:
    body = {
        "amount": amount,
        "currency": "EUR",
        "source": "tok_ok",
        "capture": False,
        "metadata": {"order_id": order},
    }
    reply = await stored_world.post(
        "/v1/charges", body, {**HEADERS, "Idempotency-Key": f"auth-{order}"}, CallerOptions()
    )
    assert reply.status_code == 200, reply.body
    return str(json.loads(reply.body)["id"])


async def test_a_partly_refunded_purchase_is_not_free_and_says_what_stands(stored_world: World) -> None:
    reference = str(json.loads((await stored_world.charge(amount=2500)).body)["id"])
    assert (await follow(stored_world, reference, "refunds", 1000)).status_code == 200
    told = await intent(stored_world)
    [payment] = told["payments"]
    assert told["safe_to_pay"] is False
    [against] = told["why_not"]
    assert against["reason"] == "Paid: 25.00 EUR authorised, 25.00 captured, 10.00 refunded. 15.00 EUR stand."
    assert against["operation"] == payment["payment"] == payment["steps"][0]["operation"]
    assert told["explanation"].startswith(f"Payment {reference} at acme. Paid: 25.00 EUR authorised")
    assert "It may be paid again once" in told["explanation"]
    [refund] = payment["movements"]
    assert (refund["kind"], refund["status"], refund["outcome"]) == ("refund", "posted", "succeeded")
    assert (refund["amount"], refund["currency"], refund["posting"]) == ("10.00", "EUR", refund["operation"])
    assert (payment["stands"], payment["reserved"], payment["names"]) == ("15.00", {}, [reference])


async def test_after_a_full_refund_it_is_free_and_says_what_an_equal_call_gets(stored_world: World) -> None:
    reference = str(json.loads((await stored_world.charge(amount=2500)).body)["id"])
    await follow(stored_world, reference, "refunds", 1000)
    await follow(stored_world, reference, "refunds", 1500)
    told = await intent(stored_world)
    assert (told["safe_to_pay"], told["why_not"]) == (True, [])
    assert "Refunded in full: an equal call gets 409 unless it says Paywitness-Distinct." in told["explanation"]
    repeated = await stored_world.charge(key="key-2", amount=2500)
    assert json.loads(repeated.body)["type"].endswith(":refunded")
    assert (await stored_world.charge(key="key-3", amount=2400)).status_code == 200
    assert stored_world.effects() == 4  # charge, two refunds, charge
    assert (await intent(stored_world))["safe_to_pay"] is False


async def test_a_void_of_the_rest_does_not_free_what_was_captured(stored_world: World) -> None:
    reference = await authorised(stored_world)
    assert (await follow(stored_world, reference, "capture", 6000)).status_code == 200
    await follow(stored_world, reference, "void")
    told = await intent(stored_world)
    assert told["safe_to_pay"] is False
    assert "60.00 EUR stand." in told["why_not"][0]["reason"]


async def test_a_refund_in_doubt_is_reserved_and_named(stored_world: World) -> None:
    reference = str(json.loads((await stored_world.charge(amount=2500)).body)["id"])
    lost = await follow(stored_world, reference, "refunds", 2500, Sandbox_Fault="drop_after_commit*")
    assert lost.status_code == 504
    told = await intent(stored_world)
    assert told["safe_to_pay"] is False
    assert told["payments"][0]["reserved"] == {"refund": "25.00"}
    assert "A refund of 25.00 EUR is open: its end is not known yet." in told["why_not"][0]["reason"]


async def test_an_order_number_over_255_characters_is_found(stored_world: World) -> None:
    order = "o" * 300
    await stored_world.charge(amount=2500, order=order)
    told = await intent(stored_world, order)
    assert (told["intent"], told["safe_to_pay"], len(told["operations"])) == (order, False, 1)
    assert (await intent(stored_world, "o" * 200))["safe_to_pay"] is True


# A create that makes an object and moves nothing. The confirm names the object alone.
CREATE = """  create:
    kind: none
    match: POST /v1/charges
    where: "confirm == `false`"
    stamp: none
    reference: id
    intent: metadata.order_id
    answer: created_charge

"""
CREATED = "answers:\n  created_charge:\n    - {when: \"status == 'created'\", as: succeeded}\n"


async def test_a_confirm_counts_for_the_intent_of_its_create(sandbox: Sandbox, tmp_path: Path) -> None:
    """Finding M7: the confirm names no order, and while it was unknown the order was said to be safe to pay."""
    journal = await SqliteJournal.open(tmp_path / "journal.db", clock=SystemClock())
    edits = (("operations:\n", f"operations:\n{CREATE}"), ("answers:\n", CREATED))
    world = await make_world(sandbox, *edits, journal=journal)
    body = {"amount": 2500, "currency": "EUR", "confirm": False, "metadata": {"order_id": "order-42"}}
    created = await world.post("/v1/charges", body, {**HEADERS, "Idempotency-Key": "create"}, CallerOptions())
    reference = str(json.loads(created.body)["id"])
    assert (await intent(world, "order-42"))["safe_to_pay"] is True
    headers = {**HEADERS, "Idempotency-Key": "confirm", "Sandbox-Fault": "drop_after_commit*"}
    lost = await world.post(f"/v1/charges/{reference}/confirm", {"source": "tok_ok"}, headers, CallerOptions())
    assert lost.status_code == 504
    told = await intent(world, "order-42")
    assert told["safe_to_pay"] is False
    assert told["why_not"][0]["state"] == "unknown"
    [payment] = told["payments"]
    assert [(step["name"], step["outcome"]) for step in payment["steps"]] == [
        ("create", "succeeded"),
        ("confirm", "unknown"),
    ]
    assert world.effects() == 1
    await close(world)


async def test_a_paid_confirm_speaks_for_the_create_that_asked_the_customer_to_act(stored_world: World) -> None:
    """The create stands as `requires_action` until it is asked about. The page said of the paid charge that the
    customer may still confirm it, and another payment was told `requires_action` and to authenticate."""
    body = {"amount": 2500, "currency": "EUR", "confirm": False, "metadata": {"order_id": "order-42"}}
    created = await stored_world.post("/v1/charges", body, {**HEADERS, "Idempotency-Key": "create"}, CallerOptions())
    reference = str(json.loads(created.body)["id"])
    assert "may still do so" in (await intent(stored_world, "order-42"))["why_not"][0]["reason"]
    headers = {**HEADERS, "Idempotency-Key": "confirm"}
    paid = await stored_world.post(f"/v1/charges/{reference}/confirm", {"source": "tok_ok"}, headers, CallerOptions())
    assert paid.status_code == 200
    told = await intent(stored_world, "order-42")
    [against] = told["why_not"]
    assert (told["safe_to_pay"], against["outcome"]) == (False, "succeeded")
    assert against["reason"] == "Paid: 25.00 EUR authorised, 25.00 captured, 0.00 refunded. 25.00 EUR stand."
    another = {"amount": 2600, "currency": "EUR", "source": "tok_ok", "metadata": {"order_id": "order-42"}}
    refused = await stored_world.post(
        "/v1/charges", another, {**HEADERS, "Idempotency-Key": "another"}, CallerOptions()
    )
    problem = json.loads(refused.body)
    assert (refused.status_code, problem["outcome"], problem["advice"]) == (409, "none", "do_not_pay_again")
    assert problem["holder"]["outcome"] == "succeeded"
    assert (await follow(stored_world, reference, "refunds", 2500)).status_code == 200
    assert (await intent(stored_world, "order-42"))["safe_to_pay"] is True
    assert stored_world.effects() == 2  # the charge, and its refund


async def test_an_id_that_turned_out_to_be_another_payment_leads_to_it(stored_world: World) -> None:
    """A follow-up may name a payment otherwise than the operation that made it, until the provider shows both names."""
    reference = str(json.loads((await stored_world.charge(amount=2500)).body)["id"])
    payments = stored_world.engine.intents.payments
    [payment_id] = await payments.find(reference)
    link = LedgerRow("p:op_0EARLIER", 1, f"@p:{payment_id}")
    assert await stored_world.journal.write_ledger_rows((link,))
    view = await payments.by_id("op_0EARLIER")
    assert view is not None
    assert (view.payment.id, [each.id for each in view.operations]) == (payment_id, [payment_id])
    assert await payments.find("op_0EARLIER") == (payment_id,)
