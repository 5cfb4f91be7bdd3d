"""The unmodified gocardless_pro. It makes a fresh key for every call, tries three times when the line breaks, and takes
a 409 that says "made before" for the good news that it is."""

from __future__ import annotations

import gocardless_pro
import pytest
from gocardless_pro.errors import GoCardlessProError, IdempotentCreationConflictError
from gocardless_pro.resources import Payment

from tests.sdks.conftest import House
from tests.sdks.double import Fault
from tests.sdks.gocardless_double import GocardlessDouble
from tests.sdks.scenarios import (
    BROKEN,
    BROKEN_AFTER,
    NOTHING_WAS_SENT,
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
# One thing is made for a key however often it is sent: a 500 is no end either.
VERDICTS = {**STORED, BROKEN: Verdict.PAID, BROKEN_AFTER: Verdict.PAID}


@pytest.fixture
def stand(house: House) -> Stand:
    return house.stand(GocardlessDouble)


def create(
    url: str, order: str, mandate: str = "MD1", amount: int = 1099, key: str = "", *, strict: bool = False
) -> Payment:
    client = gocardless_pro.Client("token", base_url=url, raise_on_idempotency_conflict=strict)
    params = {"amount": amount, "currency": "EUR", "links": {"mandate": mandate}, "metadata": {"order_id": order}}
    return client.payments.create(params=params, headers={"Idempotency-Key": key} if key else None)


def pay(url: str, order: str, declined: bool = False, amount: int = 1099, key: str = "") -> Told:
    """A debit is never declined at once; what can be refused at once is a mandate that is not active."""
    try:
        payment = create(url, order, "MD_INACTIVE" if declined else "MD1", amount, key)
    except GoCardlessProError as error:
        return Told(type(error).__name__, (getattr(error, "code", None), getattr(error, "type", None)), str(error))
    return Told("paid", (payment.status, payment.amount, payment.currency))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_one_effect_and_no_surprise(stand: Stand, scenario: Scenario) -> None:
    play(stand, scenario, VERDICTS[scenario], pay, stand.own_port)


def test_a_lost_answer_of_ours_is_asked_for_again(stand: Stand) -> None:
    repeat(stand, pay, by_itself=True, url=stand.own_port)


def test_a_409_that_says_made_before_is_followed_to_the_payment(stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    payment = create(stand.own_port, order)
    assert (payment.status, payment.metadata) == ("pending_submission", {"order_id": order})
    first, second = stand.double.sent(order)
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.body == second.body
    assert stand.double.effects(order) == 1


def test_whoever_wants_to_see_the_409_sees_it(stand: Stand) -> None:
    ids = {}
    for url in (stand.direct, stand.own_port):
        order = stand.new_order()
        stand.double.befall(order, Fault.LOST)
        with pytest.raises(IdempotentCreationConflictError) as raised:
            create(url, order, strict=True)
        ids[url] = raised.value.conflicting_resource_id
        assert stand.double.effects(order) == 1
    assert all(made.startswith("PM") for made in ids.values())


def test_a_key_with_another_amount_is_told_in_our_words(stand: Stand) -> None:
    order = stand.new_order()
    assert pay(stand.own_port, order, key=f"key-{order}").paid
    told = pay(stand.own_port, order, amount=9999, key=f"key-{order}")
    assert told.kind == "GoCardlessInternalError"
    assert NOTHING_WAS_SENT in told.text
    assert stand.double.effects(order) == 1


def test_a_refund_whose_answer_was_lost_is_made_once(stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    client = gocardless_pro.Client("token", base_url=stand.own_port)
    params = {"amount": 100, "links": {"payment": f"PM_{order}"}, "metadata": {"order_id": order}}
    refund = client.refunds.create(params=params)
    assert (refund.amount, refund.metadata) == (100, {"order_id": order})
    assert (stand.double.effects(order), len(stand.double.sent(order))) == (1, 2)


def test_a_cancel_heeds_no_key_and_is_not_sent_again(stand: Stand) -> None:
    order = stand.new_order()
    payment = create(stand.own_port, order)
    stand.double.befall(order, Fault.LOST)
    client = gocardless_pro.Client("token", base_url=stand.own_port)
    cancelled = client.payments.cancel(payment.id)
    assert cancelled.status == "cancelled"  # it was asked about
    assert [request.path.rpartition("/")[2] for request in stand.double.sent(order)] == ["payments", "cancel"]
