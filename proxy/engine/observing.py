"""Observe mode: a provider's calls pass as they came, and what would have been decided about each of them is told.

Nothing of ours is written into a request or an answer, nothing is tried again or refused, and nothing here waits for
the journal, a limit or another call. Recognition, classification and decision are the core's own, over what this
sidecar itself has seen lately: no journal is asked, and budgets and circuits count as allowing everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.backoff import delay_s, no_earlier_than
from proxy.core.body import Encoding, Tree, decode, decompressed
from proxy.core.call import Call
from proxy.core.claim import AliasKind, ClaimRequest, Judgement, Verdict, judge, judge_guard
from proxy.core.classify import Asked, classify
from proxy.core.decide import Action, Decision, decide
from proxy.core.errors import BodyError, MoneyError
from proxy.core.evidence import Evidence, NetworkPhase, WireFault
from proxy.core.identity import Identity, identify, usable_key
from proxy.core.lifecycle import Event, advance, conclude
from proxy.core.operation import Lease, Operation, Outcome, State
from proxy.core.policy import Policy, Provider, Unmatched
from proxy.core.reply import NO_SHAPE, Problem, Reply, end_to_end
from proxy.core.retry_after import retry_after_s
from proxy.engine.attempt import address_of
from proxy.engine.context import context_of, released_end
from proxy.engine.errand import Errand
from proxy.engine.forward import StreamedReply, failed
from proxy.engine.keeping import KeptRequest, can_write, readable_codings
from proxy.engine.lately import Lately
from proxy.engine.records import fresh_operation
from proxy.policy.book import PolicyBook
from proxy.telemetry.records import CallForwarded, CallObserved
from proxy.telemetry.telemetry import Telemetry
from proxy.upstream.client import UpstreamClient
from proxy.upstream.target import StreamRequest, Timeouts, WireRequest
from proxy.vault import Vault

_log = logging.getLogger("paywitness.observing")

# The caller's own patience ends a call here, as it would without us. These only keep it finite.
_PATIENT = Timeouts(connect_s=60, tls_s=60, write_s=60, first_byte_s=600, body_idle_s=600, answer_s=3600)
_UNDER_WAY_S = 4800.0  # longer than all of them together
_REMEMBERED_ATTEMPTS = 100  # in doubt, of one operation: no budget keeps a caller from repeating for hours

# What would have become of a call beside the actions of a decision.
REPLAYED, REFUSED, NOT_JUDGED = "replayed", "refused", "not_judged"

_ALIASES = {
    AliasKind.JOINED: (REPLAYED, "joined"),
    AliasKind.TAKEN: (REPLAYED, "taken"),
    AliasKind.REFUSED: (REFUSED, Problem.GUARDED),
}


@dataclass(slots=True)
class _Watched:
    """A call that is an operation, while it is on its way."""

    errand: Errand
    operation: Operation | None  # what its answer will speak of; None: of nothing that we would have sent
    would: tuple[str, str] | None = None  # the action and its rule, where they are known before the answer


@dataclass(frozen=True, slots=True)
class Observing:
    upstream: UpstreamClient
    vault: Vault
    clock: Clock
    chance: Chance
    telemetry: Telemetry
    lately: Lately = field(default_factory=Lately)

    async def whole(self, call: Call, book: PolicyBook, still_there: Callable[[], bool]) -> tuple[Reply, str | None]:
        """Pass on a call that may be an operation; the provider's answer, untouched, and the operation's name."""
        provider = book.providers[call.provider]
        watched = self._watched(call, book, still_there)
        origin, path_prefix = address_of(provider)
        request = WireRequest(call.method, (path_prefix + call.target).encode("latin-1"), call.headers, call.body)
        # As in force: a kept connection that the provider closes just now makes a doubt, which a key could settle.
        reuse = watched is None or watched.errand.policy.contract.dedupes
        evidence = await self.upstream.send(origin, request, _PATIENT, reuse=reuse)
        if watched is not None:
            self._judged(watched, evidence)
        name = watched.errand.policy.operation if watched is not None else None
        response = evidence.response
        if response is None:
            return failed(evidence, provider), name
        return Reply(response.status_code, end_to_end(response.headers), response.body, Outcome.NONE), name

    async def stream(
        self, call: Call, provider: Provider, body: AsyncIterator[bytes] | None, length: int | None
    ) -> Reply | StreamedReply:
        """Pass on what is no operation, in pieces."""
        self._no_operation(provider)
        origin, path_prefix = address_of(provider)
        request = StreamRequest(call.method, (path_prefix + call.target).encode("latin-1"), call.headers, length)
        answer = await self.upstream.stream(origin, request, body, _PATIENT)
        if isinstance(answer, Evidence):
            return failed(answer, provider)
        return StreamedReply(answer.status_code, end_to_end(answer.headers), aiter(answer))

    def _no_operation(self, provider: Provider) -> None:
        self.telemetry.tell(CallForwarded(provider.name))
        if provider.unmatched is Unmatched.REFUSE:
            self.telemetry.tell(CallObserved(provider.name, None, REFUSED, Problem.OPERATION_NOT_ALLOWED))

    # --- before it leaves

    def _watched(self, call: Call, book: PolicyBook, still_there: Callable[[], bool]) -> _Watched | None:
        """What the call is. None: no operation, or one that would have been refused, which is told. Never raises."""
        try:
            return self._recognised(call, book, still_there)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not cost the call
            _log.error("a call was not observed: %s", type(error).__name__)
            return None

    def _recognised(self, call: Call, book: PolicyBook, still_there: Callable[[], bool]) -> _Watched | None:
        provider = book.providers[call.provider]
        encoding = provider.policies[0].encoding if provider.policies else Encoding.JSON
        try:
            tree = decode(decompressed(call.body, call.header("Content-Encoding")), encoding)
            matched = book.match(call.provider, call.method, call.segments, lambda: tree)
        except BodyError:
            self.telemetry.tell(CallObserved(provider.name, None, REFUSED, Problem.BODY_UNREADABLE))
            return None
        if matched is None:
            self._no_operation(provider)
            return None
        policy, parameters = matched
        identity = identify(call, policy, tree, parameters, self.vault.identity_secret, self.chance.token)
        refusal = turned_away(call, policy, tree, identity)
        if refusal is not None:
            self.telemetry.tell(CallObserved(provider.name, policy.operation, REFUSED, refusal))
            return None
        return self._claimed(self._errand(call, policy, tree, identity, still_there))

    def _errand(
        self, call: Call, policy: Policy, tree: Tree, identity: Identity, still_there: Callable[[], bool]
    ) -> Errand:
        try:
            money = policy.money_in(tree)
        except MoneyError:
            money = None
        loop = asyncio.get_running_loop()
        now = self.clock.now()
        errand = Errand(
            call=call,
            policy=policy,
            tree=tree,
            identity=identity,
            asked=Asked(money),
            shape=NO_SHAPE,
            token=self.chance.token(),
            deadline_mono=self.clock.mono() + (call.wishes.timeout_s or policy.timeouts.deadline_s),
            still_there=still_there,
            request=KeptRequest.of(call),
            answer=loop.create_future(),
            over=loop.create_future(),
            journal_at=now,
            journal_boot=self.clock.boot(),
        )
        errand.operation = fresh_operation(errand, self.chance.operation_id(now), now, self.vault.identity_secret)
        return errand

    def _claimed(self, errand: Errand) -> _Watched:
        """As a journal would judge it that knows what this sidecar saw lately, and nothing else."""
        fresh, now = errand.operation, errand.journal_at
        assert fresh is not None
        stem = errand.identity.key_stem
        request = ClaimRequest(fresh, errand.token, permitted=True, lease_s=0.0, sealed_request=None, key_stem=stem)
        judged = judge(self.lately.under(fresh.key), request, now)
        lease = Lease(errand.token, now + _UNDER_WAY_S)
        if judged.verdict is not Verdict.OWNED:
            return self._repeat(errand, judged, lease)
        guarded = judge_guard(self.lately.guarded_by(fresh.guard), fresh, now)
        if guarded.holder is not None and guarded.alias is not None:
            if guarded.alias is AliasKind.TAKEN:
                self.lately.keep(guarded.holder.changed(unheard=False))
            return _Watched(errand, None, _ALIASES[guarded.alias])
        started = fresh.changed(
            generation=judged.start_generation or 1, provider_key=judged.provider_key, first_sent_at=now, lease=lease
        )
        sending = advance(started, Event.SEND_RECORDED)
        self.lately.keep(sending)
        return _Watched(errand, sending)

    def _repeat(self, errand: Errand, judged: Judgement, lease: Lease) -> _Watched:
        """A call under a key that was seen: replayed, refused, or in doubt, where a decision says what may be done."""
        if judged.verdict is Verdict.MISMATCH:
            return _Watched(errand, None, (REFUSED, Problem.KEY_REUSED))
        operation = judged.existing
        if judged.verdict is not Verdict.IN_DOUBT or operation is None:
            return _Watched(errand, None, (REPLAYED, judged.verdict))
        errand.tries = 0
        decision = decide(context_of(operation, errand.policy, errand, self.clock, delay_s=0.0))
        if decision.action is not Action.RETRY_SAME_OPERATION:
            return _Watched(errand, None, (REFUSED, decision.because))
        if operation.attempts >= _REMEMBERED_ATTEMPTS:
            return _Watched(errand, None, (decision.action, decision.because))
        errand.tries = 1
        resent = advance(operation, Event.RESEND_RECORDED).changed(lease=lease)
        self.lately.keep(resent)
        return _Watched(errand, resent, (decision.action, decision.because))

    # --- when it is over

    def _judged(self, watched: _Watched, evidence: Evidence) -> None:
        """Tell what would have been decided. Never raises: the answer is here, and must go on."""
        policy = watched.errand.policy
        try:
            told = self._decided(watched, as_in_force(evidence, policy))
        except Exception as error:  # noqa: BLE001  # as above
            _log.error("a call of %s was not judged: %s", policy.provider, type(error).__name__)
            return
        status_code = evidence.response.status_code if evidence.response is not None else None
        self.telemetry.tell(replace(told, status_code=status_code, duration_s=evidence.duration_s))

    def _decided(self, watched: _Watched, evidence: Evidence) -> CallObserved:
        errand, operation, policy = watched.errand, watched.operation, watched.errand.policy
        names = (policy.provider, policy.operation)
        if not _is_readable(evidence):
            if operation is not None:
                self.lately.forget(operation)
            return CallObserved(*names, *(watched.would or (NOT_JUDGED, "unreadable_coding")))
        classification = classify(evidence, policy.classify, errand.asked)
        decision: Decision | None = None
        if operation is not None:
            after, _ = conclude(operation, operation.attempts, classification, policy.contract)
            rule = policy.retry_rule(classification.reading)
            wait_s = delay_s(rule, errand.tries, self.chance.draw())
            said_s = retry_after_s(evidence.response, self.clock.now())
            wait_s = 0.0 if after.state.ended else no_earlier_than(wait_s, said_s, self.chance.draw())
            decision = decide(context_of(after, policy, errand, self.clock, delay_s=wait_s, last=classification))
            self.lately.keep(_left(after, decision, unheard=not errand.still_there()))
        action, because = watched.would or ((decision.action, decision.because) if decision else (NOT_JUDGED, ""))
        return CallObserved(*names, action, because, classification)


def turned_away(call: Call, policy: Policy, tree: Tree, identity: Identity) -> Problem | None:
    """Why a call that is an operation would be refused before anything is written down, if it would be."""
    if not can_write(call, policy, tree, policy.contract.send_as):
        return Problem.BODY_UNREADABLE
    if policy.key_required and identity.key_source == "generated":
        return Problem.KEY_REQUIRED
    return None if usable_key(identity.client_key) else Problem.KEY_INVALID


def as_in_force(evidence: Evidence, policy: Policy) -> Evidence:
    """What the policy's own patience would have seen of it: an answer that took longer would have been given up."""
    if not evidence.sent or evidence.duration_s <= policy.timeouts.first_byte_s:
        return evidence
    detail, waited_s = "the answer took longer than first_byte", policy.timeouts.first_byte_s
    return Evidence(NetworkPhase.AWAITING, evidence.bytes_written, WireFault.FIRST_BYTE_TIMEOUT, None, detail, waited_s)


def _is_readable(evidence: Evidence) -> bool:
    """In force, the caller's `Accept-Encoding` is narrowed to what can be read. Here it went on as it came."""
    coding = evidence.response.header("Content-Encoding") if evidence.response is not None else None
    asked = ((b"accept-encoding", coding.encode("latin-1")),) if coding is not None else ()
    return readable_codings(asked) == asked


def _left(after: Operation, decision: Decision, *, unheard: bool) -> Operation:
    """The operation as it is remembered: nobody tries it again by himself, so what had no effect is over."""
    if after.state is State.BACKOFF:
        after = advance(after, Event.GIVEN_UP)
    elif decision.action is Action.SEND_TO_REVIEW and not after.state.ended:
        after = advance(after, Event.PARKED)
    released = after.state.ended and released_end(after)
    return after.changed(lease=None, released=released, unheard=unheard and after.state is State.SUCCEEDED)
