"""One authorization and what follows it: captures, increments, voids, reversals; in both dialects."""

from __future__ import annotations

import pytest

from tests.sandbox.balance import lines, post, shown_as_in_the_ledger
from tests.sandbox.raw_client import call, charge, charge_body
from tests.sandbox.test_webhooks import quiet


async def authorize(sandbox, amount: int = 1000, key: str | None = None) -> str:
    body = charge_body("o-1", amount=amount, capture=False)
    return (await post(sandbox, "/v1/charges", body, key=key)).json["id"]


async def authorize_intent(sandbox, amount: int = 1000) -> str:
    form = {"amount": str(amount), "currency": "eur", "confirm": "true", "capture_method": "manual"}
    return (await call(sandbox, "POST", "/v1/payment_intents", form=form)).json["id"]


async def intent(sandbox, name: str, action: str, key: str | None = None, **form: str):
    return await call(sandbox, "POST", f"/v1/payment_intents/{name}/{action}", form=form, key=key)


async def test_a_capture_that_is_not_final_leaves_the_remainder_to_be_captured(sandbox) -> None:
    name = await authorize(sandbox)
    path = f"/v1/charges/{name}/capture"
    first = await post(sandbox, path, {"amount": 300, "final": False}, key="k-1")
    assert (first.json["status"], first.json["captured"]) == ("authorized", True)
    assert (first.json["amount_captured"], first.json["amount_capturable"]) == (300, 700)
    over = await post(sandbox, path, {"amount": 701, "final": False})
    assert (over.status_code, over.error["code"]) == (400, "amount_too_large")
    second = await post(sandbox, path, {"amount": 300, "final": False}, key="k-2")
    assert (second.json["amount_captured"], second.json["amount_capturable"]) == (600, 400)
    last = await post(sandbox, path, key="k-3")
    assert (last.json["status"], last.json["amount_captured"], last.json["amount_capturable"]) == ("succeeded", 1000, 0)
    assert (await post(sandbox, path, {"amount": 1})).error["code"] == "charge_already_captured"
    assert lines(sandbox) == [("authorization", 1000), ("capture", 300), ("capture", 300), ("capture", 400)]
    assert [sandbox.ledger.effects(key=key) for key in ("k-1", "k-2", "k-3")] == [1, 1, 1]
    await shown_as_in_the_ledger(sandbox, name)


async def test_a_final_capture_releases_the_remainder(sandbox) -> None:
    name = await authorize(sandbox)
    await post(sandbox, f"/v1/charges/{name}/capture", {"amount": 300, "final": False})
    final = await post(sandbox, f"/v1/charges/{name}/capture", {"amount": 200})
    assert final.json.items() >= {"status": "succeeded", "amount_captured": 500, "amount_capturable": 0}.items()
    again = await post(sandbox, f"/v1/charges/{name}/capture", {"amount": 1})
    assert (again.status_code, again.error["code"]) == (409, "charge_already_captured")
    await shown_as_in_the_ledger(sandbox, name)


async def test_what_was_captured_in_part_is_all_captured_when_nothing_is_left(sandbox) -> None:
    name = await authorize(sandbox)
    seen = await post(sandbox, f"/v1/charges/{name}/capture", {"amount": 1000, "final": False})
    assert (seen.json["status"], seen.json["amount_capturable"]) == ("succeeded", 0)


async def test_each_capture_has_a_name_and_is_found_by_key_and_stamp(sandbox) -> None:
    name = await authorize(sandbox)
    made = []
    for number in range(2):
        body = {"amount": 300, "final": False, "metadata": {"paywitness": f"op-{number}"}}
        made.append((await post(sandbox, f"/v1/charges/{name}/capture", body, key=f"k-{number}")).json["capture"])
    assert [entry.id for entry in sandbox.ledger.find(kind="capture")] == [capture["id"] for capture in made]

    async def found(query: str) -> list[dict]:
        return (await call(sandbox, "GET", f"/v1/charges/{name}/captures?{query}")).json["data"]

    assert await found("") == made[::-1]
    assert await found("key=k-1") == [made[1]]
    assert await found("paywitness=op-0") == [made[0]]
    assert await found("key=none") == []
    assert (await call(sandbox, "GET", "/v1/charges/ch_none/captures")).status_code == 404


async def test_an_authorization_says_until_when_it_can_be_captured(make_sandbox) -> None:
    now = [1_000_000.0]
    sandbox = await make_sandbox(clock=lambda: now[0])
    created = await post(sandbox, "/v1/charges", charge_body("o-1", capture=False, confirm=False))
    assert created.json["capture_before"] is None
    now[0] += 60
    held = await post(sandbox, f"/v1/charges/{created.json['id']}/confirm")
    assert held.json["capture_before"] == 1_000_060 + 7 * 86_400
    assert (await charge(sandbox)).json["capture_before"] is None


