"""GoCardless' double: payments, their cancels, and refunds. A key that made something is answered 409 with its id."""

from __future__ import annotations

from tests.sdks.double import CONFLICT, Double, Effect, Reply, Request

ERRORS = {
    404: ("invalid_api_usage", "Resource not found", "resource_not_found"),
    422: ("invalid_state", "The mandate is not active", "mandate_is_inactive"),
    429: ("invalid_api_usage", "Rate limit exceeded", "rate_limit_exceeded"),
    500: ("gocardless", "Internal server error", "internal_server_error"),
    503: ("gocardless", "We are down for maintenance", "temporarily_unavailable"),
    CONFLICT: ("invalid_state", "The key was used before", "idempotent_creation_conflict"),
}


class GocardlessDouble(Double):
    provider = "gocardless"

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, tuple[str, dict]] = {}  # by id: under which name it is shown, and it

    def order_of(self, request: Request) -> str:
        named = next(iter((request.json or {}).values()), None) or {}  # the body of an action may be `null`
        _, payment = self.objects.get(request.path.split("/")[2] if "/actions/" in request.path else "", ("", {}))
        return (named.get("metadata") or payment.get("metadata") or {}).get("order_id", "")

    def error(self, status: int, made: str = "") -> Reply:
        kind, words, reason = ERRORS[status]
        code = status or 409
        first = {"reason": reason, "message": words, **({"links": {"conflicting_resource_id": made}} if made else {})}
        error = {"type": kind, "code": code, "message": words, "errors": [first], "request_id": self.new_id("req")}
        return Reply(code, {"error": error})

    def remembers(self, done: Reply | None, shown: Reply) -> Reply | None:
        """What was made, whatever was said of it; nothing else."""
        return done if done is not None and done.status == 201 else None

    def replayed(self, reply: Reply) -> Reply:
        assert isinstance(reply.body, dict)
        (thing,) = reply.body.values()
        return self.error(CONFLICT, thing["id"])

    def execute(self, request: Request) -> Reply:
        order = self.order_of(request)
        if request.path.endswith("/actions/cancel"):
            name, payment = self.objects[request.path.split("/")[2]]
            payment["status"] = "cancelled"
            self.ledger.append(Effect(order, payment["amount"], "cancel"))
            return Reply(200, {name: payment})
        name = request.path.removeprefix("/")
        assert name in ("payments", "refunds"), request
        asked = request.json[name]
        if asked["links"].get("mandate") == "MD_INACTIVE":
            return self.error(422)
        made = {**asked, "id": self.new_id("PM" if name == "payments" else "RF"), "status": "pending_submission"}
        self.objects[made["id"]] = (name, made)
        self.ledger.append(Effect(order, asked["amount"], name, self.key_of(request)))
        return Reply(201, {name: made})

    def read(self, request: Request) -> Reply:
        if request.path == "/payments":
            mandate = request.query["mandate"]
            found = [one for name, one in self.objects.values() if one["links"].get("mandate") == mandate]
            return Reply(200, {"payments": found, "meta": {"cursors": {"before": None, "after": None}, "limit": 500}})
        name, one = self.objects.get(request.path.rpartition("/")[2], ("", {}))
        return Reply(200, {name: one}) if one else self.error(404)
