"""Acme's dialect: JSON; charges, payable orders, refunds, disputes and payouts. The simplest provider possible."""

from __future__ import annotations

from paywitness_sandbox.bank.bank import Bank
from paywitness_sandbox.bank.objects import (
    BankRefused,
    Capture,
    Charge,
    ChargeStatus,
    ChargeTerms,
    Dialect,
    Dispute,
    Payout,
    PayoutStatus,
    PayoutTerms,
    Refund,
    RefundStatus,
    labels_of,
)
from paywitness_sandbox.dialects.base import (
    InvalidField,
    PathNames,
    SandboxRoute,
    amount_from,
    currency_from,
    error_translator,
    flag_from,
    metadata_from,
    page_of,
)
from paywitness_sandbox.messages import Request, SandboxResponse, Tree, card_declined, error_response, json_response

SEARCHABLE = {"order": "order_id", "paywitness": "paywitness"}


@error_translator
def acme_errors(refused: BankRefused) -> SandboxResponse:
    status_code = 409 if refused.conflict else 400
    return error_response(status_code, "invalid_request_error", refused.message, code=refused.code)


# -- writes -----------------------------------------------------------------------------------------------------------


@acme_errors
def create_charge(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    terms = charge_terms_from(request, names.get("order"))
    confirm = flag_from(request.tree.get("confirm", True), "confirm")
    charge = bank.open(terms, request.key)
    if not confirm:
        return json_response(200, charge_json(charge, request))
    bank.pay(charge, request.key)
    return paid_response(charge, request)


@acme_errors
def confirm_charge(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    charge = bank.charge(names["charge"])
    bank.pay(charge, request.key, source_from(request.tree.get("source", charge.source)))
    return paid_response(charge, request)


def paid_response(charge: Charge, request: Request) -> SandboxResponse:
    if charge.status is ChargeStatus.FAILED and not charge.failed_with_200:
        return card_declined(charge.failure_code or "generic_decline", charge=charge.id)
    return json_response(200, charge_json(charge, request), failed=charge.status is ChargeStatus.FAILED)


@acme_errors
def increment(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    charge = bank.charge(names["charge"])
    bank.increment(charge, request.key, amount_from(request.tree.get("amount")))
    return json_response(200, charge_json(charge, request))


@acme_errors
def capture(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    charge, tree = bank.charge(names["charge"]), request.tree
    final, metadata = flag_from(tree.get("final", True), "final"), metadata_from(tree.get("metadata"))
    captured = bank.capture(charge, request.key, optional_amount(tree), final=final, metadata=metadata)
    return json_response(200, {**charge_json(charge, request), "capture": capture_json(captured)})


@acme_errors
def void(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    charge = bank.charge(names["charge"])
    bank.void(charge, request.key)
    return json_response(200, charge_json(charge, request))


@acme_errors
def reverse(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    charge = bank.charge(names["charge"])
    refund = bank.void_or_refund(charge, request.key, metadata_from(request.tree.get("metadata")))
    shown = None if refund is None else refund_json(refund)
    failed = refund is not None and refund.status is RefundStatus.FAILED
    return json_response(200, {**charge_json(charge, request), "refund": shown}, failed=failed)


@acme_errors
def create_refund(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    charge = bank.charge(names["charge"])
    metadata = metadata_from(request.tree.get("metadata"))
    return refund_response(bank.refund(charge, request.key, optional_amount(request.tree), metadata))


def refund_response(refund: Refund) -> SandboxResponse:
    return json_response(200, refund_json(refund), failed=refund.status is RefundStatus.FAILED)


@acme_errors
def read_charge(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    return json_response(200, charge_json(bank.charge(names["charge"]), request))


@acme_errors
def list_charges(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    query = request.query
    found = [
        charge
        for charge in bank.search(metadata_filters(query), query.get("key"))
        if charge.status is not ChargeStatus.CREATED or charge.terms.dialect is Dialect.ACME
    ]
    page, has_more = page_of(found, lambda charge: charge.id, query)
    return json_response(200, {"data": [charge_json(charge, request) for charge in page], "has_more": has_more})


@acme_errors
def list_captures(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    query = request.query
    found = bank.search_captures(metadata_filters(query), query.get("key"), charge=names["charge"])
    page, has_more = page_of(found, lambda capture: capture.id, query)
    return json_response(200, {"data": [capture_json(capture) for capture in page], "has_more": has_more})


@acme_errors
def list_refunds(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    query = request.query
    found = bank.search_refunds(metadata_filters(query), query.get("key"), names["charge"])
    page, has_more = page_of(found, lambda refund: refund.id, query)
    return json_response(200, {"data": [refund_json(refund) for refund in page], "has_more": has_more})


@acme_errors
def read_refund(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    return json_response(200, refund_json(bank.refund_by_id(names["refund"])))


@acme_errors
def list_disputes(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    query = request.query
    found = bank.search_disputes(metadata_filters(query), query.get("payment_intent") or query.get("charge"))
    page, has_more = page_of(found, lambda dispute: dispute.id, query)
    data = [dispute_json(dispute) for dispute in page]
    return json_response(200, {"object": "list", "data": data, "has_more": has_more, "url": "/v1/disputes"})


@acme_errors
def read_dispute(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    return json_response(200, dispute_json(bank.dispute(names["dispute"])))


# -- fields -----------------------------------------------------------------------------------------------------------


def metadata_filters(query: PathNames) -> list[tuple[str, str]]:
    """The metadata filters of a list: `?order=A-1&paywitness=op-1`."""
    return [(SEARCHABLE[name], value) for name, value in query.items() if name in SEARCHABLE]


def charge_terms_from(request: Request, order: str | None) -> ChargeTerms:
    tree = request.tree
    capture = flag_from(tree.get("capture", True), "capture")
    source = source_from(tree.get("source", "tok_ok"))
    metadata = dict(metadata_from(tree.get("metadata")))
    if order is not None:
        metadata["order_id"] = order
    return ChargeTerms(
        amount_from(tree.get("amount")),
        currency_from(tree.get("currency")),
        source,
        capture,
        metadata,
        account=request.account,
    )


def source_from(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidField("source", "source is a token")
    return value


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
        "amount_capturable": charge.amount_capturable,
        "amount_voided": charge.amount_voided,
        "amount_disputed": charge.amount_disputed,
        "capture_before": charge.capture_before,
        "source": charge.source,
        "order": terms.order,
        "metadata": terms.metadata,
        "failure_code": charge.failure_code,
        "idempotency_key": charge.key,
        "created": int(charge.created_at),
    }
    if terms.dialect is Dialect.STRIPE:
        body["payment_intent"] = charge.intent_id
    if charge.status is ChargeStatus.REQUIRES_ACTION:
        body["next_action"] = {"type": "redirect", "redirect_url": settle_url(charge, request)}
    return body


def settle_url(charge: Charge, request: Request) -> str:
    """The address for a person who plays the customer: a POST completes the authentication."""
    return f"http://{request.headers.get('host', 'localhost')}/_sandbox/charges/{charge.id}/settle"


def refund_json(refund: Refund) -> dict[str, object]:
    """Both dialects read refunds by the same path, so one object serves both."""
    return {
        "id": refund.id,
        "object": "refund",
        "charge": refund.charge.id,
        "payment_intent": refund.charge.intent_id,
        "amount": refund.amount,
        "currency": refund.charge.terms.currency,
        "status": refund.status,
        "failure_reason": refund.failure_reason,
        "metadata": refund.metadata,
        "idempotency_key": refund.key,
        "created": int(refund.created_at),
    }


def capture_json(capture: Capture) -> dict[str, object]:
    return {
        "id": capture.id,
        "object": "capture",
        "charge": capture.charge.id,
        "amount": capture.amount,
        "currency": capture.charge.terms.currency,
        "final": capture.final,
        "metadata": capture.metadata,
        "idempotency_key": capture.key,
        "created": int(capture.created_at),
    }


def dispute_json(dispute: Dispute) -> dict[str, object]:
    """One object for both dialects, like a refund."""
    return {
        "id": dispute.id,
        "object": "dispute",
        "charge": dispute.charge.id,
        "payment_intent": dispute.charge.intent_id,
        "amount": dispute.amount,
        "currency": dispute.charge.terms.currency,
        "status": dispute.status,
        "metadata": {},
        "created": int(dispute.created_at),
    }


CHARGE_ROUTES: tuple[SandboxRoute, ...] = (
    SandboxRoute("POST", "/v1/charges", create_charge),
    SandboxRoute("POST", "/v1/orders/{order}/pay", create_charge),
    SandboxRoute("POST", "/v1/charges/{charge}/confirm", confirm_charge),
    SandboxRoute("POST", "/v1/charges/{charge}/increment", increment),
    SandboxRoute("POST", "/v1/charges/{charge}/capture", capture),
    SandboxRoute("POST", "/v1/charges/{charge}/void", void),
    SandboxRoute("POST", "/v1/charges/{charge}/reverse", reverse),
    SandboxRoute("POST", "/v1/charges/{charge}/refunds", create_refund),
    SandboxRoute("GET", "/v1/charges", list_charges),
    SandboxRoute("GET", "/v1/charges/{charge}", read_charge),
    SandboxRoute("GET", "/v1/charges/{charge}/captures", list_captures),
    SandboxRoute("GET", "/v1/charges/{charge}/refunds", list_refunds),
    SandboxRoute("GET", "/v1/refunds/{refund}", read_refund),
    SandboxRoute("GET", "/v1/disputes", list_disputes),
    SandboxRoute("GET", "/v1/disputes/{dispute}", read_dispute),
)


# --- Payouts

DESTINATION_DEFAULT = "dest_ok"


@acme_errors
def create_payout(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    payout = bank.payouts.send(payout_terms_from(request), request.key)
    if payout.status is PayoutStatus.FAILED and not payout.failed_with_200:
        code = payout.failure_code or ""
        message = f"The payout was refused: {code.replace('_', ' ')}."
        return error_response(
            402, "payout_error", message, code="payout_refused", decline_code=payout.failure_code, payout=payout.id
        )
    return json_response(200, payout_json(payout), failed=payout.status is PayoutStatus.FAILED)


@acme_errors
def read_payout(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    return json_response(200, payout_json(bank.payouts.get(names["payout"])))


@acme_errors
def list_payouts(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    query = request.query
    labels = labels_of(metadata_filters(query), key=query.get("key"), reference=query.get("reference"))
    page, has_more = page_of(bank.payouts.search(labels), lambda payout: payout.id, query)
    return json_response(200, {"data": [payout_json(payout) for payout in page], "has_more": has_more})


def payout_terms_from(request: Request) -> PayoutTerms:
    tree = request.tree
    destination, reference = tree.get("destination", DESTINATION_DEFAULT), tree.get("reference")
    if not isinstance(destination, str) or not destination:
        raise InvalidField("destination", "destination is a token or an account number")
    if reference is not None and not isinstance(reference, str):
        raise InvalidField("reference", "reference is a text")
    return PayoutTerms(
        amount_from(tree.get("amount")),
        currency_from(tree.get("currency")),
        destination,
        reference,
        metadata_from(tree.get("metadata")),
        request.account,
    )


def payout_json(payout: Payout) -> dict[str, object]:
    terms = payout.terms
    return {
        "id": payout.id,
        "object": "payout",
        "status": payout.status,
        "amount": terms.amount,
        "currency": terms.currency,
        "destination": terms.destination,
        "reference": terms.reference,
        "metadata": terms.metadata,
        "failure_code": payout.failure_code,
        "idempotency_key": payout.key,
        "created": int(payout.created_at),
    }


PAYOUT_ROUTES: tuple[SandboxRoute, ...] = (
    SandboxRoute("POST", "/v1/payouts", create_payout),
    SandboxRoute("GET", "/v1/payouts", list_payouts),
    SandboxRoute("GET", "/v1/payouts/{payout}", read_payout),
)
