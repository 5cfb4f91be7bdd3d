"""Late evidence of our own attempts: an answer that came after its attempt had timed out, or that a spool kept.

It is read and concluded as it would have been in time; only what follows differs, for no caller waits for it and
nothing is sent because of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from paywitness.clock import Clock
from paywitness.core.announcements import announcement_of
from paywitness.core.decide import Action, Decision
from paywitness.core.guard import is_undelivered
from paywitness.core.lifecycle import Event, advance, conclude
from paywitness.core.operation import AttemptSummary, Operation, State
from paywitness.core.policy import Policy
from paywitness.core.reply import response_matches_state
from paywitness.engine.calls.context import releases_key
from paywitness.engine.durability.journal_writer import JournalWriter
from paywitness.engine.resolution.external_evidence import ExternalEvidenceRecorder
from paywitness.journal.base import OperationChange
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import AttemptFinished, EvidenceKind, transition_events


@dataclass(frozen=True, slots=True)
class LateEvidence:
    """What one attempt came to, and where from we know it only now."""

    attempt: AttemptSummary
    source: str  # harvest, spool
    because: str
    sealed_response: bytes | None = None  # kept where it turns out to speak for the operation
    sealed_credential: bytes | None = None
    no_bytes_after_at: float | None = None  # from then on no byte of the attempt can leave any more; None: now
    undelivered: bool | None = None  # whether its caller was told; None: it was not, unless somebody waits
    note: str = ""


@dataclass(frozen=True, slots=True)
class LateEvidenceRecorder:
    journal_writer: JournalWriter
    external_evidence: ExternalEvidenceRecorder
    clock: Clock
    telemetry: Telemetry

    async def apply(self, operation: Operation, policy: Policy, evidence: LateEvidence) -> Operation:
        """Write down what an attempt came to. Raises JournalUnavailable, and IllegalTransition of an attempt that the
        journal has forgotten."""
        attempt = evidence.attempt
        executed = attempt.classification.executed
        before = operation

        def change_from(current: Operation) -> OperationChange:
            nonlocal before
            before = current
            after, events = self._conclude(current, policy, evidence)
            is_authoritative = response_matches_state(after, attempt.classification) and not current.state.ended
            return OperationChange(
                after,
                events,
                source=evidence.source,
                attempt=attempt,
                because=evidence.because,
                note=evidence.note,
                sealed_response=evidence.sealed_response if is_authoritative else None,
                erase_request=after.state.ended,
                accepted_credential=executed,
                sealed_credential=evidence.sealed_credential if executed else None,
                announcement=announcement_of(current, after),
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

    def _conclude(
        self, current: Operation, policy: Policy, evidence: LateEvidence
    ) -> tuple[Operation, tuple[Event, ...]]:
        """The operation after this evidence, with what its new state brings with it."""
        attempt, now = evidence.attempt, self.journal_writer.journal_clock.now()
        after, event = conclude(current, attempt.number, attempt.classification, policy.contract)
        events: tuple[Event, ...] = (event,)
        if after.state is State.BACKOFF and current.state is State.SENDING:
            # Its caller has had an answer, and nobody waits for another try.
            after, events = advance(after, Event.GIVEN_UP), (event, Event.GIVEN_UP)
        if current.attempt_under_way and not after.attempt_under_way:
            after = after.changed(lease=None)  # it was the right to send this very attempt
        no_bytes_after_at = evidence.no_bytes_after_at if evidence.no_bytes_after_at is not None else now
        after = after.changed(
            no_bytes_after_at=max(current.no_bytes_after_at or 0.0, no_bytes_after_at), because=evidence.because
        )
        awaited = self.external_evidence.waiters.has_waiter(current.id)
        delivered = awaited if evidence.undelivered is None else not evidence.undelivered
        after = after.changed(undelivered=is_undelivered(current, after, reached=delivered))
        if after.state.ended:
            if not current.state.ended:
                after = after.changed(key_released=releases_key(after))
            return after.changed(due_at=None), events
        if after.state is State.UNKNOWN:
            return after.changed(due_at=now), events
        if after.state is not current.state:
            due_at = now + self.external_evidence.first_check_delay_s(after, policy)
            after = after.changed(checks_done=0, misses=0, first_miss_at=None, due_at=due_at)
        return after, events
