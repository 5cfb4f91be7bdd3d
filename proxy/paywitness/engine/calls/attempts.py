"""One attempt: `AttemptSender` writes the operation's bytes to the provider and returns the evidence. `AttemptRecorder`
concludes it, decides the next step, and writes both down. The record is durable when it returns.

If the journal does not take the record, a spool of our own does. The retry budget is debited here, before the record.
If it refuses a retry, the decision is the same as if no tries were left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol
from urllib.parse import urlsplit

from paywitness.clock import Clock
from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import was_executed
from paywitness.core.consequences import WriteContext
from paywitness.core.decide import END_DECISIONS, Action, Decision, decide
from paywitness.core.errors import BodyError, JournalUnavailable
from paywitness.core.evidence import LIMIT_FAULTS, Evidence, NetworkPhase, Response, WireFault
from paywitness.core.external_evidence import precedes_end
from paywitness.core.lifecycle import Event, advance, conclude, conclusion_changes
from paywitness.core.limit_info import LimitInfo
from paywitness.core.operation import AttemptSummary, Operation, State
from paywitness.core.payment import ShownBalance
from paywitness.core.payment_evidence import after_already_done, shown_balance
from paywitness.core.policy import Policy, Provider, UpstreamTimeouts, UpstreamTrust
from paywitness.core.provider_contract import ErrorsUnderKey, OperationKind, ProviderContract
from paywitness.core.record import record
from paywitness.core.reply import passes_on_unread, response_matches_state
from paywitness.core.result import Classification, Effect, ResultClass
from paywitness.core.retry import at_least_retry_after_s, backoff_delay_s, retry_after_of
from paywitness.engine.calls.context import AttemptContext, attempt_summary, decision_context_of, first_send_age_s
from paywitness.engine.calls.gate import RetryBudget
from paywitness.engine.calls.stored_messages import seal_response, wire_request
from paywitness.engine.calls.waiters import OperationWaiters
from paywitness.engine.durability.ages import Ages
from paywitness.engine.durability.journal_writer import JournalWriter, change_of
from paywitness.engine.durability.leases import Leases
from paywitness.engine.resolution.late_evidence import LateEvidenceRecorder
from paywitness.journal.base import OperationChange
from paywitness.limits.budgets import Grant
from paywitness.randomness import Randomness
from paywitness.secrets import Vault
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import AttemptFinished, EvidenceKind, transition_events
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import Origin

_SHORTEST_CONNECT_S = 0.05
LateResponseCallback = Callable[
    [Operation, Policy, Evidence], None
]  # called with the evidence of a response that comes after its attempt timed out


def address_of(policy: Policy | Provider) -> tuple[Origin, str]:
    """A policy's upstream as an origin and the path that goes in front of every target."""
    return _address_of(policy.upstream, policy.trust)


@lru_cache(maxsize=256)
def _address_of(upstream: str, trust: UpstreamTrust) -> tuple[Origin, str]:
    parts = urlsplit(upstream)
    return replace(Origin.parse(f"{parts.scheme}://{parts.netloc}"), trust=trust), parts.path.rstrip("/")


@dataclass(frozen=True, slots=True)
class AttemptSender:
    upstream: UpstreamClient
    leases: Leases
    clock: Clock
    ages: Ages

    async def send(
        self, context: AttemptContext, operation: Operation, policy: Policy, on_late_response: LateResponseCallback
    ) -> Evidence:
        """Send one attempt. Right before its first byte, with the connection up, the right to send is checked again."""
        origin, path_prefix = address_of(policy)
        write_s = policy.timeouts.write_s

        def may_send() -> bool:
            nothing_in_doubt = not operation.doubt
            if nothing_in_doubt and self.clock.mono() >= context.deadline_mono:
                return False  # the caller will get the reply that nothing was sent, so nothing must be sent
            if not self.leases.outlasts(operation.id, context.token, write_s):
                return False
            if operation.doubt and first_send_age_s(operation, self.ages) >= policy.contract.resend_until_s:
                return False  # the machine slept since the decision, and the provider may have forgotten the key
            context.progress.start_byte()
            return True

        try:
            request = wire_request(context.request, operation, policy, path_prefix)
            evidence = await self.upstream.send(
                origin,
                request,
                self._timeouts(context, operation, policy),
                may_send=may_send,
                reuse=policy.reuses_connections,
                on_late=lambda evidence: on_late_response(operation, policy, evidence),
            )
            self.ages.note_response(operation.provider, evidence.response)
            return evidence
        except (ValueError, BodyError):
            if context.progress.byte_started:
                raise  # a fault of ours while the request was on the wire: it does not prove that nothing left
            detail = "the request cannot be written as the policy says"
            return Evidence(NetworkPhase.RESOLVING, 0, WireFault.CONNECT_FAILED, None, detail, 0.0)

    def _timeouts(self, context: AttemptContext, operation: Operation, policy: Policy) -> UpstreamTimeouts:
        """The policy's timeouts. But while nothing can have left, connecting must not take longer than the caller
        waits."""
        given = policy.timeouts
        time_left_s = max(_SHORTEST_CONNECT_S, context.deadline_mono - self.clock.mono())
        bounded = time_left_s if not operation.doubt else given.deadline_s
        if given.connect_s <= bounded and given.tls_s <= bounded:
            return given
        return replace(given, connect_s=min(given.connect_s, bounded), tls_s=min(given.tls_s, bounded))


