"""How an answer tells what held its call back."""

from __future__ import annotations

import json

import pytest

from paywitness.core.limit_info import LimitInfo, with_limit_info
from paywitness.core.operation import Outcome
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply, problem_reply


def not_sent() -> Reply:
    return problem_reply(Problem.NOT_SENT, "acme is down. Nothing was sent.", provider="acme", sent=False)


def values(reply: Reply, name: bytes) -> list[str]:
    return [value.decode() for key, value in reply.headers if key == name]


@pytest.mark.parametrize(
    ("limited", "told"),
    [
        (LimitInfo("circuit_open", 1.24), "circuit_open; retry-after=1.2"),
        (LimitInfo("throttled", 30.0), "throttled; retry-after=30.0"),
        (
            LimitInfo("budget_exhausted", 4.0, "account", 0.25),
            "budget_exhausted; scope=account; remaining=0.2; own-retries-in=4.0",
        ),
        (
            LimitInfo("budget_exhausted", 4.0, "account", -3.0),
            "budget_exhausted; scope=account; remaining=0.0; own-retries-in=4.0",
        ),
    ],
)
def test_the_header_names_the_reason_and_of_a_budget_its_scope(limited: LimitInfo, told: str) -> None:
    assert values(with_limit_info(not_sent(), limited), b"Paywitness-Limited-By") == [told]


@pytest.mark.parametrize(("wait_s", "seconds"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.01, "2"), (29.4, "30")])
def test_retry_after_is_a_whole_number_of_seconds_never_shorter_and_at_least_one(wait_s: float, seconds: str) -> None:
    assert values(with_limit_info(not_sent(), LimitInfo("circuit_open", wait_s)), b"Retry-After") == [seconds]


def test_a_problem_of_ours_carries_it_as_a_member_beside_all_that_it_said() -> None:
    before = not_sent()
    after = with_limit_info(before, LimitInfo("budget_exhausted", 4.04, "intent", 0.0))
    told = json.loads(after.body)
    limit = told.pop("limited_by")
    assert limit == {"by": "budget_exhausted", "own_retries_in_s": 4.0, "scope": "intent", "remaining": 0.0}
    assert told == json.loads(before.body)
    assert (after.status_code, after.outcome, after.problem) == (503, before.outcome, Problem.NOT_SENT)


def test_what_is_no_budget_has_no_scope_and_nothing_remaining() -> None:
    told = json.loads(with_limit_info(not_sent(), LimitInfo("provider_busy", 2.0)).body)["limited_by"]
    assert told == {"by": "provider_busy", "retry_after_s": 2.0}


def test_a_providers_own_answer_keeps_its_bytes_and_its_retry_after() -> None:
    theirs = Reply(429, ((b"Retry-After", b"7"),), b"not JSON at all", Outcome.NOT_SENT)
    after = with_limit_info(theirs, LimitInfo("budget_exhausted", 4.0, "provider", 0.0))
    assert (after.status_code, after.body, values(after, b"Retry-After")) == (429, b"not JSON at all", ["7"])
    assert len(values(after, b"Paywitness-Limited-By")) == 1
