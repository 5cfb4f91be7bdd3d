"""Adyen's double: Checkout payments and their refunds. Nobody can ask it what became of a payment."""

from __future__ import annotations

import dataclasses

from tests.sdks.double import CONFLICT, Double, Effect, Reply, Request

ERRORS = {
    404: ("000", "internal", "Not found"),
    429: ("000", "internal", "Too many requests"),
    500: ("000", "internal", "Something went wrong"),
    503: ("703", "internal", "The idempotency store cannot be reached"),
    CONFLICT: ("000", "validation", "The key belongs to another request"),
}


class AdyenDouble(Double):
    provider = "adyen"

    def order_of(self, request: Request) -> str:
        return request.json.get("reference", "")

    def error(self, status: int) -> Reply:
        code, kind, message = ERRORS[status]
        body = {"status": status or 422, "errorCode": code, "errorType": kind, "message": message}
        # With the store of keys down nothing was done, and it says so.
        return Reply(status or 422, body, {"transient-error": "true"} if status == 503 else {})

    def remembers(self, done: Reply | None, shown: Reply) -> Reply | None:
        return None if shown.status == 503 else shown

    def replayed(self, reply: Reply) -> Reply:
        return dataclasses.replace(reply, headers={"Idempotency-Key": "as it came"})

    def execute(self, request: Request) -> Reply:
        order, amount = self.order_of(request), request.json["amount"]
        told = {"pspReference": self.new_id("PSP"), "amount": amount}
        if request.path.endswith("/refunds"):
            self.ledger.append(Effect(order, amount["value"], "refund", self.key_of(request)))
            return Reply(201, {**told, "status": "received", "reference": order})
        assert request.path == "/v72/payments", request
        told["merchantReference"] = order
        if request.json["paymentMethod"].get("storedPaymentMethodId") == "empty":
            told |= {"resultCode": "Refused", "refusalReason": "Not enough balance", "refusalReasonCode": "12"}
            return Reply(200, told)
        self.ledger.append(Effect(order, amount["value"], "payment", self.key_of(request)))
        return Reply(200, {**told, "resultCode": "Authorised"})
