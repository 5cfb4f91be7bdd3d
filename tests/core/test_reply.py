"""Replies: whatever an operation is and whatever came back, what the caller is told about the money is true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from paywitness.core.advice import advice_for
from paywitness.core.classify import UNREAD_SUCCESS, ClassifyRules, classify
from paywitness.core.credential_and_hop_headers import end_to_end
from paywitness.core.evidence import Response
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.money import Money
from paywitness.core.operation import Guard, GuardKind, Operation, Outcome, State
from paywitness.core.problems import PROBLEMS, Problem
from paywitness.core.provider_contract import ErrorsUnderKey, OperationKind
from paywitness.core.reply import (
    ErrorShape,
    Reply,
    closed_reply,
    guarded_reply,
    operation_reply,
    operation_summary,
    paid_before_reply,
    pass_through,
    problem_reply,
    refunded_reply,
    reply_for,
    response_matches_state,
    unknown_reply,
)
from paywitness.core.result import (
    DECLINES,
    DENIALS,
    DOES_NOT_FIT,
    REFUSALS,
    Advice,
    Classification,
    Effect,
    ResultClass,
)
from tests.core.reachable_operations import steps_of_the_world
from tests.core.samples import answered, operation, read, response

UNREAD = read(ResultClass.UNKNOWN_OUTCOME, rule=UNREAD_SUCCESS)
PAID = read(ResultClass.SUCCEEDED)
DECLINED = read(ResultClass.ISSUER_SOFT_DECLINE)
ANSWERS = tuple(read(reading, effect) for reading, effect in product(ResultClass, Effect))
KINDS = (  # one of every kind that a reply tells apart
    PAID,
    DECLINED,
    *(read(ResultClass.PENDING, effect) for effect in Effect),
    *(read(ResultClass.REQUIRES_ACTION, effect) for effect in (Effect.NONE, Effect.POSSIBLE)),
    read(ResultClass.RATE_LIMITED),
    read(ResultClass.NETWORK_CONNECT_FAILURE),
    read(ResultClass.TEMPORARY_PROVIDER_ERROR),
    read(ResultClass.SUCCEEDED, Effect.POSSIBLE),
    UNREAD,
)
STATUS_CODES = (200, 202, 302, 400, 402, 409, 429, 500, 502, 503, 504)
SETTLED = {State.SUCCEEDED, State.FAILED, State.PENDING, State.REQUIRES_ACTION}


def header(reply: Reply, name: str) -> str | None:
    found = [value.decode() for key, value in reply.headers if key.decode().lower() == name.lower()]
    assert len(found) <= 1, name
    return found[0] if found else None


def members(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.body)
    return found


def standing(state: State, **changes: Any) -> Operation:
    plain = operation(
        state=state,
        attempts=0 if state is State.PREPARED else 1,
        doubt=frozenset({1}) if state.in_doubt else frozenset(),
        attempt_under_way=state is State.SENDING,
        because="a_rule",
    )
    return replace(plain, **changes)


@cache
def every_reply() -> list[tuple[Operation, Response | None, Classification, Reply]]:
    """Every state, one attempt or two, with and without an incident, whatever was read last, whatever came back."""
    responses = (None, *(response(code, {"n": code}) for code in (200, 402, 503)))
    found = []
    for state, attempts, incident, answer, came in product(State, (1, 2), (None, "contradiction"), KINDS, responses):
        speaks = state not in {State.PREPARED, State.SENDING}
        stands = standing(
            state,
            attempts=attempts,
            incident=incident,
            result_class=answer.result_class if speaks else None,
            effect=answer.effect if speaks else None,
        )
        found.append((stands, came, answer, reply_for(stands, came, answer)))
    return found


def every_reply_of_the_world() -> Iterator[tuple[Operation, Response, Classification, Reply]]:
    """As it happens: the reply to whoever made the attempt that has just ended."""
    known = set()
    for errors in (ErrorsUnderKey.REPLAYED, ErrorsUnderKey.REEXECUTED):
        for step in steps_of_the_world(errors):
            stands, answer = step.after, step.answer
            case = (stands.state, stands.attempts > 1, stands.incident, stands.result_class, answer)
            if answer is not None and step.attempt == stands.attempts and case not in known:
                known.add(case)
                came = response(200 if answer.effect is Effect.DONE else 402, {"reading": answer.result_class})
                yield stands, came, answer, reply_for(stands, came, answer)


# --- the two answers that carry promises


def test_not_sent_is_said_only_where_no_effect_is_possible() -> None:
    seen = 0
    for stands, _, _, reply in every_reply():
        if reply.problem is Problem.NOT_SENT:
            seen += 1
            assert stands.state is State.FAILED
            assert not stands.doubt
            assert stands.incident is None
            assert members(reply)["side_effect_may_exist"] is False
            assert members(reply)["sent"] is False
    assert seen


def test_our_503_is_never_said_of_anything_else() -> None:
    for _, came, _, reply in every_reply():
        if reply.status_code == 503 and reply.problem is not None:
            assert reply.problem is Problem.NOT_SENT
        elif reply.status_code == 503:
            assert came is not None
            assert came.status_code == 503


@pytest.mark.parametrize("status_code", [502, 503, 504])
@pytest.mark.parametrize("state", [State.UNKNOWN, State.REQUIRES_REVIEW])
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_doubtful_gateway_error_leaves_as_our_504(status_code: int, state: State, attempts: int) -> None:
    doubtful = standing(state, attempts=attempts)
    for body in (b"<html>", b"{}"):
        reply = reply_for(doubtful, response(status_code, body), read(ResultClass.TEMPORARY_PROVIDER_ERROR))
        assert (reply.status_code, reply.problem, reply.outcome) == (504, Problem.UNKNOWN, Outcome.UNKNOWN)


def test_an_open_incident_is_answered_by_504_that_names_it() -> None:
    for stands, _, _, reply in every_reply():
        if stands.incident is not None:
            assert (reply.status_code, reply.problem) == (504, Problem.UNKNOWN)
            found = members(reply)
            assert "contradiction" in found["detail"]
            assert found["side_effect_may_exist"] is True
            assert found["advice"] == Advice.DO_NOT_PAY_AGAIN


def test_doubt_is_never_told_as_an_end() -> None:
    for stands, came, _, reply in every_reply():
        if stands.state.in_doubt:
            assert reply.outcome is Outcome.UNKNOWN
            assert reply.problem is Problem.UNKNOWN or (came is not None and stands.attempts == 1)
            assert header(reply, "Paywitness-Advice") == Advice.DO_NOT_PAY_AGAIN


# --- what of the provider's is passed on


def test_an_answer_is_passed_on_only_where_it_speaks_for_the_operation_or_is_the_only_one() -> None:
    for stands, _, answer, reply in every_reply():
        if reply.problem is not None:
            continue
        assert response_matches_state(stands, answer) or (stands.state.in_doubt and stands.attempts == 1)


def test_what_is_passed_on_is_untouched() -> None:
    for _, came, _, reply in every_reply():
        if reply.problem is None:
            assert came is not None
            assert (reply.status_code, reply.body) == (came.status_code, came.body)


@pytest.mark.parametrize("state", sorted(SETTLED))
def test_a_refused_or_declined_re_send_never_speaks_for_a_payment_that_was_made(state: State) -> None:
    made = standing(state, attempts=2, result_class=ResultClass.FAILED, effect=Effect.NONE)
    for answer in ANSWERS:
        if state is State.SUCCEEDED:
            assert response_matches_state(made, answer) == (
                answer.result_class is ResultClass.SUCCEEDED and answer.effect is Effect.DONE
            )
        if answer.result_class in REFUSALS | DECLINES:
            assert not response_matches_state(made, answer)
            reply = reply_for(made, response(402, {}), answer)
            assert (reply.status_code, reply.problem) == (409, Problem.CLOSED_WITHOUT_RESPONSE)


def test_in_every_world_a_reply_without_a_problem_agrees_with_what_stands() -> None:
    agreeing = {
        State.SUCCEEDED: {ResultClass.SUCCEEDED},
        State.PENDING: {ResultClass.PENDING},
        State.REQUIRES_ACTION: {ResultClass.REQUIRES_ACTION},
    }
    for stands, _, answer, reply in every_reply_of_the_world():
        if reply.problem is None and stands.state in agreeing:
            assert answer.result_class in agreeing[stands.state], stands
        if reply.problem is None and stands.state is State.FAILED:
            assert answer.effect is Effect.NONE, stands
            assert answer.result_class is stands.result_class
        if reply.problem is None and stands.state.in_doubt:
            assert answer.rule == UNREAD_SUCCESS
            assert stands.doubt <= {stands.attempts}


@pytest.mark.parametrize("status_code", STATUS_CODES)
def test_the_only_attempts_doubtful_answer_is_passed_on_only_if_no_client_takes_it_for_a_failure(
    status_code: int,
) -> None:
    was_read = classify(answered(response(status_code, {"status": "new"})), ClassifyRules())
    reply = reply_for(standing(State.UNKNOWN), response(status_code, {}), was_read)
    assert (reply.problem is None) == (200 <= status_code < 300)
    assert reply.status_code == (status_code if reply.problem is None else 504)
    assert reply.outcome is Outcome.UNKNOWN
    twice = standing(State.UNKNOWN, attempts=2)
    assert reply_for(twice, response(status_code, {}), was_read).problem is Problem.UNKNOWN


def test_an_unread_success_after_a_refused_attempt_is_passed_on() -> None:
    """The first attempt was turned away, so only the second is in doubt: its response speaks for the operation."""
    second = standing(State.UNKNOWN, attempts=2, doubt=frozenset({2}))
    assert reply_for(second, response(200, {}), UNREAD).status_code == 200


def test_an_error_inside_a_2xx_is_not_passed_on_while_money_may_have_moved() -> None:
    """Its client takes the body for a failure, and pays again under a fresh key."""
    for result_class in (
        ResultClass.TEMPORARY_PROVIDER_ERROR,
        ResultClass.PROVIDER_TIMEOUT,
        ResultClass.UNKNOWN_OUTCOME,
    ):
        row = read(result_class, rule="answers.charge[3]")
        assert reply_for(standing(State.UNKNOWN), response(200, {"status": "error"}), row).status_code == 504


def test_p21_what_was_sent_and_never_executed_is_absent() -> None:
    absent = standing(State.FAILED, result_class=ResultClass.ABSENT, effect=Effect.NONE, key_released=True)
    reply = reply_for(absent, None, read(ResultClass.UNKNOWN_OUTCOME))
    told = json.loads(reply.body)
    assert (reply.status_code, told["type"]) == (503, "urn:paywitness:problem:absent")
    assert (told["outcome"], told["sent"], told["side_effect_may_exist"]) == ("absent", True, False)
    assert (reply.outcome, told["advice"]) == (Outcome.ABSENT, "try_again_later")
    assert (b"Paywitness-Outcome", b"absent") in reply.headers


def test_a_success_that_cannot_be_read_or_does_not_fit_is_not_passed_on() -> None:
    doubtful = standing(State.UNKNOWN)
    assert reply_for(doubtful, response(200, {}), UNREAD).status_code == 200
    garbled = classify(answered(response(200, b"?")), ClassifyRules())
    assert reply_for(doubtful, response(200, b"?"), garbled).status_code == 504
    assert reply_for(doubtful, response(200, {}), replace(UNREAD, rule=DOES_NOT_FIT)).status_code == 504


@pytest.mark.parametrize(
    ("reading", "status_code"),
    [(ResultClass.RATE_LIMITED, 429), (ResultClass.VALIDATION_ERROR, 400), (ResultClass.ISSUER_HARD_DECLINE, 402)],
)
def test_a_refusal_or_decline_that_ended_the_operation_is_passed_on(reading: ResultClass, status_code: int) -> None:
    ended = standing(State.FAILED, result_class=reading, effect=Effect.NONE, key_released=reading not in DENIALS)
    assert reply_for(ended, response(status_code, {}), read(reading)).status_code == status_code


def test_what_ended_without_its_own_answer_is_told_as_closed() -> None:
    paid = standing(State.SUCCEEDED, attempts=2, reference="ch_1")
    reply = reply_for(paid, response(429, {}), read(ResultClass.RATE_LIMITED))
    assert (reply.status_code, reply.outcome) == (409, Outcome.SUCCEEDED)
    found = members(reply)
    assert "ch_1" in found["detail"]
    assert (found["sent"], found["side_effect_may_exist"]) == (True, True)
    assert members(closed_reply(paid))["sent"] is False


def test_a_provider_that_was_reached_is_not_said_to_have_been_out_of_reach() -> None:
    unreached = standing(State.FAILED, result_class=ResultClass.NETWORK_CONNECT_FAILURE, effect=Effect.NONE)
    throttled = standing(
        State.FAILED, result_class=ResultClass.RATE_LIMITED, effect=Effect.NONE, key_released=True, attempts=2
    )
    assert (
        "was not reached after 1 try"
        in members(reply_for(unreached, None, read(ResultClass.NETWORK_CONNECT_FAILURE)))["detail"]
    )
    told = members(reply_for(throttled, None, read(ResultClass.RATE_LIMITED)))["detail"]
    assert "was not reached" not in told
    assert "2 tries (rate limited)" in told


# --- problems


@pytest.mark.parametrize("kind", Problem)
def test_every_problem_says_what_happened_to_the_money(kind: Problem) -> None:
    for stands in (None, *(standing(state) for state in State)):
        reply = problem_reply(kind, "What happened.", operation=stands)
        found = members(reply)
        assert reply.status_code == found["status"] == PROBLEMS[kind].status_code
        assert found["type"] == f"urn:paywitness:problem:{kind}"
        assert found["title"] == PROBLEMS[kind].title
        assert found["detail"] == "What happened."
        assert found["outcome"] == reply.outcome == header(reply, "Paywitness-Outcome")
        assert found["advice"] in set(Advice)
        assert isinstance(found["sent"], bool)
        assert isinstance(found["side_effect_may_exist"], bool)
        assert header(reply, "Content-Type") == "application/problem+json"
        assert (header(reply, "Retry-After") is not None) == (reply.status_code in {409, 503} and reply.repeat_helps)
        assert ("operation" in found, "instance" in found) == (stands is not None, stands is not None)


@pytest.mark.parametrize("state", State)
def test_an_effect_is_denied_only_where_none_is_possible(state: State) -> None:
    none_possible = state in {State.PREPARED, State.BACKOFF, State.FAILED}
    for kind in Problem:
        found = members(problem_reply(kind, "", operation=standing(state)))
        assert found["side_effect_may_exist"] == (not none_possible)
        assert members(problem_reply(kind, "", operation=standing(state, incident="x")))["side_effect_may_exist"]


def test_what_is_not_known_without_an_operation_may_have_happened() -> None:
    for kind in (Problem.UNKNOWN, Problem.JOURNAL_UNAVAILABLE, Problem.KEY_EXPIRED):
        found = members(problem_reply(kind, ""))
        assert found["side_effect_may_exist"] is True
        assert found["advice"] == Advice.DO_NOT_PAY_AGAIN


def test_when_it_is_looked_at_again_is_told_while_it_is_open() -> None:
    assert members(unknown_reply(standing(State.UNKNOWN, due_at=17.0), sent=True))["next_check_at"] == 17.0
    assert "next_check_at" not in members(closed_reply(standing(State.SUCCEEDED, due_at=17.0)))


def test_the_providers_error_shape_stands_beside_ours_and_never_over_it() -> None:
    shape = ErrorShape({"error": {"type": "api_error", "message": "{detail}", "n": [1, "{detail}"]}, "type": "theirs"})
    found = members(unknown_reply(standing(State.UNKNOWN), shape, sent=True, detail="Not known."))
    assert found["error"] == {"type": "api_error", "message": "Not known.", "n": [1, "Not known."]}
    assert found["type"] == "urn:paywitness:problem:unknown"
    assert shape.members is not None
    assert shape.members["error"]["message"] == "{detail}"


def test_an_sdk_is_told_to_give_up_only_where_a_repeat_cannot_help() -> None:
    shape = ErrorShape(give_up_headers=(("Stripe-Should-Retry", "false"),))
    for kind in Problem:
        told = header(problem_reply(kind, "", shape=shape), "Stripe-Should-Retry")
        of_paid = kind is Problem.GUARDED  # without an operation that could still end
        assert (told == "false") == (not PROBLEMS[kind].repeat_helps or of_paid)
    assert header(unknown_reply(standing(State.REQUIRES_REVIEW), shape, sent=True), "Stripe-Should-Retry") == "false"
    assert header(unknown_reply(standing(State.UNKNOWN), shape, sent=True), "Stripe-Should-Retry") is None


def test_a_wait_may_be_given() -> None:
    assert header(problem_reply(Problem.IN_FLIGHT, "", retry_after_s=7), "Retry-After") == "7"
    assert header(problem_reply(Problem.NOT_SENT, "", retry_after_s=0), "Retry-After") == "0"


@pytest.mark.parametrize("text", ["\ud800", "\u20ac", "\r\n", "\x00", '"'])
def test_no_text_from_outside_breaks_an_answer(text: str) -> None:
    odd = standing(State.SUCCEEDED, reference=text, client_key=text)
    for reply in (
        closed_reply(odd),
        operation_reply(odd),
        unknown_reply(odd, sent=True),
        problem_reply(Problem.NOT_FOUND, text),
    ):
        assert members(reply)
        for name, value in reply.headers:
            assert not {*b"\r\n\x00"} & {*name, *value}


def test_a_key_or_a_provider_that_no_header_can_carry_is_left_out() -> None:
    for odd in ("a\r\nSet-Cookie: x", "cl\u00e9", "a\x00"):
        assert header(unknown_reply(standing(State.UNKNOWN, client_key=odd), sent=True), "Paywitness-Key") is None
        assert header(problem_reply(Problem.PROVIDER_NOT_ALLOWED, "", provider=odd), "Paywitness-Provider") is None
    assert header(unknown_reply(standing(State.UNKNOWN), sent=True), "Paywitness-Key") == "order-1"
    assert header(problem_reply(Problem.NOT_SENT, "", provider="acme"), "Paywitness-Provider") == "acme"


# --- headers


def test_headers_of_one_connection_are_not_passed_on() -> None:
    kept = ((b"Content-Type", b"application/json"), (b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=2"))
    dropped = (
        (b"Connection", b"close, X-Private"),
        (b"connection", b"x-other"),
        (b"Keep-Alive", b"5"),
        (b"Transfer-Encoding", b"chunked"),
        (b"CONTENT-LENGTH", b"2"),
        (b"TE", b"trailers"),
        (b"Trailer", b"X"),
        (b"Upgrade", b"h2c"),
        (b"Proxy-Authenticate", b"Basic"),
        (b"Proxy-Authorization", b"x"),
        (b"Proxy-Connection", b"close"),
        (b"X-Private", b"1"),
        (b"X-OTHER", b"1"),
    )
    assert end_to_end((*dropped[:6], *kept, *dropped[6:])) == kept


def test_what_we_say_of_the_operation_is_said_once_and_by_us() -> None:
    theirs = response(200, {}, ("Paywitness-Outcome", "failed"), ("PAYWITNESS-REPLAYED", "true"), ("Request-Id", "r"))
    paid = standing(State.SUCCEEDED, attempts=2)
    reply = pass_through(paid, theirs)
    assert header(reply, "Paywitness-Outcome") == "succeeded"
    assert header(reply, "Paywitness-Attempts") == "2"
    assert header(reply, "Paywitness-Operation") == "op_01"
    assert header(reply, "Paywitness-Because") == "a_rule"
    assert header(reply, "Paywitness-Provider") == "acme"
    assert header(reply, "Paywitness-Replayed") is None
    assert header(reply, "Request-Id") == "r"
    assert header(pass_through(paid, theirs, replayed=True), "Paywitness-Replayed") == "true"


# --- outcomes and advice


@pytest.mark.parametrize(
    ("reading", "attempts", "outcome"),
    [
        *((reading, 1, Outcome.DECLINED) for reading in sorted(DECLINES)),
        (None, 0, Outcome.NOT_SENT),
        (None, 1, Outcome.FAILED),
        (ResultClass.NETWORK_CONNECT_FAILURE, 1, Outcome.NOT_SENT),
        (ResultClass.ABSENT, 1, Outcome.ABSENT),
        (ResultClass.VALIDATION_ERROR, 1, Outcome.FAILED),
        (ResultClass.CANCELLED, 1, Outcome.FAILED),
        (ResultClass.NETWORK_READ_TIMEOUT, 1, Outcome.FAILED),
    ],
)
def test_a_failure_is_told_by_what_was_read_of_it(reading: ResultClass | None, attempts: int, outcome: Outcome) -> None:
    assert standing(State.FAILED, result_class=reading, attempts=attempts).outcome is outcome


@pytest.mark.parametrize("state", State)
def test_only_a_failure_and_a_demand_to_act_let_the_customer_do_anything(state: State) -> None:
    for reading in (None, *ResultClass):
        advice = advice_for(standing(state, result_class=reading))
        if state is State.REQUIRES_ACTION:
            assert advice is Advice.AUTHENTICATE
        elif state is State.SUCCEEDED and reading in {ResultClass.REVERSED, ResultClass.RETURNED}:
            assert advice is Advice.CONTACT_SUPPORT  # it was paid, and given back
        elif state is not State.FAILED:
            assert advice is Advice.DO_NOT_PAY_AGAIN
        assert advice_for(standing(state, result_class=reading, incident="x")) is Advice.DO_NOT_PAY_AGAIN


@pytest.mark.parametrize("reading", ResultClass)
def test_whoever_was_provably_not_charged_is_not_told_not_to_pay_again(reading: ResultClass) -> None:
    """A provider that was overloaded, and said so before any work: "do not pay again" kept the customer from paying."""
    failed = standing(State.FAILED, result_class=reading, effect=Effect.NONE)
    paid_by_others = reading is ResultClass.ALREADY_DONE
    assert (advice_for(failed) is Advice.DO_NOT_PAY_AGAIN) is paid_by_others
    assert advice_for(failed.changed(beside_unknown=True)) is Advice.DO_NOT_PAY_AGAIN


def test_the_advice_of_a_code_comes_before_that_of_its_class() -> None:
    soft = standing(State.FAILED, result_class=ResultClass.ISSUER_SOFT_DECLINE, effect=Effect.NONE)
    assert advice_for(soft) is Advice.USE_ANOTHER_METHOD
    assert advice_for(soft.changed(advice=Advice.CONTACT_ISSUER)) is Advice.CONTACT_ISSUER
    assert advice_for(soft.changed(advice=Advice.CONTACT_ISSUER, beside_unknown=True)) is Advice.DO_NOT_PAY_AGAIN
    assert advice_for(standing(State.SUCCEEDED, advice=Advice.CONTACT_ISSUER)) is Advice.DO_NOT_PAY_AGAIN


def paid_order(**changes: Any) -> Operation:
    return standing(State.SUCCEEDED, guard=Guard(GuardKind.INTENT, "g" * 32, "order-1"), **changes)


def test_a_refused_payment_of_a_paid_order_is_not_told_that_it_succeeded() -> None:
    """43.00 was refused because 42.00 had been paid: the reply said "succeeded", "open" and "Retry-After: 1"."""
    reply = guarded_reply(paid_order(), ErrorShape(give_up_headers=(("Stripe-Should-Retry", "false"),)))
    found = members(reply)
    assert found["outcome"] == header(reply, "Paywitness-Outcome") == reply.outcome == Outcome.NONE
    assert found["holder"] == {"operation": found["operation"], "outcome": Outcome.SUCCEEDED}
    assert found["title"] == "This was paid already, by another call"
    assert (found["side_effect_may_exist"], found["advice"]) == (True, Advice.DO_NOT_PAY_AGAIN)
    assert header(reply, "Retry-After") is None
    assert header(reply, "Stripe-Should-Retry") == "false"


@pytest.mark.parametrize("state", [State.SENDING, State.UNKNOWN, State.PENDING])
def test_a_call_behind_an_open_one_is_told_how_that_one_stands(state: State) -> None:
    reply = guarded_reply(standing(state, guard=Guard(GuardKind.INTENT, "g" * 32, "order-1")))
    found = members(reply)
    assert found["outcome"] == standing(state).outcome
    assert "holder" not in found
    assert found["title"] == "Another operation on the same money is open"
    assert header(reply, "Retry-After") == "1"


def test_an_equal_call_that_was_paid_is_told_that_it_succeeded() -> None:
    guard = Guard(GuardKind.TARGET, "g" * 32, "ch_1")
    reply = guarded_reply(standing(State.SUCCEEDED, undelivered=True, kind=OperationKind.CAPTURE, guard=guard))
    assert (reply.outcome, members(reply)["title"]) == (
        Outcome.SUCCEEDED,
        "An equal call succeeded, and its caller may not know",
    )


def test_what_cannot_come_out_otherwise_names_no_time_to_try_again() -> None:
    assert header(closed_reply(standing(State.SUCCEEDED)), "Retry-After") is None
    assert header(refunded_reply(paid_order()), "Retry-After") is None
    assert header(paid_before_reply("op_1"), "Retry-After") is None
    assert members(closed_reply(standing(State.SUCCEEDED)))["title"].startswith("It succeeded")


def test_header_and_body_give_the_same_advice() -> None:
    for kind in Problem:
        for state in State:
            reply = problem_reply(kind, "", operation=standing(state))
            assert header(reply, "Paywitness-Advice") == members(reply)["advice"]


@pytest.mark.parametrize("kind", list(Problem))
def test_what_names_no_operation_says_of_the_effect_what_it_advises(kind: Problem) -> None:
    """A call that no operation matches may pay all the same; so may have paid what is no longer kept."""
    found = members(problem_reply(kind, ""))
    assert found["side_effect_may_exist"] is (found["advice"] == "do_not_pay_again")


@pytest.mark.parametrize("reply", [paid_before_reply("op_1"), problem_reply(Problem.FORWARD_FAILED, "", sent=True)])
def test_what_was_paid_or_may_have_been_is_never_told_to_be_without_effect(reply: Reply) -> None:
    assert members(reply)["side_effect_may_exist"] is True


def test_an_error_that_arrived_is_not_called_a_lost_answer() -> None:
    arrived = standing(State.UNKNOWN, doubt=frozenset({1}), answered_attempts=frozenset({1}))
    assert "its response leaves open" in members(unknown_reply(arrived, sent=True))["detail"]
    assert "response was lost" in members(unknown_reply(standing(State.UNKNOWN), sent=True))["detail"]


def test_what_became_of_another_payment_is_not_told_as_the_outcome_of_this_one() -> None:
    declined = standing(State.FAILED, result_class=ResultClass.ISSUER_HARD_DECLINE, effect=Effect.NONE)
    reply = problem_reply(Problem.KEY_REUSED, "", operation=declined)
    assert (reply.outcome, members(reply)["outcome"]) == (Outcome.NONE, "none")
    assert members(reply)["holder"] == {"operation": declined.id, "outcome": "declined"}


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
def test_a_holder_whose_end_is_contradicted_is_told_as_unknown(state: State) -> None:
    """A failure that may have been paid was told as `declined`, and a success that may be another's as "paid"."""
    holder = standing(state, result_class=ResultClass.ISSUER_HARD_DECLINE, incident=IncidentKind.REFERENCE_TAKEN)
    reply = guarded_reply(holder)
    told = members(reply)
    assert (reply.outcome, told["outcome"], told["side_effect_may_exist"]) == (Outcome.UNKNOWN, "unknown", True)
    assert "contradicts itself" in told["title"]
    assert "A person must look" in told["detail"]


