"""The steps of a journal, pure: what a claim, a record or an expired lease makes of an operation, and how its history
tells it. Every store runs these between its read and its write, so that stores cannot disagree.

Nothing here reads a clock or a store: `now` and the stored operation are handed in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from proxy.core.claim import Claim, ClaimRequest, Judgement, Verdict, drop_lease, judge
from proxy.core.errors import IllegalTransition, StaleWrite
from proxy.core.lifecycle import Event, advance
from proxy.core.operation import HistoryEntry, Lease, Operation, State
from proxy.journal.base import Change

_log = logging.getLogger("paywitness.journal")

EXPIRED_LEASES_MAX = 1_000  # acted upon in one call: a start after a crash must not hold up the first claims for long
HISTORY_MAX = 1_000  # entries told of one operation
LISTING_MAX = 500  # operations listed in one call

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


@dataclass(frozen=True, slots=True)
class Step:
    """An operation as it now stands and the entry that tells how it came so: written together or not at all."""

    operation: Operation
    entry: HistoryEntry
    erase_request: bool = False


@dataclass(frozen=True, slots=True)
class ClaimSteps:
    """What a claim comes to. `expired` and `started` are to be written, in this order, before it is answered."""

    verdict: Verdict
    holder: Operation | None  # of the key, as it stands after the steps
    expired: Step | None = None
    started: Step | None = None


def claim_steps(
    existing: Operation | None, request: ClaimRequest, now: float, disputed: Callable[[str], Operation | None]
) -> ClaimSteps:
    """Judge the claim over the newest operation under its key, and say what is to be written. `disputed` finds one
    under the key whose incident is open, of any generation; it is asked only before a further one would start."""
    judgement = judge(existing, request, now)
    expired = None
    if existing is not None and judgement.existing is not None and judgement.existing is not existing:
        expired = _after_lease(existing, judgement.existing, now)
    if judgement.start_generation is None:
        return ClaimSteps(judgement.verdict, expired.operation if expired else judgement.existing, expired)
    if existing is not None and (earlier := disputed(existing.key)) is not None:
        # The newest ended without effect, but an earlier one may have paid after all: nothing more is sent for it.
        return ClaimSteps(Verdict.REPLAY, earlier, expired)
    started = _started(request, judgement, now)
    return ClaimSteps(judgement.verdict, started.operation, expired, started)


def _started(request: ClaimRequest, judgement: Judgement, now: float) -> Step:
    generation = judgement.start_generation or 1
    operation = advance(request.fresh, Event.SEND_RECORDED).changed(
        generation=generation,
        provider_key=judgement.provider_key,
        stamp=judgement.stamp,
        version=1,
        created_at=now,
        updated_at=now,
        first_sent_at=now,
        lease=Lease(request.token, now + request.lease_s),
    )
    note = ""
    if judgement.existing is not None:
        note = f"generation {generation} of key; earlier operation {judgement.existing.id}"
    return Step(operation, _entry(operation, "caller", (Event.SEND_RECORDED.value,), note))


def answer(steps: ClaimSteps, now: float, sealed: tuple[bytes | None, bytes | None], *, accepted: bool) -> Claim:
    """The claim's answer. `sealed` is the holder's request and response; `accepted` counts where one is used."""
    request, response = sealed
    return Claim(
        steps.verdict,
        steps.holder,
        now,
        sealed_request=request if steps.verdict is Verdict.IN_DOUBT else None,
        sealed_response=response if steps.verdict is Verdict.REPLAY else None,
        credential_accepted=accepted or steps.verdict not in {Verdict.REPLAY, Verdict.IN_DOUBT},
    )


def expired(operations: Iterable[Operation], now: float) -> list[Step]:
    """The operations after their holders are gone. One that cannot be acted upon does not keep the others waiting."""
    acted_upon = []
    for operation in operations:
        try:
            acted_upon.append(_after_lease(operation, drop_lease(operation), now))
        except IllegalTransition as error:
            _log.error("the lease of operation %s is over, and it cannot be acted upon: %s", operation.id, error)
    return acted_upon


def _after_lease(before: Operation, dropped: Operation, now: float) -> Step:
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
    )
    return Step(operation, _entry(operation, "recovery", events, "lease expired"), operation.state.ended)


def recorded(change: Change, stored_lease: Lease | None, now: float) -> Step:
    """The change as it is to be written. `stored_lease` is what the journal holds, where `needs_stored_lease`."""
    operation = change.operation
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
        change.note,
    )
    return Step(after, entry, change.erase_request or after.state.ended)


# What an operation is, as opposed to how it stands: written once, with its claim.
WHAT_IT_IS = (
    *("id", "key", "generation", "provider", "operation", "kind", "account", "client_key", "key_source"),
    *("names_purchase", "provider_key", "fingerprint", "ignore", "request_hash", "credential", "upstream"),
    *("stamp", "created_at", "money", "guard"),
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
    if stored.lease is not None or not stored.state.in_doubt:
        raise StaleWrite(f"{stored.id} is held, or not in doubt: {stored.state}")
    operation = stored.changed(version=stored.version + 1, updated_at=now, lease=Lease(token, now + lease_s))
    return Step(operation, _entry(operation, source, (), "lease taken"))


def renewed(stored: Lease | None, token: str | None, lease_s: float, now: float) -> Lease | None:
    """The lengthened lease, or None where the token does not hold it any more. No new version: nothing became true."""
    if stored is None or stored.token != token or stored.until_at <= now:
        return None
    return Lease(stored.token, max(stored.until_at, now + lease_s))


def stale(operation_id: str, version: int) -> StaleWrite:
    return StaleWrite(f"{operation_id} is no longer at version {version}")


def _entry(operation: Operation, source: str, events: tuple[str, ...], note: str) -> HistoryEntry:
    return HistoryEntry(
        operation.updated_at,
        operation.version,
        source,
        events,
        operation.state,
        operation.doubt,
        note=note,
    )
