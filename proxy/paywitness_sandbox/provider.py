"""The provider without its network: it checks the API key and the idempotency key, finds the route and runs it.

Everything here is synchronous, so nothing can happen between `execute` and the ledger. This module lists the routes of
all dialects. A dialect lists its literal paths before those with placeholders.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paywitness_sandbox.bank.bank import Bank
from paywitness_sandbox.bank.ledger import Ledger, LedgerFull
from paywitness_sandbox.clock import Clock
from paywitness_sandbox.contract import Contract, KeyStore, parse_contract, stored_response
from paywitness_sandbox.dialects import acme, stripe
from paywitness_sandbox.dialects.base import SandboxRoute
from paywitness_sandbox.messages import ArrivalLog, Request, SandboxArrival, SandboxResponse, error_response
from paywitness_sandbox.options import SandboxOptions
from paywitness_sandbox.webhooks.publisher import EventPublisher

ROUTES: tuple[SandboxRoute, ...] = (*acme.CHARGE_ROUTES, *acme.PAYOUT_ROUTES, *stripe.STRIPE_ROUTES)


def _index_routes() -> dict[tuple[str, int], list[SandboxRoute]]:
    index: dict[tuple[str, int], list[SandboxRoute]] = {}
    for route in ROUTES:
        index.setdefault((route.method, route.pattern.count("/")), []).append(route)
    return index


_BY_METHOD_AND_LENGTH = _index_routes()


def find_route(method: str, segments: Sequence[str]) -> tuple[SandboxRoute, dict[str, str]] | None:
    """The first route that matches. A dialect lists its literal paths before those with placeholders."""
    for route in _BY_METHOD_AND_LENGTH.get((method, len(segments)), ()):
        names = route.match(segments)
        if names is not None:
            return route, names
    return None


# --- Provider

CONTRACT_HEADER = "sandbox-contract"

Commit = Callable[[], SandboxResponse]
CommitWrapper = Callable[[Commit], SandboxResponse]
"""Wraps the commit: it gets the commit, runs it or not, and returns the provider's response."""


def commit_normally(commit: Commit) -> SandboxResponse:
    return commit()


@dataclass(slots=True)
class KeyClaim:
    """A request's right to be executed, or the response that it gets instead."""

    contract: Contract
    key: str | None = None
    account: str | None = None
    response: SandboxResponse | None = None
    replayed: bool = False


class SandboxProvider:
    def __init__(self, options: SandboxOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self.contract = parse_contract(options.contract)
        self.ledger = Ledger(options.ledger_max)
        self.arrivals = ArrivalLog(options.arrivals_max)
        # The start time is part of the ids, so that a restarted sandbox does not issue ids of its earlier run again.
        salt = f"{options.seed}:{clock():.6f}"
        self.bank = Bank(self.ledger, clock, salt=salt, search_lag_s=options.search_lag_s)
        self.publisher = EventPublisher(self.bank, clock, salt=salt, source=options.webhooks)
        self.keys = KeyStore(clock, options.key_window_s)
        self._latest: dict[SandboxRoute, list[SandboxResponse]] = {}

    def claim(self, request: Request) -> KeyClaim:
        contract = self.contract_of(request)
        if not self._is_authorized(request.headers.get("authorization", "")):
            message = "No such API key."
            return KeyClaim(
                contract, response=error_response(401, "authentication_error", message, code="api_key_invalid")
            )
        if request.key is None or contract is Contract.NONE:
            return KeyClaim(contract)
        instead = self.keys.claim(request.key, request.fingerprint, request.account)
        if instead is None:
            return KeyClaim(contract, request.key, request.account)
        return KeyClaim(contract, response=instead, replayed=("Idempotent-Replayed", "true") in instead.headers)

    def execute(
        self, claim: KeyClaim, request: Request, arrival: SandboxArrival, commit_wrapper: CommitWrapper
    ) -> SandboxResponse:
        arrival.replayed = claim.replayed
        if claim.response is not None:
            return claim.response
        committed: SandboxResponse | None = None
        effects_before = len(self.ledger)

        def commit() -> SandboxResponse:
            nonlocal committed
            committed = self._run_route(request)
            arrival.executed = committed.executed
            return committed

        response = commit_wrapper(commit)
        arrival.effects = len(self.ledger) - effects_before
        if claim.key is not None:
            self.keys.finish(claim.key, stored_response(claim.contract, committed, response), claim.account)
        # From here on the claim is used up: another call returns the same response and does nothing.
        claim.key, claim.response = None, response
        return response

    def release(self, claim: KeyClaim) -> None:
        if claim.key is not None:
            self.keys.finish(claim.key, None, claim.account)
            claim.key = None

    def contract_of(self, request: Request) -> Contract:
        """Raises ValueError for an unknown contract."""
        requested = request.headers.get(CONTRACT_HEADER)
        return self.contract if requested is None else parse_contract(requested)

    def other_object_response(self, request: Request, response: SandboxResponse) -> SandboxResponse | None:
        found = find_route(request.method, request.segments)
        if found is None:
            return None
        own = _id_in(response)
        return next((other for other in reversed(self._latest.get(found[0], [])) if _id_in(other) != own), None)

    def clear(self) -> None:
        self.contract = parse_contract(self.options.contract)
        self.ledger.clear()
        self.arrivals.clear()
        self.bank.clear()
        self.publisher.clear()
        self.keys.clear()
        self._latest.clear()

    def _run_route(self, request: Request) -> SandboxResponse:
        found = find_route(request.method, request.segments)
        if found is None:
            known = sorted(f"{route.method} {route.pattern}" for route in ROUTES)
            message = f"There is no {request.method} {request.path} here. GET /_sandbox/ lists the routes."
            return error_response(404, "invalid_request_error", message, code="route_missing", routes=known)
        route, names = found
        try:
            response = route.action(self.bank, request, names)
        except LedgerFull as full:
            return error_response(507, "sandbox_error", str(full), code="ledger_full")
        if request.writes and response.succeeded:
            self._latest[route] = [*self._latest.get(route, [])[-1:], response]
        return response

    def _is_authorized(self, authorization: str) -> bool:
        """Bearer, or Basic with the key as the user's name. Without configured keys every request is accepted."""
        if not self.options.api_keys:
            return True
        scheme, _, credentials = authorization.partition(" ")
        if scheme.lower() == "basic":
            try:
                credentials = base64.b64decode(credentials, validate=True).decode().partition(":")[0]
            except (binascii.Error, UnicodeDecodeError):
                return False
        return credentials.strip() in self.options.api_keys


def _id_in(response: SandboxResponse) -> object:
    try:
        body = json.loads(response.body)
    except ValueError:
        return None
    return body.get("id") if isinstance(body, dict) else None