def test_a_problem_without_an_operation_does_not_deny_what_may_have_been_paid() -> None:
    paid = members(paid_before_reply("op_1"))
    lost = members(problem_reply(Problem.FORWARD_FAILED, "", sent=True))
    for told in (paid, lost):
        assert (told["side_effect_may_exist"], told["advice"]) == (True, "do_not_pay_again")


def test_the_error_of_an_sdk_has_a_code() -> None:
    shape = ErrorShape({"error": {"code": "{code}", "message": "{detail}"}})
    detail = "A detail that holds {code}."
    found = members(problem_reply(Problem.NOT_SENT, detail, shape=shape))["error"]
    assert found == {"code": "paywitness_not_sent", "message": detail}


def test_an_operation_is_described_without_anything_secret() -> None:
    found = operation_summary(standing(State.UNKNOWN, money=Money(1050, "EUR"), due_at=17.0))
    assert (found["amount"], found["currency"], found["in_doubt"]) == ("10.50", "EUR", [1])
    assert (found["outcome"], found["side_effect_may_exist"], found["next_check_at"]) == (Outcome.UNKNOWN, True, 17.0)
    text = json.dumps(found)
    secret = standing(State.UNKNOWN)
    for value in (secret.key, secret.account, secret.fingerprint, secret.credential, secret.request_hash):
        assert value not in text
    assert operation_reply(secret).status_code == 200


@pytest.mark.parametrize(
    ("guard", "kind", "said"),
    [
        (GuardKind.INTENT, OperationKind.SALE, "was paid by operation"),
        (GuardKind.TARGET, OperationKind.PAYOUT, "was paid by operation"),
        (GuardKind.TARGET, OperationKind.CAPTURE, "An equal call"),
    ],
)
def test_a_call_of_another_amount_is_not_told_that_it_is_done(guard: GuardKind, kind: OperationKind, said: str) -> None:
    """A sidecar was killed, and its sale of 10.00 found. A sale of 11.00 was told "an equal call succeeded, it is
    done". Of an intent and of a payout's reference, only a call that is not equal is refused."""
    found = operation(state=State.SUCCEEDED, undelivered=True, kind=kind, guard=Guard(guard, "g" * 32, "order-1"))
    assert said in json.loads(guarded_reply(found).body)["detail"]
