"""The stripe SDK as it is, pointed straight at the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import stripe

from tests.sandbox.raw_client import call

DETAILS = {"amount": 1000, "currency": "eur", "confirm": True, "payment_method": "pm_card_visa"}


@pytest.fixture
async def ask(sandbox):
    """Runs a call of the SDK in a thread: `await ask(lambda client: client.v1.payment_intents...)`."""
    sessions = stripe.RequestsClient()
    client = stripe.StripeClient("sk_test_1", base_addresses={"api": sandbox.url}, http_client=sessions)

    async def asking(does: Callable[[stripe.StripeClient], object]):
        return await asyncio.to_thread(does, client)

    yield asking
    if session := getattr(sessions._thread_local, "session", None):
        session.close()


def error_of(caught: pytest.ExceptionInfo[stripe.CardError]) -> Any:
    """What the provider said, as the SDK read it."""
    return caught.value.error


def create(key: str | None = None, **more):
    options = {} if key is None else {"idempotency_key": key}
    return lambda client: client.v1.payment_intents.create({**DETAILS, **more}, options)


async def test_a_payment_succeeds_and_is_in_the_ledger(sandbox, ask) -> None:
    intent = await ask(create(metadata={"order_id": "o-1"}))
    assert (intent.object, intent.status, intent.amount_received) == ("payment_intent", "succeeded", 1000)
    assert sandbox.ledger.effects(order="o-1", charge=intent.id, kind="charge") == 1
    assert intent.latest_charge == sandbox.ledger.entries[0].charge
    assert intent.last_response.headers["Request-Id"].startswith("req_")


async def test_a_replay_says_so_and_charges_once(sandbox, ask) -> None:
    first, second = await ask(create("k-1")), await ask(create("k-1"))
    assert first.id == second.id
    assert second.last_response.headers["Idempotent-Replayed"] == "true"
    assert sandbox.ledger.effects(key="k-1") == 1


@pytest.mark.parametrize(
    ("method", "decline_code"),
    [
        ("pm_card_chargeDeclined", "generic_decline"),
        ("pm_card_chargeDeclinedInsufficientFunds", "insufficient_funds"),
        ("pm_card_visa_chargeDeclinedStolenCard", "stolen_card"),
        ("tok_expired_card", "expired_card"),
    ],
)
async def test_a_decline_is_a_card_error(sandbox, ask, method, decline_code) -> None:
    with pytest.raises(stripe.CardError) as caught:
        await ask(create(payment_method=method))
    assert caught.value.code == "card_declined"
    assert error_of(caught).decline_code == decline_code
    assert error_of(caught).payment_intent.status == "requires_payment_method"
    assert sandbox.ledger.effects() == 0


async def test_another_body_under_the_key_is_an_idempotency_error(ask) -> None:
    await ask(create("k-1"))
    with pytest.raises(stripe.IdempotencyError):
        await ask(create("k-1", amount=2000))


async def test_a_declined_intent_takes_another_card(sandbox, ask) -> None:
    with pytest.raises(stripe.CardError) as caught:
        await ask(create(payment_method="pm_card_chargeDeclined"))
    name = error_of(caught).payment_intent.id
    paid = await ask(lambda client: client.v1.payment_intents.confirm(name, {"payment_method": "pm_card_visa"}))
    assert (paid.status, sandbox.ledger.effects(charge=name)) == ("succeeded", 1)


async def test_an_unconfirmed_intent_moves_nothing_until_it_is_confirmed(sandbox, ask) -> None:
    intent = await ask(create(confirm=False))
    assert (intent.status, sandbox.ledger.effects()) == ("requires_confirmation", 0)
    assert (await call(sandbox, "GET", "/v1/charges")).json["data"] == []
    confirmed = await ask(lambda client: client.v1.payment_intents.confirm(intent.id))
    assert (confirmed.status, sandbox.ledger.effects()) == ("succeeded", 1)
    with pytest.raises(stripe.InvalidRequestError) as caught:
        await ask(lambda client: client.v1.payment_intents.confirm(intent.id))
    assert caught.value.code == "payment_intent_unexpected_state"


async def test_manual_capture_authorizes_then_captures(sandbox, ask) -> None:
    intent = await ask(create(capture_method="manual"))
    assert (intent.status, intent.amount_capturable) == ("requires_capture", 1000)
    captured = await ask(lambda client: client.v1.payment_intents.capture(intent.id, {"amount_to_capture": 600}))
    assert (captured.status, captured.amount_received) == ("succeeded", 600)
    assert [entry.kind for entry in sandbox.ledger.entries] == ["authorization", "capture"]


async def test_a_cancel_voids(sandbox, ask) -> None:
    intent = await ask(create(capture_method="manual"))
    assert (await ask(lambda client: client.v1.payment_intents.cancel(intent.id))).status == "canceled"
    assert sandbox.ledger.effects(kind="void") == 1
    with pytest.raises(stripe.InvalidRequestError):
        await ask(lambda client: client.v1.payment_intents.cancel(intent.id))


async def test_refunds_are_made_read_and_listed(sandbox, ask) -> None:
    intent = await ask(create())
    refund = await ask(lambda client: client.v1.refunds.create({"payment_intent": intent.id, "amount": 300}))
    assert (refund.status, refund.amount, refund.payment_intent) == ("succeeded", 300, intent.id)
    assert (await ask(lambda client: client.v1.refunds.retrieve(refund.id))).id == refund.id
    await ask(lambda client: client.v1.refunds.create({"payment_intent": intent.id}))
    listed = await ask(lambda client: client.v1.refunds.list({"payment_intent": intent.id}))
    assert [item.amount for item in listed.data] == [700, 300]
    with pytest.raises(stripe.InvalidRequestError) as caught:
        await ask(lambda client: client.v1.refunds.create({"payment_intent": intent.id}))
    assert caught.value.code == "charge_already_refunded"
    assert sandbox.ledger.effects(charge=intent.id, kind="refund") == 2


async def test_an_intent_is_found_by_its_name_and_by_its_metadata(ask) -> None:
    intent = await ask(create(metadata={"order_id": "o-1", "paywitness": "op-1"}))
    await ask(create(metadata={"order_id": "o-2"}))
    assert (await ask(lambda client: client.v1.payment_intents.retrieve(intent.id))).metadata["order_id"] == "o-1"
    query = "metadata['paywitness']:'op-1' AND metadata[\"order_id\"]:\"o-1\""
    found = await ask(lambda client: client.v1.payment_intents.search({"query": query}))
    assert [item.id for item in found.data] == [intent.id]
    with pytest.raises(stripe.InvalidRequestError):
        await ask(lambda client: client.v1.payment_intents.search({"query": "amount>100"}))
    with pytest.raises(stripe.InvalidRequestError) as caught:
        await ask(lambda client: client.v1.payment_intents.retrieve("pi_none"))
    assert caught.value.code == "resource_missing"


async def test_3ds_requires_action(sandbox, ask) -> None:
    intent = await ask(create(payment_method="pm_card_authenticationRequired"))
    assert (intent.status, intent.next_action.type) == ("requires_action", "redirect_to_url")
    assert intent.next_action.redirect_to_url.url.startswith(sandbox.url)
    assert sandbox.ledger.effects() == 0


async def test_a_decline_told_in_a_200(ask) -> None:
    intent = await ask(create(payment_method="tok_failed_200_do_not_honor"))
    assert (intent.status, intent.last_payment_error.decline_code) == ("requires_payment_method", "do_not_honor")


@pytest.mark.parametrize("change", [{"amount": 0}, {"amount": "ten"}, {"currency": "e"}])
async def test_an_invalid_intent_is_an_invalid_request(sandbox, ask, change) -> None:
    with pytest.raises(stripe.InvalidRequestError) as caught:
        await ask(create(**change))
    assert caught.value.param == next(iter(change))
    assert sandbox.ledger.effects() == 0


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("rate_limited", stripe.RateLimitError),
        ("unauthorized", stripe.AuthenticationError),
        ("error_500_before_commit", stripe.APIError),
        ("drop_after_commit", stripe.APIConnectionError),
    ],
)
async def test_faults_reach_the_sdk_as_its_own_errors(sandbox, ask, fault, error) -> None:
    options = {"headers": {"Sandbox-Fault": fault}}
    with pytest.raises(error):
        await ask(lambda client: client.v1.payment_intents.create(DETAILS, options))
    assert sandbox.ledger.effects() == (1 if fault == "drop_after_commit" else 0)


@pytest.mark.parametrize("metadata", [b"metadata[order_id]=o-1", b"metadata%5Border_id%5D=o-1"])
async def test_brackets_may_be_literal_or_encoded(sandbox, metadata) -> None:
    body = b"amount=1000&currency=eur&confirm=true&" + metadata
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    seen = await call(sandbox, "POST", "/v1/payment_intents", body, headers=form)
    assert seen.json["metadata"] == {"order_id": "o-1"}
    assert sandbox.ledger.effects(order="o-1") == 1


@pytest.mark.parametrize(
    "body", [b"amount=1&amount[x]=2", b"amount[x]=2&amount=1", b"&".join([b"a=1"] * 1001), b"amount[x]=1&currency=eur"]
)
async def test_a_form_that_makes_no_sense_is_refused(sandbox, body) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await call(sandbox, "POST", "/v1/payment_intents", body, headers=form)).status_code == 400


async def test_json_is_refused_where_stripe_takes_forms(sandbox) -> None:
    assert (await call(sandbox, "POST", "/v1/payment_intents", {"amount": 1})).status_code == 400


async def test_a_refund_names_what_it_refunds(sandbox) -> None:
    form = {"amount": "1"}
    assert (await call(sandbox, "POST", "/v1/refunds", form=form)).error["param"] == "payment_intent"
