"""Stripe's dialect, as far as payments go: forms in, payment intents out. The unchanged stripe SDK works with it.

A payment intent `pi_x` is the bank's charge `ch_x` under another name. `GET /v1/refunds/{id}` is acme's route, too.
"""

from __future__ import annotations

import re

from paywitness_sandbox.bank.bank import Bank
from paywitness_sandbox.bank.objects import BankRefused, Charge, ChargeStatus, ChargeTerms, Dialect
from paywitness_sandbox.dialects.acme import metadata_filters, refund_json, refund_response, settle_url
from paywitness_sandbox.dialects.base import (
    InvalidField,
    PathNames,
    SandboxRoute,
    amount_from,
    currency_from,
    error_translator,
    metadata_from,
    page_of,
)
from paywitness_sandbox.messages import (
    InvalidBody,
    Request,
    SandboxResponse,
    Tree,
    card_declined,
    error_response,
    json_response,
)

METHOD_DEFAULT = "pm_card_visa"
SEARCH_CLAUSE = re.compile(r"""\s*metadata\[(['"])(?P<name>[^'"]*)\1\]\s*:\s*(['"])(?P<value>[^'"]*)\3\s*""")

# From the bank's status to Stripe's. A decline leaves the intent waiting for another method.
STATUSES = {
    ChargeStatus.CREATED: "requires_confirmation",
    ChargeStatus.PROCESSING: "processing",
    ChargeStatus.REQUIRES_ACTION: "requires_action",
    ChargeStatus.AUTHORIZED: "requires_capture",
    ChargeStatus.SUCCEEDED: "succeeded",
    ChargeStatus.FAILED: "requires_payment_method",
    ChargeStatus.VOIDED: "canceled",
    ChargeStatus.REVERSED: "canceled",  # Stripe has no such status
}
# The bank's refusals that have another code for an intent. The others keep their code.
INTENT_STATE = frozenset(
    {
        "charge_already_paid",
        "charge_already_captured",
        "charge_already_voided",
        "charge_not_authorized",
        "charge_requires_action",
    }
)


@error_translator
def stripe_errors(refused: BankRefused) -> SandboxResponse:
    code = "payment_intent_unexpected_state" if refused.code in INTENT_STATE else refused.code
    return error_response(400, "invalid_request_error", refused.message, code=code)


# -- writes -----------------------------------------------------------------------------------------------------------


