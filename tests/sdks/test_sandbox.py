"""The stripe SDK at the sandbox (docs/sandbox.md), and what holds if a browser confirms (docs/browser.md)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import stripe

from tests.e2e.conftest import Provider, start_provider
from tests.e2e.sidecar import TOP, Sidecar, ask, wait_until
from tests.ports import free_port

pytestmark = pytest.mark.slow

SECRET = "whsec_of_the_shop"
SECTION = (TOP / "docs" / "sandbox.md").read_text("utf-8").partition("## With the stripe SDK")[2].partition("\n## ")[0]


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", SECTION, flags=re.DOTALL)
    return found


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    provider = start_provider("replayed", free_port())
    yield provider
    provider.process.kill()
    provider.process.wait()


@pytest.fixture(scope="module")
def sidecar(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """Under the policy of the page, its address alone replaced."""
    policy = block("yaml").replace("http://127.0.0.1:8702", "{upstream}")
    sidecar = Sidecar(
        tmp_path_factory.mktemp("sidecar"),
        provider.url,
        provider="stripe",
        overlay=policy,
        environment={"STRIPE_WEBHOOK_SECRET": SECRET},
    )
    sidecar.start()
    yield sidecar
    sidecar.kill()


@pytest.fixture
def through(sidecar: Sidecar) -> stripe.StripeClient:
    return stripe.StripeClient("sk_test_any", base_addresses={"api": sidecar.url})


@pytest.fixture
def browser(provider: Provider) -> stripe.StripeClient:
    """It speaks to Stripe itself."""
    return stripe.StripeClient("sk_test_any", base_addresses={"api": provider.url})


def order(number: str, **more: object) -> dict:
    return {"amount": 1099, "currency": "eur", "metadata": {"order_id": number}, **more}


def safe_to_pay(sidecar: Sidecar, number: str) -> bool:
    url = f"http://127.0.0.1:{sidecar.port}/paywitness/intents/{number}"
    return bool(ask(url, headers={"Authorization": "Bearer sk_test_any"}).json["safe_to_pay"])


def test_the_example_of_the_page_pays_once_although_its_answer_is_lost(
    sidecar: Sidecar, provider: Provider, tmp_path: Path
) -> None:
    script = tmp_path / "pay.py"
    script.write_text(block("python").replace("http://127.0.0.1:8700/stripe", sidecar.url))
    done = subprocess.run([sys.executable, str(script)], env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "succeeded 1099\n"
    assert provider.effects("S-1") == 1


def test_the_sdk_speaks_to_the_sandbox_alone_as_the_page_says(browser: stripe.StripeClient) -> None:
    paid = browser.v1.payment_intents.create(order("S-2", confirm=True, payment_method="pm_card_visa"))  # type: ignore[arg-type]
    assert paid.status == "succeeded"
    declined = order("S-3", confirm=True, payment_method="pm_card_visa_chargeDeclinedInsufficientFunds")
    with pytest.raises(stripe.CardError):
        browser.v1.payment_intents.create(declined)  # type: ignore[arg-type]


def test_what_the_browser_paid_holds_nothing_also_if_a_webhook_tells_it(
    sidecar: Sidecar, provider: Provider, through: stripe.StripeClient, browser: stripe.StripeClient
) -> None:
    """As docs/browser.md warns. If this ever holds the order, the page must say so."""
    provider.tell_webhooks(
        f"http://127.0.0.1:{sidecar.webhooks_port}/paywitness/webhooks/stripe", SECRET, scheme="stripe"
    )
    created = through.v1.payment_intents.create(order("B-1"))  # type: ignore[arg-type]
    browser.v1.payment_intents.confirm(created.id, {"payment_method": "pm_card_visa"})
    done = 'payment_webhooks_total{provider="stripe",result="nothing_new"}'
    wait_until(lambda: done in ask(f"{sidecar.admin_url}/metrics").body.decode(), "the event's being done with")
    assert safe_to_pay(sidecar, "B-1")


def test_a_servers_confirm_of_what_the_browser_paid_holds_the_order(
    sidecar: Sidecar, provider: Provider, through: stripe.StripeClient, browser: stripe.StripeClient
) -> None:
    created = through.v1.payment_intents.create(order("B-2"))  # type: ignore[arg-type]
    browser.v1.payment_intents.confirm(created.id, {"payment_method": "pm_card_visa"})
    with pytest.raises(stripe.InvalidRequestError) as refused:
        through.v1.payment_intents.confirm(created.id, {"payment_method": "pm_card_visa"})
    assert (refused.value.headers or {})["Paywitness-Advice"] == "do_not_pay_again"
    assert not safe_to_pay(sidecar, "B-2")
    with pytest.raises(stripe.APIError) as guarded:
        through.v1.payment_intents.create(order("B-2", confirm=True, payment_method="pm_card_visa"))  # type: ignore[arg-type]
    assert guarded.value.http_status == 409
    assert provider.effects("B-2") == 1


def test_a_payment_that_stripe_made_holds_its_order_once_it_is_adopted(
    sidecar: Sidecar, browser: stripe.StripeClient
) -> None:
    """As Checkout does: Stripe itself makes the PaymentIntent."""
    paid = browser.v1.payment_intents.create(order("B-3", confirm=True, payment_method="pm_card_visa"))  # type: ignore[arg-type]
    assert safe_to_pay(sidecar, "B-3")
    adopted = sidecar.admin("/v1/payments", about(paid.id))
    assert adopted.status_code == 200, adopted.body
    assert not safe_to_pay(sidecar, "B-3")


def test_a_payment_that_was_created_through_us_is_not_adopted(
    sidecar: Sidecar, through: stripe.StripeClient, browser: stripe.StripeClient
) -> None:
    created = through.v1.payment_intents.create(order("B-5"))  # type: ignore[arg-type]
    browser.v1.payment_intents.confirm(created.id, {"payment_method": "pm_card_visa"})
    assert sidecar.admin("/v1/payments", about(created.id)).status_code == 409


def about(reference: str) -> dict:
    return {"provider": "stripe", "reference": reference, "actor": "ada", "reason": "paid in the browser"}


def test_a_refund_of_what_the_browser_paid_is_made_once_although_its_answer_is_lost(
    provider: Provider, through: stripe.StripeClient, browser: stripe.StripeClient
) -> None:
    created = through.v1.payment_intents.create(order("B-4"))  # type: ignore[arg-type]
    browser.v1.payment_intents.confirm(created.id, {"payment_method": "pm_card_visa"})
    lost = {"headers": {"Sandbox-Fault": "drop_after_commit"}}
    refund = through.v1.refunds.create({"payment_intent": created.id}, lost)  # type: ignore[arg-type]
    assert refund.status == "succeeded"
    assert provider.effects("B-4") == 2  # the payment, and one refund
