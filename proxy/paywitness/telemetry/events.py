"""Telemetry events: the facts that the log and the metrics are fed with, in the past tense. Values only, no payload.

Which part emits which event:

- the journal writer emits `OperationStarted` for a new claim, and the fallback for the operation that it starts;
- `AttemptFinished` follows when an attempt's record is durable. Each writer of a change emits its `transition_events`;
- the engine emits `CallAnswered` once for each call, and `CallRefused` or `CallForwarded` if the call ended so. Shadow
  mode emits `CallShadowed`;
- the callers of the journal emit `JournalCalled`, and a background loop that the journal kept waiting
  `JournalUnanswered`. The rollback monitor emits `JournalRolledBack`;
- the resolver emits `InquiryFinished` and `ScheduleRanOut`, the receiver and the applier of webhooks `WebhookReceived`
  and `WebhookDelayed`, the fallback `FellBack`, the outbox `OutboxDelivered`, the policy reload `PolicyReloaded`;
- the retry budget emits `RetryRefused`, the reports to the circuits `CircuitChanged`. The admin port emits
  `CircuitForced`, an operator's command on a payment `PaymentCommandRun`.
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
    """The kinds of evidence that can end a doubt. Elapsed time is none of them."""

    RESPONSE = "response"  # the response to an attempt
    REPLAY = "replay"  # the response to a re-send under the same key
    INQUIRY = "inquiry"
    WEBHOOK = "webhook"
    CANCEL = "cancel"
    OPERATOR = "operator"
    LEASE = "lease"  # the operation ended without evidence because it was never sent; never ends a doubt


@record
class OperationStarted:
    """An operation was claimed, and its first attempt follows. A fallback starts another one, at the other provider."""

    operation: Operation


@record
class AttemptFinished:
    """An attempt ended, was classified, decided on and recorded. `operation` is as it now stands."""

    operation: Operation
    attempt: AttemptSummary
    decision: Decision
    upstream_duration_s: float | None = None  # None: the attempt's own duration


@record
class CallAnswered:
    """A caller has its reply. Names are None if no policy gave one."""

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
    """A movement was compared with the balance of its payment. It does not fit, or it is unknown whether it fits."""

    provider: str
    operation: str
    result: str  # unknown, reserved, exceeds


@record
class CallForwarded:
    """A call that matches no operation was passed on as it came."""

    provider: str


@record
class CallShadowed:
    """A call of a provider in shadow mode passed as it came. The event says what enforce mode would have done."""

    provider: str
    operation_name: str | None
    action: str  # a decision's, or replayed, refused, not_judged
    because: str  # the rule, the problem or the verdict; a name from our code
    classification: Classification | None = None  # None if the response was not read
    status_code: int | None = None
    duration_s: float = 0.0


@record
class OperationEnded:
    """An operation ended, for the first and only time."""

    operation: Operation
    evidence_kind: EvidenceKind


@record
class DoubtOpened:
    """An operation without doubt came into doubt."""

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
    """Evidence contradicted a final outcome, or an assumption of ours. `kind` is a name from our code."""

    operation: Operation
    kind: str


@record
class InquiryFinished:
    """An inquiry about an operation ended. `operation` is as it now stands."""

    operation: Operation
    finding: Finding
    duration_s: float
    reason: InquiryReason  # why the provider was asked
    hedged: bool = False  # sent while an attempt still waited for its response


@record
class WebhookReceived:
    """A webhook came, or its event was applied. `result` is a name from our code; `provider` may be anything."""

    provider: str | None
    result: str


@record
class WebhookDelayed:
    """How long a webhook came after the change that it reports, or after our first send if it gives no time."""

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
    """Every inquiry of the schedule was made and the doubt remains: the operation goes to review."""

    operation: Operation


@record
class OutboxDelivered:
    """A delivery of outcomes to the sink came back. `lag`: how many changes now wait to be delivered."""

    count: int
    failed: bool
    lag: int
    why: str = ""  # why it failed; words of our code
    gone: bool = False  # the sink wants no more events at all


@record
class RetryRefused:
    """The retry budget refused a safe retry. `scope`: the scope that will refuse the longest."""

    provider: str
    operation_name: str
    scope: BudgetScope
    operation_id: str | None = None


@record
class CircuitChanged:
    """A circuit changed its state. `fleet`: for all sidecars; otherwise for this one."""

    provider: str
    group: CallGroup
    before: CircuitState
    after: CircuitState
    fleet: bool


@record
class CircuitForced:
    """An operator forced a circuit into a state, or ended that (`state` None)."""

    provider: str
    group: CallGroup
    state: CircuitState | None
    actor: str
    reason: str
    for_s: float = 0.0  # 0 if it was ended
    confirmed: bool = True  # False: the store did not confirm it, so it may or may not be in force


@record
class PaymentCommandRun:
    """An operator adopted a payment, declared that nobody has paid it, or stated a number of its balance."""

    provider: str
    payment: str  # its id
    action: str  # adopt, balance, not-paid
    actor: str
    reason: str
    stated: str  # the statement about the payment; words of our code


@record
class JournalRolledBack:
    """The journal's store went back to an earlier time: it may have lost records that it had confirmed."""

    detail: str  # words of our code, or the store's own ids; no input


@record
class ClockJumped:
    """The clocks did not agree, or no sidecar had read them for a while (`core.ages`)."""

    gap: bool  # no sidecar ran, so no clock of ours covers this time
    left_out_s: float  # how much of the journal's time is not counted as passed
    added_s: float  # how much more than the journal's time may have passed


@record
class JournalCalled:
    """A call to the journal came back or failed. `call` is the method's name."""

    call: str
    duration_s: float
    failed: bool = False


@record
class JournalUnanswered:
    """A background loop of ours could not do its work, because the journal did not reply."""

    waits: str  # the work that waits; words of our code


@record
class PolicyReloaded:
    """The policy files were read, at the start or after an edit. If not ok, the last good book stays in force."""

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
    """The events of a write, beside that of the attempt. `before` is None if the operation's earlier state is not at
    hand: after a lease ran out."""
    ended_before = before is not None and before.state.ended
    # A doubt that an attempt left has that attempt's effect. A doubt that a lost lease holder left has no effect yet.
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