@stripe_errors
def create_intent(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    tree = form_of(request)
    terms = ChargeTerms(
        whole_number(tree, "amount"),
        currency_from(tree.get("currency")).lower(),
        text(tree, "payment_method") or METHOD_DEFAULT,
        text(tree, "capture_method") != "manual",
        metadata_from(tree.get("metadata")),
        Dialect.STRIPE,
        request.account,
    )
    charge = bank.open(terms, request.key)
    if text(tree, "confirm") != "true":
        return json_response(200, intent_json(charge, request))
    bank.pay(charge, request.key)
    return paid_response(charge, request)


@stripe_errors
def update_intent(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    charge, tree = bank.charge(names["intent"]), form_of(request)
    metadata = metadata_from(tree.get("metadata"))
    amount, source = optional_number(tree, "amount"), text(tree, "payment_method")
    bank.update(charge, amount=amount, source=source, metadata=metadata)
    return json_response(200, intent_json(charge, request))


@stripe_errors
def confirm_intent(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    charge = bank.charge(names["intent"])
    bank.pay(charge, request.key, text(form_of(request), "payment_method"))
    return paid_response(charge, request)


@stripe_errors
def capture_intent(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    charge, tree = bank.charge(names["intent"]), form_of(request)
    final = text(tree, "final_capture") or "true"
    if final not in ("true", "false"):
        raise InvalidField("final_capture", "final_capture is true or false")
    bank.capture(charge, request.key, optional_number(tree, "amount_to_capture"), final=final == "true")
    return json_response(200, intent_json(charge, request))


@stripe_errors
def increment_intent(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    charge = bank.charge(names["intent"])
    bank.increment(charge, request.key, whole_number(form_of(request), "amount"))
    return json_response(200, intent_json(charge, request))


@stripe_errors
def cancel_intent(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    charge = bank.charge(names["intent"])
    bank.void(charge, request.key)
    return json_response(200, intent_json(charge, request))


@stripe_errors
def read_intent(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    return json_response(200, intent_json(bank.charge(names["intent"]), request))


@stripe_errors
def search_intents(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    clauses = [SEARCH_CLAUSE.fullmatch(clause) for clause in request.query.get("query", "").split(" AND ")]
    pairs = [(clause["name"], clause["value"]) for clause in clauses if clause is not None]
    if len(pairs) != len(clauses):
        raise InvalidField("query", "the sandbox searches for metadata['name']:'value', joined by AND")
    page, has_more = page_of(bank.search(pairs), lambda charge: charge.intent_id, request.query)
    data = [intent_json(charge, request) for charge in page]
    more = {"has_more": has_more, "next_page": None, "url": "/v1/payment_intents/search"}
    return json_response(200, {"object": "search_result", "data": data, **more})


@stripe_errors
def create_refund(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    tree = form_of(request)
    reference = text(tree, "payment_intent") or text(tree, "charge")
    if reference is None:
        raise InvalidField("payment_intent", "a refund names its payment_intent or charge", "parameter_missing")
    amount = optional_number(tree, "amount")
    refund = bank.refund(bank.charge(reference), request.key, amount, metadata_from(tree.get("metadata")))
    return refund_response(refund)


@stripe_errors
def list_refunds(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    """The refunds of one payment, or of all. `order`, `paywitness` and `key` search as in acme's lists."""
    query = request.query
    found = bank.search_refunds(
        metadata_filters(query), query.get("key"), query.get("payment_intent") or query.get("charge")
    )
    page, has_more = page_of(found, lambda refund: refund.id, query)
    data = [refund_json(refund) for refund in page]
    return json_response(200, {"object": "list", "data": data, "has_more": has_more, "url": "/v1/refunds"})


@stripe_errors
def read_account(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    """The account of the API key. The sandbox has only one account, so every key belongs to it."""
    return json_response(200, {"id": "acct_sandbox", "object": "account"})


# -- fields -----------------------------------------------------------------------------------------------------------


def form_of(request: Request) -> Tree:
    if request.body and "json" in request.headers.get("content-type", ""):
        raise InvalidBody("the body is a form here, not JSON")
    return request.tree


def text(tree: Tree, name: str) -> str | None:
    value = tree.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidField(name, f"{name} is a single value")
    return value or None


def whole_number(tree: Tree, name: str) -> int:
    value = text(tree, name)
    number = int(value) if value is not None and value.isascii() and value.isdigit() and len(value) <= 15 else value
    return amount_from(number, name)


def optional_number(tree: Tree, name: str) -> int | None:
    return None if text(tree, name) is None else whole_number(tree, name)


def paid_response(charge: Charge, request: Request) -> SandboxResponse:
    intent = intent_json(charge, request)
    if charge.status is not ChargeStatus.FAILED:
        return json_response(200, intent)
    if charge.failed_with_200:
        return json_response(200, intent, failed=True)
    return card_declined(charge.failure_code or "generic_decline", charge=charge.id, payment_intent=intent)


def intent_json(charge: Charge, request: Request) -> dict[str, object]:
    terms = charge.terms
    body: dict[str, object] = {
        "id": charge.intent_id,
        "object": "payment_intent",
        "amount": terms.amount,
        "amount_capturable": charge.amount_capturable,
        "amount_received": charge.amount_captured,
        "capture_method": "automatic" if terms.capture else "manual",
        "client_secret": f"{charge.intent_id}_secret",
        "created": int(charge.created_at),
        "currency": terms.currency.lower(),
        "last_payment_error": None,
        "latest_charge": None if charge.status is ChargeStatus.CREATED else charge.id,
        "livemode": False,
        "metadata": {name: str(value) for name, value in terms.metadata.items()},
        "next_action": None,
        "payment_method": None if charge.status is ChargeStatus.FAILED else charge.source,
        "status": STATUSES[charge.status],
    }
    if charge.status is ChargeStatus.FAILED:
        decline = {"type": "card_error", "code": "card_declined", "decline_code": charge.failure_code}
        body["last_payment_error"] = {**decline, "message": "The card was declined."}
    if charge.status is ChargeStatus.REQUIRES_ACTION:
        redirect = {"url": settle_url(charge, request), "return_url": None}
        body["next_action"] = {"type": "redirect_to_url", "redirect_to_url": redirect}
    return body


STRIPE_ROUTES: tuple[SandboxRoute, ...] = (
    SandboxRoute("POST", "/v1/payment_intents", create_intent),
    SandboxRoute("POST", "/v1/payment_intents/{intent}", update_intent),
    SandboxRoute("POST", "/v1/payment_intents/{intent}/confirm", confirm_intent),
    SandboxRoute("POST", "/v1/payment_intents/{intent}/increment_authorization", increment_intent),
    SandboxRoute("POST", "/v1/payment_intents/{intent}/capture", capture_intent),
    SandboxRoute("POST", "/v1/payment_intents/{intent}/cancel", cancel_intent),
    SandboxRoute("GET", "/v1/payment_intents/search", search_intents),
    SandboxRoute("GET", "/v1/payment_intents/{intent}", read_intent),
    SandboxRoute("GET", "/v1/account", read_account),
    SandboxRoute("POST", "/v1/refunds", create_refund),
    SandboxRoute("GET", "/v1/refunds", list_refunds),
)
