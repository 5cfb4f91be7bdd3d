"""The unmodified mollie-api-python SDK. It makes a fresh key for every call, and never tries a POST again by itself."""

from __future__ import annotations

import pytest
from mollie.api.client import Client
from mollie.api.error import Error, ResponseError

from tests.sdks.conftest import House
from tests.sdks.double import Fault
from tests.sdks.mollie_double import MollieDouble
from tests.sdks.scenarios import (
    BROKEN_AFTER,
    NOTHING_WAS_SENT,
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
# Every payment is stamped, and the list of payments shows it.
VERDICTS = {**STORED, BROKEN_AFTER: Verdict.PAID}


@pytest.fixture
def stand(house: House) -> Stand:
    return house.stand(MollieDouble)


def client_of(url: str) -> Client:
    client = Client(api_endpoint=url, timeout=30)
    client.set_api_key("test_0123456789012345678901234567890")
    return client


def pay(url: str, order: str, declined: bool = False, amount: str = "10.99", key: str = "") -> Told:
    data = {
        "amount": {"value": amount, "currency": "EUR"},
        "description": f"Order {order}",
        "sequenceType": "recurring",
        "customerId": "cst_1",
        "mandateId": "mdt_empty" if declined else "mdt_full",
        "metadata": {"order_id": order},
    }
    try:
        payment = client_of(url).payments.create(data, idempotency_key=key)
    except ResponseError as error:
        return Told(type(error).__name__, (error.status, error.field), str(error))
    except Error as error:
        return Told(type(error).__name__, (), str(error))
    return Told("paid" if payment.is_paid() else "failed", (payment.status, payment.amount, payment.details))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_one_effect_and_no_surprise(stand: Stand, scenario: Scenario) -> None:
    play(stand, scenario, VERDICTS[scenario], pay)


def test_a_lost_answer_of_ours_is_asked_for_again_by_a_fresh_key(stand: Stand) -> None:
    repeat(stand, pay, by_itself=False)


def test_the_key_that_the_sdk_made_goes_out_with_every_attempt(stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    key = "0a1b2c3d-0000-4000-8000-000000000000"
    assert pay(stand.through, order, key=key).paid
    assert [request.headers["Idempotency-Key"] for request in stand.double.sent(order)] == [key, key]


def test_callers_at_once_each_under_a_fresh_key_pay_once(stand: Stand) -> None:
    pay_at_once(stand, pay)


def test_a_key_with_another_amount_is_told_in_our_words(stand: Stand) -> None:
    order = stand.new_order()
    assert pay(stand.through, order, key=f"key-{order}").paid
    told = pay(stand.through, order, amount="99.99", key=f"key-{order}")
    assert (told.kind, told.facts[0]) == ("UnprocessableEntityError", 422)
    assert NOTHING_WAS_SENT in told.text
    assert stand.double.effects(order) == 1


def test_a_refund_whose_answer_was_lost_is_made_once(stand: Stand) -> None:
    order = stand.new_order()
    assert pay(stand.through, order).paid
    payment = client_of(stand.through).payments.list(limit=1)[0]
    stand.double.befall(order, Fault.LOST)
    about = {"amount": {"value": "1.00", "currency": "EUR"}, "description": "Back", "metadata": {"order_id": order}}
    assert payment.refunds.create(about).is_pending()
    assert [effect.kind for effect in stand.double.ledger if effect.order == order] == ["payment", "refund"]
