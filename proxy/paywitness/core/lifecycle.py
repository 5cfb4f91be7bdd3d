"""The lifecycle of an operation: its events, and one table, State x Event -> Transition. Nothing else changes a state.

Rules that the table and `advance` keep together:
- An illegal transition raises and changes nothing. Every state has a row, the final ones too.
- Doubt is a set of attempts, and it is sticky. An attempt leaves it by its own complete response. A success empties
  it. A denial by inquiry or webhook empties it only if no attempt is under way. FAILED needs an empty doubt.
- No path leads from doubt back to PREPARED, BACKOFF or SENDING. A re-send under doubt runs in UNKNOWN, so that
  "connection refused" on the re-send never looks like "safe to try again". The re-send is in doubt from the moment
  it is recorded: a late response to an earlier attempt never ends the operation under it.
- An attempt's evidence can always be recorded, also twice: `conclude` never raises once something was sent.
- SUCCEEDED and FAILED are final. Evidence that contradicts them opens an incident; it never overwrites. Only the person
  who closes that incident decides: as paid (FAILED then becomes SUCCEEDED), or as taken back.
- Elapsed time is no event. A lease that expired while sending is doubt, never a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from paywitness.core.errors import IllegalTransition
from paywitness.core.operation import Operation, OtherPayment, State
from paywitness.core.provider_contract import ErrorsUnderKey, ProviderContract
from paywitness.core.result import (
    DOES_NOT_FIT,
    PROVIDER_SAID_NO,
    REFUSALS,
    SHOWN_AFTER_SUCCESS,
    Classification,
    Effect,
    ResultClass,
)


class Event(StrEnum):
    """The events of an operation, in the past tense, grouped by their source."""

    # our own attempts
    SEND_RECORDED = "send_recorded"
    RESEND_RECORDED = "resend_recorded"
    NO_EFFECT_SEEN = "no_effect_seen"
    ANSWER_LOST = "answer_lost"
    SUCCESS_SEEN = "success_seen"
    PENDING_SEEN = "pending_seen"
    ACTION_SEEN = "action_seen"
    ACTION_SEEN_IN_DOUBT = "action_seen_in_doubt"
    DENIAL_SEEN = "denial_seen"
    DENIAL_SEEN_IN_DOUBT = "denial_seen_in_doubt"
    DOUBT_CLEARED = "doubt_cleared"  # the last attempt in doubt turned out to have had no effect
    ACTION_STANDS = "action_stands"  # as DOUBT_CLEARED, but another attempt's response requires the customer to act
    TOLD_BEFORE = "told_before"  # no effect, for an attempt that was settled already: nothing new
    LEASE_EXPIRED = "lease_expired"
    # our own decisions
    GIVEN_UP = "given_up"
    PARKED = "parked"
    SCHEDULE_RAN_OUT = "schedule_ran_out"
    # an inquiry
    INQUIRY_FOUND_SUCCESS = "inquiry_found_success"
    INQUIRY_FOUND_PENDING = "inquiry_found_pending"
    INQUIRY_FOUND_ACTION = "inquiry_found_action"
    INQUIRY_FOUND_DENIAL = "inquiry_found_denial"
    INQUIRY_FOUND_REVERSAL = "inquiry_found_reversal"
    INQUIRY_CONFIRMED_ABSENT = "inquiry_confirmed_absent"
    INQUIRY_MISSED = "inquiry_missed"
    # a webhook
    WEBHOOK_TOLD_SUCCESS = "webhook_told_success"
    WEBHOOK_TOLD_PENDING = "webhook_told_pending"
    WEBHOOK_TOLD_ACTION = "webhook_told_action"
    WEBHOOK_TOLD_DENIAL = "webhook_told_denial"
    WEBHOOK_TOLD_REVERSAL = "webhook_told_reversal"
    # a cancel whose response shows the cancelled payment
    CANCEL_SHOWN = "cancel_shown"
    # a person
    OPERATOR_FOUND_SUCCESS = "operator_found_success"
    OPERATOR_FOUND_FAILURE = "operator_found_failure"
    OPERATOR_PARKED = "operator_parked"
    OPERATOR_RESUMED = "operator_resumed"
    OPERATOR_RESUMED_WAITING = "operator_resumed_waiting"  # it was pending when it was parked, with nothing in doubt
    INCIDENT_CLOSED_AS_PAID = "incident_closed_as_paid"
    INCIDENT_CLOSED_AS_UNPAID = "incident_closed_as_unpaid"
    # another operation of ours
    VOID_SUCCEEDED = "void_succeeded"  # a void of ours has voided this payment


class IncidentKind(StrEnum):
    SUCCESS_AFTER_FAILURE = "success_after_failure"
    FAILURE_AFTER_SUCCESS = "failure_after_success"
    DOUBT_AFTER_FAILURE = "doubt_after_failure"
    TWO_REFERENCES = "two_references"  # the provider made two objects for one operation
    ANOTHER_AMOUNT = "another_amount"
    DUPLICATE_SUCCESS = "duplicate_success"  # a second paying success of one intent
    JOURNAL_ROLLBACK = "journal_rollback"  # the journal had lost it, and another operation took its key or guard
    BOTH_KEYS_RETURNED = "both_keys_returned"  # two keys got the same reply, and callers came back with both
    REFERENCE_TAKEN = "reference_taken"  # two operations that are not steps of one payment show one reference
    UNVERIFIED_PAYMENT = "unverified_payment"  # the provider claims that it was paid, not by us; no inquiry shows it
    REFERENCE_NOT_FOUND = "reference_not_found"  # an inquiry does not find the reference that the provider gave us
    NEGATIVE_REMAINDER = "negative_remainder"  # more was captured or refunded than the payment had


@dataclass(frozen=True, slots=True)
class Transition:
    """The state after an event. If the event contradicts a final state, it also opens an incident."""

    to: State
    incident: IncidentKind | None = None


SUCCESSES = (
    Event.SUCCESS_SEEN,
    Event.INQUIRY_FOUND_SUCCESS,
    Event.WEBHOOK_TOLD_SUCCESS,
    Event.OPERATOR_FOUND_SUCCESS,
)
PENDINGS = (Event.PENDING_SEEN, Event.INQUIRY_FOUND_PENDING, Event.WEBHOOK_TOLD_PENDING)
ACTIONS = (Event.ACTION_SEEN, Event.INQUIRY_FOUND_ACTION, Event.WEBHOOK_TOLD_ACTION)
EXTERNAL_DENIALS = (
    Event.INQUIRY_FOUND_DENIAL,
    Event.INQUIRY_CONFIRMED_ABSENT,
    Event.WEBHOOK_TOLD_DENIAL,
    Event.CANCEL_SHOWN,
    Event.OPERATOR_FOUND_FAILURE,
)
REVERSALS = (Event.INQUIRY_FOUND_REVERSAL, Event.WEBHOOK_TOLD_REVERSAL, Event.VOID_SUCCEEDED)
INCIDENT_ENDS = frozenset({Event.INCIDENT_CLOSED_AS_PAID, Event.INCIDENT_CLOSED_AS_UNPAID})
ATTEMPT_EVENTS = frozenset(
    {
        Event.NO_EFFECT_SEEN,
        Event.ANSWER_LOST,
        Event.SUCCESS_SEEN,
        Event.PENDING_SEEN,
        Event.ACTION_SEEN,
        Event.ACTION_SEEN_IN_DOUBT,
        Event.DENIAL_SEEN,
        Event.DENIAL_SEEN_IN_DOUBT,
        Event.DOUBT_CLEARED,
        Event.ACTION_STANDS,
        Event.TOLD_BEFORE,
    },
)


# --- The table


def _transitions(events: tuple[Event, ...], to: State, incident: IncidentKind | None = None) -> dict[Event, Transition]:
    return dict.fromkeys(events, Transition(to, incident))


_ENDINGS = {
    **_transitions(SUCCESSES, State.SUCCEEDED),
    **_transitions(REVERSALS, State.SUCCEEDED),  # it was paid and paid back: never "it never happened"
    **_transitions(PENDINGS, State.PENDING),
    **_transitions(ACTIONS, State.REQUIRES_ACTION),
    **_transitions(EXTERNAL_DENIALS, State.FAILED),
    Event.DENIAL_SEEN: Transition(State.FAILED),
}

TABLE: dict[State, dict[Event, Transition]] = {
    State.PREPARED: {
        Event.SEND_RECORDED: Transition(State.SENDING),
        Event.GIVEN_UP: Transition(State.FAILED),
        Event.LEASE_EXPIRED: Transition(State.FAILED),  # never sent, and never will be
    },
    State.SENDING: {
        Event.NO_EFFECT_SEEN: Transition(State.BACKOFF),
        Event.ANSWER_LOST: Transition(State.UNKNOWN),
        Event.SUCCESS_SEEN: Transition(State.SUCCEEDED),
        Event.PENDING_SEEN: Transition(State.PENDING),
        Event.ACTION_SEEN: Transition(State.REQUIRES_ACTION),
        Event.DENIAL_SEEN: Transition(State.FAILED),
        Event.LEASE_EXPIRED: Transition(State.UNKNOWN),
        # Events that overtake the response. A success is a success; the rest waits for the attempt's own end.
        Event.WEBHOOK_TOLD_SUCCESS: Transition(State.SUCCEEDED),
        Event.WEBHOOK_TOLD_PENDING: Transition(State.SENDING),
        Event.WEBHOOK_TOLD_ACTION: Transition(State.SENDING),
        Event.WEBHOOK_TOLD_DENIAL: Transition(State.SENDING),
        Event.WEBHOOK_TOLD_REVERSAL: Transition(State.SENDING),
        Event.TOLD_BEFORE: Transition(State.SENDING),
    },
    State.BACKOFF: {
        Event.SEND_RECORDED: Transition(State.SENDING),
        Event.GIVEN_UP: Transition(State.FAILED),
        Event.LEASE_EXPIRED: Transition(State.FAILED),
        Event.WEBHOOK_TOLD_SUCCESS: Transition(State.SUCCEEDED),
        Event.WEBHOOK_TOLD_PENDING: Transition(State.PENDING),
        # No attempt is under way that it could wait for, and another try would be a charge after a decline.
        Event.WEBHOOK_TOLD_ACTION: Transition(State.REQUIRES_ACTION),
        Event.WEBHOOK_TOLD_DENIAL: Transition(State.FAILED),
        Event.WEBHOOK_TOLD_REVERSAL: Transition(State.SUCCEEDED),
        # For attempts that counted as without effect.
        Event.TOLD_BEFORE: Transition(State.BACKOFF),
        Event.ANSWER_LOST: Transition(State.UNKNOWN),
        Event.SUCCESS_SEEN: Transition(State.SUCCEEDED),
        Event.PENDING_SEEN: Transition(State.PENDING),
    },
    State.UNKNOWN: {
        **_ENDINGS,
        Event.RESEND_RECORDED: Transition(State.UNKNOWN),
        Event.NO_EFFECT_SEEN: Transition(State.UNKNOWN),
        Event.ANSWER_LOST: Transition(State.UNKNOWN),
        Event.ACTION_SEEN_IN_DOUBT: Transition(State.UNKNOWN),
        Event.DENIAL_SEEN_IN_DOUBT: Transition(State.UNKNOWN),
        Event.DOUBT_CLEARED: Transition(State.FAILED),
        Event.ACTION_STANDS: Transition(State.REQUIRES_ACTION),
        Event.LEASE_EXPIRED: Transition(State.UNKNOWN),
        Event.INQUIRY_MISSED: Transition(State.UNKNOWN),
        Event.PARKED: Transition(State.REQUIRES_REVIEW),
        Event.SCHEDULE_RAN_OUT: Transition(State.REQUIRES_REVIEW),
        Event.OPERATOR_PARKED: Transition(State.REQUIRES_REVIEW),
    },
    State.PENDING: {
        **_ENDINGS,
        Event.NO_EFFECT_SEEN: Transition(State.PENDING),  # a late refusal of a re-send concerns only that re-send
        Event.ANSWER_LOST: Transition(State.PENDING),
        Event.LEASE_EXPIRED: Transition(State.PENDING),
        Event.INQUIRY_MISSED: Transition(State.PENDING),
        Event.PARKED: Transition(State.REQUIRES_REVIEW),
        Event.SCHEDULE_RAN_OUT: Transition(State.REQUIRES_REVIEW),
        Event.OPERATOR_PARKED: Transition(State.REQUIRES_REVIEW),
    },
    State.REQUIRES_ACTION: {
        **_ENDINGS,
        Event.NO_EFFECT_SEEN: Transition(State.REQUIRES_ACTION),
        Event.ANSWER_LOST: Transition(State.REQUIRES_ACTION),
        Event.LEASE_EXPIRED: Transition(State.REQUIRES_ACTION),
        Event.INQUIRY_MISSED: Transition(State.REQUIRES_ACTION),
    },
    State.SUCCEEDED: {
        **_transitions(SUCCESSES, State.SUCCEEDED),
        **_transitions(REVERSALS, State.SUCCEEDED),
        **_transitions(PENDINGS, State.SUCCEEDED),  # events out of order: the older one adds nothing
        **_transitions(ACTIONS, State.SUCCEEDED),
        **_transitions(EXTERNAL_DENIALS, State.SUCCEEDED, IncidentKind.FAILURE_AFTER_SUCCESS),
        Event.DENIAL_SEEN: Transition(State.SUCCEEDED, IncidentKind.FAILURE_AFTER_SUCCESS),
        Event.NO_EFFECT_SEEN: Transition(State.SUCCEEDED),
        Event.ANSWER_LOST: Transition(State.SUCCEEDED),
        Event.LEASE_EXPIRED: Transition(State.SUCCEEDED),
        Event.INQUIRY_MISSED: Transition(State.SUCCEEDED),
        Event.INCIDENT_CLOSED_AS_PAID: Transition(State.SUCCEEDED),
        Event.INCIDENT_CLOSED_AS_UNPAID: Transition(State.SUCCEEDED),  # read as `returned`: never "it never happened"
    },
    State.FAILED: {
        **_transitions(SUCCESSES, State.FAILED, IncidentKind.SUCCESS_AFTER_FAILURE),
        **_transitions(REVERSALS, State.FAILED, IncidentKind.SUCCESS_AFTER_FAILURE),
        **_transitions(PENDINGS, State.FAILED, IncidentKind.SUCCESS_AFTER_FAILURE),
        **_transitions(ACTIONS, State.FAILED),
        **_transitions(EXTERNAL_DENIALS, State.FAILED),
        Event.DENIAL_SEEN: Transition(State.FAILED),
        Event.NO_EFFECT_SEEN: Transition(State.FAILED),
        Event.ANSWER_LOST: Transition(State.FAILED, IncidentKind.DOUBT_AFTER_FAILURE),
        Event.LEASE_EXPIRED: Transition(State.FAILED),
        Event.INQUIRY_MISSED: Transition(State.FAILED),
        Event.INCIDENT_CLOSED_AS_PAID: Transition(State.SUCCEEDED),
        Event.INCIDENT_CLOSED_AS_UNPAID: Transition(State.FAILED),
    },
    State.REQUIRES_REVIEW: {
        **_ENDINGS,
        Event.NO_EFFECT_SEEN: Transition(State.REQUIRES_REVIEW),
        Event.ANSWER_LOST: Transition(State.REQUIRES_REVIEW),
        Event.ACTION_SEEN_IN_DOUBT: Transition(State.REQUIRES_REVIEW),
        Event.DENIAL_SEEN_IN_DOUBT: Transition(State.REQUIRES_REVIEW),
        Event.DOUBT_CLEARED: Transition(State.FAILED),
        Event.ACTION_STANDS: Transition(State.REQUIRES_ACTION),
        Event.LEASE_EXPIRED: Transition(State.REQUIRES_REVIEW),
        Event.INQUIRY_MISSED: Transition(State.REQUIRES_REVIEW),
        Event.OPERATOR_RESUMED: Transition(State.UNKNOWN),
        Event.OPERATOR_RESUMED_WAITING: Transition(State.PENDING),
    },
}

_STARTS = frozenset({Event.SEND_RECORDED, Event.RESEND_RECORDED})
_NEEDS_EMPTY_DOUBT = frozenset(State) - {State.UNKNOWN, State.REQUIRES_REVIEW}
# Events that would end the operation, or let the customer act, while an attempt under way may still pay.
_NEEDS_NO_ATTEMPT_UNDER_WAY = frozenset(
    {
        *EXTERNAL_DENIALS,
        Event.INQUIRY_FOUND_ACTION,
        Event.WEBHOOK_TOLD_ACTION,
    },
)
# Events in SENDING that mean that nothing is on the wire any more. Only the attempt under way can cause them.
_ENDS_SENDING = frozenset({Event.NO_EFFECT_SEEN, Event.ACTION_SEEN, Event.DENIAL_SEEN})


def advance(operation: Operation, event: Event, attempt: int | None = None, **other_changes: Any) -> Operation:
    """The operation after the event. Raises IllegalTransition. `attempt`: the attempt that the event is about.
    `other_changes`: fields that change in the same step, beside those that the event itself changes."""
    return operation.changed(**other_changes, **_transition_changes(operation, event, attempt))


def _transition_changes(operation: Operation, event: Event, attempt: int | None) -> dict[str, Any]:
    """The fields that the event changes. Raises IllegalTransition."""
    move = TABLE[operation.state].get(event)
    if move is None:
        raise IllegalTransition(f"{event} cannot happen in {operation.state}")
    closes_incident = event in INCIDENT_ENDS
    if closes_incident and operation.incident is None:
        raise IllegalTransition(f"{event} cannot happen without an open incident")
    of_an_attempt = event in ATTEMPT_EVENTS
    if of_an_attempt:
        _check_attempt(operation, event, attempt)
    if event in _NEEDS_NO_ATTEMPT_UNDER_WAY and operation.attempt_under_way and move.to is not operation.state:
        raise IllegalTransition(f"{event} cannot lead to {move.to} while an attempt is under way")
    starts = event in _STARTS
    if starts and operation.attempt_under_way:
        raise IllegalTransition(f"{event} cannot happen while an attempt is under way")
    doubt = operation.doubt
    if doubt or event in _MAY_ADD_DOUBT:
        doubt = _doubt_after(operation, event, attempt, move.to)
    if doubt and move.to in _NEEDS_EMPTY_DOUBT:
        raise IllegalTransition(f"{event} leads to {move.to}, which needs an empty doubt; in doubt: {sorted(doubt)}")
    if not doubt and move.to is State.UNKNOWN:
        raise IllegalTransition(f"{event} leads to unknown with nothing in doubt")
    ends = event is Event.LEASE_EXPIRED or (of_an_attempt and attempt == operation.attempts)
    incident = operation.incident or move.incident
    if incident is not operation.incident and _is_already_accounted_for(operation, event):
        incident = None
    return {
        "state": move.to,
        "doubt": doubt,
        "answered_attempts": operation.answered_attempts & doubt,
        "attempts": operation.attempts + (1 if starts else 0),
        "attempt_under_way": starts or (operation.attempt_under_way and not ends),
        "incident": None if closes_incident else incident,
    }


def _is_already_accounted_for(operation: Operation, event: Event) -> bool:
    """Whether a lost response that is recorded only now does not contradict the end. Every attempt is in the journal
    before its first byte. So an end by a response, a denial or proven absence was found while this attempt was in
    doubt, or is this attempt's own response, which another listener received. A lost response contradicts only an end
    that assumes that nothing was sent."""
    if event is not Event.ANSWER_LOST or operation.state is not State.FAILED:
        return False
    return operation.effect is Effect.NONE and operation.result_class not in _UNSENT


_UNSENT = frozenset({None, ResultClass.NETWORK_CONNECT_FAILURE})


def _check_attempt(operation: Operation, event: Event, attempt: int | None) -> None:
    if attempt is None or not 1 <= attempt <= operation.attempts:
        raise IllegalTransition(f"{event} must say of which attempt it speaks, one of {operation.attempts}")
    if event is Event.TOLD_BEFORE and operation.attempt_under_way and attempt == operation.attempts:
        raise IllegalTransition(f"{event} cannot be said of attempt {attempt}, which is under way")
    if operation.state is State.SENDING and event in _ENDS_SENDING and attempt != operation.attempts:
        raise IllegalTransition(f"{event} of attempt {attempt} says nothing of attempt {operation.attempts}, under way")


def _doubt_after(operation: Operation, event: Event, attempt: int | None, to: State) -> frozenset[int]:
    doubt = operation.doubt
    if operation.state.ended or (operation.state is State.REQUIRES_REVIEW and not doubt):
        return doubt  # a lost attempt does not undo a final state, or an acceptance before the operation was parked
    if event in _EMPTIES_DOUBT:
        return frozenset()
    under_way = frozenset({operation.attempts} if operation.attempt_under_way else ())
    if event is Event.RESEND_RECORDED:
        return doubt | {operation.attempts + 1}
    if event is Event.ANSWER_LOST and attempt is not None and to.in_doubt:
        return doubt | {attempt} | under_way
    if event is Event.LEASE_EXPIRED and to.in_doubt:
        return doubt | under_way
    return doubt - {attempt} if event in _SETTLES_ONLY_ITS_ATTEMPT else doubt


_SETTLES_ONLY_ITS_ATTEMPT = frozenset(
    {
        Event.NO_EFFECT_SEEN,
        Event.ACTION_SEEN_IN_DOUBT,
        Event.DENIAL_SEEN_IN_DOUBT,
        Event.DOUBT_CLEARED,
        Event.ACTION_STANDS,
    },
)
_MAY_ADD_DOUBT = frozenset({Event.RESEND_RECORDED, Event.ANSWER_LOST, Event.LEASE_EXPIRED})
_EMPTIES_DOUBT = frozenset({*SUCCESSES, *REVERSALS, *PENDINGS, *ACTIONS, *EXTERNAL_DENIALS, Event.DENIAL_SEEN})


def event_of_response(
    operation: Operation, attempt: int, classification: Classification, contract: ProviderContract
) -> Event:
    """The event of one attempt's end. It depends on whether the response settles only this attempt, or also the
    attempts before it."""
    result_class, effect = classification.result_class, classification.effect
    others = operation.doubt - {attempt}
    if result_class is ResultClass.SUCCEEDED and effect is Effect.DONE:
        return Event.SUCCESS_SEEN
    if result_class is ResultClass.PENDING and effect is not Effect.POSSIBLE:
        return Event.PENDING_SEEN
    if effect is not Effect.NONE or result_class in {ResultClass.SUCCEEDED, *SHOWN_AFTER_SUCCESS}:
        # A refused re-send proves nothing about the attempts before it, and had no effect of its own.
        resent = bool(others) or (operation.state.ended and attempt > 1)
        refused = resent and result_class in REFUSALS and effect is Effect.POSSIBLE
        return Event.NO_EFFECT_SEEN if refused else Event.ANSWER_LOST
    under_way = operation.attempt_under_way and attempt == operation.attempts
    if operation.state in {State.SENDING, State.BACKOFF} and not under_way:
        return Event.TOLD_BEFORE
    if result_class in PROVIDER_SAID_NO:
        stored = contract.errors_under_key is ErrorsUnderKey.REPLAYED and classification.stored
        return _event_of_denial(operation, result_class, others, stored=stored)
    if operation.doubt and not others:
        return Event.ACTION_STANDS if _action_was_required(operation) else Event.DOUBT_CLEARED
    return Event.NO_EFFECT_SEEN


def _event_of_denial(operation: Operation, result_class: ResultClass, others: frozenset[int], *, stored: bool) -> Event:
    """The event of a decline, or of a response that requires the customer to act. It settles only its own attempt, or
    all attempts. If the provider stores such responses under the key, it settles all: it is the response of the first
    execution, and later arrivals get the same one."""
    action = result_class is ResultClass.REQUIRES_ACTION
    action_stands = not action and bool(operation.doubt) and _action_was_required(operation)
    if others and (not stored or action_stands):
        return Event.ACTION_SEEN_IN_DOUBT if action else Event.DENIAL_SEEN_IN_DOUBT
    if not operation.doubt and operation.state in {State.PENDING, State.REQUIRES_ACTION, State.REQUIRES_REVIEW}:
        return Event.NO_EFFECT_SEEN  # the provider has accepted it: only an inquiry shows more
    if operation.state is State.SUCCEEDED and operation.attempts > 1 and not stored:
        return Event.NO_EFFECT_SEEN  # another attempt was the one that succeeded
    if action_stands:
        return Event.ACTION_STANDS
    return Event.ACTION_SEEN if action else Event.DENIAL_SEEN


def _was_denied(operation: Operation) -> bool:
    """Whether one attempt of an operation in doubt was executed and denied. `conclude` keeps that reading."""
    return operation.state.in_doubt and operation.effect is Effect.NONE and operation.result_class in PROVIDER_SAID_NO


def _action_was_required(operation: Operation) -> bool:
    return _was_denied(operation) and operation.result_class is ResultClass.REQUIRES_ACTION


def conclude(
    operation: Operation, attempt: int, classification: Classification, contract: ProviderContract
) -> tuple[Operation, Event]:
    """The operation after one attempt's end, with the classification of its response; and the event."""
    changed, event = conclusion_changes(operation, attempt, classification, contract)
    return operation.changed(**changed), event


