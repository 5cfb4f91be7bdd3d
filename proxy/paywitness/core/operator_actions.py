"""What a person may do with an operation, and what a person should do about an incident. Pure: nothing here has
effects.

An action is offered if the lifecycle table allows it and the policy has a way to do it. No action makes another
operation, changes an amount, or records without evidence that money moved.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from paywitness.core.lifecycle import TABLE, Event, IncidentKind, advance
from paywitness.core.operation import GuardKind, Operation, OtherPayment, State
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Effect, ResultClass


class OperatorAction(StrEnum):
    """An action of an operator. Each needs an actor and a reason, and is recorded in the timeline."""

    INQUIRE = "inquire"  # inquire now, before it is due
    PARK = "park"  # stop inquiries: a person takes over
    RESUME = "resume"  # start inquiries again
    RESOLVE = "resolve"  # state how it ended, with the evidence
    CANCEL = "cancel"  # cancel it at the provider, if the result can be shown
    CLOSE_INCIDENT = "close-incident"  # the contradiction has been dealt with


_INQUIRABLE = frozenset({State.UNKNOWN, State.PENDING, State.REQUIRES_ACTION, State.REQUIRES_REVIEW})


def actions_for(operation: Operation, policy: Policy | None) -> tuple[OperatorAction, ...]:
    """The actions that are allowed for the operation now. `policy` is the pinned one; None if it cannot be read."""
    return tuple(action for action in OperatorAction if unavailable_reason(action, operation, policy) is None)


def unavailable_reason(action: OperatorAction, operation: Operation, policy: Policy | None) -> str | None:
    """Why an action is not offered, for the person who asked for it; None if it is offered."""
    return _UNAVAILABLE_REASONS[action](operation, policy)


def _inquire_unavailable(operation: Operation, policy: Policy | None) -> str | None:
    if operation.state not in _INQUIRABLE:
        return f"it is {_state_text(operation.state)}: there is nothing to ask about"
    if operation.attempt_under_way:
        return "an attempt is under way: wait for its response"
    if policy is None or not policy.inquiries:
        return (
            f"the policy of {operation.provider} has no inquiry for {operation.operation}: look it up at the provider"
        )
    return None


def _park_unavailable(operation: Operation, policy: Policy | None) -> str | None:
    if operation.state is State.REQUIRES_REVIEW:
        return "it is in review already"
    if Event.OPERATOR_PARKED not in TABLE[operation.state]:
        return f"it is {_state_text(operation.state)}: only an unknown or pending operation can be parked"
    return None


def _resume_unavailable(operation: Operation, policy: Policy | None) -> str | None:
    if resume_event(operation) not in TABLE[operation.state]:
        return f"it is {_state_text(operation.state)}: only an operation in review can be resumed"
    return None


def resume_event(operation: Operation) -> Event:
    """The event of a resume: back to UNKNOWN, or back to PENDING if the operation was parked while it was pending."""
    return Event.OPERATOR_RESUMED if operation.doubt else Event.OPERATOR_RESUMED_WAITING


def _resolve_unavailable(operation: Operation, policy: Policy | None) -> str | None:
    if operation.state.ended:
        return f"it has ended as {operation.state}; an end is never overwritten"
    if Event.OPERATOR_FOUND_SUCCESS not in TABLE[operation.state]:
        return f"it is {_state_text(operation.state)}: its call is still under way, wait for its end"
    if operation.attempt_under_way:
        return "an attempt is under way and may still pay: wait for its end"
    if policy is None:
        return f"no policy of {operation.provider} can be read for it: put the policy back"
    return None


def _cancel_unavailable(operation: Operation, policy: Policy | None) -> str | None:
    if not operation.state.in_doubt:
        return f"it is {_state_text(operation.state)}: only an operation in doubt is cancelled; a payment is refunded"
    if policy is None or policy.cancel is None:
        return f"the policy of {operation.provider} has no way to cancel {operation.operation}"
    if policy.cancel.needs_reference and operation.reference is None:
        return "it can only be cancelled by its reference at the provider, which is not known"
    if operation.cancel_wanted or operation.cancel_sent:
        return "a cancel is on its way or was sent already: inquire, to see its result"
    if operation.attempt_under_way:
        return "an attempt is under way: wait for its response"
    return None


def _close_unavailable(operation: Operation, policy: Policy | None) -> str | None:
    return None if operation.incident is not None else "it has no open incident"


def close_refusal(state: State, incident: str | None, payment: str, *, paid: bool | None) -> str | None:
    """Why the incident of an operation in this state cannot be closed so; None if it can. `paid`: how the operation
    ended; None: as its state says. That is not enough if the state may be wrong: evidence that contradicts a payment
    that was made does not prove that it was not made. Takes values, so that a command can check before it asks."""
    if incident is None:
        return None
    if paid is None:
        if not state.ended or (state is not State.FAILED and incident not in _DENIES_SUCCESS):
            return None
        return (
            f"it stands as {state}, and {incident} says otherwise: say how it ended, as succeeded (it was paid, and "
            "stays so) or as failed (nothing was paid, or all was given back)"
        )
    if not state.ended:
        return "it has not ended: close the incident without saying how, and resolve it"
    if incident == IncidentKind.UNVERIFIED_PAYMENT and not paid:
        return f"declare on the payment that nobody has paid, with evidence: `ops not-paid {payment}`"
    return None


_DENIES_SUCCESS = frozenset({IncidentKind.FAILURE_AFTER_SUCCESS, IncidentKind.REFERENCE_TAKEN})


def close_incident(operation: Operation, *, paid: bool | None) -> tuple[Operation, tuple[Event, ...]]:
    """The operation after a person has closed its incident, and the events of that change. `paid`: how it ended; None:
    as its state says. If it was paid, its key starts nothing more. If it succeeded and was not paid, it counts as
    returned."""
    if paid is None or not operation.state.ended:
        return operation.changed(incident=None), ()
    event = Event.INCIDENT_CLOSED_AS_PAID if paid else Event.INCIDENT_CLOSED_AS_UNPAID
    # If the payment was made, but not by an operation of ours, that stays so: the operation holds its intent, and has
    # no reply of its own.
    after = operation if paid and operation.paid_elsewhere else advance(operation, event)
    changed: dict[str, Any] = {"incident": None}
    if paid:
        changed["key_released"] = False
    if after.state is State.SUCCEEDED and (not paid or operation.state is State.FAILED):
        reading = ResultClass.SUCCEEDED if paid else ResultClass.RETURNED
        changed |= {"result_class": reading, "effect": Effect.DONE, "because": event.value}
    return after.changed(**changed), (event,)


_UNAVAILABLE_REASONS: dict[OperatorAction, Callable[[Operation, Policy | None], str | None]] = {
    OperatorAction.INQUIRE: _inquire_unavailable,
    OperatorAction.PARK: _park_unavailable,
    OperatorAction.RESUME: _resume_unavailable,
    OperatorAction.RESOLVE: _resolve_unavailable,
    OperatorAction.CANCEL: _cancel_unavailable,
    OperatorAction.CLOSE_INCIDENT: _close_unavailable,
}


def _state_text(state: State) -> str:
    return state.replace("_", " ")


# --- Incidents

_UNDO = {
    OperationKind.AUTHORIZATION: "void {it}, or refund it if it was captured",
    OperationKind.SALE: "refund {it}",
    OperationKind.CAPTURE: "refund {it}",
    OperationKind.INCREMENT: "capture no more of {it} than was agreed, and void the rest",
    OperationKind.REFUND: "take the refund {it} back if it is still pending, else collect the amount anew",
    OperationKind.VOID: "pay anew if the payment behind {it} is still wanted: a void cannot be undone",
    OperationKind.REVERSAL: "pay anew if the payment behind {it} is still wanted: a reversal cannot be undone",
    OperationKind.PAYOUT: "recall the payout {it}",
    OperationKind.NONE: "remove {it}",
}


def proposal_for(operation: Operation, twin: OtherPayment | None = None) -> str | None:
    """What a person should do about the open incident, in one sentence; None without one. `twin` is the other payment
    as it is now, if it was looked up. Otherwise the text uses the other payment as the incident recorded it."""
    if operation.incident is None:
        return None
    propose = _PROPOSALS.get(operation.incident, _compare)
    return propose(operation, twin or operation.other_payment)


def _payment_text(operation: Operation) -> str:
    """The provider's object, as its own pages name it: reference, amount, provider."""
    name = operation.reference or f"the object under key {operation.provider_key or operation.client_key}"
    return f"{name} ({_amount(operation)}) at {operation.provider}"


