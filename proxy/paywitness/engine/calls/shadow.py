"""Shadow mode (`mode: observe`): calls pass unchanged, and telemetry reports the decision that each would have got.

Nothing is written into a request or a response, nothing is retried or refused, and nothing waits for the journal, a
limit or another call. Recognition, classification and decision are the core's own, over `ShadowMemory`: a bounded
memory of the operations that this sidecar has seen. A restart forgets it. Budgets and circuits count as allowing all.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from paywitness.clock import Clock
from paywitness.core.call import Call
from paywitness.core.claim import AliasKind, ClaimJudgement, ClaimRequest, ClaimVerdict, judge, judge_guard
from paywitness.core.classify import classify
from paywitness.core.consequences import WriteContext, consequences
from paywitness.core.decide import Action, Decision, decide
from paywitness.core.evidence import Evidence, NetworkPhase, WireFault
from paywitness.core.guard import indexed_guard
from paywitness.core.lifecycle import Event, advance, conclude
from paywitness.core.operation import Guard, Lease, Operation, State
from paywitness.core.policy import Policy, Provider, UnmatchedCalls, UpstreamTimeouts
from paywitness.core.problems import Problem
from paywitness.core.recognise import RecognitionRefusal, recognise
from paywitness.core.record import record
from paywitness.core.reply import NO_SHAPE, Reply
from paywitness.core.retry import at_least_retry_after_s, backoff_delay_s, retry_after_of
from paywitness.engine.calls.attempts import address_of
from paywitness.engine.calls.context import CallContext, caller_context, decision_context_of
from paywitness.engine.calls.passthrough import StreamedReply, failure_reply, streamed_reply, whole_reply
from paywitness.engine.calls.stored_messages import with_readable_codings
from paywitness.policy.book import PolicyBook
from paywitness.randomness import Randomness
from paywitness.repeated_lines import REPEATS
from paywitness.secrets import Vault
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import CallForwarded, CallShadowed
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import StreamRequest, WireRequest

_OPERATIONS_MAX = (
    10_000  # some 35 MB at most, since every text of an operation is bounded; a few minutes of a busy shop
)
_PER_GUARD_MAX = 32  # a customer tries a handful of cards


class ShadowMemory:
    def __init__(self, operations_max: int = _OPERATIONS_MAX) -> None:
        self._operations_max = operations_max
        self._by_key: OrderedDict[str, Operation] = OrderedDict()
        self._keys_by_guard: dict[str, OrderedDict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def by_key(self, key: str) -> Operation | None:
        """The newest operation under the key."""
        return self._by_key.get(key)

    def guarded_by(self, guard: Guard | None) -> tuple[Operation, ...]:
        """The operations that may still hold the guard, oldest first."""
        keys = self._keys_by_guard.get(guard.value) if guard is not None else None
        held = [self._by_key[key] for key in keys or ()]
        return tuple(sorted(held, key=lambda operation: operation.created_at))

    def remember(self, operation: Operation) -> None:
        """Remember the operation as it now stands, in place of the earlier one under its key."""
        self.forget(operation)
        self._by_key[operation.key] = operation
        held = indexed_guard(operation)
        if held is not None:
            keys = self._keys_by_guard.setdefault(held, OrderedDict())
            keys[operation.key] = None
            if len(keys) > _PER_GUARD_MAX:
                keys.popitem(last=False)
        if len(self._by_key) > self._operations_max:
            self.forget(next(iter(self._by_key.values())))

    def forget(self, operation: Operation) -> None:
        """Forget the operation under its key."""
        known = self._by_key.pop(operation.key, None)
        held = known.guard.value if known is not None and known.guard is not None else None
        keys = self._keys_by_guard.get(held) if held is not None else None
        if held is not None and keys is not None:
            keys.pop(operation.key, None)
            if not keys:
                del self._keys_by_guard[held]


# --- Shadow mode

_log = logging.getLogger("paywitness.observing")

# The caller's own timeout ends a call here, as it would without us. These timeouts only keep it finite.
_LONG_TIMEOUTS = UpstreamTimeouts(
    connect_s=60, tls_s=60, write_s=60, first_byte_s=600, body_idle_s=600, response_s=3600
)
_CALL_LEASE_S = 4800.0  # longer than all of them together
_REMEMBERED_ATTEMPTS = 100  # in doubt, of one operation, because no budget keeps a caller from repeating for hours

# The actions for a call that no decision covers.
REPLAYED, REFUSED, NOT_JUDGED = "replayed", "refused", "not_judged"

_ALIASES = {
    AliasKind.JOINED: (REPLAYED, "joined"),
    AliasKind.TAKEN: (REPLAYED, "taken"),
    AliasKind.REFUSED: (REFUSED, Problem.GUARDED),
}


@record
class CallAge:
    """Ages for one call. Nothing is stored, so the only clock is the sidecar's own."""

    clock: Clock
    began_at: float
    began_boot: float

    def high_age_s(self, at: float, provider: str) -> float:
        return self.began_at + (self.clock.boot() - self.began_boot) - at


