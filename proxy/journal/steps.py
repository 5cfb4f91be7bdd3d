"""The steps of a journal, pure: what a record or an expired lease makes of an operation, and how its history tells it.
Every store runs these, and those of `claiming`, between its read and its write, so that stores cannot disagree.

Nothing here reads a clock or a store: `now` and the stored operation are handed in.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from proxy.core.claim import drop_lease
from proxy.core.errors import IllegalTransition, StaleWrite
from proxy.core.frozen import frozen
from proxy.core.guard import contradicts_second_success, guard_kept
from proxy.core.lifecycle import Event, IncidentKind
from proxy.core.operation import GuardKind, HistoryEntry, Lease, Operation, State, Told, Word
from proxy.core.outside import told_by
from proxy.journal.base import Change, Listing

_log = logging.getLogger("paywitness.journal")

GUARDED_MAX = 50  # operations looked at under one guard: a paid intent has one, an argued one a few
EXPIRED_LEASES_MAX = 1_000  # acted upon in one call: a start after a crash must not hold up the first claims for long
HISTORY_MAX = 1_000  # entries told of one operation
LISTING_MAX = 500  # operations listed in one call
ACCEPTED_AGAIN_AFTER_S = 60.0  # saves a write with every success; which of two in use is newest hardly matters

OTHER_IDENTITY = (
    "the journal was written under another identity secret: start with that one (PAYWITNESS_IDENTITY_SECRET), or give "
    "this one a journal of its own. Under another secret no earlier payment would be recognised"
)


class WallClock(Protocol):
    """All that a journal asks of a clock."""

    def now(self) -> float: ...


class JournalTime:
    """The journal's own time: the clock's, except that it never goes back, not even across a restart."""

    def __init__(self, clock: WallClock, latest_at: float = 0.0) -> None:
        self._clock = clock
        self.latest_at = latest_at

    def now(self) -> float:
        now = self._clock.now()
        if now > self.latest_at:
            self.latest_at = now
        return self.latest_at


@frozen
class Step:
    """An operation as it now stands and the entry that tells how it came so: written together or not at all."""

    operation: Operation
    entry: HistoryEntry
    erase_request: bool = False


def expired(operations: Iterable[Operation], now: float) -> list[Step]:
    """The operations after their holders are gone. One that cannot be acted upon does not keep the others waiting."""
    acted_upon = []
    for operation in operations:
        try:
            acted_upon.append(after_lease(operation, drop_lease(operation), now))
        except IllegalTransition as error:
            _log.error("the lease of operation %s is over, and it cannot be acted upon: %s", operation.id, error)
    return acted_upon


def after_lease(before: Operation, dropped: Operation, now: float) -> Step:
    """The operation after its holder is gone: `dropped`, with what follows from it."""
    advanced = dropped.state is not before.state or dropped.attempt_under_way is not before.attempt_under_way
    events = (Event.LEASE_EXPIRED.value,) if advanced else ()
    due_at = dropped.due_at
    if dropped.state.ended:
        due_at = None
    elif dropped.state is State.UNKNOWN or (dropped.state is State.PENDING and due_at is None):
        due_at = now  # nobody holds it any more, so somebody has to look at it
    operation = dropped.changed(
        version=before.version + 1,
        updated_at=now,
        ended_at=before.ended_at or (now if dropped.state.ended else None),
        due_at=due_at,
        # Its holder checked, before a byte, that the lease would outlast the writing: none can leave from here on.
        quiet_at=max(dropped.quiet_at or 0.0, now) if before.attempt_under_way else dropped.quiet_at,
    )
    entry = entry_of(operation, "recovery", events, "lease expired")
    return Step(operation, replace(entry, told=told_by(before, operation)), operation.state.ended)


def needs_paid_before(change: Change) -> bool:
    """Whether the change shows a payment of an intent: then another one before it is an incident. Also of one that had
    failed, and whose intent was then paid otherwise: by a fallback, say."""
    operation = change.operation
    guard = operation.guard
    first_time = operation.state is State.SUCCEEDED and operation.ended_at is None
    paid = first_time or operation.incident == IncidentKind.SUCCESS_AFTER_FAILURE
    return paid and guard is not None and guard.kind is GuardKind.INTENT and operation.kind.pays


def recorded(change: Change, stored_lease: Lease | None, now: float, guarded: Iterable[Operation] = ()) -> Step:
    """The change as it is to be written. `stored_lease` is what the journal holds, where `needs_stored_lease`;
    `guarded` what stands under the same guard, where `needs_paid_before`."""
    operation = change.operation
    told, note = change.told, change.note
    twin = next((first for first in guarded if contradicts_second_success(first, operation)), None) if guarded else None
    if twin is not None and operation.incident in {None, IncidentKind.SUCCESS_AFTER_FAILURE}:
        operation = operation.changed(incident=IncidentKind.DUPLICATE_SUCCESS)
        words = told.words if told is not None else ()
        words = words if Word.INCIDENT_OPENED in words else (*words, Word.INCIDENT_OPENED)
        told = Told(words, operation.outcome, operation.reading, operation.reference, operation.incident)
        note = f"{note}; {twin.id} paid the same intent" if note else f"{twin.id} paid the same intent"
    lease = _lease_after(change, stored_lease, now)
    if lease is None and _is_being_sent(operation):
        # No lease could ever expire, so nobody would ever act upon it.
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
        told,
        change.actor,
    )
    return Step(after, entry, change.erase_request or after.state.ended)


# What an operation is, as opposed to how it stands: written once, with its claim.
WHAT_IT_IS = (
    *("id", "key", "generation", "provider", "operation", "kind", "account", "client_key", "key_source"),
    *("names_purchase", "provider_key", "fingerprint", "ignore", "request_hash", "credential", "upstream"),
    *("stamp", "unstamped", "created_at", "money", "guard", "distinct", "fallback_of"),
)


def needs_stored_lease(change: Change) -> bool:
    """Whether the change does not say by itself what the lease shall be."""
    if change.operation.lease is None:
        return _is_being_sent(change.operation)
    return change.lease_s is None


def _lease_after(change: Change, stored: Lease | None, now: float) -> Lease | None:
    lease = change.operation.lease
    if lease is None:
        # Evidence of an earlier attempt does not take the lease from whoever is sending a later one.
        return stored if _is_being_sent(change.operation) else None
    if change.lease_s is not None:
        return Lease(lease.token, now + change.lease_s)
    if stored is not None and stored.token == lease.token:
        # A renewal moves the end without a new version. Whoever read it earlier, a webhook say, must not move it back:
        # the holder would go on sending under a lease that the journal believes is over.
        return Lease(lease.token, max(stored.until_at, lease.until_at))
    return lease


def _is_being_sent(operation: Operation) -> bool:
    return operation.attempt_under_way and not operation.state.ended


def leased(
    stored: Operation | None, asked: Operation, token: str, lease_s: float, now: float, source: str
) -> Step | None:
    """The operation held by the asker, or StaleWrite. None where the asker holds it already: its reply was lost."""
    if stored is None:
        raise stale(asked.id, asked.version)
    if stored.version == asked.version + 1 and stored.lease is not None and stored.lease.token == token:
        return None
    if stored.version != asked.version:
        raise stale(asked.id, asked.version)
    if stored.lease is not None or stored.state not in MAY_BE_HELD:
        raise StaleWrite(f"{stored.id} is held, or nothing is to be done for it: {stored.state}")
    operation = stored.changed(version=stored.version + 1, updated_at=now, lease=Lease(token, now + lease_s))
    return Step(operation, entry_of(operation, source, (), "lease taken"))


def taken(due: Iterable[Operation], token: str, lease_s: float, now: float) -> list[Step]:
    """Operations that are due and that nobody holds, held by whoever took them."""
    steps = (leased(operation, operation, token, lease_s, now, "resolver") for operation in due)
    return [step for step in steps if step is not None]


# What somebody may hold to ask or to re-send: all that is open and not being sent by its first holder.
MAY_BE_HELD = frozenset({State.UNKNOWN, State.REQUIRES_REVIEW, State.PENDING, State.REQUIRES_ACTION})


def renewed(stored: Lease | None, token: str | None, lease_s: float, now: float) -> Lease | None:
    """The lengthened lease, or None where the token does not hold it any more. No new version: nothing became true."""
    if stored is None or stored.token != token or stored.until_at <= now:
        return None
    return Lease(stored.token, max(stored.until_at, now + lease_s))


@frozen
class Accepted:
    """When the provider accepted a credential for an account, as far as it is written, and whether it is kept."""

    at: float
    sealed: bool


def accepted_again(before: Accepted | None, sealed: bytes | None, now: float) -> Accepted | None:
    """What is to be written when a credential is accepted (again); None: what is written will do."""
    if before is not None and (before.sealed or sealed is None) and now - before.at < ACCEPTED_AGAIN_AFTER_S:
        return None
    return Accepted(now, sealed is not None or (before is not None and before.sealed))


def stale(operation_id: str, version: int) -> StaleWrite:
    return StaleWrite(f"{operation_id} is no longer at version {version}")


def entry_of(operation: Operation, source: str, events: tuple[str, ...], note: str) -> HistoryEntry:
    at, version, state, doubt = operation.updated_at, operation.version, operation.state, operation.doubt
    if not note:
        return HistoryEntry(at, version, source, events, state, doubt)
    return HistoryEntry(at, version, source, events, state, doubt, note=note)


def is_listed(operation: Operation, listing: Listing) -> bool:
    """Whether the operation is asked for, leaving its keys aside."""
    subject = operation.guard.shown if operation.guard is not None else ""
    asked_and_found = (
        (listing.provider, {operation.provider}),
        (listing.operation, {operation.operation}),
        (listing.reference, {operation.reference}),
        (listing.stamp, {operation.id, operation.stamp or None}),
        (listing.guard, {guard_kept(operation)}),
        (listing.subject, {subject or None}),
        (listing.money, {operation.money}),
    )
    return (
        all(asked is None or asked in found for asked, found in asked_and_found)
        and (not listing.states or operation.state in listing.states)
        and (not listing.incidents_only or operation.incident is not None)
        and (listing.before is None or operation.id < listing.before)
    )
