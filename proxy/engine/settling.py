"""Settling an attempt: what it showed is concluded, the next step decided, both written down. Durable when it returns.

The journal not taking it, a spool of our own does. What our limits say is asked here, before the record: a retry that
the budget refuses is decided against as one that has no tries left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.backoff import delay_s, no_earlier_than
from proxy.core.contract import ErrorsUnderKey, Kind, ProviderContract
from proxy.core.decide import END_DECISIONS, Action, Decision, decide
from proxy.core.errors import JournalUnavailable
from proxy.core.evidence import HELD_BACK, Evidence, Response, WireFault
from proxy.core.frozen import frozen
from proxy.core.lifecycle import Event, advance, conclude, concluded
from proxy.core.operation import AttemptSummary, Lease, Operation, State
from proxy.core.outside import told_by
from proxy.core.policy import Policy
from proxy.core.reading import Classification, Effect, Reading
from proxy.core.reply import speaks_for
from proxy.core.retry_after import retry_after_s
from proxy.engine.allowance import Allowances
from proxy.engine.context import context_of, is_released, released_end, summary_of
from proxy.engine.errand import Errand
from proxy.engine.keeping import seal_response
from proxy.engine.late import Late
from proxy.engine.leases import Leases
from proxy.engine.records import Records
from proxy.engine.watch import Watch
from proxy.journal.base import Change
from proxy.telemetry.records import AttemptFinished, EvidenceKind, changes
from proxy.telemetry.telemetry import Telemetry
from proxy.vault import Vault


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


@frozen
class _Tried:
    """An attempt that has ended."""

    errand: Errand
    policy: Policy
    evidence: Evidence
    attempt: AttemptSummary
    wait_s: float  # before another one, should there be one


@dataclass(frozen=True, slots=True)
class Settling:
    records: Records
    leases: Leases
    allowances: Allowances
    vault: Vault
    clock: Clock
    chance: Chance
    telemetry: Telemetry
    watch: Watch
    late: Late
    spool: Spooling

    async def settle(
        self, errand: Errand, operation: Operation, policy: Policy, evidence: Evidence, classification: Classification
    ) -> tuple[Operation, Decision]:
        """Conclude the attempt, decide, and write both down with what follows at once. Durable when it returns."""
        attempt = summary_of(operation.attempts, evidence, classification)
        tried = _Tried(
            errand, policy, evidence, attempt, self._backoff(errand, policy, classification, evidence.response)
        )
        errand.held_by_circuit = evidence.fault is WireFault.CIRCUIT_OPEN
        decided: Decision
        before = operation

        allowed = True
        first = self._judged(operation, tried, budget_allows=True)
        judged: tuple[Operation, tuple[Event, ...], Decision] | None = first
        if first[2].action is Action.RETRY_SAME_OPERATION:
            allowed = await self.allowances.ask(errand, operation, policy, classification)
            judged = None  # time has passed

        def step_from(current: Operation) -> Change:
            nonlocal decided, before, judged
            before = current
            following, events, decided = judged or self._judged(current, tried, budget_allows=allowed)
            judged = None  # a second step is taken from where somebody else has left it
            if not following.state.ended:
                following, more = self._follow(following, decided, policy, errand)
                events += more
            executed = classification.executed
            # A lease that somebody else has taken since is not ours to lengthen.
            lease_s = self.leases.lease_s if _is_held_by(following, errand) else None
            return Change(
                following,
                events,
                errand.source,
                attempt,
                decided.action,
                decided.because,
                decided.delay_s,
                "",  # no note
                lease_s,
                self._sealed(following, classification, evidence.response),
                following.state.ended,  # the request is erased
                executed,
                self.records.credential_to_keep(errand) if executed else None,
                None,  # nothing was found outside
                told_by(current, following),
            )

        try:
            recorded = await self.records.write(operation, step_from)
        except JournalUnavailable:
            await self.allowances.give_back(errand)
            return await self._spooled(errand, operation, policy, attempt, evidence)
        if errand.grant is not None and decided.action is not Action.RETRY_SAME_OPERATION:
            await self.allowances.give_back(errand)  # somebody was faster, and it stands otherwise
        self._tell(before, recorded, attempt, decided)
        if recorded.kind is Kind.VOID:
            await self.late.outside.free_what_was_voided(before, recorded)
        if recorded.due_at is not None and self.watch.resolving:
            self.watch.due.set()
        errand.last_delay_s = decided.delay_s
        return recorded, decided

    def _judged(
        self, current: Operation, tried: _Tried, *, budget_allows: bool
    ) -> tuple[Operation, tuple[Event, ...], Decision]:
        """From where the operation stands: as the attempt leaves it, and what is then to be done."""
        policy, evidence, attempt = tried.policy, tried.evidence, tried.attempt
        changed, event = concluded(current, attempt.number, attempt.classification, policy.contract)
        events = (event,)
        if (end := END_DECISIONS.get(changed["state"])) is not None:
            return self._ended(current, changed, end, tried.errand), events, end
        after = current.changed(**changed)
        if after.doubt:
            quiet_at = (
                self.records.time.now() + evidence.listening_s
            )  # an earlier attempt may be listened to for longer
            after = after.changed(quiet_at=max(current.quiet_at or 0.0, quiet_at))
        if after.attempt_under_way:
            # Our lease ran out, and a repeat sends a later attempt right now: what follows is its affair.
            return after, events, Decision(Action.STOP, "attempt_still_under_way", 0.0, effect_may_exist=True)
        context = context_of(
            after,
            policy,
            tried.errand,
            self.clock,
            delay_s=tried.wait_s,
            last=attempt.classification,
            held_back=evidence.fault in HELD_BACK,
            budget_allows=budget_allows,
        )
        return after, events, decide(context)

    def _ended(self, current: Operation, changed: dict[str, Any], end: Decision, errand: Errand) -> Operation:
        """The operation at its end, which nothing follows: as the attempt leaves it, with what the end itself is."""
        reading, effect = changed.get("reading", current.reading), changed.get("effect", current.effect)
        changed["because"], changed["due_at"], changed["released"] = end.because, None, is_released(reading, effect)
        if current.lease is not None and current.lease.token == errand.token:
            changed["lease"] = None
        if changed["state"] is State.SUCCEEDED and not current.state.ended:
            changed["unheard"] = errand.nobody_hears and not self.watch.is_awaited(current.id)
        return current.changed(**changed)

    async def _spooled(
        self, errand: Errand, operation: Operation, policy: Policy, attempt: AttemptSummary, evidence: Evidence
    ) -> tuple[Operation, Decision]:
        """The journal did not take what we know. A spool of our own keeps it for when it does; then an answer that the
        provider stands by passes, with that reason. "Nothing was sent, and nothing will be" is no such answer: until
        the journal has it, somebody else may take the operation for a doubt and send it again. Nor is a decline that
        the provider would not give again."""
        quiet_at = self.records.time.now() + evidence.listening_s
        unheard = errand.nobody_hears
        if not await self.spool.put(operation, attempt, evidence.response, quiet_at=quiet_at, unheard=unheard):
            raise JournalUnavailable("neither the journal nor the spool took the record")
        after, _ = conclude(operation, attempt.number, attempt.classification, policy.contract)
        if after.state is State.BACKOFF or (after.state is State.FAILED and _could_be_executed(policy.contract)):
            raise JournalUnavailable("the operation is not ended in the journal")
        after = after.changed(because="journal_unavailable_spooled")
        return after, Decision(Action.STOP, after.because, 0.0, effect_may_exist=bool(after.doubt))

    def _follow(
        self, after: Operation, decision: Decision, policy: Policy, errand: Errand
    ) -> tuple[Operation, tuple[Event, ...]]:
        """The operation as it stands after the decision, and the events that the decision itself is."""
        events: tuple[Event, ...] = ()
        match decision.action:
            case Action.STOP:
                pass
            case Action.MARK_TERMINAL_FAILURE if after.state is State.BACKOFF:
                after, events = advance(after, Event.GIVEN_UP), (Event.GIVEN_UP,)
            case Action.SEND_TO_REVIEW if not after.state.ended:
                after, events = advance(after, Event.PARKED), (Event.PARKED,)
            case Action.RETRY_SAME_OPERATION if after.state is State.UNKNOWN:
                after, events = advance(after, Event.RESEND_RECORDED), (Event.RESEND_RECORDED,)
                after = after.changed(misses=0, first_miss_at=None)
            case Action.STATUS_INQUIRY | Action.WAIT_FOR_WEBHOOK | Action.SCHEDULE_RETRY | Action.ASK_CUSTOMER_ACTION:
                after = after.changed(
                    due_at=self.records.time.now() + self._first_look_s(after, decision, policy, errand)
                )
        changed: dict[str, Any] = {"because": decision.because}
        if after.lease is None or after.lease.token == errand.token:
            changed["lease"] = Lease(errand.token, 0.0) if decision.action in _SENDS else None
        if after.state.ended:  # given up
            changed |= {"due_at": None, "released": released_end(after)}
        return after.changed(**changed), events

    def _first_look_s(self, after: Operation, decision: Decision, policy: Policy, errand: Errand) -> float:
        """When the resolver first looks: at once where it may ask, and a caller still waits for what it finds. After a
        try that our limits refused there is no hurry: who does not answer calls does not answer questions."""
        if after.state is State.REQUIRES_ACTION:
            return policy.resolve.action_expires_s
        asks = decision.action is Action.STATUS_INQUIRY and self.watch.resolving
        if asks and not errand.nobody_hears and errand.limited is None:
            return 0.0
        schedule_s = policy.resolve.schedule_s
        return max(decision.delay_s, schedule_s[min(after.looks, len(schedule_s) - 1)])

    def _backoff(
        self, errand: Errand, policy: Policy, classification: Classification, response: Response | None
    ) -> float:
        """How long to wait before another try. After a success there is none."""
        if classification.reading is Reading.SUCCEEDED and classification.effect is Effect.DONE:
            return 0.0
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


_SENDS = frozenset({Action.RETRY_SAME_OPERATION, Action.FALLBACK_NEW_ATTEMPT})


def _could_be_executed(contract: ProviderContract) -> bool:
    """Whether a re-send by somebody who does not know of the decline might be a new charge."""
    return contract.dedupes and contract.errors_under_key is ErrorsUnderKey.REEXECUTED


def _is_held_by(operation: Operation, errand: Errand) -> bool:
    return operation.lease is not None and operation.lease.token == errand.token
