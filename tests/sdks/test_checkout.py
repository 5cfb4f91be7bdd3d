"""The unmodified checkout-sdk. It sends no key unless it is told to, and never tries again by itself."""

from __future__ import annotations

import warnings

import pytest
from checkout_sdk.checkout_api import CheckoutApi
from checkout_sdk.checkout_sdk import CheckoutSdk
from checkout_sdk.common.enums import Currency
from checkout_sdk.environment import Environment
from checkout_sdk.exception import CheckoutApiException, CheckoutException
from checkout_sdk.payments.payments import PaymentRequest, PaymentRequestIdSource, RefundRequest

from tests.sdks.checkout_double import CheckoutDouble
from tests.sdks.conftest import House
from tests.sdks.double import Fault
from tests.sdks.scenarios import (
    BROKEN_AFTER,
    DO_NOT_PAY_AGAIN,
    NOTHING_WAS_SENT,
    RESET,
    SCENARIOS,
    STORED,
    Scenario,
    Stand,
    Told,
    Verdict,
    pay_at_once,
    play,
    repeat,
)

pytestmark = pytest.mark.slow
# In doubt it is asked about by its reference and never sent again: even a request that perhaps never arrived.
VERDICTS = {**STORED, RESET: Verdict.UNKNOWN, BROKEN_AFTER: Verdict.PAID}


@pytest.fixture
def stand(house: House) -> Stand:
    return house.stand(CheckoutDouble)


def api(url: str) -> CheckoutApi:
    environment = Environment.sandbox()
    environment.base_uri = f"{url}/"
    builder = CheckoutSdk.builder().secret_key("sk_sbox_abcdefghijklmnopqrstuvwxyz2").environment(environment)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the other way is an address of Checkout.com's own
        return builder.use_legacy_domain().build()


def seen(error: CheckoutException) -> Told:
    if not isinstance(error, CheckoutApiException):
        return Told(type(error).__name__, (), str(error))
    facts = (error.http_metadata.status_code, error.error_type)
    return Told(type(error).__name__, facts, f"{error} {error.error_details}")


def pay(url: str, order: str, declined: bool = False, amount: int = 1099, key: str | None = None) -> Told:
    request = PaymentRequest()
    request.source = PaymentRequestIdSource()
    request.source.id = "src_empty" if declined else "src_full"
    request.amount = amount
    request.currency = Currency.EUR
    request.reference = order
    try:
        payment = api(url).payments.request_payment(request, key)
    except CheckoutException as error:
        return seen(error)
    return Told("paid" if payment.approved else "declined", (payment.status, payment.response_code, payment.amount))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_one_effect_and_no_surprise(stand: Stand, scenario: Scenario) -> None:
    play(stand, scenario, VERDICTS[scenario], pay)


def test_a_lost_answer_of_ours_is_asked_for_again(stand: Stand) -> None:
    repeat(stand, pay, by_itself=False)


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.BROKEN_AFTER, Fault.GATEWAY, Fault.BROKEN])
def test_in_doubt_it_is_never_sent_again(stand: Stand, fault: Fault) -> None:
    """The double would charge a second time for the same key: it stores no error."""
    order = stand.new_order()
    stand.double.befall(order, fault)
    for _ in range(2):
        pay(stand.through, order, key=f"key-{order}")
    assert len(stand.double.sent(order)) == 1


def test_callers_at_once_without_a_key_pay_once(stand: Stand) -> None:
    pay_at_once(stand, pay)


def test_a_key_with_another_amount_is_told_in_our_words(stand: Stand) -> None:
    order = stand.new_order()
    assert pay(stand.through, order, key=f"key-{order}").paid
    told = pay(stand.through, order, amount=9999, key=f"key-{order}")
    assert (told.kind, told.facts) == ("CheckoutApiException", (422, "paywitness"))
    assert NOTHING_WAS_SENT in told.text
    assert stand.double.effects(order) == 1


def test_a_refund_whose_answer_was_lost_is_not_made_again(stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    refund = RefundRequest()
    refund.amount = 100
    refund.reference = order
    with pytest.raises(CheckoutApiException) as raised:
        api(stand.through).payments.refund_payment(f"pay_{order}", refund)
    assert DO_NOT_PAY_AGAIN in seen(raised.value).text
    assert (stand.double.effects(order), len(stand.double.sent(order))) == (1, 1)
