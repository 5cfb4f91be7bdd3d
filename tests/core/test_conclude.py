"""What the answer of one attempt settles: of itself, of the attempts before it, and of what was thought final."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from paywitness.core.lifecycle import Event, IncidentKind, advance, conclude, event_of_response
from paywitness.core.money import Money
from paywitness.core.operation import Operation, OtherPayment, State
from paywitness.core.provider_contract import ErrorsUnderKey
from paywitness.core.result import (
    DENIALS,
    DOES_NOT_FIT,
    REFUSALS,
    SHOWN_AFTER_SUCCESS,
    Classification,
    Effect,
    ResultClass,
)
from tests.core.reachable_operations import ALL_ANSWERS, ANSWERS, CONTRACTS, steps_of_the_world, what_moves_it
from tests.core.samples import operation, read

STORES_ALL = ErrorsUnderKey.REPLAYED
WORLDS = (ErrorsUnderKey.REPLAYED, ErrorsUnderKey.REEXECUTED)
THE_OTHERS = (ErrorsUnderKey.REEXECUTED, ErrorsUnderKey.NOT_STORED, ErrorsUnderKey.UNKNOWN)
LOST = read(ResultClass.NETWORK_READ_TIMEOUT, lost=True)
DECLINED = read(ResultClass.ISSUER_SOFT_DECLINE)
ACTION = read(ResultClass.REQUIRES_ACTION)
THROTTLED = read(ResultClass.RATE_LIMITED)
SERVER_ERROR = read(ResultClass.TEMPORARY_PROVIDER_ERROR)
PAID = read(ResultClass.SUCCEEDED)

SENDING = advance(operation(), Event.SEND_RECORDED)
FIRST, SECOND, BOTH = frozenset({1}), frozenset({2}), frozenset({1, 2})


def told(before: Operation, attempt: int, answer: Classification, errors: ErrorsUnderKey = STORES_ALL) -> Operation:
    return conclude(before, attempt, answer, CONTRACTS[errors])[0]


def resent(doubt: frozenset[int] = frozenset({1})) -> Operation:
    """In doubt, with one more attempt under way."""
    lost = operation(
        state=State.UNKNOWN, doubt=doubt, attempts=max(doubt), result_class=LOST.result_class, effect=LOST.effect
    )
    return advance(lost, Event.RESEND_RECORDED)


@cache
def every_case() -> list[tuple[Operation, int]]:
    """Every operation that can come to be, with each of its attempts."""
    known = {what_moves_it(step.after): step.after for errors in WORLDS for step in steps_of_the_world(errors)}
    return [(before, attempt) for before in known.values() for attempt in range(1, before.attempts + 1)]


# --- evidence can always be recorded


@pytest.mark.parametrize("errors", WORLDS)
def test_no_answer_of_any_attempt_is_ever_refused(errors: ErrorsUnderKey) -> None:
    for before, attempt in every_case():
        events = {event_of_response(before, attempt, answer, CONTRACTS[errors]) for answer in ALL_ANSWERS}
        for event in events:
            advance(before, event, attempt)


@pytest.mark.parametrize("errors", WORLDS)
def test_the_same_answer_twice_says_nothing_new(errors: ErrorsUnderKey) -> None:
    known = set()
    for step in steps_of_the_world(errors):
        settled_before = step.before.state in {State.SENDING, State.BACKOFF} and step.attempt != step.before.attempts
        case = (what_moves_it(step.after), step.attempt, step.answer)
        if step.answer is None or step.attempt is None or settled_before or case in known:
            continue
        known.add(case)
        again, _ = conclude(step.after, step.attempt, step.answer, CONTRACTS[errors])
        assert what_moves_it(again) == what_moves_it(step.after), step
        assert again.incident == step.after.incident, step


def test_contracts_that_do_not_store_every_answer_settle_alike() -> None:
    for before, attempt in every_case():
        for answer in ANSWERS:
            events = {event_of_response(before, attempt, answer, CONTRACTS[errors]) for errors in THE_OTHERS}
            assert len(events) == 1


# --- the first attempt


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (PAID, State.SUCCEEDED),
        (read(ResultClass.PENDING), State.PENDING),
        (ACTION, State.REQUIRES_ACTION),
        *((read(reading), State.FAILED) for reading in sorted(DENIALS)),
        (THROTTLED, State.BACKOFF),
        (read(ResultClass.VALIDATION_ERROR), State.BACKOFF),
        (read(ResultClass.AUTHENTICATION_ERROR), State.BACKOFF),
        (read(ResultClass.NETWORK_CONNECT_FAILURE), State.BACKOFF),
        (read(ResultClass.TEMPORARY_PROVIDER_ERROR, Effect.NONE), State.BACKOFF),
        (SERVER_ERROR, State.UNKNOWN),
        (LOST, State.UNKNOWN),
        (read(ResultClass.PROVIDER_TIMEOUT), State.UNKNOWN),
        (read(ResultClass.UNKNOWN_OUTCOME), State.UNKNOWN),
        (read(ResultClass.IDEMPOTENCY_IN_FLIGHT), State.UNKNOWN),
        (read(ResultClass.IDEMPOTENCY_CONFLICT), State.UNKNOWN),
        (read(ResultClass.ALREADY_DONE), State.UNKNOWN),
        *((read(reading), State.UNKNOWN) for reading in sorted(SHOWN_AFTER_SUCCESS)),
    ],
    ids=lambda value: value.result_class if isinstance(value, Classification) else value,
)
def test_the_only_attempt_is_settled_by_its_own_answer(answer: Classification, state: State) -> None:
    for errors in ErrorsUnderKey:
        after = told(SENDING, 1, answer, errors)
        assert (after.state, after.result_class, after.effect) == (state, answer.result_class, answer.effect)
        assert after.doubt == ({1} if state is State.UNKNOWN else frozenset())
        assert not after.attempt_under_way


def test_a_possible_effect_is_doubt_whatever_the_class_is() -> None:
    for reading in ResultClass:
        assert told(SENDING, 1, read(reading, Effect.POSSIBLE)).doubt == {1}


@pytest.mark.parametrize("reading", [ResultClass.SUCCEEDED, *sorted(SHOWN_AFTER_SUCCESS)])
def test_a_policy_that_calls_a_payment_without_effect_makes_doubt_not_a_second_try(reading: ResultClass) -> None:
    assert told(SENDING, 1, read(reading, Effect.NONE)).state is State.UNKNOWN


def test_what_was_accepted_is_pending_even_where_the_policy_says_that_nothing_moved_yet() -> None:
    assert told(SENDING, 1, read(ResultClass.PENDING, Effect.NONE)).state is State.PENDING


def test_an_answer_that_was_seen_whole_is_told_apart_from_a_lost_one() -> None:
    assert told(SENDING, 1, SERVER_ERROR).answered_attempts == {1}
    assert told(SENDING, 1, LOST).answered_attempts == frozenset()


def test_an_answer_that_the_provider_does_not_keep_is_no_answer_that_it_would_repeat() -> None:
    unkept = replace(SERVER_ERROR, stored=False)
    assert (told(SENDING, 1, unkept).state, told(SENDING, 1, unkept).answered_attempts) == (State.UNKNOWN, frozenset())
    kept_before = told(SENDING, 1, SERVER_ERROR)
    assert told(advance(kept_before, Event.RESEND_RECORDED), 2, unkept).answered_attempts == {1}


# --- what the answer to a re-send settles: the table of the design

SETTLES_ALL = "all"
ITSELF = "itself"
NOTHING = "nothing"

BY_ANSWER = [
    *((read(reading), SETTLES_ALL, SETTLES_ALL) for reading in (ResultClass.SUCCEEDED, ResultClass.PENDING)),
    *((read(reading), SETTLES_ALL, ITSELF) for reading in (*sorted(DENIALS), ResultClass.REQUIRES_ACTION)),
    (SERVER_ERROR, NOTHING, NOTHING),
    (LOST, NOTHING, NOTHING),
    (read(ResultClass.PROVIDER_TIMEOUT), NOTHING, NOTHING),
    (read(ResultClass.UNKNOWN_OUTCOME), NOTHING, NOTHING),
    (read(ResultClass.ALREADY_DONE), NOTHING, NOTHING),
    *((read(reading), ITSELF, ITSELF) for reading in sorted(REFUSALS)),
    (read(ResultClass.NETWORK_CONNECT_FAILURE), ITSELF, ITSELF),
]


@pytest.mark.parametrize(
    ("answer", "where_all_is_stored", "elsewhere"), BY_ANSWER, ids=lambda value: getattr(value, "reading", value)
)
@pytest.mark.parametrize("errors", ErrorsUnderKey)
def test_what_the_answer_to_a_re_send_settles(
    answer: Classification, where_all_is_stored: str, elsewhere: str, errors: ErrorsUnderKey
) -> None:
    settles = where_all_is_stored if errors is STORES_ALL else elsewhere
    for doubt in ({1}, {1, 2}, {2}):
        before = resent(frozenset(doubt))
        expected = {SETTLES_ALL: set(), ITSELF: doubt, NOTHING: {*doubt, before.attempts}}[settles]
        after = told(before, before.attempts, answer, errors)
        assert after.doubt == expected
        assert not after.attempt_under_way
        if expected:
            assert after.state is State.UNKNOWN


@pytest.mark.parametrize("answer", [DECLINED, ACTION], ids=lambda answer: answer.result_class)
def test_a_no_that_the_provider_does_not_keep_settles_only_itself_whatever_it_keeps_of_others(
    answer: Classification,
) -> None:
    after = told(resent(), 2, replace(answer, stored=False), STORES_ALL)
    assert (after.state, after.doubt) == (State.UNKNOWN, FIRST)  # the first may still arrive, and would be executed
    assert told(SENDING, 1, replace(answer, stored=False)).doubt == frozenset()


@pytest.mark.parametrize("reading", sorted(REFUSALS))
def test_a_refused_re_send_never_settles_or_speaks_for_the_first(reading: ResultClass) -> None:
    for effect, errors in product((Effect.NONE, Effect.POSSIBLE), ErrorsUnderKey):
        after = told(resent(), 2, read(reading, effect), errors)
        assert (after.state, after.doubt, after.result_class) == (State.UNKNOWN, FIRST, LOST.result_class)


def test_a_declined_re_send_leaves_the_first_in_doubt_where_failed_work_is_done_again() -> None:
    after = told(resent(), 2, DECLINED, ErrorsUnderKey.REEXECUTED)
    assert (after.state, after.doubt) == (State.UNKNOWN, FIRST)


# --- late answers


@pytest.mark.parametrize(
    "answer", [DECLINED, THROTTLED, ACTION, read(ResultClass.NETWORK_CONNECT_FAILURE)], ids=lambda a: a.result_class
)
@pytest.mark.parametrize("errors", THE_OTHERS)
def test_a_late_answer_to_the_first_never_ends_it_under_a_re_send(
    answer: Classification, errors: ErrorsUnderKey
) -> None:
    after = told(resent(), 1, answer, errors)
    assert (after.state, after.doubt, after.attempt_under_way) == (State.UNKNOWN, SECOND, True)


def test_a_late_refusal_of_the_first_never_ends_it_under_a_re_send_where_all_is_stored() -> None:
    after = told(resent(), 1, THROTTLED)
    assert (after.state, after.doubt, after.attempt_under_way) == (State.UNKNOWN, SECOND, True)


@pytest.mark.parametrize(
    "answer", [read(ResultClass.IDEMPOTENCY_IN_FLIGHT), DECLINED, THROTTLED], ids=lambda a: a.result_class
)
def test_what_follows_a_late_decline_where_all_is_stored_contradicts_nothing(answer: Classification) -> None:
    failed = told(resent(), 1, DECLINED)
    assert failed.state is State.FAILED
    after = told(failed, 2, answer)
    assert (after.state, after.incident, after.attempt_under_way) == (State.FAILED, None, False)


def test_an_answer_after_the_lease_ran_out_still_counts() -> None:
    doubtful = advance(SENDING, Event.LEASE_EXPIRED)
    assert told(doubtful, 1, PAID).state is State.SUCCEEDED
    assert told(doubtful, 1, DECLINED).state is State.FAILED
    not_sent = told(doubtful, 1, read(ResultClass.NETWORK_CONNECT_FAILURE))
    assert (not_sent.state, not_sent.result_class) == (State.FAILED, ResultClass.NETWORK_CONNECT_FAILURE)


@pytest.mark.parametrize("state", [State.PENDING, State.REQUIRES_ACTION])
@pytest.mark.parametrize("answer", [DECLINED, THROTTLED, LOST, SERVER_ERROR], ids=lambda a: a.result_class)
def test_a_late_answer_of_another_attempt_does_not_undo_what_the_provider_accepted(
    state: State, answer: Classification
) -> None:
    for errors in ErrorsUnderKey:
        before = operation(
            state=state, attempts=2, attempt_under_way=True, result_class=ResultClass.PENDING, effect=Effect.DONE
        )
        after = told(before, 2, answer, errors)
        assert (after.state, after.result_class, after.effect) == (state, before.result_class, before.effect)


def test_a_decline_known_in_doubt_is_not_forgotten_when_the_rest_turns_out_not_sent() -> None:
    declined = told(resent(), 1, DECLINED, ErrorsUnderKey.REEXECUTED)
    for answer in (read(ResultClass.NETWORK_CONNECT_FAILURE), THROTTLED):
        after = told(declined, 2, answer, ErrorsUnderKey.REEXECUTED)
        assert (after.state, after.result_class, after.effect) == (State.FAILED, DECLINED.result_class, Effect.NONE)


def test_a_decline_known_in_doubt_is_not_forgotten_when_another_answer_is_lost() -> None:
    declined = told(resent(), 2, DECLINED, ErrorsUnderKey.REEXECUTED)
    after = told(declined, 1, SERVER_ERROR, ErrorsUnderKey.REEXECUTED)
    assert (after.state, after.doubt, after.result_class) == (State.UNKNOWN, FIRST, DECLINED.result_class)


@pytest.mark.parametrize(
    "last", [DECLINED, THROTTLED, read(ResultClass.NETWORK_CONNECT_FAILURE)], ids=lambda a: a.result_class
)
def test_an_operation_whose_customer_may_still_act_is_never_told_failed(last: Classification) -> None:
    asked = told(resent(), 1, ACTION, ErrorsUnderKey.REEXECUTED)
    after = told(asked, 2, last, ErrorsUnderKey.REEXECUTED)
    assert (after.state, after.result_class, after.doubt) == (
        State.REQUIRES_ACTION,
        ResultClass.REQUIRES_ACTION,
        frozenset(),
    )


def test_an_answer_that_was_recorded_before_ends_no_later_attempt() -> None:
    second = advance(told(SENDING, 1, THROTTLED), Event.SEND_RECORDED)
    for answer in (THROTTLED, DECLINED, ACTION):
        after, event = conclude(second, 1, answer, CONTRACTS[STORES_ALL])
        assert (after, event) == (second, Event.TOLD_BEFORE)
    doubtful = told(second, 1, LOST)
    assert (doubtful.state, doubtful.doubt, doubtful.attempt_under_way) == (State.UNKNOWN, BOTH, True)


# --- contradictions


def test_success_after_failure_is_an_incident_and_changes_nothing_else() -> None:
    failed = told(SENDING, 1, DECLINED)
    after = told(failed, 1, replace(PAID, reference="ch_1"))
    assert after == replace(failed, incident=IncidentKind.SUCCESS_AFTER_FAILURE, reference="ch_1")


def test_a_decline_after_success_is_an_incident_where_it_cannot_be_another_attempts() -> None:
    paid = advance(SENDING, Event.WEBHOOK_TOLD_SUCCESS)
    assert told(paid, 1, DECLINED, ErrorsUnderKey.REEXECUTED).incident == IncidentKind.FAILURE_AFTER_SUCCESS
    twice = advance(resent(), Event.WEBHOOK_TOLD_SUCCESS)
    assert told(twice, 2, DECLINED).incident == IncidentKind.FAILURE_AFTER_SUCCESS
    for errors in THE_OTHERS:
        assert told(twice, 2, DECLINED, errors).incident is None


@pytest.mark.parametrize("reading", sorted(REFUSALS))
@pytest.mark.parametrize("effect", [Effect.NONE, Effect.POSSIBLE])
@pytest.mark.parametrize("end", [Event.WEBHOOK_TOLD_SUCCESS, Event.INQUIRY_FOUND_DENIAL])
def test_a_refused_re_send_never_contradicts(reading: ResultClass, effect: Effect, end: Event) -> None:
    before = resent()
    ended = advance(before if end is Event.WEBHOOK_TOLD_SUCCESS else advance(before, Event.LEASE_EXPIRED), end)
    for errors in ErrorsUnderKey:
        after = told(ended, 2, read(reading, effect), errors)
        assert (after.state, after.incident) == (ended.state, None)


@pytest.mark.parametrize("first", [PAID, read(ResultClass.PENDING)], ids=lambda a: a.result_class)
def test_two_references_of_one_payment_are_an_incident(first: Classification) -> None:
    before = resent()
    made = told(before, 2, replace(first, reference="ch_2"))
    after = told(made, 1, replace(PAID, reference="ch_1"))
    assert (after.incident, after.reference) == (IncidentKind.TWO_REFERENCES, "ch_2")
    assert after.other_payment == OtherPayment("", made.provider, "ch_1", None)
    assert told(made, 1, replace(PAID, reference="ch_2")).incident is None
    assert told(made, 1, PAID).incident is None


def test_another_amount_after_a_success_is_an_incident() -> None:
    paid = told(resent(), 2, PAID)
    strange = replace(read(ResultClass.UNKNOWN_OUTCOME), rule=DOES_NOT_FIT)
    assert told(paid, 1, strange).incident == IncidentKind.ANOTHER_AMOUNT
    other = told(paid, 1, replace(strange, shown_money=Money(4200, "EUR"))).other_payment
    assert other == OtherPayment("", paid.provider, None, Money(4200, "EUR"))
    assert told(resent(), 1, strange).incident is None


def test_the_reference_of_the_payment_that_was_made_wins_over_one_that_was_only_shown() -> None:
    asked = told(resent(), 1, replace(ACTION, reference="ch_asked"), ErrorsUnderKey.REEXECUTED)
    assert asked.reference == "ch_asked"
    paid = told(asked, 2, replace(PAID, reference="ch_paid"), ErrorsUnderKey.REEXECUTED)
    assert (paid.reference, paid.incident) == ("ch_paid", None)
