"""The inquirer: asks a provider what became of an operation, by every way that its policy knows, and sends cancels.

Inquiries are safe to repeat, so a slow one is hedged: a second is sent, and the first whole answer counts.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from proxy.clock import Clock
from proxy.core.admission import Lane
from proxy.core.body import Encoding, decode, decompressed, encode
from proxy.core.call import Headers
from proxy.core.circuit import CircuitState, Group
from proxy.core.classify import Asked, tree_of
from proxy.core.contract import PlaceKind
from proxy.core.errors import BodyError, UnreadableSecret
from proxy.core.evidence import Evidence, NetworkPhase, WireFault
from proxy.core.inquiry import Cancel, Inquiry, Places, Seen, filled_body, read_inquiry, read_object
from proxy.core.operation import Finding, Found, GuardKind, Operation
from proxy.core.policy import Policy
from proxy.core.reading import Reading
from proxy.core.retry_after import retry_after_s
from proxy.core.template import Values
from proxy.engine.allowance import Allowances
from proxy.engine.attempt import address_of
from proxy.engine.credentials import Credentials
from proxy.engine.gate import Gate
from proxy.engine.keeping import KeptRequest, open_request, with_header
from proxy.journal.base import Journal
from proxy.limits.budgets import Grant, Refusal
from proxy.tasks import Tasks
from proxy.telemetry.records import InquiryFinished
from proxy.telemetry.telemetry import Telemetry
from proxy.upstream.client import UpstreamClient
from proxy.upstream.target import Origin, Timeouts, WireRequest
from proxy.vault import Vault

_REFUSED = frozenset({401, 403})
_SERVER_ERROR = 500
_REMEMBERED_MAX = 10_000
_HEDGE_SHARE = 0.25  # of the first byte's timeout: an inquiry that takes longer is slow


@dataclass(frozen=True, slots=True)
class Look:
    """What one look came to: the finding that counts, its object, and every way that was asked in vain."""

    seen: Seen
    missed: tuple[Inquiry, ...] = ()  # all ways that could be asked, where every one of them missed
    retry_after_s: float | None = None
    held_back_s: float | None = None  # our limits did not let us ask, and may so much later
    nobody_to_ask: bool = False  # no way to ask can name it, with what is known of it


@dataclass(frozen=True, slots=True)
class Inquirer:
    journal: Journal
    upstream: UpstreamClient
    credentials: Credentials
    vault: Vault
    clock: Clock
    telemetry: Telemetry
    tasks: Tasks
    gate: Gate
    allowances: Allowances
    failed_lately: dict[str, Reading] = field(default_factory=dict)  # by operation: asking it again is a retry

    async def kept_request(self, operation: Operation) -> KeptRequest | None:
        """What is kept of the request that started it. Its body is empty where it must not be stored."""
        sealed, _ = await self.journal.sealed(operation.id)
        if sealed is None:
            return None
        try:
            return open_request(self.vault, sealed, operation.id)
        except UnreadableSecret:
            return None

    async def look(self, operation: Operation, policy: Policy, request: KeptRequest | None) -> Look:
        """Ask by each way in turn until one finds it. A look missed only if every way that can be asked has."""
        values = values_of(operation, policy, request)
        missed: list[Inquiry] = []
        failed: Look | None = None
        for inquiry in policy.inquiries:
            target, body = inquiry.target(values), _body(inquiry.body, values, policy)
            if target is None or body is None:
                continue
            answered = await self._permitted(operation, policy, request, inquiry, target, body)
            if isinstance(answered, Look):
                return answered
            evidence, duration_s, hedged = answered
            asked = Asked(operation.money, operation.sent_stamp)
            seen = read_inquiry(inquiry, evidence, policy.classify, asked, values)
            self.telemetry.tell(InquiryFinished(operation, seen.finding, duration_s, hedged))
            if seen.finding.found in {Found.HIT, Found.NOT_OURS}:
                return Look(seen)
            if seen.finding.found is Found.MISSED:
                missed.append(inquiry)
            else:
                failed = Look(seen, (), retry_after_s(evidence.response, self.clock.now()))
        if failed is not None:
            return failed
        if not missed:
            unnamed = Finding("ask", Found.FAILED, None, None, "no way to ask about it can name it")
            return Look(Seen(unnamed), nobody_to_ask=True)
        ways = ", ".join(inquiry.name for inquiry in missed)
        return Look(Seen(Finding(ways, Found.MISSED, None, None, "not found")), tuple(missed))

    async def _permitted(
        self,
        operation: Operation,
        policy: Policy,
        request: KeptRequest | None,
        inquiry: Inquiry,
        target: str,
        body: bytes,
    ) -> tuple[Evidence, float, bool] | Look:
        """Ask, if the provider's inquiries have a turn for it; and after a failed one, if their budget has."""
        permit = await self.gate.turn(policy, Group.INQUIRY, Lane.RESOLUTION, policy.timeouts.deadline_s)
        if permit.turn is None:
            return _held_back(permit.refusal, permit.retry_after_s)
        evidence: Evidence | None = None  # while nobody was asked there is none, of the provider or of the retry
        grant = None
        try:
            failed = self.failed_lately.get(operation.id)
            if failed is None:
                self.allowances.count_read(operation, policy)
            else:
                found = await self.allowances.ask_for_read(operation, policy, failed)
                if isinstance(found, Refusal):
                    return _held_back(found.because, found.wait_s)
                grant = found
            asked = await self._ask(operation, policy, request, inquiry.method, target, body, inquiry.headers)
            evidence = asked[0] if asked[0] is not _NOBODY_TO_ASK else None
            return asked
        finally:
            observation = await self.gate.end_read(permit.turn, evidence)
            if grant is not None and evidence is None:
                await self.allowances.give_back_read(grant)
            elif grant is not None:
                self.allowances.judge_read(grant, observation)
            if evidence is not None:
                self._remember(operation, evidence)

    def _remember(self, operation: Operation, evidence: Evidence) -> None:
        self.failed_lately.pop(operation.id, None)
        if evidence.response is None or evidence.response.status_code >= _SERVER_ERROR:
            self.failed_lately[operation.id] = Reading.TEMPORARY_PROVIDER_ERROR
            while len(self.failed_lately) > _REMEMBERED_MAX:
                del self.failed_lately[next(iter(self.failed_lately))]

    async def cancel(self, operation: Operation, policy: Policy, cancel: Cancel, request: KeptRequest | None) -> Seen:
        """Send the cancel, once. What its answer shows is evidence; an empty success shows nothing."""
        values = values_of(operation, policy, request)
        target, body = cancel.target(values), _body(cancel.body, values, policy)
        if target is None or body is None:
            return Seen(Finding("cancel", Found.FAILED, None, None, "the cancel cannot name it; nothing was sent"))
        evidence, _, _ = await self._ask(operation, policy, request, cancel.method, target, body)
        response = evidence.response
        if response is None:
            return Seen(Finding("cancel", Found.FAILED, None, None, str(evidence.fault or "no answer")))
        tree, readable = tree_of(response, policy.encoding)
        if not readable or tree in (None, {}, []):
            return Seen(Finding("cancel", Found.MISSED, response.status_code, None, "the answer shows nothing"))
        asked = Asked(operation.money, operation.sent_stamp)
        return read_object("cancel", cancel.read, policy.classify, asked, response, tree)

    async def _ask(
        self,
        operation: Operation,
        policy: Policy,
        request: KeptRequest | None,
        method: str,
        target: str,
        body: bytes = b"",
        extra: tuple[tuple[str, str], ...] = (),
    ) -> tuple[Evidence, float, bool]:
        """One request of our own, under one credential after the other where it is refused. Inquiries are hedged."""
        began_mono = self.clock.mono()
        evidence, hedged = _NOBODY_TO_ASK, False
        async for credential in self.credentials.of(operation, policy, request):
            origin, prefix = address_of(policy)
            headers = _headers(policy, request, credential, extra)
            if body:
                headers = with_header(headers, b"Content-Type", policy.encoding.media_type.encode())
            wire = WireRequest(method, (prefix + target).encode("latin-1"), headers, body)
            given = policy.timeouts
            timeouts = Timeouts(
                connect_s=given.connect_s,
                tls_s=given.tls_s,
                write_s=given.write_s,
                first_byte_s=given.first_byte_s,
                body_idle_s=given.body_idle_s,
            )
            if method == "GET":
                evidence, hedged = await self._hedged(origin, wire, timeouts, operation, policy)
            else:
                evidence = await self.upstream.send(origin, wire, timeouts, reuse=False)
            if evidence.response is None or evidence.response.status_code not in _REFUSED:
                break
        return evidence, self.clock.mono() - began_mono, hedged

    async def _hedged(
        self, origin: Origin, wire: WireRequest, timeouts: Timeouts, operation: Operation, policy: Policy
    ) -> tuple[Evidence, bool]:
        """A slow inquiry gets a second one beside it, while the provider is well and the budget has room for it."""
        first = self.tasks.start(self.upstream.send(origin, wire, timeouts), "inquiry")
        running = {first}
        try:
            done, _ = await asyncio.wait(running, timeout=timeouts.first_byte_s * _HEDGE_SHARE)
            if done:
                return first.result(), False
            grant = await self._hedge(operation, policy)
            if grant is None:
                await asyncio.wait(running)
                return first.result(), False
            answer: Evidence | None = None
            helped = False
            try:
                running.add(self.tasks.start(self.upstream.send(origin, wire, timeouts, reuse=False), "inquiry-hedge"))
                while answer is None:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    whole = [task for task in done if task.result().response is not None or not running]
                    answer = whole[0].result() if whole else None
                helped = whole[0] is not first and answer.response is not None
            finally:
                self.allowances.judge_hedge(grant, helped=helped)
            return answer, True
        finally:
            for task in running:
                task.cancel()

    async def _hedge(self, operation: Operation, policy: Policy) -> Grant | None:
        if self.gate.circuits.view(policy.provider, Group.INQUIRY).state is not CircuitState.CLOSED:
            return None
        found = await self.allowances.ask_for_read(operation, policy, Reading.PROVIDER_TIMEOUT)
        return found if isinstance(found, Grant) else None


