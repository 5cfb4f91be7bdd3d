"""Webhooks: what is told about which change, how it is signed, and that it is told until it is received."""

from __future__ import annotations

import asyncio

import pytest
import stripe

from paywitness_sandbox.server import SandboxOptions
from tests.sandbox.raw_client import call, charge, charge_body, until
from tests.sandbox.webhook_receiver import SECRET


async def post(sandbox, path: str, body: object = None, **more):
    return await call(sandbox, "POST", path, {} if body is None else body, **more)


async def shown(sandbox, query: str = "") -> list[dict]:
    return (await call(sandbox, "GET", f"/_sandbox/webhooks{query}")).json["events"]


async def quiet(sandbox) -> None:
    """Everything that was to be told has been."""
    await until(lambda: sandbox.webhooks.waiting == 0)


async def test_a_charge_is_told_as_a_get_shows_it_and_signed_over_timestamp_and_body(telling, receiver) -> None:
    body = charge_body(metadata={"order_id": "o-1", "paywitness": "op-1"})
    name = (await post(telling, "/v1/charges", body, key="k-1", headers={"Acme-Account": "acct_7"})).json["id"]
    await until(lambda: receiver.told)
    [told] = receiver.told
    event = told.json
    assert set(event) == {"id", "type", "created", "account", "data"}
    assert event["id"].startswith("evt_")
    assert (event["type"], event["account"]) == ("charge.succeeded", "acct_7")
    assert event["data"] == (await call(telling, "GET", f"/v1/charges/{name}")).json
    assert (event["data"]["metadata"]["paywitness"], event["data"]["idempotency_key"]) == ("op-1", "k-1")
    assert told.headers["content-type"] == "application/json"
    assert abs(told.timestamp - event["created"]) <= 1
    assert told.is_signed_with(SECRET)
    assert not told.is_signed_with("another")


async def test_every_change_is_told_in_the_order_in_which_it_happened(telling, receiver) -> None:
    async def settled(thing: str, seen, status: str) -> None:
        await post(telling, f"/_sandbox/{thing}/{seen.json['id']}/settle", {"status": status})

    paid = await charge(telling)
    await post(telling, f"/v1/charges/{paid.json['id']}/refunds", {"amount": 100})
    await charge(telling, source="tok_stolen_card")
    await settled("charges", await charge(telling, source="tok_processing"), "succeeded")
    await settled("charges", await charge(telling, source="tok_3ds"), "failed")
    for ending in ("capture", "void"):
        held = (await post(telling, "/v1/charges", charge_body(capture=False))).json["id"]
        await post(telling, f"/v1/charges/{held}/{ending}")
    payout = {"amount": 5, "currency": "EUR"}
    await post(telling, "/v1/payouts", payout)
    await settled("payouts", await post(telling, "/v1/payouts", payout | {"destination": "dest_pending"}), "failed")
    await quiet(telling)
    assert receiver.types == [
        "charge.succeeded",
        "refund.succeeded",
        "charge.failed",
        *("charge.processing", "charge.succeeded"),
        *("charge.requires_action", "charge.failed"),
        *("charge.authorized", "charge.captured"),
        *("charge.authorized", "charge.voided"),
        "payout.paid",
        *("payout.pending", "payout.failed"),
    ]
    assert len({told.json["id"] for told in receiver.told}) == len(receiver.told)


async def test_neither_a_replay_nor_a_refusal_nor_a_read_is_told(telling, receiver) -> None:
    for _ in range(2):
        await charge(telling, key="k-1")
    await post(telling, "/v1/charges", {"currency": "EUR"})
    await charge(telling, key="k-2", fault="error_500_before_commit")
    await call(telling, "GET", "/v1/charges")
    await quiet(telling)
    assert receiver.types == ["charge.succeeded"]


async def test_a_charge_whose_answer_is_lost_is_told_all_the_same(telling, receiver) -> None:
    await charge(telling, fault="drop_after_commit")
    await until(lambda: receiver.types == ["charge.succeeded"])


