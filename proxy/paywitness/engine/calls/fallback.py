"""Fallback: from an operation that ended provably without effect to another route that speaks the same API.

The first is ended and the second started in one step, under the same intent: no moment in which both could pay, or
neither is known. From doubt there is no fallback. The first key answers with the second's outcome for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from paywitness.clock import Clock
from paywitness.core.account_choice import for_merchant
from paywitness.core.account_rules import BackgroundCredentials
from paywitness.core.call import Call, Headers
from paywitness.core.claim import ClaimRequest, ClaimVerdict
from paywitness.core.consequences import WriteContext
from paywitness.core.credential_and_hop_headers import CREDENTIAL_HEADERS
from paywitness.core.decide import Decision
from paywitness.core.errors import StaleWrite
from paywitness.core.identity import credential_of, request_hash_of
from paywitness.core.lifecycle import Event, advance
from paywitness.core.operation import FallbackLink, Operation
from paywitness.core.policy import Policy
from paywitness.core.recognise import recognise_under
from paywitness.core.result import ResultClass
from paywitness.engine.calls.context import CallContext
from paywitness.engine.calls.stored_messages import StoredRequest, seal_request, with_header
from paywitness.engine.durability.journal_writer import change_of
from paywitness.engine.durability.leases import Leases
from paywitness.engine.durability.rollback import RollbackMonitor
from paywitness.journal.base import Journal, OperationQuery
from paywitness.policy.book import PolicyBook
from paywitness.randomness import Randomness
from paywitness.secrets import Vault
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import FellBack, OperationStarted

FallbackRoute = tuple[Policy, dict[str, str]]  # and the parameters of its path
_REFERENCES_MAX = 8  # segments of a path that could be a reference


@dataclass(frozen=True, slots=True)
class Fallbacks:
    journal: Journal
    book: Callable[[], PolicyBook]
    leases: Leases
    vault: Vault
    clock: Clock
    randomness: Randomness
    environment: Mapping[str, str]
    telemetry: Telemetry
    rollback: RollbackMonitor | None = None

    async def start(
        self, context: CallContext, first: Operation, decision: Decision, route: FallbackRoute
    ) -> Operation | None:
        """End the first and start its fallback; the call is then the second's. None where somebody was faster: then
        nothing was written."""
        policy, parameters = route
        call = context.call
        saved = (context.policy, context.identity, context.request, context.operation)
        secret = self.vault.identity_secret
        recognised = recognise_under(policy, call, context.tree, parameters, secret, lambda: first.client_key)
        context.policy, context.identity = policy, recognised.identity
        context.request = self._with_own_credentials(policy, context.request)
        now = self.clock.now()
        second = recognised.fresh_operation(self.randomness.operation_id(now), now).changed(
            # The amount, and whether the request may be stored, stay as the first route's policy read them.
            money=context.expected.money,
            request_hash=_hash_of(context.request, secret) if context.holds_unstorable_data else "",
            fallback_of=first.id,
        )
        reason = _fallback_reason(context, first)
        link = FallbackLink(policy.provider, second.id, reason)
        change = change_of(
            first,
            advance(first, Event.GIVEN_UP, fallback_to=second.id, because=decision.because),
            (Event.GIVEN_UP,),
            WriteContext(self.clock.now(), gives_back=context.token, fallback=link),
            action=decision.action,
            because=decision.because,
            note=f"falls back to {policy.provider} as {second.id}",
        )
        storable = context.request.without_body() if context.holds_unstorable_data else context.request
        request = ClaimRequest(
            fresh=second,
            token=context.token,
            permitted=True,
            lease_s=self.leases.lease_s,
            sealed_request=seal_request(self.vault, storable, second.id),
            key_stem=context.identity.key_stem,
        )
        requested_boot = self.leases.request_boot()
        try:
            ended, claim = await self.journal.fall_back(change, request)
        except StaleWrite:
            claim = None
        if claim is None or claim.verdict is not ClaimVerdict.OWNED or claim.operation is None:
            context.policy, context.identity, context.request, context.operation = saved
            return None
        self.leases.hold(claim.operation.id, context.token, requested_boot, claim.operation, request.sealed_request)
        if self.rollback is not None:
            self.rollback.remember(ended)
            self.rollback.remember(claim.operation, sealed_request=request.sealed_request)
        self.telemetry.emit(FellBack(first.provider, policy.provider, reason, second.id))
        self.telemetry.emit(OperationStarted(claim.operation))
        context.tries, context.byte_started, context.has_sent, context.last_delay_s = 1, False, False, 0.0
        context.circuit_refused, context.limit_info = False, None
        context.journal_at, context.journal_boot = claim.now, self.clock.boot()
        context.operation = claim.operation
        return claim.operation

    def route(self, context: CallContext, first: Operation) -> FallbackRoute | None:
        """The other route's policy for this call, where there is one."""
        result_class = first.result_class or ResultClass.NETWORK_CONNECT_FAILURE
        fallback = context.policy.fallback_for(result_class, circuit_refused=context.circuit_refused)
        book = self.book()
        if fallback is None or fallback.to not in book.providers or first.doubt:
            return None
        call = context.call
        matched = book.match(fallback.to, call.method, call.segments, lambda: context.tree)
        if matched is None or matched[0].operation != context.policy.operation:
            return None
        policy, parameters = matched
        secret = self.vault.identity_secret
        own = for_merchant(policy, context.policy.merchant, call, context.tree, parameters, secret)
        return None if own is None else (own, parameters)

    def _with_own_credentials(self, policy: Policy, request: StoredRequest) -> StoredRequest:
        headers = self._headers_for_route(_credentials_of(policy, policy.acts_for), request.headers)
        return StoredRequest(request.method, request.target, headers, request.body)

    def _headers_for_route(self, credentials: BackgroundCredentials | None, headers: Headers) -> Headers:
        """Another account needs its own credentials, and never sees the caller's, also if its own cannot be found. A
        mirror or region, whose policy names none, takes the caller's."""
        if credentials is None:
            return headers
        headers = tuple(pair for pair in headers if pair[0].lower() not in CREDENTIAL_HEADERS)
        for name, variable in credentials.headers:
            value = self.environment.get(variable)
            if value is not None:
                headers = with_header(headers, name.encode("latin-1"), value.encode("latin-1"))
        return headers

    async def route_follow_up(self, call: Call) -> Call:
        """A follow-up on what a fallback made, as it goes to the route that made it: under that route's own
        credentials, if it has some, and only for a credential that the first route's account was used with."""
        made = await self._fallback_of_reference(call.provider, call.segments)
        if made is None:
            return call
        policies = self.book().providers[made.provider].policies
        credentials = _credentials_of(policies[0], made.named_account) if policies else None
        if credentials is not None and not await self._is_of_first_account(call, made):
            return call
        return replace(call, provider=made.provider, headers=self._headers_for_route(credentials, call.headers))

    async def _is_of_first_account(self, call: Call, made: Operation) -> bool:
        """Whether the call's credential is the one that paid, or was accepted last for its account."""
        first = await self.journal.read(made.fallback_of or "")
        if first is None:
            return False
        credential = credential_of(call, self.vault.identity_secret)
        if credential == first.credential:
            return True
        newest = await self.journal.newest_credentials(first.account, 1)
        return bool(newest) and newest[0][0] == credential

    async def _fallback_of_reference(self, provider: str, references: tuple[str, ...]) -> Operation | None:
        """The operation of another route that made what a follow-up names."""
        for name in references[-_REFERENCES_MAX:]:
            found = await self.journal.find_operations(OperationQuery(reference=name, limit=2))
            fallbacks = [
                found_operation
                for found_operation in found
                if found_operation.fallback_of is not None and found_operation.provider != provider
            ]
            if len(found) == 1 and fallbacks and fallbacks[0].provider in self.book().providers:
                return fallbacks[0]
        return None


def _fallback_reason(context: CallContext, first: Operation) -> str:
    return "circuit_open" if context.circuit_refused else str(first.result_class or ResultClass.NETWORK_CONNECT_FAILURE)


def _hash_of(request: StoredRequest, secret: bytes) -> str:
    return request_hash_of(request.method, request.target, request.body, secret)


def _credentials_of(policy: Policy, account: str) -> BackgroundCredentials | None:
    """Of an account by its name in `accounts:`, else the file's."""
    named = policy.accounts.account_named(account)
    if named is not None and named.credentials:
        return named.credentials[0]
    others = {variable for each in policy.accounts.named for variable in each.variables}
    if policy.credentials is not None and others.intersection(policy.credentials.variables):
        return BackgroundCredentials()  # another account's: none at all rather than those
    return policy.credentials
