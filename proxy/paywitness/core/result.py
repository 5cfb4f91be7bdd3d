"""Readings: what an answer, an inquiry or an event says became of the money, and whether money may have moved.

The sixteen failure classes say why an attempt did not succeed. Eight further readings exist beside them: `succeeded`,
and what only a provider's object can show: `failed`, `cancelled`, `reversed`, `returned`, `disputed`, `dispute_won`,
`absent`. Every reading has a default effect; a policy row may set another. Whether a key is released, whether 503 may
be said, whether FAILED may be reached: all of them ask the effect, never the class.
"""

from __future__ import annotations

from enum import StrEnum

from paywitness.core.money import Money
from paywitness.core.record import record


class Effect(StrEnum):
    """Whether money may have moved by an attempt."""

    NONE = "none"
    POSSIBLE = "possible"
    DONE = "done"


class ResultClass(StrEnum):
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
    RETURNED = "returned"
    DISPUTED = "disputed"
    DISPUTE_WON = "dispute_won"
    ABSENT = "absent"


# What can only follow a success: an object shows it later. As the response to an attempt of ours it proves nothing.
SHOWN_AFTER_SUCCESS = frozenset(
    {ResultClass.REVERSED, ResultClass.RETURNED, ResultClass.DISPUTED, ResultClass.DISPUTE_WON},
)

NOT_FAILURE_CLASSES = SHOWN_AFTER_SUCCESS | {
    ResultClass.SUCCEEDED,
    ResultClass.FAILED,
    ResultClass.CANCELLED,
    ResultClass.ABSENT,
}
FAILURE_CLASSES = frozenset(ResultClass) - NOT_FAILURE_CLASSES

DECLINES = frozenset({ResultClass.ISSUER_SOFT_DECLINE, ResultClass.ISSUER_HARD_DECLINE, ResultClass.RISK_DECLINE})

# The provider executed the request and said no: what it stores under the key, and what ends the operation.
DENIALS = DECLINES | {ResultClass.FAILED, ResultClass.CANCELLED}

# The provider executed the request and no money moved: it said no, or it waits for the customer. Another send under
# the same key would be a new charge after that.
PROVIDER_SAID_NO = DENIALS | {ResultClass.REQUIRES_ACTION}

# The provider turned the request away before executing it. On a re-send it speaks of that re-send alone.
REFUSALS = frozenset(
    {
        ResultClass.VALIDATION_ERROR,
        ResultClass.AUTHENTICATION_ERROR,
        ResultClass.RATE_LIMITED,
        ResultClass.IDEMPOTENCY_IN_FLIGHT,
        ResultClass.IDEMPOTENCY_CONFLICT,
    },
)

# The provider turned the request away for what it is: the same bytes would be turned away again.
FINAL_REFUSALS = frozenset(
    {
        ResultClass.VALIDATION_ERROR,
        ResultClass.AUTHENTICATION_ERROR,
        ResultClass.IDEMPOTENCY_CONFLICT,
        ResultClass.ALREADY_DONE,
    },
)

_NO_EFFECT = (
    PROVIDER_SAID_NO
    | {ResultClass.VALIDATION_ERROR, ResultClass.AUTHENTICATION_ERROR, ResultClass.RATE_LIMITED}
    | {ResultClass.NETWORK_CONNECT_FAILURE, ResultClass.ABSENT}
)
_DONE = SHOWN_AFTER_SUCCESS | {ResultClass.SUCCEEDED, ResultClass.PENDING}

DEFAULT_EFFECTS: dict[ResultClass, Effect] = {
    result_class: Effect.NONE
    if result_class in _NO_EFFECT
    else Effect.DONE
    if result_class in _DONE
    else Effect.POSSIBLE
    for result_class in ResultClass
}


class Advice(StrEnum):
    """What may safely be told to the end customer. Leaks nothing of the provider."""

    DO_NOT_PAY_AGAIN = "do_not_pay_again"
    TRY_AGAIN_LATER = "try_again_later"
    USE_ANOTHER_METHOD = "use_another_method"
    USE_ANOTHER_METHOD_TYPE = "use_another_method_type"  # not another card: another kind of method
    RETRY_SAME_METHOD = "retry_same_method"  # the method is good, and the try had bad luck: now, as a new payment
    CONTACT_ISSUER = "contact_issuer"  # only the customer's bank can say why
    AUTHENTICATE = "authenticate"
    CONTACT_SUPPORT = "contact_support"


