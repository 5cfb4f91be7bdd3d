"""Every operation that can come to be: all events and all answers, up to three attempts, breadth first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from proxy.core.contract import ErrorsUnderKey
from proxy.core.errors import IllegalTransition
from proxy.core.events import OF_AN_ATTEMPT, Event
from proxy.core.lifecycle import TABLE, advance, conclude
from proxy.core.operation import Operation
from proxy.core.reading import DENIALS, Classification, Effect, Reading
from tests.core.making import contract, operation, read

ATTEMPTS_MAX = 3
NOES = DENIALS | {Reading.REQUIRES_ACTION}
CONTRACTS = {errors: contract(errors) for errors in ErrorsUnderKey}

# One answer of every kind that the lifecycle tells apart.
ANSWERS = (
    read(Reading.SUCCEEDED),
    read(Reading.PENDING),
    read(Reading.REQUIRES_ACTION),
    read(Reading.ISSUER_SOFT_DECLINE),
    read(Reading.RATE_LIMITED),
    read(Reading.IDEMPOTENCY_IN_FLIGHT),
    read(Reading.TEMPORARY_PROVIDER_ERROR),
    read(Reading.NETWORK_READ_TIMEOUT, lost=True),
    read(Reading.NETWORK_CONNECT_FAILURE),
)
ALL_ANSWERS = tuple(read(reading, effect) for reading in Reading for effect in Effect)


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
        if event in OF_AN_ATTEMPT:
            yield from ((event, attempt) for attempt in range(1, before.attempts + 1))
        else:
            yield event, None


def steps_by_event(before: Operation, *, own: bool) -> Iterator[Step]:
    for event, attempt in events_of(before):
        if event not in TABLE[before.state] or (event in OF_AN_ATTEMPT and not own):
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
    said_no = found.reading if found.effect is Effect.NONE and found.reading in NOES else None
    return found.state, found.doubt, found.attempts, found.attempt_under_way, said_no


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
    denied = replace(plain, reading=Reading.ISSUER_SOFT_DECLINE, effect=Effect.NONE)
    return explored((plain, denied), lambda before: steps_by_event(before, own=True))


@cache
def steps_of_the_world(errors: ErrorsUnderKey) -> list[Step]:
    """As it happens: attempts end by their answers, as often and as late as may be; everything else by events."""

    def steps_of(before: Operation) -> Iterator[Step]:
        yield from steps_by_event(before, own=False)
        yield from steps_by_answer(before, errors)

    return explored((operation(),), steps_of)
