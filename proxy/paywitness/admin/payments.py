"""Payments and intents on the admin port: their balances, one timeline of everything that happened, and the commands by
which an operator adopts or corrects a payment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from aiohttp import web

from paywitness.admin.backend import AdminBackend
from paywitness.admin.commands import JsonBody, read_json_members
from paywitness.admin.listings import ListingQuery
from paywitness.admin.middleware import AdminProblem, bad_query, invalid_command, json_reply, not_found
from paywitness.admin.shapes import operation_row, timeline_entry
from paywitness.core.operation import Operation
from paywitness.core.payment_corrections import CorrectionRefused
from paywitness.core.payment_words import payment_summary
from paywitness.core.redact import redact
from paywitness.core.reply import Reply
from paywitness.engine.intents import IntentView, intent_status
from paywitness.engine.operator_commands import InvalidCommand
from paywitness.engine.payment_commands import (
    AdoptCommand,
    BalanceCommand,
    NoSuchPayment,
    NotAdopted,
    NotPaidCommand,
    PaymentChanged,
    PaymentKnown,
)
from paywitness.engine.payment_lookup import PaymentHistoryEntry, PaymentView
from paywitness.telemetry.logs import iso

_ADOPT_MEMBERS = ("actor", "reason", "reference", "provider", "account")
_NUMBERS = ("authorised", "captured", "refunded", "voided", "disputed")
_BALANCE_MEMBERS = ("actor", "reason", "evidence", "currency", "version", *_NUMBERS)
_NOT_PAID_MEMBERS = ("actor", "reason", "evidence", "version")
_VERSION_MAX = 2**31
_NAMED_MAX = 10  # payments listed in the problem if a name fits several


class PaymentsApi:
    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/intents/{id:.+}", self.intent),
            web.post("/v1/payments", self.adopt),
            web.post("/v1/payments/{id}/balance", self.state_balance),
            web.post("/v1/payments/{id}/not-paid", self.declare_unpaid),
            web.get("/v1/payments/{id:.+}", self.payment),
        ]

    async def resolved(self, listing_query: ListingQuery) -> ListingQuery:
        """The query with the ids of the account and the payment that it names."""
        listing = listing_query.listing
        for account in listing.accounts:
            listing = replace(listing, accounts=self._backend.payments.account_ids(account))
        if listing.payment is not None:
            found = await self._backend.payments.find(listing.payment, listing.provider)
            listing = replace(listing, payment=_one_of(listing.payment, found) if found else listing.payment)
        return replace(listing_query, listing=listing)

    async def balance_of(self, operation: Operation) -> dict[str, Any] | None:
        """The balance of the operation's payment; None if it has no payment."""
        view = await self._backend.payments.by_id(operation.payment) if operation.payment else None
        return payment_row(view) if view is not None else None

    # --- reading

    async def intent(self, request: web.Request) -> web.Response:
        _check_filters(request, "merchant", "provider")
        merchant, provider = request.query.get("merchant"), request.query.get("provider")
        view = await self._backend.intents.read(request.match_info["id"], merchant, provider)
        if isinstance(view, Reply):
            return web.Response(status=view.status_code, body=view.body, content_type="application/problem+json")
        return json_reply(
            {
                **intent_status(view),
                "payments": [payment_row(each) for each in view.payments],
                "operations": [operation_row(each, self._backend.book()) for each in _all_operations(view)],
                "customer": None,  # no policy names one
                "timeline": _timeline(await self._backend.payments.timeline(view.payments, view.operations)),
            }
        )

    async def payment(self, request: web.Request) -> web.Response:
        _check_filters(request, "provider", "account")
        text = request.match_info["id"]
        found = await self._backend.payments.find(text, request.query.get("provider"), request.query.get("account"))
        view = await self._backend.payments.by_id(_one_of(text, found)) if found else None
        if view is None:
            raise not_found(f"The journal knows no payment {text[:80]}.")
        return json_reply(await self._payment_json(view))

    async def _payment_json(self, view: PaymentView) -> dict[str, Any]:
        return {
            **payment_row(view),
            "operations": [operation_row(each, self._backend.book()) for each in view.operations],
            "timeline": _timeline(await self._backend.payments.timeline((view,))),
        }

    # --- operator commands

    async def adopt(self, request: web.Request) -> web.Response:
        """Import a payment that did not come through us."""
        body = JsonBody(await read_json_members(request), _ADOPT_MEMBERS)
        command = AdoptCommand(**{name: body.text(name) or "" for name in _ADOPT_MEMBERS})
        try:
            view = await self._backend.payment_commands.adopt(command)
        except (InvalidCommand, NotAdopted, PaymentKnown) as error:
            raise _problem_of(error) from None
        return json_reply(await self._payment_json(view))

    async def declare_unpaid(self, request: web.Request) -> web.Response:
        """Record that a payment was not made although the provider called it "already done", with the evidence."""
        body = JsonBody(await read_json_members(request), _NOT_PAID_MEMBERS)
        command = NotPaidCommand(
            actor=body.text("actor") or "", reason=body.text("reason") or "", evidence=body.text("evidence") or ""
        )
        version = body.number("version", 0, _VERSION_MAX, None)
        try:
            view = await self._backend.payment_commands.declare_unpaid(request.match_info["id"], command, version)
        except (InvalidCommand, CorrectionRefused, NoSuchPayment, PaymentChanged) as error:
            raise _problem_of(error) from None
        return json_reply(await self._payment_json(view))

    async def state_balance(self, request: web.Request) -> web.Response:
        """Record numbers of a balance that an operator has looked up, with the evidence."""
        body = JsonBody(await read_json_members(request), _BALANCE_MEMBERS)
        amounts = {name: text for name in _NUMBERS if (text := body.text(name, None)) is not None}
        command = BalanceCommand(
            amounts,
            actor=body.text("actor") or "",
            reason=body.text("reason") or "",
            evidence=body.text("evidence") or "",
            currency=body.text("currency", None),
        )
        version = body.number("version", 0, _VERSION_MAX, None)
        try:
            view = await self._backend.payment_commands.state_balance(request.match_info["id"], command, version)
        except (InvalidCommand, CorrectionRefused, NoSuchPayment, PaymentChanged) as error:
            raise _problem_of(error) from None
        return json_reply(await self._payment_json(view))