# Advice by class. If the class leaves the effect open, this assumes that money may have moved; an end without effect
# uses `advice` instead.
ADVICE: dict[ResultClass, Advice] = {
    ResultClass.VALIDATION_ERROR: Advice.CONTACT_SUPPORT,
    ResultClass.AUTHENTICATION_ERROR: Advice.CONTACT_SUPPORT,
    ResultClass.RATE_LIMITED: Advice.TRY_AGAIN_LATER,
    ResultClass.TEMPORARY_PROVIDER_ERROR: Advice.DO_NOT_PAY_AGAIN,
    ResultClass.NETWORK_CONNECT_FAILURE: Advice.TRY_AGAIN_LATER,
    ResultClass.NETWORK_READ_TIMEOUT: Advice.DO_NOT_PAY_AGAIN,
    ResultClass.PROVIDER_TIMEOUT: Advice.DO_NOT_PAY_AGAIN,
    ResultClass.ISSUER_SOFT_DECLINE: Advice.USE_ANOTHER_METHOD,
    ResultClass.ISSUER_HARD_DECLINE: Advice.USE_ANOTHER_METHOD,
    ResultClass.RISK_DECLINE: Advice.CONTACT_SUPPORT,
    ResultClass.REQUIRES_ACTION: Advice.AUTHENTICATE,
    ResultClass.PENDING: Advice.DO_NOT_PAY_AGAIN,
    ResultClass.IDEMPOTENCY_IN_FLIGHT: Advice.DO_NOT_PAY_AGAIN,
    ResultClass.IDEMPOTENCY_CONFLICT: Advice.DO_NOT_PAY_AGAIN,
    ResultClass.ALREADY_DONE: Advice.DO_NOT_PAY_AGAIN,
    ResultClass.UNKNOWN_OUTCOME: Advice.DO_NOT_PAY_AGAIN,
    ResultClass.SUCCEEDED: Advice.DO_NOT_PAY_AGAIN,
    ResultClass.FAILED: Advice.USE_ANOTHER_METHOD,
    ResultClass.CANCELLED: Advice.TRY_AGAIN_LATER,
    ResultClass.REVERSED: Advice.CONTACT_SUPPORT,
    ResultClass.RETURNED: Advice.CONTACT_SUPPORT,
    ResultClass.DISPUTED: Advice.CONTACT_SUPPORT,
    ResultClass.DISPUTE_WON: Advice.DO_NOT_PAY_AGAIN,
    ResultClass.ABSENT: Advice.TRY_AGAIN_LATER,
}


DOES_NOT_FIT = "does_not_fit_its_request"  # the rule's name for a success that shows another amount or currency


@record
class ShadowMatch:
    """A row that is only watched (`observe: true`): the first that would have read the answer, and as what."""

    rule: str
    result_class: ResultClass


@record
class Classification:
    """What one attempt's evidence means. `rule` names the row or built-in rule that said so."""

    result_class: ResultClass
    effect: Effect
    rule: str
    lost: bool = False  # no whole, readable answer was seen: what the provider said is not known
    reference: str | None = None  # the provider's name for the payment, if the response showed it
    stored: bool = True  # False: the provider does not store this response under the key; a re-send gets no replay
    shadow_match: ShadowMatch | None = None  # a skipped `observe` row; reported, never acted upon, and not stored
    advice: Advice | None = None  # the policy's advice for this code; None: the advice of the class
    shown_money: Money | None = None  # of an answer that does not fit its request: the amount that it shows, if any
    falls_back: bool = False  # the row lets such a refusal be made by another route; not kept

    @classmethod
    def of(
        cls,
        result_class: ResultClass,
        rule: str,
        *,
        effect: Effect | None = None,
        lost: bool = False,
        stored: bool = True,
        advice: Advice | None = None,
        falls_back: bool = False,
    ) -> Classification:
        effect = effect or DEFAULT_EFFECTS[result_class]
        return cls(result_class, effect, rule, lost, None, stored, None, advice, falls_back=falls_back)
