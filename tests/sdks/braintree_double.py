"""Braintree's double: sales, refunds and voids in XML, the search by order, and the account's keys where they are on.

Without a key it executes whatever comes: its duplicate check is a heuristic, and is left out to be stricter than it is.
"""

from __future__ import annotations

import warnings
from typing import Any

from tests.sdks.double import CONFLICT, Double, Effect, Reply, Request

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # the package warns of itself when it is imported
    from braintree.util.xml_util import XmlUtil

MADE_AT = '<created-at type="datetime">2026-11-16T11:30:00Z</created-at>'
DECLINED = "fake-processor-declined-visa-nonce"
KEY_CONFLICT = "915232"  # ApiRequestKeyCanBeReusedOnlyWithTheSameRequest


class BraintreeDouble(Double):
    provider = "braintree"
    content_type = "application/xml; charset=utf-8"

    def __init__(self) -> None:
        super().__init__()
        self.transactions: dict[str, dict[str, Any]] = {}

    def order_of(self, request: Request) -> str:
        """A search names orders too, and is none of them."""
        if request.path.endswith(("/transactions", "/refund", "/void")):
            return str(
                _asked(request).get("order_id") or self.transactions.get(_id_in(request), {}).get("order-id", "")
            )
        return ""

    def key_of(self, request: Request) -> str:
        return str(_asked(request).get("api_request_key") or "")

    def error(self, status: int) -> Reply:
        if status != CONFLICT:
            return Reply(status, b"")
        error = f"<error><attribute>base</attribute><code>{KEY_CONFLICT}</code><message>key</message></error>"
        errors = (
            f'<errors><errors type="array"/><transaction><errors type="array">{error}</errors></transaction></errors>'
        )
        return Reply(422, f"<api-error-response>{errors}<message>key</message></api-error-response>".encode())

    def execute(self, request: Request) -> Reply:
        if request.path.endswith("/advanced_search"):
            return self.search(request)
        asked = _asked(request)
        if request.path.endswith("/refund"):
            paid = self.transactions[_id_in(request)]
            asked = {"type": "credit", "amount": asked.get("amount") or paid["amount"], "order_id": paid["order-id"]}
        if request.path.endswith("/void"):
            return self.void(self.transactions[_id_in(request)])
        made = {
            "id": self.new_id("bt"),
            "status": "submitted_for_settlement",
            "type": asked["type"],
            "amount": asked["amount"],
            "order-id": asked["order_id"],
        }
        self.transactions[made["id"]] = made
        if asked.get("payment_method_nonce") == DECLINED:
            made |= {"status": "processor_declined", "processor-response-code": "2001"}
            made |= {"processor-response-text": "Insufficient Funds", "processor-response-type": "soft_declined"}
            errors = '<errors><errors type="array"/></errors><message>Insufficient Funds</message>'
            return Reply(422, f"<api-error-response>{errors}{_written(made)}</api-error-response>".encode())
        if request.path.endswith("/refund"):
            paid["refunds"] = (*paid.get("refunds", ()), made["id"])
        kind = "payment" if asked["type"] == "sale" else "refund"
        self.ledger.append(Effect(made["order-id"], made["amount"], kind, self.key_of(request)))
        return Reply(201, _written(made).encode())

    def void(self, made: dict[str, Any]) -> Reply:
        made["status"] = "voided"
        self.ledger.append(Effect(made["order-id"], made["amount"], "void"))
        return Reply(200, _written(made).encode())

    def search(self, request: Request) -> Reply:
        sought = XmlUtil.dict_from_xml(request.body)["search"]["order_id"]["is"]
        found = [_written(made) for made in self.transactions.values() if made["order-id"] == sought]
        size = f'<page-size type="integer">50</page-size><total-items type="integer">{len(found)}</total-items>'
        page = f'<credit-card-transactions type="collection">{size}{"".join(found)}</credit-card-transactions>'
        return Reply(200, page.encode())

    def read(self, request: Request) -> Reply:
        made = self.transactions.get(_id_in(request, last=True))
        return Reply(200, _written(made).encode()) if made else self.error(404)


def _asked(request: Request) -> dict[str, Any]:
    tree = XmlUtil.dict_from_xml(request.body) if request.body else {}
    return tree.get("transaction") or {}


def _id_in(request: Request, *, last: bool = False) -> str:
    """/merchants/shop/transactions/bt000001/refund"""
    return request.path.split("/")[-1 if last else -2]


def _written(made: dict[str, Any]) -> str:
    fields = "".join(f"<{name}>{value}</{name}>" for name, value in made.items() if name != "refunds")
    refunds = "".join(f"<item>{refund}</item>" for refund in made.get("refunds", ()))
    known = f'<currency-iso-code>EUR</currency-iso-code><refund-ids type="array">{refunds}</refund-ids>'
    return f'<transaction>{fields}{known}{MADE_AT}<customer-id nil="true"/></transaction>'
