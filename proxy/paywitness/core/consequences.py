"""Consequences: everything that a change of an operation implies beside its new state. Pure, beside `lifecycle.TABLE`.

`lifecycle` decides which state an event leads to. `consequences` decides the rest, in the same way for every writer:

| what                   | rule                                                                                       |
|------------------------|--------------------------------------------------------------------------------------------|
| due time               | None if it has ended, is being sent first, or waits between tries. None in review, unless  |
|                        | an operator asked for a check. A new open state: its first check, by default now. UNKNOWN  |
|                        | and PENDING that nobody holds always have one. Otherwise it stays, or is what the writer   |
|                        | has scheduled.                                                                             |
| lease                  | Kept, or taken, by a writer that sends next. Over when the attempt under way has ended.    |
|                        | Given back by its holder, never under an attempt that is under way. Another holder's lease |
|                        | stays.                                                                                     |
| key reusable           | Decided once, by the first end: FAILED without effect, not a decision of the provider, and |
|                        | no fallback stands for it.                                                                 |
| undelivered            | It was paid or accepted, and nobody gets the reply: see `guard.is_undelivered`.            |
| delivery unknown       | Set when the lease of an attempt under way runs out, or the caller gets a response that no |
|                        | row knows. Over once somebody was told, or the only attempt has been reported: see `guard`.|
| no bytes after         | While something is in doubt: the latest time at which a byte of an ended attempt can leave |
| checks, misses         | Counted anew in a new state that is checked by schedule. A new attempt voids the misses.   |
| stored request         | Erased at the end.                                                                         |
| customer's time        | Begins when the customer must act. Over, with what was found then, in any other state.     |
| who asked for a check  | Whoever has it due before its schedule. Nobody any more once it is due at another time.    |
| announcement           | As `announcement_of` says. An end by a fallback is announced by the fallback's own end;    |
|                        | the change tells where it falls back to, and that its doubt is over.                       |

Facts that only the writer knows come in by `WriteContext`. It is the only place in which writers differ on purpose.
Decisions of the writer itself (an incident that is closed, a cancel that was sent, one more check that was made) are in
`after` already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paywitness.core.guard import is_undelivered
from paywitness.core.operation import (
    Announcement,
    AnnouncementKind,
    FallbackLink,
    Lease,
    Operation,
    PayoutStage,
    Posting,
    State,
)
from paywitness.core.payout import movement_of_change, payout_status
from paywitness.core.provider_contract import OperationKind
from paywitness.core.record import record
from paywitness.core.result import PROVIDER_SAID_NO, Effect, ResultClass


@record
class WriteContext:
    """The facts that the writer of a change knows beside the operation."""

    now: float  # the journal's time
    sends_under: str | None = None  # the lease token under which the writer sends next
    gives_back: str | None = None  # the lease token that the writer holds and needs no longer
    check_at: float | None = None  # when the operation shall be checked next, if it is still open then
    first_check_at: Callable[[Operation], float] | None = None  # for a new open state; None: now. Called once at most
    check_doubt_now: bool = False  # nobody works on it any more: UNKNOWN is checked now, even if a later time was set
    last_check: bool = False  # this was the last check without an operator
    no_bytes_after_at: float | None = None  # from then on no byte of the ended attempt can leave
    reached: bool | None = None  # whether a caller gets the reply; None: this change does not settle that
    delivery_pending: bool = False  # the caller may get the reply; the writer's next change records whether it did
    passed_on: bool = False  # the caller gets the provider's own response, which does not show whether it was paid
    reports_attempt: bool = False  # the writer made the attempt, and knows the reply to its own caller
    check_asked_by: str = ""  # who set `check_at`, if not the schedule: operator, webhook
    fallback: FallbackLink | None = None  # for an end: the operation that was started as its fallback


@record
class Consequences:
    """A complete change: the operation as it shall be written, and the writes and the event that go with it."""

    operation: Operation
    renews_lease: bool  # the writer sends next, under a lease that runs anew
    erase_request: bool
    announcement: Announcement | None


# States that the resolver checks by its schedule. In REQUIRES_ACTION that begins when the customer's time is over.
_CHECKED_STATES = frozenset({State.UNKNOWN, State.PENDING, State.REQUIRES_ACTION})
_ALWAYS_DUE_STATES = frozenset({State.UNKNOWN, State.PENDING})
_NEVER_DUE_STATES = frozenset({State.PREPARED, State.SENDING, State.BACKOFF, State.SUCCEEDED, State.FAILED})
_WITHOUT_EFFECT_STATES = frozenset({State.PREPARED, State.BACKOFF})  # whatever the earlier attempts showed


def consequences(before: Operation, after: Operation, context: WriteContext) -> Consequences:
    """The consequences of the change from `before` to `after`. `after` has the new state and the writer's decisions."""
    lease = _lease_after(before, after, context)
    changed: dict[str, Any] = {"lease": lease, "due_at": _due_at(before, after, lease, context)}
    is_new_state = after.state is not before.state
    if is_new_state and after.state.ended and not before.state.ended:
        changed["key_released"] = after.state is State.FAILED and _releases_key(before, after)
    if context.no_bytes_after_at is not None and after.doubt:
        changed["no_bytes_after_at"] = max(after.no_bytes_after_at or 0.0, context.no_bytes_after_at)
    if is_new_state and after.state in _CHECKED_STATES:
        changed |= {"checks_done": 0, "misses": 0, "first_miss_at": None}
    elif after.attempts > before.attempts:
        changed |= {"misses": 0, "first_miss_at": None}
    concerns_customer = is_new_state and State.REQUIRES_ACTION in (before.state, after.state)
    changed |= _customers_time(after, context) if concerns_customer else {}
    if context.check_asked_by or (after.check_asked_by and changed["due_at"] != before.due_at):
        changed["check_asked_by"] = context.check_asked_by
    if after.other_payment is not None or after.absence_shown:
        changed |= _found_no_more(before, after)
    operation = after.changed(**changed)
    if context.reached is not None and after.state is not State.REQUIRES_REVIEW:
        undelivered = is_undelivered(before, operation, reached=context.reached)
        operation = operation if undelivered is operation.undelivered else operation.changed(undelivered=undelivered)
    if context.passed_on or (context.delivery_pending and operation.undelivered):
        operation = operation.changed(delivery_unknown=True)
    elif operation.delivery_unknown and _is_delivery_known(operation, context):
        operation = operation.changed(delivery_unknown=False)
    falls_back = operation.fallback_to is not None and before.fallback_to is None
    return Consequences(
        operation,
        renews_lease=lease is not None and lease.token == context.sends_under,
        erase_request=operation.state.ended,
        announcement=fallback_announcement(before, operation, context.fallback)
        if falls_back
        else announcement_of(before, operation),
    )


