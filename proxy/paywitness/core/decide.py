"""The decision: what to do next. It follows from everything that matters, never from the error alone.

`RULES` is an ordered list of named rows. The first row that applies wins, and the last one is the safe one: a person. A
rule's name is the log field, the metric label, the reason in the console and the test's id. Nothing here has effects.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from paywitness.core.classify import UNREAD_SUCCESS
from paywitness.core.fallback import REJECTIONS, cause_of
from paywitness.core.operation import GuardKind, Operation, State
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import ErrorsUnderKey, OperationKind, ProviderContract
from paywitness.core.record import record
from paywitness.core.result import FINAL_REFUSALS, PROVIDER_SAID_NO, Classification, Effect, ResultClass

ATTEMPT_TIME_MIN_S = 0.25  # an attempt that starts with less time left only leaves an unknown outcome


class Action(StrEnum):
    RETRY_SAME_OPERATION = "retry_same_operation"
    SCHEDULE_RETRY = "schedule_retry"
    WAIT_FOR_WEBHOOK = "wait_for_webhook"
    STATUS_INQUIRY = "status_inquiry"
    CANCEL = "cancel"
    MARK_TERMINAL_FAILURE = "mark_terminal_failure"
    ASK_CUSTOMER_ACTION = "ask_customer_action"
    FALLBACK_NEW_ATTEMPT = "fallback_new_attempt"
    SEND_TO_REVIEW = "send_to_review"
    STOP = "stop"


@record
class DecisionContext:
    """Everything that a rule may read. Ages and times are seconds; `tries` counts the attempts of this call."""

    kind: OperationKind
    state: State
    contract: ProviderContract
    result_class: ResultClass  # of the last attempt; that of the operation if no attempt has just ended
    effect: Effect
    tries: int
    tries_max: int
    first_send_age_s: float
    delay_s: float  # the backoff, Retry-After included
    time_left_s: float  # until the caller's deadline; zero or less in the background
    background: bool  # the caller's deadline has passed, or the resolver decides
    resend_for_s: float  # how long after the first send a background re-send is allowed
    caller_waiting: bool = True
    # An attempt in doubt got a whole response (a 5xx), which the provider may replay.
    response_seen_in_doubt: bool = False
    cancel_sent: bool = False
    same_upstream: bool = True  # False: the address has changed, and a provider's key store may be regional
    request_available: bool = True  # the exact bytes of the first attempt can be sent again
    guarded: bool = False  # an intent's guard prevents a second payment
    absent: bool = False  # inquiries have shown that it was never executed
    fallback_to: str | None = None  # another route of the same API that the policy allows for this cause
    enough_tries_here: bool = False  # the policy takes that route after this many tries
    cancel_wanted: bool = False  # the policy or an operator wants it cancelled
    inquired: bool = False  # an inquiry has just been made, and found nothing
    # Our limits (circuit, admission) refused this attempt before it was sent, and would refuse another.
    refused_by_limits: bool = False
    budget_allows: bool = True  # the fleet's retry budget has room
    unread_success: bool = False  # the last response is a success that matches no row: a re-send would bring it again


def decision_context(
    operation: Operation,
    policy: Policy,
    last: Classification | None,
    *,
    tries: int,
    first_send_age_s: float,
    delay_s: float,
    time_left_s: float,
    background: bool = False,
    caller_waiting: bool = True,
    circuit_refused: bool = False,
    request_available: bool = True,
    inquired: bool = False,
    refused_by_limits: bool = False,
    budget_allows: bool = True,
) -> DecisionContext:
    """The context of a decision about this operation. `last` is the result of the attempt that just ended."""
    result_class = last.result_class if last is not None else operation.result_class or ResultClass.UNKNOWN_OUTCOME
    effect = last.effect if last is not None else operation.effect or Effect.POSSIBLE
    if operation.state.in_doubt and operation.effect is Effect.NONE and operation.result_class in PROVIDER_SAID_NO:
        # The provider executed one attempt and said no. Whatever happened to another one, a re-send would be a new
        # charge.
        result_class, effect = operation.result_class, operation.effect
    absent = operation.absence_shown and operation.state is State.UNKNOWN
    fallback = None
    if policy.fallbacks:
        falls_back = last is not None and last.falls_back
        fallback = policy.fallback_for(
            cause_of(result_class, effect, circuit_refused=circuit_refused, absent=absent, falls_back=falls_back)
        )
    return DecisionContext(
        kind=policy.kind,
        state=operation.state,
        contract=policy.contract,
        result_class=result_class,
        effect=effect,
        tries=tries,
        tries_max=policy.retry_rule(result_class).attempts,
        first_send_age_s=first_send_age_s,
        delay_s=delay_s,
        time_left_s=time_left_s,
        background=background or time_left_s <= 0,
        resend_for_s=policy.resolve.resend_for_s,
        caller_waiting=caller_waiting,
        response_seen_in_doubt=bool(operation.answered_attempts),
        cancel_sent=operation.cancel_sent,
        same_upstream=operation.upstream == policy.upstream,
        request_available=request_available,
        guarded=operation.guard is not None and operation.guard.kind is GuardKind.INTENT,
        absent=absent,
        fallback_to=fallback.to if fallback is not None else None,
        enough_tries_here=fallback is not None and fallback.after is not None and tries >= fallback.after,
        cancel_wanted=operation.cancel_wanted,
        inquired=inquired,
        refused_by_limits=refused_by_limits,
        budget_allows=budget_allows,
        unread_success=last is not None and last.rule == UNREAD_SUCCESS,
    )


@record
class Decision:
    action: Action
    because: str  # the name of the rule
    delay_s: float
    effect_may_exist: bool


@record
class DecisionRule:
    name: str
    applies: Callable[[DecisionContext], bool]
    action: Action


def decide(context: DecisionContext) -> Decision:
    """The first rule that applies."""
    for rule in RULES:
        if rule.applies(context):
            break
    else:
        rule = DEFAULT_RULE
    waits = rule.action in _WAITS
    may_exist = context.state in _EFFECT_MAY_EXIST
    return Decision(rule.action, rule.name, context.delay_s if waits else 0.0, may_exist)


_WAITS = frozenset({Action.RETRY_SAME_OPERATION, Action.SCHEDULE_RETRY})
_EFFECT_MAY_EXIST = frozenset({State.SENDING, State.UNKNOWN, State.REQUIRES_REVIEW, State.PENDING, State.SUCCEEDED})


def may_resend(context: DecisionContext) -> bool:
    """Whether it is safe now to send the same bytes under the same key again, so that there is one effect whatever has
    happened."""
    contract = context.contract
    return (
        contract.dedupes
        # The age at which the bytes will leave.
        and context.first_send_age_s + context.delay_s < contract.resend_until_s
        and _permitted_by_stored_errors(context)
        and not context.cancel_sent
        and context.same_upstream
        and context.request_available
        # The provider executed a re-send and said no. Another one would be a new charge after a decline.
        and context.result_class not in PROVIDER_SAID_NO
    )


def _permitted_by_stored_errors(context: DecisionContext) -> bool:
    match context.contract.errors_under_key:
        case ErrorsUnderKey.REEXECUTED:
            return True
        case ErrorsUnderKey.REPLAYED:
            # After an error that we saw, a re-send only replays that error. It adds load and shows nothing new.
            return not context.response_seen_in_doubt
        case ErrorsUnderKey.NOT_STORED | ErrorsUnderKey.UNKNOWN:
            return False  # the lost response may have been an error that the provider did not store, after the effect


def _tries_left(context: DecisionContext) -> bool:
    return context.tries < context.tries_max


def _limits_allow(context: DecisionContext) -> bool:
    return context.budget_allows and not context.refused_by_limits


def _fits_deadline(context: DecisionContext) -> bool:
    return context.delay_s + ATTEMPT_TIME_MIN_S <= context.time_left_s


def _in_doubt(context: DecisionContext) -> bool:
    return context.state is State.UNKNOWN


def _resend_now(context: DecisionContext) -> bool:
    wanted = not context.background and context.result_class not in FINAL_REFUSALS and not context.unread_success
    possible = may_resend(context) and _tries_left(context) and _fits_deadline(context)
    return _in_doubt(context) and wanted and possible and _limits_allow(context)


def _resend_later(context: DecisionContext) -> bool:
    """In the background the resolver inquires before it re-sends, and it re-sends only while the order is young enough
    that somebody still wants it."""
    young = context.first_send_age_s + context.delay_s < context.resend_for_s
    return _in_doubt(context) and may_resend(context) and not _may_inquire(context) and young


def _may_inquire(context: DecisionContext) -> bool:
    return context.contract.supports_inquiry and not context.inquired


def _should_cancel(context: DecisionContext) -> bool:
    return context.state.in_doubt and context.cancel_wanted and not context.cancel_sent


def _in_backoff(context: DecisionContext) -> bool:
    return context.state is State.BACKOFF


# A retry cannot help after these: the provider would refuse the same bytes again, or it has decided.
_FINAL_WITHOUT_EFFECT = PROVIDER_SAID_NO | FINAL_REFUSALS


def _can_fall_back(context: DecisionContext) -> bool:
    return _in_backoff(context) and _has_other_route(context)


def _has_other_route(context: DecisionContext) -> bool:
    return context.fallback_to is not None and context.guarded


def _caller_waits(context: DecisionContext) -> bool:
    return context.caller_waiting and not context.background


def _absent_elsewhere(context: DecisionContext) -> bool:
    """An operation that inquiries have shown to be absent is no longer in doubt. It is made elsewhere only for a caller
    that waits: later nobody may want it, or somebody may have paid in another way."""
    wanted = _caller_waits(context) and context.time_left_s >= ATTEMPT_TIME_MIN_S
    settled = context.absent and not context.cancel_sent and context.result_class not in PROVIDER_SAID_NO
    return _in_doubt(context) and settled and wanted and _has_other_route(context)


RULES: tuple[DecisionRule, ...] = (
    # an end, or a state that waits
    DecisionRule("succeeded", lambda c: c.state is State.SUCCEEDED, Action.STOP),
    DecisionRule("provider_said_no", lambda c: c.state is State.FAILED, Action.MARK_TERMINAL_FAILURE),
    DecisionRule("customer_must_act", lambda c: c.state is State.REQUIRES_ACTION, Action.ASK_CUSTOMER_ACTION),
    # Inquiries come first: otherwise nobody would notice that a webhook was lost.
    DecisionRule(
        "accepted_ask_later", lambda c: c.state is State.PENDING and c.contract.supports_inquiry, Action.STATUS_INQUIRY
    ),
    DecisionRule(
        "accepted_expect_webhook",
        lambda c: c.state is State.PENDING and c.contract.webhook_expected,
        Action.WAIT_FOR_WEBHOOK,
    ),
    DecisionRule("accepted_nobody_to_ask", lambda c: c.state is State.PENDING, Action.SEND_TO_REVIEW),
    DecisionRule("in_doubt_cancel_wanted", _should_cancel, Action.CANCEL),
    DecisionRule("only_a_person_can_go_on", lambda c: c.state is State.REQUIRES_REVIEW, Action.STOP),
    DecisionRule("attempt_still_under_way", lambda c: c.state in {State.PREPARED, State.SENDING}, Action.STOP),
    # in doubt
    DecisionRule("absent_pay_elsewhere", _absent_elsewhere, Action.FALLBACK_NEW_ATTEMPT),
    DecisionRule("in_doubt_same_key_is_safe", _resend_now, Action.RETRY_SAME_OPERATION),
    DecisionRule("in_doubt_ask", lambda c: _in_doubt(c) and _may_inquire(c), Action.STATUS_INQUIRY),
    DecisionRule("in_doubt_same_key_later", _resend_later, Action.SCHEDULE_RETRY),
    DecisionRule("in_doubt_ask_again", lambda c: _in_doubt(c) and c.contract.supports_inquiry, Action.STATUS_INQUIRY),
    DecisionRule(
        "in_doubt_expect_webhook",
        lambda c: _in_doubt(c) and c.contract.webhook_expected,
        Action.WAIT_FOR_WEBHOOK,
    ),
    DecisionRule("in_doubt_nobody_to_ask", _in_doubt, Action.SEND_TO_REVIEW),
    # without effect
    DecisionRule(
        "rejected_pay_elsewhere",
        lambda c: _can_fall_back(c) and c.result_class in REJECTIONS and _caller_waits(c),
        Action.FALLBACK_NEW_ATTEMPT,
    ),
    DecisionRule(
        "trying_again_cannot_help",
        lambda c: _in_backoff(c) and c.result_class in _FINAL_WITHOUT_EFFECT,
        Action.MARK_TERMINAL_FAILURE,
    ),
    DecisionRule(
        "no_effect_caller_left",
        lambda c: _in_backoff(c) and (c.background or not c.caller_waiting),
        Action.MARK_TERMINAL_FAILURE,
    ),
    DecisionRule(
        "no_effect_enough_tries_here",
        lambda c: _can_fall_back(c) and c.enough_tries_here,
        Action.FALLBACK_NEW_ATTEMPT,
    ),
    DecisionRule(
        "no_effect_try_again",
        lambda c: _in_backoff(c) and _tries_left(c) and _fits_deadline(c) and _limits_allow(c),
        Action.RETRY_SAME_OPERATION,
    ),
    DecisionRule("no_effect_pay_elsewhere", _can_fall_back, Action.FALLBACK_NEW_ATTEMPT),
    DecisionRule("no_effect_held_back", lambda c: _in_backoff(c) and c.refused_by_limits, Action.MARK_TERMINAL_FAILURE),
    DecisionRule(
        "no_effect_tries_used_up", lambda c: _in_backoff(c) and not _tries_left(c), Action.MARK_TERMINAL_FAILURE
    ),
    DecisionRule(
        "no_effect_budget_exhausted", lambda c: _in_backoff(c) and not c.budget_allows, Action.MARK_TERMINAL_FAILURE
    ),
    DecisionRule("no_effect_wait_beyond_deadline", _in_backoff, Action.MARK_TERMINAL_FAILURE),
)

DEFAULT_RULE = DecisionRule("unforeseen", lambda c: True, Action.SEND_TO_REVIEW)

# The decisions of the first two rules. They follow from the state alone, so a caller that has an end can use them
# without a context.
END_DECISIONS = {
    State.SUCCEEDED: Decision(Action.STOP, "succeeded", 0.0, effect_may_exist=True),
    State.FAILED: Decision(Action.MARK_TERMINAL_FAILURE, "provider_said_no", 0.0, effect_may_exist=False),
}
