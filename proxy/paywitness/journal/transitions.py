"""The new row after a record, an expired lease, a taken or renewed lease, an expedited due time or a cursor lease.

Pure: `now` and the stored operation are passed in; nothing here reads a clock or a store. Every store runs these
functions, and those of `claim_plan`, between its read and its write, so stores cannot disagree. Claims belong in
`claim_plan`, fallbacks in `fallback_plan`, tombstones in `tombstones`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from paywitness.core.claim import drop_lease
from paywitness.core.consequences import announcement_of
from paywitness.core.errors import IllegalTransition, StaleWrite
from paywitness.core.guard import indexed_guard, is_duplicate_success, is_paid
from paywitness.core.lifecycle import Event, IncidentKind
from paywitness.core.operation import Announcement, AnnouncementKind, GuardKind, HistoryEntry, Lease, Operation, State
from paywitness.core.payment import FOLLOW_UPS, Payment
from paywitness.core.payment_claims import IntentHold, hold_of_payment
from paywitness.core.record import record
from paywitness.core.result import ResultClass
from paywitness.journal.base import LedgerRow, OperationChange, OperationQuery
from paywitness.journal.ledger import OperationLookups, operations_behind, payment_holds, plan_payment
from paywitness.journal.payouts import rows_of_change
from paywitness.repeated_lines import repeats

_log = logging.getLogger("paywitness.journal")

GUARDED_MAX = 50  # newest operations that are read under one guard; a paid intent has one, a disputed one a few
GUARDED_BEFORE_MAX = 20 * GUARDED_MAX  # of the older ones, how many that are more than paid are read
EXPIRED_LEASES_MAX = 1_000  # acted upon in one call: a start after a crash must not delay the first claims for long
HISTORY_MAX = 1_000  # entries returned of one operation
LISTING_MAX = 500  # operations listed in one call
# An acceptance younger than this is not written again, which saves a write with every success. It hardly matters which
# of two credentials in use is the newest.
ACCEPTANCE_REFRESH_S = 60.0

WRONG_IDENTITY_SECRET = (
    "the journal was written under another identity secret: start with that one (PAYWITNESS_IDENTITY_SECRET), or give "
    "this one a journal of its own. Under another secret no earlier payment would be recognised"
)


class WallClock(Protocol):
    """The clock that a journal needs."""

    def now(self) -> float: ...


class JournalTime:
    """The journal's own time. It follows the clock, except that it never goes back, not even across a restart. If the
    clock was set back, the journal's time advances at half pace until the clock has caught up. So no due operation
    waits for days, and dates become right again."""

    def __init__(self, clock: WallClock, latest_at: float = 0.0) -> None:
        self._clock = clock
        self._behind_at: float | None = None  # the last reading of the clock while it was behind
        self.latest_at = latest_at

    def now(self) -> float:
        now = self._clock.now()
        if now >= self.latest_at:
            self.latest_at, self._behind_at = now, None
            return now
        if self._behind_at is not None and now > self._behind_at:
            self.latest_at = max(now, self.latest_at + (now - self._behind_at) / 2)
        self._behind_at = now
        return self.latest_at


@record
class OperationWrite:
    """An operation as it shall be stored, and the history entry of the change: written together or not at all."""

    operation: Operation
    entry: HistoryEntry
    erase_request: bool = False


def expired_lease_writes(operations: Iterable[Operation], now: float) -> list[OperationWrite]:
    """The writes for operations whose leases have expired. An operation that cannot take the transition is logged and
    left out, so that it does not block the others."""
    acted_upon = []
    for operation in operations:
        try:
            acted_upon.append(lease_end_write(operation, drop_lease(operation, now), now))
        except IllegalTransition as error:
            text = "the lease of operation %s is over, and it cannot be acted upon: %s"
            _log.error(text, operation.id, error, extra=repeats(operation.id))
    return acted_upon


def lease_end_write(before: Operation, dropped: Operation, now: float) -> OperationWrite:
    """The write of `dropped`: the operation after its lease has expired."""
    advanced = dropped.state is not before.state or dropped.attempt_under_way is not before.attempt_under_way
    events = (Event.LEASE_EXPIRED.value,) if advanced else ()
    operation = dropped.changed(
        version=before.version + 1,
        updated_at=now,
        ended_at=before.ended_at or (now if dropped.state.ended else None),
    )
    entry = history_entry(operation, "recovery", events, "lease expired")
    return OperationWrite(
        operation, replace(entry, announcement=announcement_of(before, operation)), operation.state.ended
    )


def needs_duplicate_check(change: OperationChange) -> bool:
    """Whether the change shows that an intent was paid. If another operation has paid the same intent, that is an
    incident. This includes an operation that had failed and turns out to have paid: another one, a fallback for
    example, may have paid the intent meanwhile."""
    operation = change.operation
    guard = operation.guard
    first_time = operation.state is State.SUCCEEDED and operation.ended_at is None
    paid = first_time or operation.incident == IncidentKind.SUCCESS_AFTER_FAILURE
    return paid and guard is not None and guard.kind is GuardKind.INTENT and operation.kind.pays


@record
class RecordPlan:
    """A change of an operation and of its payment, written together or not at all."""

    write: OperationWrite
    rows: tuple[LedgerRow, ...] = ()


class RecordLookups(OperationLookups, Protocol):
    """The look-ups of a record."""

    def guarded(self, guard: str) -> tuple[Operation, ...]: ...


def plan_record(
    change: OperationChange,
    stored_lease: Lease | None,
    now: float,
    lookups: RecordLookups,
    guarded: Iterable[Operation] = (),
) -> RecordPlan:
    """The change as it is to be written, together with the change of the operation's payment. `stored_lease`: the lease
    in the journal, if `needs_stored_lease`. `guarded`: the operations under the same guard, if
    `needs_duplicate_check`."""
    paying = [first for first in guarded if first.id != change.operation.id] if guarded else []
    standing = _not_given_back(paying, lookups) if paying else paying
    if change.shown is None or not change.operation.payment:
        rows = rows_of_change(change.operation, change.spent_change, lookups) if change.spent_change else ()
        return RecordPlan(record_write(change, stored_lease, now, standing), rows)
    planned = plan_payment(change.operation, change.shown, lookups, now if change.numbers_forgotten else None)
    before, after = change.operation, planned.operation
    if after.kind in FOLLOW_UPS and after.result_class is ResultClass.RETURNED and after.incident is None:
        after = _after_return(after, planned.payment, lookups)
    announcement = change.announcement
    if planned.elsewhere:
        announcement = _with_word(announcement, after, AnnouncementKind.MOVED_ELSEWHERE)
    if planned.posting is not None and announcement is not None:
        announcement = replace(announcement, posting=planned.posting)
    if after.incident is not None and before.incident is None:
        announcement = _with_word(announcement, after, AnnouncementKind.INCIDENT_OPENED)
    if after.reference != before.reference and announcement is not None:
        announcement = replace(announcement, reference=after.reference)
    note = f"{change.note}; {planned.note}" if change.note and planned.note else change.note or planned.note
    change = replace(change, operation=after, announcement=announcement, note=note)
    return RecordPlan(record_write(change, stored_lease, now, standing), planned.rows)


def needs_intent(change: OperationChange) -> bool:
    """Whether the change must also be compared with the other payments of the intent. It must if the provider returned
    a follow-up: a refund that had freed the intent no longer counts."""
    operation = change.operation
    return change.shown is not None and operation.kind in FOLLOW_UPS and operation.result_class is ResultClass.RETURNED


def _after_return(operation: Operation, payment: Payment, lookups: RecordLookups) -> Operation:
    """The operation after the provider returned its movement. If the movement had freed the intent, and another
    operation has paid the intent since, the intent is paid twice."""
    intent = payment.intent
    if intent is None or hold_of_payment(payment) in {IntentHold.FREE, IntentHold.REFUNDED}:
        return operation
    others = [other for other in lookups.guarded(intent.value) if other.payment != payment.id and is_paid(other)]
    standing = _not_given_back(others, lookups) if others else others
    return _paid_twice(operation, standing[0]) if standing else operation


def _paid_twice(operation: Operation, other: Operation) -> Operation:
    return operation.changed(incident=IncidentKind.DUPLICATE_SUCCESS, other_payment=other.as_other_payment)


def _not_given_back(paying: list[Operation], lookups: OperationLookups) -> list[Operation]:
    """The operations whose payments were not refunded: a refunded payment is no second payment."""
    holds = payment_holds(lookups, paying, operations_behind(lookups))
    return [first for first in paying if holds.get(first.id, IntentHold.PAID) is not IntentHold.REFUNDED]


def _with_word(announcement: Announcement | None, operation: Operation, word: AnnouncementKind) -> Announcement:
    kinds = announcement.kinds if announcement is not None else ()
    kinds = kinds if word in kinds else (*kinds, word)
    posting, payout = (announcement.posting, announcement.payout) if announcement is not None else (None, None)
    return Announcement(
        kinds,
        operation.outcome,
        operation.result_class,
        operation.reference,
        operation.incident,
        posting,
        payout,
        announcement.fallback if announcement is not None else None,
        operation.other_payment,
    )


def record_write(
    change: OperationChange, stored_lease: Lease | None, now: float, guarded: Iterable[Operation] = ()
) -> OperationWrite:
    """The write of the operation alone, without its payment."""
    operation = change.operation
    announcement, note = change.announcement, change.note
    twin = next((first for first in guarded if is_duplicate_success(first, operation)), None) if guarded else None
    if twin is not None and operation.incident in {None, IncidentKind.SUCCESS_AFTER_FAILURE}:
        operation = _paid_twice(operation, twin)
        announcement = _with_word(announcement, operation, AnnouncementKind.INCIDENT_OPENED)
        note = f"{note}; {twin.id} paid the same intent" if note else f"{twin.id} paid the same intent"
    is_being_sent = _is_being_sent(operation)
    if operation.lease is None:
        # Evidence about an earlier attempt does not take the lease from the sidecar that is sending a later one.
        lease = stored_lease if is_being_sent else None
    else:
        lease = _lease_after(change, operation.lease, stored_lease, now)
    if lease is None and is_being_sent:
        # Without a lease nothing could expire, so no sidecar would ever act upon the operation.
        raise IllegalTransition(f"{operation.id}: an attempt is under way in {operation.state}, and nobody holds it")
    after = operation.changed(
        version=operation.version + 1,
        updated_at=now,
        ended_at=operation.ended_at or (now if operation.state.ended else None),
        lease=lease,
    )
    entry = HistoryEntry(
        now,
        after.version,
        change.source,
        change.events,
        after.state,
        after.doubt,
        change.attempt,
        change.action,
        change.because,
        change.delay_s,
        note,
        change.finding,
        announcement,
        change.actor,
        change.fallback,
    )
    return OperationWrite(after, entry, change.erase_request or after.state.ended)


# The fields that identify an operation, as opposed to its state: written once, with its claim.
IDENTITY_FIELDS = (
    *("id", "key", "generation", "provider", "operation", "kind", "account", "client_key", "key_source"),
    *("key_names_purchase", "provider_key", "fingerprint", "ignore", "request_hash", "credential", "upstream"),
    *("stamp", "unstamped", "created_at", "money", "guard", "distinct", "fallback_of", "takes_remainder", "priority"),
    *("fallback_from", "fallback_reason"),
    *("caps", "in_parts", "beside_unknown", "keyed_as", "acts_on", "object_intent", "account_source"),
    "named_account",
)


def needs_stored_lease(change: OperationChange) -> bool:
    """Whether the new lease depends on the stored one."""
    if change.operation.lease is None:
        return _is_being_sent(change.operation)
    return change.lease_s is None


def _lease_after(change: OperationChange, lease: Lease, stored: Lease | None, now: float) -> Lease:
    if change.lease_s is not None:
        return Lease(lease.token, now + change.lease_s)
    if stored is not None and stored.token == lease.token:
        # A renewal moves the end without a new version. A writer that read the operation before the renewal, say for a
        # webhook event, must not move the end back: the holder would go on sending under a lease that the journal takes
        # for expired.
        return Lease(lease.token, max(stored.until_at, lease.until_at))
    return lease


def _is_being_sent(operation: Operation) -> bool:
    return operation.attempt_under_way and not operation.state.ended


def lease_write(stored: Operation, token: str, lease_s: float, now: float) -> OperationWrite:
    """The write that gives the resolver a lease. Raises StaleWrite if the operation has a lease, or needs no work."""
    if stored.lease is not None or stored.state not in LEASABLE_STATES:
        raise StaleWrite(f"{stored.id} is held, or nothing is to be done for it: {stored.state}")
    operation = stored.changed(version=stored.version + 1, updated_at=now, lease=Lease(token, now + lease_s))
    return OperationWrite(operation, history_entry(operation, "resolver", (), "lease taken"))


def lease_due_writes(due: Iterable[Operation], token: str, lease_s: float, now: float) -> list[OperationWrite]:
    """The writes that give the token a lease on each of these due operations."""
    return [lease_write(operation, token, lease_s, now) for operation in due]


# States in which a resolver may lease an operation, to inquire or to re-send: open, and not being sent for its caller.
LEASABLE_STATES = frozenset({State.UNKNOWN, State.REQUIRES_REVIEW, State.PENDING, State.REQUIRES_ACTION})


def renewed_lease(stored: Lease | None, token: str | None, lease_s: float, now: float) -> Lease | None:
    """The lengthened lease, or None if the token does not hold it any more. The operation's version stays, because no
    fact about it has changed."""
    if stored is None or stored.token != token or stored.until_at <= now:
        return None
    return Lease(stored.token, max(stored.until_at, now + lease_s))


@record
class AcceptedCredential:
    """When the provider last accepted a credential for an account, as the journal has it, and whether the sealed
    credential is stored."""

    at: float
    sealed: bool


def refreshed_acceptance(
    before: AcceptedCredential | None, sealed: bytes | None, now: float
) -> AcceptedCredential | None:
    """The row to write when a credential is accepted (again). None: the stored one is good enough."""
    if before is not None and (before.sealed or sealed is None) and now - before.at < ACCEPTANCE_REFRESH_S:
        return None
    return AcceptedCredential(now, sealed is not None or (before is not None and before.sealed))


def stale_write(operation_id: str, version: int) -> StaleWrite:
    return StaleWrite(f"{operation_id} is no longer at version {version}")


def history_entry(operation: Operation, source: str, events: tuple[str, ...], note: str) -> HistoryEntry:
    at, version, state, doubt = operation.updated_at, operation.version, operation.state, operation.doubt
    if not note:
        return HistoryEntry(at, version, source, events, state, doubt)
    return HistoryEntry(at, version, source, events, state, doubt, note=note)


def matches_query(operation: Operation, query: OperationQuery) -> bool:
    """Whether the operation matches the query, apart from the query's `key`."""
    subject = operation.guard.label if operation.guard is not None else ""
    filters = (
        (query.provider, {operation.provider}),
        (query.operation, {operation.operation}),
        (query.reference, {operation.reference}),
        (query.stamp, {operation.id, operation.stamp or None}),
        (query.guard, {indexed_guard(operation)}),
        (query.subject, {subject or None}),
        (query.money, {operation.money}),
        (query.payment, {operation.payment}),
        (query.kind, {operation.kind}),
    )
    return (
        all(requested is None or requested in found for requested, found in filters)
        and (not query.states or operation.state in query.states)
        and (not query.accounts or operation.account in query.accounts)
        and (not query.incidents_only or operation.incident is not None)
        and (query.before is None or operation.id < query.before)
    )