def _customers_time(after: Operation, context: WriteContext) -> dict[str, Any]:
    """The fields for the customer's time to act: since when, and whether it is over. It begins again whenever the
    operation comes to wait for the customer."""
    return {
        "action_since_at": context.now if after.state is State.REQUIRES_ACTION else None,
        "action_expired": False,
    }


def _found_no_more(before: Operation, after: Operation) -> dict[str, Any]:
    """The changes that erase earlier evidence which no longer holds."""
    no_more: dict[str, Any] = {}
    if after.incident is None and after.other_payment is not None:
        no_more["other_payment"] = None
    if after.absence_shown and (after.state is not before.state or after.attempts > before.attempts):
        no_more["absence_shown"] = False
    return no_more


def _is_delivery_known(after: Operation, context: WriteContext) -> bool:
    """Whether the change settles if the reply of a lost holder's attempt reached its caller. If there were several
    attempts, several holders may have been lost, and each may have replied to its caller."""
    return bool(context.reached) or (context.reports_attempt and after.attempts == 1)


# Classes that the provider stores under the key, or that mean that another client has acted upon the object.
_KEEPS_KEY = PROVIDER_SAID_NO | {ResultClass.ALREADY_DONE}


def _releases_key(before: Operation, after: Operation) -> bool:
    """Whether a failed operation lets its key start again: it had no effect, and the provider stores nothing under the
    key."""
    if after.doubt or after.fallback_to is not None:
        return False
    without_effect = after.effect is Effect.NONE or before.state in _WITHOUT_EFFECT_STATES
    return without_effect and after.result_class not in _KEEPS_KEY