@record
class _ShadowCall:
    """A call that is an operation, while it is on its way."""

    context: CallContext
    ages: CallAge
    operation: Operation | None  # the operation of its response; None: enforce mode would have sent nothing
    known_decision: tuple[str, str] | None = None  # the action and its rule, if they are known before the response
    tries: int = 1


@dataclass(frozen=True, slots=True)
class ShadowMode:
    upstream: UpstreamClient
    vault: Vault
    clock: Clock
    randomness: Randomness
    telemetry: Telemetry
    memory: ShadowMemory = field(default_factory=ShadowMemory)

    async def forward_whole(
        self, call: Call, book: PolicyBook, still_there: Callable[[], bool]
    ) -> tuple[Reply, str | None]:
        """Pass on a call that may be an operation. Returns the provider's response, untouched, and the operation's
        name."""
        provider = book.providers[call.provider]
        shadow_call = self._recognise_safely(call, book, still_there)
        origin, path_prefix = address_of(provider)
        request = WireRequest(call.method, (path_prefix + call.target).encode("latin-1"), call.headers, call.body)
        # As in enforce mode: if the provider closes a kept connection just now, that leaves a doubt. A key could settle
        # it.
        reuse = shadow_call is None or shadow_call.context.policy.contract.dedupes
        evidence = await self.upstream.send(origin, request, _LONG_TIMEOUTS, reuse=reuse)
        if shadow_call is not None:
            self._report(shadow_call, evidence)
        name = shadow_call.context.policy.operation if shadow_call is not None else None
        response = evidence.response
        if response is None:
            return failure_reply(evidence, provider), name
        return whole_reply(response), name

    async def forward_stream(
        self, call: Call, provider: Provider, body: AsyncIterator[bytes] | None, length: int | None
    ) -> Reply | StreamedReply:
        """Pass on a call that is no operation, in pieces."""
        self._report_unmatched(provider)
        origin, path_prefix = address_of(provider)
        request = StreamRequest(call.method, (path_prefix + call.target).encode("latin-1"), call.headers, length)
        response = await self.upstream.stream(origin, request, body, _LONG_TIMEOUTS)
        if isinstance(response, Evidence):
            return failure_reply(response, provider, call.method)
        return streamed_reply(response)

    def _report_unmatched(self, provider: Provider) -> None:
        self.telemetry.emit(CallForwarded(provider.name))
        if provider.unmatched is UnmatchedCalls.REFUSE:
            self.telemetry.emit(CallShadowed(provider.name, None, REFUSED, Problem.OPERATION_NOT_ALLOWED))

    # --- before it leaves

    def _recognise_safely(self, call: Call, book: PolicyBook, still_there: Callable[[], bool]) -> _ShadowCall | None:
        """The call as an operation. None: it is none, or it would have been refused, which is reported. Never
        raises."""
        try:
            return self._recognise(call, book, still_there)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not cost the call
            _log.error("a call was not observed: %s", type(error).__name__, extra=REPEATS)
            return None

    def _recognise(self, call: Call, book: PolicyBook, still_there: Callable[[], bool]) -> _ShadowCall | None:
        provider = book.providers[call.provider]
        recognised = recognise(call, provider, book.candidates, self.vault.identity_secret, self.randomness.token)
        if recognised is None:
            self._report_unmatched(provider)
            return None
        if isinstance(recognised, RecognitionRefusal):
            name = recognised.policy.operation if recognised.policy is not None else None
            self.telemetry.emit(CallShadowed(provider.name, name, REFUSED, recognised.problem))
            return None
        context = caller_context(recognised, NO_SHAPE, still_there, self.clock, self.randomness)
        return self._judge_claim(context, CallAge(self.clock, self.clock.now(), self.clock.boot()))

    def _judge_claim(self, context: CallContext, ages: CallAge) -> _ShadowCall:
        """Judge the claim as a journal would that knows only the operations that this sidecar saw lately."""
        fresh, now = context.fresh, ages.began_at
        stem = context.identity.key_stem
        request = ClaimRequest(fresh, context.token, permitted=True, lease_s=0.0, sealed_request=None, key_stem=stem)
        judged = judge(self.memory.by_key(fresh.key), request, now)
        lease = Lease(context.token, now + _CALL_LEASE_S)
        if judged.verdict is not ClaimVerdict.OWNED:
            return self._judge_duplicate(context, ages, judged, lease)
        guarded = judge_guard(self.memory.guarded_by(fresh.guard), fresh, now)
        if guarded.holder is not None and guarded.alias is not None:
            if guarded.alias is AliasKind.TAKEN:
                self.memory.remember(guarded.holder.changed(undelivered=False))
            return _ShadowCall(context, ages, None, _ALIASES[guarded.alias])
        started = fresh.changed(
            generation=judged.start_generation or 1, provider_key=judged.provider_key, first_sent_at=now, lease=lease
        )
        sending = advance(started, Event.SEND_RECORDED)
        self.memory.remember(sending)
        return _ShadowCall(context, ages, sending)

    def _judge_duplicate(
        self, context: CallContext, ages: CallAge, judged: ClaimJudgement, lease: Lease
    ) -> _ShadowCall:
        """A call under a known key: replayed, refused, or in doubt. In doubt a decision gives the action."""
        if judged.verdict is ClaimVerdict.MISMATCH:
            return _ShadowCall(context, ages, None, (REFUSED, Problem.KEY_REUSED))
        operation = judged.existing
        if judged.verdict is not ClaimVerdict.IN_DOUBT or operation is None:
            return _ShadowCall(context, ages, None, (REPLAYED, judged.verdict))
        decision = decide(decision_context_of(operation, context.policy, context, self.clock, ages, tries=0))
        if decision.action is not Action.RETRY_SAME_OPERATION:
            return _ShadowCall(context, ages, None, (REFUSED, decision.because))
        if operation.attempts >= _REMEMBERED_ATTEMPTS:
            return _ShadowCall(context, ages, None, (decision.action, decision.because))
        resent = advance(operation, Event.RESEND_RECORDED).changed(lease=lease)
        self.memory.remember(resent)
        return _ShadowCall(context, ages, resent, (decision.action, decision.because), tries=1)

    # --- when it is over

    def _report(self, shadow_call: _ShadowCall, evidence: Evidence) -> None:
        """Report the decision that enforce mode would have made. Never raises, because the response must go on."""
        policy = shadow_call.context.policy
        try:
            event = self._decide(shadow_call, with_policy_timeouts(evidence, policy))
        except Exception as error:  # noqa: BLE001  # as above
            _log.error("a call of %s was not judged: %s", policy.provider, type(error).__name__, extra=REPEATS)
            return
        status_code = evidence.response.status_code if evidence.response is not None else None
        self.telemetry.emit(replace(event, status_code=status_code, duration_s=evidence.duration_s))

    def _decide(self, shadow_call: _ShadowCall, evidence: Evidence) -> CallShadowed:
        context, operation, policy = shadow_call.context, shadow_call.operation, shadow_call.context.policy
        names = (policy.provider, policy.operation)
        if not _has_readable_coding(evidence):
            if operation is not None:
                self.memory.forget(operation)
            return CallShadowed(*names, *(shadow_call.known_decision or (NOT_JUDGED, "unreadable_coding")))
        classification = classify(evidence, policy.classify, context.expected)
        decision: Decision | None = None
        if operation is not None:
            after, _ = conclude(operation, operation.attempts, classification, policy.contract)
            rule = policy.retry_rule(classification.result_class)
            wait_s = backoff_delay_s(rule, shadow_call.tries, self.randomness.draw())
            requested_s = retry_after_of(evidence.response, self.clock.now())
            wait_s = 0.0 if after.state.ended else at_least_retry_after_s(wait_s, requested_s, self.randomness.draw())
            decision = decide(
                decision_context_of(
                    after,
                    policy,
                    context,
                    self.clock,
                    shadow_call.ages,
                    tries=shadow_call.tries,
                    delay_s=wait_s,
                    last=classification,
                )
            )
            known = WriteContext(self.clock.now(), gives_back=context.token, reached=context.still_there())
            self.memory.remember(consequences(operation, _last_state(after, decision), known).operation)
        action, because = shadow_call.known_decision or (
            (decision.action, decision.because) if decision else (NOT_JUDGED, "")
        )
        return CallShadowed(*names, action, because, classification)


