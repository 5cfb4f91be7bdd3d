"""The table, move by move; and what holds on every step of every world that can come to be."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import chain, combinations

import pytest

from paywitness.core.errors import IllegalTransition
from paywitness.core.lifecycle import (
    ACTIONS,
    ATTEMPT_EVENTS,
    EXTERNAL_DENIALS,
    INCIDENT_ENDS,
    PENDINGS,
    REVERSALS,
    SUCCESSES,
    TABLE,
    Event,
    IncidentKind,
    advance,
)
from paywitness.core.operation import Operation, State
from paywitness.core.provider_contract import ErrorsUnderKey
from paywitness.core.result import Effect, ResultClass
from tests.core.reachable_operations import ATTEMPTS_MAX, Step, steps_of_the_table, steps_of_the_world, what_moves_it
from tests.core.samples import operation

# Only whether every answer is stored matters to the lifecycle; test_conclude shows that the other three are alike.
WORLDS = (ErrorsUnderKey.REPLAYED, ErrorsUnderKey.REEXECUTED)
NOT_SENT_AGAIN = {State.PREPARED, State.BACKOFF, State.SENDING}
GROWS_DOUBT = {Event.ANSWER_LOST, Event.LEASE_EXPIRED, Event.RESEND_RECORDED}
EMPTIES_DOUBT = {*SUCCESSES, *PENDINGS, *ACTIONS, *REVERSALS, *EXTERNAL_DENIALS, Event.DENIAL_SEEN}
NO_EVIDENCE = {
    Event.LEASE_EXPIRED,
    Event.PARKED,
    Event.SCHEDULE_RAN_OUT,
    Event.INQUIRY_MISSED,
    Event.OPERATOR_PARKED,
    Event.OPERATOR_RESUMED,
    Event.OPERATOR_RESUMED_WAITING,
    Event.TOLD_BEFORE,
}


def in_state(state: State) -> Operation:
    """An operation with one attempt, in this state as it is most often met."""
    sent = 0 if state is State.PREPARED else 1
    return operation(
        state=state,
        doubt=frozenset({1}) if state.in_doubt else frozenset(),
        attempts=sent,
        attempt_under_way=state is State.SENDING,
        result_class=ResultClass.ISSUER_SOFT_DECLINE,
        effect=Effect.NONE,
    )


def met_by(event: Event, state: State) -> tuple[Operation, int | None]:
    """An operation in this state that meets the event, and the attempt that the event speaks of."""
    before = in_state(state)
    if event in INCIDENT_ENDS:
        return replace(before, incident=IncidentKind.SUCCESS_AFTER_FAILURE), None
    if event is Event.OPERATOR_RESUMED_WAITING:
        return replace(before, doubt=frozenset()), None
    if event is Event.TOLD_BEFORE:
        return replace(before, attempts=2), 1
    if event is Event.ANSWER_LOST and state is State.FAILED:
        return replace(
            before, result_class=ResultClass.NETWORK_CONNECT_FAILURE
        ), 1  # after a decline it would be no news
    if event in {Event.NO_EFFECT_SEEN, Event.DENIAL_SEEN_IN_DOUBT, Event.ACTION_SEEN_IN_DOUBT} and state.in_doubt:
        return replace(before, attempts=2, doubt=frozenset({1, 2})), 2
    return before, max(1, before.attempts) if event in ATTEMPT_EVENTS else None


def every_step() -> chain[Step]:
    return chain(steps_of_the_table(), *(steps_of_the_world(errors) for errors in WORLDS))


# --- the table


def test_every_state_has_a_row() -> None:
    assert set(TABLE) == set(State)


def test_every_event_can_happen_somewhere() -> None:
    assert {event for row in TABLE.values() for event in row} == set(Event)


@pytest.mark.parametrize("state", State)
def test_a_legal_event_leads_exactly_where_the_table_says(state: State) -> None:
    for event, move in TABLE[state].items():
        before, attempt = met_by(event, state)
        kept = replace(before)
        after = advance(before, event, attempt)
        assert (after.state, after.incident) == (move.to, move.incident), event
        assert before == kept


@pytest.mark.parametrize("state", State)
def test_an_illegal_event_raises_and_changes_nothing(state: State) -> None:
    for event in set(Event) - set(TABLE[state]):
        before, attempt = met_by(event, state)
        kept = replace(before)
        with pytest.raises(IllegalTransition):
            advance(before, event, attempt)
        assert before == kept


def test_every_row_of_the_table_is_walked_by_some_path() -> None:
    walked = {(step.before.state, step.event) for step in steps_of_the_table()}
    assert walked == {(state, event) for state, row in TABLE.items() for event in row}


def test_an_event_of_an_attempt_names_one_that_was_made() -> None:
    for event in ATTEMPT_EVENTS & set(TABLE[State.UNKNOWN]):
        for attempt in (None, 0, 2):
            with pytest.raises(IllegalTransition):
                advance(in_state(State.UNKNOWN), event, attempt)


def test_an_earlier_attempt_never_ends_the_one_being_sent() -> None:
    second = operation(state=State.SENDING, attempts=2, attempt_under_way=True)
    for event in (Event.NO_EFFECT_SEEN, Event.DENIAL_SEEN, Event.ACTION_SEEN):
        with pytest.raises(IllegalTransition):
            advance(second, event, 1)


def test_an_attempt_under_way_was_never_told_before() -> None:
    with pytest.raises(IllegalTransition):
        advance(in_state(State.SENDING), Event.TOLD_BEFORE, 1)


def test_two_attempts_are_never_under_way_at_once() -> None:
    first = advance(in_state(State.UNKNOWN), Event.RESEND_RECORDED)
    with pytest.raises(IllegalTransition):
        advance(first, Event.RESEND_RECORDED)


def test_what_was_parked_as_pending_resumes_as_pending() -> None:
    parked = advance(in_state(State.PENDING), Event.SCHEDULE_RAN_OUT)
    assert parked.state is State.REQUIRES_REVIEW
    assert advance(parked, Event.OPERATOR_RESUMED_WAITING).state is State.PENDING
    with pytest.raises(IllegalTransition):
        advance(parked, Event.OPERATOR_RESUMED)


def test_what_was_parked_in_doubt_resumes_in_doubt() -> None:
    parked = advance(in_state(State.UNKNOWN), Event.PARKED)
    assert advance(parked, Event.OPERATOR_RESUMED).state is State.UNKNOWN
    with pytest.raises(IllegalTransition):
        advance(parked, Event.OPERATOR_RESUMED_WAITING)


# --- what holds on every step


def test_only_unknown_and_review_may_hold_doubt_and_unknown_always_does() -> None:
    for step in every_step():
        assert not step.after.doubt or step.after.state.in_doubt, step
        assert step.after.doubt or step.after.state is not State.UNKNOWN, step


def test_no_step_leads_from_doubt_back_to_where_it_would_be_sent_anew() -> None:
    for step in every_step():
        if step.before.state.in_doubt:
            assert step.after.state not in NOT_SENT_AGAIN, step


def test_sending_holds_an_attempt_under_way_and_waiting_holds_none() -> None:
    for step in every_step():
        if step.after.state is State.SENDING:
            assert step.after.attempt_under_way, step
        if step.after.state in {State.PREPARED, State.BACKOFF}:
            assert not step.after.attempt_under_way, step


def test_an_attempt_under_way_in_doubt_is_part_of_the_doubt() -> None:
    for step in every_step():
        if step.after.state is State.UNKNOWN and step.after.attempt_under_way:
            assert step.after.attempts in step.after.doubt, step


def test_what_is_final_stays_final() -> None:
    for step in every_step():
        if step.before.state.ended and step.event not in INCIDENT_ENDS:
            before, after = step.before, step.after
            assert (after.state, after.doubt, after.result_class, after.effect) == (
                before.state,
                before.doubt,
                before.result_class,
                before.effect,
            ), step


def test_only_a_person_who_closes_an_incident_changes_what_is_final() -> None:
    closed = [step for step in every_step() if step.event in INCIDENT_ENDS]
    assert {step.before.state for step in closed} == {State.SUCCEEDED, State.FAILED}
    for step in closed:
        assert step.before.incident is not None, step
        assert step.after.incident is None, step
        paid = step.event is Event.INCIDENT_CLOSED_AS_PAID or step.before.state is State.SUCCEEDED
        assert step.after.state is (State.SUCCEEDED if paid else State.FAILED), step


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
def test_without_an_incident_nothing_can_be_closed(state: State) -> None:
    for event in INCIDENT_ENDS:
        with pytest.raises(IllegalTransition):
            advance(in_state(state), event)


def test_evidence_against_what_is_final_opens_an_incident() -> None:
    for step in every_step():
        if step.before.state is State.FAILED and step.event in {*SUCCESSES, *PENDINGS, *REVERSALS}:
            assert step.after.incident == (step.before.incident or IncidentKind.SUCCESS_AFTER_FAILURE), step
        if step.before.state is State.SUCCEEDED and step.event in {*EXTERNAL_DENIALS, Event.DENIAL_SEEN}:
            assert step.after.incident == (step.before.incident or IncidentKind.FAILURE_AFTER_SUCCESS), step


def test_an_incident_is_opened_once_and_never_closed_by_evidence() -> None:
    for step in every_step():
        if step.before.incident is not None and step.event not in INCIDENT_ENDS:
            assert step.after.incident == step.before.incident, step
        elif step.after.incident is not None:
            assert step.before.state.ended, step


def test_doubt_grows_only_by_a_send_or_a_loss() -> None:
    for step in every_step():
        if step.after.doubt - step.before.doubt:
            assert step.event in GROWS_DOUBT, step


def test_doubt_shrinks_only_by_an_answer_of_its_own_or_by_what_settles_all() -> None:
    for step in every_step():
        gone = step.before.doubt - step.after.doubt
        if not gone or step.event in EMPTIES_DOUBT:
            continue
        assert step.event in ATTEMPT_EVENTS, step
        assert gone == {step.attempt}, step


def test_nothing_but_evidence_ends_a_doubt() -> None:
    for step in every_step():
        if step.before.state.in_doubt and step.event in NO_EVIDENCE:
            assert step.after.doubt >= step.before.doubt, step
            assert not step.after.state.ended, step


def test_a_lease_that_expires_while_sending_is_doubt_and_nothing_else() -> None:
    for step in every_step():
        if step.event is not Event.LEASE_EXPIRED:
            continue
        assert not step.after.attempt_under_way, step
        if step.before.state is State.SENDING:
            assert step.after.state is State.UNKNOWN, step
            assert step.before.attempts in step.after.doubt, step
        elif step.before.state in {State.PREPARED, State.BACKOFF}:
            assert step.after.state is State.FAILED, step
        else:
            assert step.after.state is step.before.state, step


def test_word_from_outside_never_ends_an_operation_under_an_attempt() -> None:
    told = {*EXTERNAL_DENIALS, Event.INQUIRY_FOUND_ACTION, Event.WEBHOOK_TOLD_ACTION}
    seen = 0
    for step in every_step():
        if step.event in told and step.before.attempt_under_way:
            seen += 1
            assert step.after.state is step.before.state, step
    assert seen


def test_attempts_are_counted_one_by_one() -> None:
    starts = {Event.SEND_RECORDED, Event.RESEND_RECORDED}
    for step in every_step():
        assert step.after.attempts - step.before.attempts == (step.event in starts), step
        if step.event in starts:
            assert not step.before.attempt_under_way, step
            assert step.after.attempt_under_way, step


def test_what_was_seen_is_part_of_the_doubt() -> None:
    for step in every_step():
        assert step.after.answered_attempts <= step.after.doubt, step


def test_the_worlds_are_large_enough_to_mean_something() -> None:
    for errors in WORLDS:
        steps = steps_of_the_world(errors)
        assert {step.after.state for step in steps} == set(State) - {State.PREPARED}
        assert max(step.after.attempts for step in steps) > ATTEMPTS_MAX
        assert any(len(step.after.doubt) == ATTEMPTS_MAX for step in steps)


@pytest.mark.parametrize("errors", WORLDS)
def test_every_open_operation_can_still_succeed_and_be_found_to_have_failed(errors: ErrorsUnderKey) -> None:
    steps = steps_of_the_world(errors)
    for end in (State.SUCCEEDED, State.FAILED):
        backwards = defaultdict(set)
        for step in steps:
            backwards[what_moves_it(step.after)].add(what_moves_it(step.before))
        reached = {what_moves_it(step.after) for step in steps if step.after.state is end}
        waiting = list(reached)
        while waiting:
            new = backwards[waiting.pop()] - reached
            reached |= new
            waiting.extend(new)
        for step in steps:
            assert step.before.state.ended or what_moves_it(step.before) in reached, (end, step.before)


# --- what is told is true


def could_happen(step: Step, paid: frozenset[int], errors: ErrorsUnderKey) -> bool:
    """Whether a provider at which exactly the attempts `paid` move money could have caused this step."""
    sent = {attempt for attempt in paid if attempt <= step.before.attempts}
    if step.event in {*EXTERNAL_DENIALS, Event.INQUIRY_FOUND_ACTION, Event.WEBHOOK_TOLD_ACTION}:
        return not sent
    if step.answer is None or step.answer.effect is not Effect.NONE:
        # A re-send that is refused because the first is still in flight was not executed.
        return not (
            step.answer and step.answer.result_class is ResultClass.IDEMPOTENCY_IN_FLIGHT and step.attempt in paid
        )
    if errors is ErrorsUnderKey.REPLAYED and step.answer.result_class is ResultClass.ISSUER_SOFT_DECLINE:
        return not paid  # one execution under the key, whichever attempt it was
    return step.attempt not in paid


PAID = [frozenset(paid) for size in (1, 2, 3) for paid in combinations((1, 2, 3), size)]


@pytest.mark.parametrize("errors", WORLDS)
@pytest.mark.parametrize("paid", PAID, ids=str)
def test_an_operation_of_which_an_attempt_paid_is_never_told_failed(
    errors: ErrorsUnderKey, paid: frozenset[int]
) -> None:
    steps_from = defaultdict(list)
    for step in steps_of_the_world(errors):
        if could_happen(step, paid, errors):
            steps_from[what_moves_it(step.before)].append(step)
    start = what_moves_it(operation())
    reached, waiting = {start}, [start]
    while waiting:
        for step in steps_from[waiting.pop()]:
            if step.after.state is State.FAILED and not step.before.state.ended:
                assert not any(attempt <= step.after.attempts for attempt in paid), step
            key = what_moves_it(step.after)
            if key not in reached:
                reached.add(key)
                waiting.append(key)
    assert any(key[0] is State.SUCCEEDED for key in reached)


REST_ON_AN_ANSWER = (
    ResultClass.ISSUER_HARD_DECLINE,
    ResultClass.FAILED,
    ResultClass.CANCELLED,
    ResultClass.RATE_LIMITED,
)


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("reading", [*REST_ON_AN_ANSWER, ResultClass.ABSENT])
def test_a_lost_answer_that_is_recorded_late_says_nothing_against_an_end_that_reckoned_with_it(
    reading: ResultClass, attempts: int
) -> None:
    """Told no, refused, or found absent: with that attempt in doubt, or by its own answer that another one heard."""
    ended = replace(operation(), state=State.FAILED, attempts=attempts, result_class=reading, effect=Effect.NONE)
    for attempt in range(1, attempts + 1):
        after = advance(ended, Event.ANSWER_LOST, attempt)
        assert (after.state, after.doubt, after.incident) == (State.FAILED, frozenset(), None)


@pytest.mark.parametrize("errors", ErrorsUnderKey)
def test_a_lost_answer_contradicts_an_end_that_rests_on_nothing_having_been_sent(errors: ErrorsUnderKey) -> None:
    """In every world that can come to be: there, and nowhere else."""
    told_after = [
        step
        for step in steps_of_the_world(errors)
        if step.event is Event.ANSWER_LOST and step.before.state is State.FAILED and step.before.incident is None
    ]
    alarms = [step for step in told_after if step.after.incident is IncidentKind.DOUBT_AFTER_FAILURE]
    assert alarms
    assert len(alarms) < len(told_after)
    for step in told_after:
        unsent = step.before.result_class in {None, ResultClass.NETWORK_CONNECT_FAILURE}
        assert (step in alarms) is (unsent or step.before.effect is not Effect.NONE), step
