"""A payment in two steps: it is created, and a card is asked later, perhaps more than once; both dialects."""

from __future__ import annotations

import pytest

from tests.sandbox.balance import lines, post, shown_as_in_the_ledger
from tests.sandbox.raw_client import call, charge_body
from tests.sandbox.test_webhooks import quiet


async def create(sandbox, key: str | None = None, **more) -> str:
    seen = await post(sandbox, "/v1/charges", charge_body("o-1", confirm=False, **more), key=key)
    assert (seen.status_code, seen.json["status"]) == (200, "created")
    return seen.json["id"]


async def create_intent(sandbox, **more: str) -> dict:
    form = {"amount": "1000", "currency": "eur", "metadata[order_id]": "o-1", **more}
    return (await call(sandbox, "POST", "/v1/payment_intents", form=form)).json


async def on_intent(sandbox, name: str, action: str = "", key: str | None = None, **form: str):
    return await call(sandbox, "POST", f"/v1/payment_intents/{name}{action}", form=form, key=key)


async def test_creating_moves_nothing_and_confirming_pays(sandbox) -> None:
    name = await create(sandbox, "k-1")
    assert sandbox.ledger.effects() == 0
    paid = await post(sandbox, f"/v1/charges/{name}/confirm", {"source": "tok_visa"}, key="k-2")
    assert (paid.json["id"], paid.json["status"], paid.json["source"]) == (name, "succeeded", "tok_visa")
    assert (lines(sandbox, key="k-1"), lines(sandbox, key="k-2")) == ([], [("charge", 1000)])
    again = await post(sandbox, f"/v1/charges/{name}/confirm", {"source": "tok_visa"}, key="k-3")
    assert (again.status_code, again.error["code"]) == (409, "charge_already_paid")
    await shown_as_in_the_ledger(sandbox, name)


async def test_what_was_declined_takes_another_card(sandbox) -> None:
    name = await create(sandbox)
    declined = await post(sandbox, f"/v1/charges/{name}/confirm", {"source": "tok_insufficient_funds"})
    assert (declined.status_code, declined.error["charge"]) == (402, name)
    assert (await call(sandbox, "GET", f"/v1/charges/{name}")).json["failure_code"] == "insufficient_funds"
    paid = await post(sandbox, f"/v1/charges/{name}/confirm", {"source": "tok_ok"})
    assert (paid.json["status"], paid.json["failure_code"]) == ("succeeded", None)
    assert sandbox.ledger.charges_by_order() == {"o-1": 1}


async def test_a_charge_that_is_only_created_is_found_by_its_stamp(sandbox) -> None:
    name = await create(sandbox, metadata={"order_id": "o-1", "paywitness": "op-1"})
    found = (await call(sandbox, "GET", "/v1/charges?paywitness=op-1")).json["data"]
    assert [(item["id"], item["status"]) for item in found] == [(name, "created")]


async def test_3ds_after_a_confirm_is_an_effect_of_that_confirm(sandbox) -> None:
    name = await create(sandbox, "k-1")
    seen = await post(sandbox, f"/v1/charges/{name}/confirm", {"source": "tok_3ds"}, key="k-2")
    assert seen.json["status"] == "requires_action"
    again = await post(sandbox, f"/v1/charges/{name}/confirm", {"source": "tok_ok"})
    assert (again.status_code, again.error["code"]) == (409, "charge_requires_action")
    await post(sandbox, f"/_sandbox/charges/{name}/settle")
    assert (lines(sandbox, key="k-1"), lines(sandbox, key="k-2")) == ([], [("charge", 1000)])


async def test_processing_that_failed_is_confirmed_again_and_paid_once(sandbox) -> None:
    name = await create(sandbox)
    await post(sandbox, f"/v1/charges/{name}/confirm", {"source": "tok_processing"}, key="k-1")
    assert (await post(sandbox, f"/v1/charges/{name}/confirm")).error["code"] == "charge_already_paid"
    await post(sandbox, f"/_sandbox/charges/{name}/settle", {"status": "failed"})
    await post(sandbox, f"/v1/charges/{name}/confirm", {"source": "tok_ok"}, key="k-2")
    assert lines(sandbox, key="k-1") == [("charge", 1000), ("void", 1000)]
    assert lines(sandbox, key="k-2") == [("charge", 1000)]
    assert sandbox.ledger.duplicates_by_order() == {}