def conclusion_changes(
    operation: Operation, attempt: int, classification: Classification, contract: ProviderContract
) -> tuple[dict[str, Any], Event]:
    """The fields that `conclude` changes, and the event, for a caller that changes more fields in the same step."""
    event = event_of_response(operation, attempt, classification, contract)
    changed = _transition_changes(operation, event, attempt)
    if _is_authoritative(operation, event, changed["state"]):
        changed |= {"result_class": classification.result_class, "effect": classification.effect}
        changed["advice"] = classification.advice
    if attempt in changed["doubt"] and _may_be_replayed(classification):
        changed["answered_attempts"] |= {attempt}
    paid = operation.state in _PAID_OR_ACCEPTED
    shown, known = classification.reference, operation.reference
    newer = classification.effect is Effect.DONE and not paid and not operation.state.ended
    changed["reference"] = (shown or known) if newer else (known or shown)
    if paid and changed["incident"] is None:
        changed["incident"] = contradiction(operation, classification)
    if changed["incident"] is not None and operation.incident is None:
        changed["other_payment"] = shown_instead(operation, classification)
    return changed, event


_PAID_OR_ACCEPTED = frozenset({State.SUCCEEDED, State.PENDING})


def _may_be_replayed(classification: Classification) -> bool:
    """Whether a re-send could only get this same response again: it was seen whole, and the provider may store it."""
    return not classification.lost and classification.stored


