"""What a write changed is told once: the end, the doubt, its end, the incident."""

from __future__ import annotations

from paywitness.core.operation import State
from paywitness.core.result import Effect, ResultClass
from paywitness.telemetry.events import (
    DoubtClosed,
    DoubtOpened,
    EvidenceKind,
    IncidentOpened,
    OperationEnded,
    ReviewOpened,
    transition_events,
)
from tests.telemetry.samples import CREATED_AT, operation


def test_a_clean_success_only_ended() -> None:
    before, after = operation(State.SENDING), operation(State.SUCCEEDED)
    assert transition_events(before, after, EvidenceKind.RESPONSE, CREATED_AT) == (
        OperationEnded(after, EvidenceKind.RESPONSE),
    )


def test_a_lost_answer_opened_a_doubt() -> None:
    before, after = operation(State.SENDING), operation(State.UNKNOWN)
    assert transition_events(before, after, EvidenceKind.RESPONSE, CREATED_AT) == (DoubtOpened(after),)


def test_a_doubt_that_goes_to_review_is_still_the_same_doubt() -> None:
    review = operation(State.REQUIRES_REVIEW)
    assert transition_events(operation(State.UNKNOWN), review, EvidenceKind.INQUIRY, CREATED_AT) == (
        ReviewOpened(review),
    )
    assert transition_events(review, review, EvidenceKind.INQUIRY, CREATED_AT) == ()


def test_an_inquiry_that_found_it_closed_the_doubt_and_ended_it() -> None:
    after = operation(State.SUCCEEDED)
    told = transition_events(operation(State.UNKNOWN), after, EvidenceKind.INQUIRY, CREATED_AT + 42)
    assert told == (DoubtClosed(after, EvidenceKind.INQUIRY, 42.0), OperationEnded(after, EvidenceKind.INQUIRY))


def test_a_doubt_that_became_pending_is_closed_but_not_ended() -> None:
    told = transition_events(operation(State.UNKNOWN), operation(State.PENDING), EvidenceKind.WEBHOOK, CREATED_AT)
    assert [type(record) for record in told] == [DoubtClosed]


def test_what_had_ended_does_not_end_again_but_may_become_an_incident() -> None:
    before = operation(State.FAILED, result_class=ResultClass.ISSUER_HARD_DECLINE)
    after = operation(State.FAILED, result_class=ResultClass.ISSUER_HARD_DECLINE, incident="success_after_failure")
    told = transition_events(before, after, EvidenceKind.WEBHOOK, CREATED_AT)
    assert told == (IncidentOpened(after, "success_after_failure"),)
    assert transition_events(after, after, EvidenceKind.WEBHOOK, CREATED_AT) == ()


def test_a_lost_holder_left_a_new_doubt_or_an_old_one() -> None:
    new = operation(State.UNKNOWN)
    assert transition_events(None, new, EvidenceKind.LEASE, CREATED_AT) == (DoubtOpened(new),)
    old = operation(State.UNKNOWN, effect=Effect.POSSIBLE, result_class=ResultClass.NETWORK_READ_TIMEOUT)
    assert transition_events(None, old, EvidenceKind.LEASE, CREATED_AT) == ()


def test_a_clock_that_went_back_gives_no_negative_age() -> None:
    told = transition_events(operation(State.UNKNOWN), operation(State.SUCCEEDED), EvidenceKind.WEBHOOK, CREATED_AT - 5)
    assert isinstance(told[0], DoubtClosed)
    assert told[0].age_s == 0.0
