"""Evidence from outside, in every state: it never raises, ends no doubt under an attempt, overwrites no end."""

from __future__ import annotations

from itertools import product

import pytest

from paywitness.core.consequences import announcement_of
from paywitness.core.external_evidence import EvidenceSource, conclude_external, event_of, is_postponed, precedes_end
from paywitness.core.lifecycle import Event, IncidentKind
from paywitness.core.operation import AnnouncementKind, Operation, OtherPayment, State
from paywitness.core.provider_contract import ErrorsUnderKey
from paywitness.core.result import DENIALS, DOES_NOT_FIT, Effect, ResultClass
from tests.core.samples import contract, operation, read

REPLAYED = contract(ErrorsUnderKey.REPLAYED)
REEXECUTED = contract(ErrorsUnderKey.REEXECUTED)
DOUBTS = {State.UNKNOWN: frozenset({1}), State.REQUIRES_REVIEW: frozenset({1})}


def standing(state: State, *, under_way: bool = False, doubt: frozenset[int] | None = None) -> Operation:
    found = DOUBTS.get(state, frozenset()) if doubt is None else doubt
    attempts = 0 if state is State.PREPARED else max(found, default=1)
    return operation(state=state, doubt=found, attempts=attempts, attempt_under_way=under_way)


def every_operation() -> list[Operation]:
    return [standing(state, under_way=under_way) for state, under_way in product(State, (False, True))]


@pytest.mark.parametrize(("source", "reading"), list(product(EvidenceSource, ResultClass)))
def test_whatever_it_is_told_it_never_raises_and_an_end_stays_an_end(
    source: EvidenceSource, reading: ResultClass
) -> None:
    for before, known, settled in product(every_operation(), (REPLAYED, REEXECUTED), (False, True)):
        after, event = conclude_external(before, source, read(reading), known, settled=settled)
        if before.state.ended:
            assert after.state is before.state
        if event is None:
            assert after.state is before.state
        if after.state is State.FAILED:
            assert not after.doubt


@pytest.mark.parametrize("reading", sorted(DENIALS))
def test_a_denial_never_ends_what_an_attempt_may_still_pay(reading: ResultClass) -> None:
    for source in (EvidenceSource.INQUIRY, EvidenceSource.WEBHOOK):
        for state in (State.SENDING, State.UNKNOWN):
            before = standing(state, under_way=True)
            after, event = conclude_external(before, source, read(reading), REPLAYED, settled=False)
            assert (after, event) == (before, None)
            assert is_postponed(before, source, reading, REPLAYED)


@pytest.mark.parametrize("reading", [ResultClass.ISSUER_HARD_DECLINE, ResultClass.REQUIRES_ACTION])
def test_m1_m29_what_may_be_of_an_earlier_step_ends_no_doubt_before_all_has_settled(reading: ResultClass) -> None:
    before = standing(State.UNKNOWN)
    for known in (REPLAYED, REEXECUTED):
        found = conclude_external(
            before, EvidenceSource.INQUIRY, read(reading), known, settled=False, may_be_stale=True
        )
        assert found == (before, None)


def test_a_denial_with_several_attempts_in_doubt_waits_until_all_has_settled() -> None:
    before = standing(State.UNKNOWN, doubt=frozenset({1, 2}))
    denial = read(ResultClass.ISSUER_HARD_DECLINE)
    assert conclude_external(before, EvidenceSource.WEBHOOK, denial, REEXECUTED, settled=False)[1] is None
    assert conclude_external(before, EvidenceSource.INQUIRY, denial, REEXECUTED, settled=True)[0].state is State.FAILED
    # An event tells of one execution, and not of which: the other may have been paid.
    assert conclude_external(before, EvidenceSource.WEBHOOK, denial, REEXECUTED, settled=True)[1] is None
    # Where every answer is stored it is the answer of the first execution.
    assert conclude_external(before, EvidenceSource.WEBHOOK, denial, REPLAYED, settled=False)[0].state is State.FAILED


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.PENDING, State.REQUIRES_ACTION])
@pytest.mark.parametrize("source", [EvidenceSource.INQUIRY, EvidenceSource.WEBHOOK])
def test_a_denial_that_may_be_stale_says_nothing_against_an_answered_attempt_before_all_has_settled(
    source: EvidenceSource, state: State
) -> None:
    """The decline of an earlier confirm, shown by a replica that lags, contradicted the confirm that had paid."""
    before, denial = standing(state), read(ResultClass.ISSUER_SOFT_DECLINE)
    early = conclude_external(before, source, denial, REPLAYED, settled=False, may_be_stale=True)
    assert early == (before, None)
    after, event = conclude_external(before, source, denial, REPLAYED, settled=True, may_be_stale=True)
    assert event is not None
    assert (after.state is State.FAILED) is (state is not State.SUCCEEDED)
    assert (after.incident is not None) is (state is State.SUCCEEDED)


