"""Every operation that can come to be: all events and all answers, up to three attempts, breadth first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from paywitness.core.errors import IllegalTransition
from paywitness.core.lifecycle import ATTEMPT_EVENTS, TABLE, Event, advance, conclude
from paywitness.core.operation import Operation
from paywitness.core.provider_contract import ErrorsUnderKey
from paywitness.core.result import DENIALS, Classification, Effect, ResultClass
from tests.core.samples import contract, operation, read

ATTEMPTS_MAX = 3
NOES = DENIALS | {ResultClass.REQUIRES_ACTION}
CONTRACTS = {errors: contract(errors) for errors in ErrorsUnderKey}

# One answer of every kind that the lifecycle tells apart.
ANSWERS = (
    read(ResultClass.SUCCEEDED),
    read(ResultClass.PENDING),
    read(ResultClass.REQUIRES_ACTION),
    read(ResultClass.ISSUER_SOFT_DECLINE),
    read(ResultClass.RATE_LIMITED),
    read(ResultClass.IDEMPOTENCY_IN_FLIGHT),
    read(ResultClass.TEMPORARY_PROVIDER_ERROR),
    read(ResultClass.NETWORK_READ_TIMEOUT, lost=True),
    read(ResultClass.NETWORK_CONNECT_FAILURE),
)
ALL_ANSWERS = tuple(read(reading, effect) for reading in ResultClass for effect in Effect)


@dataclass(frozen=True)
class Step:
    before: Operation
    event: Event
    attempt: int | None
    after: Operation
    answer: Classification | None = None  # what `conclude` was told; None where the event came from elsewhere


def events_of(before: Operation) -> Iterator[tuple[Event, int | None]]:
    """Every legal or illegal event with every attempt it could speak of."""
    for event in Event:
        if event in ATTEMPT_EVENTS:
            yield from ((event, attempt) for attempt in range(1, before.attempts + 1))
        else:
            yield event, None


def steps_by_event(before: Operation, *, own: bool) -> Iterator[Step]:
    for event, attempt in events_of(before):
        if event not in TABLE[before.state] or (event in ATTEMPT_EVENTS and not own):
            continue
        try:
            after = advance(before, event, attempt)
        except IllegalTransition:
            continue
        yield Step(before, event, attempt, after)


def steps_by_answer(before: Operation, errors: ErrorsUnderKey) -> Iterator[Step]:
    for attempt in range(1, before.attempts + 1):
        for answer in ANSWERS:
            after, event = conclude(before, attempt, answer, CONTRACTS[errors])
            yield Step(before, event, attempt, after, answer)


def what_moves_it(found: Operation) -> tuple[object, ...]:
    """Everything that a next step may depend on. Of what was read, only whether the provider said no."""
    said_no = found.result_class if found.effect is Effect.NONE and found.result_class in NOES else None
    return found.state, found.doubt, found.attempts, found.attempt_under_way, said_no, found.incident is None


def explored(start: tuple[Operation, ...], steps_of: Callable[[Operation], Iterator[Step]]) -> list[Step]:
    found: list[Step] = []
    known, waiting = {what_moves_it(first) for first in start}, deque(start)
    while waiting:
        for step in steps_of(waiting.popleft()):
            found.append(step)
            key = what_moves_it(step.after)
            if step.after.attempts <= ATTEMPTS_MAX and key not in known:
                known.add(key)
                waiting.append(step.after)
    return found


@cache
def steps_of_the_table() -> list[Step]:
    """By events alone, whoever may cause them: with nothing read, after a denial, and after a demand to act."""
    plain = operation()
    denied = replace(plain, result_class=ResultClass.ISSUER_SOFT_DECLINE, effect=Effect.NONE)
    return explored((plain, denied), lambda before: steps_by_event(before, own=True))


@cache
def steps_of_the_world(errors: ErrorsUnderKey) -> list[Step]:
    """As it happens: attempts end by their answers, as often and as late as may be; everything else by events."""

    def steps_of(before: Operation) -> Iterator[Step]:
        yield from steps_by_event(before, own=False)
        yield from steps_by_answer(before, errors)

    return explored((operation(),), steps_of)
