"""Square's double: payments and refunds under the key in their bodies. Lists filter by time and place, not by key."""

from __future__ import annotations

from tests.sdks.double import CONFLICT, Double, Effect, Reply, Request

ERRORS = {
    404: ("INVALID_REQUEST_ERROR", "NOT_FOUND"),
    429: ("RATE_LIMIT_ERROR", "RATE_LIMITED"),
    500: ("API_ERROR", "INTERNAL_SERVER_ERROR"),
    503: ("API_ERROR", "SERVICE_UNAVAILABLE"),
    CONFLICT: ("INVALID_REQUEST_ERROR", "IDEMPOTENCY_KEY_REUSED"),
}


class SquareDouble(Double):
    provider = "square"

    def __init__(self) -> None:
        super().__init__()
        self.payments: dict[str, dict] = {}

    def order_of(self, request: Request) -> str:
        return request.json.get("reference_id", request.json.get("reason", ""))

    def key_of(self, request: Request) -> str:
        if request.path == "/v2/payments/cancel":
            return ""  # it names a key, and has none
        return request.json.get("idempotency_key", "")

    def error(self, status: int) -> Reply:
        category, code = ERRORS[status]
        return Reply(status or 400, {"errors": [{"category": category, "code": code, "detail": f"It is {code}"}]})

    def execute(self, request: Request) -> Reply:
        order, told = self.order_of(request), request.json
        if request.path == "/v2/payments/cancel":  # by the key of a payment; says nothing of whether there was one
            return Reply(200, {})
        money = told["amount_money"]
        if request.path == "/v2/refunds":
            self.ledger.append(Effect(order, money["amount"], "refund", self.key_of(request)))
            refund = {"id": self.new_id("ref_"), "status": "PENDING", "payment_id": told["payment_id"]}
            return Reply(200, {"refund": {**refund, "amount_money": money}})
        assert request.path == "/v2/payments", request
        payment = {"id": self.new_id("pay_"), "reference_id": order, "location_id": told["location_id"]}
        payment |= {"amount_money": money, "status": "COMPLETED", "version_token": "v1"}
        self.payments[payment["id"]] = payment
        if told["source_id"] == "cnon:empty":
            payment["status"] = "FAILED"
            error = {"category": "PAYMENT_METHOD_ERROR", "code": "INSUFFICIENT_FUNDS", "detail": "Not enough funds"}
            return Reply(402, {"errors": [error], "payment": payment})
        self.ledger.append(Effect(order, money["amount"], "payment", self.key_of(request)))
        return Reply(200, {"payment": payment})

    def read(self, request: Request) -> Reply:
        if request.path == "/v2/payments":
            place = request.query.get("location_id")
            return Reply(200, {"payments": [one for one in self.payments.values() if one["location_id"] == place]})
        one = self.payments.get(request.path.rpartition("/")[2])
        return Reply(200, {"payment": one}) if one else self.error(404)