def _held_back(reason: str, wait_s: float) -> Look:
    return Look(Seen(Finding("ask", Found.FAILED, None, None, f"not asked: {reason}")), held_back_s=wait_s)


_NOBODY_TO_ASK = Evidence(NetworkPhase.RESOLVING, 0, WireFault.CONNECT_FAILED, None, "no credential to ask with", 0.0)


def values_of(operation: Operation, policy: Policy, request: KeptRequest | None) -> Values:
    """What templates can be filled from. Under `never_store` the body is gone, and what it held is missing."""
    parameters: dict[str, str] = {}
    target, guard = policy.target, operation.guard
    if target is not None and target.kind is PlaceKind.PATH and guard is not None and guard.kind is GuardKind.TARGET:
        parameters[target.name] = guard.shown
    if request is None:
        return Values(operation, parameters)
    segments = request.segments
    for route in policy.routes:
        found = route.match(request.method, segments)
        if found is not None:
            parameters = found
            break
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.headers}
    try:
        tree = decode(decompressed(request.body, headers.get("content-encoding")), policy.encoding)
    except BodyError:
        tree = None
    return Values(operation, parameters, tree, headers)


def _body(places: Places, values: Values, policy: Policy) -> bytes | None:
    """The body of a call of our own, which may have none; None where a value of it is missing or cannot be written."""
    tree = filled_body(places, values)
    if not tree:
        return None if tree is None else b""
    try:
        return encode(tree, policy.encoding)
    except BodyError:
        return None


def _headers(
    policy: Policy, request: KeptRequest | None, credential: Headers, extra: tuple[tuple[str, str], ...]
) -> Headers:
    """Headers of a call of our own: whose account it is, what the policy and the inquiry force, the credential. No key:
    it would make a read a write in some providers' books."""
    selected = {place.name.lower().encode("latin-1") for place in policy.account if place.kind is PlaceKind.HEADER}
    kept = tuple(pair for pair in request.headers if pair[0].lower() in selected) if request is not None else ()
    accept = Encoding.XML if policy.encoding is Encoding.XML else Encoding.JSON  # forms are answered in JSON
    headers: Headers = ((b"Accept", accept.media_type.encode()), (b"User-Agent", b"paywitness"), *kept)
    forced = ((name.encode(), value.encode("latin-1")) for name, value in (*policy.headers, *extra))
    for name, value in (*forced, *credential):
        headers = with_header(headers, name, value)
    return headers
