"""Razorpay's double: recurring payments and captures, which have no key, and refunds, which have one of their own."""

from __future__ import annotations

from tests.sdks.double import CONFLICT, Double, Effect, Reply, Request

ERRORS = {
    404: ("BAD_REQUEST_ERROR", "The id provided does not exist"),
    429: ("BAD_REQUEST_ERROR", "Too many requests"),
    500: ("SERVER_ERROR", "We are facing some trouble completing your request"),
    503: ("SERVER_ERROR", "We are facing some trouble completing your request at the moment"),
    CONFLICT: ("BAD_REQUEST_ERROR", "Different request with the same idempotency key has already been processed."),
}


def refused(description: str, source: str, reason: str) -> Reply:
    error = {"code": "BAD_REQUEST_ERROR", "description": description, "source": source, "reason": reason}
    return Reply(400, {"error": {**error, "step": "payment_authorization", "metadata": {}}})


class RazorpayDouble(Double):
    provider = "razorpay"

    def __init__(self) -> None:
        super().__init__()
        self.payments: dict[str, dict] = {}
        self.refunds: dict[str, dict] = {}

    def order_of(self, request: Request) -> str:
        """Of a capture or a refund: the payment's id names it."""
        return request.json.get("order_id") or request.path.split("/")[3].removeprefix("pay_")

    def key_of(self, request: Request) -> str:
        return request.headers.get("X-Refund-Idempotency", "") if request.path.endswith("/refund") else ""

    def error(self, status: int) -> Reply:
        code, description = ERRORS[status]
        return Reply(400 if status == 404 else status or 409, {"error": {"code": code, "description": description}})

    def execute(self, request: Request) -> Reply:
        order, told = self.order_of(request), request.json
        if request.path.endswith("/refund"):
            refund = {"id": self.new_id("rfnd_"), "entity": "refund", "status": "processed", "currency": "INR"}
            refund |= {
                "amount": told["amount"],
                "notes": told.get("notes", []),
                "payment_id": request.path.split("/")[3],
            }
            self.refunds[refund["id"]] = refund
            self.ledger.append(Effect(order, told["amount"], "refund", self.key_of(request)))
            return Reply(200, refund)
        payment = {"entity": "payment", "amount": told["amount"], "currency": told["currency"]}
        if request.path.endswith("/capture"):
            payment |= {"id": request.path.split("/")[3], "status": "captured", "captured": True}
            if payment["id"] in self.payments:
                return refused("This payment has already been captured", "business", "input_validation_failed")
            self.payments[payment["id"]] = payment
            self.ledger.append(Effect(order, told["amount"], "capture"))
            return Reply(200, payment)
        assert request.path == "/v1/payments/create/recurring", request
        if told["token"] == "token_empty":
            return refused("The account has too little money", "customer", "insufficient_funds")
        payment |= {"id": self.new_id("pay_"), "status": "captured", "order_id": order, "notes": told.get("notes", [])}
        self.payments[payment["id"]] = payment
        self.ledger.append(Effect(order, told["amount"]))
        return Reply(200, {"razorpay_payment_id": payment["id"]})

    def read(self, request: Request) -> Reply:
        _, _, kind, name, *rest = request.path.split("/")
        if (kind, rest) == ("orders", ["payments"]):
            return collection([one for one in self.payments.values() if one.get("order_id") == name])
        if (kind, rest) == ("payments", ["refunds"]):
            return collection([one for one in self.refunds.values() if one["payment_id"] == name])
        one = (self.payments if kind == "payments" else self.refunds).get(name)
        return Reply(200, one) if one else self.error(404)


def collection(items: list[dict]) -> Reply:
    return Reply(200, {"entity": "collection", "count": len(items), "items": items})