@pytest.mark.parametrize("state", [State.PENDING, State.REQUIRES_ACTION])
def test_an_event_that_denies_another_execution_does_not_end_the_one_that_was_accepted(state: State) -> None:
    before = standing(state).changed(attempts=2, reference="ch_2")
    for reference in (None, "ch_1"):
        denial = read(ResultClass.ISSUER_HARD_DECLINE, reference=reference)
        assert conclude_external(before, EvidenceSource.WEBHOOK, denial, REEXECUTED, settled=True) == (before, None)
    denial = read(ResultClass.ISSUER_HARD_DECLINE, reference="ch_2")
    assert conclude_external(before, EvidenceSource.WEBHOOK, denial, REEXECUTED, settled=True)[0].state is State.FAILED
    once = before.changed(attempts=1)
    denial = read(ResultClass.ISSUER_HARD_DECLINE)
    assert conclude_external(once, EvidenceSource.WEBHOOK, denial, REEXECUTED, settled=True)[0].state is State.FAILED


@pytest.mark.parametrize("reading", [ResultClass.ISSUER_HARD_DECLINE, ResultClass.FAILED, ResultClass.CANCELLED])
def test_an_event_that_denies_another_execution_says_nothing_against_the_one_that_paid(reading: ResultClass) -> None:
    """One execution was declined and a re-send of it paid; the word about the declined one comes last."""
    paid = standing(State.SUCCEEDED).changed(
        attempts=2, result_class=ResultClass.SUCCEEDED, effect=Effect.DONE, reference="ch_2"
    )
    other = read(reading, reference="ch_1")
    for known in (REEXECUTED, contract(ErrorsUnderKey.NOT_STORED)):
        assert conclude_external(paid, EvidenceSource.WEBHOOK, other, known, settled=True) == (paid, None)


def test_a_denial_that_may_be_of_what_was_paid_is_never_passed_over() -> None:
    """The same name, no name, one attempt, or a provider that does nothing twice: it is an incident."""
    paid = standing(State.SUCCEEDED).changed(
        attempts=2, result_class=ResultClass.SUCCEEDED, effect=Effect.DONE, reference="ch_2"
    )
    for before, reference, known in (
        (paid, "ch_2", REEXECUTED),
        (paid, None, REEXECUTED),
        (paid.changed(reference=None), "ch_1", REEXECUTED),
        (paid.changed(attempts=1), "ch_1", REEXECUTED),
        (paid, "ch_1", REPLAYED),
    ):
        after, _ = conclude_external(
            before, EvidenceSource.WEBHOOK, read(ResultClass.FAILED, reference=reference), known, settled=True
        )
        assert after.incident is IncidentKind.FAILURE_AFTER_SUCCESS
    for source in (EvidenceSource.INQUIRY, EvidenceSource.OPERATOR):  # they look at the whole, and not at one execution
        after, _ = conclude_external(paid, source, read(ResultClass.FAILED, reference="ch_1"), REEXECUTED, settled=True)
        assert after.incident is IncidentKind.FAILURE_AFTER_SUCCESS


def test_a_success_ends_every_doubt_also_under_an_attempt() -> None:
    for state, source in product((State.SENDING, State.BACKOFF, State.UNKNOWN), (EvidenceSource.WEBHOOK,)):
        before = standing(state, under_way=state is not State.BACKOFF)
        after, _ = conclude_external(
            before, source, read(ResultClass.SUCCEEDED, reference="ch_1"), REPLAYED, settled=False
        )
        assert (after.state, after.doubt, after.reference) == (State.SUCCEEDED, frozenset(), "ch_1")


def test_a_success_after_a_failure_is_an_incident_and_overwrites_nothing() -> None:
    before = standing(State.FAILED).changed(result_class=ResultClass.ISSUER_HARD_DECLINE, effect=Effect.NONE)
    after, _ = conclude_external(before, EvidenceSource.WEBHOOK, read(ResultClass.SUCCEEDED), REPLAYED, settled=True)
    assert (after.state, after.incident) == (State.FAILED, IncidentKind.SUCCESS_AFTER_FAILURE)
    assert after.result_class is ResultClass.ISSUER_HARD_DECLINE


