"""The life of a call, from the claim to an answer or a recorded doubt. The ifs of it stand here, none below.

    claim -> [ turn -> send -> classify -> conclude -> decide -> record ] -> reply
             [ again, if the decision says so and the budget grants it   ]

SENDING is durable before the first byte may leave; an answer leaves after its record is durable. From the first byte on
the attempt belongs to the operation: neither a caller that leaves nor its deadline stops it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from proxy.clock import Clock
from proxy.core.claim import Claim, Verdict
from proxy.core.classify import Asked, classify
from proxy.core.decide import Action, Decision, decide
from proxy.core.errors import JournalUnavailable
from proxy.core.evidence import Evidence
from proxy.core.lifecycle import Event, advance
from proxy.core.operation import Lease, Operation, State
from proxy.core.outside import told_by
from proxy.core.policy import Policy
from proxy.core.reading import Classification
from proxy.core.reply import Reply, reply_for, unknown
from proxy.engine import steps as step
from proxy.engine.allowance import Allowances
from proxy.engine.attempt import Sender
from proxy.engine.context import context_of, released_end, summary_of
from proxy.engine.errand import Errand
from proxy.engine.fallback import Fallbacks
from proxy.engine.gate import Gate
from proxy.engine.keeping import KeptRequest, seal_response
from proxy.engine.late import Late, LateEvidence
from proxy.engine.leases import Leases
from proxy.engine.records import Records
from proxy.engine.repeats import Repeats
from proxy.engine.settling import Settling
from proxy.engine.steps import Steps
from proxy.journal.base import Change
from proxy.tasks import TaskRefused, Tasks
from proxy.vault import Vault

_RECORD_NOT_TAKEN = (
    "The journal did not take the record of this attempt. What became of this payment will be found out. "
    "Repeat with the same key, or wait. Do not make another payment."
)


@dataclass(frozen=True, slots=True)
class Carry:
    """Carries one call to an answer, or to a recorded doubt."""

    records: Records
    repeats: Repeats
    gate: Gate
    allowances: Allowances
    sender: Sender
    settling: Settling
    leases: Leases
    vault: Vault
    clock: Clock
    steps: Steps
    fallbacks: Fallbacks
    late: Late
    tasks: Tasks

    async def carry(self, errand: Errand, *, permitted: bool) -> Reply:
        await self.steps.reached(step.CALL_RECEIVED)
        claim = await self.records.claim(errand, permitted=permitted)
        if errand.first is not None:
            errand.first.tell()
        if claim.verdict is Verdict.OWNED and claim.operation is not None:
            await self.steps.reached(step.SENDING_RECORDED)
            reply = await self.see_through(errand, claim.operation, errand.policy)
            return await self.repeats.evidence_or(reply, errand)
        if claim.verdict is Verdict.IN_DOUBT and errand.turn is not None:
            return await self.resume(errand, claim)
        await self.gate.leave(errand)
        return await self.repeats.answer(errand, claim)

    async def look(self, errand: Errand) -> Reply | None:
        """What is known under the key answers one that has no place at the provider. None: it would have to send, which
        is never so of a doubt when its time is up."""
        claim = await self.records.claim(errand, permitted=False)
        if claim.verdict is Verdict.ABSENT:
            return None
        if claim.verdict is not Verdict.IN_DOUBT:
            return await self.repeats.answer(errand, claim)
        fresh, resend = errand.operation, await self._resend_of(errand, claim)
        if isinstance(resend, Reply):
            return resend
        errand.operation, errand.tries = fresh, 1  # it claims as it came
        return None

    async def resume(self, errand: Errand, claim: Claim) -> Reply:
        """A repeat of something in doubt: the re-send that the decision allows, else 504. Nothing new is ever sent."""
        resend = await self._resend_of(errand, claim)
        if isinstance(resend, Reply):
            return resend
        operation, (policy, errand.request, decision) = self.repeats.holder(claim), resend
        errand.tries = 1
        resent = advance(operation, Event.RESEND_RECORDED)
        resent = resent.changed(lease=Lease(errand.token, 0.0), misses=0, first_miss_at=None)
        change = Change(
            resent,
            (Event.RESEND_RECORDED,),
            action=decision.action,
            because=decision.because,
            delay_s=decision.delay_s,
            note="repeated by the caller",
            lease_s=self.leases.lease_s,
        )
        taken = await self.records.take(change)
        if taken is None:
            await self.gate.leave(errand)
            return await self.repeats.wait(errand, operation)  # somebody else took it up first
        await self.steps.reached(step.RESEND_RECORDED)
        return await self.repeats.evidence_or(await self.see_through(errand, taken, policy), errand)

    async def _resend_of(self, errand: Errand, claim: Claim) -> tuple[Policy, KeptRequest, Decision] | Reply:
        """How what is in doubt may be sent again; else what its repeat is told, which needs no place."""
        errand.operation = operation = self.repeats.holder(claim)
        kept = await self.repeats.kept_policy_and_request(errand, claim)
        if kept is None or not claim.credential_accepted:
            await self.gate.leave(errand)
            # Under a credential that may belong to another account the same key would be another charge.
            return unknown(operation, errand.shape, sent=False)
        errand.tries = 0
        decision = decide(context_of(operation, kept[0], errand, self.clock, delay_s=0.0))
        if decision.action is not Action.RETRY_SAME_OPERATION:
            await self.gate.leave(errand)
            return await self.repeats.evidence_or(unknown(operation, errand.shape, sent=False), errand)
        return *kept, decision

    async def see_through(self, errand: Errand, operation: Operation, policy: Policy) -> Reply:
        """Attempt until it is settled, in doubt with nothing to try, or given up."""
        errand.operation = operation
        self.repeats.under_way[operation.id] = errand
        try:
            while True:
                evidence, classification = await self._attempt(errand, operation, policy)
                operation, decision = await self.settling.settle(errand, operation, policy, evidence, classification)
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
            await self.gate.leave(errand)
            await self.allowances.give_back(errand)
            if self.repeats.under_way.get(operation.id) is errand:  # else our lease ran out, and a repeat took it up
                del self.repeats.under_way[operation.id]
                self.leases.let_go(operation.id)

    async def _attempt(self, errand: Errand, operation: Operation, policy: Policy) -> tuple[Evidence, Classification]:
        """One try, if our limits let it go: what was seen of it, and what that means."""
        evidence = await self.gate.enter(errand, operation, policy)
        if evidence is None:
            self.allowances.count(errand, operation, policy)
            evidence = await self.sender.send(errand, operation, policy, self._harvested)
        classification = classify(evidence, policy.classify, Asked(errand.asked.money, operation.sent_stamp))
        await self.steps.reached(step.ANSWER_CLASSIFIED)
        observation = await self.gate.leave(errand, evidence, classification)
        if errand.grant is not None:
            await self.allowances.judge(errand, evidence, observation)
        return evidence, classification

    async def _elsewhere(
        self,
        errand: Errand,
        first: Operation,
        decision: Decision,
        evidence: Evidence,
        classification: Classification,
    ) -> Reply:
        """Another route of the same API, for what provably had no effect here, if it has a turn for it; else this one
        ends, and its key may be used again."""
        route = self.fallbacks.route(errand, first)
        if route is not None and await self.gate.enter(errand, first, route[0]) is None:
            second = await self.fallbacks.take(errand, first, decision, route)
            if second is not None:
                return await self.see_through(errand, second, errand.policy)
            await self.gate.leave(errand)
        ended = await self.give_up(first, decision.because)
        return reply_for(ended, evidence.response, classification, errand.shape)

    def _harvested(self, operation: Operation, policy: Policy, evidence: Evidence) -> None:
        """An answer came after its attempt had timed out: the same evidence, later."""
        with contextlib.suppress(TaskRefused):  # we are shutting down; whoever comes next asks
            self.tasks.start(self._late(operation, policy, evidence), "harvest")

    async def _late(self, operation: Operation, policy: Policy, evidence: Evidence) -> None:
        asked = Asked(operation.money, operation.sent_stamp)
        attempt = summary_of(operation.attempts, evidence, classify(evidence, policy.classify, asked))
        response = evidence.response
        answer = seal_response(self.vault, response, operation.id) if response is not None else None
        late = LateEvidence(attempt, "harvest", "answer_came_late", answer)
        with contextlib.suppress(JournalUnavailable):
            await self.late.apply(operation, policy, late)

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
