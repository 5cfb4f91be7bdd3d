"""The inquiry client: asks a provider for the outcome of an operation, by each way that its policy knows, and sends
cancels.

Inquiries are safe to repeat, so a slow one is hedged: a second one is sent, and the first whole response counts.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace

from paywitness.clock import Clock
from paywitness.core.admission import TrafficClass
from paywitness.core.bodies.bounds import STORED_BOUNDS
from paywitness.core.bodies.tree import Encoding, Tree, decode, decompressed, encode
from paywitness.core.call import Headers
from paywitness.core.circuit import CallGroup, CircuitState
from paywitness.core.classify import tree_of
from paywitness.core.errors import BodyError, UnreadableSecret
from paywitness.core.evidence import Evidence, NetworkPhase, Response, WireFault
from paywitness.core.inquiry import (
    BodyTemplate,
    Cancel,
    FoundObject,
    Inquiry,
    InquiryReason,
    filled_body,
    read_inquiry,
    read_object,
)
from paywitness.core.operation import Finding, FindingKind, GuardKind, Operation
from paywitness.core.payment import name_key, payment_key
from paywitness.core.payment_evidence import held_against_names, held_against_payment, needs_proof
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import FieldKind
from paywitness.core.provider_time import ProviderTime
from paywitness.core.result import ResultClass
from paywitness.core.retry import retry_after_of
from paywitness.core.template import TemplateValues
from paywitness.engine.calls.attempts import address_of
from paywitness.engine.calls.gate import Gate, RetryBudget, held_party
from paywitness.engine.calls.stored_messages import StoredRequest, open_request, with_header
from paywitness.engine.durability.ages import Ages
from paywitness.engine.resolution.background_credentials import CredentialSource
from paywitness.journal.base import Journal
from paywitness.journal.ledger import payment_from_row
from paywitness.limits.budgets import BudgetRefusal, Grant
from paywitness.secrets import Vault
from paywitness.tasks import Tasks
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import InquiryFinished
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import Origin, WireRequest

_CREDENTIAL_REFUSED_STATUSES = frozenset({401, 403})
_NOT_FOUND = 404
_SERVER_ERROR = 500
_RECENT_FAILURES_MAX = 10_000
CANCEL_SOURCE = "cancel"  # the source of findings from the response to a cancel
_HEDGE_SHARE = 0.25  # of the first byte's timeout: an inquiry that takes longer is slow


@dataclass(frozen=True, slots=True)
class InquiryResult:
    """The result of asking by all ways: the finding that counts, its object, and the inquiries that missed."""

    seen: FoundObject
    # All inquiries that could be made, if every one of them missed; or the one that showed a denial that may be stale.
    missed_inquiries: tuple[Inquiry, ...] = ()
    # The object that the provider has named to us does not exist; `missed_inquiries` are those that named it.
    gone: bool = False
    retry_after_s: float | None = None
    limited_for_s: float | None = None  # our limits refused the inquiry, and may allow it after this time
    cannot_inquire: bool = False  # no inquiry can name the operation, with the values that are known of it


@dataclass(frozen=True, slots=True)
class InquiryClient:
    journal: Journal
    upstream: UpstreamClient
    credentials: CredentialSource
    vault: Vault
    clock: Clock
    telemetry: Telemetry
    tasks: Tasks
    gate: Gate
    retry_budget: RetryBudget
    ages: Ages
    # By provider: how far its clock is ahead of our CLOCK_BOOTTIME.
    provider_ahead_s: dict[str, float] = field(default_factory=dict)
    # By operation: a further inquiry counts as a retry.
    recent_failures: dict[str, ResultClass] = field(default_factory=dict)

    async def stored_request(self, operation: Operation) -> StoredRequest | None:
        """The stored request that started the operation. Its body is empty if it must not be stored."""
        sealed, _ = await self.journal.sealed(operation.id)
        if sealed is None:
            return None
        try:
            return open_request(self.vault, sealed, operation.id)
        except UnreadableSecret:
            return None

    async def inquire(
        self, operation: Operation, policy: Policy, request: StoredRequest | None, reason: InquiryReason
    ) -> InquiryResult:
        """Inquire by each way in turn until one finds the operation. The result is a miss only if every way that can be
        used missed."""
        values = replace(template_values(operation, policy, request), sent_at=self._sent_at(operation, policy))
        missed: list[Inquiry] = []
        gone: list[Inquiry] = []
        failed: InquiryResult | None = None
        for inquiry in policy.inquiries:
            target, body = inquiry.target(values), _request_body(inquiry.body, values, policy)
            if target is None or body is None:
                continue
            asked = await self._ask(operation, policy, request, values, inquiry, target, body, reason)
            if isinstance(asked, InquiryResult):
                return asked
            seen, retry_after_s = asked
            if seen.finding.kind in {FindingKind.HIT, FindingKind.NOT_OURS}:
                return InquiryResult(seen, (inquiry,) if seen.may_be_stale else ())
            if seen.finding.kind is FindingKind.MISSED:
                missed.append(inquiry)
                continue
            gone += [inquiry] if seen.gone else []
            if failed is None or failed.gone:
                failed = InquiryResult(seen, (), gone=seen.gone, retry_after_s=retry_after_s)
        if failed is not None:
            return replace(failed, missed_inquiries=tuple(gone) if failed.gone else ())
        if not missed:
            unnamed = Finding("ask", FindingKind.FAILED, None, None, "no inquiry can name it")
            return InquiryResult(FoundObject(unnamed), cannot_inquire=True)
        names = ", ".join(inquiry.name for inquiry in missed)
        return InquiryResult(FoundObject(Finding(names, FindingKind.MISSED, None, None, "not found")), tuple(missed))

    async def _ask(
        self,
        operation: Operation,
        policy: Policy,
        request: StoredRequest | None,
        values: TemplateValues,
        inquiry: Inquiry,
        target: str,
        body: bytes,
        reason: InquiryReason,
    ) -> tuple[FoundObject, float | None] | InquiryResult:
        """The result of one inquiry, and how long the provider wants us to wait; or the refusal by our limits."""
        sent_to = _at_first_upstream(operation, policy)
        answered = await self._inquire_with_permit(operation, sent_to, request, inquiry, target, body)
        elsewhere = sent_to is not policy and _is_unreachable(answered)
        if elsewhere:  # it has moved: a find there counts, a miss there proves nothing
            answered = await self._inquire_with_permit(operation, policy, request, inquiry, target, body)
        if isinstance(answered, InquiryResult):
            return answered
        evidence, duration_s, hedged, is_of_account = answered
        time = self._provider_time(operation, policy, evidence, duration_s)
        seen = read_inquiry(inquiry, evidence, policy.classify, operation.expected_payment, values, time)
        seen = await self._held_against_payment(operation, policy, inquiry, seen)
        is_of_account = is_of_account or await self._shows_own_payment(operation, inquiry, seen)
        if elsewhere or not is_of_account:
            seen = _without_miss(seen, _FOREIGN_MISS if not is_of_account else _MISS_ELSEWHERE)
        if request is None and _account_headers(policy):
            seen = _without_miss(seen, _MISS_WITHOUT_ACCOUNT)
        self.telemetry.emit(InquiryFinished(operation, seen.finding, duration_s, reason, hedged))
        return seen, retry_after_of(evidence.response, self.clock.now())

    def _sent_at(self, operation: Operation, policy: Policy) -> float | None:
        """The earliest time of its first attempt by the provider's clock, as its last response showed it."""
        ahead_s, sent_at = self.provider_ahead_s.get(policy.provider), operation.first_sent_at
        age_max_s = self.ages.high_age_s(sent_at, operation.provider) if sent_at is not None else math.inf
        if ahead_s is None or math.isinf(age_max_s):
            return None
        return self.clock.boot() + ahead_s - age_max_s

    def _provider_time(
        self, operation: Operation, policy: Policy, evidence: Evidence, duration_s: float
    ) -> ProviderTime | None:
        sent_at = operation.first_sent_at
        age_max_s = self.ages.high_age_s(sent_at, operation.provider) if sent_at is not None else math.inf
        age_min_s = self.ages.low_age_s(sent_at) if sent_at is not None else 0.0
        time = ProviderTime.of(evidence.response, age_max_s, age_min_s, duration_s)
        if time is not None:
            self.provider_ahead_s[policy.provider] = time.date_at - self.clock.boot()
        return time

    async def _shows_own_payment(self, operation: Operation, inquiry: Inquiry, seen: FoundObject) -> bool:
        """Whether a miss shows the payment that the operation acts on, made by the operation's own credential. That
        answers a control question: the credential of the inquiry is of the same account."""
        names_it = inquiry.shared and inquiry.belongs.reference is not None and seen.provider_object is not None
        if seen.finding.kind is not FindingKind.MISSED or not names_it or not operation.payment:
            return False
        [row] = await self.journal.ledger_rows((payment_key(operation.payment),))
        made_by = payment_from_row(row).paid_by if row is not None else ""
        maker = await self.journal.read(made_by) if made_by else None
        return maker is not None and maker.credential == operation.credential

    async def _held_against_payment(
        self, operation: Operation, policy: Policy, inquiry: Inquiry, seen: FoundObject
    ) -> FoundObject:
        """The finding, if the object is the operation's own and proves the movement that the inquiry was about."""
        found = seen.finding.classification
        reference = found.reference if found is not None and inquiry.shared else None
        is_missing = seen.finding.kind is FindingKind.MISSED and seen.finding.status_code == _NOT_FOUND
        if not operation.payment or not (reference or is_missing or needs_proof(operation, seen)):
            return seen
        scope = policy.names[0] or policy.provider
        keys = [payment_key(operation.payment)]
        keys += [name_key(scope, operation.account, reference)] if reference is not None else []
        rows = await self.journal.ledger_rows(tuple(keys))
        payment, owner = ([payment_from_row(row) if row is not None else None for row in rows] + [None])[:2]
        seen = held_against_names(operation, policy, inquiry, seen, payment, owner)
        rolled_back = self.gate.recently_rolled_back()
        return held_against_payment(operation, policy, seen, payment, now=self.clock.now(), rolled_back=rolled_back)

    async def read_object(self, operation: Operation, policy: Policy, request: StoredRequest | None) -> Tree:
        """The provider's object that an inquiry names, in any state; None if it could not be read."""
        values = template_values(operation, policy, request)
        for inquiry in policy.inquiries:
            target, body = inquiry.target(values), _request_body(inquiry.body, values, policy)
            if target is None or body is None:
                continue
            answered = await self._inquire_with_permit(operation, policy, request, inquiry, target, body)
            if isinstance(answered, InquiryResult):
                continue
            evidence, duration_s, hedged, _ = answered
            found = _object_in(evidence.response, policy, inquiry, values)
            status = evidence.response.status_code if evidence.response is not None else None
            finding = Finding(inquiry.name, FindingKind.FAILED if found is None else FindingKind.HIT, status)
            self.telemetry.emit(InquiryFinished(operation, finding, duration_s, InquiryReason.INTENT, hedged))
            if found is not None:
                return found
        return None

    async def _inquire_with_permit(
        self,
        operation: Operation,
        policy: Policy,
        request: StoredRequest | None,
        inquiry: Inquiry,
        target: str,
        body: bytes,
    ) -> tuple[Evidence, float, bool, bool] | InquiryResult:
        """Send an inquiry with a permit, and after a failed one also with a grant from the budget of inquiries."""
        permit = await self.gate.acquire(
            policy,
            CallGroup.INQUIRY,
            TrafficClass.RESOLUTION,
            policy.timeouts.deadline_s,
            held_party(policy, operation),
        )
        if permit.attempt_permit is None:
            return _limited_result(permit.refusal, permit.retry_after_s)
        # None as long as nothing was sent: then neither the provider nor the retry is judged.
        evidence: Evidence | None = None
        grant = None
        try:
            failed = self.recent_failures.get(operation.id)
            if failed is None:
                self.retry_budget.count_inquiry(operation, policy)
            else:
                found = await self.retry_budget.acquire_for_inquiry(operation, policy, failed)
                if isinstance(found, BudgetRefusal):
                    return _limited_result(found.because, found.wait_s)
                grant = found
            asked = await self._send_with_credentials(
                operation, policy, request, inquiry.method, target, body, inquiry.headers, is_inquiry=True
            )
            evidence = asked[0] if asked[0] is not _NO_CREDENTIAL else None
            return asked
        finally:
            observation = await self.gate.release_inquiry_permit(permit.attempt_permit, evidence)
            if grant is not None and evidence is None:
                await self.retry_budget.refund_inquiry(grant)
            elif grant is not None:
                self.retry_budget.report_inquiry_result(grant, observation)
            if evidence is not None:
                self._remember_failure(operation, evidence)

    def _remember_failure(self, operation: Operation, evidence: Evidence) -> None:
        self.recent_failures.pop(operation.id, None)
        if evidence.response is None or evidence.response.status_code >= _SERVER_ERROR:
            self.recent_failures[operation.id] = ResultClass.TEMPORARY_PROVIDER_ERROR
            while len(self.recent_failures) > _RECENT_FAILURES_MAX:
                del self.recent_failures[next(iter(self.recent_failures))]

    async def cancel(
        self, operation: Operation, policy: Policy, cancel: Cancel, request: StoredRequest | None
    ) -> FoundObject:
        """Send the cancel, once. The object in its response is evidence; an empty success proves nothing."""
        policy = _at_first_upstream(operation, policy)
        values = template_values(operation, policy, request)
        target, body = cancel.target(values), _request_body(cancel.body, values, policy)
        if target is None or body is None:
            return FoundObject(
                Finding(CANCEL_SOURCE, FindingKind.FAILED, None, None, "the cancel cannot name it; nothing was sent")
            )
        evidence, *_ = await self._send_with_credentials(operation, policy, request, cancel.method, target, body)
        response = evidence.response
        if response is None:
            return FoundObject(
                Finding(CANCEL_SOURCE, FindingKind.FAILED, None, None, str(evidence.fault or "no response"))
            )
        tree, readable = tree_of(response, policy.encoding)
        if not readable or tree in (None, {}, []):
            return FoundObject(
                Finding(CANCEL_SOURCE, FindingKind.MISSED, response.status_code, None, "the response shows nothing")
            )
        asked = operation.expected_payment
        return read_object(CANCEL_SOURCE, cancel.read, policy.classify, asked, response, tree)

    async def _send_with_credentials(
        self,
        operation: Operation,
        policy: Policy,
        request: StoredRequest | None,
        method: str,
        target: str,
        body: bytes = b"",
        extra_headers: tuple[tuple[str, str], ...] = (),
        *,
        is_inquiry: bool = False,
    ) -> tuple[Evidence, float, bool, bool]:
        """Send one request of our own. If its credential is refused, try the next one. Inquiries are hedged. Also
        returns how long it took, whether it was hedged, and whether the credential is of the operation's account."""
        began_mono = self.clock.mono()
        evidence, hedged, is_of_account = _NO_CREDENTIAL, False, False
        async for candidate in self.credentials.candidates(operation, policy, request):
            if not candidate.may_send and not is_inquiry:
                continue
            credential, is_of_account = candidate.headers, candidate.is_of_account
            origin, prefix = address_of(policy)
            headers = _request_headers(policy, request, credential, extra_headers)
            if body:
                headers = with_header(headers, b"Content-Type", policy.encoding.media_type.encode())
            wire_request = WireRequest(method, (prefix + target).encode("latin-1"), headers, body)
            if method == "GET":
                evidence, hedged = await self._send_hedged(origin, wire_request, operation, policy)
            else:
                evidence = await self.upstream.send(origin, wire_request, policy.timeouts, reuse=False)
            self.ages.note_response(operation.provider, evidence.response)
            if evidence.response is None or evidence.response.status_code not in _CREDENTIAL_REFUSED_STATUSES:
                break
        return evidence, self.clock.mono() - began_mono, hedged, is_of_account

    async def _send_hedged(
        self, origin: Origin, wire_request: WireRequest, operation: Operation, policy: Policy
    ) -> tuple[Evidence, bool]:
        """Send an inquiry, and a second one beside it if it is slow, the circuit is closed and the budget has room."""
        timeouts = policy.timeouts
        first = self.tasks.start(self.upstream.send(origin, wire_request, timeouts), "inquiry")
        running = {first}
        try:
            done, _ = await asyncio.wait(running, timeout=timeouts.first_byte_s * _HEDGE_SHARE)
            if done:
                return first.result(), False
            grant = await self._hedge_grant(operation, policy)
            if grant is None:
                await asyncio.wait(running)
                return first.result(), False
            evidence: Evidence | None = None
            helped = False
            try:
                hedge = self.tasks.start(
                    self.upstream.send(origin, wire_request, timeouts, reuse=False), "inquiry-hedge"
                )
                running.add(hedge)
                while evidence is None:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    # In this order, whatever the set's order is.
                    ended = [task for task in (first, hedge) if task in done]
                    whole = [task for task in ended if task.result().response is not None or not running]
                    evidence = whole[0].result() if whole else None
                helped = whole[0] is not first and evidence.response is not None
            finally:
                self.retry_budget.report_hedge_result(grant, helped=helped)
            return evidence, True
        finally:
            # In this order, whatever the set's order is.
            for task in sorted(running, key=lambda task: task is not first):
                task.cancel()

    async def _hedge_grant(self, operation: Operation, policy: Policy) -> Grant | None:
        if self.gate.circuits.view(policy.provider, CallGroup.INQUIRY).state is not CircuitState.CLOSED:
            return None
        found = await self.retry_budget.acquire_for_inquiry(operation, policy, ResultClass.PROVIDER_TIMEOUT)
        return found if isinstance(found, Grant) else None


