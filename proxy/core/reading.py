"""Readings: what an answer, an inquiry or an event says became of the money, and whether money may have moved.

The sixteen failure classes say why an attempt did not succeed. Five further readings exist beside them: `succeeded`,
and what only a provider's object can show: `failed`, `cancelled`, `reversed`, `absent`. Every reading has a default
effect; a policy row may set another. Whether a key is released, whether 503 may be said, whether FAILED may be
reached: all of them ask the effect, never the class.
"""

from __future__ import annotations

from enum import StrEnum

from proxy.core.frozen import frozen


class Effect(StrEnum):
    """Whether money may have moved by an attempt."""

    NONE = "none"
    POSSIBLE = "possible"
    DONE = "done"


class Reading(StrEnum):
    VALIDATION_ERROR = "validation_error"
    AUTHENTICATION_ERROR = "authentication_error"
    RATE_LIMITED = "rate_limited"
    TEMPORARY_PROVIDER_ERROR = "temporary_provider_error"
    NETWORK_CONNECT_FAILURE = "network_connect_failure"
    NETWORK_READ_TIMEOUT = "network_read_timeout"
    PROVIDER_TIMEOUT = "provider_timeout"
    ISSUER_SOFT_DECLINE = "issuer_soft_decline"
    ISSUER_HARD_DECLINE = "issuer_hard_decline"
    RISK_DECLINE = "risk_decline"
    REQUIRES_ACTION = "requires_action"
    PENDING = "pending"
    IDEMPOTENCY_IN_FLIGHT = "idempotency_in_flight"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    ALREADY_DONE = "already_done"
    UNKNOWN_OUTCOME = "unknown_outcome"

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REVERSED = "reversed"
    ABSENT = "absent"


NOT_FAILURE_CLASSES = frozenset(
    {Reading.SUCCEEDED, Reading.FAILED, Reading.CANCELLED, Reading.REVERSED, Reading.ABSENT},
)
FAILURE_CLASSES = frozenset(Reading) - NOT_FAILURE_CLASSES

DECLINES = frozenset({Reading.ISSUER_SOFT_DECLINE, Reading.ISSUER_HARD_DECLINE, Reading.RISK_DECLINE})

# The provider executed the request and said no: what it stores under the key, and what ends the operation.
DENIALS = DECLINES | {Reading.FAILED, Reading.CANCELLED}

# The provider turned the request away before executing it. On a re-send it speaks of that re-send alone.
REFUSALS = frozenset(
    {
        Reading.VALIDATION_ERROR,
        Reading.AUTHENTICATION_ERROR,
        Reading.RATE_LIMITED,
        Reading.IDEMPOTENCY_IN_FLIGHT,
        Reading.IDEMPOTENCY_CONFLICT,
    },
)

_NO_EFFECT = (
    DENIALS
    | {Reading.VALIDATION_ERROR, Reading.AUTHENTICATION_ERROR, Reading.RATE_LIMITED}
    | {Reading.NETWORK_CONNECT_FAILURE, Reading.REQUIRES_ACTION, Reading.ABSENT}
)
_DONE = frozenset({Reading.SUCCEEDED, Reading.PENDING, Reading.REVERSED})

DEFAULT_EFFECTS: dict[Reading, Effect] = {
    reading: Effect.NONE if reading in _NO_EFFECT else Effect.DONE if reading in _DONE else Effect.POSSIBLE
    for reading in Reading
}


class Advice(StrEnum):
    """What may safely be told to the end customer. Leaks nothing of the provider."""

    DO_NOT_PAY_AGAIN = "do_not_pay_again"
    TRY_AGAIN_LATER = "try_again_later"
    USE_ANOTHER_METHOD = "use_another_method"
    AUTHENTICATE = "authenticate"
    CONTACT_SUPPORT = "contact_support"


ADVICE: dict[Reading, Advice] = {
    Reading.VALIDATION_ERROR: Advice.CONTACT_SUPPORT,
    Reading.AUTHENTICATION_ERROR: Advice.CONTACT_SUPPORT,
    Reading.RATE_LIMITED: Advice.TRY_AGAIN_LATER,
    Reading.TEMPORARY_PROVIDER_ERROR: Advice.DO_NOT_PAY_AGAIN,
    Reading.NETWORK_CONNECT_FAILURE: Advice.TRY_AGAIN_LATER,
    Reading.NETWORK_READ_TIMEOUT: Advice.DO_NOT_PAY_AGAIN,
    Reading.PROVIDER_TIMEOUT: Advice.DO_NOT_PAY_AGAIN,
    Reading.ISSUER_SOFT_DECLINE: Advice.TRY_AGAIN_LATER,
    Reading.ISSUER_HARD_DECLINE: Advice.USE_ANOTHER_METHOD,
    Reading.RISK_DECLINE: Advice.CONTACT_SUPPORT,
    Reading.REQUIRES_ACTION: Advice.AUTHENTICATE,
    Reading.PENDING: Advice.DO_NOT_PAY_AGAIN,
    Reading.IDEMPOTENCY_IN_FLIGHT: Advice.DO_NOT_PAY_AGAIN,
    Reading.IDEMPOTENCY_CONFLICT: Advice.DO_NOT_PAY_AGAIN,
    Reading.ALREADY_DONE: Advice.DO_NOT_PAY_AGAIN,
    Reading.UNKNOWN_OUTCOME: Advice.DO_NOT_PAY_AGAIN,
    Reading.SUCCEEDED: Advice.DO_NOT_PAY_AGAIN,
    Reading.FAILED: Advice.USE_ANOTHER_METHOD,
    Reading.CANCELLED: Advice.TRY_AGAIN_LATER,
    Reading.REVERSED: Advice.CONTACT_SUPPORT,
    Reading.ABSENT: Advice.TRY_AGAIN_LATER,
}


DOES_NOT_FIT = "does_not_fit_its_request"  # the rule's name for a success that shows another amount or currency


@frozen
class Observed:
    """A row that is only watched (`observe: true`): the first that would have read the answer, and as what."""

    row: str
    reading: Reading


@frozen
class Classification:
    """What one attempt's evidence means. `rule` names the row or built-in rule that said so."""

    reading: Reading
    effect: Effect
    rule: str
    lost: bool = False  # no whole, readable answer was seen: what the provider said is not known
    reference: str | None = None  # the provider's name for the thing, where the answer showed it
    stored: bool = True  # False: the provider does not keep this answer under the key, so a re-send is not its replay
    observed: Observed | None = None  # what was passed over; told, never acted upon, and not kept

    @property
    def executed(self) -> bool:
        """Whether the provider let this credential act: it paid, accepted, declined, or asked the customer to act."""
        return self.effect is Effect.DONE or self.reading in DENIALS or self.reading is Reading.REQUIRES_ACTION

    def naming(self, reference: str | None) -> Classification:
        """The same, of the thing that has this name."""
        return Classification(self.reading, self.effect, self.rule, self.lost, reference, self.stored, self.observed)

    @classmethod
    def of(
        cls, reading: Reading, rule: str, *, effect: Effect | None = None, lost: bool = False, stored: bool = True
    ) -> Classification:
        return cls(reading, effect or DEFAULT_EFFECTS[reading], rule, lost, None, stored)