def with_policy_timeouts(evidence: Evidence, policy: Policy) -> Evidence:
    """The evidence under the policy's own timeouts: a response that took longer would have been given up."""
    if not evidence.sent or evidence.duration_s <= policy.timeouts.first_byte_s:
        return evidence
    detail, waited_s = "the answer took longer than first_byte", policy.timeouts.first_byte_s
    return Evidence(NetworkPhase.AWAITING, evidence.bytes_written, WireFault.FIRST_BYTE_TIMEOUT, None, detail, waited_s)


def _has_readable_coding(evidence: Evidence) -> bool:
    """Whether the response's coding can be read. Enforce mode narrows the caller's `Accept-Encoding` to such codings;
    here it went on unchanged."""
    coding = evidence.response.header("Content-Encoding") if evidence.response is not None else None
    accept_encoding = ((b"accept-encoding", coding.encode("latin-1")),) if coding is not None else ()
    return with_readable_codings(accept_encoding) == accept_encoding


def _last_state(after: Operation, decision: Decision) -> Operation:
    """The operation as it is remembered. Nothing is retried in shadow mode, so one without effect has ended."""
    if after.state is State.BACKOFF:
        return advance(after, Event.GIVEN_UP)
    if decision.action is Action.SEND_TO_REVIEW and not after.state.ended:
        return advance(after, Event.PARKED)
    return after
