"""The unmodified braintree SDK: XML, no key, and exceptions that show nothing but a status."""

from __future__ import annotations

import warnings
from urllib.parse import urlsplit

import pytest
import requests

from tests.sdks import conftest
from tests.sdks.braintree_double import DECLINED, BraintreeDouble
from tests.sdks.conftest import House
from tests.sdks.double import Fault
from tests.sdks.scenarios import (
    BROKEN,
    BROKEN_AFTER,
    DECLINE,
    GATEWAY,
    LOST,
    NOTHING_WAS_SENT,
    RESET,
    SCENARIOS,
    STORED,
    SUCCESS,
    UNAVAILABLE,
    Scenario,
    Stand,
    Told,
    Verdict,
    play,
    repeat,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import braintree
    from braintree.exceptions.braintree_error import BraintreeError

pytestmark = pytest.mark.slow


@pytest.fixture
def stand(house: House) -> Stand:
    return house.stand(BraintreeDouble)


def gateway_at(url: str) -> braintree.BraintreeGateway:
    host, port = urlsplit(url).hostname, str(urlsplit(url).port)
    environment = braintree.Environment("test", host, port, url, False, None, host, port)
    keys = {"merchant_id": "shop", "public_key": "public", "private_key": "private"}
    return braintree.BraintreeGateway(
        braintree.Configuration(environment, **keys, timeout=20, wrap_http_exceptions=True)
    )


def pay(url: str, order: str, declined: bool = False, amount: str = "10.99", key: str = "") -> Told:
    params = {
        "amount": amount,
        "order_id": order,
        "payment_method_nonce": DECLINED if declined else "fake-valid-nonce",
        "options": {"submit_for_settlement": True},
        **({"api_request_key": key} if key else {}),
    }
    try:
        result = gateway_at(url).transaction.sale(params)
    except BraintreeError as error:
        return Told(type(error).__name__, (), str(error))
    made = result.transaction
    facts = (made.status, made.amount, made.currency_iso_code, made.created_at, made.refund_ids) if made else ()
    return Told("paid" if result.is_success else "ErrorResult", facts, "" if result.is_success else result.message)


# It takes no key, so nothing in doubt is sent again; but it can be asked, and what is found is told as the answer was.
VERDICTS = {**STORED, BROKEN_AFTER: Verdict.PAID}
NOT_FOUND = (RESET, UNAVAILABLE, BROKEN)


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one not in NOT_FOUND], ids=str)
def test_one_effect_and_no_surprise(stand: Stand, scenario: Scenario) -> None:
    play(stand, scenario, VERDICTS[scenario], pay, stand.own_port)


@pytest.mark.parametrize("scenario", NOT_FOUND, ids=str)
def test_what_is_not_found_stays_unknown_and_is_not_sent_again(stand: Stand, scenario: Scenario) -> None:
    """The SDK raises by the status and shows nobody's words: it must be the one that says it may have been executed."""
    order = stand.new_order()
    stand.double.befall(order, *scenario.faults)
    told = pay(stand.own_port, order)
    assert (told.kind, stand.double.effects(order), len(stand.double.sent(order))) == ("GatewayTimeoutError", 0, 1)


def test_a_lost_answer_of_ours_is_asked_for_again(stand: Stand) -> None:
    repeat(stand, pay, by_itself=False, url=stand.own_port)


def test_what_the_sdk_sent_goes_on_byte_by_byte(stand: Stand) -> None:
    through, direct = stand.new_order(), stand.new_order()
    assert pay(stand.own_port, through).paid
    assert pay(stand.direct, direct).paid
    [ours], [theirs] = stand.double.sent(through), stand.double.sent(direct)
    assert ours.body == theirs.body.replace(direct.encode(), through.encode())


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.BROKEN_AFTER], ids=str)
def test_a_refund_whose_answer_was_lost_is_not_made_twice(stand: Stand, fault: Fault) -> None:
    order = stand.new_order()
    gateway = gateway_at(stand.own_port)
    params = {
        "amount": "10.99",
        "order_id": order,
        "payment_method_nonce": "n",
        "options": {"submit_for_settlement": True},
    }
    made = gateway.transaction.sale(params).transaction
    stand.double.befall(order, fault)
    with pytest.raises(BraintreeError):
        gateway.transaction.refund(made.id)
    with pytest.raises(BraintreeError):
        gateway.transaction.refund(made.id)
    assert [effect.kind for effect in stand.double.ledger if effect.order == order] == ["payment", "refund"]


