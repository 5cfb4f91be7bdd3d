"""How a timeline is told: an answer that arrived is not told as lost, leases are no news, durations are readable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paywitness.core.operation import (
    Announcement,
    AnnouncementKind,
    AttemptSummary,
    Finding,
    FindingKind,
    HistoryEntry,
    Outcome,
    State,
)
from paywitness.core.result import Classification, ResultClass
from paywitness.core.timeline_words import change_text, duration_text, is_lease_only

ATTEMPT = AttemptSummary(
    2, "complete", 9, None, 500, "", 0.1, False, Classification.of(ResultClass.TEMPORARY_PROVIDER_ERROR, "http_500")
)
LOST = HistoryEntry(1.0, 2, "caller", ("answer_lost",), State.UNKNOWN, frozenset({2}), ATTEMPT)


def test_an_error_that_arrived_is_not_told_as_lost() -> None:
    assert change_text(LOST) == "answered 500: money may have moved"
    assert change_text(replace(LOST, attempt=replace(ATTEMPT, status_code=None))) == "answer lost: money may have moved"


def test_an_error_over_what_is_known_says_nothing_of_money() -> None:
    assert change_text(replace(LOST, state=State.SUCCEEDED, doubt=frozenset())) == "answered 500"


def test_every_other_change_bears_the_names_of_its_events() -> None:
    entry = HistoryEntry(1.0, 2, "caller", ("send_recorded", "parked"), State.SENDING, frozenset())
    assert change_text(entry) == "send recorded, parked"
    seen = replace(entry, events=(), finding=Finding("ask[0]", FindingKind.MISSED))
    assert change_text(seen) == "checked"
    assert change_text(replace(entry, events=(), actor="ada", action="close_incident")) == "close incident"
    assert change_text(replace(entry, events=())) == "updated"


def test_only_a_change_of_the_lease_alone_is_left_out() -> None:
    lease = HistoryEntry(1.0, 2, "resolver", (), State.UNKNOWN, frozenset({1}), note="lease taken")
    assert is_lease_only(lease)
    assert is_lease_only(replace(lease, source="recovery", note="lease expired"))
    told = Announcement((AnnouncementKind.INCIDENT_OPENED,), Outcome.UNKNOWN, None, None, "x")
    for worth in (
        replace(lease, events=("lease_expired",)),
        replace(lease, attempt=ATTEMPT),
        replace(lease, finding=Finding("ask[0]", FindingKind.MISSED)),
        replace(lease, announcement=told),
        replace(lease, actor="ada"),
        replace(lease, note="asked the provider"),
    ):
        assert not is_lease_only(worth)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3.0, "0 ms"),
        (0.0803, "80 ms"),
        (0.9996, "1 s"),
        (1.25, "1.2 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (90.0, "1 min 30 s"),
        (3599.9, "1 h"),
        (7500.0, "2 h 5 min"),
        (86_400.0, "1 d"),
        (113_400.0, "1 d 7 h"),
    ],
)
def test_durations_are_as_people_say_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
