"""The SDKs with no address of ours at all: their own, and HTTPS_PROXY with the local authority in the environment.

What each needs besides to trust it is what `paywitness ca env` says of it.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import razorpay
import stripe

from tests.e2e.sidecar import TOP
from tests.sdks import (
    test_adyen,
    test_braintree,
    test_checkout,
    test_gocardless,
    test_mollie,
    test_paypal,
    test_razorpay,
    test_square,
    test_stripe,
)
from tests.sdks.adyen_double import AdyenDouble
from tests.sdks.braintree_double import BraintreeDouble
from tests.sdks.checkout_double import CheckoutDouble
from tests.sdks.conftest import House
from tests.sdks.double import Double, Fault
from tests.sdks.gocardless_double import GocardlessDouble
from tests.sdks.mollie_double import MollieDouble
from tests.sdks.paypal_double import PaypalDouble
from tests.sdks.razorpay_double import RazorpayDouble
from tests.sdks.scenarios import Told
from tests.sdks.square_double import SquareDouble
from tests.sdks.stripe_double import StripeDouble

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import braintree

pytestmark = pytest.mark.slow

Pay = Callable[..., Told]
SDKS: dict[str, tuple[type[Double], str, Pay]] = {
    "stripe": (StripeDouble, "https://api.stripe.com", test_stripe.by_client),
    "stripe_module": (StripeDouble, "https://api.stripe.com", test_stripe.by_module),
    "adyen": (AdyenDouble, "https://checkout-test.adyen.com", test_adyen.pay),
    "checkout": (CheckoutDouble, "https://api.checkout.com", test_checkout.pay),
    "square": (SquareDouble, "https://connect.squareup.com", test_square.pay),
    "mollie": (MollieDouble, "https://api.mollie.com", test_mollie.pay),
    "paypal": (PaypalDouble, "https://api-m.paypal.com", test_paypal.pay),
    "gocardless": (GocardlessDouble, "https://api.gocardless.com", test_gocardless.pay),
    "razorpay": (RazorpayDouble, "https://api.razorpay.com", test_razorpay.pay),
    "braintree": (BraintreeDouble, "https://api.braintreegateway.com", test_braintree.pay),
}


def environment(house: House) -> dict[str, str]:
    """What `paywitness ca env` exports, read from its own lines by a shell."""
    home, proxy = house.sidecar.home, f"127.0.0.1:{house.sidecar.port}"
    policies = ("--policies", str(home / "policies"))
    ca = [sys.executable, "-m", "paywitness", "ca"]
    subprocess.run([*ca, "init", "--home", str(home), *policies], cwd=TOP, check=True, capture_output=True)
    told = subprocess.run(
        [*ca, "env", "--home", str(home), "--proxy", proxy], cwd=TOP, check=True, capture_output=True, text=True
    ).stdout
    shell = ["sh", "-c", 'eval "$1"; env', "sh", told]
    after = subprocess.run(shell, check=True, capture_output=True, text=True, env={}).stdout
    return dict(line.split("=", 1) for line in after.splitlines() if line.split("=", 1)[0] not in {"PWD", "_", "SHLVL"})


@pytest.fixture(scope="module")
def variables(house: House) -> dict[str, str]:
    for kind, _, _ in SDKS.values():
        house.stand(kind)
    return environment(house)


@pytest.fixture(autouse=True)
def _told_of_a_proxy(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"HTTPS_PROXY", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"} <= variables.keys()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    bundle = variables["SSL_CERT_FILE"]
    assert Path(bundle).is_file()
    monkeypatch.setattr(stripe, "ca_bundle_path", bundle)
    _razorpay_trusts(bundle, monkeypatch)
    _braintree_trusts(bundle, monkeypatch)


def _razorpay_trusts(bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`client.cert_path = bundle`, in whatever client the tests make."""
    plain = test_razorpay.client

    def trusting(url: str) -> razorpay.Client:
        client = plain(url)
        client.cert_path = bundle
        return client

    monkeypatch.setattr(test_razorpay, "client", trusting)


def _braintree_trusts(bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Environment.Production.ssl_certificate = bundle`, in whatever gateway the tests make."""
    production = braintree.Environment.Production
    monkeypatch.setattr(production, "ssl_certificate", bundle)
    keys = {"merchant_id": "shop", "public_key": "public", "private_key": "private"}

    def trusting(url: str) -> braintree.BraintreeGateway:
        assert url == f"https://{production.server}"
        return braintree.BraintreeGateway(
            braintree.Configuration(production, **keys, timeout=20, wrap_http_exceptions=True)
        )

    monkeypatch.setattr(test_braintree, "gateway_at", trusting)


@pytest.mark.parametrize("fault", [None, Fault.LOST], ids=["success", "lost_response"])
@pytest.mark.parametrize("name", SDKS)
def test_one_effect_and_the_sdk_is_told_of_it(house: House, name: str, fault: Fault | None) -> None:
    kind, address, pay = SDKS[name]
    stand = house.stand(kind)
    order = stand.new_order()
    if fault is not None:
        stand.double.befall(order, fault)
    told = pay(address, order, False)
    assert told.paid, told.text
    assert stand.double.effects(order) == 1
