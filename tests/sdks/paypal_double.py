"""PayPal's double: orders that are paid in the call that makes them, refunds of captures, and its tokens.

A repeated PayPal-Request-Id shows how the order stands now, with a 200; a 5xx is never stored.
"""

from __future__ import annotations

import dataclasses

from tests.sdks.double import CONFLICT, Double, Effect, Reply, Request

ERRORS = {
    404: ("RESOURCE_NOT_FOUND", "The specified resource does not exist.", "INVALID_RESOURCE_ID"),
    429: ("RATE_LIMIT_REACHED", "Too many requests.", "RATE_LIMIT_REACHED"),
    500: ("INTERNAL_SERVER_ERROR", "An internal server error has occurred.", "INTERNAL_SERVICE_ERROR"),
    503: ("SERVICE_UNAVAILABLE", "Service Unavailable.", "SERVICE_UNAVAILABLE"),
    422: ("UNPROCESSABLE_ENTITY", "The requested action could not be performed.", "INSTRUMENT_DECLINED"),
    CONFLICT: ("DUPLICATE_REQUEST_ID", "The value of PayPal-Request-Id was already used.", "DUPLICATE_REQUEST_ID"),
}


class PaypalDouble(Double):
    provider = "paypal"

    def __init__(self) -> None:
        super().__init__()
        self.orders: dict[str, dict] = {}

    def order_of(self, request: Request) -> str:
        if not request.path.startswith("/v2"):
            return ""
        units = request.json.get("purchase_units")
        return units[0]["invoice_id"] if units else request.json.get("invoice_id", "")

    def key_of(self, request: Request) -> str:
        return request.headers.get("PayPal-Request-Id", "")

    def error(self, status: int) -> Reply:
        name, message, issue = ERRORS[status]
        details = [{"issue": issue, "description": message}]
        return Reply(status or 400, {"name": name, "message": message, "debug_id": "d1", "details": details})

    def remembers(self, done: Reply | None, shown: Reply) -> Reply | None:
        return done  # how it stands, whatever was shown of it

    def replayed(self, reply: Reply) -> Reply:
        return dataclasses.replace(reply, status=200) if reply.status == 201 else reply

    def execute(self, request: Request) -> Reply:
        if request.path == "/v1/oauth2/token":
            return Reply(200, {"access_token": self.new_id("A21"), "token_type": "Bearer", "expires_in": 32400})
        assert request.headers["Authorization"].startswith("Bearer A21"), request
        order = self.order_of(request)
        if request.path.endswith("/refund"):
            amount = request.json["amount"]
            self.ledger.append(Effect(order, amount["value"], "refund", self.key_of(request)))
            return Reply(201, {"id": self.new_id("REF"), "status": "COMPLETED", "amount": amount})
        assert request.path == "/v2/checkout/orders", request
        unit = request.json["purchase_units"][0]
        if request.json["payment_source"]["card"]["vault_id"] == "empty":
            return self.error(422)
        capture = {"id": self.new_id("CAP"), "status": "COMPLETED", "amount": unit["amount"]}
        made = {"id": self.new_id("ORD"), "status": "COMPLETED", "intent": request.json["intent"]}
        self.orders[made["id"]] = {**made, "purchase_units": [{**unit, "payments": {"captures": [capture]}}]}
        self.ledger.append(Effect(order, unit["amount"]["value"], "payment", self.key_of(request)))
        whole = "return=representation" in request.headers.get("Prefer", "")
        return Reply(201, self.orders[made["id"]] if whole else {"id": made["id"], "status": "COMPLETED", "links": []})

    def read(self, request: Request) -> Reply:
        one = self.orders.get(request.path.rpartition("/")[2])
        return Reply(200, one) if one else self.error(404)
