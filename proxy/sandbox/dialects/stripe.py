"""Stripe's dialect, as far as payments go: forms in, payment intents out, good enough for the stripe SDK as it is.

A payment intent `pi_x` is the bank's charge `ch_x` under another name. `GET /v1/refunds/{id}` is acme's as well.
"""

from __future__ import annotations

import re

from proxy.sandbox.answer import Answer, card_declined, error_answer, json_answer
from proxy.sandbox.bank import Bank
from proxy.sandbox.body import BadBody, Tree
from proxy.sandbox.charge import Charge, Dialect, Status, Terms
from proxy.sandbox.dialects.acme import refund_json, searched, settle_url
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

METHOD_DEFAULT = "pm_card_visa"
SEARCH_CLAUSE = re.compile(r"""\s*metadata\[(['"])(?P<name>[^'"]*)\1\]\s*:\s*(['"])(?P<value>[^'"]*)\3\s*""")

# The bank's word -> Stripe's. A decline leaves the intent waiting for another method.
STATUSES = {
    Status.CREATED: "requires_confirmation",
    Status.PROCESSING: "processing",
    Status.REQUIRES_ACTION: "requires_action",
    Status.AUTHORIZED: "requires_capture",
    Status.SUCCEEDED: "succeeded",
    Status.FAILED: "requires_payment_method",
    Status.VOIDED: "canceled",
    Status.REVERSED: "canceled",  # Stripe has no word for it
}
# The bank's refusals that Stripe words for an intent; the others keep their code.
INTENT_STATE = frozenset(
    {"charge_already_paid", "charge_already_captured", "charge_already_voided", "charge_not_authorized"}
)


@refusing
def in_stripe_words(refused: Refused) -> Answer:
    code = "payment_intent_unexpected_state" if refused.code in INTENT_STATE else refused.code
    return error_answer(400, "invalid_request_error", refused.message, code=code)


# -- acts -------------------------------------------------------------------------------------------------------------


@in_stripe_words
def create_intent(bank: Bank, request: Request, names: Names) -> Answer:
    tree = form_of(request)
    terms = Terms(
        whole_number(tree, "amount"),
        currency_from(tree.get("currency")).lower(),
        text(tree, "payment_method") or METHOD_DEFAULT,
        text(tree, "capture_method") != "manual",
        metadata_from(tree.get("metadata")),
        Dialect.STRIPE,
        request.headers.get("stripe-account"),
    )
    charge = bank.open(terms, request.key)
    if text(tree, "confirm") != "true":
        return json_answer(200, intent_json(charge, request))
    bank.pay(charge, request.key)
    return paid_answer(charge, request)


@in_stripe_words
def confirm_intent(bank: Bank, request: Request, names: Names) -> Answer:
    charge = bank.charge(names["intent"])
    bank.pay(charge, request.key, text(form_of(request), "payment_method"))
    return paid_answer(charge, request)


@in_stripe_words
def capture_intent(bank: Bank, request: Request, names: Names) -> Answer:
    charge = bank.charge(names["intent"])
    bank.capture(charge, request.key, optional_number(form_of(request), "amount_to_capture"))
    return json_answer(200, intent_json(charge, request))


@in_stripe_words
def cancel_intent(bank: Bank, request: Request, names: Names) -> Answer:
    charge = bank.charge(names["intent"])
    bank.void(charge, request.key)
    return json_answer(200, intent_json(charge, request))


@in_stripe_words
def read_intent(bank: Bank, request: Request, names: Names) -> Answer:
    return json_answer(200, intent_json(bank.charge(names["intent"]), request))


@in_stripe_words
def search_intents(bank: Bank, request: Request, names: Names) -> Answer:
    clauses = [SEARCH_CLAUSE.fullmatch(clause) for clause in request.query.get("query", "").split(" AND ")]
    pairs = [(clause["name"], clause["value"]) for clause in clauses if clause is not None]
    if len(pairs) != len(clauses):
        raise Invalid("query", "the sandbox searches for metadata['name']:'value', joined by AND")
    page, has_more = page_of(bank.search(pairs), lambda charge: charge.intent_id, request.query)
    data = [intent_json(charge, request) for charge in page]
    more = {"has_more": has_more, "next_page": None, "url": "/v1/payment_intents/search"}
    return json_answer(200, {"object": "search_result", "data": data, **more})


