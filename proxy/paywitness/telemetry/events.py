"""Telemetry events: what happened, in the past tense, as the log and the metrics are told it. Values only, no payload.

Who tells what: whoever claims tells `OperationStarted`; the engine tells `AttemptFinished` after each attempt's record
is durable, and the `transition_events` of every write that it or the resolver made; the server tells `CallAnswered`
once for each call, and `CallRefused` or `CallForwarded` where that is what became of it; whoever calls the journal
tells `JournalCalled`, and a loop of ours that it kept waiting `JournalUnanswered`; the watch over the policy files
tells `PolicyReloaded`. The resolver tells `InquiryFinished` and `ScheduleRanOut`; whoever receives and applies webhooks
`WebhookReceived` and `WebhookDelayed`; whoever takes another route `FellBack`; the outbox `OutboxDelivered`. Whoever
asks for a retry's allowance tells `RetryRefused`; whoever reports to the circuits `CircuitChanged`; the admin port
`CircuitForced`; whoever runs an operator's command on a payment `PaymentCommandRun`; whoever sees that the journal went
back `JournalRolledBack`. Whoever only watches a call tells `CallShadowed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from paywitness.core.budget import BudgetScope
from paywitness.core.circuit import CallGroup, CircuitState
from paywitness.core.decide import Decision
from paywitness.core.inquiry import InquiryReason
from paywitness.core.operation import AttemptSummary, Finding, Operation, Outcome, State
from paywitness.core.problems import Problem
from paywitness.core.provider_contract import OperationKind
from paywitness.core.record import record
from paywitness.core.result import Classification, Effect


class EvidenceKind(StrEnum):
    """What can end a doubt. Elapsed time is not among them."""

    RESPONSE = "response"  # the answer to an attempt
    REPLAY = "replay"  # the answer to a re-send under the same key
    INQUIRY = "inquiry"
    WEBHOOK = "webhook"
    CANCEL = "cancel"
    OPERATOR = "operator"
    LEASE = "lease"  # of what ended without evidence because it was never sent; never of a doubt


@record
class OperationStarted:
    """An operation was claimed, and its first attempt follows. A fallback starts another one, at the other provider."""

    operation: Operation


@record
class AttemptFinished:
    """An attempt ended, was read, decided upon and written down. `operation` is as it now stands."""

    operation: Operation
    attempt: AttemptSummary
    decision: Decision
    upstream_duration_s: float | None = None  # None: the attempt's own duration


@record
class CallAnswered:
    """A caller has its answer. Names are None where no policy gave one."""

    provider: str | None
    operation_name: str | None
    outcome: Outcome
    status_code: int
    problem: Problem | None
    duration_s: float
    replayed: bool = False
    operation_id: str | None = None
    trace_id: str | None = None  # of the caller's trace


@record
class CallRefused:
    """A call was turned away before anything was written or sent. `reason` is a name from our code, never input."""

    provider: str | None
    reason: str


@record
class LimitChecked:
    """A movement was held against the balance of its payment and does not fit, or cannot be said to fit."""

    provider: str
    operation: str
    result: str  # unknown, reserved, exceeds


@record
class CallForwarded:
    """A call that matches no operation was passed on as it came."""

    provider: str


@record
class CallShadowed:
    """A call of a provider in shadow mode passed as it came. What would have been done instead, and by which rule."""

    provider: str
    operation_name: str | None
    action: str  # a decision's, or replayed, refused, not_judged
    because: str  # the rule, the problem or the verdict; a name from our code
    classification: Classification | None = None  # None where the answer was not looked at
    status_code: int | None = None
    duration_s: float = 0.0


@record
class OperationEnded:
    """An operation ended, for the first and only time."""

    operation: Operation
    evidence_kind: EvidenceKind


@record
class DoubtOpened:
    """An operation came into doubt that had none."""

    operation: Operation


@record
class DoubtClosed:
    """An operation's doubt ended. `age_s`: since its first send."""

    operation: Operation
    evidence_kind: EvidenceKind
    age_s: float


@record
class ReviewOpened:
    """Only a person or new evidence can go on with it."""

    operation: Operation


@record
class IncidentOpened:
    """Evidence contradicted what was final, or what we assumed. `kind` is a name from our code."""

    operation: Operation
    kind: str


@record
class InquiryFinished:
    """The provider was asked what became of an operation. `operation` is as it now stands."""

    operation: Operation
    finding: Finding
    duration_s: float
    reason: InquiryReason  # why it was asked
    hedged: bool = False  # asked while an attempt was still awaited


@record
class WebhookReceived:
    """A webhook came, or what it told was applied. `result` is a name from our code; `provider` may be anything."""

    provider: str | None
    result: str


@record
class WebhookDelayed:
    """A webhook came so long after what it tells of, or after our first send if it does not say when that was."""

    provider: str
    delay_s: float


@record
class FellBack:
    """An operation without effect was ended, and another one started at another provider in its place."""

    from_provider: str
    to_provider: str
    reason: str  # a name from our code
    operation_id: str  # the one that was started
    ended: Operation | None = None  # the one that ended; it may have stood for another itself


