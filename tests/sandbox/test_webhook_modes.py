"""How telling goes wrong: each mode, by the header of one request or for all."""

from __future__ import annotations

import asyncio

import pytest

from paywitness_sandbox.webhooks.events import MODE_DEFAULTS, MODE_MEANINGS
from tests.sandbox.raw_client import SILENCE, call, charge, charge_body, until
from tests.sandbox.test_webhooks import post, quiet, shown
from tests.sandbox.webhook_receiver import SECRET


async def test_the_help_names_every_mode_route_and_header(sandbox) -> None:
    assert set(MODE_DEFAULTS) == set(MODE_MEANINGS)
    seen = (await call(sandbox, "GET", "/_sandbox/")).json
    assert {name.partition("(")[0] for name in seen["webhook_modes"]} == set(MODE_DEFAULTS)
    assert "late(delay_s=2)" in seen["webhook_modes"]
    assert "Sandbox-Webhook" in seen["request_headers"]
    assert {"PUT /_sandbox/webhooks", "POST /_sandbox/payouts/{payout}/settle"} <= set(seen["routes"])
    assert "dest_pending" in seen["destinations"]
    assert "POST /v1/payouts" in seen["provider_routes"]


@pytest.mark.parametrize("path", ["/v1/charges", "/_sandbox/reset"])
async def test_a_mode_that_is_none_is_refused_before_anything_is_done(telling, path) -> None:
    await charge(telling)
    seen = await post(telling, path, charge_body(), webhook="sulk")
    assert (seen.status_code, seen.error["code"]) == (400, "unknown_webhook_mode")
    assert telling.ledger.effects() == 1


async def test_a_mode_without_an_endpoint_is_refused(sandbox) -> None:
    seen = await charge(sandbox, webhook="twice")
    assert (seen.status_code, seen.error["code"]) == (400, "webhook_endpoint_missing")
    assert sandbox.ledger.effects() == 0
    assert "PUT /_sandbox/webhooks" in seen.error["message"]


@pytest.mark.parametrize("fault", [None, "drop_after_commit", "html_504_after_commit", "error_500_after_commit"])
async def test_an_early_event_is_there_before_the_answer_or_its_loss(telling, receiver, fault) -> None:
    await charge(telling, fault=fault, webhook="early")
    assert receiver.types == ["charge.succeeded"]
    assert [event["mode"] for event in await shown(telling)] == ["early"]


async def test_an_early_event_that_is_not_received_is_tried_again_after_the_answer(telling, receiver) -> None:
    receiver.answers = [500]
    assert (await charge(telling, webhook="early")).status_code == 200
    await until(lambda: len(receiver.told) == 2)
    await quiet(telling)
    assert (await shown(telling))[0]["received"] == 1


async def test_an_early_event_waits_for_a_silent_receiver_only_so_long(telling, receiver, monkeypatch) -> None:
    monkeypatch.setattr("paywitness_sandbox.webhooks.sender.EARLY_S_MAX", 0.1)
    receiver.silent = True
    assert (await charge(telling, webhook="early")).status_code == 200
    assert len(receiver.told) >= 1


async def test_a_settlement_can_be_told_early_too(telling, receiver) -> None:
    name = (await charge(telling, source="tok_3ds", webhook="never")).json["id"]
    await post(telling, f"/_sandbox/charges/{name}/settle", webhook="early")
    assert receiver.types == ["charge.succeeded"]


async def test_a_late_event_is_overtaken_by_those_that_are_not(telling, receiver) -> None:
    await charge(telling, "o-1", webhook="late(delay_s=0.2)")
    await charge(telling, "o-2")
    await quiet(telling)
    assert [told.json["data"]["order"] for told in receiver.told] == ["o-2", "o-1"]


@pytest.mark.parametrize(("mode", "times"), [("twice", 2), ("ten_times", 10)])
async def test_a_repeated_event_bears_one_name(telling, receiver, mode, times) -> None:
    await charge(telling, webhook=mode)
    await quiet(telling)
    assert len(receiver.told) == times
    assert len({told.body for told in receiver.told}) == 1
    [event] = await shown(telling)
    assert (event["tries"], event["received"]) == (times, times)


async def test_an_event_that_is_never_sent_is_kept_and_can_be_resent(telling, receiver) -> None:
    await charge(telling, webhook="never")
    await quiet(telling)
    [event] = await shown(telling)
    assert (event["state"], event["tries"], receiver.told) == ("kept", 0, [])
    await post(telling, f"/_sandbox/webhooks/{event['id']}/resend")
    await quiet(telling)
    assert [told.json["id"] for told in receiver.told] == [event["id"]]