@in_stripe_words
def create_refund(bank: Bank, request: Request, names: Names) -> Answer:
    tree = form_of(request)
    reference = text(tree, "payment_intent") or text(tree, "charge")
    if reference is None:
        raise Invalid("payment_intent", "a refund names its payment_intent or charge", "parameter_missing")
    amount = optional_number(tree, "amount")
    refund = bank.refund(bank.charge(reference), request.key, amount, metadata_from(tree.get("metadata")))
    return json_answer(200, refund_json(refund))


@in_stripe_words
def list_refunds(bank: Bank, request: Request, names: Names) -> Answer:
    """Of one payment, or of all; `order`, `paywitness` and `key` search as acme's lists do."""
    query = request.query
    found = bank.search_refunds(searched(query), query.get("key"), query.get("payment_intent") or query.get("charge"))
    page, has_more = page_of(found, lambda refund: refund.id, query)
    data = [refund_json(refund) for refund in page]
    return json_answer(200, {"object": "list", "data": data, "has_more": has_more, "url": "/v1/refunds"})


# -- words ------------------------------------------------------------------------------------------------------------


def form_of(request: Request) -> Tree:
    if request.body and "json" in request.headers.get("content-type", ""):
        raise BadBody("the body is a form here, not JSON")
    return request.tree


def text(tree: Tree, name: str) -> str | None:
    value = tree.get(name)
    if value is not None and not isinstance(value, str):
        raise Invalid(name, f"{name} is a single value")
    return value or None


def whole_number(tree: Tree, name: str) -> int:
    value = text(tree, name)
    number = int(value) if value is not None and value.isascii() and value.isdigit() and len(value) <= 15 else value
    return amount_from(number, name)


def optional_number(tree: Tree, name: str) -> int | None:
    return None if text(tree, name) is None else whole_number(tree, name)


def paid_answer(charge: Charge, request: Request) -> Answer:
    intent = intent_json(charge, request)
    if charge.status is not Status.FAILED:
        return json_answer(200, intent)
    if charge.quiet_failure:
        return json_answer(200, intent, failed=True)
    return card_declined(charge.failure_code or "generic_decline", charge=charge.id, payment_intent=intent)


def intent_json(charge: Charge, request: Request) -> dict[str, object]:
    terms = charge.terms
    body: dict[str, object] = {
        "id": charge.intent_id,
        "object": "payment_intent",
        "amount": terms.amount,
        "amount_capturable": terms.amount if charge.status is Status.AUTHORIZED else 0,
        "amount_received": charge.amount_captured,
        "capture_method": "automatic" if terms.capture else "manual",
        "client_secret": f"{charge.intent_id}_secret",
        "created": int(charge.created_at),
        "currency": terms.currency.lower(),
        "last_payment_error": None,
        "latest_charge": None if charge.status is Status.CREATED else charge.id,
        "livemode": False,
        "metadata": {name: str(value) for name, value in terms.metadata.items()},
        "next_action": None,
        "payment_method": None if charge.status is Status.FAILED else charge.source,
        "status": STATUSES[charge.status],
    }
    if charge.status is Status.FAILED:
        decline = {"type": "card_error", "code": "card_declined", "decline_code": charge.failure_code}
        body["last_payment_error"] = {**decline, "message": "The card was declined."}
    if charge.status is Status.REQUIRES_ACTION:
        redirect = {"url": settle_url(charge, request), "return_url": None}
        body["next_action"] = {"type": "redirect_to_url", "redirect_to_url": redirect}
    return body


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/payment_intents", create_intent),
    Route("POST", "/v1/payment_intents/{intent}/confirm", confirm_intent),
    Route("POST", "/v1/payment_intents/{intent}/capture", capture_intent),
    Route("POST", "/v1/payment_intents/{intent}/cancel", cancel_intent),
    Route("GET", "/v1/payment_intents/search", search_intents),
    Route("GET", "/v1/payment_intents/{intent}", read_intent),
    Route("POST", "/v1/refunds", create_refund),
    Route("GET", "/v1/refunds", list_refunds),
)
