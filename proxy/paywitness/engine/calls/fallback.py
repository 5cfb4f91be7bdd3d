"""Fallback: from an operation that ended provably without effect to another route that speaks the same API.

One write ends the first operation and starts the second, under the same intent. So at no moment could both pay, or is
neither of them known. A doubt has no fallback; an operation that inquiries have proven absent is no doubt. From then on
the first key replies with the second's outcome. The timeline keeps the verdict on each route that the policy lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from paywitness.clock import Clock
from paywitness.core.account_choice import for_merchant
from paywitness.core.account_rules import BackgroundCredentials
from paywitness.core.admission import AdmissionRefusal
from paywitness.core.bodies.tree import Encoding
from paywitness.core.call import Call, Headers
from paywitness.core.circuit import CircuitRefusal
from paywitness.core.claim import ClaimRequest, ClaimVerdict
from paywitness.core.consequences import WriteContext
from paywitness.core.credential_and_hop_headers import CREDENTIAL_HEADERS
from paywitness.core.decide import Decision
from paywitness.core.errors import IllegalTransition, StaleWrite
from paywitness.core.fallback import (
    FALLBACKS_MAX,
    Fallback,
    FallbackCause,
    FallbackChoice,
    RouteCandidate,
    RouteVerdict,
    label_of,
)
from paywitness.core.identity import credential_of, request_hash_of
from paywitness.core.lifecycle import Event
from paywitness.core.limit_info import LimitInfo
from paywitness.core.operation import FallbackLink, Finding, Operation
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import OperationKind
from paywitness.core.recognise import first_for, recognise_under
from paywitness.core.record import record
from paywitness.engine.calls.context import AttemptPermit, CallContext
from paywitness.engine.calls.gate import Gate, GateDecision
from paywitness.engine.calls.stored_messages import StoredRequest, seal_request, with_header
from paywitness.engine.durability.journal_writer import change_of
from paywitness.engine.durability.leases import Leases
from paywitness.engine.durability.rollback import RollbackMonitor
from paywitness.journal.base import Journal, OperationQuery
from paywitness.policy.book import PolicyBook
from paywitness.randomness import Randomness
from paywitness.secrets import Vault
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import EvidenceKind, FellBack, OperationEnded, OperationStarted, transition_events

_REFERENCES_MAX = 8  # at most so many segments of a path are tried as a reference


@record
class FirstEnd:
    """How the operation ends that a fallback will replace: provably without effect."""

    after: Operation
    event: Event
    cause: FallbackCause
    finding: Finding | None = None  # the finding of the inquiries, if they ended a doubt


@record
class RouteTaken:
    """The first has ended, and another operation was started for it."""

    context: CallContext  # the call at the other route
    operation: Operation
    permit: AttemptPermit  # of its first attempt


@record
class NoRoute:
    """No listed route could be taken."""

    choice: FallbackChoice
    limit_info: LimitInfo | None  # the limit that kept the call from the last route that was tried


@record
class _Route:
    """A route that the policy lists. One with a policy can be taken."""

    candidate: RouteCandidate
    policy: Policy | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)  # of the path


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
    gate: Gate
    rollback: RollbackMonitor | None = None

    async def take(
        self, context: CallContext, first: Operation, end: FirstEnd, decision: Decision
    ) -> RouteTaken | NoRoute:
        """End the first operation and start another by the first listed route that can be taken. NoRoute: nothing was
        written. Raises JournalUnavailable."""
        if first.doubt and end.cause is not FallbackCause.ABSENT:
            raise IllegalTransition(f"{first.id} is in doubt: nothing may stand for it")
        context.progress.begin_attempt()  # at another route: to wait for a permit there is part of it
        routes, limit_info = self._routes(context, first, end.cause), None
        revision, seen = first.revision, list[RouteCandidate]()
        for number, route in enumerate(routes, 1):
            if route.policy is None:
                seen.append(route.candidate)
                continue
            permit = await self.gate.before_attempt(context, first, route.policy)
            if isinstance(permit, GateDecision):
                limit_info = permit.limit_info
                verdict = _GATE_VERDICTS.get(permit.refusal, RouteVerdict.NO_ROOM)
                seen.append(RouteCandidate(route.candidate.to, verdict, permit.refusal))
                continue
            choice = FallbackChoice(
                end.cause,
                (*seen, route.candidate, *_unless_told(routes[number:], RouteVerdict.EARLIER_TAKEN)),
                revision,
                first.attempts,
            )
            try:
                started = await self._start(
                    context, first, end, decision, route.policy, route.parameters, choice, permit
                )
            except BaseException:
                await self.gate.release(permit)
                raise
            if isinstance(started, RouteTaken):
                return started
            await self.gate.release(permit)
            seen.append(RouteCandidate(route.candidate.to, started))
            seen += _unless_told(routes[number:], RouteVerdict.NOT_CONSIDERED)
            break
        return NoRoute(FallbackChoice(end.cause, tuple(seen), revision, first.attempts), limit_info)

    async def _start(
        self,
        context: CallContext,
        first: Operation,
        end: FirstEnd,
        decision: Decision,
        policy: Policy,
        parameters: Mapping[str, str],
        choice: FallbackChoice,
        permit: AttemptPermit,
    ) -> RouteTaken | RouteVerdict:
        """End the first operation and start its fallback, in one write. A verdict if another writer was faster, or the
        key is in use: then nothing was written."""
        if self.leases.is_disputed(first.id):
            return RouteVerdict.OVERTAKEN  # this step was planned without the incident, and would remove it
        reason = label_of(end.cause, first.result_class)
        there, second = self._second(context, first, policy, parameters, reason)
        link = FallbackLink(policy.provider, second.id, second.fallback_reason)
        change = change_of(
            first,
            end.after.changed(fallback_to=second.id, because=decision.because),
            (end.event,),
            WriteContext(max(self.clock.now(), first.updated_at), gives_back=context.token, fallback=link),
            action=decision.action,
            because=decision.because,
            note=f"falls back to {policy.provider} as {second.id}",
            finding=end.finding,
            fallback=choice,
        )
        storable = there.request.without_body() if context.holds_unstorable_data else there.request
        request = ClaimRequest(
            fresh=second,
            token=context.token,
            permitted=True,
            lease_s=self.leases.lease_s,
            sealed_request=seal_request(self.vault, storable, second.id),
            key_stem=there.identity.key_stem,
        )
        requested_boot = self.clock.boot()
        try:
            ended, claim = await self.journal.fall_back(change, request)
        except StaleWrite:
            return RouteVerdict.OVERTAKEN
        if claim.verdict is not ClaimVerdict.OWNED or claim.operation is None:
            return RouteVerdict.KEY_IN_USE
        self.leases.hold(claim.operation.id, context.token, requested_boot, claim.operation, request.sealed_request)
        if self.rollback is not None:
            self.rollback.remember(ended)
            self.rollback.remember(claim.operation, sealed_request=request.sealed_request)
        self._emit_events(first, ended, claim.operation)
        there.progress.take_other_route(claim.operation)
        return RouteTaken(there, claim.operation, permit)

    def _second(
        self, context: CallContext, first: Operation, policy: Policy, parameters: Mapping[str, str], reason: str
    ) -> tuple[CallContext, Operation]:
        """The call at the other route, and the operation that replaces the first."""
        secret = self.vault.identity_secret
        recognised = recognise_under(
            policy, context.call, context.tree, dict(parameters), secret, lambda: first.client_key
        )
        there = context.rerouted_to(policy, recognised.identity, self._with_own_credentials(policy, context.request))
        now = self.clock.now()
        second = recognised.fresh_operation(self.randomness.operation_id(now), now).changed(
            # Keep the amount, and whether the request may be stored, as the first route's policy read them.
            money=context.expected.money,
            request_hash=_hash_of(there.request, secret) if context.holds_unstorable_data else "",
            fallback_of=first.id,
            fallback_from=first.provider,
            fallback_reason=reason,
        )
        return there, second

    def _emit_events(self, first: Operation, ended: Operation, second: Operation) -> None:
        """Emit the fallback, and the end of the first's doubt. The end of the fallback will report the first's end."""
        self.telemetry.emit(FellBack(first.provider, second.provider, second.fallback_reason, second.id, ended))
        for event in transition_events(first, ended, EvidenceKind.INQUIRY, self.clock.now()):
            if not isinstance(event, OperationEnded):
                self.telemetry.emit(event)
        self.telemetry.emit(OperationStarted(second))

    def _routes(self, context: CallContext, first: Operation, cause: FallbackCause) -> list[_Route]:
        """Every route that the policy lists, in its order, and which of them could be taken."""
        return [self._route(context, first, cause, fallback) for fallback in context.policy.fallbacks]

    def _route(self, context: CallContext, first: Operation, cause: FallbackCause, fallback: Fallback) -> _Route:
        def unfit(verdict: RouteVerdict, detail: str = "") -> _Route:
            return _Route(RouteCandidate(fallback.to, verdict, detail))

        if (verdict := self._why_not(context, first, cause, fallback)) is not None:
            return unfit(verdict)
        call = context.call
        matched = first_for(self.book().candidates(fallback.to, call.method, call.segments), context.tree)
        if matched is None:
            return unfit(RouteVerdict.NOT_SERVED)
        policy, parameters = matched
        if (policy.operation, policy.kind, policy.encoding) != _api_of(context.policy):
            return unfit(RouteVerdict.OTHER_API)
        secret = self.vault.identity_secret
        own = for_merchant(policy, context.policy.merchant, call, context.tree, parameters, secret)
        if own is None:
            return unfit(RouteVerdict.NO_ACCOUNT)
        if missing := self._missing_credentials(own):
            return unfit(RouteVerdict.CREDENTIALS_MISSING, missing)
        return _Route(RouteCandidate(fallback.to, RouteVerdict.TAKEN), own, parameters)

    def _why_not(
        self, context: CallContext, first: Operation, cause: FallbackCause, fallback: Fallback
    ) -> RouteVerdict | None:
        """Why a route is not possible, whatever operation it serves. None: it is possible."""
        provider = self.book().providers.get(fallback.to)
        if cause not in fallback.when:
            return RouteVerdict.OTHER_CAUSE
        if provider is None:
            return RouteVerdict.NO_SUCH_PROVIDER
        if provider.observe:
            return RouteVerdict.ONLY_OBSERVED
        if fallback.to in {first.provider, *context.routes_left}:
            return RouteVerdict.ALREADY_TRIED
        return RouteVerdict.TOO_MANY_ROUTES if len(context.routes_left) >= FALLBACKS_MAX else None

    def _missing_credentials(self, policy: Policy) -> str:
        """Which of the route's own credentials is missing. "" if none is, or if the route takes the caller's."""
        credentials = _credentials_of(policy, policy.acts_for)
        if credentials is None:
            return ""
        if not credentials.headers:
            return "none can be sent with a call"
        return ", ".join(name for _, name in credentials.headers if self.environment.get(name) is None)

    def _with_own_credentials(self, policy: Policy, request: StoredRequest) -> StoredRequest:
        headers = self._headers_for_route(_credentials_of(policy, policy.acts_for), request.headers)
        return StoredRequest(request.method, request.target, headers, request.body)

    def _headers_for_route(self, credentials: BackgroundCredentials | None, headers: Headers) -> Headers:
        """The headers with the route's credentials. Another account needs its own and never gets the caller's, even if
        its own cannot be found. A mirror or region, whose policy names none, takes the caller's."""
        if credentials is None:
            return headers
        headers = tuple(pair for pair in headers if pair[0].lower() not in CREDENTIAL_HEADERS)
        for name, variable in credentials.headers:
            value = self.environment.get(variable)
            if value is not None:
                headers = with_header(headers, name.encode("latin-1"), value.encode("latin-1"))
        return headers

    async def route_follow_up(self, call: Call) -> Call:
        """Send a follow-up on a fallback's payment to the route that made it, under that route's own credentials if it
        has some. Only a credential that was used with the first route's account may do that."""
        made = await self._fallback_of_reference(call.provider, call.segments)
        if made is None:
            return call
        policies = self.book().providers[made.provider].policies
        credentials = _credentials_of(policies[0], made.named_account) if policies else None
        if credentials is not None and not await self._is_of_first_account(call, made):
            return call
        return replace(call, provider=made.provider, headers=self._headers_for_route(credentials, call.headers))

    async def _is_of_first_account(self, call: Call, made: Operation) -> bool:
        """Whether the call's credential is the one that made the payment, or the last accepted one of its account."""
        first = await self.journal.read(made.fallback_of or "")
        if first is None:
            return False
        credential = credential_of(call, self.vault.identity_secret)
        if credential == first.credential:
            return True
        newest = await self.journal.newest_credentials(first.account, 1)
        return bool(newest) and newest[0][0] == credential

    async def _fallback_of_reference(self, provider: str, references: tuple[str, ...]) -> Operation | None:
        """The operation of another route that made the payment which a follow-up names."""
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


