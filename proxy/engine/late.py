"""Late evidence of our own attempts: an answer that came after its attempt had timed out, or that a spool kept.

It is read and concluded as it would have been in time; only what follows differs, for no caller waits for it and
nothing is sent because of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.clock import Clock
from proxy.core.decide import Action, Decision
from proxy.core.guard import is_unheard
from proxy.core.lifecycle import Event, advance, conclude
from proxy.core.operation import AttemptSummary, Operation, State
from proxy.core.outside import told_by
from proxy.core.policy import Policy
from proxy.core.reply import speaks_for
from proxy.engine.context import released_end
from proxy.engine.outside import Outside
from proxy.engine.records import Records
from proxy.journal.base import Change
from proxy.telemetry.records import AttemptFinished, EvidenceKind, changes
from proxy.telemetry.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class LateEvidence:
    """What one attempt came to, and where from we know it only now."""

    attempt: AttemptSummary
    source: str  # harvest, spool
    because: str
    sealed_response: bytes | None = None  # kept where it turns out to speak for the operation
    sealed_credential: bytes | None = None
    quiet_at: float | None = None  # from then on no byte of the attempt can leave any more; None: now
    unheard: bool | None = None  # whether its caller was told; None: it was not, unless somebody waits
    note: str = ""


@dataclass(frozen=True, slots=True)
class Late:
    records: Records
    outside: Outside
    clock: Clock
    telemetry: Telemetry

    async def apply(self, operation: Operation, policy: Policy, evidence: LateEvidence) -> Operation:
        """Write down what an attempt came to. Raises JournalUnavailable, and IllegalTransition of an attempt that the
        journal has forgotten."""
        attempt = evidence.attempt
        executed = attempt.classification.executed
        before = operation

        def step_from(current: Operation) -> Change:
            nonlocal before
            before = current
            after, events = self._concluded(current, policy, evidence)
            speaks = speaks_for(after, attempt.classification) and not current.state.ended
            return Change(
                after,
                events,
                source=evidence.source,
                attempt=attempt,
                because=evidence.because,
                note=evidence.note,
                sealed_response=evidence.sealed_response if speaks else None,
                erase_request=after.state.ended,
                accepted_credential=executed,
                sealed_credential=evidence.sealed_credential if executed else None,
                told=told_by(current, after),
            )

        recorded = await self.records.write(operation, step_from)
        decision = Decision(Action.STOP, evidence.because, 0.0, effect_may_exist=recorded.state.in_doubt)
        self.telemetry.tell(AttemptFinished(recorded, attempt, decision))
        resent = bool(before.doubt - {attempt.number})
        kind = EvidenceKind.REPLAY if resent else EvidenceKind.RESPONSE
        for record in changes(before, recorded, kind, self.clock.now()):
            self.telemetry.tell(record)
        self.outside.watch.tell(recorded.id)
        await self.outside.free_what_was_voided(before, recorded)
        return recorded

    def _concluded(
        self, current: Operation, policy: Policy, evidence: LateEvidence
    ) -> tuple[Operation, tuple[Event, ...]]:
        """The operation after this evidence, with what its new state brings with it."""
        attempt, now = evidence.attempt, self.records.time.now()
        after, event = conclude(current, attempt.number, attempt.classification, policy.contract)
        events: tuple[Event, ...] = (event,)
        if after.state is State.BACKOFF and current.state is State.SENDING:
            # Its caller has had an answer, and nobody waits for another try.
            after, events = advance(after, Event.GIVEN_UP), (event, Event.GIVEN_UP)
        if current.attempt_under_way and not after.attempt_under_way:
            after = after.changed(lease=None)  # it was the right to send this very attempt
        quiet_at = evidence.quiet_at if evidence.quiet_at is not None else now
        after = after.changed(quiet_at=max(current.quiet_at or 0.0, quiet_at), because=evidence.because)
        awaited = self.outside.watch.is_awaited(current.id)
        reached = awaited if evidence.unheard is None else not evidence.unheard
        after = after.changed(unheard=is_unheard(current, after, reached=reached))
        if after.state.ended:
            if not current.state.ended:
                after = after.changed(released=released_end(after))
            return after.changed(due_at=None), events
        if after.state is State.UNKNOWN:
            return after.changed(due_at=now), events
        if after.state is not current.state:
            due_at = now + self.outside.first_look_s(after, policy)
            after = after.changed(looks=0, misses=0, first_miss_at=None, due_at=due_at)
        return after, events
