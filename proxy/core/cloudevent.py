"""What is told to the rest of the company, as a CloudEvent 1.0 in its structured JSON form. Pure.

One event a change, under an id that every delivery and every reader of the feed sees alike; so whatever it holds is
taken from what a change keeps for ever and from what the operation is, never from how it stands meanwhile. No payload,
no hash, no free text: what people and providers write does not leave in an event.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from proxy.core.operation import HistoryEntry, Operation, Told, Word
from proxy.core.proposal import proposal_for

CONTENT_TYPE = "application/cloudevents+json"
TYPE_PREFIX = "paywitness.operation."

# Which word of a change is its type: the one that a reader who knows only one must not miss. A payment that was given
# back has also ended, but whoever reads `ended` alone would deliver the goods.
_BY_WEIGHT = (
    Word.INCIDENT_OPENED,
    Word.REVERSED,
    Word.ENDED,
    Word.REVIEW_OPENED,
    Word.DOUBT_OPENED,
    Word.RESOLVED,
    Word.INCIDENT_CLOSED,
)


def event_id(operation: Operation, entry: HistoryEntry) -> str:
    return f"{operation.id}:{entry.version}"


def event_type(told: Told) -> str:
    return TYPE_PREFIX + min(told.words, key=_BY_WEIGHT.index)


def cloud_event(operation: Operation, entry: HistoryEntry) -> dict[str, Any]:
    """The event of a change that tells something. Raises ValueError for one that tells nothing."""
    told = entry.told
    if told is None or not told.words:
        raise ValueError(f"version {entry.version} of {operation.id} tells nothing")
    return {
        "specversion": "1.0",
        "id": event_id(operation, entry),
        "source": f"/paywitness/{quote(operation.provider, safe='')}",
        "type": event_type(told),
        "subject": operation.id,
        "time": _rfc3339(entry.at),
        "datacontenttype": "application/json",
        "data": _data(operation, entry, told),
    }


def _data(operation: Operation, entry: HistoryEntry, told: Told) -> dict[str, Any]:
    then = operation.changed(
        state=entry.state, reading=told.reading, reference=told.reference, incident=told.incident, doubt=entry.doubt
    )
    money, guard = operation.money, operation.guard
    return {
        "operation": operation.id,
        "provider": operation.provider,
        "name": operation.operation,
        "kind": operation.kind,
        "words": list(told.words),
        "outcome": told.outcome,
        "state": entry.state,
        "reading": told.reading,
        "reference": told.reference,
        "client_key": operation.client_key,
        "key_source": operation.key_source,
        "generation": operation.generation,
        "about": {"kind": guard.kind, "id": guard.shown} if guard is not None and guard.shown else None,
        "amount": str(money.major) if money is not None else None,
        "currency": money.currency if money is not None else None,
        "minor_units": money.minor_units if money is not None else None,
        "in_doubt": sorted(entry.doubt),
        "incident": told.incident,
        "proposal": proposal_for(then),
        "evidence": entry.source,
        "because": entry.because or None,
        "version": entry.version,
        "created_at": _rfc3339(operation.created_at),
    }


def event_bytes(event: dict[str, Any]) -> bytes:
    """The event as it is signed and sent: the same bytes for the same event."""
    return json.dumps(event, ensure_ascii=True, separators=(",", ":")).encode()


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