@pytest.mark.parametrize(
    ("reading", "failed_is_return", "precedes"),
    [
        (ResultClass.PENDING, False, True),
        (ResultClass.SUCCEEDED, True, True),
        (ResultClass.SUCCEEDED, False, False),
        (ResultClass.FAILED, True, False),
    ],
)
def test_older_news_of_an_object_that_failed_since_contradicts_nothing(
    reading: ResultClass, failed_is_return: bool, precedes: bool
) -> None:
    """Events out of order: a refund that succeeded and came back was heard of as failed first, and was an incident."""
    failed = standing(State.FAILED).changed(result_class=ResultClass.FAILED, effect=Effect.NONE, reference="re_1")
    news = read(reading, reference="re_1")
    assert precedes_end(failed, news, failed_is_return=failed_is_return) is precedes
    unnamed = (read(reading), read(reading, reference="re_2"))
    absent = failed.changed(result_class=ResultClass.ABSENT)
    assert not any(precedes_end(failed, other, failed_is_return=True) for other in unnamed)
    assert not precedes_end(absent, news, failed_is_return=True)
    assert not precedes_end(failed.changed(reference=None), unnamed[0], failed_is_return=True)


def test_a_response_may_show_the_success_of_what_was_cancelled_since() -> None:
    """A success waited in the spool. Meanwhile the payment was voided, and an inquiry read it as cancelled."""
    cancelled = standing(State.FAILED).changed(result_class=ResultClass.CANCELLED, effect=Effect.NONE, reference="pi_1")
    success = read(ResultClass.SUCCEEDED, reference="pi_1")
    assert precedes_end(cancelled, success, failed_is_return=False, is_response=True)
    assert not precedes_end(cancelled, success, failed_is_return=False)  # an event may be of a later time
    another = read(ResultClass.SUCCEEDED, reference="pi_2")
    assert not precedes_end(cancelled, another, failed_is_return=False, is_response=True)
    declined = cancelled.changed(result_class=ResultClass.ISSUER_HARD_DECLINE)
    assert not precedes_end(declined, success, failed_is_return=False, is_response=True)


def test_a_failure_after_a_success_is_an_incident() -> None:
    before = standing(State.SUCCEEDED).changed(result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)
    after, _ = conclude_external(before, EvidenceSource.INQUIRY, read(ResultClass.FAILED), REPLAYED, settled=True)
    assert (after.state, after.incident) == (State.SUCCEEDED, IncidentKind.FAILURE_AFTER_SUCCESS)


def test_a_reversal_is_its_own_reading_and_no_incident() -> None:
    before = standing(State.SUCCEEDED).changed(result_class=ResultClass.SUCCEEDED, effect=Effect.DONE, reference="ch_1")
    after, event = conclude_external(
        before, EvidenceSource.WEBHOOK, read(ResultClass.REVERSED, reference="ch_1"), REPLAYED, settled=True
    )
    assert (after.state, after.result_class, after.incident) == (State.SUCCEEDED, ResultClass.REVERSED, None)
    assert event is Event.WEBHOOK_TOLD_REVERSAL
    told = announcement_of(before, after)
    assert told is not None
    assert told.kinds == (AnnouncementKind.REVERSED,)


def test_what_the_provider_takes_back_after_success_is_returned_and_is_no_incident() -> None:
    before = standing(State.SUCCEEDED).changed(result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)
    after, event = conclude_external(before, EvidenceSource.WEBHOOK, read(ResultClass.RETURNED), REPLAYED, settled=True)
    assert (after.state, after.result_class, after.incident) == (State.SUCCEEDED, ResultClass.RETURNED, None)
    assert event is Event.WEBHOOK_TOLD_REVERSAL
    told = announcement_of(before, after)
    assert told is not None
    assert told.kinds == (AnnouncementKind.RETURNED,)


@pytest.mark.parametrize("reading", [ResultClass.DISPUTED, ResultClass.DISPUTE_WON])
@pytest.mark.parametrize("source", EvidenceSource)
@pytest.mark.parametrize("state", State)
def test_what_became_of_a_payment_later_moves_no_operation(
    reading: ResultClass, source: EvidenceSource, state: State
) -> None:
    before = standing(state)
    assert event_of(source, reading) is None
    assert conclude_external(before, source, read(reading), REPLAYED, settled=True) == (before, None)


