"""Why a rule of the decision did not apply: its conditions in words, and the first of them that does not hold.

`core.decide` has the rules as predicates. Here the same conditions stand one by one, each with the sentence that says
what is so instead. A test holds them against the rules in every context: a rule applies if and only if nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from proxy.core.contract import ErrorsUnderKey
from proxy.core.decide import MINIMAL_TRY_S, RULES, Context
from proxy.core.operation import State
from proxy.core.reading import DENIALS, Reading

Reason = Callable[[Context], str]  # "" where the condition holds

_DECIDED = DENIALS | {Reading.REQUIRES_ACTION}
_TURNED_AWAY = frozenset(
    {Reading.VALIDATION_ERROR, Reading.AUTHENTICATION_ERROR, Reading.IDEMPOTENCY_CONFLICT, Reading.ALREADY_DONE}
)


@dataclass(frozen=True, slots=True)
class Passed:
    """A rule that was passed over, and why."""

    rule: str
    why: str


def passed_over(context: Context) -> Iterator[Passed]:
    """The rules above the one that decides, in their order."""
    for rule in RULES:
        if rule.applies(context):
            return
        yield Passed(rule.name, why_not(rule.name, context))


def why_not(rule: str, context: Context) -> str:
    """The first condition of the rule that does not hold; "" where it applies, or where there is no such rule."""
    return next((said for reason in REASONS.get(rule, ()) if (said := reason(context))), "")


def _about(seconds: float) -> str:
    """A time as a person says it: exact to a tenth of its unit."""
    for unit, length_s in (("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if seconds >= 2 * length_s or (unit == "s" and seconds >= 1):
            return f"{round(seconds / length_s, 1):g}{unit}"
    return f"{round(seconds * 1000)}ms"


# --- conditions


def _state_is(*states: State) -> Reason:
    wanted = " or ".join(states)
    return lambda c: "" if c.state in states else f"the operation is {c.state}, not {wanted}"


def _can_be_asked(c: Context) -> str:
    return "" if c.contract.can_be_asked else "the provider cannot be asked (no 'ask')"


def _not_asked_yet(c: Context) -> str:
    return "the provider has just been asked, and knows nothing of it" if c.asked else ""


def _webhook_expected(c: Context) -> str:
    return "" if c.contract.webhook_expected else "no webhook tells of it"


def _cancel_wanted(c: Context) -> str:
    return "" if c.cancel_wanted else "nobody asked to cancel it"


def _no_cancel_sent(c: Context) -> str:
    return "a cancel was sent" if c.cancel_sent else ""


def _foreground(c: Context) -> str:
    return "the caller has left: in the background it is asked about first" if c.background else ""


def _not_turned_away(c: Context) -> str:
    return f"{c.reading}: the same bytes would be turned away again" if c.reading in _TURNED_AWAY else ""


def _dedupes(c: Context) -> str:
    if c.contract.send_as is None:
        return "the provider takes no key, so sending it again could charge twice"
    return "" if c.contract.dedupes else "how long the provider remembers a key is not known"


def _in_window(c: Context) -> str:
    if c.first_send_age_s + c.delay_s < c.contract.resend_until_s:
        return ""
    age, until = _about(c.first_send_age_s + c.delay_s), _about(c.contract.resend_until_s)
    return f"the first send is {age} old by then, and the key is relied on for {until} (80% of its window)"


def _errors_permit(c: Context) -> str:
    stored = c.contract.errors_under_key
    if stored is ErrorsUnderKey.REPLAYED and c.answer_seen_in_doubt:
        return "a whole answer was seen, and under its key the provider would only say it again (replayed)"
    if stored in {ErrorsUnderKey.NOT_STORED, ErrorsUnderKey.UNKNOWN}:
        return f"errors under the key are {stored}: a re-send could execute it a second time"
    return ""


def _same_upstream(c: Context) -> str:
    return "" if c.same_upstream else "the first send went to another address, which may have another key store"


def _bytes_at_hand(c: Context) -> str:
    return "" if c.bytes_at_hand else "the first attempt's bytes are not at hand"


def _undecided(c: Context) -> str:
    return (
        f"the provider executed it and said {c.reading}: again would be a new charge" if c.reading in _DECIDED else ""
    )


def _tries_left(c: Context) -> str:
    return "" if c.tries < c.tries_max else f"no try is left ({c.tries} of {c.tries_max})"


def _fits_deadline(c: Context) -> str:
    if c.delay_s + MINIMAL_TRY_S <= c.time_left_s:
        return ""
    left = _about(max(0.0, c.time_left_s))
    return f"a wait of {_about(c.delay_s)} and a try do not fit into the {left} that the caller still waits"


def _budget_allows(c: Context) -> str:
    return "" if c.budget_allows else "the budget of retries is used up"


def _not_held_back(c: Context) -> str:
    return "our limits held this try back, and would hold back another" if c.held_back else ""


def _young(c: Context) -> str:
    age_s = c.first_send_age_s + c.delay_s
    if age_s < c.resend_for_s:
        return ""
    allowed, age = _about(c.resend_for_s), _about(age_s)
    return f"a background re-send is made for {allowed} after the first send, and by then that is {age} ago"


def _asking_is_over(c: Context) -> str:
    return "the provider can be asked, which comes first" if c.contract.can_be_asked and not c.asked else ""


def _cannot_help(c: Context) -> str:
    return "" if c.reading in _DECIDED | _TURNED_AWAY else f"trying again may help against {c.reading}"


def _caller_left(c: Context) -> str:
    return "" if c.background or not c.caller_waiting else "the caller still waits"


def _other_route(c: Context) -> str:
    return "" if c.fallback_to is not None else "the policy has no other route for this (fallback)"


def _guarded(c: Context) -> str:
    return "" if c.guarded else "no intent guards it: a second payment could not be kept out"


def _enough_here(c: Context) -> str:
    return "" if c.enough_tries_here else "there is another try to be made here first"


def _held_back(c: Context) -> str:
    return "" if c.held_back else "our limits did not hold it back"


def _no_tries_left(c: Context) -> str:
    return "" if c.tries >= c.tries_max else f"there are tries left ({c.tries} of {c.tries_max})"


def _budget_exhausted(c: Context) -> str:
    return "the budget of retries is not used up" if c.budget_allows else ""


_UNKNOWN, _BACKOFF, _PENDING = _state_is(State.UNKNOWN), _state_is(State.BACKOFF), _state_is(State.PENDING)
_MAY_RESEND = (
    _dedupes,
    _in_window,
    _errors_permit,
    _no_cancel_sent,
    _same_upstream,
    _bytes_at_hand,
    _undecided,
)
_LIMITS = (_budget_allows, _not_held_back)

REASONS: dict[str, tuple[Reason, ...]] = {
    "succeeded": (_state_is(State.SUCCEEDED),),
    "provider_said_no": (_state_is(State.FAILED),),
    "customer_must_act": (_state_is(State.REQUIRES_ACTION),),
    "accepted_ask_later": (_PENDING, _can_be_asked),
    "accepted_expect_webhook": (_PENDING, _webhook_expected),
    "accepted_nobody_to_ask": (_PENDING,),
    "in_doubt_cancel_wanted": (_state_is(State.UNKNOWN, State.REQUIRES_REVIEW), _cancel_wanted, _no_cancel_sent),
    "only_a_person_can_go_on": (_state_is(State.REQUIRES_REVIEW),),
    "attempt_still_under_way": (_state_is(State.PREPARED, State.SENDING),),
    "in_doubt_same_key_is_safe": (
        _UNKNOWN,
        *_MAY_RESEND,
        _not_turned_away,
        _foreground,
        _tries_left,
        _fits_deadline,
        *_LIMITS,
    ),
    "in_doubt_ask": (_UNKNOWN, _can_be_asked, _not_asked_yet),
    "in_doubt_same_key_later": (_UNKNOWN, *_MAY_RESEND, _asking_is_over, _young),
    "in_doubt_ask_again": (_UNKNOWN, _can_be_asked),
    "in_doubt_expect_webhook": (_UNKNOWN, _webhook_expected),
    "in_doubt_nobody_to_ask": (_UNKNOWN,),
    "trying_again_cannot_help": (_BACKOFF, _cannot_help),
    "no_effect_caller_left": (_BACKOFF, _caller_left),
    "no_effect_enough_tries_here": (_BACKOFF, _other_route, _guarded, _enough_here),
    "no_effect_try_again": (_BACKOFF, _tries_left, _fits_deadline, *_LIMITS),
    "no_effect_pay_elsewhere": (_BACKOFF, _other_route, _guarded),
    "no_effect_held_back": (_BACKOFF, _held_back),
    "no_effect_tries_used_up": (_BACKOFF, _no_tries_left),
    "no_effect_budget_exhausted": (_BACKOFF, _budget_exhausted),
    "no_effect_wait_beyond_deadline": (_BACKOFF,),
}