_GATE_VERDICTS: Mapping[str, RouteVerdict] = {
    CircuitRefusal.OPEN: RouteVerdict.CIRCUIT_OPEN,
    CircuitRefusal.FORCED: RouteVerdict.CIRCUIT_OPEN,
    CircuitRefusal.PROBING: RouteVerdict.NOT_HEALTHY,
    CircuitRefusal.RAMP: RouteVerdict.NOT_HEALTHY,
    AdmissionRefusal.SHED: RouteVerdict.NOT_HEALTHY,
    CircuitRefusal.THROTTLED: RouteVerdict.THROTTLED,
}


def _unless_told(routes: list[_Route], verdict: RouteVerdict) -> list[RouteCandidate]:
    """The candidates of routes that nobody tried. Those that can be taken get this verdict."""
    return [
        route.candidate if route.policy is None else RouteCandidate(route.candidate.to, verdict) for route in routes
    ]


def _api_of(policy: Policy) -> tuple[str, OperationKind, Encoding]:
    return policy.operation, policy.kind, policy.encoding


def _hash_of(request: StoredRequest, secret: bytes) -> str:
    return request_hash_of(request.method, request.target, request.body, secret)


def _credentials_of(policy: Policy, account: str) -> BackgroundCredentials | None:
    """The credentials of an account by its name in `accounts:`, otherwise the file's."""
    named = policy.accounts.account_named(account)
    if named is not None and named.credentials:
        return named.credentials[0]
    others = {variable for each in policy.accounts.named for variable in each.variables}
    if policy.credentials is not None and others.intersection(policy.credentials.variables):
        return BackgroundCredentials()  # another account: use none rather than the file's
    return policy.credentials