def test_what_was_paid_and_then_voided_was_given_back_and_is_no_incident() -> None:
    before = standing(State.SUCCEEDED).changed(result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)
    after, _ = conclude_external(before, EvidenceSource.WEBHOOK, read(ResultClass.CANCELLED), REPLAYED, settled=True)
    assert (after.state, after.result_class, after.incident) == (State.SUCCEEDED, ResultClass.REVERSED, None)


def test_another_reference_is_an_incident() -> None:
    before = standing(State.SUCCEEDED).changed(result_class=ResultClass.SUCCEEDED, effect=Effect.DONE, reference="ch_1")
    after, _ = conclude_external(
        before, EvidenceSource.WEBHOOK, read(ResultClass.SUCCEEDED, reference="ch_2"), REPLAYED, settled=True
    )
    assert (after.incident, after.reference) == (IncidentKind.TWO_REFERENCES, "ch_1")
    assert after.other_payment == OtherPayment("", before.provider, "ch_2", None)


@pytest.mark.parametrize("state", State)
def test_what_does_not_fit_is_never_a_success_and_against_a_payment_an_incident(state: State) -> None:
    does_not_fit = read(ResultClass.UNKNOWN_OUTCOME, rule=DOES_NOT_FIT)
    before = standing(state)
    after, event = conclude_external(before, EvidenceSource.WEBHOOK, does_not_fit, REPLAYED, settled=True)
    assert event is None
    assert after.state is state
    paid = state in {State.SUCCEEDED, State.PENDING}
    assert after.incident == (IncidentKind.ANOTHER_AMOUNT if paid else None)


def test_what_shows_neither_our_reference_nor_our_amount_is_another_s_and_no_incident() -> None:
    paid = standing(State.SUCCEEDED).changed(result_class=ResultClass.SUCCEEDED, effect=Effect.DONE, reference="ch_1")
    copied = read(ResultClass.UNKNOWN_OUTCOME, rule=DOES_NOT_FIT, reference="ch_copy")
    assert conclude_external(paid, EvidenceSource.WEBHOOK, copied, REPLAYED, settled=True) == (paid, None)


def test_older_news_changes_nothing() -> None:
    paid = standing(State.SUCCEEDED).changed(result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)
    for reading in (ResultClass.PENDING, ResultClass.REQUIRES_ACTION, ResultClass.SUCCEEDED):
        after, _ = conclude_external(paid, EvidenceSource.WEBHOOK, read(reading), REPLAYED, settled=False)
        assert (after.state, after.incident, after.result_class) == (State.SUCCEEDED, None, ResultClass.SUCCEEDED)


def test_a_decline_that_was_executed_is_not_forgotten_when_the_others_are_absent() -> None:
    before = standing(State.UNKNOWN).changed(
        result_class=ResultClass.ISSUER_HARD_DECLINE, effect=Effect.NONE, attempts=2
    )
    after, _ = conclude_external(before, EvidenceSource.INQUIRY, read(ResultClass.ABSENT), REEXECUTED, settled=True)
    assert (after.state, after.result_class) == (State.FAILED, ResultClass.ISSUER_HARD_DECLINE)


def test_what_says_nothing_is_no_event() -> None:
    for source in EvidenceSource:
        assert event_of(source, ResultClass.TEMPORARY_PROVIDER_ERROR) is None
        assert event_of(source, ResultClass.UNKNOWN_OUTCOME) is None
    assert event_of(EvidenceSource.WEBHOOK, ResultClass.ABSENT) is None  # nobody is told of what does not exist


def test_ends_doubts_and_incidents_are_told_once() -> None:
    doubted = standing(State.UNKNOWN)
    ended = doubted.changed(state=State.SUCCEEDED, doubt=frozenset())
    assert _words(standing(State.SENDING, under_way=True), doubted) == (AnnouncementKind.DOUBT_OPENED,)
    assert _words(doubted, ended) == (AnnouncementKind.RESOLVED, AnnouncementKind.ENDED)
    assert _words(ended, ended) == ()
    review = doubted.changed(state=State.REQUIRES_REVIEW)
    assert _words(doubted, review) == (AnnouncementKind.REVIEW_OPENED,)
    disputed = ended.changed(incident="another_amount")
    assert _words(ended, disputed) == (AnnouncementKind.INCIDENT_OPENED,)
    assert _words(disputed, ended) == (AnnouncementKind.INCIDENT_CLOSED,)


def _words(before: Operation | None, after: Operation) -> tuple[AnnouncementKind, ...]:
    told = announcement_of(before, after)
    return told.kinds if told is not None else ()
