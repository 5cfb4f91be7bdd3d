"""The paths under /v2 of a world's provider: payments with numbers, in requests and responses."""

from __future__ import annotations

from typing import cast

from paywitness_sandbox.bank.objects import DECLINING_TOKENS
from paywitness_sandbox.messages import Request, SandboxResponse, card_declined, error_response, json_response
from tests.simulation.payments import NotFound, Object, Origin, PartStatus, Payments, Refused

VERSION = "v2"


def is_payment_path(request: Request) -> bool:
    return request.segments[:1] == (VERSION,)


def is_capture(request: Request) -> bool:
    return request.writes and is_payment_path(request) and request.segments[-1] in {"capture", "captures"}


def is_void(request: Request) -> bool:
    return request.writes and is_payment_path(request) and request.segments[-1] == "void"


def answer_payment(
    payments: Payments, request: Request, movement: str, *, overlooks: bool, stale: bool
) -> SandboxResponse:
    """`overlooks`: a search finds nothing yet. `stale`: a payment is shown as it was before its last change."""
    try:
        if request.method == "GET":
            return _read(payments, request, overlooks=overlooks, stale=stale)
        return _write(payments, request, movement)
    except NotFound as error:
        return error_response(404, "invalid_request_error", f"no such thing: {error}", code="resource_missing")
    except Refused as refused:
        status_code = 409 if refused.conflict else 400
        return error_response(status_code, "invalid_request_error", refused.code, code=refused.code)


def _write(payments: Payments, request: Request, movement: str) -> SandboxResponse:
    body = request.tree
    metadata = cast(Object, body.get("metadata") or {})
    origin = Origin(movement, str(metadata.get("paywitness", "")), request.key)
    amount = cast("int | None", body.get("amount"))
    match request.segments[1:]:
        case ("payments",):
            return _create(payments, body, metadata, origin)
        case ("payments", name, "confirm"):
            payment = payments.payment(name)
            payments.confirm(payment, str(body["source"]), origin)
            return _paid(payment.shown(), str(body["source"]))
        case ("payments", name, "captures"):
            final = bool(body.get("final", False))
            return json_response(
                200, payments.capture(payments.payment(name), amount, metadata, origin, final=final).shown()
            )
        case ("payments", name, "capture"):
            payment = payments.payment(name)
            payments.capture(payment, amount, metadata, origin, final=True)
            return json_response(200, payment.shown())
        case ("payments", name, "void"):
            payment = payments.payment(name)
            payments.void(payment, origin)
            return json_response(200, payment.shown())
        case ("refunds",):
            payment = payments.payment(str(body.get("payment") or body.get("charge")))
            return json_response(200, payments.refund(payment, amount, metadata, origin).shown())
        case ("transfers",):
            transfer = payments.transfer(body, metadata, origin)
            if transfer.status is PartStatus.FAILED:
                return error_response(402, "payout_error", "refused", code="payout_refused", decline_code="closed")
            return json_response(200, transfer.shown())
    raise NotFound(request.path)


def _create(payments: Payments, body: Object, metadata: Object, origin: Origin) -> SandboxResponse:
    manual = body.get("capture") == "manual"
    amount, currency = cast(int, body["amount"]), str(body["currency"])
    payment = payments.open(amount, currency, manual=manual, metadata=metadata, origin=origin)
    if not body.get("confirm"):
        payment.confirmed_later = True
        return json_response(200, payment.shown())
    payments.confirm(payment, str(body["source"]), origin)
    return _paid(payment.shown(), str(body["source"]))


def _paid(shown: Object, source: str) -> SandboxResponse:
    declined = DECLINING_TOKENS.get(source)
    if declined is not None:
        return card_declined(declined, payment=shown["id"])
    return json_response(200, shown)


def _read(payments: Payments, request: Request, *, overlooks: bool, stale: bool) -> SandboxResponse:
    match request.segments[1:]:
        case ("payments", name):
            payment = payments.payment(name)
            return json_response(200, payment.before if stale and payment.before else payment.shown())
        case (_, name):
            return json_response(200, payments.thing(name).shown())
        case (_,):
            found = [] if overlooks else [thing.shown() for thing in payments.found(request.query["paywitness"])]
            return json_response(200, {"data": found, "has_more": False})
    raise NotFound(request.path)
