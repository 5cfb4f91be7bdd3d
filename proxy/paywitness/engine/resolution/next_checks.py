"""The next step after a check that ended nothing: when to check again, and when a customer's time to act is over.

- A check that was requested before the customer's time is over is not the last one.
- The time is over by the smallest age, so a clock that was set forward takes none of it away.
- The end of the time is announced once, with the check that found no result. An inquiry that failed found out nothing,
  so it is made again as long as the schedule has checks left.
- A cancel follows only then, only if the policy says so, and only if that check showed that the customer must still
  act. After the cancel was sent, the schedule begins again, because the cancel may have been lost or come too late.
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

_STEPS_MAX = 50  # of one payment that are read
_EARLY_CHECK_PAUSE_S = 1.0  # the time is nearly over: a second more is better than several inquiries


@dataclass(frozen=True, slots=True)
class ActionCheck:
    """A check of an operation whose customer must act."""

    asked: Operation  # the operation before the inquiry
    result: InquiryResult | None  # None: the policy has no way to inquire
    left_s: float  # of the customer's time; zero or less: it is certainly over
    settled: bool  # no replica can still show the object as it was before
    by_schedule_at: float | None  # the next check; None: the schedule has run out


def action_check(
    asked: Operation,
    current: Operation,
    policy: Policy,
    result: InquiryResult | None,
    by_schedule_at: float | None,
    evidence: ExternalEvidenceRecorder,
) -> ActionCheck:
    """The state of the customer's time after a check. An operation of an earlier release does not show when that time
    began, so it counts from the first send."""
    since = current.action_since_at or current.first_sent_at or current.created_at
    left_s = policy.resolve.action_expires_s - evidence.journal_writer.ages.low_age_s(since)
    return ActionCheck(asked, result, left_s, evidence.is_settled(current, policy), by_schedule_at)


def after_action_check(
    current: Operation, policy: Policy, check: ActionCheck, now: float
) -> tuple[Operation, float | None]:
    """The operation after the check, and when to check next; None: no further check is planned."""
    result = check.result
    if check.asked.state is not State.REQUIRES_ACTION:
        return current, current.due_at  # the customer must act only since after the inquiry
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
    """Whether the policy cancels an action that the customer has not confirmed in time. Only once: with the check that
    shows that the time is over."""
    cancel = policy.cancel
    if cancel is None or not policy.resolve.cancels_expired_action or current.action_expired:
        return False
    if check.result is None or not shows_action(check.result.seen, settled=check.settled):
        return False
    is_nameable = not cancel.needs_reference or current.reference is not None
    return is_nameable and not (current.cancel_sent or current.attempt_under_way or current.incident)


def shows_action(seen: FoundObject, *, settled: bool) -> bool:
    """Whether an inquiry shows that the customer must still act. An object that other operations share may be shown as
    it was before ours, until all has settled."""
    classification = seen.finding.classification
    is_shown = classification is not None and classification.result_class is ResultClass.REQUIRES_ACTION
    return seen.finding.kind is FindingKind.HIT and is_shown and (settled or not seen.may_be_stale)


async def gives_action_up(
    operation: Operation, policy: Policy, seen: FoundObject, evidence: ExternalEvidenceRecorder
) -> bool:
    """Whether to cancel now: the customer's time is over, and the provider has just shown that the customer must still
    act. If another step of the payment is open, there is no cancel, because that step may be the one that pays. Raises
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
    """Whether no response of the provider came that matches a row."""
    finding = result.seen.finding
    return finding.kind is FindingKind.FAILED and finding.classification is None


def next_check(
    before: Operation, counted: Operation, due_at: float | None, resend_at: float | None
) -> tuple[Operation, float | None]:
    """The next check: by the schedule, or earlier if our limits may then allow a re-send. A check for that re-send does
    not count."""
    if resend_at is None or (due_at is not None and due_at <= resend_at):
        return counted, due_at
    return before, resend_at
