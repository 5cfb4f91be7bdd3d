"""The unmodified paypal-server-sdk. It fetches its token through us, and never tries a POST again by itself."""

from __future__ import annotations

import functools

import pytest
import requests
from paypalserversdk.configuration import Configuration, Environment, Server
from paypalserversdk.exceptions.api_exception import ApiException
from paypalserversdk.http.auth.o_auth_2 import ClientCredentialsAuthCredentials
from paypalserversdk.paypal_serversdk_client import PaypalServersdkClient

from tests.sdks.conftest import House
from tests.sdks.double import Fault
from tests.sdks.paypal_double import PaypalDouble
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
    pay_again,
    play,
    repeat,
)

pytestmark = pytest.mark.slow
# A 5xx may be sent again under the same id, which shows how the order stands.
VERDICTS = {**STORED, BROKEN: Verdict.PAID, BROKEN_AFTER: Verdict.PAID}


@pytest.fixture
def stand(house: House) -> Stand:
    return house.stand(PaypalDouble)


@functools.cache
def _client(url: str) -> PaypalServersdkClient:
    """One for each address: it fetches a token when it is first used."""
    credentials = ClientCredentialsAuthCredentials(o_auth_client_id="client", o_auth_client_secret="secret")
    return PaypalServersdkClient(environment=Environment.SANDBOX, client_credentials_auth_credentials=credentials)


def client_of(url: str) -> PaypalServersdkClient:
    Configuration.environments[Environment.SANDBOX][Server.DEFAULT] = url  # read at every call; there is no other way
    return _client(url)


@pytest.fixture(autouse=True)
def _address(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Configuration.environments[Environment.SANDBOX]
    monkeypatch.setitem(servers, Server.DEFAULT, servers[Server.DEFAULT])


def pay(url: str, order: str, declined: bool = False, amount: str = "10.99", key: str = "") -> Told:
    unit = {"amount": {"currency_code": "EUR", "value": amount}, "invoice_id": order}
    card = {"vault_id": "empty" if declined else "full"}
    body = {"intent": "CAPTURE", "purchase_units": [unit], "payment_source": {"card": card}}
    try:
        answer = client_of(url).orders.create_order({"body": body, "paypal_request_id": key or f"key-{order}"})
    except ApiException as error:
        return Told(type(error).__name__, (error.response_code, getattr(error, "name", None)), str(error))
    except requests.RequestException as error:  # it lets these through
        return Told(type(error).__name__, (), str(error))
    return Told("paid" if answer.body.status == "COMPLETED" else "open", (answer.body.status,))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_one_effect_and_no_surprise(stand: Stand, scenario: Scenario) -> None:
    play(stand, scenario, VERDICTS[scenario], pay)


def test_a_lost_answer_of_ours_is_asked_for_again(stand: Stand) -> None:
    assert pay(stand.through, stand.new_order()).paid  # so that the answer that is lost is not the token
    repeat(stand, pay, by_itself=False)


def test_an_invoice_that_is_paid_is_not_paid_again_under_another_id(stand: Stand) -> None:
    pay_again(stand, pay, lambda url, order, declined: pay(url, order, declined, key=f"other-{order}"))


def test_a_key_with_another_amount_is_told_in_our_words(stand: Stand) -> None:
    order = stand.new_order()
    assert pay(stand.through, order).paid
    told = pay(stand.through, order, amount="99.99")
    assert (told.kind, told.facts) == ("ErrorException", (422, "PAYWITNESS"))
    assert NOTHING_WAS_SENT in told.text
    assert stand.double.effects(order) == 1


def test_a_refund_whose_answer_was_lost_is_made_once(stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    refund = {"amount": {"currency_code": "EUR", "value": "1.00"}, "invoice_id": order}
    about = {"capture_id": f"CAP{order}", "paypal_request_id": f"key-{order}", "body": refund}
    assert client_of(stand.through).payments.refund_captured_payment(about).body.status == "COMPLETED"
    assert stand.double.effects(order) == 1
