"""The lifecycle: what is true of an operation now. One table, State x Event -> Move; nothing else changes a state.

Rules that the table and `advance` hold together:
- An illegal move raises and changes nothing. Every state has a row, the final ones too.
- Doubt is a set of attempts and sticky: an attempt leaves it by its own complete answer, a success empties it, a denial
  by inquiry or event empties it only when no attempt is under way. FAILED needs it empty.
- No path leads from doubt back to PREPARED, BACKOFF or SENDING: a re-send under doubt runs in UNKNOWN, so that
  "connection refused" on the re-send can never look like "safe to try again". It is in doubt from its record on:
  a late answer to an earlier attempt never ends the operation under it.
- An attempt's evidence can always be recorded, also twice: `conclude` never raises once something was sent.
- SUCCEEDED and FAILED are final. Evidence that contradicts them opens an incident; it never overwrites.
- Elapsed time is no event. A lease that expired while sending is doubt, never a failure.
"""

from __future__ import annotations

from typing import Any

from proxy.core.contract import ErrorsUnderKey, ProviderContract
from proxy.core.errors import IllegalTransition
from proxy.core.events import ACTIONS, OF_AN_ATTEMPT, OUTSIDE_DENIALS, PENDINGS, REVERSALS, SUCCESSES, Move
from proxy.core.events import Event as Event  # the other rooms know both by this one
from proxy.core.events import IncidentKind as IncidentKind
from proxy.core.operation import Operation, State
from proxy.core.reading import DENIALS, DOES_NOT_FIT, REFUSALS, Classification, Effect, Reading


def _each(events: tuple[Event, ...], to: State, incident: IncidentKind | None = None) -> dict[Event, Move]:
    return dict.fromkeys(events, Move(to, incident))


_ENDINGS = {
    **_each(SUCCESSES, State.SUCCEEDED),
    **_each(REVERSALS, State.SUCCEEDED),  # it was paid and paid back: never "it never happened"
    **_each(PENDINGS, State.PENDING),
    **_each(ACTIONS, State.REQUIRES_ACTION),
    **_each(OUTSIDE_DENIALS, State.FAILED),
    Event.DENIAL_SEEN: Move(State.FAILED),
}

