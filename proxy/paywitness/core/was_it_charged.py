"""Was it charged? One sentence that a finance person can act on.

It begins with the outcome for the money, and then warns against the wrong next step. It claims no more than the journal
knows: an unknown outcome is called unknown, and an incident comes before everything else.
"""

from __future__ import annotations

from dataclasses import dataclass

from paywitness.core.operation import Operation, Outcome, State
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import ResultClass


@dataclass(frozen=True, slots=True)
class _Phrases:
    done: str
    may_be_done: str
    not_done: str
    do_not_repeat: str


_PHRASES: dict[OperationKind, _Phrases] = {
    OperationKind.AUTHORIZATION: _Phrases(
        "{money} was authorised", "{money} may have moved", "nothing was authorised", "do not pay again"
    ),
    OperationKind.SALE: _Phrases(
        "{money} was charged", "{money} may have moved", "nothing was charged", "do not pay again"
    ),
    OperationKind.CAPTURE: _Phrases(
        "{money} was captured", "{money} may have been captured", "nothing was captured", "do not capture again"
    ),
    OperationKind.INCREMENT: _Phrases(
        "the authorised amount was raised",
        "the authorised amount may have been raised",
        "nothing was added to what is authorised",
        "do not raise it again",
    ),
    OperationKind.REFUND: _Phrases(
        "{money} was refunded", "{money} may have been refunded", "nothing was refunded", "do not refund again"
    ),
    OperationKind.VOID: _Phrases(
        "the payment was voided", "the payment may have been voided", "nothing was voided", "do not void again"
    ),
    OperationKind.REVERSAL: _Phrases(
        "the payment was voided or refunded",
        "the payment may have been voided or refunded",
        "nothing was voided or refunded",
        "do not reverse it again",
    ),
    OperationKind.PAYOUT: _Phrases(
        "{money} was paid out", "{money} may have been paid out", "nothing was paid out", "do not pay out again"
    ),
    OperationKind.NONE: _Phrases(
        "it was done; it moves no money", "it may have been done", "it was not done", "do not do it again"
    ),
}


def money_summary(operation: Operation) -> str:
    """The sentence about the money's outcome and the wrong next step."""
    phrases = _PHRASES[operation.kind]
    money = str(operation.money) if operation.money is not None else "the amount"
    return _sentence(operation, phrases).replace("{money}", money)


def _sentence(operation: Operation, phrases: _Phrases) -> str:
    if operation.incident is not None:
        return _contradicted(operation, operation.incident, phrases)
    match operation.state:
        case State.SUCCEEDED:
            return _succeeded(operation, phrases)
        case State.UNKNOWN:
            return f"UNKNOWN: {phrases.may_be_done}; {phrases.do_not_repeat}"
        case State.REQUIRES_REVIEW:
            return f"UNKNOWN, IN REVIEW: {phrases.may_be_done}; {phrases.do_not_repeat}; a person must look"
        case State.PENDING:
            meaning = f"{phrases.may_be_done}; {phrases.do_not_repeat}"
            return f"PENDING: the provider accepted it and has not finished; {meaning}"
        case State.REQUIRES_ACTION:
            return _requires_action(operation, phrases)
        case State.SENDING:
            return f"IN FLIGHT: it is being sent; wait, and {phrases.do_not_repeat}"
        case State.PREPARED | State.BACKOFF:
            return f"IN FLIGHT: {phrases.not_done} yet; it is still being tried; wait"
        case State.FAILED:
            return _failed(operation, phrases)


def _requires_action(operation: Operation, phrases: _Phrases) -> str:
    if operation.action_expired or operation.abandoned:
        return f"REQUIRES ACTION, EXPIRED: {phrases.not_done} yet; the customer has not confirmed it in time"
    return f"REQUIRES ACTION: {phrases.not_done} yet; the customer must confirm it"


def _contradicted(operation: Operation, incident: str, phrases: _Phrases) -> str:
    if operation.state is State.SUCCEEDED and operation.result_class is ResultClass.RETURNED:
        what = f"{phrases.done}, and the provider took it back later"
        return f"INCIDENT, {incident.replace('_', ' ')}: {what}; a person must look"
    what = f"{phrases.may_be_done}, though it stands as {operation.state.replace('_', ' ')}"
    return f"INCIDENT, {incident.replace('_', ' ')}: {what}; {phrases.do_not_repeat}; a person must look"


def _succeeded(operation: Operation, phrases: _Phrases) -> str:
    if operation.result_class is ResultClass.REVERSED:
        return f"REVERSED: {phrases.done}, and later reversed by the provider"
    if operation.result_class is ResultClass.RETURNED:
        return f"RETURNED: {phrases.done}, and the provider took it back later"
    return f"SUCCEEDED: {phrases.done}"


def _failed(operation: Operation, phrases: _Phrases) -> str:
    if operation.paid_elsewhere:
        meaning = f"{phrases.not_done} by this; the provider says that it was paid already; {phrases.do_not_repeat}"
        return f"PAID BEFORE: {meaning}"
    reading = (operation.result_class or "").replace("_", " ")
    match operation.outcome:
        case Outcome.DECLINED:
            return f"DECLINED: {phrases.not_done}; the provider said no ({reading})"
        case Outcome.ABSENT:
            return f"ABSENT: it was sent; {phrases.not_done}, and nothing will be; it is safe to try again"
        case Outcome.NOT_SENT:
            return f"NOT SENT: {phrases.not_done}, and nothing will be; it is safe to try again"
        case _:
            return f"FAILED: {phrases.not_done} ({reading})"
