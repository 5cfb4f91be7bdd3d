"""The provider without its wire: who may ask, which key says what, which route does the work.

Everything here is synchronous: between `execute` and the ledger nothing can come in between.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass

from proxy.sandbox.answer import Answer, error_answer
from proxy.sandbox.arrivals import Arrival, ArrivalLog
from proxy.sandbox.bank import Bank
from proxy.sandbox.clock import Clock
from proxy.sandbox.contract import Contract, KeyBook, contract_named, kept
from proxy.sandbox.dialects.route import Route
from proxy.sandbox.dialects.routes import ROUTES, find_route
from proxy.sandbox.ledger import Ledger, LedgerFull
from proxy.sandbox.options import SandboxOptions
from proxy.sandbox.request import Request
from proxy.sandbox.webhooks.announcer import Announcer

CONTRACT_HEADER = "sandbox-contract"

Commit = Callable[[], Answer]
Ending = Callable[[Commit], Answer]
"""How the work ends: is handed the commit, which it may or may not carry out, and says the provider's answer."""


def honest(commit: Commit) -> Answer:
    return commit()


@dataclass(slots=True)
class Claim:
    """A request's right to be executed; or the answer that it gets instead."""

    contract: Contract
    key: str | None = None
    answer: Answer | None = None
    replayed: bool = False


class Provider:
    def __init__(self, options: SandboxOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self.contract = contract_named(options.contract)
        self.ledger = Ledger(options.ledger_max)
        self.arrivals = ArrivalLog(options.arrivals_max)
        # The start is part of the names, so that a restarted sandbox does not hand out the names of its last life.
        salt = f"{options.seed}:{clock():.6f}"
        self.bank = Bank(self.ledger, clock, salt=salt, search_lag_s=options.search_lag_s)
        self.announcer = Announcer(self.bank, clock, salt=salt, source=options.webhooks)
        self.keys = KeyBook(clock, options.key_window_s)
        self._latest: dict[Route, list[Answer]] = {}

    def claim(self, request: Request) -> Claim:
        contract = self.contract_of(request)
        if not self._knows(request.headers.get("authorization", "")):
            message = "No such API key."
            return Claim(contract, answer=error_answer(401, "authentication_error", message, code="api_key_invalid"))
        if request.key is None or contract is Contract.NONE:
            return Claim(contract)
        instead = self.keys.claim(request.key, request.fingerprint)
        if instead is None:
            return Claim(contract, request.key)
        return Claim(contract, answer=instead, replayed=("Idempotent-Replayed", "true") in instead.headers)

    def execute(self, claim: Claim, request: Request, arrival: Arrival, ending: Ending) -> Answer:
        arrival.replayed = claim.replayed
        if claim.answer is not None:
            return claim.answer
        committed: Answer | None = None
        effects_before = len(self.ledger)

        def commit() -> Answer:
            nonlocal committed
            committed = self._work(request)
            arrival.executed = committed.executed
            return committed

        answer = ending(commit)
        arrival.effects = len(self.ledger) - effects_before
        if claim.key is not None:
            self.keys.settle(claim.key, kept(claim.contract, committed, answer))
        # From here on the claim is spent: asked again, it gives the same answer and does nothing.
        claim.key, claim.answer = None, answer
        return answer

    def release(self, claim: Claim) -> None:
        if claim.key is not None:
            self.keys.settle(claim.key, None)
            claim.key = None

    def contract_of(self, request: Request) -> Contract:
        """Raises ValueError for a contract that is none."""
        asked = request.headers.get(CONTRACT_HEADER)
        return self.contract if asked is None else contract_named(asked)

    def someone_elses(self, request: Request, answer: Answer) -> Answer | None:
        found = find_route(request.method, request.segments)
        if found is None:
            return None
        own = _id_in(answer)
        return next((other for other in reversed(self._latest.get(found[0], [])) if _id_in(other) != own), None)

    def clear(self) -> None:
        self.contract = contract_named(self.options.contract)
        self.ledger.clear()
        self.arrivals.clear()
        self.bank.clear()
        self.announcer.clear()
        self.keys.clear()
        self._latest.clear()

    def _work(self, request: Request) -> Answer:
        found = find_route(request.method, request.segments)
        if found is None:
            known = sorted(f"{route.method} {route.pattern}" for route in ROUTES)
            message = f"There is no {request.method} {request.path} here. GET /_sandbox/ tells what there is."
            return error_answer(404, "invalid_request_error", message, code="route_missing", routes=known)
        route, names = found
        try:
            answer = route.act(self.bank, request, names)
        except LedgerFull as full:
            return error_answer(507, "sandbox_error", str(full), code="ledger_full")
        if request.writes and answer.succeeded:
            self._latest[route] = [*self._latest.get(route, [])[-1:], answer]
        return answer

    def _knows(self, authorization: str) -> bool:
        """Bearer, or Basic with the key as the user's name. Without configured keys everybody is welcome."""
        if not self.options.api_keys:
            return True
        scheme, _, credentials = authorization.partition(" ")
        if scheme.lower() == "basic":
            try:
                credentials = base64.b64decode(credentials, validate=True).decode().partition(":")[0]
            except (binascii.Error, UnicodeDecodeError):
                return False
        return credentials.strip() in self.options.api_keys


def _id_in(answer: Answer) -> object:
    try:
        body = json.loads(answer.body)
    except ValueError:
        return None
    return body.get("id") if isinstance(body, dict) else None
