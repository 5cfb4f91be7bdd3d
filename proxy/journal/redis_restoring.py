"""What it comes to, pure, that somebody knows an operation which the journal has forgotten, or has older than that.

A failover to a replica, or a start from a disk that was a moment behind, forgets the last writes. Whoever still holds
such an operation puts it back as it was. Never over a newer version, and never in the place of another operation that
was since started under its key or guard: then there are two, and a person has to look.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from proxy.core.claim import after_expired_lease
from proxy.core.events import IncidentKind
from proxy.core.guard import hold_of
from proxy.core.operation import GuardKind, Lease, Operation
from proxy.core.outside import told_by
from proxy.journal.steps import Step, entry_of

_EVENT = "put_back"


@dataclass(frozen=True, slots=True)
class PutBack:
    step: Step
    in_front: bool  # its key belongs to another operation by now, and stays that one's


def put_back(
    known: Operation,
    stored: Operation | None,
    newest: Operation | None,
    guarded: Iterable[Operation],
    lease_s: float | None,
    now: float,
) -> PutBack | None:
    """The operation as it is to be written again; None where the journal knows it as well, or better. `newest` stands
    under its key, `guarded` under its guard; with `lease_s`, the lease it is known with runs anew. The version is
    the one it is known at: whoever knows a later one can still put that back."""
    if stored is not None and stored.version >= known.version:
        return None
    in_front = newest is not None and newest.id != known.id and newest.generation >= known.generation
    others = [newest] if in_front and newest is not None else []
    others += [other for other in guarded if _stands_against(other, known, now)]
    others += [stored] if stored is not None and _went_on(stored, known) else []
    lease = known.lease
    if lease is not None and lease_s is not None:
        lease = Lease(lease.token, now + lease_s)
    operation = known.changed(
        lease=lease,
        incident=known.incident or (IncidentKind.JOURNAL_ROLLBACK if others else None),
    )
    had = "nothing of it" if stored is None else f"only version {stored.version} of it"
    note = f"put back: after a rollback the journal had {had}"
    if others:
        note += f"; meanwhile others went on with {', '.join(sorted({other.id for other in others}))}"
    entry = replace(entry_of(operation, "recovery", (_EVENT,), note), told=told_by(stored, operation))
    return PutBack(Step(operation, entry, erase_request=operation.state.ended), in_front)


def _went_on(stored: Operation, known: Operation) -> bool:
    """Whether others acted on the older version since: ended it otherwise, or send for it right now."""
    if stored.updated_at <= known.updated_at:
        return False
    theirs = stored.lease is not None and (known.lease is None or stored.lease.token != known.lease.token)
    return (stored.state.ended and stored.state is not known.state) or (theirs and stored.attempt_under_way)


def _stands_against(other: Operation, known: Operation, now: float) -> bool:
    """Whether the other can only have been started because this one was forgotten: this one holds the guard."""
    guard = known.guard
    if guard is None or other.key == known.key or other.created_at < known.created_at or hold_of(known, now) is None:
        return False
    if other.fallback_of == known.id or (other.distinct and guard.kind is not GuardKind.INTENT):
        return False
    return hold_of(after_expired_lease(other, now), now) is not None
