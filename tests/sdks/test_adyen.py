"""The unmodified Adyen SDK. It sends no key unless it is told to, and never tries again by itself."""

from __future__ import annotations

import Adyen
import pytest
import requests

from tests.sdks.adyen_double import AdyenDouble
from tests.sdks.conftest import House
from tests.sdks.double import Fault
from tests.sdks.scenarios import (
    BROKEN,
    NOTHING_WAS_SENT,
    SCENARIOS,
    STORED,
    UNAVAILABLE,
    Scenario,
    Stand,
    Told,
    Verdict,
    pay_at_once,
    play,
    repeat,
)

pytestmark = pytest.mark.slow
# Its 503 says itself that nothing was done: no doubt, and after some tries it is passed on as it came.
VERDICTS = {**STORED, UNAVAILABLE: Verdict.SAME}


@pytest.fixture
def stand(house: House) -> Stand:
    return house.stand(AdyenDouble)


def service(url: str) -> Adyen.Adyen:
    adyen = Adyen.Adyen(xapikey="key", platform="test")
    adyen.checkout.payments_api.baseUrl = f"{url}/v72"
    adyen.checkout.modifications_api.baseUrl = f"{url}/v72"
    return adyen


def pay(url: str, order: str, declined: bool = False, amount: int = 1099, key: str | None = None) -> Told:
    request = {
        "amount": {"value": amount, "currency": "EUR"},
        "reference": order,
        "merchantAccount": "Shop",
        "paymentMethod": {"type": "scheme", "storedPaymentMethodId": "empty" if declined else "full"},
        "returnUrl": "https://shop.example/back",
    }
    try:
        result = service(url).checkout.payments_api.payments(request, idempotency_key=key)
    except Adyen.AdyenError as error:
        words = error.message["message"] if isinstance(error.message, dict) else error.message
        return Told(type(error).__name__, (error.status_code, error.error_code), words)
    except requests.RequestException as error:  # it lets these through
        return Told(type(error).__name__, (), str(error))
    message = result.message
    kind = "paid" if message["resultCode"] == "Authorised" else "refused"
    return Told(kind, (result.status_code, message.get("refusalReasonCode"), message["amount"]["value"]))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_one_effect_and_no_surprise(stand: Stand, scenario: Scenario) -> None:
    play(stand, scenario, VERDICTS[scenario], pay)


def test_a_lost_answer_of_ours_is_asked_for_again(stand: Stand) -> None:
    repeat(stand, pay, by_itself=False)


def test_what_says_that_nothing_was_done_is_sent_again(stand: Stand) -> None:
    play(stand, Scenario("503_once", (Fault.UNAVAILABLE,)), Verdict.PAID, pay)


def test_a_500_is_doubt_and_not_sent_again_by_whoever_repeats_it(stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, *BROKEN.faults)
    told = [pay(stand.through, order) for _ in range(2)]
    assert [one.kind for one in told] == ["AdyenAPIResponseError", "AdyenAPIResponseError"]
    assert all("Do not make another payment" in one.text for one in told)
    assert len(stand.double.sent(order)) == 1


def test_every_attempt_bears_one_key_of_ours_even_where_the_shop_gives_one(stand: Stand) -> None:
    """Adyen's keys are the whole company's, so the shop's own never goes out."""
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    assert pay(stand.through, order, key=f"key-{order}").paid
    keys = [request.headers["Idempotency-Key"] for request in stand.double.sent(order)]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert keys[0] != f"key-{order}"


def test_callers_at_once_without_a_key_pay_once(stand: Stand) -> None:
    pay_at_once(stand, pay)


def test_a_key_with_another_amount_is_told_in_our_words(stand: Stand) -> None:
    order = stand.new_order()
    assert pay(stand.through, order, key=f"key-{order}").paid
    told = pay(stand.through, order, amount=9999, key=f"key-{order}")
    assert (told.kind, told.facts) == ("AdyenAPIUnprocessableEntity", (422, "paywitness_key_reused"))
    assert NOTHING_WAS_SENT in told.text
    assert stand.double.effects(order) == 1


def test_a_refund_whose_answer_was_lost_is_made_once(stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    refund = {"amount": {"value": 100, "currency": "EUR"}, "reference": order, "merchantAccount": "Shop"}
    result = service(stand.through).checkout.modifications_api.refund_captured_payment(refund, f"PSP-{order}")
    assert result.message["status"] == "received"
    assert stand.double.effects(order) == 1
