"""Stripe's double: payment intents that are confirmed at once, refunds of them, and the search."""

from __future__ import annotations

import dataclasses
import re

from tests.sdks.double import CONFLICT, Double, Effect, Reply, Request

ERRORS = {
    404: {"type": "invalid_request_error", "code": "resource_missing", "message": "No such payment_intent"},
    429: {"type": "invalid_request_error", "code": "rate_limit", "message": "Too many requests in a short time"},
    500: {"type": "api_error", "message": "Something went wrong on Stripe's end"},
    503: {"type": "api_error", "message": "Stripe is down for a moment"},
    CONFLICT: {"type": "idempotency_error", "message": "Keys can only be used with the same parameters"},
}


class StripeDouble(Double):
    provider = "stripe"

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, dict] = {}

    def order_of(self, request: Request) -> str:
        return request.form.get("metadata[order_id]", "")

    def error(self, status: int) -> Reply:
        return Reply(status or 400, {"error": ERRORS[status]})

    def replayed(self, reply: Reply) -> Reply:
        return dataclasses.replace(reply, headers={"Idempotent-Replayed": "true"})

    def execute(self, request: Request) -> Reply:
        form = request.form
        metadata = {name[9:-1]: value for name, value in form.items() if name.startswith("metadata[")}
        if request.path == "/v1/refunds":
            refund: dict[str, object] = {
                "id": self.new_id("re_"),
                "object": "refund",
                "status": "succeeded",
                "metadata": metadata,
            }
            refund |= {"amount": int(form["amount"]), "payment_intent": form["payment_intent"]}
            self.ledger.append(Effect(self.order_of(request), form["amount"], "refund", self.key_of(request)))
            return Reply(200, refund)
        assert (request.method, request.path) == ("POST", "/v1/payment_intents"), request
        intent: dict[str, object] = {
            "id": self.new_id("pi_"),
            "object": "payment_intent",
            "status": "succeeded",
            "metadata": metadata,
        }
        intent |= {"amount": int(form["amount"]), "currency": form["currency"]}
        if (code := form.get("payment_method", "").removeprefix("pm_card_declined_")) != form.get("payment_method", ""):
            intent |= {"status": "requires_payment_method"}
            error = {"type": "card_error", "code": "card_declined", "message": "Your card was declined."}
            return Reply(402, {"error": {**error, "decline_code": code, "payment_intent": intent}})
        if form.get("confirm") != "true":
            return Reply(200, {**intent, "status": "requires_confirmation"})
        self.objects[str(intent["id"])] = intent
        self.ledger.append(Effect(self.order_of(request), form["amount"], "payment", self.key_of(request)))
        return Reply(200, intent)

    def read(self, request: Request) -> Reply:
        if request.path == "/v1/payment_intents/search":
            sought = re.fullmatch(r"metadata\['(\w+)'\]:'([^']*)'", request.query["query"])
            assert sought, request
            found = [one for one in self.objects.values() if one["metadata"].get(sought[1]) == sought[2]]
            return Reply(200, {"object": "search_result", "data": found, "has_more": False})
        one = self.objects.get(request.path.rpartition("/")[2])
        return Reply(200, one) if one else self.error(404)