def _lease_after(before: Operation, after: Operation, context: WriteContext) -> Lease | None:
    lease = after.lease
    if context.sends_under is not None and not after.state.ended:
        is_free = lease is None or lease.token == context.sends_under
        return Lease(context.sends_under, 0.0) if is_free else lease
    if lease is None or (before.attempt_under_way and not after.attempt_under_way):
        return None  # a lease is the right to send, and the attempt that was sent under it has ended
    is_given_back = lease.token == context.gives_back and not after.attempt_under_way
    return None if is_given_back else lease


def _due_at(before: Operation, after: Operation, lease: Lease | None, context: WriteContext) -> float | None:
    state = after.state
    if state in _NEVER_DUE_STATES or (context.last_check and state not in _ALWAYS_DUE_STATES):
        return None
    if context.check_at is not None:
        return context.check_at
    if state is State.UNKNOWN and context.check_doubt_now:
        return context.now
    if state is State.REQUIRES_REVIEW and state is not before.state:
        return None
    if state is not before.state and context.sends_under is None:
        return context.first_check_at(after) if context.first_check_at is not None else context.now
    if after.due_at is None and lease is None and state in _ALWAYS_DUE_STATES:
        return context.now
    return after.due_at


# --- Announcements


def announcement_of(before: Operation | None, after: Operation) -> Announcement | None:
    """The announcement of a change to subscribers; None if it concerns nobody else. `before` None: a new operation."""
    kinds = _kinds_of(before, after)
    if after.kind is not OperationKind.PAYOUT:
        return _announced(after, kinds) if kinds else None
    status = payout_status(before, after)
    return _announced(after, kinds, movement_of_change(before, after), status) if kinds or status is not None else None


def _announced(
    after: Operation,
    kinds: tuple[AnnouncementKind, ...],
    posting: Posting | None = None,
    payout: PayoutStage | None = None,
    fallback: FallbackLink | None = None,
) -> Announcement:
    return Announcement(
        kinds,
        after.outcome,
        after.result_class,
        after.reference,
        after.incident,
        posting,
        payout,
        fallback=fallback,
        other_payment=after.other_payment if after.incident is not None else None,
    )


def fallback_announcement(before: Operation, after: Operation, link: FallbackLink | None) -> Announcement | None:
    """The announcement for an operation that falls back: that its doubt is over, to which route, and why. It does not
    announce an end, because the fallback's own end will, and one payment must not have two."""
    kinds = tuple(kind for kind in _kinds_of(before, after) if kind is not AnnouncementKind.ENDED)
    kinds += (AnnouncementKind.FALLBACK,) if link is not None else ()
    return _announced(after, kinds, fallback=link) if kinds else None


def _kinds_of(before: Operation | None, after: Operation) -> tuple[AnnouncementKind, ...]:
    kinds: list[AnnouncementKind] = []
    was, now = before.state if before is not None else None, after.state
    was_in_doubt = was is not None and was.in_doubt
    if now.in_doubt and not was_in_doubt:
        kinds.append(AnnouncementKind.DOUBT_OPENED)
    if now is State.REQUIRES_REVIEW and was is not now:
        kinds.append(AnnouncementKind.REVIEW_OPENED)
    if was_in_doubt and not now.in_doubt:
        kinds.append(AnnouncementKind.RESOLVED)
    if now is not was and now in _WAITING:
        kinds.append(_WAITING[now])
    if after.action_expired and (before is None or not before.action_expired):
        kinds.append(AnnouncementKind.ACTION_EXPIRED)
    if now.ended and (was is None or not was.ended):
        kinds.append(AnnouncementKind.ENDED)
    given_back = _GIVEN_BACK.get(after.result_class) if now is State.SUCCEEDED else None
    if given_back is not None and (before is None or before.result_class is not after.result_class):
        kinds.append(given_back)
    incident = before.incident if before is not None else None
    if after.incident is not None and incident is None:
        kinds.append(AnnouncementKind.INCIDENT_OPENED)
    if after.incident is None and incident is not None:
        kinds.append(AnnouncementKind.INCIDENT_CLOSED)
    return tuple(kinds)


_WAITING = {State.PENDING: AnnouncementKind.PENDING, State.REQUIRES_ACTION: AnnouncementKind.REQUIRES_ACTION}
_GIVEN_BACK: dict[ResultClass | None, AnnouncementKind] = {
    ResultClass.REVERSED: AnnouncementKind.REVERSED,
    ResultClass.RETURNED: AnnouncementKind.RETURNED,
}
