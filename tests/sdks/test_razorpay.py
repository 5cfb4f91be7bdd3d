"""The unmodified razorpay. It sends no key unless it is given a header, and tries again only when it is told to."""

from __future__ import annotations

from typing import Any

import pytest
import razorpay
import requests
from razorpay.errors import BadRequestError, GatewayError, ServerError

from tests.sdks.conftest import House
from tests.sdks.double import Fault
from tests.sdks.razorpay_double import RazorpayDouble
from tests.sdks.scenarios import (
    BROKEN_AFTER,
    NOTHING_WAS_SENT,
    RESET,
    SCENARIOS,
    STORED,
    Scenario,
    Stand,
    Told,
    Verdict,
    play,
    repeat,
)

pytestmark = pytest.mark.slow
# A payment has no key: it is stamped, asked about by its order, and never sent again, even if it perhaps never arrived.
VERDICTS = {**STORED, RESET: Verdict.UNKNOWN, BROKEN_AFTER: Verdict.PAID}
ERRORS = (BadRequestError, GatewayError, ServerError, requests.RequestException)


@pytest.fixture
def stand(house: House) -> Stand:
    return house.stand(RazorpayDouble)


def client(url: str) -> razorpay.Client:
    return razorpay.Client(auth=("key", "secret"), base_url=url, initial_delay=0.01)


def pay(url: str, order: str, declined: bool = False, *, by_itself: bool = False) -> Told:
    shop = client(url)
    shop.enable_retry(by_itself)
    token = "token_empty" if declined else "token_full"
    asked = {"amount": 1099, "currency": "INR", "order_id": order, "token": token, "recurring": True}
    try:
        made = shop.payment.createRecurring(asked)
    except ERRORS as error:
        return Told(type(error).__name__, (), str(error))
    return Told("paid", tuple(made))


def pay_and_try_again(url: str, order: str, declined: bool = False) -> Told:
    return pay(url, order, declined, by_itself=True)


def refund(url: str, order: str, amount: int = 500, key: str = "") -> Any:
    """`headers` is the SDK's own way to give a key; it changes the mapping, so everybody gets one of their own."""
    headers = {"X-Refund-Idempotency": key} if key else {}
    return client(url).payment.refund(f"pay_{order}", {"amount": amount}, headers=headers)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_one_effect_and_no_surprise(stand: Stand, scenario: Scenario) -> None:
    play(stand, scenario, VERDICTS[scenario], pay)


def test_a_lost_answer_of_ours_is_asked_for_again(stand: Stand) -> None:
    repeat(stand, pay, by_itself=False)


def test_a_lost_answer_of_ours_is_asked_for_again_by_itself(stand: Stand) -> None:
    repeat(stand, pay_and_try_again, by_itself=True)


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.BROKEN_AFTER, Fault.GATEWAY])
def test_what_has_no_key_is_never_sent_again(stand: Stand, fault: Fault) -> None:
    order = stand.new_order()
    stand.double.befall(order, fault)
    for _ in range(2):
        pay(stand.through, order)
    assert len(stand.double.sent(order)) == 1


def test_a_capture_whose_answer_was_lost_is_asked_about(stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    payment = client(stand.through).payment.capture(f"pay_{order}", 1099, {"currency": "INR"})
    assert (payment["status"], payment["amount"]) == ("captured", 1099)
    assert (stand.double.effects(order), len(stand.double.sent(order))) == (1, 1)


@pytest.mark.parametrize("key", ["refund-{order}", ""], ids=["a key of the shop's", "no key"])
def test_a_refund_whose_answer_was_lost_is_fetched_under_its_key(stand: Stand, key: str) -> None:
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    found = refund(stand.through, order, key=key.format(order=order))
    assert (found["status"], found["amount"]) == ("processed", 500)
    first, second = stand.double.sent(order)
    assert first.headers["X-Refund-Idempotency"] == second.headers["X-Refund-Idempotency"]
    assert first.body == second.body
    assert stand.double.effects(order) == 1


def test_a_key_that_razorpay_would_refuse_does_not_reach_it(stand: Stand) -> None:
    order = stand.new_order()
    refund(stand.through, order, key="r1")
    (sent,) = stand.double.sent(order)
    assert len(sent.headers["X-Refund-Idempotency"]) == 36


def test_a_key_with_another_amount_is_told_in_our_words(stand: Stand) -> None:
    order = stand.new_order()
    key = f"refund-{order}"
    refund(stand.through, order, key=key)
    with pytest.raises(ServerError) as raised:
        refund(stand.through, order, amount=501, key=key)
    assert NOTHING_WAS_SENT in str(raised.value)
    assert stand.double.effects(order) == 1