class EvidenceSpool(Protocol):
    """Takes evidence that the journal could not take."""

    async def put(
        self,
        operation: Operation,
        attempt: AttemptSummary,
        response: Response | None,
        *,
        no_bytes_after_at: float | None,
        undelivered: bool,
    ) -> bool:
        """Store the evidence. Returns whether it is durable."""
        ...


@record
class AttemptResult:
    """The result of one attempt: its evidence and classification."""

    evidence: Evidence
    classification: Classification
    response_tree: Tree = None
    limit_info: LimitInfo | None = None  # the limit that kept it from the wire

    @property
    def circuit_refused(self) -> bool:
        return self.evidence.fault is WireFault.CIRCUIT_OPEN


@record
class ConcludedAttempt:
    """An attempt that is on record, with the decision about the next step."""

    operation: Operation
    decision: Decision
    grant: Grant | None = None  # of the retry that comes next
    limit_info: LimitInfo | None = None  # the limit that holds the call back


@record
class _FinishedAttempt:
    """An attempt that has ended, before it is recorded."""

    context: AttemptContext
    policy: Policy
    result: AttemptResult
    summary: AttemptSummary
    tries: int  # of this call
    wait_s: float  # before another attempt, if there is one


@dataclass(frozen=True, slots=True)
class AttemptRecorder:
    journal_writer: JournalWriter
    leases: Leases
    retry_budget: RetryBudget
    vault: Vault
    clock: Clock
    randomness: Randomness
    telemetry: Telemetry
    waiters: OperationWaiters
    late_evidence: LateEvidenceRecorder
    spool: EvidenceSpool

    async def conclude_attempt(
        self,
        context: AttemptContext,
        operation: Operation,
        policy: Policy,
        result: AttemptResult,
        *,
        tries: int,
        last_delay_s: float,
    ) -> ConcludedAttempt:
        """Conclude the attempt, decide the next step, and record both in one write. Durable when it returns."""
        summary = attempt_summary(operation.attempts, result.evidence, result.classification, policy)
        wait_s = self._backoff_s(policy, result, tries, last_delay_s)
        finished = _FinishedAttempt(context, policy, result, summary, tries, wait_s)
        first = self._decide(operation, finished, budget_allows=True)
        if first[2].action is not Action.RETRY_SAME_OPERATION:
            recorded, decision = await self._record(operation, finished, first, result.limit_info, budget_allows=True)
            return ConcludedAttempt(recorded, decision, None, result.limit_info)
        found = await self.retry_budget.acquire(context.priority, operation, policy, result.classification)
        grant, limit_info = (found, None) if isinstance(found, Grant) else (None, found)
        will_retry = False
        try:
            allowed = grant is not None
            recorded, decision = await self._record(operation, finished, None, limit_info, budget_allows=allowed)
            will_retry = decision.action is Action.RETRY_SAME_OPERATION
        finally:
            if not will_retry:  # the record failed, or another writer was faster and changed the operation
                await self.retry_budget.refund(grant)
        return ConcludedAttempt(recorded, decision, grant if will_retry else None, limit_info)

    async def _record(
        self,
        operation: Operation,
        finished: _FinishedAttempt,
        judged: _Judged | None,
        limit_info: LimitInfo | None,
        *,
        budget_allows: bool,
    ) -> tuple[Operation, Decision]:
        """Write the end of the attempt and the decision. `judged`: the decision, if no time has passed since."""
        context, result, summary = finished.context, finished.result, finished.summary
        executed, decided, before = was_executed(result.classification), Decision(Action.STOP, "", 0.0, True), operation
        sealed_credential = self.journal_writer.credential_to_store(context) if executed else None

        def change_from(current: Operation) -> OperationChange:
            nonlocal decided, before, judged
            before = current
            following, events, decided = judged or self._decide(current, finished, budget_allows=budget_allows)
            judged = None  # if the step is repeated, it starts from the version that another writer left
            if not following.state.ended:
                following, more = _after_decision(following, decided)
                events += more
            following, shown = self._shown_balance(finished, following)
            return change_of(
                current,
                following,
                events,
                self._write_context(current, following, decided, finished, limit_info),
                lease_s=self.leases.lease_s,
                source=context.source,
                attempt=summary,
                action=decided.action,
                because=decided.because,
                delay_s=decided.delay_s,
                sealed_response=self._sealed_response(following, result),
                accepted_credential=executed,
                sealed_credential=sealed_credential,
                shown=shown,
            )

        try:
            recorded = await self.journal_writer.write_with_retry(operation, change_from)
        except JournalUnavailable:
            return await self._spool_evidence(operation, finished)
        if sealed_credential is not None:
            self.journal_writer.note_credential_stored(context)
        self._emit_events(before, recorded, summary, decided)
        if recorded.kind is OperationKind.VOID:
            await self.late_evidence.external_evidence.release_voided_payment(before, recorded)
        return recorded, decided

    def _shown_balance(self, finished: _FinishedAttempt, operation: Operation) -> tuple[Operation, ShownBalance | None]:
        """The balance of the operation's payment that the response shows. If the payment was made elsewhere, its
        balance is verified later."""
        policy, result = finished.policy, finished.result
        now = self.journal_writer.journal_clock.now()
        shown = shown_balance(
            operation,
            policy,
            result.classification,
            result.response_tree,
            now=now,
            request_tree=finished.context.tree,
        )
        return after_already_done(operation, shown, result.classification, policy, now=now)

    def _decide(self, current: Operation, finished: _FinishedAttempt, *, budget_allows: bool) -> _Judged:
        """Conclude from the operation's present version: the operation as the attempt leaves it, and the next step."""
        policy, result, summary = finished.policy, finished.result, finished.summary
        changed, event = conclusion_changes(current, summary.number, result.classification, policy.contract)
        events = (event,)
        returns = policy.payment.failed_is_return
        if precedes_end(current, result.classification, failed_is_return=returns, is_response=True):
            changed["incident"] = current.incident  # another writer recorded the later evidence first
        if (end := END_DECISIONS.get(changed["state"])) is not None:
            return current.changed(**changed, because=end.because), events, end
        after = current.changed(**changed)
        if after.attempt_under_way:
            # Our lease ran out, and a duplicate sends a later attempt right now. That one decides the next step.
            return after, events, Decision(Action.STOP, "attempt_still_under_way", 0.0, effect_may_exist=True)
        decision_context = decision_context_of(
            after,
            policy,
            finished.context,
            self.clock,
            self.journal_writer.ages,
            tries=finished.tries,
            delay_s=finished.wait_s,
            last=result.classification,
            held_back=result.evidence.fault in LIMIT_FAULTS,
            budget_allows=budget_allows,
            circuit_refused=result.circuit_refused,
        )
        return after, events, decide(decision_context)

    def _write_context(
        self,
        current: Operation,
        after: Operation,
        decision: Decision,
        finished: _FinishedAttempt,
        limit_info: LimitInfo | None,
    ) -> WriteContext:
        context, now, check_at = finished.context, self.journal_writer.journal_clock.now(), None
        if decision.action in _CHECKING_ACTIONS:
            checks_done = after.checks_done if after.state is current.state else 0  # a new state has its own schedule
            check_at = now + self._check_delay_s(after.state, checks_done, decision, finished, limit_info)
        is_delivered = self._is_delivered(context, after)
        lost_another = current.delivery_unknown and after.attempts > 1  # the reply that its caller got is unknown
        joined = not context.in_background and self.waiters.is_awaited(after.id)  # a duplicate may get the reply
        may_be_told = not context.caller_gone or joined
        context.progress.record_delivery(pending=may_be_told and not (is_delivered or lost_another))
        return WriteContext(
            now,
            sends_under=context.token if decision.action in _SENDING_ACTIONS else None,
            gives_back=context.token,
            check_at=check_at,
            no_bytes_after_at=now + finished.result.evidence.late_response_window_s,
            reached=is_delivered,
            delivery_pending=context.progress.delivery_pending,
            passed_on=may_be_told and passes_on_unread(after, finished.result.classification),
            reports_attempt=True,
        )

    def _is_delivered(self, context: AttemptContext, operation: Operation) -> bool:
        """Whether somebody gets the reply, however long the write takes. If the caller's time is nearly up, the end is
        recorded as perhaps undelivered, and corrected when the call has ended. Without a guard nothing depends on
        it."""
        if operation.guard is None and not context.caller_gone:
            return True
        return context.outlasts_record(self.clock.mono()) or self.waiters.has_waiter(operation.id)

    async def _spool_evidence(self, operation: Operation, finished: _FinishedAttempt) -> tuple[Operation, Decision]:
        """The journal did not take the record. A spool of our own keeps it until the journal does. Then a response that
        the provider would repeat is passed on, with that reason. "Nothing was sent, and nothing will be" must not be
        passed on: until the journal has it, another sidecar may take the operation for a doubt and send it again. Nor
        may a decline that the provider would not repeat."""
        policy, summary, evidence = finished.policy, finished.summary, finished.result.evidence
        no_bytes_after_at = self.journal_writer.journal_clock.now() + evidence.late_response_window_s
        undelivered = not finished.context.outlasts_record(self.clock.mono(), _SPOOL_TIME_MAX_S)
        if not await self.spool.put(
            operation, summary, evidence.response, no_bytes_after_at=no_bytes_after_at, undelivered=undelivered
        ):
            raise JournalUnavailable("neither the journal nor the spool took the record")
        after, _ = conclude(operation, summary.number, summary.classification, policy.contract)
        if after.state is State.BACKOFF or (after.state is State.FAILED and _resend_may_charge(policy.contract)):
            raise JournalUnavailable("the operation is not ended in the journal")
        if undelivered and after.state in _WITH_EFFECT_STATES:
            raise JournalUnavailable("the spool has the reply as undelivered, so nobody may be told it")
        after = after.changed(because="journal_unavailable_spooled")
        return after, Decision(Action.STOP, after.because, 0.0, effect_may_exist=bool(after.doubt))

    def _check_delay_s(
        self,
        state: State,
        checks_done: int,
        decision: Decision,
        finished: _FinishedAttempt,
        limit_info: LimitInfo | None,
    ) -> float:
        """When the resolver first takes the operation: at once if it may inquire and a caller still waits for the
        result. After an attempt that our limits refused it waits, because a provider that does not respond to calls
        does not respond to inquiries either."""
        policy = finished.policy
        if state is State.REQUIRES_ACTION:
            return policy.resolve.action_expires_s
        asks = decision.action is Action.STATUS_INQUIRY and self.waiters.resolver_running
        if asks and not finished.context.caller_gone and limit_info is None:
            return 0.0
        schedule_s = policy.resolve.schedule_s
        return max(decision.delay_s, schedule_s[min(checks_done, len(schedule_s) - 1)])

    def _backoff_s(self, policy: Policy, result: AttemptResult, tries: int, last_delay_s: float) -> float:
        """How long to wait before another try. After a success there is none."""
        read, response = result.classification, result.evidence.response
        if read.result_class is ResultClass.SUCCEEDED and read.effect is Effect.DONE:
            return 0.0
        wait = backoff_delay_s(policy.retry_rule(read.result_class), tries, self.randomness.draw(), last_delay_s)
        return at_least_retry_after_s(wait, retry_after_of(response, self.clock.now()), self.randomness.draw())

    def _emit_events(self, before: Operation, after: Operation, attempt: AttemptSummary, decision: Decision) -> None:
        self.telemetry.emit(AttemptFinished(after, attempt, decision))
        kind = EvidenceKind.REPLAY if before.doubt else EvidenceKind.RESPONSE
        for event in transition_events(before, after, kind, self.clock.now()):
            self.telemetry.emit(event)

    def _sealed_response(self, operation: Operation, result: AttemptResult) -> bytes | None:
        """The response to keep for replay, if it is the operation's own."""
        response = result.evidence.response
        if response is None or not response_matches_state(operation, result.classification):
            return None
        return seal_response(self.vault, response, operation.id)


