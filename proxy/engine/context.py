"""From an operation and its errand to what the core asks: a decision's context, an attempt's summary, a release."""

from __future__ import annotations

from proxy.clock import Clock
from proxy.core.decide import Context
from proxy.core.evidence import Evidence
from proxy.core.operation import AttemptSummary, GuardKind, Operation
from proxy.core.policy import Fallback, FallbackCause, Policy
from proxy.core.reading import DENIALS, Classification, Effect, Reading
from proxy.engine.errand import Errand

_NOES = DENIALS | {Reading.REQUIRES_ACTION}


def context_of(
    operation: Operation,
    policy: Policy,
    errand: Errand,
    clock: Clock,
    *,
    delay_s: float,
    last: Classification | None = None,
    held_back: bool = False,
    budget_allows: bool = True,
) -> Context:
    """Everything a decision about this operation may ask, now. `last`: what the attempt that just ended was read as."""
    time_left_s = errand.deadline_mono - clock.mono()
    reading = last.reading if last is not None else operation.reading or Reading.UNKNOWN_OUTCOME
    effect = last.effect if last is not None else operation.effect or Effect.POSSIBLE
    if operation.state.in_doubt and operation.effect is Effect.NONE and operation.reading in _NOES:
        # One attempt was executed and told no. Whatever became of another, a re-send would be a charge after that.
        reading, effect = operation.reading, operation.effect
    fallback = fallback_for(policy, reading, errand) if policy.fallbacks else None
    return Context(
        kind=policy.kind,
        state=operation.state,
        contract=policy.contract,
        reading=reading,
        effect=effect,
        tries=errand.tries,
        tries_max=policy.retry_rule(reading).attempts,
        first_send_age_s=first_send_age_s(operation, errand, clock),
        delay_s=delay_s,
        time_left_s=time_left_s,
        background=time_left_s <= 0,
        resend_for_s=policy.resolve.resend_for_s,
        caller_waiting=errand.still_there(),
        answer_seen_in_doubt=bool(operation.seen),
        cancel_sent=operation.cancel_sent,
        same_upstream=operation.upstream == policy.upstream,
        guarded=operation.guard is not None and operation.guard.kind is GuardKind.INTENT,
        fallback_to=fallback.to if fallback is not None else None,
        enough_tries_here=fallback is not None and fallback.after is not None and errand.tries >= fallback.after,
        bytes_at_hand=errand.bytes_at_hand,
        cancel_wanted=operation.cancel_wanted,
        asked=errand.asked_in_vain,
        held_back=held_back,
        budget_allows=budget_allows,
    )


def first_send_age_s(operation: Operation, errand: Errand, clock: Clock) -> float:
    """How long ago its first byte may have left, by the journal's time, suspension counted."""
    first_sent_at = operation.first_sent_at if operation.first_sent_at is not None else operation.created_at
    return errand.journal_at + (clock.boot() - errand.journal_boot) - first_sent_at


_CAUSES = {
    Reading.NETWORK_CONNECT_FAILURE: FallbackCause.NOT_SENT,
    Reading.RATE_LIMITED: FallbackCause.RATE_LIMITED,
}


def fallback_for(policy: Policy, reading: Reading, errand: Errand) -> Fallback | None:
    """The route that the policy takes when an operation ended so, without effect."""
    cause = FallbackCause.CIRCUIT_OPEN if errand.held_by_circuit else _CAUSES.get(reading)
    return next((fallback for fallback in policy.fallbacks if cause in fallback.when), None)


def summary_of(number: int, evidence: Evidence, classification: Classification) -> AttemptSummary:
    """What is kept of an attempt: facts and what they were read as."""
    status_code = evidence.response.status_code if evidence.response is not None else None
    return AttemptSummary(
        number,
        evidence.phase.word,
        evidence.bytes_written,
        evidence.fault,
        status_code,
        evidence.detail,
        evidence.duration_s,
        evidence.reset_by_us,
        classification,
    )


def released_end(operation: Operation) -> bool:
    """Whether an end lets its key start again: no effect, and nothing that the provider keeps under the key."""
    return is_released(operation.reading, operation.effect)


def is_released(reading: Reading | None, effect: Effect | None) -> bool:
    """`released_end`, of an end with this reading and effect."""
    return effect is Effect.NONE and reading not in _NOES
