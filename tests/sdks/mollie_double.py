"""Mollie's double: recurring payments, which move money at once, and their refunds. Lists are newest first."""

from __future__ import annotations

import dataclasses

from tests.sdks.double import CONFLICT, Double, Effect, Reply, Request

ERRORS = {
    404: ("Not Found", "No payment exists with this token"),
    429: ("Too Many Requests", "Too many requests in a short time"),
    500: ("Internal Server Error", "An internal server error occurred"),
    503: ("Service Unavailable", "The payment method's supplier cannot be reached"),
    CONFLICT: ("Bad Request", "The idempotency key was used with another request"),
}


class MollieDouble(Double):
    provider = "mollie"
    content_type = "application/hal+json"

    def __init__(self) -> None:
        super().__init__()
        self.payments: list[dict] = []
        self.refunds: list[dict] = []

    def order_of(self, request: Request) -> str:
        return request.json.get("metadata", {}).get("order_id", "")

    def error(self, status: int) -> Reply:
        title, detail = ERRORS[status]
        return Reply(status or 400, {"status": status or 400, "title": title, "detail": detail, "_links": {}})

    def replayed(self, reply: Reply) -> Reply:
        return dataclasses.replace(reply, headers={"Idempotent-Replayed": "true"})

    def execute(self, request: Request) -> Reply:
        order, told = self.order_of(request), request.json
        made = {"amount": told["amount"], "metadata": told["metadata"], "description": told["description"]}
        if request.path.endswith("/refunds"):
            refund = {"resource": "refund", "id": self.new_id("re_"), "status": "pending", **made}
            self.refunds.insert(0, refund)
            self.ledger.append(Effect(order, told["amount"]["value"], "refund", self.key_of(request)))
            return Reply(201, refund)
        assert request.path == "/v2/payments", request
        payment = {"resource": "payment", "id": self.new_id("tr_"), "sequenceType": "recurring", **made}
        self.payments.insert(0, payment)
        if told["mandateId"] == "mdt_empty":
            payment |= {"status": "failed", "details": {"failureReason": "insufficient_funds"}}
        else:
            payment |= {"status": "paid", "paidAt": "2026-11-16T12:00:00+00:00"}
            self.ledger.append(Effect(order, told["amount"]["value"], "payment", self.key_of(request)))
        return Reply(201, payment)

    def read(self, request: Request) -> Reply:
        name = request.path.rpartition("/")[2]
        if name in ("payments", "refunds"):
            found = (self.payments if name == "payments" else self.refunds)[: int(request.query.get("limit", 50))]
            return Reply(200, {"count": len(found), "_embedded": {name: found}, "_links": {"next": None}})
        one = next((one for one in self.payments if one["id"] == name), None)
        return Reply(200, one) if one else self.error(404)