def _is_authoritative(operation: Operation, event: Event, to: State) -> bool:
    """Whether the class of this attempt becomes the class of the operation."""
    if operation.state.ended or event is Event.TOLD_BEFORE:
        return False
    if event is Event.NO_EFFECT_SEEN:
        # An operation in doubt keeps the class of its doubt: a refused re-send does not change it.
        return to is State.BACKOFF
    if event is Event.ANSWER_LOST and not to.in_doubt:
        return False
    if event is Event.DENIAL_SEEN_IN_DOUBT:
        return not _action_was_required(operation)
    # Once an attempt was executed and denied, that class stays: a lost or refused attempt proves less.
    return not (event in {Event.ANSWER_LOST, Event.DOUBT_CLEARED, Event.ACTION_STANDS} and _was_denied(operation))


def shown_instead(operation: Operation, classification: Classification) -> OtherPayment | None:
    """The payment that a contradicting response shows in place of the known one; None if it shows none."""
    shown, money = classification.reference, classification.shown_money
    if operation.reference is None or shown == operation.reference:
        shown = None  # it is the operation's own reference, or becomes it
    return None if shown is None and money is None else OtherPayment("", operation.provider, shown, money)


def contradiction(operation: Operation, classification: Classification) -> IncidentKind | None:
    """The incident if a response contradicts a payment that was made or accepted already; None if it does not."""
    shown, known = classification.reference, operation.reference
    differ = shown is not None and known is not None and shown != known
    if classification.rule == DOES_NOT_FIT:
        return IncidentKind.ANOTHER_AMOUNT if not differ else None  # name and amount differ: it shows another payment
    return IncidentKind.TWO_REFERENCES if classification.effect is Effect.DONE and differ else None