async def test_stripes_objects_are_told_as_stripe_does_and_its_own_library_believes_it(telling, receiver) -> None:
    telling.webhooks.set_endpoint({"url": receiver.url, "secret": SECRET, "scheme": "stripe"})
    form = {"amount": "1000", "currency": "eur", "confirm": "true", "metadata[order_id]": "o-1"}
    intent = (await call(telling, "POST", "/v1/payment_intents", form=form, key="k-1")).json
    await call(telling, "POST", "/v1/refunds", form={"payment_intent": intent["id"]})
    await until(lambda: len(receiver.told) == 2)
    told = receiver.told[0]
    event = stripe.Webhook.construct_event(told.body, told.headers["stripe-signature"], SECRET)
    assert (event.type, event.object) == ("payment_intent.succeeded", "event")
    assert told.json["data"] == {"object": intent}
    assert told.json["request"]["idempotency_key"] == "k-1"
    assert receiver.types[1] == "refund.created"
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(told.body, told.headers["stripe-signature"], "whsec_other")


async def test_every_end_of_an_intent_has_stripes_type(telling, receiver) -> None:
    async def made(**more: str):
        form = {"amount": "1000", "currency": "eur", "confirm": "true", **more}
        return (await call(telling, "POST", "/v1/payment_intents", form=form)).json

    await made(payment_method="pm_card_chargeDeclined")
    await made(payment_method="tok_processing")
    await made(payment_method="tok_3ds")
    held = await made(capture_method="manual")
    await call(telling, "POST", f"/v1/payment_intents/{held['id']}/cancel", form={})
    await made(confirm="false")
    await quiet(telling)
    ends = ["payment_failed", "processing", "requires_action", "amount_capturable_updated", "canceled"]
    assert receiver.types == [f"payment_intent.{end}" for end in ends]


async def test_what_is_not_received_is_sent_again_and_the_next_one_waits(telling, receiver) -> None:
    receiver.answers = [500, 0, 200]
    await charge(telling, "o-1")
    await charge(telling, "o-2")
    await quiet(telling)
    orders = [told.json["data"]["order"] for told in receiver.told]
    assert orders == ["o-1", "o-1", "o-1", "o-2"]
    first, second = await shown(telling)
    assert (first["tries"], first["received"], first["last_status_code"], first["state"]) == (3, 1, 200, "received")
    assert second["tries"] == 1


async def test_after_its_tries_an_event_is_given_up_and_can_be_sent_again(telling, receiver) -> None:
    telling.webhooks.set_endpoint({"url": receiver.url, "secret": SECRET, "tries_max": 2})
    receiver.answers = [503, 503]
    await charge(telling)
    await quiet(telling)
    [event] = await shown(telling)
    assert (event["tries"], event["state"], event["last_status_code"]) == (2, "given_up", 503)
    again = await post(telling, f"/_sandbox/webhooks/{event['id']}/resend")
    assert (again.status_code, again.json["state"]) == (200, "waiting")
    await quiet(telling)
    [event] = await shown(telling)
    assert (event["tries"], event["state"]) == (3, "received")
    assert len({told.json["id"] for told in receiver.told}) == 1


async def test_when_nobody_listens_the_record_says_so(telling, receiver) -> None:
    await receiver.stop()
    telling.webhooks.set_endpoint({"url": "http://127.0.0.1:1/", "secret": SECRET, "tries_max": 1})
    await charge(telling)
    await quiet(telling)
    [event] = await shown(telling)
    assert (event["last_status_code"], event["state"]) == (None, "given_up")
    assert "ClientConnectorError" in event["last_error"]