TABLE: dict[State, dict[Event, Move]] = {
    State.PREPARED: {
        Event.SEND_RECORDED: Move(State.SENDING),
        Event.GIVEN_UP: Move(State.FAILED),
        Event.LEASE_EXPIRED: Move(State.FAILED),  # never sent, and never will be
    },
    State.SENDING: {
        Event.NO_EFFECT_SEEN: Move(State.BACKOFF),
        Event.ANSWER_LOST: Move(State.UNKNOWN),
        Event.SUCCESS_SEEN: Move(State.SUCCEEDED),
        Event.PENDING_SEEN: Move(State.PENDING),
        Event.ACTION_SEEN: Move(State.REQUIRES_ACTION),
        Event.DENIAL_SEEN: Move(State.FAILED),
        Event.LEASE_EXPIRED: Move(State.UNKNOWN),
        # Events that overtake the response. A success is a success; the rest waits for the attempt's own end.
        Event.WEBHOOK_TOLD_SUCCESS: Move(State.SUCCEEDED),
        Event.WEBHOOK_TOLD_PENDING: Move(State.SENDING),
        Event.WEBHOOK_TOLD_ACTION: Move(State.SENDING),
        Event.WEBHOOK_TOLD_DENIAL: Move(State.SENDING),
        Event.WEBHOOK_TOLD_REVERSAL: Move(State.SENDING),
        Event.TOLD_BEFORE: Move(State.SENDING),
    },
    State.BACKOFF: {
        Event.SEND_RECORDED: Move(State.SENDING),
        Event.GIVEN_UP: Move(State.FAILED),
        Event.LEASE_EXPIRED: Move(State.FAILED),
        Event.WEBHOOK_TOLD_SUCCESS: Move(State.SUCCEEDED),
        Event.WEBHOOK_TOLD_PENDING: Move(State.PENDING),
        # No attempt is under way that it could wait for, and another try would be a charge after a decline.
        Event.WEBHOOK_TOLD_ACTION: Move(State.REQUIRES_ACTION),
        Event.WEBHOOK_TOLD_DENIAL: Move(State.FAILED),
        Event.WEBHOOK_TOLD_REVERSAL: Move(State.SUCCEEDED),
        # Of attempts that were taken to be without effect.
        Event.TOLD_BEFORE: Move(State.BACKOFF),
        Event.ANSWER_LOST: Move(State.UNKNOWN),
        Event.SUCCESS_SEEN: Move(State.SUCCEEDED),
        Event.PENDING_SEEN: Move(State.PENDING),
    },
    State.UNKNOWN: {
        **_ENDINGS,
        Event.RESEND_RECORDED: Move(State.UNKNOWN),
        Event.NO_EFFECT_SEEN: Move(State.UNKNOWN),
        Event.ANSWER_LOST: Move(State.UNKNOWN),
        Event.ACTION_SEEN_IN_DOUBT: Move(State.UNKNOWN),
        Event.DENIAL_SEEN_IN_DOUBT: Move(State.UNKNOWN),
        Event.DOUBT_CLEARED: Move(State.FAILED),
        Event.ACTION_STANDS: Move(State.REQUIRES_ACTION),
        Event.LEASE_EXPIRED: Move(State.UNKNOWN),
        Event.INQUIRY_MISSED: Move(State.UNKNOWN),
        Event.PARKED: Move(State.REQUIRES_REVIEW),
        Event.SCHEDULE_RAN_OUT: Move(State.REQUIRES_REVIEW),
        Event.OPERATOR_PARKED: Move(State.REQUIRES_REVIEW),
    },
    State.PENDING: {
        **_ENDINGS,
        Event.NO_EFFECT_SEEN: Move(State.PENDING),  # a late refusal of a re-send speaks of that re-send alone
        Event.ANSWER_LOST: Move(State.PENDING),
        Event.LEASE_EXPIRED: Move(State.PENDING),
        Event.INQUIRY_MISSED: Move(State.PENDING),
        Event.PARKED: Move(State.REQUIRES_REVIEW),
        Event.SCHEDULE_RAN_OUT: Move(State.REQUIRES_REVIEW),
        Event.OPERATOR_PARKED: Move(State.REQUIRES_REVIEW),
    },
    State.REQUIRES_ACTION: {
        **_ENDINGS,
        Event.NO_EFFECT_SEEN: Move(State.REQUIRES_ACTION),
        Event.ANSWER_LOST: Move(State.REQUIRES_ACTION),
        Event.LEASE_EXPIRED: Move(State.REQUIRES_ACTION),
        Event.INQUIRY_MISSED: Move(State.REQUIRES_ACTION),
    },
    State.SUCCEEDED: {
        **_each(SUCCESSES, State.SUCCEEDED),
        **_each(REVERSALS, State.SUCCEEDED),
        **_each(PENDINGS, State.SUCCEEDED),  # events out of order: the older one says less
        **_each(ACTIONS, State.SUCCEEDED),
        **_each(OUTSIDE_DENIALS, State.SUCCEEDED, IncidentKind.FAILURE_AFTER_SUCCESS),
        Event.DENIAL_SEEN: Move(State.SUCCEEDED, IncidentKind.FAILURE_AFTER_SUCCESS),
        Event.NO_EFFECT_SEEN: Move(State.SUCCEEDED),
        Event.ANSWER_LOST: Move(State.SUCCEEDED),
        Event.LEASE_EXPIRED: Move(State.SUCCEEDED),
        Event.INQUIRY_MISSED: Move(State.SUCCEEDED),
    },
    State.FAILED: {
        **_each(SUCCESSES, State.FAILED, IncidentKind.SUCCESS_AFTER_FAILURE),
        **_each(REVERSALS, State.FAILED, IncidentKind.SUCCESS_AFTER_FAILURE),
        **_each(PENDINGS, State.FAILED, IncidentKind.SUCCESS_AFTER_FAILURE),
        **_each(ACTIONS, State.FAILED),
        **_each(OUTSIDE_DENIALS, State.FAILED),
        Event.DENIAL_SEEN: Move(State.FAILED),
        Event.NO_EFFECT_SEEN: Move(State.FAILED),
        Event.ANSWER_LOST: Move(State.FAILED, IncidentKind.DOUBT_AFTER_FAILURE),
        Event.LEASE_EXPIRED: Move(State.FAILED),
        Event.INQUIRY_MISSED: Move(State.FAILED),
    },
    State.REQUIRES_REVIEW: {
        **_ENDINGS,
        Event.NO_EFFECT_SEEN: Move(State.REQUIRES_REVIEW),
        Event.ANSWER_LOST: Move(State.REQUIRES_REVIEW),
        Event.ACTION_SEEN_IN_DOUBT: Move(State.REQUIRES_REVIEW),
        Event.DENIAL_SEEN_IN_DOUBT: Move(State.REQUIRES_REVIEW),
        Event.DOUBT_CLEARED: Move(State.FAILED),
        Event.ACTION_STANDS: Move(State.REQUIRES_ACTION),
        Event.LEASE_EXPIRED: Move(State.REQUIRES_REVIEW),
        Event.INQUIRY_MISSED: Move(State.REQUIRES_REVIEW),
        Event.OPERATOR_RESUMED: Move(State.UNKNOWN),
        Event.OPERATOR_RESUMED_WAITING: Move(State.PENDING),
    },
}