def test_a_void_whose_answer_was_lost_is_asked_about(stand: Stand) -> None:
    order = stand.new_order()
    gateway = gateway_at(stand.own_port)
    made = gateway.transaction.sale({"amount": "10.99", "order_id": order, "payment_method_nonce": "n"}).transaction
    stand.double.befall(order, Fault.LOST)
    result = gateway.transaction.void(made.id)
    assert (result.is_success, result.transaction.status) == (True, "voided")
    assert [effect.kind for effect in stand.double.ledger if effect.order == order] == ["payment", "void"]


# --- an account whose keys are switched on


class KeyedDouble(BraintreeDouble):
    provider = "braintree_keyed"


@pytest.fixture
def keyed(house: House, monkeypatch: pytest.MonkeyPatch) -> Stand:
    own = """
extends: paywitness:braintree
provider: {provider}
hosts: [keyed.braintree.test]
idempotency:
  send_as: body:transaction.api_request_key
  window: 30d
  errors_under_key: {{assumed: replayed}}
"""
    monkeypatch.setattr(conftest, "POLICY", conftest.POLICY.replace("\nextends: paywitness:{provider}\n", own))
    return house.stand(KeyedDouble)


def pay_under_a_key(url: str, order: str, declined: bool = False, amount: str = "10.99") -> Told:
    return pay(url, order, declined, amount, key=f"key-{order}")


@pytest.mark.parametrize("scenario", [SUCCESS, DECLINE, LOST, RESET, GATEWAY], ids=str)
def test_with_a_key_what_was_lost_is_sent_again(keyed: Stand, scenario: Scenario) -> None:
    play(keyed, scenario, STORED[scenario], pay_under_a_key, keyed.own_port)


def test_a_key_is_written_into_the_body_where_the_sdk_gives_none(keyed: Stand) -> None:
    order = keyed.new_order()
    keyed.double.befall(order, Fault.LOST)
    assert pay(keyed.own_port, order).paid
    keys = {keyed.double.key_of(request) for request in keyed.double.sent(order)}
    assert (len(keyed.double.sent(order)), len(keys), "" in keys) == (2, 1, False)
    assert keyed.double.effects(order) == 1


def test_a_key_with_another_amount_is_told_in_our_words(keyed: Stand) -> None:
    order = keyed.new_order()
    assert pay_under_a_key(keyed.own_port, order).paid
    told = pay_under_a_key(keyed.own_port, order, amount="99.99")
    assert (told.kind, NOTHING_WAS_SENT in told.text) == ("ErrorResult", True), told.text
    assert keyed.double.effects(order) == 1


LAUGHS = '<!DOCTYPE t [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
SALE = "<transaction><type>sale</type><amount>1.00</amount><order_id>{order}</order_id>{more}</transaction>"


@pytest.mark.parametrize(
    ("before", "more"),
    [
        (LAUGHS, "<channel>&b;</channel>"),
        ("", "<amount>2.00</amount>"),
        ("", "<channel>sh<!-- -->op</channel>"),
        ("", '<api_request_key type="integer">5</api_request_key>'),
        ("", "<api_request_key>one</api_request_key><api-request-key>two</api-request-key>"),
        ("", "<unclosed>"),
    ],
    ids=["entities", "two amounts", "a cut text", "a key of another type", "two keys", "no XML"],
)
def test_what_cannot_be_read_or_written_one_way_only_is_refused_and_not_sent(
    keyed: Stand, before: str, more: str
) -> None:
    order = keyed.new_order()
    url = f"{keyed.own_port}/merchants/shop/transactions"
    answer = requests.post(url, before + SALE.format(order=order, more=more), timeout=20)
    assert (answer.status_code, answer.headers["Content-Type"]) == (400, "application/xml")
    assert NOTHING_WAS_SENT in answer.text
    assert not any(order.encode() in request.body for request in keyed.double.arrivals)