async def test_the_endpoint_is_put_shown_and_deleted(sandbox, receiver) -> None:
    assert (await call(sandbox, "GET", "/_sandbox/webhooks")).json["endpoint"] is None
    source = {"url": receiver.url, "secret": SECRET, "mode": "late(delay_s=0.01)", "events": ["charge.failed"]}
    put = await call(sandbox, "PUT", "/_sandbox/webhooks", source)
    assert put.json["endpoint"] == {
        "url": receiver.url,
        "scheme": "hmac_sha256",
        "mode": "late(delay_s=0.01)",
        "delay_s": 0.0,
        "events": ["charge.failed"],
        "tries_max": 5,
    }
    await charge(sandbox)
    await charge(sandbox, source="tok_stolen_card")
    await quiet(sandbox)
    assert receiver.types == ["charge.failed"]
    assert (await call(sandbox, "DELETE", "/_sandbox/webhooks")).json["endpoint"] is None
    await charge(sandbox, source="tok_stolen_card")
    await quiet(sandbox)
    assert len(receiver.told) == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"url": None}, "url is an address"),
        ({"url": "ftp://x/"}, "url is an address"),
        ({"url": "http://[x/"}, "url is an address"),
        ({"secret": ""}, "secret is a text"),
        ({"scheme": "rot13"}, "scheme is one of hmac_sha256, stripe"),
        ({"mode": "sulk"}, "unknown webhook mode 'sulk'"),
        ({"mode": "late(by=1)"}, "late has no parameter 'by'; it has: delay_s"),
        ({"mode": 1}, "mode is the name"),
        ({"delay_s": -1}, "delay_s is a number"),
        ({"events": "charge.*"}, "events is a list"),
        ({"events": [1]}, "events holds types"),
        ({"tries_max": 0}, "tries_max is a whole number"),
        ({"tries": 5}, "unknown: tries"),
    ],
)
async def test_a_bad_endpoint_says_what_is_wrong_and_leaves_the_one_in_force(telling, change, complaint) -> None:
    before = telling.webhooks.endpoint
    source = {"url": "http://127.0.0.1:9/", "secret": SECRET, **change}
    seen = await call(telling, "PUT", "/_sandbox/webhooks", source)
    assert (seen.status_code, complaint in seen.error["message"]) == (400, True)
    assert telling.webhooks.endpoint == before
    with pytest.raises(ValueError, match=complaint.split("'")[0]):
        SandboxOptions(webhooks=source)


async def test_an_empty_endpoint_and_an_unknown_event_are_refused(telling) -> None:
    assert (await call(telling, "PUT", "/_sandbox/webhooks", {})).status_code == 400
    assert (await post(telling, "/_sandbox/webhooks/evt_none/resend")).status_code == 404
    assert (await call(telling, "GET", "/_sandbox/webhooks?limit=0")).status_code == 400


async def test_events_are_listed_by_type_and_object(telling) -> None:
    name = (await charge(telling)).json["id"]
    await charge(telling, source="tok_stolen_card")
    assert [event["type"] for event in await shown(telling, f"?object={name}")] == ["charge.succeeded"]
    assert [event["type"] for event in await shown(telling, "?type=charge.failed")] == ["charge.failed"]
    assert [event["type"] for event in await shown(telling, "?limit=1")] == ["charge.failed"]


async def test_all_are_delayed_alike_and_stay_in_order(telling, receiver) -> None:
    telling.webhooks.set_endpoint({"url": receiver.url, "secret": SECRET, "delay_s": 0.2})
    await charge(telling, "o-1")
    await charge(telling, "o-2")
    assert receiver.told == []
    await quiet(telling)
    assert [told.json["data"]["order"] for told in receiver.told] == ["o-1", "o-2"]


async def test_a_reset_forgets_events_and_goes_back_to_the_endpoint_of_the_start(telling, receiver) -> None:
    start = telling.webhooks.endpoint
    await charge(telling, webhook="late(delay_s=60)")
    telling.webhooks.set_endpoint(None)
    assert (await post(telling, "/_sandbox/reset")).status_code == 200
    assert (telling.webhooks.endpoint, telling.webhooks.waiting, await shown(telling)) == (start, 0, [])
    await charge(telling)
    await quiet(telling)
    assert receiver.types == ["charge.succeeded"]


async def test_stopping_does_not_wait_for_a_receiver_that_never_answers(telling, receiver) -> None:
    receiver.silent = True
    await charge(telling)
    await until(lambda: receiver.told)
    async with asyncio.timeout(4):  # a delivery waits for five
        await telling.stop()
    assert [record.tries for record in telling.webhooks.records] == [1]


async def test_what_is_kept_and_what_waits_is_bounded(telling, monkeypatch) -> None:
    monkeypatch.setattr("paywitness_sandbox.webhooks.sender.EVENTS_MAX", 3)
    monkeypatch.setattr("paywitness_sandbox.webhooks.sender.DELIVERIES_MAX", 2)
    for number in range(4):
        await charge(telling, f"o-{number}", webhook="late(delay_s=60)")
    seen = (await call(telling, "GET", "/_sandbox/webhooks")).json
    assert (seen["events_found"], seen["dropped"]) == (3, 1)
    assert [event["state"] for event in seen["events"]] == ["waiting", "kept", "kept"]
    assert "2 others are waiting" in seen["events"][-1]["last_error"]
