"""Acme's payouts: money sent to somebody, and how to look it up."""

from __future__ import annotations

from proxy.sandbox.answer import Answer, error_answer, json_answer
from proxy.sandbox.bank import Bank
from proxy.sandbox.dialects.acme import ACCOUNT_HEADER, in_acme_words, searched
from proxy.sandbox.dialects.route import Invalid, Names, Route, amount_from, currency_from, metadata_from, page_of
from proxy.sandbox.payout import Payout, PayoutStatus, PayoutTerms
from proxy.sandbox.register import labels_of
from proxy.sandbox.request import Request

DESTINATION_DEFAULT = "dest_ok"


@in_acme_words
def create_payout(bank: Bank, request: Request, names: Names) -> Answer:
    payout = bank.payouts.send(terms_from(request), request.key)
    if payout.status is PayoutStatus.FAILED and not payout.quiet_failure:
        code = payout.failure_code or ""
        message = f"The payout was refused: {code.replace('_', ' ')}."
        return error_answer(
            402, "payout_error", message, code="payout_refused", decline_code=payout.failure_code, payout=payout.id
        )
    return json_answer(200, payout_json(payout), failed=payout.status is PayoutStatus.FAILED)


@in_acme_words
def read_payout(bank: Bank, request: Request, names: Names) -> Answer:
    return json_answer(200, payout_json(bank.payouts.named(names["payout"])))


@in_acme_words
def list_payouts(bank: Bank, request: Request, names: Names) -> Answer:
    query = request.query
    labels = labels_of(searched(query), key=query.get("key"), reference=query.get("reference"))
    page, has_more = page_of(bank.payouts.search(labels), lambda payout: payout.id, query)
    return json_answer(200, {"data": [payout_json(payout) for payout in page], "has_more": has_more})


def terms_from(request: Request) -> PayoutTerms:
    tree = request.tree
    destination, reference = tree.get("destination", DESTINATION_DEFAULT), tree.get("reference")
    if not isinstance(destination, str) or not destination:
        raise Invalid("destination", "destination is a token or an account number")
    if reference is not None and not isinstance(reference, str):
        raise Invalid("reference", "reference is a text")
    return PayoutTerms(
        amount_from(tree.get("amount")),
        currency_from(tree.get("currency")),
        destination,
        reference,
        metadata_from(tree.get("metadata")),
        request.headers.get(ACCOUNT_HEADER),
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


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/payouts", create_payout),
    Route("GET", "/v1/payouts", list_payouts),
    Route("GET", "/v1/payouts/{payout}", read_payout),
)
