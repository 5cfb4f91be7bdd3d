"""The resolver: finds out unknown outcomes after the caller has left. It decides by the same rules as a call, with an
inquiry in place of a send.

    take a due operation -> decide -> inquire | re-send under the same key | cancel | wait | send to review -> record

Only evidence ends a doubt. If a schedule runs out, the operation goes to review, with an alert. It never fails by that.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from paywitness.clock import Clock
from paywitness.core.admission import TrafficClass
from paywitness.core.circuit import CallGroup, CircuitDecision, CircuitRefusal
from paywitness.core.consequences import WriteContext
from paywitness.core.decide import Action, decide
from paywitness.core.errors import JournalUnavailable, StaleWrite
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.inquiry import AbsenceProof, after_miss, next_inquiry_at, quiet_since, reason_to_inquire
from paywitness.core.lifecycle import Event, IncidentKind, advance
from paywitness.core.limit_info import LimitInfo
from paywitness.core.operation import Finding, FindingKind, Operation, State
from paywitness.core.policy import Policy
from paywitness.core.result import Classification, ResultClass
from paywitness.engine import failpoints
from paywitness.engine.calls.context import (
    RESOLVER,
    AttemptContext,
    AttemptPermit,
    background_context,
    decision_context_of,
)
from paywitness.engine.calls.gate import held_party
from paywitness.engine.calls.pipeline import CallPipeline
from paywitness.engine.calls.stored_messages import StoredRequest
from paywitness.engine.durability.due_times import DueTimes
from paywitness.engine.durability.journal_writer import change_of
from paywitness.engine.failpoints import Failpoints
from paywitness.engine.policy_revisions import PinnedPolicies
from paywitness.engine.resolution.external_evidence import ExternalEvidenceRecorder
from paywitness.engine.resolution.inquiries import InquiryClient, InquiryResult
from paywitness.engine.resolution.next_checks import action_check, after_action_check, gives_action_up, next_check
from paywitness.journal.base import Journal, OperationChange
from paywitness.policy.book import PolicyBook
from paywitness.randomness import Randomness
from paywitness.repeated_lines import REPEATS
from paywitness.tasks import TaskRefused, Tasks
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import EvidenceKind, JournalUnanswered, ScheduleRanOut, transition_events

_log = logging.getLogger("paywitness.resolver")
_RETRY_AFTER_S = 0.25  # after a turn that failed, and for a provider that refuses inquiries
_POSTPONE_MIN_S = 1.0
# An intent's retry budget returns after a day, and an operator may end a forced state at any time.
_POSTPONE_MAX_S = 60.0
_RETRY_AFTER_MAX_S = 86_400.0  # a provider that requests a longer wait must not postpone a doubt for ever
_LOST_OUTCOME = Classification.of(ResultClass.UNKNOWN_OUTCOME, "in_doubt", lost=True)


@dataclass(slots=True)
class Resolver:
    journal: Journal
    pipeline: CallPipeline
    external_evidence: ExternalEvidenceRecorder
    inquiry_client: InquiryClient
    pinned: PinnedPolicies
    book: Callable[[], PolicyBook]
    clock: Clock
    randomness: Randomness
    failpoints: Failpoints
    telemetry: Telemetry
    tasks: Tasks
    workers_max: int
    per_provider_max: int
    _active_by_provider: Counter[str] = field(default_factory=Counter)

    async def keep_resolving(self, before_each_turn: Callable[[], Awaitable[object]] | None = None) -> None:
        """Take due operations for ever. `before_each_turn` runs before each turn: it replays the spool, so that the
        resolver does not inquire about what the spool already shows."""
        self.external_evidence.waiters.resolver_running = True
        while True:
            try:
                if before_each_turn is not None:
                    await before_each_turn()
                taken = await self.start_due()
                await self._due_times.wait(self._due_times.operations, did_something=taken > 0)
            except JournalUnavailable:
                self.telemetry.emit(JournalUnanswered("due operations"))
                await self.clock.sleep(_RETRY_AFTER_S)
            except Exception as error:  # noqa: BLE001  # a fault of ours must not end the resolving for ever
                _log.error("taking due operations failed by %s", type(error).__name__, extra=REPEATS)
                await self.clock.sleep(2 * _RETRY_AFTER_S)

    @property
    def _due_times(self) -> DueTimes:
        return self.pipeline.journal_writer.ages.due_times

    async def start_due(self) -> int:
        """Start on due operations, as many as workers are free. Returns how many."""
        free_workers = self.workers_max - self._active_by_provider.total()
        if free_workers <= 0:
            return 0
        busy = {name for name, count in self._active_by_provider.items() if count >= self.per_provider_max}
        self._due_times.providers_held_back = full = frozenset(busy | self._providers_refusing_inquiries())
        token = self.randomness.token()
        requested_boot = self.clock.boot()
        limit = min(free_workers, self.per_provider_max)
        taken = await self.journal.take_due(token, self.pipeline.leases.lease_s, limit=limit, full=full)
        for operation in taken:
            self.pipeline.journal_writer.journal_clock.update(operation.updated_at)  # the time at which it was taken
            self.pipeline.leases.hold(operation.id, token, requested_boot, operation)
            self._active_by_provider[operation.provider] += 1
            try:
                self.tasks.start(self._resolve_and_release(operation, token), "resolve")
            except TaskRefused:  # we are shutting down: its lease runs out, and it is still due
                self._active_by_provider[operation.provider] -= 1
                self.pipeline.leases.release(operation.id)
        return len(taken)

    def _providers_refusing_inquiries(self) -> set[str]:
        """Providers whose inquiries the circuit refuses. Their due operations stay in the journal, and cost nothing."""
        views = {name: self.pipeline.gate.circuits.view(name, CallGroup.INQUIRY) for name in self.book().providers}
        refusing = {name: view for name, view in views.items() if view.decision is CircuitDecision.REFUSE}
        for view in refusing.values():
            ends_by_time = view.reason not in {CircuitRefusal.PROBING, CircuitRefusal.RAMP}
            self._due_times.operations.set_within(max(view.retry_after_s if ends_by_time else 0.0, _RETRY_AFTER_S))
        return set(refusing)

    async def _resolve_and_release(self, operation: Operation, token: str) -> None:
        try:
            await self.failpoints.hit(failpoints.DUE_TAKEN)
            await self.resolve(operation, token)
        except JournalUnavailable:
            self.telemetry.emit(JournalUnanswered("the result of an inquiry"))
        except StaleWrite:
            _log.info("%s was changed by somebody else meanwhile; the resolver takes it again", operation.id)
        finally:
            self._active_by_provider[operation.provider] -= 1
            if self._active_by_provider[operation.provider] <= 0:
                del self._active_by_provider[operation.provider]
            self.pipeline.leases.release(operation.id)
            self._due_times.operations.set()

    async def resolve(self, operation: Operation, token: str) -> None:
        """One turn for one operation whose lease we hold."""
        policy = await self.pinned.policy_from_book(operation, self.book())
        if policy is None:
            await self._send_to_review(
                operation, token, Finding("policy", FindingKind.FAILED, detail="its policy cannot be read")
            )
            return
        request = await self.inquiry_client.stored_request(operation)
        context = background_context(operation, policy, request, token, self.clock)
        decision = decide(
            decision_context_of(operation, policy, context, self.clock, self.pipeline.journal_writer.ages, tries=0)
        )
        match decision.action:
            case Action.CANCEL:
                await self._cancel(operation, policy, request, token)
            case Action.SCHEDULE_RETRY | Action.RETRY_SAME_OPERATION:
                limited_for_s = await self._resend(context, operation, policy)
                if limited_for_s is not None:
                    await self._postpone(operation, token, limited_for_s)
            case Action.SEND_TO_REVIEW:
                await self._send_to_review(operation, token, None, because=decision.because)
            case _ if policy.inquiries:
                await self._inquire(context, operation, policy, request)
            case _:
                await self._reschedule(operation, policy, token, None)

    async def _inquire(
        self, context: AttemptContext, operation: Operation, policy: Policy, request: StoredRequest | None
    ) -> None:
        inquired_at = self._low_now(operation)
        inquiry_result = await self.inquiry_client.inquire(operation, policy, request, reason_to_inquire(operation))
        if inquiry_result.limited_for_s is not None:
            await self._postpone(operation, context.token, inquiry_result.limited_for_s)
            return
        await self.failpoints.hit(failpoints.INQUIRY_ANSWERED)
        finding = inquiry_result.seen.finding
        if finding.kind is FindingKind.HIT:
            await self._apply_hit(operation, policy, request, context.token, inquiry_result, inquired_at)
            return
        if inquiry_result.cannot_inquire:
            await self._resend_or_reschedule(context, operation, policy, inquiry_result, inquired_at)
            return
        is_missing = finding.kind is FindingKind.MISSED or inquiry_result.gone
        if not is_missing or not _miss_is_meaningful(operation):
            await self._reschedule(operation, policy, context.token, inquiry_result, inquired_at)
            return
        proof = AbsenceProof.of(inquiry_result.missed_inquiries, self.external_evidence.settle_s(policy))
        after, absent = after_miss(operation, proof, inquired_at)
        if inquiry_result.gone:  # an object that the provider has named existed, so it is never absent
            if absent:
                incident = IncidentKind.REFERENCE_NOT_FOUND
                await self._send_to_review(operation, context.token, finding, "in_doubt_not_found", incident)
            else:
                await self._reschedule(operation, policy, context.token, inquiry_result, inquired_at)
            return
        if absent:
            if not await self.external_evidence.apply_absence(operation, after, policy, finding, context.token):
                await self._reschedule(operation, policy, context.token, inquiry_result, inquired_at)
            return
        await self._resend_or_reschedule(context, operation, policy, inquiry_result, inquired_at)

    async def _apply_hit(
        self,
        operation: Operation,
        policy: Policy,
        request: StoredRequest | None,
        token: str,
        inquiry_result: InquiryResult,
        inquired_at: float,
    ) -> None:
        """Apply a hit. An object that several calls share may come from a replica that lags, with the denial of an
        earlier attempt. Such a denial counts only after as many sightings as an absence needs misses."""
        seen = inquiry_result.seen
        if seen.may_be_stale and _miss_is_meaningful(operation):
            proof = AbsenceProof.of(inquiry_result.missed_inquiries, self.external_evidence.settle_s(policy))
            _, seen_often_enough = after_miss(operation, proof, inquired_at)
            if not seen_often_enough:
                await self._reschedule(operation, policy, token, inquiry_result, inquired_at)
                return
        applied = await self.external_evidence.apply(
            operation,
            policy,
            EvidenceSource.INQUIRY,
            seen.finding,
            provider_object=seen.provider_object,
            may_be_stale=seen.may_be_stale,
            lease_token=token,
        )
        if applied.event is None and await gives_action_up(applied.operation, policy, seen, self.external_evidence):
            await self._cancel(applied.operation, policy, request, token)
            return
        if applied.event is None or (not applied.operation.state.ended and applied.operation.lease is not None):
            await self._reschedule(applied.operation, policy, token, inquiry_result, inquired_at)

    async def _resend_or_reschedule(
        self,
        context: AttemptContext,
        operation: Operation,
        policy: Policy,
        inquiry_result: InquiryResult,
        inquired_at: float,
    ) -> None:
        """The inquiry found nothing: re-send if that is safe and the order is still wanted; else plan a check."""
        ages = self.pipeline.journal_writer.ages
        decision = decide(decision_context_of(operation, policy, context, self.clock, ages, tries=0, inquired=True))
        resends = decision.action is Action.SCHEDULE_RETRY and operation.state is State.UNKNOWN
        limited_for_s = await self._resend(context, operation, policy) if resends else None
        if not resends or limited_for_s is not None:  # if a re-send is not allowed, the next check follows
            await self._reschedule(
                operation, policy, context.token, inquiry_result, inquired_at, limited_for_s=limited_for_s
            )

    async def _resend(self, context: AttemptContext, operation: Operation, policy: Policy) -> float | None:
        """Send the same bytes under the same key, and under the credential of the first send: another one could be
        another account's, in which the key is not known. If it has expired, the provider refuses the re-send, and we
        inquire. Like any retry it needs a permit and a grant; without one it returns how long to wait."""
        if self.pipeline.gate.end_may_be_lost(operation):
            return self.pipeline.leases.lease_s  # a caller may have seen "failed", which the journal forgot
        permit = await self.pipeline.gate.acquire(
            policy,
            CallGroup.WRITE,
            TrafficClass.RESOLUTION,
            policy.timeouts.deadline_s,
            held_party(policy, operation),
        )
        if permit.attempt_permit is None:
            return permit.retry_after_s
        try:
            return await self._resend_with_permit(context, operation, policy, permit.attempt_permit)
        finally:  # in every case, also if the journal did not answer
            await self.pipeline.gate.release(permit.attempt_permit)

    async def _resend_with_permit(
        self, context: AttemptContext, operation: Operation, policy: Policy, permit: AttemptPermit
    ) -> float | None:
        grant = await self.pipeline.retry_budget.acquire(context.priority, operation, policy, _LOST_OUTCOME)
        if isinstance(grant, LimitInfo):
            return grant.retry_after_s
        change = change_of(
            operation,
            advance(operation, Event.RESEND_RECORDED, checks_done=operation.checks_done + 1),
            (Event.RESEND_RECORDED,),
            WriteContext(self._journal_now(operation), sends_under=context.token),
            lease_s=self.pipeline.leases.lease_s,
            source=RESOLVER,
            action=Action.SCHEDULE_RETRY,
            because="in_doubt_same_key_later",
        )
        taken = None
        try:
            taken = await self.pipeline.journal_writer.try_write(change)
        finally:
            if taken is None:  # somebody was faster, or had later evidence
                await self.pipeline.retry_budget.refund(grant)
        if taken is None:
            return None
        finished = context.progress.finished
        try:
            await self.failpoints.hit(failpoints.RESEND_RECORDED)
            end = await self.pipeline.run_attempts(context, taken, policy, None, permit, grant, tries=0)
            finished.set_result(end.reply)
            await self.pipeline.duplicates.mark_undelivered(context)
        finally:
            if not finished.done():
                finished.cancel()  # a duplicate may wait for it
            self.external_evidence.waiters.notify(operation.id)
        return None

    async def _cancel(self, operation: Operation, policy: Policy, request: StoredRequest | None, token: str) -> None:
        """Cancel it at the provider. `cancel_sent` is durable before a byte leaves, so no re-send can follow."""
        cancel = policy.cancel
        if cancel is None:
            await self._send_to_review(
                operation, token, Finding("cancel", FindingKind.FAILED, detail="the policy has no cancel")
            )
            return
        party = held_party(policy, operation)
        view = self.pipeline.gate.circuits.view(policy.provider, CallGroup.WRITE, party)
        if view.decision is CircuitDecision.REFUSE:  # a cancel is sent once: not while the provider is down
            await self._postpone(operation, token, view.retry_after_s)
            return
        acts = operation.state is State.REQUIRES_ACTION  # then the cancel gets a schedule of its own
        checks_done = 0 if acts else operation.checks_done
        sent = await self.pipeline.journal_writer.try_write(
            change_of(
                operation,
                operation.changed(cancel_sent=True, cancel_wanted=False, checks_done=checks_done),
                (),
                WriteContext(self._journal_now(operation), sends_under=token),
                lease_s=self.pipeline.leases.lease_s,
                source=RESOLVER,
                action=Action.CANCEL,
                because="action_expired_cancel" if acts else "in_doubt_cancel_wanted",
            )
        )
        if sent is None:
            return
        seen = await self.inquiry_client.cancel(sent, policy, cancel, request)
        if seen.finding.kind is FindingKind.HIT:
            applied = await self.external_evidence.apply(
                sent,
                policy,
                EvidenceSource.CANCEL,
                seen.finding,
                provider_object=seen.provider_object,
                lease_token=token,
            )
            if applied.event is not None:
                return
        await self._reschedule(sent, policy, token, InquiryResult(seen))

    async def _reschedule(
        self,
        operation: Operation,
        policy: Policy,
        token: str,
        inquiry_result: InquiryResult | None,
        inquired_at: float | None = None,
        *,
        limited_for_s: float | None = None,
    ) -> None:
        """Record a check that ended nothing, and the time of the next one; or that there is none. `inquired_at`: when
        the inquiry was made, by which a miss counts (`_low_now`). `limited_for_s`: our limits refused a re-send that
        was due; it is allowed for a short time only, and must not wait for the next check."""
        ran_out = False
        resend_in_s = self._postpone_delay_s(limited_for_s) if limited_for_s is not None else None
        before, attempts = operation, operation.attempts

        def change_from(current: Operation) -> OperationChange:
            nonlocal ran_out, before
            before, ran_out = current, False
            now = self._journal_now(current)
            after = current
            events: tuple[Event, ...] = ()
            missed = (
                inquiry_result is not None and bool(inquiry_result.missed_inquiries) and _miss_is_meaningful(current)
            )
            proof = (
                AbsenceProof.of(inquiry_result.missed_inquiries, self.external_evidence.settle_s(policy))
                if missed and inquiry_result
                else None
            )
            if proof is not None and inquiry_result and not inquiry_result.seen.may_be_stale:
                events = (Event.INQUIRY_MISSED,)
            if proof is not None and current.attempts == attempts and inquired_at is not None:
                after, _ = after_miss(current, proof, inquired_at)
            counted = after.changed(checks_done=after.checks_done + (0 if after.misses > current.misses else 1))
            due_at = self._next_inquiry_at(counted, policy, now, proof)
            after, due_at = next_check(after, counted, due_at, now + resend_in_s if resend_in_s is not None else None)
            if due_at is not None and inquiry_result is not None and inquiry_result.retry_after_s is not None:
                due_at = max(due_at, now + min(inquiry_result.retry_after_s, _RETRY_AFTER_MAX_S))
            last_check = current.state.ended or current.state is State.REQUIRES_REVIEW
            if current.state is State.REQUIRES_ACTION:
                check = action_check(operation, current, policy, inquiry_result, due_at, self.external_evidence)
                after, due_at = after_action_check(after, policy, check, now)
                last_check = due_at is None
            if due_at is None and not last_check:
                if self._should_cancel(after, policy):
                    after, due_at = after.changed(cancel_wanted=True), now
                else:
                    ran_out = True
                    after = advance(after, Event.SCHEDULE_RAN_OUT, because="schedule_ran_out")
                    events = (*events, Event.SCHEDULE_RAN_OUT)
            known = WriteContext(now, gives_back=token, check_at=due_at, last_check=last_check)
            finding = inquiry_result.seen.finding if inquiry_result is not None else None
            return change_of(current, after, events, known, source=RESOLVER, because=after.because, finding=finding)

        recorded = await self.pipeline.journal_writer.write_with_retry(operation, change_from)
        for record in transition_events(before, recorded, EvidenceKind.INQUIRY, self.clock.now()):
            self.telemetry.emit(record)
        if ran_out:
            _log.error("%s: the schedule has run out without evidence of the outcome", operation.id)
            self.telemetry.emit(ScheduleRanOut(recorded))
        self.external_evidence.waiters.notify(recorded.id)  # even after a miss: a caller may know enough now

    async def _postpone(self, operation: Operation, token: str, wait_s: float) -> None:
        """Postpone an operation that our own limits hold back. It is pulled forward when they allow it."""
        wait_s = self._postpone_delay_s(wait_s)

        def change_from(current: Operation) -> OperationChange:
            now = self._journal_now(current)
            is_ours = current.lease is not None and current.lease.token == token
            asked_by = current.check_asked_by if is_ours else ""
            check_at = now + wait_s if is_ours else None
            known = WriteContext(now, gives_back=token, check_at=check_at, check_asked_by=asked_by)
            note = "held back by our limits"
            return change_of(current, current, (), known, source=RESOLVER, because=current.because, note=note)

        await self.pipeline.journal_writer.write_with_retry(operation, change_from)

    def _postpone_delay_s(self, wait_s: float) -> float:
        return min(max(wait_s, _POSTPONE_MIN_S), _POSTPONE_MAX_S) * (1.0 + self.randomness.draw())

    def _next_inquiry_at(
        self, operation: Operation, policy: Policy, now: float, proof: AbsenceProof | None
    ) -> float | None:
        """When to inquire again, in the journal's time. The wait follows from the time that has certainly passed."""
        low_now, jitter = self._low_now(operation), self.external_evidence.jitter_factor()
        due_at = next_inquiry_at(operation, policy.resolve.schedule_s, low_now, jitter, proof=proof)
        if due_at is None:
            return None
        trusted_in_s = quiet_since(operation) + proof.lag_s - low_now if proof is not None else 0.0
        if trusted_in_s > 0 and self.external_evidence.waiters.has_waiter(operation.id):
            # A caller waits: inquire as soon as the look-up cannot lag any more.
            due_at = min(due_at, low_now + trusted_in_s)
        return now + (due_at - low_now)

    def _low_now(self, operation: Operation) -> float:
        """Now, counted by the smallest age from the last moment at which a byte of the operation could leave."""
        return self.pipeline.journal_writer.ages.low_now(quiet_since(operation))

    def _journal_now(self, operation: Operation) -> float:
        """The journal gave the operation as due by its own clock, which never goes back; ours may be behind."""
        return max(self.pipeline.journal_writer.journal_clock.now(), operation.updated_at)

    def _should_cancel(self, operation: Operation, policy: Policy) -> bool:
        automatic = policy.cancel is not None and policy.cancel.when_schedule_ran_out
        return automatic and operation.state is State.UNKNOWN and not operation.cancel_sent

    async def _send_to_review(
        self,
        operation: Operation,
        token: str,
        finding: Finding | None,
        because: str = "in_doubt_nobody_to_ask",
        incident: IncidentKind | None = None,
    ) -> None:
        """Send the operation to review: only a person or new evidence can end it."""
        before = operation

        def change_from(current: Operation) -> OperationChange:
            nonlocal before
            before = current
            events = (Event.PARKED,) if current.state in {State.UNKNOWN, State.PENDING} else ()
            after = advance(current, Event.PARKED) if events else current
            known = WriteContext(self._journal_now(current), gives_back=token, last_check=True)
            after = after.changed(because=because, incident=after.incident or incident)
            return change_of(current, after, events, known, source=RESOLVER, because=because, finding=finding)

        recorded = await self.pipeline.journal_writer.write_with_retry(operation, change_from)
        for record in transition_events(before, recorded, EvidenceKind.INQUIRY, self.clock.now()):
            self.telemetry.emit(record)
        self.external_evidence.waiters.notify(recorded.id)


def _miss_is_meaningful(operation: Operation) -> bool:
    """Whether "not found" can prove anything. It cannot if the provider is known to have accepted the operation."""
    return operation.state.in_doubt and bool(operation.doubt)