_Judged = tuple[Operation, tuple[Event, ...], Decision]  # the operation after the attempt, the events, the next step
_SPOOL_TIME_MAX_S = 1.0  # a file of our own disk is written in milliseconds
_WITH_EFFECT_STATES = frozenset({State.SUCCEEDED, State.PENDING})
_SENDING_ACTIONS = frozenset({Action.RETRY_SAME_OPERATION, Action.FALLBACK_NEW_ATTEMPT})
_CHECKING_ACTIONS = frozenset(
    {Action.STATUS_INQUIRY, Action.WAIT_FOR_WEBHOOK, Action.SCHEDULE_RETRY, Action.ASK_CUSTOMER_ACTION}
)


def _after_decision(after: Operation, decision: Decision) -> tuple[Operation, tuple[Event, ...]]:
    """The operation after the decision, and the events of the decision itself."""
    match decision.action:
        case Action.MARK_TERMINAL_FAILURE if after.state is State.BACKOFF:
            event = Event.GIVEN_UP
        case Action.SEND_TO_REVIEW:
            event = Event.PARKED
        case Action.RETRY_SAME_OPERATION if after.state is State.UNKNOWN:
            event = Event.RESEND_RECORDED
        case _:
            return after.changed(because=decision.because), ()
    return advance(after, event, because=decision.because), (event,)


def _resend_may_charge(contract: ProviderContract) -> bool:
    """Whether a re-send by a sidecar that does not know of the decline might be a new charge."""
    return contract.dedupes and contract.errors_under_key is ErrorsUnderKey.REEXECUTED