_STARTS = frozenset({Event.SEND_RECORDED, Event.RESEND_RECORDED})
_NEEDS_EMPTY_DOUBT = frozenset(State) - {State.UNKNOWN, State.REQUIRES_REVIEW}
# What would end the operation, or let the customer act, under an attempt that may still pay.
_NEEDS_NO_ATTEMPT_UNDER_WAY = frozenset(
    {
        *OUTSIDE_DENIALS,
        Event.INQUIRY_FOUND_ACTION,
        Event.WEBHOOK_TOLD_ACTION,
    },
)
# What, of an attempt in SENDING, says that nothing is on the wire any more. Only the attempt under way can say it.
_ENDS_SENDING = frozenset({Event.NO_EFFECT_SEEN, Event.ACTION_SEEN, Event.DENIAL_SEEN})
_NOES = DENIALS | {Reading.REQUIRES_ACTION}


def advance(operation: Operation, event: Event, attempt: int | None = None, **also: Any) -> Operation:
    """The operation after the event, or IllegalTransition. `attempt` is the one that the event speaks of, `also` what
    changes with it beside what the event itself does."""
    return operation.changed(**also, **_moved(operation, event, attempt))


def _moved(operation: Operation, event: Event, attempt: int | None) -> dict[str, Any]:
    """What the event changes of the operation, or IllegalTransition."""
    move = TABLE[operation.state].get(event)
    if move is None:
        raise IllegalTransition(f"{event} cannot happen in {operation.state}")
    of_an_attempt = event in OF_AN_ATTEMPT
    if of_an_attempt:
        _check_attempt(operation, event, attempt)
    if event in _NEEDS_NO_ATTEMPT_UNDER_WAY and operation.attempt_under_way and move.to is not operation.state:
        raise IllegalTransition(f"{event} cannot lead to {move.to} while an attempt is under way")
    starts = event in _STARTS
    if starts and operation.attempt_under_way:
        raise IllegalTransition(f"{event} cannot happen while an attempt is under way")
    doubt = operation.doubt
    if doubt or event in _MAY_DOUBT:
        doubt = _doubt_after(operation, event, attempt, move.to)
    if doubt and move.to in _NEEDS_EMPTY_DOUBT:
        raise IllegalTransition(f"{event} leads to {move.to}, which needs an empty doubt; in doubt: {sorted(doubt)}")
    if not doubt and move.to is State.UNKNOWN:
        raise IllegalTransition(f"{event} leads to unknown with nothing in doubt")
    ends = event is Event.LEASE_EXPIRED or (of_an_attempt and attempt == operation.attempts)
    incident = operation.incident or move.incident
    if incident is not operation.incident and _was_reckoned_with(operation, event):
        incident = None
    return {
        "state": move.to,
        "doubt": doubt,
        "seen": operation.seen & doubt,
        "attempts": operation.attempts + (1 if starts else 0),
        "attempt_under_way": starts or (operation.attempt_under_way and not ends),
        "incident": incident,
    }


