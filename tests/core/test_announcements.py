"""Events: what leaves, under which name, and that it never changes afterwards."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from paywitness.core.announcements import (
    cloud_events,
    event_bytes,
    event_type,
)
from paywitness.core.consequences import announcement_of, fallback_announcement
from paywitness.core.operation import (
    Announcement,
    AnnouncementKind,
    FallbackLink,
    Guard,
    GuardKind,
    HistoryEntry,
    Operation,
    Outcome,
    State,
)
from paywitness.core.result import ResultClass
from tests.telemetry.samples import operation as some_operation

SECRETS = ("key-hash", "credential-hash", "fingerprint-hash", "request-hash", "guard-hash", "canary")


def told(*words: AnnouncementKind, **changes: object) -> Announcement:
    facts = {
        "outcome": Outcome.SUCCEEDED,
        "result_class": ResultClass.SUCCEEDED,
        "reference": "ch_1",
        "incident": None,
        "other_payment": None,
        **changes,
    }
    return Announcement(words, **facts)  # type: ignore[arg-type]


def entry(what: Announcement | None, state: State = State.SUCCEEDED, **changes: object) -> HistoryEntry:
    facts = {
        "at": 1_750_000_001.5,
        "version": 4,
        "source": "webhook",
        "events": ("webhook_told_success",),
        "doubt": frozenset[int](),
        "because": "in_doubt_ask",
        "note": "canary-note",
        "actor": "canary-actor",
        **changes,
    }
    return HistoryEntry(state=state, announcement=what, **facts)  # type: ignore[arg-type]


def cloud_event(operation: Operation, change: HistoryEntry) -> dict[str, Any]:
    (event,) = cloud_events(operation, change)
    return event


def paid(**changes: Any) -> Operation:
    return some_operation(guard=Guard(GuardKind.INTENT, "guard-hash", "order-17"), **changes)


def test_an_event_is_a_cloudevent_that_says_what_became_of_the_money() -> None:
    event = cloud_event(paid(), entry(told(AnnouncementKind.RESOLVED, AnnouncementKind.ENDED)))
    data = event.pop("data")
    assert event == {
        "specversion": "1.0",
        "id": "op_01JXQ6ZP00ABCDEFGHJKMNPQRS:4",
        "source": "/paywitness/acme",
        "type": "paywitness.operation.ended",
        "subject": "op_01JXQ6ZP00ABCDEFGHJKMNPQRS",
        "time": "2025-06-15T15:06:41.500Z",
        "datacontenttype": "application/json",
    }
    assert data == {
        "operation": "op_01JXQ6ZP00ABCDEFGHJKMNPQRS",
        "provider": "acme",
        "name": "authorization",
        "kind": "authorization",
        "account": "account-hash",
        "payment": None,
        "posting": None,
        "words": ["resolved", "ended"],
        "outcome": "succeeded",
        "state": "succeeded",
        "reading": "succeeded",
        "reference": "ch_1",
        "client_key": "order-17",
        "key_source": "header:Idempotency-Key",
        "generation": 1,
        "about": {"kind": "intent", "id": "order-17"},
        "amount": "12.50",
        "currency": "EUR",
        "minor_units": 1250,
        "in_doubt": [],
        "incident": None,
        "other_payment": None,
        "proposal": None,
        "evidence": "webhook",
        "because": "in_doubt_ask",
        "version": 4,
        "created_at": "2025-06-15T15:06:40.000Z",
    }


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ((AnnouncementKind.ENDED, AnnouncementKind.INCIDENT_OPENED), "incident_opened"),
        ((AnnouncementKind.RESOLVED, AnnouncementKind.ENDED, AnnouncementKind.REVERSED), "reversed"),
        ((AnnouncementKind.RESOLVED, AnnouncementKind.ENDED), "ended"),
        ((AnnouncementKind.DOUBT_OPENED, AnnouncementKind.REVIEW_OPENED), "review_opened"),
        ((AnnouncementKind.DOUBT_OPENED,), "doubt_opened"),
        ((AnnouncementKind.RESOLVED,), "resolved"),
        ((AnnouncementKind.INCIDENT_CLOSED,), "incident_closed"),
        ((AnnouncementKind.RESOLVED, AnnouncementKind.PENDING), "resolved"),
        ((AnnouncementKind.PENDING,), "pending"),
        ((AnnouncementKind.REQUIRES_ACTION,), "requires_action"),
        ((AnnouncementKind.ACTION_EXPIRED,), "action_expired"),
        ((AnnouncementKind.FALLBACK,), "fallback"),
    ],
)
def test_the_type_is_the_word_that_must_not_be_missed(words: tuple[AnnouncementKind, ...], kind: str) -> None:
    assert event_type(told(*words)) == f"paywitness.operation.{kind}"


def test_every_word_has_its_weight() -> None:
    for pair in itertools.permutations(AnnouncementKind, 2):
        assert event_type(told(*pair)).startswith("paywitness.operation.")


def test_the_same_change_gives_the_same_bytes_whatever_became_of_the_operation_since() -> None:
    change = entry(told(AnnouncementKind.DOUBT_OPENED, outcome=Outcome.UNKNOWN, reference=None), State.UNKNOWN)
    then = cloud_event(paid(state=State.UNKNOWN, doubt=frozenset({1}), version=4), change)
    since = paid(state=State.SUCCEEDED, reference="ch_9", attempts=7, version=9, incident="two_references")
    assert event_bytes(cloud_event(since, change)) == event_bytes(then)
    assert then["data"]["state"] == "unknown"


def test_an_incident_says_what_to_do() -> None:
    what = told(AnnouncementKind.INCIDENT_OPENED, outcome=Outcome.DECLINED, incident="success_after_failure")
    event = cloud_event(paid(), entry(what, State.FAILED))
    assert event["type"] == "paywitness.operation.incident_opened"
    assert "void ch_1 (12.50 EUR) at acme" in event["data"]["proposal"]


def test_no_hash_no_note_and_no_name_of_a_person_leaves() -> None:
    text = event_bytes(cloud_event(paid(), entry(told(AnnouncementKind.ENDED)))).decode()
    for secret in SECRETS:
        assert secret not in text
    assert json.loads(text)["data"]["client_key"] == "order-17"


def test_a_change_that_tells_nothing_is_no_event() -> None:
    with pytest.raises(ValueError, match="tells nothing"):
        cloud_event(paid(), entry(None))


def test_a_provider_is_a_part_of_an_address() -> None:
    assert cloud_event(paid(provider="a b/c"), entry(told(AnnouncementKind.ENDED)))["source"] == "/paywitness/a%20b%2Fc"


def test_what_is_not_known_is_null() -> None:
    data = cloud_event(some_operation(money=None), entry(told(AnnouncementKind.ENDED)))["data"]
    assert (data["amount"], data["currency"], data["minor_units"], data["about"]) == (None, None, None, None)


@pytest.mark.parametrize(
    ("state", "word"),
    [(State.PENDING, AnnouncementKind.PENDING), (State.REQUIRES_ACTION, AnnouncementKind.REQUIRES_ACTION)],
)
def test_what_is_waited_for_is_told_once_each_time_it_begins(state: State, word: AnnouncementKind) -> None:
    sending, waiting = some_operation(State.SENDING), some_operation(state)
    begun = announcement_of(sending, waiting)
    assert begun is not None
    assert begun.kinds == (word,)
    assert announcement_of(waiting, waiting.changed(checks_done=1)) is None
    again = announcement_of(some_operation(State.UNKNOWN, doubt=frozenset({1})), waiting)
    assert again is not None
    assert again.kinds == (AnnouncementKind.RESOLVED, word)


def test_that_a_customers_time_is_over_is_told_once() -> None:
    waiting = some_operation(State.REQUIRES_ACTION)
    expired = waiting.changed(action_expired=True)
    first = announcement_of(waiting, expired)
    assert first is not None
    assert first.kinds == (AnnouncementKind.ACTION_EXPIRED,)
    assert announcement_of(expired, expired.changed(checks_done=1)) is None


def test_a_fallback_names_both_operations_and_why() -> None:
    link = FallbackLink("acme_eu", "op_2", "circuit_open")
    first = paid(state=State.FAILED, fallback_to="op_2")
    announcement = fallback_announcement(some_operation(State.BACKOFF), first, link)
    assert announcement is not None
    event = cloud_event(first, entry(announcement, State.FAILED))
    assert event["type"] == "paywitness.operation.fallback"
    assert event["data"]["words"] == ["fallback"]
    assert event["data"]["fallback"] == {
        "from": first.provider,
        "from_operation": first.id,
        "to": "acme_eu",
        "to_operation": "op_2",
        "reason": "circuit_open",
    }


def test_an_event_of_an_earlier_release_stays_the_same_bytes() -> None:
    assert "fallback" not in cloud_event(paid(), entry(told(AnnouncementKind.ENDED)))["data"]
