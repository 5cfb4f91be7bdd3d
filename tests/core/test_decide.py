"""The decision in every context that its booleans and enums allow: what is sent, asked, ended or shown to a person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from paywitness.core import decide as room
from paywitness.core.decide import (
    ATTEMPT_TIME_MIN_S,
    DEFAULT_RULE,
    END_DECISIONS,
    RULES,
    Action,
    Decision,
    DecisionContext,
    decide,
    may_resend,
)
from paywitness.core.operation import State
from paywitness.core.provider_contract import ErrorsUnderKey, OperationKind
from paywitness.core.result import DENIALS, PROVIDER_SAID_NO, Effect, ResultClass
from tests.core.samples import contract

WINDOW_S = 100.0
SENDS = {Action.RETRY_SAME_OPERATION, Action.SCHEDULE_RETRY}
BOTH = (False, True)

PLAIN = DecisionContext(
    kind=OperationKind.SALE,
    state=State.UNKNOWN,
    contract=contract(ErrorsUnderKey.REPLAYED, window_s=WINDOW_S),
    result_class=ResultClass.NETWORK_READ_TIMEOUT,
    effect=Effect.POSSIBLE,
    tries=1,
    tries_max=3,
    first_send_age_s=1.0,
    delay_s=0.5,
    time_left_s=10.0,
    background=False,
    resend_for_s=60.0,
)
WAITING = replace(PLAIN, state=State.BACKOFF, result_class=ResultClass.RATE_LIMITED, effect=Effect.NONE)

# What a re-send must not be done without, each taken away by itself.
HINDRANCES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "tries used up": {"tries": 3},
    "older than the window allows": {"first_send_age_s": 80.0},
    "older when the wait is over": {"first_send_age_s": 50.0, "delay_s": 30.0, "time_left_s": 60.0},
    "beyond the deadline": {"time_left_s": 0.7},
    "another upstream": {"same_upstream": False},
    "bytes gone": {"request_available": False},
    "caller left": {"caller_waiting": False},
    "asked in vain": {"inquired": True},
    "held back by our limits": {"refused_by_limits": True},
    "budget exhausted": {"budget_allows": False},
}
HARMLESS = {"nothing", "caller left", "asked in vain"}
# What our limits say of another try: nothing, that this one was kept from the wire, that the retries are used up, both.
LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {"refused_by_limits": True},
    {"budget_allows": False},
    {"refused_by_limits": True, "budget_allows": False},
)
READINGS_IN_DOUBT = (
    ResultClass.NETWORK_READ_TIMEOUT,
    ResultClass.ISSUER_SOFT_DECLINE,
    ResultClass.REQUIRES_ACTION,
    ResultClass.IDEMPOTENCY_CONFLICT,
)


def contexts_in_doubt() -> Iterator[DecisionContext]:
    facts = product(ErrorsUnderKey, (None, WINDOW_S), BOTH, BOTH)
    contracts = [
        contract(errors, window_s=window, supports_inquiry=asked, webhook_expected=told)
        for errors, window, asked, told in facts
    ]
    # That a cancel is wanted comes before everything else, so that it need not meet every hindrance.
    wishes = [(True, {}), *((False, hindrance) for hindrance in HINDRANCES.values())]
    rest = product(READINGS_IN_DOUBT, BOTH, BOTH, BOTH, wishes)
    for known, (reading, seen, background, cancelled, (wanted, hindrance)) in product(contracts, list(rest)):
        yield replace(
            PLAIN,
            contract=known,
            result_class=reading,
            response_seen_in_doubt=seen,
            background=background,
            cancel_sent=cancelled,
            cancel_wanted=wanted,
            fallback_to="acme_eu",
            guarded=True,
            **hindrance,
        )


def contexts_shown_absent() -> Iterator[DecisionContext]:
    """In doubt, and inquiries have shown that it was never executed."""
    readings = (ResultClass.NETWORK_READ_TIMEOUT, ResultClass.ISSUER_SOFT_DECLINE)
    choices = product(readings, (0.1, 10.0), BOTH, BOTH, BOTH, (None, "acme_eu"), BOTH, BOTH)
    for reading, left_s, background, caller, cancelled, elsewhere, guarded, dedupes in choices:
        known = contract(ErrorsUnderKey.REPLAYED, window_s=WINDOW_S if dedupes else None, supports_inquiry=True)
        yield replace(
            PLAIN,
            contract=known,
            absent=True,
            result_class=reading,
            time_left_s=left_s,
            background=background,
            caller_waiting=caller,
            cancel_sent=cancelled,
            fallback_to=elsewhere,
            guarded=guarded,
        )


def contexts_without_doubt() -> Iterator[DecisionContext]:
    """Waiting with no effect possible."""
    asked = replace(WAITING.contract, supports_inquiry=True, webhook_expected=True)
    choices = product(ResultClass, (1, 3), (0.7, 10.0), BOTH, BOTH, (None, "acme_eu"), BOTH, BOTH, LIMITS)
    for reading, tries, left_s, background, caller, elsewhere, guarded, enough, limits in choices:
        yield replace(
            WAITING,
            contract=asked,
            result_class=reading,
            tries=tries,
            time_left_s=left_s,
            background=background,
            caller_waiting=caller,
            fallback_to=elsewhere,
            guarded=guarded,
            enough_tries_here=enough,
            **limits,
        )


def contexts_that_stand() -> Iterator[DecisionContext]:
    states = sorted(set(State) - {State.UNKNOWN, State.BACKOFF})
    for state, errors, asked, told, background, wanted, tries, limits in product(
        states, ErrorsUnderKey, BOTH, BOTH, BOTH, BOTH, (1, 3), LIMITS
    ):
        known = contract(errors, supports_inquiry=asked, webhook_expected=told)
        yield replace(
            PLAIN,
            state=state,
            contract=known,
            background=background,
            cancel_wanted=wanted,
            tries=tries,
            fallback_to="acme_eu",
            guarded=True,
            **limits,
        )


@cache
def decided_in_doubt() -> list[tuple[DecisionContext, Decision]]:
    return [(context, decide(context)) for context in contexts_in_doubt()]


@cache
def decided_without_doubt() -> list[tuple[DecisionContext, Decision]]:
    return [(context, decide(context)) for context in contexts_without_doubt()]


@cache
def decided_standing() -> list[tuple[DecisionContext, Decision]]:
    return [(context, decide(context)) for context in contexts_that_stand()]


# --- the list of rules


def test_rule_names_are_unique() -> None:
    names = [rule.name for rule in (*RULES, DEFAULT_RULE)]
    assert len(names) == len(set(names))


def test_every_rule_is_reached_by_some_context() -> None:
    shown_absent = [(context, decide(context)) for context in contexts_shown_absent()]
    decided = (*decided_in_doubt(), *decided_without_doubt(), *decided_standing(), *shown_absent)
    met = {decision.because for _, decision in decided}
    assert met == {rule.name for rule in RULES}


def test_what_no_rule_foresees_goes_to_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "RULES", ())
    decision = decide(PLAIN)
    assert (decision.action, decision.because, decision.delay_s) == (Action.SEND_TO_REVIEW, "unforeseen", 0.0)


@pytest.mark.parametrize("state", State)
def test_every_state_is_foreseen(state: State) -> None:
    assert decide(replace(PLAIN, state=state)).because != DEFAULT_RULE.name


@pytest.mark.parametrize(
    ("changes", "because", "action"),
    [
        ({"state": State.SUCCEEDED}, "succeeded", Action.STOP),
        ({"state": State.FAILED}, "provider_said_no", Action.MARK_TERMINAL_FAILURE),
        ({"state": State.REQUIRES_ACTION}, "customer_must_act", Action.ASK_CUSTOMER_ACTION),
        ({"state": State.PENDING}, "accepted_nobody_to_ask", Action.SEND_TO_REVIEW),
        ({"state": State.REQUIRES_REVIEW}, "only_a_person_can_go_on", Action.STOP),
        ({"state": State.SENDING}, "attempt_still_under_way", Action.STOP),
        ({"state": State.PREPARED}, "attempt_still_under_way", Action.STOP),
        ({}, "in_doubt_same_key_is_safe", Action.RETRY_SAME_OPERATION),
        ({"cancel_wanted": True}, "in_doubt_cancel_wanted", Action.CANCEL),
        ({"background": True}, "in_doubt_same_key_later", Action.SCHEDULE_RETRY),
        ({"response_seen_in_doubt": True}, "in_doubt_nobody_to_ask", Action.SEND_TO_REVIEW),
    ],
)
def test_a_plain_context_meets_its_rule(changes: dict[str, Any], because: str, action: Action) -> None:
    decision = decide(replace(PLAIN, **changes))
    assert (decision.because, decision.action) == (because, action)


# --- in doubt


def test_in_doubt_nothing_is_sent_that_the_contract_does_not_make_safe() -> None:
    sent = 0
    for context, decision in decided_in_doubt():
        if decision.action not in SENDS:
            continue
        sent += 1
        known = context.contract
        assert known.dedupes
        assert context.first_send_age_s + context.delay_s < 0.8 * WINDOW_S
        assert known.errors_under_key in {ErrorsUnderKey.REPLAYED, ErrorsUnderKey.REEXECUTED}
        assert known.errors_under_key is ErrorsUnderKey.REEXECUTED or not context.response_seen_in_doubt
        assert not context.cancel_sent
        assert context.same_upstream
        assert context.request_available
    assert sent


def test_in_doubt_nothing_is_ever_sent_where_errors_are_not_stored_or_nobody_knows() -> None:
    for context, decision in decided_in_doubt():
        if context.contract.errors_under_key in {ErrorsUnderKey.NOT_STORED, ErrorsUnderKey.UNKNOWN}:
            assert decision.action not in SENDS


def test_in_doubt_nothing_is_charged_again_after_a_decline() -> None:
    for context, decision in decided_in_doubt():
        if context.result_class in DENIALS | {ResultClass.REQUIRES_ACTION}:
            assert decision.action not in SENDS


def test_in_doubt_nothing_is_ended_and_nothing_is_paid_elsewhere() -> None:
    for _, decision in decided_in_doubt():
        assert decision.action not in {Action.MARK_TERMINAL_FAILURE, Action.FALLBACK_NEW_ATTEMPT, Action.STOP}
        assert decision.effect_may_exist


def test_in_doubt_what_can_be_asked_is_asked_before_anything_waits() -> None:
    for context, decision in decided_in_doubt():
        if decision.action in {Action.WAIT_FOR_WEBHOOK, Action.SCHEDULE_RETRY, Action.SEND_TO_REVIEW}:
            assert not context.contract.supports_inquiry or (
                context.inquired and decision.action is Action.SCHEDULE_RETRY
            )
        if decision.action is Action.SEND_TO_REVIEW:
            assert not context.contract.webhook_expected


def test_in_the_background_it_is_asked_first_and_sent_only_while_the_order_is_wanted() -> None:
    for context, decision in decided_in_doubt():
        if context.background:
            assert decision.action is not Action.RETRY_SAME_OPERATION
            if decision.action is Action.SCHEDULE_RETRY:
                assert not context.contract.supports_inquiry or context.inquired
                assert context.first_send_age_s + context.delay_s < context.resend_for_s


def test_in_doubt_a_try_at_once_respects_the_deadline_and_the_number_of_tries() -> None:
    for context, decision in decided_in_doubt():
        if decision.action is Action.RETRY_SAME_OPERATION:
            assert context.tries < context.tries_max
            assert context.delay_s + ATTEMPT_TIME_MIN_S <= context.time_left_s


def test_in_doubt_what_our_limits_refuse_is_not_tried_at_once_but_asked_or_sent_later() -> None:
    met = set()
    for context, decision in decided_in_doubt():
        if context.refused_by_limits or not context.budget_allows:
            met.add(decision.action)
            assert decision.action is not Action.RETRY_SAME_OPERATION
    assert {Action.STATUS_INQUIRY, Action.SCHEDULE_RETRY, Action.WAIT_FOR_WEBHOOK, Action.SEND_TO_REVIEW} <= met


@pytest.mark.parametrize("limits", LIMITS[1:])
def test_in_doubt_our_limits_change_nothing_but_the_try_at_once(limits: dict[str, Any]) -> None:
    """What the provider knows of it does not depend on what we may send: it is asked about as with no tries left."""
    for context, decision in decided_in_doubt():
        if context.tries == context.tries_max:
            limited = decide(replace(context, tries=1, **limits))
            assert (limited.action, limited.because) == (decision.action, decision.because)


def test_a_cancel_is_sent_once_and_only_where_it_is_wanted() -> None:
    for context, decision in decided_in_doubt():
        assert (decision.action is Action.CANCEL) == (context.cancel_wanted and not context.cancel_sent)


@pytest.mark.parametrize("hindrance", [name for name in HINDRANCES if name not in HARMLESS])
def test_each_condition_of_a_re_send_is_needed(hindrance: str) -> None:
    assert decide(PLAIN).action is Action.RETRY_SAME_OPERATION
    assert decide(replace(PLAIN, **HINDRANCES[hindrance])).action is not Action.RETRY_SAME_OPERATION


def test_a_wait_never_carries_a_re_send_past_the_window() -> None:
    short = replace(PLAIN, contract=contract(window_s=60.0), first_send_age_s=40.0, resend_for_s=120.0, background=True)
    assert decide(replace(short, delay_s=7.0)).action is Action.SCHEDULE_RETRY
    assert decide(replace(short, delay_s=8.0)).action is Action.SEND_TO_REVIEW


@pytest.mark.parametrize("age_s", [79.4, 79.5, 99.0, 101.0])
def test_a_re_send_keeps_a_fifth_of_the_window_away_from_its_end(age_s: float) -> None:
    assert may_resend(replace(PLAIN, first_send_age_s=age_s)) == (age_s + PLAIN.delay_s < 80.0)


def test_an_unknown_window_is_no_window() -> None:
    assert not may_resend(replace(PLAIN, contract=contract(ErrorsUnderKey.REEXECUTED, window_s=None)))
    assert not may_resend(replace(PLAIN, contract=contract(ErrorsUnderKey.REEXECUTED, send_as=None)))


# --- without effect


def test_without_doubt_nothing_is_asked_reviewed_or_cancelled() -> None:
    asks = {Action.STATUS_INQUIRY, Action.WAIT_FOR_WEBHOOK, Action.SEND_TO_REVIEW, Action.CANCEL, Action.SCHEDULE_RETRY}
    for _, decision in decided_without_doubt():
        assert decision.action not in asks
        assert not decision.effect_may_exist


def test_without_doubt_nothing_is_sent_in_the_background_or_for_a_caller_that_left() -> None:
    for context, decision in decided_without_doubt():
        if context.background or not context.caller_waiting:
            assert decision.action is Action.MARK_TERMINAL_FAILURE


def test_without_doubt_a_try_respects_the_deadline_and_the_number_of_tries() -> None:
    for context, decision in decided_without_doubt():
        if decision.action is Action.RETRY_SAME_OPERATION:
            assert context.tries < context.tries_max
            assert context.delay_s + ATTEMPT_TIME_MIN_S <= context.time_left_s


def test_without_doubt_a_try_is_one_that_our_limits_allow() -> None:
    for context, decision in decided_without_doubt():
        if decision.action is Action.RETRY_SAME_OPERATION:
            assert context.budget_allows
            assert not context.refused_by_limits


def test_without_doubt_our_limits_leave_another_route_or_an_end() -> None:
    met = set()
    for context, decision in decided_without_doubt():
        if context.refused_by_limits or not context.budget_allows:
            met.add(decision.because)
            assert decision.action in {Action.FALLBACK_NEW_ATTEMPT, Action.MARK_TERMINAL_FAILURE}
    assert {"no_effect_held_back", "no_effect_budget_exhausted", "no_effect_pay_elsewhere"} <= met


def test_a_budget_that_is_used_up_is_no_reason_against_another_route() -> None:
    elsewhere = replace(WAITING, fallback_to="acme_eu", guarded=True)
    for limits in LIMITS[1:]:
        assert decide(replace(elsewhere, **limits)).because == "no_effect_pay_elsewhere"
        assert decide(replace(elsewhere, guarded=False, **limits)).action is Action.MARK_TERMINAL_FAILURE


def test_a_decline_is_never_tried_again_nor_paid_elsewhere() -> None:
    for context, decision in decided_without_doubt():
        if context.result_class in DENIALS | {ResultClass.REQUIRES_ACTION}:
            assert decision.action is Action.MARK_TERMINAL_FAILURE


def test_another_route_pays_only_under_the_guard_of_an_intent() -> None:
    seen = 0
    for context, decision in decided_without_doubt():
        if decision.action is Action.FALLBACK_NEW_ATTEMPT:
            seen += 1
            assert context.guarded
            assert context.fallback_to
    assert seen


def test_the_same_route_is_tried_before_another() -> None:
    elsewhere = replace(WAITING, fallback_to="acme_eu", guarded=True)
    assert decide(elsewhere).because == "no_effect_try_again"
    assert decide(replace(elsewhere, tries=3)).because == "no_effect_pay_elsewhere"
    assert decide(replace(elsewhere, enough_tries_here=True)).because == "no_effect_enough_tries_here"


def test_in_the_background_a_miss_allows_the_same_key_while_the_order_is_wanted() -> None:
    asked = replace(PLAIN, contract=contract(window_s=WINDOW_S, supports_inquiry=True), background=True)
    assert decide(asked).because == "in_doubt_ask"
    assert decide(replace(asked, inquired=True)).because == "in_doubt_same_key_later"
    assert decide(replace(asked, inquired=True, first_send_age_s=61.0)).because == "in_doubt_ask_again"


def test_why_nothing_more_is_tried_is_told_apart() -> None:
    assert decide(replace(WAITING, tries=3)).because == "no_effect_tries_used_up"
    assert decide(replace(WAITING, time_left_s=0.7)).because == "no_effect_wait_beyond_deadline"
    assert decide(replace(WAITING, caller_waiting=False)).because == "no_effect_caller_left"
    assert decide(replace(WAITING, refused_by_limits=True)).because == "no_effect_held_back"
    assert decide(replace(WAITING, refused_by_limits=True, tries=3)).because == "no_effect_held_back"
    assert decide(replace(WAITING, budget_allows=False)).because == "no_effect_budget_exhausted"
    assert decide(replace(WAITING, budget_allows=False, tries=3)).because == "no_effect_tries_used_up"
    assert decide(replace(WAITING, budget_allows=False, caller_waiting=False)).because == "no_effect_caller_left"
    assert decide(replace(WAITING, result_class=ResultClass.VALIDATION_ERROR)).because == "trying_again_cannot_help"


# --- what has ended, or stands


def test_what_has_ended_or_stands_is_never_sent_again() -> None:
    for _, decision in decided_standing():
        assert decision.action not in SENDS | {Action.FALLBACK_NEW_ATTEMPT}


def test_an_end_is_decided_by_its_state_alone() -> None:
    assert set(END_DECISIONS) == {state for state in State if state.ended}
    for context, decision in decided_standing():
        assert END_DECISIONS.get(context.state, decision) == decision


def test_only_what_is_in_doubt_is_cancelled() -> None:
    for context, decision in decided_standing():
        wanted = context.cancel_wanted and context.state is State.REQUIRES_REVIEW
        assert (decision.action is Action.CANCEL) == wanted


def test_only_a_wait_has_a_delay() -> None:
    for context, decision in (*decided_in_doubt(), *decided_without_doubt(), *decided_standing()):
        assert decision.delay_s == (context.delay_s if decision.action in SENDS else 0.0)


def test_pending_is_asked_about_then_expected_then_shown_to_a_person() -> None:
    def of(*, told: bool, asked: bool) -> Action:
        known = contract(webhook_expected=told, supports_inquiry=asked)
        return decide(replace(PLAIN, state=State.PENDING, contract=known)).action

    assert of(told=True, asked=True) is Action.STATUS_INQUIRY
    assert of(told=False, asked=True) is Action.STATUS_INQUIRY
    assert of(told=True, asked=False) is Action.WAIT_FOR_WEBHOOK
    assert of(told=False, asked=False) is Action.SEND_TO_REVIEW


def test_only_for_a_caller_that_waits_is_what_is_shown_absent_paid_elsewhere() -> None:
    taken = [context for context in contexts_shown_absent() if decide(context).because == "absent_pay_elsewhere"]
    assert taken
    for context in taken:
        assert context.caller_waiting
        assert not context.background
        assert context.time_left_s > 0.25
        assert context.guarded
        assert context.fallback_to == "acme_eu"
        assert not context.cancel_sent
        assert context.result_class not in PROVIDER_SAID_NO
    in_doubt = [replace(context, absent=False) for context in taken]
    assert not any(decide(context).action is Action.FALLBACK_NEW_ATTEMPT for context in in_doubt)


def test_a_refusal_is_paid_elsewhere_only_for_a_caller_that_waits() -> None:
    """That its row says so is what `fallback_to` holds for a refusal."""
    rejected = replace(WAITING, result_class=ResultClass.VALIDATION_ERROR, fallback_to="acme_eu", guarded=True)
    assert decide(rejected).because == "rejected_pay_elsewhere"
    for hindrance in ({"background": True}, {"caller_waiting": False}, {"guarded": False}, {"fallback_to": None}):
        assert decide(replace(rejected, **hindrance)).because == "trying_again_cannot_help"
    declined = replace(rejected, result_class=ResultClass.ISSUER_HARD_DECLINE)
    assert decide(declined).because == "trying_again_cannot_help"