def _all_operations(view: IntentView) -> list[Operation]:
    """The operations of an intent, newest first: its steps, and the follow-ups on its payments."""
    found = {operation.id: operation for payment in view.payments for operation in payment.operations}
    found |= {operation.id: operation for operation in view.operations}
    return [found[operation_id] for operation_id in sorted(found, reverse=True)]


def _check_filters(request: web.Request, *known: str) -> None:
    if unknown := set(request.query) - set(known):
        raise bad_query(f"There is no filter {min(unknown)[:64]!r}. Filters: {', '.join(known)}.")


def _one_of(text: str, found: tuple[str, ...]) -> str:
    if len(found) > 1:
        named = ", ".join(found[:_NAMED_MAX])
        detail = (
            f"{text[:80]} names several payments: {named}. Give one of these ids, or narrow it by provider or account."
        )
        raise AdminProblem(409, "ambiguous", "Several payments have this name", detail, {"payments": list(found)})
    return found[0]


def _problem_of(error: Exception) -> AdminProblem:
    match error:
        case InvalidCommand():
            return invalid_command(str(error))
        case NoSuchPayment():
            return not_found(f"The journal knows no payment {str(error)[:80]}.")
        case NotAdopted():
            return AdminProblem(409, "not-adopted", "The payment was not adopted", redact(str(error)))
        case PaymentKnown():
            return AdminProblem(409, "payment-known", "The payment is known here", f"Not adopted: {error}")
        case CorrectionRefused():
            return AdminProblem(409, "not-offered", "The payment does not allow this", f"Not done: {error}.")
        case PaymentChanged():
            version = error.view.version
            detail = f"Not done: the payment has changed (version {version}). Read the payment again before you decide."
            return AdminProblem(409, "overtaken", "The payment has changed", detail, {"version": version})
    raise error


# --- JSON


def payment_row(view: PaymentView) -> dict[str, Any]:
    summary = payment_summary(view.payment, view.operations_by_id)
    payer = next(iter(view.operations), None)
    return {
        **summary,
        "account": view.payment.account,
        "customer": None,  # no policy names one
        "priority": payer.priority if payer is not None else None,
        "version": view.version,
        "expires_at": iso(view.payment.expires_at) if view.payment.expires_at is not None else None,
    }


def _timeline(entries: Iterable[PaymentHistoryEntry]) -> list[dict[str, Any]]:
    return [_entry_json(each) for each in entries]


def _entry_json(each: PaymentHistoryEntry) -> dict[str, Any]:
    if each.operation is not None and each.entry is not None:
        return {**_operation_names(each.operation), **timeline_entry(each.entry), "command": None}
    command = each.command
    if command is None:
        return {}
    return {
        **_NO_OPERATION,
        "at": iso(command.at),
        "version": None,
        "source": "operator",
        "actor": redact(command.actor),
        "events": [],
        "summary": command.action.replace("_", " "),
        "lease_only": False,
        "state": None,
        "doubt": [],
        "attempt": None,
        "finding": None,
        "decision": None,
        "told": [],
        "fallback": None,
        "note": redact(command.reason),
        "command": {
            "action": command.action,
            "stated": redact(command.stated),
            "evidence": redact(command.evidence) or None,
        },
    }


def _operation_names(operation: Operation) -> dict[str, Any]:
    return {"operation": operation.id, "name": operation.operation, "kind": operation.kind}


_NO_OPERATION: dict[str, Any] = {"operation": None, "name": None, "kind": None}
