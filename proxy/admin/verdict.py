"""The verdict: "was this charged?", in one sentence that a finance person can act on.

It says what became of the money first and what not to do next. It says no more than the journal knows: where the
outcome is not known it says so, and an incident goes before everything else.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.core.contract import Kind
from proxy.core.operation import Operation, Outcome, State
from proxy.core.reading import Reading


@dataclass(frozen=True, slots=True)
class _Words:
    done: str
    may_be_done: str
    not_done: str
    again: str


_WORDS: dict[Kind, _Words] = {
    Kind.AUTHORIZATION: _Words(
        "{money} was authorised", "{money} may have moved", "nothing was authorised", "do not pay again"
    ),
    Kind.SALE: _Words("{money} was charged", "{money} may have moved", "nothing was charged", "do not pay again"),
    Kind.CAPTURE: _Words(
        "{money} was captured", "{money} may have been captured", "nothing was captured", "do not capture again"
    ),
    Kind.REFUND: _Words(
        "{money} was refunded", "{money} may have been refunded", "nothing was refunded", "do not refund again"
    ),
    Kind.VOID: _Words(
        "the payment was voided", "the payment may have been voided", "nothing was voided", "do not void again"
    ),
    Kind.PAYOUT: _Words(
        "{money} was paid out", "{money} may have been paid out", "nothing was paid out", "do not pay out again"
    ),
    Kind.NONE: _Words(
        "it was done; it moves no money", "it may have been done", "it was not done", "do not do it again"
    ),
}


def verdict(operation: Operation) -> str:
    """What became of the money, and what not to do."""
    words = _WORDS[operation.kind]
    money = str(operation.money) if operation.money is not None else "the amount"
    return _sentence(operation, words).replace("{money}", money)


def _sentence(operation: Operation, words: _Words) -> str:
    if operation.incident is not None:
        return _contradicted(operation, operation.incident, words)
    match operation.state:
        case State.SUCCEEDED:
            return _succeeded(operation, words)
        case State.UNKNOWN:
            return f"UNKNOWN: {words.may_be_done}; {words.again}"
        case State.REQUIRES_REVIEW:
            return f"UNKNOWN, IN REVIEW: {words.may_be_done}; {words.again}; a person must look"
        case State.PENDING:
            return f"PENDING: the provider accepted it and has not finished; {words.may_be_done}; {words.again}"
        case State.REQUIRES_ACTION:
            return f"REQUIRES ACTION: {words.not_done} yet; the customer must confirm it"
        case State.SENDING:
            return f"IN FLIGHT: it is being sent; wait, and {words.again}"
        case State.PREPARED | State.BACKOFF:
            return f"IN FLIGHT: {words.not_done} yet; it is still being tried; wait"
        case State.FAILED:
            return _failed(operation, words)


def _contradicted(operation: Operation, incident: str, words: _Words) -> str:
    what = f"{words.may_be_done}, though it stands as {operation.state.replace('_', ' ')}"
    return f"INCIDENT, {incident.replace('_', ' ')}: {what}; {words.again}; a person must look"


def _succeeded(operation: Operation, words: _Words) -> str:
    if operation.reading is Reading.REVERSED:
        return f"REVERSED: {words.done}, and later reversed by the provider"
    return f"SUCCEEDED: {words.done}"


def _failed(operation: Operation, words: _Words) -> str:
    reading = (operation.reading or "").replace("_", " ")
    match operation.outcome:
        case Outcome.DECLINED:
            return f"DECLINED: {words.not_done}; the provider said no ({reading})"
        case Outcome.NOT_SENT:
            return f"NOT SENT: {words.not_done}, and nothing will be; it is safe to try again"
        case _:
            return f"FAILED: {words.not_done} ({reading})"
