"""Authorize.net, in the XML and the JSON that its clients write: one address, no key, the credential in the body.

Its own package is left out: it takes the first three bytes off every answer, and swallows what goes wrong."""

from __future__ import annotations

import json

import pytest
import requests

from tests.sdks.authorizenet_double import DECLINED, LOGIN, SCHEMA, AuthorizeNetDouble, written
from tests.sdks.conftest import House
from tests.sdks.double import Fault
from tests.sdks.scenarios import Stand

pytestmark = pytest.mark.slow


@pytest.fixture
def stand(house: House) -> Stand:
    return house.stand(AuthorizeNetDouble)


@pytest.fixture(params=["xml", "json"])
def written_in(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pay(url: str, invoice: str, written_in: str, card: str = "4111111111111111", key: str = "key") -> requests.Response:
    asked = {
        "merchantAuthentication": {**LOGIN, "transactionKey": key},
        "refId": "123456",
        "transactionRequest": {
            "transactionType": "authCaptureTransaction",
            "amount": "10.99",
            "payment": {"creditCard": {"cardNumber": card, "expirationDate": "2030-12"}},
            "order": {"invoiceNumber": invoice},
        },
    }
    body = json.dumps({"createTransactionRequest": asked})
    if written_in == "xml":
        body = f'<createTransactionRequest xmlns="{SCHEMA}">{written(asked)}</createTransactionRequest>'
    return requests.post(f"{url}/xml/v1/request.api", body.encode(), timeout=20)


@pytest.mark.parametrize(
    ("card", "key", "outcome"),
    [("4111111111111111", "key", "succeeded"), (DECLINED, "key", "declined"), ("4111111111111111", "wrong", "failed")],
    ids=["paid", "declined", "refused"],
)
def test_answers_pass_untouched_and_are_understood(
    stand: Stand, written_in: str, card: str, key: str, outcome: str
) -> None:
    ours = pay(stand.through, stand.new_order(), written_in, card, key)
    theirs = pay(stand.direct, stand.new_order(), written_in, card, key)
    assert (ours.status_code, ours.headers["Content-Type"]) == (theirs.status_code, theirs.headers["Content-Type"])
    assert len(ours.content) == len(theirs.content)  # a number of the transaction's own is all that differs
    assert ours.headers["Paywitness-Outcome"] == outcome


def test_a_lost_answer_is_looked_for_by_the_invoice_and_never_sent_again(stand: Stand, written_in: str) -> None:
    invoice = stand.new_order()
    stand.double.befall(invoice, Fault.LOST)
    for _ in range(2):  # and whoever comes again does not pay again
        answer = pay(stand.through, invoice, written_in)
        assert (answer.status_code, answer.headers["Paywitness-Outcome"]) == (409, "succeeded")
    assert (stand.double.effects(invoice), len(stand.double.sent(invoice))) == (1, 1)


def test_what_is_not_found_stays_unknown(stand: Stand, written_in: str) -> None:
    invoice = stand.new_order()
    stand.double.befall(invoice, Fault.RESET)
    answer = pay(stand.through, invoice, written_in)
    assert (answer.status_code, answer.headers["Paywitness-Outcome"]) == (504, "unknown")
    media_type = {"xml": "application/xml", "json": "application/problem+json"}[written_in]
    assert answer.headers["Content-Type"] == media_type
    assert "Do not make another payment" in answer.text
    assert (stand.double.effects(invoice), len(stand.double.sent(invoice))) == (0, 1)