def _was_reckoned_with(operation: Operation, event: Event) -> bool:
    """Whether a lost answer, told only now, says nothing against an end. Every attempt is in the journal before its
    first byte: what the provider answered or denied, or that nothing of it was there, was found with that attempt in
    doubt, or is its own answer, which another listener heard. Only an end that rests on nothing having been sent is
    contradicted by what was."""
    if event is not Event.ANSWER_LOST or operation.state is not State.FAILED:
        return False
    return operation.effect is Effect.NONE and operation.reading not in _UNSENT


_UNSENT = frozenset({None, Reading.NETWORK_CONNECT_FAILURE})


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
        return doubt  # what is final, or was accepted before it was parked, is not undone by an attempt that was lost
    if event in _EMPTIES_DOUBT:
        return frozenset()
    under_way = frozenset({operation.attempts} if operation.attempt_under_way else ())
    if event is Event.RESEND_RECORDED:
        return doubt | {operation.attempts + 1}
    if event is Event.ANSWER_LOST and attempt is not None and to.in_doubt:
        return doubt | {attempt} | under_way
    if event is Event.LEASE_EXPIRED and to.in_doubt:
        return doubt | under_way
    return doubt - {attempt} if event in _OF_ITSELF_ALONE else doubt


_OF_ITSELF_ALONE = frozenset(
    {
        Event.NO_EFFECT_SEEN,
        Event.ACTION_SEEN_IN_DOUBT,
        Event.DENIAL_SEEN_IN_DOUBT,
        Event.DOUBT_CLEARED,
        Event.ACTION_STANDS,
    },
)
_MAY_DOUBT = frozenset({Event.RESEND_RECORDED, Event.ANSWER_LOST, Event.LEASE_EXPIRED})
_EMPTIES_DOUBT = frozenset({*SUCCESSES, *REVERSALS, *PENDINGS, *ACTIONS, *OUTSIDE_DENIALS, Event.DENIAL_SEEN})


def event_of_answer(
    operation: Operation, attempt: int, classification: Classification, contract: ProviderContract
) -> Event:
    """Which event the end of one attempt is: what its answer settles of itself and of the attempts before it."""
    reading, effect = classification.reading, classification.effect
    others = operation.doubt - {attempt}
    if reading is Reading.SUCCEEDED and effect is Effect.DONE:
        return Event.SUCCESS_SEEN
    if reading is Reading.PENDING and effect is not Effect.POSSIBLE:
        return Event.PENDING_SEEN
    if effect is not Effect.NONE or reading in {Reading.SUCCEEDED, Reading.REVERSED}:
        # A refused re-send says nothing of the attempts before it, and had no effect of its own.
        resent = bool(others) or (operation.state.ended and attempt > 1)
        refused = resent and reading in REFUSALS and effect is Effect.POSSIBLE
        return Event.NO_EFFECT_SEEN if refused else Event.ANSWER_LOST
    under_way = operation.attempt_under_way and attempt == operation.attempts
    if operation.state in {State.SENDING, State.BACKOFF} and not under_way:
        return Event.TOLD_BEFORE
    if reading in _NOES:
        stored = contract.errors_under_key is ErrorsUnderKey.REPLAYED and classification.stored
        return _event_of_a_no(operation, reading, others, stored=stored)
    if operation.doubt and not others:
        return Event.ACTION_STANDS if _action_was_asked(operation) else Event.DOUBT_CLEARED
    return Event.NO_EFFECT_SEEN