@pytest.mark.parametrize(
    ("body", "param"), [({"final": "no"}, "final"), ({"final": None}, "final"), ({"amount": 0}, "amount")]
)
async def test_an_invalid_capture_moves_nothing(sandbox, body, param) -> None:
    name = await authorize(sandbox)
    seen = await post(sandbox, f"/v1/charges/{name}/capture", body)
    assert (seen.status_code, seen.error["param"], sandbox.ledger.effects()) == (400, param, 1)


async def test_stripes_captures_that_are_not_final(sandbox) -> None:
    name = await authorize_intent(sandbox)
    first = await intent(sandbox, name, "capture", "k-1", amount_to_capture="400", final_capture="false")
    shown = {"status": "requires_capture", "amount_received": 400, "amount_capturable": 600}
    assert first.json.items() >= shown.items()
    assert first.json["latest_charge"] == name.replace("pi_", "ch_")
    over = await intent(sandbox, name, "capture", amount_to_capture="601", final_capture="false")
    assert (over.status_code, over.error["code"]) == (400, "amount_too_large")
    last = await intent(sandbox, name, "capture", "k-2", amount_to_capture="500")
    assert (last.json["status"], last.json["amount_received"], last.json["amount_capturable"]) == ("succeeded", 900, 0)
    refused = await intent(sandbox, name, "capture", amount_to_capture="100")
    assert (refused.status_code, refused.error["code"]) == (400, "payment_intent_unexpected_state")
    assert lines(sandbox, charge=name) == [("authorization", 1000), ("capture", 400), ("capture", 500)]
    seen = await shown_as_in_the_ledger(sandbox, last.json["latest_charge"])
    assert seen["payment_intent"] == name
    assert (await intent(sandbox, name, "capture", final_capture="no")).error["param"] == "final_capture"


async def test_what_is_captured_of_an_open_authorization_can_be_refunded(sandbox) -> None:
    name = await authorize(sandbox)
    await post(sandbox, f"/v1/charges/{name}/capture", {"amount": 600, "final": False})
    assert (await post(sandbox, f"/v1/charges/{name}/refunds", {"amount": 601})).error["code"] == "amount_too_large"
    assert (await post(sandbox, f"/v1/charges/{name}/refunds")).json["amount"] == 600
    seen = await shown_as_in_the_ledger(sandbox, name)
    assert (seen["status"], seen["amount_capturable"], seen["amount_refunded"]) == ("authorized", 400, 600)
    await post(sandbox, f"/v1/charges/{name}/capture")
    assert (await post(sandbox, f"/v1/charges/{name}/refunds")).json["amount"] == 400
    await shown_as_in_the_ledger(sandbox, name)


async def test_a_void_after_a_capture_releases_the_remainder_and_the_charge_stays_paid(sandbox) -> None:
    name = await authorize(sandbox)
    await post(sandbox, f"/v1/charges/{name}/capture", {"amount": 600, "final": False})
    seen = await post(sandbox, f"/v1/charges/{name}/void")
    assert (seen.json["status"], seen.json["amount_captured"]) == ("succeeded", 600)
    assert (seen.json["amount_voided"], seen.json["amount_capturable"]) == (400, 0)
    assert (await post(sandbox, f"/v1/charges/{name}/capture")).status_code == 409
    assert (await post(sandbox, f"/v1/charges/{name}/void")).status_code == 409
    await shown_as_in_the_ledger(sandbox, name)


async def test_an_increment_names_the_new_total_and_its_line_the_difference(sandbox) -> None:
    name = await authorize(sandbox)
    seen = await post(sandbox, f"/v1/charges/{name}/increment", {"amount": 1500}, key="k-1")
    assert (seen.json["status"], seen.json["amount"], seen.json["amount_capturable"]) == ("authorized", 1500, 1500)
    assert lines(sandbox, key="k-1") == [("authorization", 500)]
    for amount in (1500, 900):
        less = await post(sandbox, f"/v1/charges/{name}/increment", {"amount": amount})
        assert (less.status_code, less.error["code"]) == (400, "amount_too_small")
    assert (await post(sandbox, f"/v1/charges/{name}/increment")).error["param"] == "amount"
    await post(sandbox, f"/v1/charges/{name}/capture", {"amount": 1200, "final": False})
    assert (await post(sandbox, f"/v1/charges/{name}/increment", {"amount": 2000})).json["amount_capturable"] == 800
    await post(sandbox, f"/v1/charges/{name}/capture")
    late = await post(sandbox, f"/v1/charges/{name}/increment", {"amount": 3000})
    assert (late.status_code, late.error["code"]) == (409, "charge_already_captured")
    await shown_as_in_the_ledger(sandbox, name)


async def test_an_increment_is_no_second_payment_of_the_order(sandbox) -> None:
    name = await authorize(sandbox)
    await post(sandbox, f"/v1/charges/{name}/increment", {"amount": 1500})
    assert (sandbox.ledger.charges_by_order(), sandbox.ledger.duplicates_by_order()) == ({"o-1": 1}, {})
    await authorize(sandbox)
    assert sandbox.ledger.duplicates_by_order() == {"o-1": 2}


