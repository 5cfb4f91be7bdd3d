"""The words of the lifecycle: what can happen to an operation, and what contradicts what was final.

Only words and groups of words; what they lead to is `lifecycle.TABLE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from proxy.core.operation import State


class Event(StrEnum):
    """What happened, in the past tense. Grouped by who saw it."""

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
    ACTION_STANDS = "action_stands"  # as DOUBT_CLEARED, but another attempt's answer had asked the customer to act
    TOLD_BEFORE = "told_before"  # no effect, of an attempt that had been settled: nothing new
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
    # a cancel whose answer shows the cancelled payment
    CANCEL_SHOWN = "cancel_shown"
    # a person
    OPERATOR_FOUND_SUCCESS = "operator_found_success"
    OPERATOR_FOUND_FAILURE = "operator_found_failure"
    OPERATOR_PARKED = "operator_parked"
    OPERATOR_RESUMED = "operator_resumed"
    OPERATOR_RESUMED_WAITING = "operator_resumed_waiting"  # what was parked as pending, with nothing in doubt
    # another operation of ours
    VOID_SUCCEEDED = "void_succeeded"  # what this one paid was voided by it


class IncidentKind(StrEnum):
    SUCCESS_AFTER_FAILURE = "success_after_failure"
    FAILURE_AFTER_SUCCESS = "failure_after_success"
    DOUBT_AFTER_FAILURE = "doubt_after_failure"
    TWO_REFERENCES = "two_references"  # the provider made two things of one operation
    ANOTHER_AMOUNT = "another_amount"
    DUPLICATE_SUCCESS = "duplicate_success"  # a second paying success of one intent
    JOURNAL_ROLLBACK = "journal_rollback"  # the journal had forgotten it, and its key or guard was given to another
    BOTH_KEYS_RETURNED = "both_keys_returned"  # one answer, given to two keys, each of which came back for it


@dataclass(frozen=True, slots=True)
class Move:
    """Where an event leads. An incident is opened beside it where the event contradicts what was final."""

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
OUTSIDE_DENIALS = (
    Event.INQUIRY_FOUND_DENIAL,
    Event.INQUIRY_CONFIRMED_ABSENT,
    Event.WEBHOOK_TOLD_DENIAL,
    Event.CANCEL_SHOWN,
    Event.OPERATOR_FOUND_FAILURE,
)
REVERSALS = (Event.INQUIRY_FOUND_REVERSAL, Event.WEBHOOK_TOLD_REVERSAL, Event.VOID_SUCCEEDED)
OF_AN_ATTEMPT = frozenset(
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