def _object_in(response: Response | None, policy: Policy, inquiry: Inquiry, values: TemplateValues) -> Tree:
    """The object that was asked for, if the response shows it."""
    if response is None or not 200 <= response.status_code < 300:
        return None
    tree, readable = tree_of(response, policy.encoding)
    place = inquiry.at(values) if inquiry.at is not None else None
    found = place(tree) if place is not None else tree
    found = found[0] if isinstance(found, list) and len(found) == 1 else found
    return found if readable and isinstance(found, dict) and inquiry.belongs.hold(found, values) else None


def _at_first_upstream(operation: Operation, policy: Policy) -> Policy:
    """The policy with the address that got the attempt. Another address does not know the attempt, and would report it
    absent."""
    first = operation.upstream
    return policy if first in ("", policy.upstream) else replace(policy, upstream=first)


def _is_unreachable(answered: tuple[Evidence, float, bool, bool] | InquiryResult) -> bool:
    return not isinstance(answered, InquiryResult) and answered[0] is not _NO_CREDENTIAL and not answered[0].response


def _without_miss(seen: FoundObject, detail: str) -> FoundObject:
    """The result without a miss: it came from another address than that of the attempt, or under a credential that may
    be another account's. Such an inquiry can prove that the operation exists, but not that it does not."""
    finding = seen.finding
    if finding.kind is not FindingKind.MISSED and not seen.gone:
        return seen
    return FoundObject(replace(finding, kind=FindingKind.FAILED, detail=detail))


