"""The life of a call, from the claim to an answer or a recorded doubt. The ifs of it stand here, none below.

    claim -> [ send -> classify -> conclude -> decide -> record ] -> reply
             [ again, if the decision says so                   ]

SENDING is durable before the first byte may leave; an answer leaves after its record is durable. From the first byte on
the attempt belongs to the operation: neither a caller that leaves nor its deadline stops it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Protocol

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.backoff import delay_s, no_earlier_than
from proxy.core.claim import Claim, Verdict
from proxy.core.classify import Asked, classify
from proxy.core.contract import Kind
from proxy.core.decide import Action, Decision, decide
from proxy.core.errors import JournalUnavailable
from proxy.core.evidence import Evidence, Response
from proxy.core.lifecycle import Event, advance, conclude
from proxy.core.operation import AttemptSummary, Lease, Operation, State, Told
from proxy.core.outside import told_by
from proxy.core.policy import Policy
from proxy.core.reading import Classification
from proxy.core.reply import Reply, reply_for, speaks_for, unknown
from proxy.core.retry_after import retry_after_s
from proxy.engine import steps as step
from proxy.engine.attempt import Sender
from proxy.engine.context import context_of, released_end, summary_of
from proxy.engine.errand import Errand
from proxy.engine.fallback import Fallbacks
from proxy.engine.keeping import seal_response
from proxy.engine.late import Late, LateEvidence
from proxy.engine.leases import Leases
from proxy.engine.records import Records
from proxy.engine.repeats import Repeats
from proxy.engine.steps import Steps
from proxy.engine.watch import Watch
from proxy.journal.base import Change
from proxy.tasks import TaskRefused, Tasks
from proxy.telemetry.records import AttemptFinished, EvidenceKind, changes
from proxy.telemetry.telemetry import Telemetry
from proxy.vault import Vault

_RECORD_NOT_TAKEN = (
    "The journal did not take the record of this attempt. What became of this payment will be found out. "
    "Repeat with the same key, or wait. Do not make another payment."
)


class Spooling(Protocol):
    """Takes evidence that the journal could not."""

    async def put(
        self,
        operation: Operation,
        attempt: AttemptSummary,
        response: Response | None,
        *,
        quiet_at: float | None,
        unheard: bool,
    ) -> bool:
        """Whether it is durable."""
        ...


@dataclass(frozen=True, slots=True)
class Carry:
    """Carries one call to an answer, or to a recorded doubt."""

    records: Records
    repeats: Repeats
    sender: Sender
    leases: Leases
    vault: Vault
    clock: Clock
    chance: Chance
    steps: Steps
    telemetry: Telemetry
    watch: Watch
    fallbacks: Fallbacks
    late: Late
    spool: Spooling
    tasks: Tasks

    async def carry(self, errand: Errand, *, permitted: bool) -> Reply:
        await self.steps.reached(step.CALL_RECEIVED)
        claim = await self.records.claim(errand, permitted=permitted)
        if claim.verdict is Verdict.OWNED and claim.operation is not None:
            await self.steps.reached(step.SENDING_RECORDED)
            reply = await self.see_through(errand, claim.operation, errand.policy)
            return await self.repeats.evidence_or(reply, errand)
        if claim.verdict is Verdict.IN_DOUBT and permitted:
            return await self.resume(errand, claim)
        return await self.repeats.answer(errand, claim)

    async def resume(self, errand: Errand, claim: Claim) -> Reply:
        """A repeat of something in doubt: the re-send that the decision allows, else 504. Nothing new is ever sent."""
        errand.operation = operation = self.repeats.holder(claim)
        kept = await self.repeats.kept_policy_and_request(errand, claim)
        if kept is None or not claim.credential_accepted:
            # Under a credential that may belong to another account the same key would be another charge.
            return unknown(operation, errand.shape, sent=False)
        policy, errand.request = kept
        errand.tries = 0
        decision = decide(context_of(operation, policy, errand, self.clock, delay_s=0.0))
        if decision.action is not Action.RETRY_SAME_OPERATION:
            return await self.repeats.evidence_or(unknown(operation, errand.shape, sent=False), errand)
        errand.tries = 1
        resent = advance(operation, Event.RESEND_RECORDED)
        resent = resent.changed(lease=Lease(errand.token, 0.0), misses=0, first_miss_at=None)
        change = self._change(resent, (Event.RESEND_RECORDED,), decision, "caller", note="repeated by the caller")
        taken = await self.records.take(change)
        if taken is None:
            return await self.repeats.wait(errand, operation)  # somebody else took it up first
        await self.steps.reached(step.RESEND_RECORDED)
        return await self.repeats.evidence_or(await self.see_through(errand, taken, policy), errand)

    async def see_through(self, errand: Errand, operation: Operation, policy: Policy) -> Reply:
        """Attempt until it is settled, in doubt with nothing to try, or given up."""
        errand.operation = operation
        self.repeats.under_way[operation.id] = errand
        try:
            while True:
                evidence = await self.sender.send(errand, operation, policy, self._harvested)
                classification = classify(evidence, policy.classify, Asked(errand.asked.money, operation.stamp))
                await self.steps.reached(step.ANSWER_CLASSIFIED)
                operation, decision = await self.settle(errand, operation, policy, evidence, classification)
                errand.operation = operation
                await self.steps.reached(step.ANSWER_RECORDED)
                if decision.action is Action.FALLBACK_NEW_ATTEMPT:
                    return await self._elsewhere(errand, operation, decision, evidence, classification)
                if decision.action is not Action.RETRY_SAME_OPERATION:
                    return reply_for(operation, evidence.response, classification, errand.shape)
                await self.clock.sleep(decision.delay_s)
                if operation.state is State.BACKOFF:
                    operation = await self.next_turn(errand, operation)
                    if operation.state is not State.SENDING:
                        return reply_for(operation, evidence.response, classification, errand.shape)
                errand.tries += 1
        except JournalUnavailable:
            if not operation.attempt_under_way:
                raise  # between two tries, with nothing in doubt: this call will send nothing more
            return unknown(operation, errand.shape, sent=errand.has_sent, detail=_RECORD_NOT_TAKEN)
        except BaseException:  # cancelled, or a fault of ours: the key must not stay held until the lease runs out
            await self.records.write_down_abandoned(errand, operation)
            raise
        finally:
            if self.repeats.under_way.get(operation.id) is errand:  # else our lease ran out, and a repeat took it up
                del self.repeats.under_way[operation.id]
                self.leases.let_go(operation.id)

    async def _elsewhere(
        self,
        errand: Errand,
        first: Operation,
        decision: Decision,
        evidence: Evidence,
        classification: Classification,
    ) -> Reply:
        """Another route of the same API, for what provably had no effect here; else this one ends."""
        second = await self.fallbacks.take(errand, first, decision)
        if second is not None:
            return await self.see_through(errand, second, errand.policy)
        ended = await self.give_up(first, decision.because)
        return reply_for(ended, evidence.response, classification, errand.shape)

    def _harvested(self, operation: Operation, policy: Policy, evidence: Evidence) -> None:
        """An answer came after its attempt had timed out: the same evidence, later."""
        with contextlib.suppress(TaskRefused):  # we are shutting down; whoever comes next asks
            self.tasks.start(self._late(operation, policy, evidence), "harvest")

    async def _late(self, operation: Operation, policy: Policy, evidence: Evidence) -> None:
        asked = Asked(operation.money, operation.stamp)
        attempt = summary_of(operation.attempts, evidence, classify(evidence, policy.classify, asked))
        response = evidence.response
        answer = seal_response(self.vault, response, operation.id) if response is not None else None
        late = LateEvidence(attempt, "harvest", "answer_came_late", answer)
        with contextlib.suppress(JournalUnavailable):
            await self.late.apply(operation, policy, late)

    async def settle(
        self, errand: Errand, operation: Operation, policy: Policy, evidence: Evidence, classification: Classification
    ) -> tuple[Operation, Decision]:
        """Conclude the attempt, decide, and write both down with what follows at once. Durable when it returns."""
        attempt = summary_of(operation.attempts, evidence, classification)
        decided: Decision
        before = operation

        def step_from(current: Operation) -> Change:
            nonlocal decided, before
            before = current
            after, event = conclude(current, attempt.number, classification, policy.contract)
            if after.doubt:
                quiet_at = self.clock.now() + evidence.listening_s  # an earlier attempt may be listened to for longer
                after = after.changed(quiet_at=max(current.quiet_at or 0.0, quiet_at))
            wait = 0.0 if after.state.ended else self.backoff(errand, policy, classification, evidence.response)
            decided = decide(context_of(after, policy, errand, self.clock, delay_s=wait, last=classification))
            if after.attempt_under_way and not after.state.ended:
                # Our lease ran out, and a repeat sends a later attempt right now: what follows is its affair.
                decided = Decision(Action.STOP, "attempt_still_under_way", 0.0, effect_may_exist=True)
            following, events = self.follow(after, decided, policy, errand)
            if following.state is State.SUCCEEDED and not current.state.ended:
                following = following.changed(unheard=errand.nobody_hears and not self.watch.is_awaited(current.id))
            executed = classification.executed
            return self._change(
                following,
                (event, *events),
                decided,
                errand.source,
                attempt=attempt,
                sealed_response=self._sealed(following, classification, evidence.response),
                erase_request=following.state.ended,
                accepted_credential=executed,
                sealed_credential=self.records.credential_to_keep(errand) if executed else None,
                told=told_by(current, following),
            )

        try:
            recorded = await self.records.write(operation, step_from)
        except JournalUnavailable:
            return await self._spooled(errand, operation, policy, attempt, evidence)
        self._tell(before, recorded, attempt, decided)
        if recorded.kind is Kind.VOID:
            await self.late.outside.free_what_was_voided(before, recorded)
        if recorded.due_at is not None and self.watch.resolving:
            self.watch.due.set()
        errand.last_delay_s = decided.delay_s
        return recorded, decided

    async def _spooled(
        self, errand: Errand, operation: Operation, policy: Policy, attempt: AttemptSummary, evidence: Evidence
    ) -> tuple[Operation, Decision]:
        """The journal did not take what we know. A spool of our own keeps it for when it does; then an answer that the
        provider stands by passes, with that reason. "Nothing was sent, and nothing will be" is no such answer: until
        the journal has it, somebody else may take the operation for a doubt and send it again."""
        quiet_at = self.clock.now() + evidence.listening_s
        unheard = errand.nobody_hears
        if not await self.spool.put(operation, attempt, evidence.response, quiet_at=quiet_at, unheard=unheard):
            raise JournalUnavailable("neither the journal nor the spool took the record")
        after, _ = conclude(operation, attempt.number, attempt.classification, policy.contract)
        if after.state is State.BACKOFF:
            raise JournalUnavailable("the operation is not ended in the journal")
        after = after.changed(because="journal_unavailable_spooled")
        return after, Decision(Action.STOP, after.because, 0.0, effect_may_exist=bool(after.doubt))

    def follow(
        self, after: Operation, decision: Decision, policy: Policy, errand: Errand
    ) -> tuple[Operation, tuple[Event, ...]]:
        """The operation as it stands after the decision, and the events that the decision itself is."""
        events: tuple[Event, ...] = ()
        match decision.action:
            case Action.MARK_TERMINAL_FAILURE if after.state is State.BACKOFF:
                after, events = advance(after, Event.GIVEN_UP), (Event.GIVEN_UP,)
            case Action.SEND_TO_REVIEW if not after.state.ended:
                after, events = advance(after, Event.PARKED), (Event.PARKED,)
            case Action.RETRY_SAME_OPERATION if after.state is State.UNKNOWN:
                after, events = advance(after, Event.RESEND_RECORDED), (Event.RESEND_RECORDED,)
                after = after.changed(misses=0, first_miss_at=None)
            case Action.STATUS_INQUIRY | Action.WAIT_FOR_WEBHOOK | Action.SCHEDULE_RETRY | Action.ASK_CUSTOMER_ACTION:
                after = after.changed(due_at=self.clock.now() + self._first_look_s(after, decision, policy, errand))
        sends = decision.action in {Action.RETRY_SAME_OPERATION, Action.FALLBACK_NEW_ATTEMPT}
        ours = after.lease is None or after.lease.token == errand.token
        if ours:
            after = after.changed(lease=Lease(errand.token, 0.0) if sends else None)
        if after.state.ended:
            after = after.changed(due_at=None, released=released_end(after))
        return after.changed(because=decision.because), events

    def _first_look_s(self, after: Operation, decision: Decision, policy: Policy, errand: Errand) -> float:
        """When the resolver first looks: at once where it may ask, and a caller still waits for what it finds."""
        if after.state is State.REQUIRES_ACTION:
            return policy.resolve.action_expires_s
        if decision.action is Action.STATUS_INQUIRY and self.watch.resolving and not errand.nobody_hears:
            return 0.0
        schedule_s = policy.resolve.schedule_s
        return max(decision.delay_s, schedule_s[min(after.looks, len(schedule_s) - 1)])

    async def give_up(self, operation: Operation, because: str) -> Operation:
        """Nothing was done and nothing will be: ended before the answer leaves."""
        ended = advance(operation, Event.GIVEN_UP).changed(lease=None, because=because)
        ended = ended.changed(released=released_end(ended))
        change = Change(ended, (Event.GIVEN_UP,), because=because, told=told_by(operation, ended))
        return await self.records.take(change) or await self.records.current(operation)

    async def next_turn(self, errand: Errand, operation: Operation) -> Operation:
        """After a wait with nothing in doubt: SENDING again, unless the caller has left or its deadline has come."""
        if errand.still_there() and self.clock.mono() < errand.deadline_mono:
            again = advance(operation, Event.SEND_RECORDED)
            change = Change(again, (Event.SEND_RECORDED,), lease_s=self.leases.lease_s)
            return await self.records.take(change) or await self.records.current(operation)
        return await self.give_up(operation, "no_effect_caller_left")

    def backoff(
        self, errand: Errand, policy: Policy, classification: Classification, response: Response | None
    ) -> float:
        """How long to wait before another try."""
        rule = policy.retry_rule(classification.reading)
        wait = delay_s(rule, errand.tries, self.chance.draw(), errand.last_delay_s)
        return no_earlier_than(wait, retry_after_s(response, self.clock.now()), self.chance.draw())

    def _tell(self, before: Operation, after: Operation, attempt: AttemptSummary, decision: Decision) -> None:
        self.telemetry.tell(AttemptFinished(after, attempt, decision))
        kind = EvidenceKind.REPLAY if before.doubt else EvidenceKind.RESPONSE
        for record in changes(before, after, kind, self.clock.now()):
            self.telemetry.tell(record)

    def _sealed(self, operation: Operation, classification: Classification, response: Response | None) -> bytes | None:
        """The answer to keep for replay, where it is the operation's own."""
        if response is None or not speaks_for(operation, classification):
            return None
        return seal_response(self.vault, response, operation.id)

    def _change(
        self,
        operation: Operation,
        events: tuple[Event, ...],
        decision: Decision,
        source: str,
        *,
        attempt: AttemptSummary | None = None,
        sealed_response: bytes | None = None,
        erase_request: bool = False,
        accepted_credential: bool = False,
        sealed_credential: bytes | None = None,
        told: Told | None = None,
        note: str = "",
    ) -> Change:
        return Change(
            operation,
            events,
            source=source,
            attempt=attempt,
            action=decision.action,
            because=decision.because,
            delay_s=decision.delay_s,
            note=note,
            lease_s=self.leases.lease_s if operation.lease is not None else None,
            sealed_response=sealed_response,
            erase_request=erase_request,
            accepted_credential=accepted_credential,
            sealed_credential=sealed_credential,
            told=told,
        )
