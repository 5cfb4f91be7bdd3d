"""Checkout.com's double: payments and their refunds. It stores no error under a key: a repeat of one is executed."""

from __future__ import annotations

from tests.sdks.double import CONFLICT, Double, Effect, Reply, Request

ERRORS = {
    404: ("not_found", []),
    429: ("too_many_requests", []),
    500: ("internal_error", []),
    503: ("service_unavailable", []),
    CONFLICT: ("request_invalid", ["idempotency_key_reused"]),
}


class CheckoutDouble(Double):
    provider = "checkout"

    def __init__(self) -> None:
        super().__init__()
        self.payments: dict[str, dict] = {}

    def order_of(self, request: Request) -> str:
        return request.json.get("reference", "")

    def key_of(self, request: Request) -> str:
        return request.headers.get("Cko-Idempotency-Key", "")

    def error(self, status: int) -> Reply:
        kind, codes = ERRORS[status]
        return Reply(status or 422, {"request_id": self.new_id("req_"), "error_type": kind, "error_codes": codes})

    def remembers(self, done: Reply | None, shown: Reply) -> Reply | None:
        return shown if shown.status < 300 else None

    def execute(self, request: Request) -> Reply:
        order, told = self.order_of(request), request.json
        if request.path.endswith("/refunds"):
            self.ledger.append(Effect(order, told["amount"], "refund", self.key_of(request)))
            return Reply(202, {"action_id": self.new_id("act_"), "reference": order})
        assert request.path == "/payments", request
        payment: dict = {"id": self.new_id("pay_"), "action_id": self.new_id("act_"), "reference": order}
        payment |= {"amount": told["amount"], "currency": told["currency"], "metadata": told.get("metadata", {})}
        if told["source"]["id"] == "src_empty":
            payment |= {"approved": False, "status": "Declined", "response_code": "20051"}
        else:
            payment |= {"approved": True, "status": "Authorized", "response_code": "10000"}
            self.ledger.append(Effect(order, told["amount"], "payment", self.key_of(request)))
        self.payments[payment["id"]] = payment
        return Reply(201, payment)

    def read(self, request: Request) -> Reply:
        if request.path == "/payments":
            found = [one for one in self.payments.values() if one["reference"] == request.query["reference"]]
            return Reply(200, {"limit": 100, "skip": 0, "total_count": len(found), "data": found})
        one = self.payments.get(request.path.rpartition("/")[2])
        return Reply(200, one) if one else self.error(404)