_MISS_ELSEWHERE = "not found, at another address than it was sent to"
_MISS_WITHOUT_ACCOUNT = "not found, and the request that named its account in a header cannot be read any more"


def _limited_result(reason: str, wait_s: float) -> InquiryResult:
    return InquiryResult(
        FoundObject(Finding("ask", FindingKind.FAILED, None, None, f"not asked: {reason}")), limited_for_s=wait_s
    )


_FOREIGN_MISS = "not found under a credential whose owner is not known; that proves nothing"
_NO_CREDENTIAL = Evidence(NetworkPhase.RESOLVING, 0, WireFault.CONNECT_FAILED, None, "no credential to ask with", 0.0)


def template_values(operation: Operation, policy: Policy, request: StoredRequest | None) -> TemplateValues:
    """The values that fill templates. Under `never_store` the body is gone, and its values are missing."""
    parameters: dict[str, str] = {}
    target, guard = policy.target, operation.guard
    if target is not None and target.kind is FieldKind.PATH and guard is not None and guard.kind is GuardKind.TARGET:
        parameters[target.name] = guard.label
    if request is None:
        return TemplateValues(operation, parameters)
    segments = request.segments
    for route in policy.routes:
        found = route.match(request.method, segments)
        if found is not None:
            parameters = found
            break
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.headers}
    try:
        plain = decompressed(request.body, headers.get("content-encoding"), STORED_BOUNDS)
        tree = decode(plain, policy.encoding, STORED_BOUNDS)
    except BodyError:
        tree = None
    return TemplateValues(operation, parameters, tree, headers)


