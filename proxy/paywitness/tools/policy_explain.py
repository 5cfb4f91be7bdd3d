"""Why a rule of the decision did not apply: its conditions in words, and the first of them that does not hold.

`core.decide` has the rules as predicates. This module lists the same conditions one by one, each with the sentence that
`policy explain` and a failed `policy test` print. A test compares both in every context: a rule applies if and only if
no reason is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paywitness.core.decide import ATTEMPT_TIME_MIN_S, RULES, DecisionContext
from paywitness.core.fallback import REJECTIONS
from paywitness.core.operation import State
from paywitness.core.provider_contract import ErrorsUnderKey
from paywitness.core.result import FINAL_REFUSALS, PROVIDER_SAID_NO
from paywitness.policy.explain import Explanation

Reason = Callable[[DecisionContext], str]  # "" if the condition holds


@dataclass(frozen=True, slots=True)
class SkippedRule:
    """A rule that did not apply, and why."""

    rule: str
    why: str


def skipped_rules(context: DecisionContext) -> Iterator[SkippedRule]:
    """The rules above the one that decides, in their order."""
    for rule in RULES:
        if rule.applies(context):
            return
        yield SkippedRule(rule.name, reason_not_applied(rule.name, context))


def reason_not_applied(rule: str, context: DecisionContext) -> str:
    """The first condition of the rule that does not hold; "" if the rule applies, or if there is no such rule."""
    return next((said for reason in REASONS.get(rule, ()) if (said := reason(context))), "")


def _duration_text(seconds: float) -> str:
    """A time rounded to a tenth of its largest unit."""
    for unit, length_s in (("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if seconds >= 2 * length_s or (unit == "s" and seconds >= 1):
            return f"{round(seconds / length_s, 1):g}{unit}"
    return f"{round(seconds * 1000)}ms"


# --- Conditions


def _state_is(*states: State) -> Reason:
    wanted = " or ".join(states)
    return lambda c: "" if c.state in states else f"the operation is {c.state}, not {wanted}"


def _can_be_inquired(c: DecisionContext) -> str:
    return "" if c.contract.supports_inquiry else "no inquiry is possible (no 'ask')"


def _not_inquired_yet(c: DecisionContext) -> str:
    return "an inquiry has just found nothing" if c.inquired else ""


def _webhook_expected(c: DecisionContext) -> str:
    return "" if c.contract.webhook_expected else "no webhook is expected"


def _cancel_wanted(c: DecisionContext) -> str:
    return "" if c.cancel_wanted else "no operator has requested a cancel"


def _no_cancel_sent(c: DecisionContext) -> str:
    return "a cancel was sent" if c.cancel_sent else ""


def _foreground(c: DecisionContext) -> str:
    return "the caller has left: in the background an inquiry comes first" if c.background else ""


def _not_rejected(c: DecisionContext) -> str:
    return f"{c.result_class}: the same bytes would be refused again" if c.result_class in FINAL_REFUSALS else ""


def _dedupes(c: DecisionContext) -> str:
    if c.contract.send_as is None:
        return "the provider takes no key, so a re-send could charge twice"
    return "" if c.contract.dedupes else "it is unknown how long the provider remembers a key"


def _in_window(c: DecisionContext) -> str:
    if c.first_send_age_s + c.delay_s < c.contract.resend_until_s:
        return ""
    age, until = _duration_text(c.first_send_age_s + c.delay_s), _duration_text(c.contract.resend_until_s)
    return f"the first send is {age} old by then, and a re-send relies on the key for {until} (80% of its window)"


def _errors_permit(c: DecisionContext) -> str:
    stored = c.contract.errors_under_key
    if stored is ErrorsUnderKey.REPLAYED and c.response_seen_in_doubt:
        return "a whole response was seen, and under its key the provider would only repeat it (replayed)"
    if stored in {ErrorsUnderKey.NOT_STORED, ErrorsUnderKey.UNKNOWN}:
        return f"errors under the key are {stored}: a re-send could execute it a second time"
    return ""


def _same_upstream(c: DecisionContext) -> str:
    return "" if c.same_upstream else "the first send went to another address, which may have another key store"


def _request_available(c: DecisionContext) -> str:
    return "" if c.request_available else "the first attempt's bytes are not stored"


def _undecided(c: DecisionContext) -> str:
    return (
        f"the provider executed it with {c.result_class}: a retry would be a new charge"
        if c.result_class in PROVIDER_SAID_NO
        else ""
    )


def _tries_left(c: DecisionContext) -> str:
    return "" if c.tries < c.tries_max else f"no attempt is left ({c.tries} of {c.tries_max})"


def _fits_deadline(c: DecisionContext) -> str:
    if c.delay_s + ATTEMPT_TIME_MIN_S <= c.time_left_s:
        return ""
    left = _duration_text(max(0.0, c.time_left_s))
    return f"a wait of {_duration_text(c.delay_s)} and an attempt do not fit into the caller's last {left}"


def _budget_allows(c: DecisionContext) -> str:
    return "" if c.budget_allows else "the retry budget is used up"


def _not_refused_by_limits(c: DecisionContext) -> str:
    return "our limits refused this attempt, and would refuse another" if c.refused_by_limits else ""


def _within_background_resend(c: DecisionContext) -> str:
    age_s = c.first_send_age_s + c.delay_s
    if age_s < c.resend_for_s:
        return ""
    allowed, age = _duration_text(c.resend_for_s), _duration_text(age_s)
    return f"a background re-send is allowed for {allowed} after the first send, and by then that is {age} ago"


def _inquiry_is_over(c: DecisionContext) -> str:
    return "an inquiry is possible, and comes first" if c.contract.supports_inquiry and not c.inquired else ""


def _cannot_help(c: DecisionContext) -> str:
    return "" if c.result_class in PROVIDER_SAID_NO | FINAL_REFUSALS else f"a retry may help against {c.result_class}"


def _caller_left(c: DecisionContext) -> str:
    return "" if c.background or not c.caller_waiting else "the caller still waits"


def _caller_waits(c: DecisionContext) -> str:
    return "the caller has left" if c.background or not c.caller_waiting else ""


def _shown_absent(c: DecisionContext) -> str:
    return "" if c.absent else "no inquiries have shown that it was never executed"


def _time_for_a_try(c: DecisionContext) -> str:
    return "" if c.time_left_s >= ATTEMPT_TIME_MIN_S else "the caller's time is too short for another attempt"


def _is_rejection(c: DecisionContext) -> str:
    return "" if c.result_class in REJECTIONS else f"{c.result_class} is no refusal of the request"


def _other_route(c: DecisionContext) -> str:
    return "" if c.fallback_to is not None else "the policy has no other route for this (fallback)"


def _guarded(c: DecisionContext) -> str:
    return "" if c.guarded else "no intent guards it, so nothing would prevent a second payment"


def _enough_here(c: DecisionContext) -> str:
    return "" if c.enough_tries_here else "another attempt at this provider comes first"


def _refused_by_limits(c: DecisionContext) -> str:
    return "" if c.refused_by_limits else "our limits did not refuse it"


def _no_tries_left(c: DecisionContext) -> str:
    return "" if c.tries >= c.tries_max else f"there are attempts left ({c.tries} of {c.tries_max})"


def _budget_exhausted(c: DecisionContext) -> str:
    return "the retry budget is not used up" if c.budget_allows else ""


_UNKNOWN, _BACKOFF, _PENDING = _state_is(State.UNKNOWN), _state_is(State.BACKOFF), _state_is(State.PENDING)
_MAY_RESEND = (
    _dedupes,
    _in_window,
    _errors_permit,
    _no_cancel_sent,
    _same_upstream,
    _request_available,
    _undecided,
)
_LIMITS = (_budget_allows, _not_refused_by_limits)

REASONS: dict[str, tuple[Reason, ...]] = {
    "succeeded": (_state_is(State.SUCCEEDED),),
    "provider_said_no": (_state_is(State.FAILED),),
    "customer_must_act": (_state_is(State.REQUIRES_ACTION),),
    "accepted_ask_later": (_PENDING, _can_be_inquired),
    "accepted_expect_webhook": (_PENDING, _webhook_expected),
    "accepted_nobody_to_ask": (_PENDING,),
    "in_doubt_cancel_wanted": (_state_is(State.UNKNOWN, State.REQUIRES_REVIEW), _cancel_wanted, _no_cancel_sent),
    "only_a_person_can_go_on": (_state_is(State.REQUIRES_REVIEW),),
    "attempt_still_under_way": (_state_is(State.PREPARED, State.SENDING),),
    "absent_pay_elsewhere": (
        _UNKNOWN,
        _shown_absent,
        _no_cancel_sent,
        _undecided,
        _caller_waits,
        _time_for_a_try,
        _other_route,
        _guarded,
    ),
    "in_doubt_same_key_is_safe": (
        _UNKNOWN,
        *_MAY_RESEND,
        _not_rejected,
        _foreground,
        _tries_left,
        _fits_deadline,
        *_LIMITS,
    ),
    "in_doubt_ask": (_UNKNOWN, _can_be_inquired, _not_inquired_yet),
    "in_doubt_same_key_later": (_UNKNOWN, *_MAY_RESEND, _inquiry_is_over, _within_background_resend),
    "in_doubt_ask_again": (_UNKNOWN, _can_be_inquired),
    "in_doubt_expect_webhook": (_UNKNOWN, _webhook_expected),
    "in_doubt_nobody_to_ask": (_UNKNOWN,),
    "rejected_pay_elsewhere": (_BACKOFF, _other_route, _guarded, _is_rejection, _caller_waits),
    "trying_again_cannot_help": (_BACKOFF, _cannot_help),
    "no_effect_caller_left": (_BACKOFF, _caller_left),
    "no_effect_enough_tries_here": (_BACKOFF, _other_route, _guarded, _enough_here),
    "no_effect_try_again": (_BACKOFF, _tries_left, _fits_deadline, *_LIMITS),
    "no_effect_pay_elsewhere": (_BACKOFF, _other_route, _guarded),
    "no_effect_held_back": (_BACKOFF, _refused_by_limits),
    "no_effect_tries_used_up": (_BACKOFF, _no_tries_left),
    "no_effect_budget_exhausted": (_BACKOFF, _budget_exhausted),
    "no_effect_wait_beyond_deadline": (_BACKOFF,),
}


# --- Skipped rules


def skipped_rule_lines(explained: Explanation) -> Iterator[str]:
    """Lines for a person: the rules above the one that decided, in their order, each with its reason."""
    skipped = list(skipped_rules(explained.context))
    if not skipped:
        return
    yield "  not by:"
    width = max(len(one.rule) for one in skipped)
    for one in skipped:
        yield f"    {one.rule:<{width}}  {one.why}"
