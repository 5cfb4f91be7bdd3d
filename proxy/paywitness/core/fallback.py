"""Fallback: after which ends another route may be taken, and the verdict on each route that was considered. Pure.

A cause is an end that provably had no effect, so an unknown outcome is none. `ABSENT` is a doubt that inquiries have
ended. `REJECTED` is a refusal by the provider that a row of the policy marks with `fallback: true`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paywitness.core.record import record
from paywitness.core.result import Effect, ResultClass

FALLBACKS_MAX = 4  # how many fallbacks a key is followed through


class FallbackCause(StrEnum):
    NOT_SENT = "not_sent"
    RATE_LIMITED = "rate_limited"
    CIRCUIT_OPEN = "circuit_open"
    ABSENT = "absent"  # inquiries have shown that the provider never executed it
    REJECTED = "rejected"  # the provider refused it in its response, and the row says `fallback: true`


_CAUSES = {
    ResultClass.NETWORK_CONNECT_FAILURE: FallbackCause.NOT_SENT,
    ResultClass.RATE_LIMITED: FallbackCause.RATE_LIMITED,
}

# The result classes that a row with `fallback: true` may have: the provider did not accept the request as it was. A
# decline is not among them, because another route would try the same card a second time.
REJECTIONS = frozenset({ResultClass.VALIDATION_ERROR, ResultClass.AUTHENTICATION_ERROR})


@dataclass(frozen=True, slots=True)
class Fallback:
    """Another route that speaks the same API, and the causes for which it is taken."""

    to: str  # a provider of the book
    when: frozenset[FallbackCause]
    after: int | None = None  # after this many tries without effect in a row; None: when no try is left


def cause_of(
    result_class: ResultClass, effect: Effect, *, circuit_refused: bool, absent: bool, falls_back: bool
) -> FallbackCause | None:
    """The cause for which an operation may be made elsewhere; None if there is none. `absent`: inquiries have shown
    that it was never executed. `falls_back`: the row that matched the refusal says `fallback: true`."""
    if absent:
        return FallbackCause.ABSENT
    if circuit_refused:
        return FallbackCause.CIRCUIT_OPEN
    if falls_back and effect is Effect.NONE and result_class in REJECTIONS:
        return FallbackCause.REJECTED
    return _CAUSES.get(result_class)


class RouteVerdict(StrEnum):
    """The verdict on one route that the policy lists."""

    TAKEN = "taken"
    EARLIER_TAKEN = "earlier_taken"  # a route that the policy lists before it was taken
    NOT_CONSIDERED = "not_considered"  # a route before it could not be started, so the search ended there
    OTHER_CAUSE = "other_cause"  # the policy does not list it for this cause
    NO_SUCH_PROVIDER = "no_such_provider"
    ONLY_OBSERVED = "only_observed"
    ALREADY_TRIED = "already_tried"
    TOO_MANY_ROUTES = "too_many_routes"
    NOT_SERVED = "not_served"  # it has no operation for this call
    OTHER_API = "other_api"
    NO_ACCOUNT = "no_account"  # the merchant has no account there
    CREDENTIALS_MISSING = "credentials_missing"
    CIRCUIT_OPEN = "circuit_open"
    NOT_HEALTHY = "not_healthy"  # it was down, and gets only a part of its calls
    THROTTLED = "throttled"  # it has asked callers to wait
    NO_ROOM = "no_room"  # it has as many calls under way as it can take
    KEY_IN_USE = "key_in_use"  # the operation's key is known there already
    OVERTAKEN = "overtaken"  # the first operation has changed meanwhile


@record
class RouteCandidate:
    """A route that the policy lists, and why it was taken or not."""

    to: str
    verdict: RouteVerdict
    detail: str = ""  # a text from our code


@record
class FallbackChoice:
    """The routes that were considered when an operation without effect could be made elsewhere."""

    cause: FallbackCause
    candidates: tuple[RouteCandidate, ...]
    revision: str  # of the policy that lists them
    attempts: int  # of the operation that ended


def label_of(cause: FallbackCause, result_class: ResultClass | None) -> str:
    """The cause as metrics and logs name it: the attempt's result class, if that says more."""
    if cause in {FallbackCause.CIRCUIT_OPEN, FallbackCause.ABSENT}:
        return cause
    return result_class or ResultClass.NETWORK_CONNECT_FAILURE
