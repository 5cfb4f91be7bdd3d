"""The life of a call, from the claim to a reply or a recorded doubt. All its branches are here, none below.

    claim -> [ permit -> send -> classify -> conclude -> decide -> record ] -> reply
             [ again, if the decision says so and the budget grants it     ]

SENDING is durable before the first byte may leave; a reply leaves after its record is durable. From the first byte on
the attempt belongs to the operation: neither a caller that leaves nor its deadline stops it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

from paywitness.clock import Clock
from paywitness.core.bodies.tree import Tree
from paywitness.core.claim import Claim, ClaimVerdict
from paywitness.core.classify import ExpectedPayment, read_response
from paywitness.core.consequences import WriteContext
from paywitness.core.decide import Action, Decision, decide
from paywitness.core.errors import JournalNotAsked, JournalUnavailable
from paywitness.core.evidence import Evidence
from paywitness.core.external_evidence import EvidenceSource, conclude_external
from paywitness.core.fallback import FALLBACKS_MAX, FallbackCause, FallbackChoice, cause_of
from paywitness.core.inquiry import CONFIRMED_ABSENT, is_settled, quiet_since
from paywitness.core.lifecycle import Event, advance
from paywitness.core.limit_info import LimitInfo
from paywitness.core.operation import Finding, FindingKind, Operation, State
from paywitness.core.payment import Payment
from paywitness.core.payment_evidence import without_doubt_of_others
from paywitness.core.payout import PayoutClaim, PayoutRefusal
from paywitness.core.policy import Policy
from paywitness.core.problems import ATTEMPT_NOT_RECORDED, JOURNAL_FORGOT
from paywitness.core.record import record
from paywitness.core.reply import Reply, absent_reply, reply_for, unknown_reply
from paywitness.core.result import Classification, Effect, ResultClass
from paywitness.engine import failpoints
from paywitness.engine.calls.attempts import AttemptRecorder, AttemptResult, AttemptSender
from paywitness.engine.calls.context import (
    AttemptContext,
    AttemptPermit,
    CallContext,
    attempt_summary,
    decision_context_of,
)
from paywitness.engine.calls.duplicates import DuplicateCalls, Leader
from paywitness.engine.calls.fallback import Fallbacks, FirstEnd, RouteTaken
from paywitness.engine.calls.gate import Gate, GateDecision, RetryBudget
from paywitness.engine.calls.payout_check import PayoutCheck
from paywitness.engine.calls.refused_lookups import RefusedLookups
from paywitness.engine.calls.stored_messages import StoredRequest, seal_response
from paywitness.engine.durability.journal_writer import JournalWriter, change_of
from paywitness.engine.durability.leases import Leases
from paywitness.engine.failpoints import Failpoints
from paywitness.engine.resolution.late_evidence import LateEvidence, LateEvidenceRecorder
from paywitness.limits.budgets import Grant
from paywitness.secrets import Vault
from paywitness.tasks import LongWork, TaskRefused, Tasks
from paywitness.telemetry.events import EvidenceKind, transition_events


@record
class CallEnd:
    """How a call ended for its caller."""

    reply: Reply
    limit_info: LimitInfo | None = None  # the limit that held it back last
    rerouted: CallContext | None = None  # the call at the route that it fell back to; None: it stayed at its own
    waits_for: Operation | None = None  # a movement of the same payment in flight: after it the call may be tried again

    def with_reply(self, reply: Reply) -> CallEnd:
        return self if reply is self.reply else replace(self, reply=reply)


@dataclass(frozen=True, slots=True)
class CallPipeline:
    """Carries one call to a reply, or to a recorded doubt."""

    journal_writer: JournalWriter
    duplicates: DuplicateCalls
    gate: Gate
    retry_budget: RetryBudget
    sender: AttemptSender
    attempt_recorder: AttemptRecorder
    leases: Leases
    vault: Vault
    clock: Clock
    failpoints: Failpoints
    fallbacks: Fallbacks
    late_evidence: LateEvidenceRecorder
    tasks: Tasks
    payout_check: PayoutCheck
    refused_lookups: RefusedLookups
    long_work: LongWork = field(default_factory=LongWork)

    async def run(self, context: CallContext, decision: GateDecision, leader: Leader) -> CallEnd:
        """Carry a call that the gate has decided on to a reply, or to a recorded doubt."""
        permit = decision.attempt_permit
        try:
            await self.failpoints.hit(failpoints.CALL_RECEIVED)
            if decision.granted:
                claim = await self.journal_writer.claim(context, permitted=True)
            else:
                claim = await self.refused_lookups.claim(context)
            if decision.granted and claim.verdict is ClaimVerdict.ABSENT and _is_checked_first(context.payout_claim):
                await self.gate.release(permit)  # the address of the check may hang, and other calls need the slot
                if await self.payout_check.allows(context):
                    checked = context.after_payout_check()
                    return await self.run(checked, await self.gate.admit(checked, 0), leader)
                claim = Claim(ClaimVerdict.CHECK_REFUSED, None, claim.now, payout=PayoutRefusal())
            leader.release_followers()
            context = context.seen_by(claim)
            if claim.verdict is ClaimVerdict.OWNED and claim.operation is not None:
                await self.failpoints.hit(failpoints.SENDING_RECORDED)
                end = await self.run_attempts(context, claim.operation, context.policy, claim.payment, permit)
                return await self._wait_or_pay_elsewhere(context, end, claim.payment)
            if claim.verdict is ClaimVerdict.IN_DOUBT and permit is not None:
                return await self.resume_unknown(context, claim, permit)
            await self.gate.release(permit)
            reply = await self.duplicates.reply_to(context, claim, decision.detail)
            return CallEnd(reply, waits_for=claim.operation if claim.waits else None)
        finally:
            await self.gate.release(permit)

    def check_journal_remembers(self) -> None:
        """Raise if the journal has just lost its last records, or all of them: it cannot show that nothing was sent."""
        rollback = self.journal_writer.rollback
        if rollback is not None and rollback.recently_rolled_back():
            raise JournalNotAsked(JOURNAL_FORGOT)

    async def reply_to_refused(self, context: CallContext, refusal: str) -> Reply | None:
        """As `reply_from_journal`, for a call that our limits refuse unless it waits. The number of look-ups at once is
        bounded."""
        return await self._reply_to(context, await self.refused_lookups.claim(context), refusal)

    async def reply_from_journal(self, context: CallContext) -> Reply | None:
        """The reply from the journal's facts under key and guard, for a call without a slot at the provider. None: the
        call would have to send. A doubt whose time is up always has a reply."""
        return await self._reply_to(context, await self.journal_writer.claim(context, permitted=False), "")

    async def _reply_to(self, context: CallContext, claim: Claim, refusal: str) -> Reply | None:
        if claim.verdict is ClaimVerdict.ABSENT or claim.waits:
            return None  # a call that only waits for another movement of its payment does so when it claims
        context = context.seen_by(claim)
        if claim.verdict is not ClaimVerdict.IN_DOUBT:
            return await self.duplicates.reply_to(context, claim, refusal)
        resend = await self._plan_resend(context, claim, None)
        if isinstance(resend, Reply):
            return resend
        context.progress.stands_at(context.fresh)  # it claims as it came
        return None

    async def resume_unknown(self, context: CallContext, claim: Claim, permit: AttemptPermit) -> CallEnd:
        """A duplicate of an operation in doubt: the re-send that the decision allows, otherwise 504. Never sends a new
        operation."""
        resend = await self._plan_resend(context, claim, permit)
        if isinstance(resend, Reply):
            return CallEnd(resend)
        operation, (policy, request, decision) = self.duplicates.holder(claim), resend
        context = context.resending(request)
        change = change_of(
            operation,
            advance(operation, Event.RESEND_RECORDED),
            (Event.RESEND_RECORDED,),
            WriteContext(self.journal_writer.journal_clock.now(), sends_under=context.token),
            lease_s=self.leases.lease_s,
            action=decision.action,
            because=decision.because,
            delay_s=decision.delay_s,
            note="repeated by the caller",
        )
        recorded = await self.journal_writer.try_write(change)
        if recorded is None:
            await self.gate.release(permit)
            return CallEnd(await self.duplicates.join(context, operation))  # another call resumed it first
        await self.failpoints.hit(failpoints.RESEND_RECORDED)
        end = await self.run_attempts(context, recorded, policy, claim.payment, permit)
        context = end.rerouted or context
        return end.with_reply(await self.duplicates.wait_for_resolution(end.reply, context))

    async def _plan_resend(
        self, context: CallContext, claim: Claim, permit: AttemptPermit | None
    ) -> tuple[Policy, StoredRequest, Decision] | Reply:
        """How the operation in doubt may be sent again; otherwise the reply to its duplicate, which needs no slot."""
        operation = self.duplicates.holder(claim)
        context.progress.stands_at(operation)
        stored = await self.duplicates.stored_policy_and_request(context, claim)
        if stored is None or not claim.credential_mapped:
            await self.gate.release(permit)
            # Under a credential that may belong to another account the same key would be another charge.
            return unknown_reply(operation, context.shape, sent=False)
        decision = decide(
            decision_context_of(operation, stored[0], context, self.clock, self.journal_writer.ages, tries=0)
        )
        if decision.action is not Action.RETRY_SAME_OPERATION:
            await self.gate.release(permit)
            return await self.duplicates.wait_for_resolution(
                unknown_reply(operation, context.shape, sent=False), context
            )
        return *stored, decision

    async def run_attempts(
        self,
        context: AttemptContext,
        operation: Operation,
        policy: Policy,
        payment: Payment | None,
        permit: AttemptPermit | None = None,
        grant: Grant | None = None,
        *,
        tries: int = 1,
    ) -> CallEnd:
        """Attempt until the operation is settled, in doubt with nothing left to try, or given up. `payment`: as it was
        before the claim. `permit` and `grant`: of the first attempt, used up in any case."""
        progress, last_delay_s = context.progress, 0.0
        progress.stands_at(operation)
        self.duplicates.in_flight[operation.id] = progress
        try:
            while True:
                result = await self._attempt(context, operation, policy, payment, permit, grant)
                permit = grant = None
                concluded = await self.attempt_recorder.conclude_attempt(
                    context, operation, policy, result, tries=tries, last_delay_s=last_delay_s
                )
                operation, decision, grant = concluded.operation, concluded.decision, concluded.grant
                progress.stands_at(operation)
                await self.failpoints.hit(failpoints.ANSWER_RECORDED)
                if decision.action is Action.FALLBACK_NEW_ATTEMPT and isinstance(context, CallContext):
                    return await self._fall_back(context, operation, decision, result, payment)
                if decision.action is not Action.RETRY_SAME_OPERATION:
                    return CallEnd(_reply_for(context, operation, result), concluded.limit_info)
                await self.clock.sleep(decision.delay_s)
                if operation.state is State.BACKOFF:
                    operation = await self.resume_after_backoff(context, operation)
                    if operation.state is not State.SENDING:
                        return CallEnd(_reply_for(context, operation, result), concluded.limit_info)
                tries, last_delay_s = tries + 1, decision.delay_s
        except JournalUnavailable:
            if not operation.attempt_under_way:
                raise  # between two tries, with nothing in doubt: this call will send nothing more
            return CallEnd(unknown_reply(operation, context.shape, sent=progress.has_sent, detail=ATTEMPT_NOT_RECORDED))
        except BaseException:  # cancelled, or a fault of ours: the key must not stay held until the lease runs out
            await self.journal_writer.record_abandoned(context, operation)
            raise
        finally:
            await self.gate.release(permit)
            await self.retry_budget.refund(grant)
            if (
                self.duplicates.in_flight.get(operation.id) is progress
            ):  # otherwise our lease ran out, and a duplicate resumed it
                del self.duplicates.in_flight[operation.id]
                self.leases.release(operation.id)

    async def _attempt(
        self,
        context: AttemptContext,
        operation: Operation,
        policy: Policy,
        payment: Payment | None,
        held: AttemptPermit | None,
        grant: Grant | None,
    ) -> AttemptResult:
        """One attempt, if our limits allow it: its evidence and classification."""
        context.progress.begin_attempt()
        admitted = await self.gate.before_attempt(context, operation, policy, held)
        permit, limit_info = (admitted, None) if isinstance(admitted, AttemptPermit) else (None, admitted.limit_info)
        try:
            if isinstance(admitted, GateDecision):
                evidence = admitted.as_evidence()
            else:
                if grant is None:
                    self.retry_budget.count_attempt(operation, policy)
                evidence = await self.sender.send(context, operation, policy, self._on_late_response)
            money = context.expected.money or operation.expected_payment.money  # a follow-up's may be its payment's
            classification, tree = await self._read(evidence, policy, ExpectedPayment(money, operation.sent_stamp))
            rolled_back = self.journal_writer.journal.rolled_back_s() is not None
            classification = without_doubt_of_others(
                classification, operation, policy, payment, rolled_back=rolled_back
            )
            await self.failpoints.hit(failpoints.ANSWER_CLASSIFIED)
            sample = self.gate.sample_of(permit, evidence, classification) if permit is not None else None
            await self.gate.release(permit, sample)
        except BaseException:
            await self.gate.release(permit)
            raise
        if grant is not None:
            await self.retry_budget.report_result(grant, evidence, sample)
        return AttemptResult(evidence, classification, tree, limit_info)

    async def _read(self, evidence: Evidence, policy: Policy, expected: ExpectedPayment) -> tuple[Classification, Tree]:
        body = evidence.response.body if evidence.response is not None else b""
        return await self.long_work.run(body, read_response, evidence, policy.classify, expected)

    async def _fall_back(
        self, context: CallContext, first: Operation, decision: Decision, result: AttemptResult, payment: Payment | None
    ) -> CallEnd:
        """Take another route of the same API for an operation that provably had no effect here. If none can be taken,
        the operation ends, and its key may be used again."""
        cause = cause_of(
            first.result_class or ResultClass.NETWORK_CONNECT_FAILURE,
            first.effect or Effect.NONE,
            circuit_refused=result.circuit_refused,
            absent=False,
            falls_back=result.classification.falls_back,
        )
        choice, limit_info = None, result.limit_info
        if cause is not None:
            end = FirstEnd(advance(first, Event.GIVEN_UP), Event.GIVEN_UP, cause)
            found = await self.fallbacks.take(context, first, end, decision)
            if isinstance(found, RouteTaken):
                return await self._run_route(found, payment)
            choice, limit_info = found.choice, found.limit_info or limit_info
        ended = await self.give_up(context, first, decision.because, choice)
        return CallEnd(_reply_for(context, ended, result), limit_info)

    async def _run_route(self, taken: RouteTaken, payment: Payment | None) -> CallEnd:
        context = taken.context
        end = await self.run_attempts(context, taken.operation, context.policy, payment, taken.permit)
        return end if end.rerouted is not None else replace(end, rerouted=context)

    async def _wait_or_pay_elsewhere(self, context: CallContext, end: CallEnd, payment: Payment | None) -> CallEnd:
        """Wait for the resolver's finding about a doubt while the caller waits. If nothing was executed, the payment
        may be made by another route: only by this call, which made the operation, and by no later one."""
        may_leave = True
        for _ in range(FALLBACKS_MAX + 2):
            context = end.rerouted or context
            pays_elsewhere = may_leave and context.policy.fallback_for(FallbackCause.ABSENT) is not None
            reply = await self.duplicates.wait_for_resolution(
                end.reply, context, pays_elsewhere_if_absent=pays_elsewhere
            )
            end = end.with_reply(reply)
            first = context.progress.operation
            if not pays_elsewhere or not _is_shown_absent(first):
                break
            left = await self._pay_elsewhere(context, first, payment)
            may_leave = left is not None
            end = left or end
        return end

    async def _pay_elsewhere(self, context: CallContext, first: Operation, payment: Payment | None) -> CallEnd | None:
        """End an operation that inquiries have shown to be absent, and start another route for it in the same step.
        Without a route it just ends. None: this call can do neither, and the resolver will end it."""
        self.journal_writer.journal_clock.update(first.updated_at)  # another sidecar may have written that
        decision = decide(
            decision_context_of(first, context.policy, context, self.clock, self.journal_writer.ages, tries=0)
        )
        end = self._end_as_absent(context, first)
        if decision.action is not Action.FALLBACK_NEW_ATTEMPT or end is None:
            return None
        try:
            found = await self.fallbacks.take(context, first, end, decision)
            if isinstance(found, RouteTaken):
                self.duplicates.waiters.notify(first.id)
                return await self._run_route(found, payment)
            reply = await self._record_absence(context, first, end, decision, found.choice)
            return CallEnd(reply, found.limit_info) if reply is not None else None
        except JournalUnavailable:
            if context.progress.operation is not first:
                raise  # the second was started
            return None

    def _end_as_absent(self, context: CallContext, first: Operation) -> FirstEnd | None:
        """The end that the findings of inquiries prove. None if they do not prove it: an attempt may still arrive,
        another attempt was declined, or the journal may have forgotten other records."""
        rollback = self.journal_writer.rollback
        if first.incident is not None or (rollback is not None and rollback.recently_rolled_back()):
            return None
        policy, low_now = context.policy, self.journal_writer.ages.low_now(quiet_since(first))
        settled = is_settled(first, self.late_evidence.external_evidence.settle_s(policy), low_now)
        source = EvidenceSource.INQUIRY
        after, event = conclude_external(first, source, CONFIRMED_ABSENT, policy.contract, settled=settled)
        if event is None or after.state is not State.FAILED or after.result_class is not ResultClass.ABSENT:
            return None
        detail = f"{first.misses} misses after all had settled"
        finding = Finding("ask", FindingKind.MISSED, None, CONFIRMED_ABSENT, detail)
        return FirstEnd(after, event, FallbackCause.ABSENT, finding)

    async def _record_absence(
        self, context: CallContext, first: Operation, end: FirstEnd, decision: Decision, choice: FallbackChoice
    ) -> Reply | None:
        """No other route could be taken: the operation ends as absent, and its key may be used again."""
        known = WriteContext(max(self.journal_writer.journal_clock.now(), first.updated_at), gives_back=context.token)
        change = change_of(
            first,
            end.after.changed(because=end.event.value),
            (end.event,),
            known,
            action=decision.action,
            because=decision.because,
            finding=end.finding,
            fallback=choice,
        )
        ended = await self.journal_writer.try_write(change)
        if ended is None:
            return None
        for event in transition_events(first, ended, EvidenceKind.INQUIRY, self.clock.now()):
            self.attempt_recorder.telemetry.emit(event)
        self.duplicates.waiters.notify(first.id)
        context.progress.stands_at(ended)
        return absent_reply(ended, context.shape)

    def _on_late_response(self, operation: Operation, policy: Policy, evidence: Evidence) -> None:
        """A response came after its attempt had timed out: record that evidence."""
        with contextlib.suppress(TaskRefused):  # we are shutting down; a later inquiry will find the outcome
            self.tasks.start(self._record_late_response(operation, policy, evidence), "harvest")

    async def _record_late_response(self, operation: Operation, policy: Policy, evidence: Evidence) -> None:
        expected = operation.expected_payment
        classification, tree = await self._read(evidence, policy, expected)
        attempt = attempt_summary(operation.attempts, evidence, classification, policy)
        response = evidence.response
        sealed_response = seal_response(self.vault, response, operation.id) if response is not None else None
        late_evidence = LateEvidence(attempt, "harvest", "answer_came_late", sealed_response, provider_object=tree)
        with contextlib.suppress(JournalUnavailable):
            await self.late_evidence.apply(operation, policy, late_evidence)

    async def give_up(
        self, context: AttemptContext, operation: Operation, because: str, choice: FallbackChoice | None = None
    ) -> Operation:
        """Nothing was sent and nothing will be: end the operation before the reply leaves."""
        ended = advance(operation, Event.GIVEN_UP, because=because)
        known = WriteContext(self.journal_writer.journal_clock.now(), gives_back=context.token)
        action = Action.FALLBACK_NEW_ATTEMPT.value if choice is not None else ""
        change = change_of(operation, ended, (Event.GIVEN_UP,), known, action=action, because=because, fallback=choice)
        return await self.journal_writer.try_write(change) or await self.journal_writer.current(operation)

    async def resume_after_backoff(self, context: AttemptContext, operation: Operation) -> Operation:
        """After a backoff with nothing in doubt: SENDING again, unless the caller has left or its deadline has
        passed."""
        if context.still_there() and self.clock.mono() < context.deadline_mono:
            again = advance(operation, Event.SEND_RECORDED)
            known = WriteContext(self.journal_writer.journal_clock.now(), sends_under=context.token)
            change = change_of(operation, again, (Event.SEND_RECORDED,), known, lease_s=self.leases.lease_s)
            return await self.journal_writer.try_write(change) or await self.journal_writer.current(operation)
        return await self.give_up(context, operation, "no_effect_caller_left")


def _reply_for(context: AttemptContext, operation: Operation, result: AttemptResult) -> Reply:
    progress = context.progress
    refused_before = progress.has_sent or progress.sent_before
    return reply_for(
        operation, result.evidence.response, result.classification, context.shape, refused_before=refused_before
    )


def _is_checked_first(payout: PayoutClaim | None) -> bool:
    """Whether the policy has an address that checks a payout before it starts. Only a payout that would start is
    checked: one that is known, guarded, over a cap or not approved gets its reply without. Nothing is journalled before
    the check allows it."""
    return payout is not None and payout.check_first


def _is_shown_absent(operation: Operation) -> bool:
    return operation.absence_shown and operation.state is State.UNKNOWN