def _event_of_a_no(operation: Operation, reading: Reading, others: frozenset[int], *, stored: bool) -> Event:
    """What a decline, or a customer who must act, settles: itself alone, or all. Where it is stored, as every executed
    answer is, it is the answer of the first execution, and of whatever arrives later."""
    action = reading is Reading.REQUIRES_ACTION
    action_stands = not action and bool(operation.doubt) and _action_was_asked(operation)
    if others and (not stored or action_stands):
        return Event.ACTION_SEEN_IN_DOUBT if action else Event.DENIAL_SEEN_IN_DOUBT
    if not operation.doubt and operation.state in {State.PENDING, State.REQUIRES_ACTION, State.REQUIRES_REVIEW}:
        return Event.NO_EFFECT_SEEN  # the provider is known to have accepted it: only asking tells more
    if operation.state is State.SUCCEEDED and operation.attempts > 1 and not stored:
        return Event.NO_EFFECT_SEEN  # another attempt was the one that succeeded
    if action_stands:
        return Event.ACTION_STANDS
    return Event.ACTION_SEEN if action else Event.DENIAL_SEEN


def _no_was_said(operation: Operation) -> bool:
    """Whether one attempt of an operation in doubt was executed and answered no. `conclude` keeps that reading."""
    return operation.state.in_doubt and operation.effect is Effect.NONE and operation.reading in _NOES


def _action_was_asked(operation: Operation) -> bool:
    return _no_was_said(operation) and operation.reading is Reading.REQUIRES_ACTION


def conclude(
    operation: Operation, attempt: int, classification: Classification, contract: ProviderContract
) -> tuple[Operation, Event]:
    """The operation after one attempt's end, with what was read of it; and the event that it was."""
    changed, event = concluded(operation, attempt, classification, contract)
    return operation.changed(**changed), event


def concluded(
    operation: Operation, attempt: int, classification: Classification, contract: ProviderContract
) -> tuple[dict[str, Any], Event]:
    """What `conclude` changes of the operation, for whoever changes more of it in the same step; and the event."""
    event = event_of_answer(operation, attempt, classification, contract)
    changed = _moved(operation, event, attempt)
    if _speaks(operation, event, changed["state"]):
        changed |= {"reading": classification.reading, "effect": classification.effect}
    if attempt in changed["doubt"] and _may_be_replayed(classification):
        changed["seen"] |= {attempt}
    paid = operation.state in _PAID_OR_ACCEPTED
    shown, known = classification.reference, operation.reference
    newer = classification.effect is Effect.DONE and not paid and not operation.state.ended
    changed["reference"] = (shown or known) if newer else (known or shown)
    if paid and changed["incident"] is None:
        changed["incident"] = contradiction(operation, classification)
    return changed, event


_PAID_OR_ACCEPTED = frozenset({State.SUCCEEDED, State.PENDING})


def _may_be_replayed(classification: Classification) -> bool:
    """Whether a re-send could only get this very answer again: it was seen whole, and the provider may keep it."""
    return not classification.lost and classification.stored


def _speaks(operation: Operation, event: Event, to: State) -> bool:
    """Whether the reading of this attempt is now that of the operation."""
    if operation.state.ended or event is Event.TOLD_BEFORE:
        return False
    if event is Event.NO_EFFECT_SEEN:
        # The reading of an operation in doubt is that of its doubt: a refused re-send does not speak for it.
        return to is State.BACKOFF
    if event is Event.ANSWER_LOST and not to.in_doubt:
        return False
    if event is Event.DENIAL_SEEN_IN_DOUBT:
        return not _action_was_asked(operation)
    # Once an attempt was executed and answered no, that is what is known; a lost or refused one knows less.
    return not (event in {Event.ANSWER_LOST, Event.DOUBT_CLEARED, Event.ACTION_STANDS} and _no_was_said(operation))


def contradiction(operation: Operation, classification: Classification) -> IncidentKind | None:
    """What an answer says against a payment that was made or accepted already."""
    if classification.rule == DOES_NOT_FIT:
        return IncidentKind.ANOTHER_AMOUNT
    shown, known = classification.reference, operation.reference
    if classification.effect is Effect.DONE and shown is not None and known is not None and shown != known:
        return IncidentKind.TWO_REFERENCES
    return None
