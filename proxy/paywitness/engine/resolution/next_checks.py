"""What follows a check that ended nothing: when to look again, and what becomes of a customer's time to act.

- A check that somebody asked for before the customer's time is over is not the last one.
- The time is over by the smallest age: a clock that was set forward takes none of it away.
- It is told once, with the check that found no result. An inquiry that failed found out nothing: it is made again, as
  long as the schedule has looks left.
- A cancel is wanted only then, only if the policy says so, and only if that check showed that the customer must still
  act. Once it was sent, the schedule begins anew: it may have been lost, or have come too late.
"""

from __future__ import annotations

from dataclasses import dataclass

from paywitness.core.inquiry import FoundObject
from paywitness.core.operation import FindingKind, Operation, State
from paywitness.core.policy import Policy
from paywitness.core.result import ResultClass
from paywitness.engine.resolution.external_evidence import ExternalEvidenceRecorder
from paywitness.engine.resolution.inquiries import CANCEL_SOURCE, InquiryResult
from paywitness.journal.base import OperationQuery

_STEPS_MAX = 50  # of one payment that are looked at
_EARLY_CHECK_PAUSE_S = 1.0  # the time is nearly over: a second more, rather than several inquiries


@dataclass(frozen=True, slots=True)
class ActionCheck:
    """A check of an operation whose customer must act."""

    asked: Operation  # as it was when it was asked about
    result: InquiryResult | None  # None: the policy knows no way to ask
    left_s: float  # of the customer's time; zero or less: certainly nothing
    settled: bool  # no replica can still show its object as it was before
    by_schedule_at: float | None  # the next look; None: the schedule has run out


def action_check(
    asked: Operation,
    current: Operation,
    policy: Policy,
    result: InquiryResult | None,
    by_schedule_at: float | None,
    evidence: ExternalEvidenceRecorder,
) -> ActionCheck:
    """What is known about the customer's time after a check. What an earlier release wrote does not say when it began:
    then it is counted from the first send."""
    since = current.action_since_at or current.first_sent_at or current.created_at
    left_s = policy.resolve.action_expires_s - evidence.journal_writer.ages.low_age_s(since)
    return ActionCheck(asked, result, left_s, evidence.is_settled(current, policy), by_schedule_at)


def after_action_check(
    current: Operation, policy: Policy, check: ActionCheck, now: float
) -> tuple[Operation, float | None]:
    """The operation after the check, and when to look next; None: nobody does by themselves."""
    result = check.result
    if check.asked.state is not State.REQUIRES_ACTION:
        return current, current.due_at  # the customer is to act since after it was asked about
    if check.left_s > 0:
        return current, now + max(check.left_s, _EARLY_CHECK_PAUSE_S)
    if result is not None and result.seen.finding.source == CANCEL_SOURCE:
        return current.changed(checks_done=0), now + policy.resolve.schedule_s[0]
    unanswered = result is None or says_nothing(result)
    if check.by_schedule_at is not None and result is not None and (unanswered or current.cancel_sent):
        return current, check.by_schedule_at
    expired = current.changed(action_expired=True, cancel_wanted=False)
    if not current.action_expired:
        expired = expired.changed(because="action_expired_unanswered" if unanswered else "action_expired")
    if _cancel_follows(current, policy, check):
        return expired.changed(cancel_wanted=True), now
    return expired, None


def _cancel_follows(current: Operation, policy: Policy, check: ActionCheck) -> bool:
    """Whether the policy gives up what the customer has not confirmed in time. Only once: with the check that shows the
    time to be over."""
    cancel = policy.cancel
    if cancel is None or not policy.resolve.cancels_expired_action or current.action_expired:
        return False
    if check.result is None or not shows_action(check.result.seen, settled=check.settled):
        return False
    is_nameable = not cancel.needs_reference or current.reference is not None
    return is_nameable and not (current.cancel_sent or current.attempt_under_way or current.incident)


def shows_action(seen: FoundObject, *, settled: bool) -> bool:
    """Whether an inquiry shows that the customer must still act. What other operations share may be shown as it was
    before ours, until all has settled."""
    classification = seen.finding.classification
    is_shown = classification is not None and classification.result_class is ResultClass.REQUIRES_ACTION
    return seen.finding.kind is FindingKind.HIT and is_shown and (settled or not seen.may_be_stale)


async def gives_action_up(
    operation: Operation, policy: Policy, seen: FoundObject, evidence: ExternalEvidenceRecorder
) -> bool:
    """Whether a cancel is wanted because the customer's time is over, and the provider has just said that the customer
    has still not acted. Another open step of the payment keeps it: it may be the one that pays. Raises
    JournalUnavailable."""
    is_wanted = operation.action_expired and operation.cancel_wanted and not operation.cancel_sent
    if operation.state is not State.REQUIRES_ACTION or not is_wanted:
        return False
    if not shows_action(seen, settled=evidence.is_settled(operation, policy)):
        return False
    if not operation.payment:
        return True
    listing = OperationQuery(payment=operation.payment, limit=_STEPS_MAX)
    steps = await evidence.journal_writer.journal.find_operations(listing)
    return all(step.id == operation.id or step.state.ended or step.abandoned for step in steps)


def says_nothing(result: InquiryResult) -> bool:
    """Whether no answer of the provider came that any row reads."""
    finding = result.seen.finding
    return finding.kind is FindingKind.FAILED and finding.classification is None


def next_check(
    before: Operation, counted: Operation, due_at: float | None, resend_at: float | None
) -> tuple[Operation, float | None]:
    """The next look: by the schedule, or before that when our limits may let a re-send go. That one is not counted."""
    if resend_at is None or (due_at is not None and due_at <= resend_at):
        return counted, due_at
    return before, resend_at
