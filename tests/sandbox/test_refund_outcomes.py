"""Refunds that do not end at once, and refunds that fail after they had succeeded; both dialects."""

from __future__ import annotations

import pytest

from tests.sandbox.balance import lines, post, shown_as_in_the_ledger
from tests.sandbox.raw_client import call, charge
from tests.sandbox.test_webhooks import quiet


async def refund(sandbox, name: str, outcome: str | None = None, key: str | None = None, **more):
    metadata = {} if outcome is None else {"metadata": {"outcome": outcome}}
    return await post(sandbox, f"/v1/charges/{name}/refunds", {**metadata, **more}, key=key)


async def test_a_pending_refund_has_left_us_until_it_fails(sandbox) -> None:
    name = (await charge(sandbox)).json["id"]
    pending = (await refund(sandbox, name, "pending", "k-1", amount=400)).json
    assert (pending["status"], pending["failure_reason"]) == ("pending", None)
    assert (await shown_as_in_the_ledger(sandbox, name))["amount_refunded"] == 400
    assert (await refund(sandbox, name, amount=601)).error["code"] == "amount_too_large"
    failed = await post(sandbox, f"/_sandbox/refunds/{pending['id']}/settle", {"status": "failed"})
    assert (failed.json["status"], failed.json["failure_reason"]) == ("failed", "expired_or_canceled_card")
    assert (await call(sandbox, "GET", f"/v1/refunds/{pending['id']}")).json == failed.json
    assert lines(sandbox, key="k-1") == [("refund", 400), ("refund_failed", 400)]
    assert (await shown_as_in_the_ledger(sandbox, name))["amount_refunded"] == 0
    assert (await refund(sandbox, name)).json["amount"] == 1000


async def test_a_pending_refund_succeeds_once(sandbox) -> None:
    name = (await charge(sandbox)).json["id"]
    pending = (await refund(sandbox, name, "pending")).json["id"]
    assert (await post(sandbox, f"/_sandbox/refunds/{pending}/settle")).json["status"] == "succeeded"
    again = await post(sandbox, f"/_sandbox/refunds/{pending}/settle", {"status": "failed"})
    assert (again.status_code, again.error["code"]) == (409, "refund_not_open")
    assert lines(sandbox, kind="refund_failed") == []
    assert (await shown_as_in_the_ledger(sandbox, name))["refunded"] is True


async def test_a_refund_that_had_succeeded_fails_once(sandbox) -> None:
    name = (await charge(sandbox)).json["id"]
    done = (await refund(sandbox, name, key="k-1")).json
    assert done["status"] == "succeeded"
    failed = await post(sandbox, f"/_sandbox/refunds/{done['id']}/fail")
    assert failed.json["status"] == "failed"
    again = await post(sandbox, f"/_sandbox/refunds/{done['id']}/fail")
    assert (again.status_code, again.error["code"]) == (409, "refund_not_succeeded")
    assert lines(sandbox, key="k-1") == [("refund", 1000), ("refund_failed", 1000)]
    seen = await shown_as_in_the_ledger(sandbox, name)
    assert (seen["refunded"], seen["amount_refunded"]) == (False, 0)


async def test_a_refund_that_fails_at_once_leaves_no_line(sandbox) -> None:
    name = (await charge(sandbox)).json["id"]
    seen = await refund(sandbox, name, "failed")
    assert (seen.status_code, seen.json["status"]) == (200, "failed")
    assert lines(sandbox) == [("charge", 1000)]
    listed = (await call(sandbox, "GET", f"/v1/charges/{name}/refunds")).json["data"]
    assert [item["status"] for item in listed] == ["failed"]
    await shown_as_in_the_ledger(sandbox, name)


@pytest.mark.parametrize("outcome", ["pendin", 1, ["pending"]])
async def test_an_outcome_with_a_typing_error_refunds_nothing(sandbox, outcome) -> None:
    name = (await charge(sandbox)).json["id"]
    seen = await refund(sandbox, name, outcome)
    assert (seen.status_code, "pending" in seen.error["message"]) == (400, True)
    assert sandbox.ledger.effects() == 1


async def test_settling_a_refund_names_its_mistakes(sandbox) -> None:
    name = (await charge(sandbox)).json["id"]
    pending = (await refund(sandbox, name, "pending")).json["id"]
    assert (await post(sandbox, f"/_sandbox/refunds/{pending}/settle", {"status": "paid"})).status_code == 400
    assert (await post(sandbox, f"/_sandbox/refunds/{pending}/fail")).status_code == 409
    for action in ("settle", "fail"):
        assert (await post(sandbox, f"/_sandbox/refunds/re_none/{action}")).status_code == 404


async def test_every_turn_of_a_refund_is_told(telling, receiver) -> None:
    name = (await charge(telling, webhook="never")).json["id"]
    first = (await refund(telling, name, "pending", amount=100)).json["id"]
    await post(telling, f"/_sandbox/refunds/{first}/settle")
    await post(telling, f"/_sandbox/refunds/{first}/fail")
    await refund(telling, name, amount=100)
    await refund(telling, name, "failed", amount=100)
    await quiet(telling)
    turns = ["pending", "updated", "failed", "succeeded", "failed"]
    assert receiver.types == [f"refund.{turn}" for turn in turns]
    statuses = [event.json["data"]["status"] for event in receiver.told]
    assert statuses == ["pending", "succeeded", "failed", "succeeded", "failed"]


async def test_stripes_refunds_take_the_same_turns(telling, receiver) -> None:
    form = {"amount": "1000", "currency": "eur", "confirm": "true"}
    intent = (await call(telling, "POST", "/v1/payment_intents", form=form, webhook="never")).json
    form = {"payment_intent": intent["id"], "metadata[outcome]": "pending"}
    made = (await call(telling, "POST", "/v1/refunds", form=form)).json
    names = {"status": "pending", "payment_intent": intent["id"], "charge": intent["latest_charge"]}
    assert made.items() >= names.items()
    await post(telling, f"/_sandbox/refunds/{made['id']}/settle")
    await post(telling, f"/_sandbox/refunds/{made['id']}/fail")
    await quiet(telling)
    assert receiver.types == ["refund.created", "charge.refund.updated", "refund.failed"]
    assert [event.json["data"]["object"]["status"] for event in receiver.told] == ["pending", "succeeded", "failed"]
    await shown_as_in_the_ledger(telling, intent["latest_charge"])