def _other_text(other: OtherPayment) -> str:
    """The same for the other payment, with the id of our operation, if it is one."""
    text = f"{other.reference or 'a payment'} ({_amount(other)}) at {other.provider}"
    return f"{text}, operation {other.operation_id}" if other.operation_id else text


def _amount(payment: Operation | OtherPayment) -> str:
    return str(payment.money) if payment.money is not None else "amount not known"


def _undo(operation: Operation) -> str:
    return _UNDO[operation.kind].replace("{it}", _payment_text(operation))


def _success_after_failure(operation: Operation, twin: OtherPayment | None) -> str:
    return f"Its caller was told that it failed, but {operation.provider} shows it as done: {_undo(operation)}."


def _failure_after_success(operation: Operation, twin: OtherPayment | None) -> str:
    return (
        f"Its caller was told that it succeeded, but later evidence denies it: check {_payment_text(operation)}, and "
        "if the money is not there, hold the goods and let the customer pay again."
    )


def _doubt_after_failure(operation: Operation, twin: OtherPayment | None) -> str:
    return (
        "Its caller was told that it failed, but an attempt may have gone through: look for "
        f"{_payment_text(operation)}, and if it is there, {_undo(operation)}."
    )


def _two_references(operation: Operation, twin: OtherPayment | None) -> str:
    verb = {OperationKind.AUTHORIZATION: "void", OperationKind.SALE: "refund", OperationKind.CAPTURE: "refund"}.get(
        operation.kind, "undo"
    )
    return (
        f"{operation.provider} made two payments of one call: keep {_payment_text(operation)}, and {verb} the other, "
        f"{twin.reference if twin is not None and twin.reference else 'whose reference the timeline shows'}."
    )


