"""The unmodified squareup SDK. It tries 408, 409, 429 and 5xx twice more by itself, but not a lost connection."""

from __future__ import annotations

import httpx
import pytest
from square import Square
from square.core.api_error import ApiError

from tests.e2e.sidecar import Answer, wait_until
from tests.sdks.conftest import House
from tests.sdks.double import Fault
from tests.sdks.scenarios import (
    BROKEN_AFTER,
    DO_NOT_PAY_AGAIN,
    NOTHING_WAS_SENT,
    SCENARIOS,
    STORED,
    UNAVAILABLE,
    Scenario,
    Stand,
    Told,
    Verdict,
    pay_again,
    play,
    repeat,
)
from tests.sdks.square_double import SquareDouble

pytestmark = pytest.mark.slow
# It can be asked by place and time, and the shop's own reference tells which payment it is.
VERDICTS = {**STORED, BROKEN_AFTER: Verdict.PAID}


@pytest.fixture
def stand(house: House) -> Stand:
    return house.stand(SquareDouble)


def pay(url: str, order: str, declined: bool = False, amount: int = 1099, tries: int = 1, key: str = "") -> Told:
    with httpx.Client(timeout=30) as http:
        client = Square(token="token", base_url=url, httpx_client=http)
        try:
            payment = client.payments.create(
                source_id="cnon:empty" if declined else "cnon:full",
                idempotency_key=key or f"key-{order}",
                amount_money={"amount": amount, "currency": "EUR"},
                reference_id=order,
                location_id="L1",
                request_options={"max_retries": tries - 1},
            ).payment
        except ApiError as error:
            facts = (error.status_code, error.errors[0].category, error.errors[0].code)
            return Told(type(error).__name__, facts, str(error.errors[0].detail))
        except httpx.TransportError as error:  # it lets these through
            return Told(type(error).__name__, (), str(error))
    assert payment is not None
    assert payment.amount_money is not None
    return Told("paid", (payment.status, payment.amount_money.amount, payment.amount_money.currency))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_one_effect_and_no_surprise(stand: Stand, scenario: Scenario) -> None:
    play(stand, scenario, VERDICTS[scenario], pay)


def test_a_lost_answer_of_ours_is_asked_for_again(stand: Stand) -> None:
    repeat(stand, pay, by_itself=False)


def test_an_order_that_is_paid_is_not_paid_again_under_another_key(stand: Stand) -> None:
    pay_again(stand, pay, lambda url, order, declined: pay(url, order, declined, key=f"other-{order}"))


def test_its_own_retries_after_an_unknown_outcome_send_nothing_more(stand: Stand) -> None:
    """The SDK takes our 504 for one of Square's and asks again under the same key."""
    order = stand.new_order()
    stand.double.befall(order, *UNAVAILABLE.faults)
    told = pay(stand.through, order, tries=2)
    assert told.facts[0] == 504
    assert DO_NOT_PAY_AGAIN in told.text
    assert len(stand.double.sent(order)) == 1


def test_what_cannot_be_found_goes_to_review_where_the_cancel_by_key_is_offered(house: House, stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, *UNAVAILABLE.faults)
    assert pay(stand.through, order).kind == "ApiError"
    (found,) = [row for row in house.sidecar.operations("&provider=square") if row["client_key"] == f"key-{order}"]
    said = {"actor": "a person", "reason": "nobody knows"}
    wait_until(lambda: act(house, found, "park", said).status_code == 200, "its being put into review")
    parked = house.sidecar.operation(found["id"])
    assert parked["state"] == "requires_review"
    assert "cancel" in parked["actions"]
    assert act(house, parked, "cancel", said).status_code < 300
    wait_until(lambda: cancels(stand) == [{"idempotency_key": f"key-{order}"}], "the cancel by its key")
    assert house.sidecar.operation(found["id"])["outcome"] == "unknown"  # an empty answer closes nothing


def act(house: House, row: dict, action: str, said: dict) -> Answer:
    version = house.sidecar.operation(row["id"])["version"]
    return house.sidecar.admin(f"/v1/operations/{row['id']}/{action}", {**said, "version": version})


def cancels(stand: Stand) -> list[dict]:
    return [request.json for request in stand.double.arrivals if request.path == "/v2/payments/cancel"]


def test_a_key_with_another_amount_is_told_in_our_words(stand: Stand) -> None:
    order = stand.new_order()
    assert pay(stand.through, order).paid
    told = pay(stand.through, order, amount=9999)
    assert (told.kind, told.facts) == ("ApiError", (422, "API_ERROR", "INTERNAL_SERVER_ERROR"))
    assert NOTHING_WAS_SENT in told.text
    assert stand.double.effects(order) == 1


def test_a_refund_whose_answer_was_lost_is_made_once(stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    with httpx.Client(timeout=30) as http:
        refund = Square(token="token", base_url=stand.through, httpx_client=http).refunds.refund_payment(
            idempotency_key=f"key-{order}",
            payment_id=f"pay_{order}",
            amount_money={"amount": 100, "currency": "EUR"},
            reason=order,
        )
    assert refund.refund is not None
    assert refund.refund.status == "PENDING"
    assert stand.double.effects(order) == 1
