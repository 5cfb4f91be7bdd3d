"""An incident, told with both pieces of evidence: the change that made the operation what it is, and the one that
contradicts it. Both are lines of its timeline."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.core.operation import HistoryEntry, Word


def contradicting(history: Sequence[HistoryEntry]) -> HistoryEntry | None:
    """The change that opened the incident that is open now: the last one that told so."""
    for entry in reversed(history):
        if entry.told is not None and Word.INCIDENT_OPENED in entry.told.words:
            return entry
    # Written before changes were told: the last one is the nearest to it.
    return history[-1] if history else None


def contradicted(history: Sequence[HistoryEntry], by: HistoryEntry | None) -> HistoryEntry | None:
    """The change that made it what it was when it was contradicted."""
    if by is None:
        return None
    earlier = [entry for entry in history if entry.version < by.version]
    if not earlier:
        return None
    stood = earlier[-1].state
    first = earlier[-1]
    for entry in reversed(earlier):
        if entry.state is not stood:
            break
        first = entry
    return first
