"""Lists: pages of operations out of the journal, less what a query does not want to see."""

from __future__ import annotations

from dataclasses import replace

from proxy.admin.query import Wanted
from proxy.core.events import IncidentKind
from proxy.core.guard import is_paid
from proxy.core.operation import GuardKind, Operation
from proxy.journal.base import Journal, Listing

_READS_MAX = 10  # for one page: a journal full of abandoned payments must not keep it for long
_TWINS_MAX = 20


async def page_of(journal: Journal, wanted: Wanted) -> tuple[list[Operation], str | None]:
    """A page, and where the next one begins; None where this is the last."""
    limit, before = wanted.listing.limit, wanted.listing.before
    shown: list[Operation] = []
    for _ in range(_READS_MAX):
        found = await journal.listing(replace(wanted.listing, limit=limit + 1, before=before))
        for operation in found:
            if wanted.is_past(operation):
                return shown, None
            if len(shown) == limit:
                return shown, shown[-1].id
            before = operation.id
            if not wanted.hides(operation):
                shown.append(operation)
        if len(found) <= limit:
            return shown, None
    return shown, before


async def twin_of(journal: Journal, operation: Operation) -> Operation | None:
    """The other payment of the intent, where the incident is that there are two."""
    guard = operation.guard
    if operation.incident != IncidentKind.DUPLICATE_SUCCESS or guard is None or guard.kind is not GuardKind.INTENT:
        return None
    found = await journal.listing(Listing(subject=guard.shown, limit=_TWINS_MAX))
    others = [
        other
        for other in found
        if other.id != operation.id and other.guard is not None and other.guard.value == guard.value and is_paid(other)
    ]
    return min(others, key=lambda other: other.ended_at or other.updated_at, default=None)
