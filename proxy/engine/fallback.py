"""Fallback: from an operation that ended provably without effect to another route that speaks the same API.

The first is ended and the second started in one step, under the same intent: no moment in which both could pay, or
neither is known. From doubt there is no fallback. The first key answers with the second's outcome for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.claim import ClaimRequest, Verdict
from proxy.core.decide import Decision
from proxy.core.errors import StaleWrite
from proxy.core.identity import identify
from proxy.core.lifecycle import Event, advance
from proxy.core.operation import Operation
from proxy.core.policy import Policy
from proxy.core.reading import Reading
from proxy.engine.context import fallback_for
from proxy.engine.errand import Errand
from proxy.engine.keeping import KeptRequest, seal_request, with_header
from proxy.engine.leases import Leases
from proxy.engine.records import fresh_operation
from proxy.engine.rollback import Rollback
from proxy.journal.base import Change, Journal, Listing
from proxy.policy.book import PolicyBook
from proxy.telemetry.records import FellBack
from proxy.telemetry.telemetry import Telemetry
from proxy.vault import Vault

Route = tuple[Policy, dict[str, str]]  # and the parameters of its path
_NAMES_MAX = 8  # segments of a path that could be a reference


@dataclass(frozen=True, slots=True)
class Fallbacks:
    journal: Journal
    book: Callable[[], PolicyBook]
    leases: Leases
    vault: Vault
    clock: Clock
    chance: Chance
    environment: Mapping[str, str]
    telemetry: Telemetry
    rollback: Rollback | None = None

    async def take(self, errand: Errand, first: Operation, decision: Decision, route: Route) -> Operation | None:
        """End the first and start its fallback; the errand is then the second's. None where somebody was faster: then
        nothing was written."""
        policy, parameters = route
        call = errand.call
        kept = (errand.policy, errand.identity, errand.request, errand.operation)
        secret = self.vault.identity_secret
        errand.policy = policy
        errand.identity = identify(call, policy, errand.tree, parameters, secret, lambda: first.client_key)
        errand.request = self._under_own_credentials(policy, errand.request)
        second = fresh_operation(errand, self.chance.operation_id(self.clock.now()), self.clock.now(), secret)
        second = second.changed(fallback_of=first.id)
        ended = advance(first, Event.GIVEN_UP).changed(lease=None, fallback_to=second.id, because=decision.because)
        change = Change(
            ended,
            (Event.GIVEN_UP,),
            action=decision.action,
            because=decision.because,
            note=f"falls back to {policy.provider} as {second.id}",
        )
        body = errand.request.without_body() if errand.never_stored else errand.request
        request = ClaimRequest(
            fresh=second,
            token=errand.token,
            permitted=True,
            lease_s=self.leases.lease_s,
            sealed_request=seal_request(self.vault, body, second.id),
            key_stem=errand.identity.key_stem,
        )
        asked_boot = self.leases.asked_at()
        try:
            ended, claim = await self.journal.fall_back(change, request)
        except StaleWrite:
            claim = None
        if claim is None or claim.verdict is not Verdict.OWNED or claim.operation is None:
            errand.policy, errand.identity, errand.request, errand.operation = kept
            return None
        self.leases.hold(claim.operation.id, errand.token, asked_boot, claim.operation, request.sealed_request)
        if self.rollback is not None:
            self.rollback.remember(ended)
            self.rollback.remember(claim.operation, sealed_request=request.sealed_request)
        reason = str(first.reading or Reading.NETWORK_CONNECT_FAILURE) if not errand.held_by_circuit else "circuit_open"
        self.telemetry.tell(FellBack(first.provider, policy.provider, reason, second.id))
        errand.tries, errand.byte_started, errand.has_sent, errand.last_delay_s = 1, False, False, 0.0
        errand.held_by_circuit, errand.limited = False, None
        errand.journal_at, errand.journal_boot = claim.now, self.clock.boot()
        errand.operation = claim.operation
        return claim.operation

    def route(self, errand: Errand, first: Operation) -> Route | None:
        """The other route's policy for this call, where there is one."""
        fallback = fallback_for(errand.policy, first.reading or Reading.NETWORK_CONNECT_FAILURE, errand)
        book = self.book()
        if fallback is None or fallback.to not in book.providers or first.doubt:
            return None
        call = errand.call
        matched = book.match(fallback.to, call.method, call.segments, lambda: errand.tree)
        if matched is None or matched[0].operation != errand.policy.operation:
            return None
        return matched

    def _under_own_credentials(self, policy: Policy, request: KeptRequest) -> KeptRequest:
        """Another account needs its own credentials; a mirror or region takes the caller's."""
        headers = request.headers
        for name, variable in policy.credentials.headers if policy.credentials is not None else ():
            value = self.environment.get(variable)
            if value is not None:
                headers = with_header(headers, name.encode("latin-1"), value.encode("latin-1"))
        return KeptRequest(request.method, request.target, headers, request.body)

    async def made_elsewhere(self, provider: str, names: tuple[str, ...]) -> str | None:
        """The route that made what a follow-up names: a refund of a payment that fell back goes where it was made."""
        for name in names[-_NAMES_MAX:]:
            found = await self.journal.listing(Listing(reference=name, limit=2))
            elsewhere = [made for made in found if made.fallback_of is not None and made.provider != provider]
            if len(found) == 1 and elsewhere and elsewhere[0].provider in self.book().providers:
                return elsewhere[0].provider
        return None
