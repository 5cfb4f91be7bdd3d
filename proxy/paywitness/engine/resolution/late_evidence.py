"""Late evidence of our own attempts: a response that came after its attempt had timed out, or that the spool kept.

It is classified and concluded as it would have been in time. Only the consequences differ: no caller waits for it, and
nothing is sent because of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from paywitness.clock import Clock
from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import was_executed
from paywitness.core.consequences import WriteContext
from paywitness.core.decide import Action, Decision
from paywitness.core.external_evidence import precedes_end
from paywitness.core.lifecycle import Event, advance, conclude
from paywitness.core.operation import AttemptSummary, Operation, State
from paywitness.core.payment import ShownBalance
from paywitness.core.payment_evidence import after_already_done, shown_balance
from paywitness.core.policy import Policy
from paywitness.core.reply import passes_on_unread, response_matches_state
from paywitness.engine.durability.journal_writer import JournalWriter, change_of
from paywitness.engine.resolution.external_evidence import ExternalEvidenceRecorder
from paywitness.journal.base import OperationChange
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import AttemptFinished, EvidenceKind, transition_events


@dataclass(frozen=True, slots=True)
class LateEvidence:
    """The evidence of one attempt, and the reason why it is known only now."""

    attempt: AttemptSummary
    source: str  # harvest, spool
    because: str
    sealed_response: bytes | None = None  # stored if it turns out to decide the operation
    sealed_credential: bytes | None = None
    no_bytes_after_at: float | None = None  # from then on no byte of the attempt can leave; None: now
    # False: its caller got the reply; True: it did not; None: it did not, unless a caller waits now.
    undelivered: bool | None = None
    note: str = ""
    provider_object: Tree = None  # the decoded body of the response, if it is available


@dataclass(frozen=True, slots=True)
class LateEvidenceRecorder:
    journal_writer: JournalWriter
    external_evidence: ExternalEvidenceRecorder
    clock: Clock
    telemetry: Telemetry

    async def apply(self, operation: Operation, policy: Policy, evidence: LateEvidence) -> Operation:
        """Record the evidence of an attempt. Raises JournalUnavailable, and IllegalTransition for an attempt that the
        journal has forgotten."""
        attempt = evidence.attempt
        executed = was_executed(attempt.classification)
        before = operation

        def change_from(current: Operation) -> OperationChange:
            nonlocal before
            before = current
            after, events = _conclude(current, policy, evidence)
            after, shown = self._shown_balance(after, policy, evidence)
            is_authoritative = response_matches_state(after, attempt.classification) and not current.state.ended
            return change_of(
                current,
                after,
                events,
                self._write_context(current, after, policy, evidence),
                source=evidence.source,
                attempt=attempt,
                because=evidence.because,
                note=evidence.note,
                sealed_response=evidence.sealed_response if is_authoritative else None,
                accepted_credential=executed,
                sealed_credential=evidence.sealed_credential if executed else None,
                shown=shown,
            )

        recorded = await self.journal_writer.write_with_retry(operation, change_from)
        decision = Decision(Action.STOP, evidence.because, 0.0, effect_may_exist=recorded.state.in_doubt)
        self.telemetry.emit(AttemptFinished(recorded, attempt, decision))
        resent = bool(before.doubt - {attempt.number})
        kind = EvidenceKind.REPLAY if resent else EvidenceKind.RESPONSE
        for record in transition_events(before, recorded, kind, self.clock.now()):
            self.telemetry.emit(record)
        self.external_evidence.waiters.notify(recorded.id)
        await self.external_evidence.release_voided_payment(before, recorded)
        return recorded

    def _shown_balance(
        self, after: Operation, policy: Policy, evidence: LateEvidence
    ) -> tuple[Operation, ShownBalance | None]:
        """The operation with what the response shows of its payment. If it was paid elsewhere, that is verified
        later."""
        classification, now = evidence.attempt.classification, self.journal_writer.journal_clock.now()
        shown = shown_balance(after, policy, classification, evidence.provider_object, now=now)
        return after_already_done(after, shown, classification, policy, now=now)

    def _write_context(
        self, current: Operation, after: Operation, policy: Policy, evidence: LateEvidence
    ) -> WriteContext:
        external, now = self.external_evidence, self.journal_writer.journal_clock.now()
        awaited, attempt = external.waiters.has_waiter(current.id), evidence.attempt
        was_told = evidence.undelivered is False  # its own caller's sidecar, which spooled it, gave the reply
        return WriteContext(
            now,
            first_check_at=lambda after: now + external.first_check_delay_s(after, policy),
            check_doubt_now=True,
            no_bytes_after_at=evidence.no_bytes_after_at if evidence.no_bytes_after_at is not None else now,
            reached=awaited if evidence.undelivered is None else not evidence.undelivered,
            passed_on=was_told and passes_on_unread(after, attempt.classification),
            reports_attempt=True,
        )


def _conclude(current: Operation, policy: Policy, evidence: LateEvidence) -> tuple[Operation, tuple[Event, ...]]:
    """The operation after this evidence, and the events of that change."""
    attempt = evidence.attempt
    after, event = conclude(current, attempt.number, attempt.classification, policy.contract)
    after = after.changed(because=evidence.because)
    returns = policy.payment.failed_is_return
    if precedes_end(current, attempt.classification, failed_is_return=returns, is_response=True):
        after = after.changed(incident=current.incident)
    if after.state is State.BACKOFF and current.state is State.SENDING:
        # Its caller has had a reply, and nobody waits for another attempt.
        return advance(after, Event.GIVEN_UP), (event, Event.GIVEN_UP)
    return after, (event,)
