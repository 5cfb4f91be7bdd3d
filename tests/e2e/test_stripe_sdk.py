"""The unmodified stripe SDK, pointed at the proxy. The sandbox speaks Stripe's wire format and keeps the ledger."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import stripe

from tests.e2e.conftest import Provider
from tests.e2e.sidecar import Sidecar

MakeSidecar = Callable[..., Sidecar]
pytestmark = pytest.mark.slow


@pytest.fixture
def sidecar(sandbox: Provider, make_sidecar: MakeSidecar) -> Sidecar:
    return make_sidecar(sandbox.url, provider="stripe").start()


def client_of(sidecar: Sidecar, retries: int = 0) -> stripe.StripeClient:
    return stripe.StripeClient("sk_test_e2e", base_addresses={"api": sidecar.url}, max_network_retries=retries)


def pay(client: stripe.StripeClient, order: str = "order-1", fault: str = "", **extra: object) -> stripe.PaymentIntent:
    params = {
        "amount": 1099,
        "currency": "eur",
        "confirm": True,
        "payment_method": "pm_card_visa",
        "metadata": {"order_id": order},
        **extra,
    }
    headers = {"Sandbox-Fault": fault} if fault else {}
    return client.v1.payment_intents.create(params, {"headers": headers, "idempotency_key": f"key-{order}"})  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["drop_after_commit", "truncated_body"])
def test_a_lost_response_is_one_charge_and_the_sdk_sees_its_payment(
    sandbox: Provider, sidecar: Sidecar, fault: str
) -> None:
    intent = pay(client_of(sidecar, retries=2), fault=fault)
    assert intent.status == "succeeded"
    assert sandbox.effects() == 1
    assert {arrival["key"] for arrival in sandbox.arrivals() if arrival["method"] == "POST"} == {"key-order-1"}


def test_the_sdks_own_retries_do_not_hammer_a_stored_500(sandbox: Provider, sidecar: Sidecar) -> None:
    """Nor need they: what became of it is asked for, and told as the answer."""
    assert pay(client_of(sidecar, retries=2), fault="error_500_after_commit").status == "succeeded"
    sent = [arrival for arrival in sandbox.arrivals() if arrival["method"] == "POST"]
    assert (sandbox.effects(), len(sent)) == (1, 1)


def test_a_refund_and_an_object_without_money_pass(sandbox: Provider, sidecar: Sidecar) -> None:
    client = client_of(sidecar)
    intent = pay(client)
    refund = client.v1.refunds.create({"payment_intent": intent.id, "amount": 100}, {"idempotency_key": "refund-1"})
    assert refund.status == "succeeded"
    draft = client.v1.payment_intents.create({"amount": 500, "currency": "eur"})
    assert draft.status == "requires_confirmation"
    assert client.v1.payment_intents.retrieve(intent.id).id == intent.id
