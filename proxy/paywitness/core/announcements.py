"""The events for subscribers, as CloudEvents 1.0 in their structured JSON form. Pure.

A change makes one event, and a second one if it moves a payout's money. Each has an id that is the same in every
delivery and for every reader of the feed. So an event contains only data that the change keeps for ever, and the fields
that identify the operation, never the operation's later state. It contains no payload, no hash and no free text, so
that texts of people and providers never leave in an event.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from paywitness.core.money import Money
from paywitness.core.operation import (
    Announcement,
    AnnouncementKind,
    FallbackLink,
    HistoryEntry,
    Operation,
    OtherPayment,
    PayoutStage,
    Posting,
)
from paywitness.core.operator_actions import proposal_for
from paywitness.core.payout import payout_posting

CONTENT_TYPE = "application/cloudevents+json"
TYPE_PREFIX = "paywitness.operation."
PAYOUT_TYPE_PREFIX = "paywitness.payout."

# A change with several words takes as its type the word that a reader must not miss. A payment that was given back has
# also ended, but a reader of `ended` alone would deliver the goods.
_BY_IMPORTANCE = (
    AnnouncementKind.INCIDENT_OPENED,
    AnnouncementKind.REVERSED,
    AnnouncementKind.RETURNED,
    AnnouncementKind.DISPUTED,
    AnnouncementKind.DISPUTE_WON,
    AnnouncementKind.ENDED,
    AnnouncementKind.REVIEW_OPENED,
    AnnouncementKind.DOUBT_OPENED,
    AnnouncementKind.RESOLVED,
    AnnouncementKind.INCIDENT_CLOSED,
    AnnouncementKind.MOVED_ELSEWHERE,
    AnnouncementKind.AUTHORIZATION_EXPIRED,
    AnnouncementKind.AUTHORIZATION_EXPIRES,
    AnnouncementKind.ACTION_EXPIRED,
    AnnouncementKind.REQUIRES_ACTION,
    AnnouncementKind.PENDING,
    AnnouncementKind.FALLBACK,
)


def event_type(announcement: Announcement) -> str:
    return TYPE_PREFIX + min(announcement.kinds, key=_BY_IMPORTANCE.index)


def cloud_events(operation: Operation, entry: HistoryEntry) -> list[dict[str, Any]]:
    """The events of a change with an announcement, in their order: the operation's, then the one of its payout's money.
    Raises ValueError if the change has no announcement."""
    announcement = entry.announcement
    if announcement is None or not (announcement.kinds or announcement.payout):
        raise ValueError(f"version {entry.version} of {operation.id} tells nothing")
    change_id, events = f"{operation.id}:{entry.version}", []
    if announcement.kinds:
        data = _data(operation, entry, announcement)
        events.append(_event(operation, entry, change_id, event_type(announcement), data))
    if announcement.payout is not None:
        data = _payout_data(operation, entry, announcement, announcement.payout)
        kind = PAYOUT_TYPE_PREFIX + announcement.payout
        events.append(_event(operation, entry, f"{change_id}:payout", kind, data))
    return events


def _event(operation: Operation, entry: HistoryEntry, event_id: str, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": f"/paywitness/{quote(operation.provider, safe='')}",
        "type": kind,
        "subject": operation.id,
        "time": _rfc3339(entry.at),
        "datacontenttype": "application/json",
        "data": data,
    }


def _data(operation: Operation, entry: HistoryEntry, announcement: Announcement) -> dict[str, Any]:
    then = operation.changed(
        state=entry.state,
        result_class=announcement.result_class,
        reference=announcement.reference,
        incident=announcement.incident,
        other_payment=announcement.other_payment,
        doubt=entry.doubt,
    )
    money, guard = operation.money, operation.guard
    return {
        "operation": operation.id,
        "provider": operation.provider,
        "name": operation.operation,
        "kind": operation.kind,
        "words": list(announcement.kinds),
        "outcome": announcement.outcome,
        "state": entry.state,
        "reading": announcement.result_class,
        "reference": announcement.reference,
        "client_key": operation.client_key,
        "key_source": operation.key_source,
        "generation": operation.generation,
        "about": {"kind": guard.kind, "id": guard.label} if guard is not None and guard.label else None,
        "amount": str(money.major) if money is not None else None,
        "currency": money.currency if money is not None else None,
        "minor_units": money.minor_units if money is not None else None,
        "account": operation.account,
        "payment": operation.payment or None,
        "posting": _posting(announcement.posting),
        "in_doubt": sorted(entry.doubt),
        "incident": announcement.incident,
        "other_payment": other_payment_json(announcement.other_payment),
        "proposal": proposal_for(then),
        "evidence": entry.source,
        "because": entry.because or None,
        "version": entry.version,
        "created_at": _rfc3339(operation.created_at),
        **_fallback(operation, announcement.fallback),
    }


def _payout_data(
    operation: Operation, entry: HistoryEntry, announcement: Announcement, status: PayoutStage
) -> dict[str, Any]:
    """The data of the operation's own event, except that the posting is the payout's, under its own key."""
    posting = payout_posting(operation, status, entry.state)
    return _data(operation, entry, announcement) | {"words": [status], "posting": _posting(posting)}


def _posting(posting: Posting | None) -> dict[str, Any] | None:
    if posting is None:
        return None
    known = posting.minor_units is not None and posting.currency is not None
    money = Money(posting.minor_units or 0, posting.currency or "") if known else None
    return {
        "key": posting.key,
        "kind": posting.kind,
        "amount": str(money.major) if money is not None else None,
        "minor_units": posting.minor_units,
        "currency": posting.currency,
        "of": posting.of,
        "reverses": posting.reverses,
    }


def _fallback(operation: Operation, link: FallbackLink | None) -> dict[str, Any]:
    """The member about a fallback. It is only in an event with one, so that events of earlier changes stay the same
    bytes."""
    if link is None:
        return {}
    route = {
        "from": operation.provider,
        "from_operation": operation.id,
        "to": link.provider,
        "to_operation": link.operation_id,
        "reason": link.reason,
    }
    return {"fallback": route}


def other_payment_json(other: OtherPayment | None) -> dict[str, Any] | None:
    """The other side of an incident: another payment, or the payment that the provider shows instead."""
    if other is None:
        return None
    return {
        "operation": other.operation_id or None,
        "provider": other.provider,
        "reference": other.reference,
        "amount": str(other.money.major) if other.money is not None else None,
        "currency": other.money.currency if other.money is not None else None,
        "minor_units": other.money.minor_units if other.money is not None else None,
    }


def event_bytes(event: dict[str, Any]) -> bytes:
    """The event as it is signed and sent: the same bytes for the same event."""
    return json.dumps(event, ensure_ascii=True, separators=(",", ":")).encode()


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