def _request_body(places: BodyTemplate, values: TemplateValues, policy: Policy) -> bytes | None:
    """The body of a call of our own, which may be empty; None if one of its values is missing or cannot be encoded."""
    tree = filled_body(places, values)
    if not tree:
        return None if tree is None else b""
    try:
        return encode(tree, policy.encoding)
    except BodyError:
        return None


def _account_headers(policy: Policy) -> frozenset[bytes]:
    """The headers in which a call may name its account, in lower case."""
    return frozenset(place.name.lower().encode("latin-1") for place in policy.account if place.kind is FieldKind.HEADER)


def _request_headers(
    policy: Policy, request: StoredRequest | None, credential: Headers, extra_headers: tuple[tuple[str, str], ...]
) -> Headers:
    """The headers of a call of our own: the account's, those that the policy and the inquiry force, the credential. No
    key, because some providers would take a read with a key for a write."""
    selected = _account_headers(policy)
    account_headers = (
        tuple(pair for pair in request.headers if pair[0].lower() in selected) if request is not None else ()
    )
    accept = Encoding.XML if policy.encoding is Encoding.XML else Encoding.JSON  # providers respond to forms in JSON
    headers: Headers = ((b"Accept", accept.media_type.encode()), (b"User-Agent", b"paywitness"), *account_headers)
    forced = ((name.encode(), value.encode("latin-1")) for name, value in (*policy.headers, *extra_headers))
    for name, value in (*forced, *credential):
        headers = with_header(headers, name, value)
    return headers