async def test_stripes_increment_names_the_new_total(sandbox) -> None:
    name = await authorize_intent(sandbox)
    seen = await intent(sandbox, name, "increment_authorization", "k-1", amount="1300")
    assert (seen.json["status"], seen.json["amount"], seen.json["amount_capturable"]) == (
        "requires_capture",
        1300,
        1300,
    )
    assert lines(sandbox, key="k-1") == [("authorization", 300)]
    assert (await intent(sandbox, name, "increment_authorization", amount="1300")).error["code"] == "amount_too_small"
    await intent(sandbox, name, "cancel")
    refused = await intent(sandbox, name, "increment_authorization", amount="1400")
    assert refused.error["code"] == "payment_intent_unexpected_state"
    assert lines(sandbox, charge=name)[-1] == ("void", 1300)


async def test_a_reversal_voids_what_is_not_captured(sandbox) -> None:
    name = await authorize(sandbox)
    seen = await post(sandbox, f"/v1/charges/{name}/reverse", key="k-1")
    assert (seen.json["status"], seen.json["refund"]) == ("voided", None)
    assert lines(sandbox, key="k-1") == [("void", 1000)]
    again = await post(sandbox, f"/v1/charges/{name}/reverse")
    assert (again.status_code, again.error["code"]) == (409, "charge_already_voided")
    await shown_as_in_the_ledger(sandbox, name)


async def test_a_reversal_refunds_all_that_is_left_of_the_captured(sandbox) -> None:
    name = (await charge(sandbox)).json["id"]
    await post(sandbox, f"/v1/charges/{name}/refunds", {"amount": 300})
    seen = await post(sandbox, f"/v1/charges/{name}/reverse", {"metadata": {"paywitness": "op-1"}}, key="k-1")
    assert (seen.json["status"], seen.json["refunded"]) == ("succeeded", True)
    assert (seen.json["refund"]["amount"], seen.json["refund"]["status"]) == (700, "succeeded")
    assert lines(sandbox, key="k-1") == [("refund", 700)]
    found = await call(sandbox, "GET", f"/v1/charges/{name}/refunds?paywitness=op-1")
    assert [refund["id"] for refund in found.json["data"]] == [seen.json["refund"]["id"]]
    again = await post(sandbox, f"/v1/charges/{name}/reverse")
    assert (again.status_code, again.error["code"]) == (409, "charge_already_refunded")
    await shown_as_in_the_ledger(sandbox, name)


async def test_a_reversal_of_an_authorization_captured_in_part_leaves_nothing_open(sandbox) -> None:
    name = await authorize(sandbox)
    await post(sandbox, f"/v1/charges/{name}/capture", {"amount": 600, "final": False})
    await post(sandbox, f"/v1/charges/{name}/reverse", key="k-1")
    assert lines(sandbox, key="k-1") == [("refund", 600), ("void", 400)]
    seen = await shown_as_in_the_ledger(sandbox, name)
    assert (seen["amount_capturable"], seen["refunded"]) == (0, True)


async def test_a_reversal_finds_room_for_both_lines_or_does_nothing(make_sandbox) -> None:
    sandbox = await make_sandbox(ledger_max=3)
    name = await authorize(sandbox)
    await post(sandbox, f"/v1/charges/{name}/capture", {"amount": 600, "final": False})
    assert (await post(sandbox, f"/v1/charges/{name}/reverse")).error["code"] == "ledger_full"
    await shown_as_in_the_ledger(sandbox, name)


async def test_what_follows_an_authorization_is_told(telling, receiver) -> None:
    name = await authorize(telling)
    await post(telling, f"/v1/charges/{name}/increment", {"amount": 1500})
    await post(telling, f"/v1/charges/{name}/capture", {"amount": 600, "final": False})
    await post(telling, f"/v1/charges/{name}/void")
    await quiet(telling)
    assert receiver.types == ["charge.authorized", "charge.incremented", "charge.captured", "charge.voided"]
    told = [event.json["data"] for event in receiver.told]
    assert [(data["status"], data["amount_capturable"]) for data in told] == [
        ("authorized", 1000),
        ("authorized", 1500),
        ("authorized", 900),
        ("succeeded", 0),
    ]


async def test_stripe_tells_of_a_capture_in_part_that_the_capturable_amount_changed(telling, receiver) -> None:
    name = await authorize_intent(telling)
    await intent(telling, name, "increment_authorization", amount="1500")
    await intent(telling, name, "capture", amount_to_capture="600", final_capture="false")
    await intent(telling, name, "cancel")
    await quiet(telling)
    changed = "payment_intent.amount_capturable_updated"
    assert receiver.types == [changed, changed, changed, "payment_intent.succeeded"]