# --- Expedited due times

# States that wait only for the next inquiry. `requires_action` waits for the customer, `requires_review` for a person.
EXPEDITABLE_STATES = frozenset({State.UNKNOWN, State.PENDING})
EXPEDITE_SCAN_FACTOR = 10  # times the limit: how many operations are read at most, to find those that may be expedited
_EXPEDITE_MAX = 500  # in one step: about 10 ms of a store's time


def bounded_expedite_limit(limit: int) -> int:
    return max(0, min(limit, _EXPEDITE_MAX))


def expedited_due_times(
    waiting: Iterable[tuple[str, State, float]], now: float, within_s: float, limit: int
) -> list[tuple[str, float]]:
    """The new due times, by id. `waiting`: the operations that have no lease and are not due yet, as (id, state,
    due_at), earliest first.

    The next `limit` of them shall be due within `within_s`, evenly spread. An operation that is due within that time
    anyway keeps its due time, and counts. So several sidecars that expedite at the same moment move no more operations
    than one of them would.
    """
    chosen = [(operation_id, due_at) for operation_id, state, due_at in waiting if state in EXPEDITABLE_STATES][:limit]
    return [
        (operation_id, now + place * within_s / len(chosen))
        for place, (operation_id, due_at) in enumerate(chosen)
        if due_at > now + within_s
    ]


# --- Cursor leases


def cursor_lease(stored: Lease | None, token: str, lease_s: float, now: float) -> Lease | None:
    """The cursor's lease after the token takes or lengthens it; None if the token may not have it. A lease of zero
    seconds gives it back."""
    if stored is not None and (stored.token == token) != (stored.until_at > now):
        return None  # another token's lease still runs, or its own has expired
    return Lease(token, now + lease_s)


def holds_cursor(stored: Lease | None, token: str, now: float) -> bool:
    return stored is not None and stored.token == token and stored.until_at > now
