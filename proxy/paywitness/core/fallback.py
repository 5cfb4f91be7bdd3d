"""Fallback: after which ends another route may be taken, and what became of each route that might have been. Pure.

A cause is an end that provably had no effect. Doubt is none. `ABSENT` ends a doubt by inquiries, and `REJECTED` is a
refusal of the provider that a row of the policy marks with `fallback: true`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paywitness.core.record import record
from paywitness.core.result import Effect, ResultClass

FALLBACKS_MAX = 4  # how far a key is followed from fallback to fallback


class FallbackCause(StrEnum):
    NOT_SENT = "not_sent"
    RATE_LIMITED = "rate_limited"
    CIRCUIT_OPEN = "circuit_open"
    ABSENT = "absent"  # inquiries have shown that the provider never executed it
    REJECTED = "rejected"  # the provider turned it away by its own response, and the row says `fallback: true`


_CAUSES = {
    ResultClass.NETWORK_CONNECT_FAILURE: FallbackCause.NOT_SENT,
    ResultClass.RATE_LIMITED: FallbackCause.RATE_LIMITED,
}

# What a row with `fallback: true` may read: the provider did not take the request as it came. A decline is no such
# thing: another route would be a second try of the same card.
REJECTIONS = frozenset({ResultClass.VALIDATION_ERROR, ResultClass.AUTHENTICATION_ERROR})


@dataclass(frozen=True, slots=True)
class Fallback:
    """Another route that speaks the same API, and for which ends without effect it is taken."""

    to: str  # a provider of the book
    when: frozenset[FallbackCause]
    after: int | None = None  # so many tries without effect in a row; None: when no try is left


def cause_of(
    result_class: ResultClass, effect: Effect, *, circuit_refused: bool, absent: bool, falls_back: bool
) -> FallbackCause | None:
    """For which cause an operation may be made elsewhere; None: for none. `absent`: inquiries have shown it absent;
    `falls_back`: the row that read the refusal says so."""
    if absent:
        return FallbackCause.ABSENT
    if circuit_refused:
        return FallbackCause.CIRCUIT_OPEN
    if falls_back and effect is Effect.NONE and result_class in REJECTIONS:
        return FallbackCause.REJECTED
    return _CAUSES.get(result_class)


class RouteVerdict(StrEnum):
    """What became of one route that the policy lists."""

    TAKEN = "taken"
    EARLIER_TAKEN = "earlier_taken"  # one that the policy lists before it was taken
    NOT_CONSIDERED = "not_considered"  # one before it could not be started, and it ended there
    OTHER_CAUSE = "other_cause"  # the policy does not list it for this cause
    NO_SUCH_PROVIDER = "no_such_provider"
    ONLY_OBSERVED = "only_observed"
    ALREADY_TRIED = "already_tried"
    TOO_MANY_ROUTES = "too_many_routes"
    NOT_SERVED = "not_served"  # it has no operation for this call
    OTHER_API = "other_api"
    NO_ACCOUNT = "no_account"  # the merchant has none there
    CREDENTIALS_MISSING = "credentials_missing"
    CIRCUIT_OPEN = "circuit_open"
    NOT_HEALTHY = "not_healthy"  # it was down, and gets only a part of its calls
    THROTTLED = "throttled"  # it has asked to wait
    NO_ROOM = "no_room"  # as many calls are under way there as it can take
    KEY_IN_USE = "key_in_use"  # its key is known there already
    OVERTAKEN = "overtaken"  # the first operation has changed meanwhile


@record
class RouteCandidate:
    """A route that the policy lists, and why it was taken or not."""

    to: str
    verdict: RouteVerdict
    detail: str = ""  # words of our code


@record
class FallbackChoice:
    """What was considered when an operation without effect could be made elsewhere."""

    cause: FallbackCause
    candidates: tuple[RouteCandidate, ...]
    revision: str  # of the policy that lists them
    attempts: int  # of the operation that ended


def label_of(cause: FallbackCause, result_class: ResultClass | None) -> str:
    """The cause as metrics and logs call it: what the attempt was read as, if that says more."""
    if cause in {FallbackCause.CIRCUIT_OPEN, FallbackCause.ABSENT}:
        return cause
    return result_class or ResultClass.NETWORK_CONNECT_FAILURE
