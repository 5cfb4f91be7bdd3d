"""Disputes: the money leaves when one is opened, and comes back when it is won."""

from __future__ import annotations

import pytest

from tests.sandbox.balance import lines, post, shown_as_in_the_ledger
from tests.sandbox.raw_client import call, charge, charge_body
from tests.sandbox.test_webhooks import quiet


async def dispute(sandbox, name: str, amount: int | None = None):
    return await post(sandbox, f"/_sandbox/charges/{name}/dispute", {} if amount is None else {"amount": amount})


async def close(sandbox, name: str, status: str):
    return await post(sandbox, f"/_sandbox/disputes/{name}/settle", {"status": status})


async def test_a_dispute_takes_all_that_is_left_and_a_won_one_gives_it_back(sandbox) -> None:
    name = (await charge(sandbox, key="k-1")).json["id"]
    await post(sandbox, f"/v1/charges/{name}/refunds", {"amount": 300})
    opened = (await dispute(sandbox, name)).json
    expected = {"object": "dispute", "charge": name, "amount": 700, "currency": "EUR", "status": "needs_response"}
    assert opened.items() >= expected.items()
    assert opened["payment_intent"] == name.replace("ch_", "pi_")
    assert (await shown_as_in_the_ledger(sandbox, name))["amount_disputed"] == 700
    won = await close(sandbox, opened["id"], "won")
    assert won.json == {**opened, "status": "won"}
    assert (await call(sandbox, "GET", f"/v1/disputes/{opened['id']}")).json == won.json
    seen = await shown_as_in_the_ledger(sandbox, name)
    assert (seen["status"], seen["amount_disputed"]) == ("succeeded", 0)
    assert lines(sandbox, key="k-1") == [("charge", 1000), ("dispute", 700), ("dispute_won", 700)]
    assert (await post(sandbox, f"/v1/charges/{name}/refunds")).json["amount"] == 700


async def test_a_lost_dispute_keeps_the_money(sandbox) -> None:
    name = (await charge(sandbox)).json["id"]
    opened = (await dispute(sandbox, name, 400)).json["id"]
    assert (await close(sandbox, opened, "lost")).json["status"] == "lost"
    again = await close(sandbox, opened, "won")
    assert (again.status_code, again.error["code"]) == (409, "dispute_not_open")
    assert (await shown_as_in_the_ledger(sandbox, name))["amount_disputed"] == 400
    assert lines(sandbox) == [("charge", 1000), ("dispute", 400)]


async def test_what_is_disputed_is_not_refunded_too(sandbox) -> None:
    name = (await charge(sandbox)).json["id"]
    await dispute(sandbox, name, 400)
    assert (await post(sandbox, f"/v1/charges/{name}/refunds", {"amount": 601})).error["code"] == "amount_too_large"
    assert (await dispute(sandbox, name, 601)).error["code"] == "amount_too_large"
    assert (await dispute(sandbox, name)).json["amount"] == 600
    refused = await post(sandbox, f"/v1/charges/{name}/refunds")
    assert (refused.status_code, refused.error["code"]) == (409, "charge_disputed")
    assert (await dispute(sandbox, name)).status_code == 409
    await shown_as_in_the_ledger(sandbox, name)


async def test_only_what_was_captured_is_disputed(sandbox) -> None:
    held = (await post(sandbox, "/v1/charges", charge_body("o-1", capture=False))).json["id"]
    refused = await dispute(sandbox, held)
    assert (refused.status_code, refused.error["code"]) == (409, "charge_not_captured")
    await post(sandbox, f"/v1/charges/{held}/capture", {"amount": 600, "final": False})
    assert (await dispute(sandbox, held)).json["amount"] == 600
    await shown_as_in_the_ledger(sandbox, held)


async def test_disputes_are_listed_by_charge_intent_and_order(sandbox) -> None:
    first, second = [(await charge(sandbox, order)).json["id"] for order in ("o-1", "o-2")]
    names = [(await dispute(sandbox, name, 100)).json["id"] for name in (first, first, second)]

    async def found(query: str) -> list[str]:
        return [item["id"] for item in (await call(sandbox, "GET", f"/v1/disputes?{query}")).json["data"]]

    assert await found("") == names[::-1]
    assert await found(f"charge={first}") == names[1::-1]
    assert await found(f"payment_intent={second.replace('ch_', 'pi_')}") == [names[2]]
    assert await found("order=o-2") == [names[2]]
    assert (await call(sandbox, "GET", "/v1/disputes?limit=2")).json["has_more"] is True


@pytest.mark.parametrize("amount", [0, -1, "all", 1.5])
async def test_a_dispute_of_no_amount_is_refused(sandbox, amount) -> None:
    name = (await charge(sandbox)).json["id"]
    assert (await dispute(sandbox, name, amount)).status_code == 400
    assert sandbox.ledger.effects() == 1


async def test_disputing_names_its_mistakes(sandbox) -> None:
    assert (await dispute(sandbox, "ch_none")).status_code == 404
    assert (await close(sandbox, "dp_none", "won")).status_code == 404
    assert (await call(sandbox, "GET", "/v1/disputes/dp_none")).status_code == 404
    opened = (await dispute(sandbox, (await charge(sandbox)).json["id"])).json["id"]
    assert (await close(sandbox, opened, "maybe")).status_code == 400


async def test_a_dispute_is_told_when_it_opens_and_when_it_closes(telling, receiver) -> None:
    headers = {"Acme-Account": "acct_7"}
    name = (await charge(telling, headers=headers, webhook="never")).json["id"]
    opened = (await dispute(telling, name)).json
    closed = (await close(telling, opened["id"], "lost")).json
    await quiet(telling)
    assert receiver.types == ["dispute.created", "dispute.closed"]
    assert [event.json["data"] for event in receiver.told] == [opened, closed]
    assert {event.json["account"] for event in receiver.told} == {"acct_7"}


async def test_stripe_tells_a_dispute_of_the_charge_and_the_intent(telling, receiver) -> None:
    form = {"amount": "1000", "currency": "eur", "confirm": "true"}
    intent = (await call(telling, "POST", "/v1/payment_intents", form=form, webhook="never")).json
    opened = (await dispute(telling, intent["id"])).json
    await close(telling, opened["id"], "won")
    await quiet(telling)
    assert receiver.types == ["charge.dispute.created", "charge.dispute.closed"]
    told = receiver.told[1].json["data"]["object"]
    assert (told["charge"], told["payment_intent"]) == (intent["latest_charge"], intent["id"])
    assert (told["status"], told["object"]) == ("won", "dispute")


async def test_a_reset_forgets_disputes(sandbox) -> None:
    opened = (await dispute(sandbox, (await charge(sandbox)).json["id"])).json["id"]
    sandbox.reset()
    assert (await call(sandbox, "GET", f"/v1/disputes/{opened}")).status_code == 404