@record
class ActionExpired:
    """The customer's time to act is over, and an inquiry found no result."""

    operation: Operation


@record
class ScheduleRanOut:
    """Every look of the schedule was taken and the doubt stands: a person is asked."""

    operation: Operation


@record
class OutboxDelivered:
    """A delivery of outcomes to the sink came back. `lag`: how many changes now wait to be delivered."""

    count: int
    failed: bool
    lag: int
    why: str = ""  # it failed; words of our code
    gone: bool = False  # the sink wants no more events at all


@record
class RetryRefused:
    """A retry that was safe found no allowance left. `scope`: the one that will refuse the longest."""

    provider: str
    operation_name: str
    scope: BudgetScope
    operation_id: str | None = None


@record
class CircuitChanged:
    """A circuit stands in another state. `fleet`: for all sidecars; else for this one."""

    provider: str
    group: CallGroup
    before: CircuitState
    after: CircuitState
    fleet: bool


@record
class CircuitForced:
    """An operator's word about a circuit was put in force, or taken back (`state` None)."""

    provider: str
    group: CallGroup
    state: CircuitState | None
    actor: str
    reason: str
    for_s: float = 0.0  # 0 where it was taken back
    confirmed: bool = True  # else the store did not say so, and it may or may not be in force


@record
class PaymentCommandRun:
    """An operator adopted a payment, declared that nobody has paid it, or stated a number of its balance."""

    provider: str
    payment: str  # its id
    action: str  # adopt, balance, not-paid
    actor: str
    reason: str
    stated: str  # what the payment was made to say; words of our code


@record
class JournalRolledBack:
    """The journal's store went back to an earlier time: it may have forgotten what it had confirmed."""

    detail: str  # words of our code, or the store's own ids; no input


@record
class ClockJumped:
    """The clocks did not agree, or nobody had looked at them for a while (`core.ages`)."""

    gap: bool  # nobody lived, and no clock of ours covers it
    left_out_s: float  # so much of the journal's time is not counted as passed
    added_s: float  # so much more than the journal's time may have passed


@record
class JournalCalled:
    """A call to the journal came back or failed. `call` is the method's name."""

    call: str
    duration_s: float
    failed: bool = False


@record
class JournalUnanswered:
    """One of our own loops could not do its work, because the journal did not answer."""

    waits: str  # the work that waits; words of our code


@record
class PolicyReloaded:
    """The policy files were read, at the start or after an edit. Not ok: the last good book stays in force."""

    revision: str  # of the book that is now in force
    ok: bool
    problems: tuple[str, ...] = ()
    # The book's names: provider -> operation -> kind.
    operations: Mapping[str, Mapping[str, OperationKind]] = field(default_factory=dict)


TelemetryEvent = (
    OperationStarted
    | AttemptFinished
    | CallAnswered
    | CallRefused
    | LimitChecked
    | CallForwarded
    | CallShadowed
    | OperationEnded
    | DoubtOpened
    | DoubtClosed
    | IncidentOpened
    | ReviewOpened
    | InquiryFinished
    | WebhookReceived
    | WebhookDelayed
    | FellBack
    | ActionExpired
    | ScheduleRanOut
    | OutboxDelivered
    | RetryRefused
    | CircuitChanged
    | CircuitForced
    | PaymentCommandRun
    | JournalRolledBack
    | ClockJumped
    | JournalCalled
    | JournalUnanswered
    | PolicyReloaded
)


_TransitionEvent = OperationEnded | DoubtOpened | DoubtClosed | IncidentOpened | ReviewOpened | ActionExpired


def transition_events(
    before: Operation | None, after: Operation, evidence_kind: EvidenceKind, now: float
) -> tuple[_TransitionEvent, ...]:
    """What a write changed that is worth telling beside the attempt. `before` is None where it is not at hand: after a
    lease ran out."""
    ended_before = before is not None and before.state.ended
    # A doubt that an attempt left behind has that attempt's effect; one that a lost holder left behind has none yet.
    doubted_before = before.state.in_doubt if before is not None else after.effect not in {None, Effect.NONE}
    events: list[_TransitionEvent] = []
    if after.state.in_doubt and not doubted_before:
        events.append(DoubtOpened(after))
    if doubted_before and not after.state.in_doubt:
        since = after.first_sent_at if after.first_sent_at is not None else after.created_at
        events.append(DoubtClosed(after, evidence_kind, max(0.0, now - since)))
    if after.state.ended and not ended_before:
        events.append(OperationEnded(after, evidence_kind))
    if after.incident is not None and (before is None or before.incident is None):
        events.append(IncidentOpened(after, after.incident))
    if after.state is State.REQUIRES_REVIEW and (before is None or before.state is not State.REQUIRES_REVIEW):
        events.append(ReviewOpened(after))
    if after.action_expired and (before is None or not before.action_expired):
        events.append(ActionExpired(after))
    return tuple(events)
