"""Acme's dialect: JSON, charges, and orders that can be paid. The plainest provider a policy can be written for."""

from __future__ import annotations

from proxy.sandbox.answer import Answer, card_declined, error_answer, json_answer
from proxy.sandbox.bank import Bank
from proxy.sandbox.body import Tree
from proxy.sandbox.charge import Charge, Refund, Status, Terms
from proxy.sandbox.dialects.route import (
    Invalid,
    Names,
    Route,
    amount_from,
    currency_from,
    metadata_from,
    page_of,
    refusing,
)
from proxy.sandbox.refusals import Refused
from proxy.sandbox.request import Request

ACCOUNT_HEADER = "acme-account"
SEARCHABLE = {"order": "order_id", "paywitness": "paywitness"}


@refusing
def in_acme_words(refused: Refused) -> Answer:
    status_code = 409 if refused.conflict else 400
    return error_answer(status_code, "invalid_request_error", refused.message, code=refused.code)


# -- acts -------------------------------------------------------------------------------------------------------------


@in_acme_words
def create_charge(bank: Bank, request: Request, names: Names) -> Answer:
    terms = terms_from(request, names.get("order"))
    charge = bank.open(terms, request.key)
    bank.pay(charge, request.key)
    if charge.status is Status.FAILED and not charge.quiet_failure:
        return card_declined(charge.failure_code or "generic_decline", charge=charge.id)
    return json_answer(200, charge_json(charge, request), failed=charge.status is Status.FAILED)


@in_acme_words
def capture(bank: Bank, request: Request, names: Names) -> Answer:
    charge = bank.charge(names["charge"])
    bank.capture(charge, request.key, optional_amount(request.tree))
    return json_answer(200, charge_json(charge, request))


@in_acme_words
def void(bank: Bank, request: Request, names: Names) -> Answer:
    charge = bank.charge(names["charge"])
    bank.void(charge, request.key)
    return json_answer(200, charge_json(charge, request))


@in_acme_words
def create_refund(bank: Bank, request: Request, names: Names) -> Answer:
    charge = bank.charge(names["charge"])
    metadata = metadata_from(request.tree.get("metadata"))
    return json_answer(200, refund_json(bank.refund(charge, request.key, optional_amount(request.tree), metadata)))


@in_acme_words
def read_charge(bank: Bank, request: Request, names: Names) -> Answer:
    return json_answer(200, charge_json(bank.charge(names["charge"]), request))


@in_acme_words
def list_charges(bank: Bank, request: Request, names: Names) -> Answer:
    query = request.query
    found = [charge for charge in bank.search(searched(query), query.get("key")) if charge.status is not Status.CREATED]
    page, has_more = page_of(found, lambda charge: charge.id, query)
    return json_answer(200, {"data": [charge_json(charge, request) for charge in page], "has_more": has_more})


@in_acme_words
def list_refunds(bank: Bank, request: Request, names: Names) -> Answer:
    query = request.query
    found = bank.search_refunds(searched(query), query.get("key"), names["charge"])
    page, has_more = page_of(found, lambda refund: refund.id, query)
    return json_answer(200, {"data": [refund_json(refund) for refund in page], "has_more": has_more})


@in_acme_words
def read_refund(bank: Bank, request: Request, names: Names) -> Answer:
    return json_answer(200, refund_json(bank.refund_named(names["refund"])))


# -- words ------------------------------------------------------------------------------------------------------------


def searched(query: Names) -> list[tuple[str, str]]:
    """What a list is asked for by the metadata: `?order=A-1&paywitness=op-1`."""
    return [(SEARCHABLE[name], value) for name, value in query.items() if name in SEARCHABLE]


def terms_from(request: Request, order: str | None) -> Terms:
    tree = request.tree
    capture = tree.get("capture", True)
    source = tree.get("source", "tok_ok")
    if not isinstance(capture, bool):
        raise Invalid("capture", "capture is true or false")
    if not isinstance(source, str):
        raise Invalid("source", "source is a token")
    metadata = dict(metadata_from(tree.get("metadata")))
    if order is not None:
        metadata["order_id"] = order
    return Terms(
        amount_from(tree.get("amount")),
        currency_from(tree.get("currency")),
        source,
        capture,
        metadata,
        account=request.headers.get(ACCOUNT_HEADER),
    )


def optional_amount(tree: Tree) -> int | None:
    return None if tree.get("amount") is None else amount_from(tree["amount"])


def charge_json(charge: Charge, request: Request) -> dict[str, object]:
    terms = charge.terms
    body: dict[str, object] = {
        "id": charge.id,
        "object": "charge",
        "status": charge.status,
        "amount": terms.amount,
        "currency": terms.currency,
        "captured": charge.amount_captured > 0,
        "amount_captured": charge.amount_captured,
        "refunded": 0 < charge.amount_captured == charge.amount_refunded,
        "amount_refunded": charge.amount_refunded,
        "source": charge.source,
        "order": terms.order,
        "metadata": terms.metadata,
        "failure_code": charge.failure_code,
        "idempotency_key": charge.key,
        "created": int(charge.created_at),
    }
    if charge.status is Status.REQUIRES_ACTION:
        body["next_action"] = {"type": "redirect", "redirect_url": settle_url(charge, request)}
    return body


def settle_url(charge: Charge, request: Request) -> str:
    """Where a person plays the customer who authenticates: a POST settles it."""
    return f"http://{request.headers.get('host', 'localhost')}/_sandbox/charges/{charge.id}/settle"


def refund_json(refund: Refund) -> dict[str, object]:
    """Both dialects read refunds by the same path, so the one object serves both."""
    return {
        "id": refund.id,
        "object": "refund",
        "charge": refund.charge.id,
        "payment_intent": refund.charge.intent_id,
        "amount": refund.amount,
        "currency": refund.charge.terms.currency,
        "status": "succeeded",
        "metadata": refund.metadata,
        "idempotency_key": refund.key,
        "created": int(refund.created_at),
    }


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/charges", create_charge),
    Route("POST", "/v1/orders/{order}/pay", create_charge),
    Route("POST", "/v1/charges/{charge}/capture", capture),
    Route("POST", "/v1/charges/{charge}/void", void),
    Route("POST", "/v1/charges/{charge}/refunds", create_refund),
    Route("GET", "/v1/charges", list_charges),
    Route("GET", "/v1/charges/{charge}", read_charge),
    Route("GET", "/v1/charges/{charge}/refunds", list_refunds),
    Route("GET", "/v1/refunds/{refund}", read_refund),
)