async def test_a_reversal_follows_the_success_and_stands_in_the_ledger(telling, receiver) -> None:
    seen = await charge(telling, key="k-1", webhook="reversed")
    assert seen.json["status"] == "succeeded"
    await until(lambda: len(receiver.told) == 2)
    assert receiver.types == ["charge.succeeded", "charge.reversed"]
    assert [told.json["data"]["status"] for told in receiver.told] == ["succeeded", "reversed"]
    assert [(entry.kind, entry.amount, entry.key) for entry in telling.ledger.entries] == [
        ("charge", 1000, "k-1"),
        ("reversal", 1000, "k-1"),
    ]
    name = seen.json["id"]
    assert (await call(telling, "GET", f"/v1/charges/{name}")).json["status"] == "reversed"
    assert (await post(telling, f"/v1/charges/{name}/refunds")).status_code == 409


async def test_a_charge_is_reversed_by_hand_too(telling, receiver) -> None:
    name = (await charge(telling, key="k-1")).json["id"]
    seen = await post(telling, f"/_sandbox/charges/{name}/reverse")
    assert (seen.status_code, seen.json["status"]) == (200, "reversed")
    assert (await post(telling, f"/_sandbox/charges/{name}/reverse")).error["code"] == "charge_not_captured"
    await quiet(telling)
    assert receiver.types == ["charge.succeeded", "charge.reversed"]
    assert [entry.kind for entry in telling.ledger.find(key="k-1")] == ["charge", "reversal"]


async def test_a_payout_is_reversed_too_and_a_failure_is_not(telling, receiver) -> None:
    await post(telling, "/v1/payouts", {"amount": 5, "currency": "EUR"}, webhook="reversed")
    await charge(telling, source="tok_stolen_card", webhook="reversed")
    await until(lambda: len(receiver.told) == 3)
    await quiet(telling)
    assert sorted(receiver.types) == ["charge.failed", "payout.paid", "payout.reversed"]
    assert [entry.kind for entry in telling.ledger.entries] == ["payout", "reversal"]


async def test_what_was_refunded_meanwhile_is_not_reversed(telling, receiver) -> None:
    name = (await charge(telling, webhook="reversed(delay_s=0.2)")).json["id"]
    await post(telling, f"/v1/charges/{name}/refunds")
    await quiet(telling)
    assert receiver.types == ["charge.succeeded", "refund.succeeded"]
    assert telling.ledger.effects(kind="reversal") == 0


async def test_a_reversal_to_come_does_not_reach_a_fresh_ledger(telling, receiver) -> None:
    await charge(telling, webhook="reversed(delay_s=0.05)")
    await until(lambda: receiver.told)
    telling.reset()
    await asyncio.sleep(0.1)  # nothing is to happen: there is no condition to wait for
    assert telling.ledger.effects() == 0


async def test_a_forged_event_is_signed_with_another_secret(telling, receiver) -> None:
    await charge(telling, webhook="forged")
    await quiet(telling)
    [told] = receiver.told
    assert not told.is_signed_with(SECRET)
    assert len(told.headers["webhook-signature"]) == len("sha256=") + 64


async def test_an_old_timestamp_is_signed_correctly(telling, receiver) -> None:
    await charge(telling, webhook="old_timestamp")
    await quiet(telling)
    [told] = receiver.told
    assert told.is_signed_with(SECRET)
    assert 3599 <= told.json["created"] - told.timestamp <= 3601


async def test_a_wrong_amount_is_signed_correctly(telling, receiver) -> None:
    await charge(telling, webhook="wrong_amount")
    await quiet(telling)
    [told] = receiver.told
    assert told.is_signed_with(SECRET)
    assert (told.json["data"]["amount"], telling.ledger.entries[0].amount) == (1001, 1000)


async def test_another_account_is_named(telling, receiver) -> None:
    await charge(telling, webhook="other_account")
    await quiet(telling)
    assert receiver.told[0].json["account"] == "acct_other"


async def test_an_older_event_comes_after_the_final_one(telling, receiver) -> None:
    name = (await charge(telling, webhook="out_of_order")).json["id"]
    await post(telling, f"/v1/charges/{name}/refunds", webhook="out_of_order")
    await charge(telling, source="tok_processing", webhook="out_of_order")
    await quiet(telling)
    assert receiver.types == [
        *("charge.succeeded", "charge.processing"),
        *("refund.succeeded", "refund.pending"),
        "charge.processing",
    ]
    final, older = receiver.told[0].json, receiver.told[1].json
    assert (older["data"]["status"], older["data"]["captured"]) == ("processing", False)
    assert older["created"] < final["created"]
    assert older["id"] != final["id"]


async def test_the_mode_of_the_endpoint_holds_for_all_and_the_header_wins(telling, receiver) -> None:
    telling.webhooks.set_endpoint({"url": receiver.url, "secret": SECRET, "mode": "never"})
    await charge(telling, "o-1")
    await charge(telling, "o-2", webhook="normal")
    await quiet(telling)
    assert [told.json["data"]["order"] for told in receiver.told] == ["o-2"]


async def test_an_event_out_of_a_black_hole_comes_with_the_commit(telling, receiver) -> None:
    seen = await charge(telling, fault="black_hole(heal_s=0.2,hang_s=30)", wait_s=0.05, webhook="early")
    assert (seen.end, receiver.told) == (SILENCE, [])
    await until(lambda: receiver.types == ["charge.succeeded"])
    assert telling.ledger.effects() == 1