@pytest.mark.parametrize("source", [None, "tok_stolen_card"])
async def test_what_is_not_paid_is_called_off_without_an_effect_and_not_confirmed_any_more(sandbox, source) -> None:
    name = await create(sandbox)
    if source is not None:
        await post(sandbox, f"/v1/charges/{name}/confirm", {"source": source})
    assert (await post(sandbox, f"/v1/charges/{name}/void")).json["status"] == "voided"
    late = await post(sandbox, f"/v1/charges/{name}/confirm", {"source": "tok_ok"})
    assert (late.status_code, late.error["code"]) == (409, "charge_already_voided")
    assert sandbox.ledger.effects() == 0


async def test_invalid_steps_are_refused(sandbox) -> None:
    assert (await post(sandbox, "/v1/charges", charge_body(confirm="no"))).error["param"] == "confirm"
    name = await create(sandbox)
    assert (await post(sandbox, f"/v1/charges/{name}/confirm", {"source": 1})).error["param"] == "source"
    assert (await post(sandbox, f"/v1/charges/{name}/confirm", {"source": "tok_typo"})).status_code == 400
    assert (await post(sandbox, "/v1/charges/ch_none/confirm")).status_code == 404
    assert sandbox.ledger.effects() == 0


async def test_creating_is_not_told_and_every_confirm_is(telling, receiver) -> None:
    name = await create(telling)
    await post(telling, f"/v1/charges/{name}/confirm", {"source": "tok_stolen_card"})
    await post(telling, f"/v1/charges/{name}/confirm", {"source": "tok_ok"})
    await quiet(telling)
    assert receiver.types == ["charge.failed", "charge.succeeded"]


async def test_a_declined_intent_is_named_in_the_refusal_and_takes_another_method(sandbox) -> None:
    name = (await create_intent(sandbox))["id"]
    declined = await on_intent(sandbox, name, "/confirm", payment_method="pm_card_chargeDeclined")
    assert (declined.status_code, declined.error["payment_intent"]["id"]) == (402, name)
    assert declined.error["charge"] == declined.error["payment_intent"]["latest_charge"] == name.replace("pi_", "ch_")
    paid = await on_intent(sandbox, name, "/confirm", "k-2", payment_method="pm_card_visa")
    assert (paid.json["status"], paid.json["amount_received"]) == ("succeeded", 1000)
    assert lines(sandbox, charge=name) == lines(sandbox, key="k-2") == [("charge", 1000)]


async def test_an_intent_is_changed_before_it_is_paid(sandbox) -> None:
    name = (await create_intent(sandbox, **{"metadata[draft]": "d-1"}))["id"]
    form = {"amount": "1200", "metadata[order_id]": "o-2", "metadata[draft]": "", "payment_method": "tok_amex"}
    seen = (await on_intent(sandbox, name, **form)).json
    assert (seen["amount"], seen["metadata"], seen["payment_method"]) == (1200, {"order_id": "o-2"}, "tok_amex")
    assert sandbox.ledger.effects() == 0

    async def found(order: str) -> list[str]:
        query = f"/v1/payment_intents/search?query=metadata['order_id']:'{order}'"
        return [item["id"] for item in (await call(sandbox, "GET", query)).json["data"]]

    assert (await found("o-1"), await found("o-2")) == ([], [name])
    await on_intent(sandbox, name, "/confirm")
    assert lines(sandbox, order="o-2") == [("charge", 1200)]


async def test_of_a_paid_intent_only_the_metadata_change(sandbox) -> None:
    name = (await create_intent(sandbox, confirm="true"))["id"]
    for change in ({"amount": "900"}, {"payment_method": "tok_amex"}):
        refused = await on_intent(sandbox, name, **change)
        assert (refused.status_code, refused.error["code"]) == (400, "payment_intent_unexpected_state")
    seen = (await on_intent(sandbox, name, **{"metadata[shipped]": "yes"})).json
    assert (seen["metadata"], seen["amount"]) == ({"order_id": "o-1", "shipped": "yes"}, 1000)
    assert (await on_intent(sandbox, "pi_none", amount="1")).status_code == 404


async def test_changed_intents_are_still_listed_newest_first(make_sandbox) -> None:
    now = [1000.0]
    sandbox = await make_sandbox(clock=lambda: now[0])
    names = []
    for _ in range(2):
        names.append((await create_intent(sandbox))["id"])
        now[0] += 1
    await on_intent(sandbox, names[0], **{"metadata[shipped]": "yes"})
    seen = await call(sandbox, "GET", "/v1/payment_intents/search?query=metadata['order_id']:'o-1'")
    assert [item["id"] for item in seen.json["data"]] == names[::-1]