def _another_amount(operation: Operation, twin: OtherPayment | None) -> str:
    shown = twin.money if twin is not None else None
    if shown is not None and shown == operation.money:
        return (
            f"{operation.provider} shows {_payment_text(operation)} under a stamp that is not ours: find out whether "
            "it is somebody else's, and if it is, look for our payment."
        )
    return (
        f"Check amounts: {_amount(operation)} was requested, and {_payment_text(operation)} shows "
        f"{'another amount or currency' if shown is None else shown}; refund or collect the difference."
    )


def _duplicate_success(operation: Operation, twin: OtherPayment | None) -> str:
    guard = operation.guard
    intent = (
        guard.label if guard is not None and guard.kind is GuardKind.INTENT and guard.label else "the same purchase"
    )
    first = f" by {_other_text(twin)}" if twin is not None else ""
    if operation.kind in {OperationKind.REFUND, OperationKind.REVERSAL}:
        return (
            f"The {operation.kind} {_payment_text(operation)} came back after its purchase was paid again{first}, so "
            "the customer has paid twice: give one of the two payments back."
        )
    return f"Payment of {intent} was made twice, already{first}: {_undo(operation)}."


def _both_keys_returned(operation: Operation, twin: OtherPayment | None) -> str:
    return (
        f"Two calls got the reply of {_payment_text(operation)}: ask their service whether two payments were "
        "meant, and if so, make the second under Paywitness-Distinct."
    )


def _journal_rollback(operation: Operation, twin: OtherPayment | None) -> str:
    again = f" as {_other_text(twin)}" if twin is not None else ""
    return (
        f"The journal had forgotten {_payment_text(operation)}, and the same call was started again{again}: look for "
        f"two payments at {operation.provider}, give one back if there are, and close the incident with what was found."
    )


def _reference_taken(operation: Operation, twin: OtherPayment | None) -> str:
    other = _other_text(twin) if twin is not None else "which the timeline names"
    return (
        f"{operation.provider} showed a reference that belongs to another payment, {other}: find out "
        f"whether {_payment_text(operation)} was paid on its own, and if it was not, hold the goods and let the "
        "customer pay again."
    )


def _reference_not_found(operation: Operation, twin: OtherPayment | None) -> str:
    return (
        f"{operation.provider} gave us {_payment_text(operation)} and does not find it any more: look for it in its "
        "dashboard, ask its support what became of it, and resolve the operation with what was found: it may have been "
        "paid."
    )


def _negative_remainder(operation: Operation, twin: OtherPayment | None) -> str:
    had = f", {_other_text(twin)}," if twin is not None and twin.money is not None else ""
    return (
        f"More was captured or refunded than the payment{had} had: compare all captures and refunds around "
        f"{_payment_text(operation)} with the timeline, and give back or collect the difference."
    )


def _unverified_payment(operation: Operation, twin: OtherPayment | None) -> str:
    return (
        f"{operation.provider} says that it was paid before, not by us, and no inquiry could read it: look for "
        f"{_payment_text(operation)}, and if it was not paid, say so with `ops not-paid {operation.payment}` and let "
        "the customer pay; if it was, close the incident as succeeded."
    )


def _compare(operation: Operation, twin: OtherPayment | None) -> str:
    return f"Compare {_payment_text(operation)} with the timeline, and close the incident with what was found."


_PROPOSALS: dict[str, Callable[[Operation, OtherPayment | None], str]] = {
    IncidentKind.SUCCESS_AFTER_FAILURE: _success_after_failure,
    IncidentKind.FAILURE_AFTER_SUCCESS: _failure_after_success,
    IncidentKind.DOUBT_AFTER_FAILURE: _doubt_after_failure,
    IncidentKind.TWO_REFERENCES: _two_references,
    IncidentKind.ANOTHER_AMOUNT: _another_amount,
    IncidentKind.DUPLICATE_SUCCESS: _duplicate_success,
    IncidentKind.BOTH_KEYS_RETURNED: _both_keys_returned,
    IncidentKind.JOURNAL_ROLLBACK: _journal_rollback,
    IncidentKind.REFERENCE_TAKEN: _reference_taken,
    IncidentKind.REFERENCE_NOT_FOUND: _reference_not_found,
    IncidentKind.NEGATIVE_REMAINDER: _negative_remainder,
    IncidentKind.UNVERIFIED_PAYMENT: _unverified_payment,
}
