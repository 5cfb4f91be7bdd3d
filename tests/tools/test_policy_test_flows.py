"""Flows of `policy test`: several calls in a row. What holds between them is compared, and each difference is told with
its step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paywitness.core.errors import PolicyError
from paywitness.tools.policy_test.case_file import read_case_file
from paywitness.tools.policy_test.case_runner import CaseRun, as_json, report_lines, run_case_files
from paywitness.tools.policy_test.flow import BALANCE, POSTING, STEP_EXPECT, STEP_READERS

TOP = Path(__file__).resolve().parents[2]

POLICY = """\
provider: bank
upstream: http://127.0.0.1:9000
idempotency: {send_as: header:Idempotency-Key, window: 24h, errors_under_key: replayed}
limits: enforce
operations:
  hold:
    kind: authorization
    match: POST /v1/payments
    amount: {at: amount, unit: minor}
    currency: currency
    fits: {amount: amount, unit: minor}
    intent: order
    after_success: block
    reference: id
    captures: manual
    answer: payment
    ask: [{needs: reference, request: "GET /v1/payments/{reference}", answer: payment}]
  capture:
    kind: capture
    match: "POST /v1/payments/{payment}/captures"
    target: path:payment
    amount: {at: amount, unit: minor, absent: full}
    answer: capture
    ask: [{request: "GET /v1/payments/{path:payment}/captures", at: last, answer: capture}]
  refund:
    kind: refund
    match: "POST /v1/payments/{payment}/refunds"
    target: path:payment
    amount: {at: amount, unit: minor, absent: full}
    reference: id
    answer: capture
answers:
  payment:
    - {when: "status == 'held'", as: succeeded}
    - {when: "status == 'disputed'", as: disputed}
    - {when: "status == 'won'", as: dispute_won}
  capture: [{when: "status == 'done'", as: succeeded}, {when: "status == 'broken'", as: failed}]
webhook:
  scheme: hmac_sha256
  secrets: [env:BANK_SECRET]
  event_id: id
  find: [{reference: payment.id}]
  at: payment
  answer: payment
"""
HEAD = """\
requests:
  hold: {send: POST /v1/payments, headers: {Idempotency-Key: k1}, body: {amount: 1000, currency: EUR, order: O-1}}
  capture: {send: POST /v1/payments/p1/captures, headers: {Idempotency-Key: c1}, body: {amount: 600}}
  refund: {send: POST /v1/payments/p1/refunds, headers: {Idempotency-Key: r1}, body: {amount: 600}}
responses:
  held: {body: {id: p1, status: held, amount: 1000}}
  done: {body: {id: m1, status: done}}
flows:
  - name: a flow
    steps:
"""
HOLD = "{request: hold, response: held}"


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "bank.yaml").write_text(POLICY)
    return tmp_path


def with_steps(bank: Path, *steps: str) -> CaseRun:
    (bank / "tests" / "bank.yaml").write_text(HEAD + "".join(f"      - {step}\n" for step in steps))
    (one,) = run_case_files([bank / "bank.yaml"])
    return one


def failures(one: CaseRun) -> list[str]:
    assert not one.problems, one.problems
    return [str(failure).rpartition("bank.yaml:")[2] for judged in one.flows for failure in judged.failures]


def problems_of(steps: str) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as caught:
        read_case_file((HEAD + steps).encode(), "bank.yaml")
    return caught.value.problems


# --- the shipped flows


@pytest.mark.parametrize("name", ["acme", "stripe"])
def test_the_shipped_flows_pass_and_compare_much(name: str) -> None:
    (one,) = run_case_files([TOP / "policies" / f"{name}.yaml"])
    assert one.ok, "\n".join(report_lines([one]))
    assert len(one.flows) >= 10
    assert sum(len(step.expect) for judged in one.flows for step in judged.flow.steps) > 80


def test_a_policy_that_no_longer_says_what_is_captured_makes_its_flows_fail(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    text = (TOP / "policies" / "acme.yaml").read_text()
    assert "captures: automatic " in text
    (tmp_path / "acme.yaml").write_text(text.replace("captures: automatic ", "# ", 1))
    (tmp_path / "tests" / "acme.yaml").write_text((TOP / "policies" / "tests" / "acme.yaml").read_text())
    (one,) = run_case_files([tmp_path / "acme.yaml"])
    assert not one.failed
    assert any("step 1: balance.captured: expected 1099, came null" in line for line in failures_of(one))


def failures_of(one: CaseRun) -> list[str]:
    return [str(failure) for judged in one.flows for failure in judged.failures]


# --- what a step may expect


def test_a_step_may_expect_everything_that_is_known_after_it(bank: Path) -> None:
    one = with_steps(
        bank,
        "{request: hold, response: held, expect: {sent: yes, replayed: no, safe_to_pay: no, incident: none, "
        "operation: hold, class: succeeded, state: succeeded, action: stop, outcome: succeeded, status: 200, "
        "problem: none, reference: p1, posting: {kind: authorization, amount: 1000}, "
        "balance: {authorised: 1000, captured: 0, refunded: 0, voided: 0, disputed: 0}}}",
        "{request: hold, expect: {sent: no, replayed: yes, posting: none}}",
        "{event: {body: {id: e1, payment: {id: p1, status: disputed}}}, "
        "expect: {found: hit, found_by: reference, class: disputed, outcome: succeeded, balance: {disputed: 0}}}",
    )
    assert failures(one) == []


WRONG = [
    ("sent", "no", "yes"),
    ("replayed", "yes", "no"),
    ("safe_to_pay", "yes", "no"),
    ("incident", "two_references", "none"),
    ("operation", "refund", "hold"),
    ("class", "pending", "succeeded"),
    ("found", "hit", "none"),
    ("found_by", "reference", "none"),
    ("state", "failed", "succeeded"),
    ("action", "status_inquiry", "stop"),
    ("outcome", "failed", "succeeded"),
    ("status", "402", "200"),
    ("problem", "guarded", "none"),
    ("reference", "p2", "p1"),
]


@pytest.mark.parametrize(("key", "wrong", "came"), WRONG)
def test_a_wrong_expectation_of_a_step_says_what_came(bank: Path, key: str, wrong: str, came: str) -> None:
    one = with_steps(bank, f"{{request: hold, response: held, expect: {{{key}: {wrong}}}}}")
    assert failures(one) == [f"11: step 1: {key}: expected {wrong}, came {came}"]
    assert not one.ok


@pytest.mark.parametrize("number", BALANCE.keys)
def test_a_wrong_number_of_a_balance_says_which(bank: Path, number: str) -> None:
    one = with_steps(bank, HOLD, f"{{request: capture, response: done, expect: {{balance: {{{number}: 7}}}}}}")
    (told,) = failures(one)
    assert told.startswith(f"12: step 2: balance.{number}: expected 7, came ")


def test_a_wrong_posting_says_what_was_posted(bank: Path) -> None:
    one = with_steps(
        bank,
        "{request: hold, response: held, expect: {posting: none}}",
        "{request: capture, response: done, expect: {posting: {kind: refund, amount: null}}}",
    )
    assert failures(one) == [
        "11: step 1: posting: expected none, came authorization 1000",
        "12: step 2: posting.kind: expected refund, came capture",
        "12: step 2: posting.amount: expected null, came 600",
    ]


def test_every_key_that_a_step_may_expect_is_among_those_shown_to_fail() -> None:
    assert {key for key, _, _ in WRONG} == set(STEP_READERS)
    assert set(STEP_EXPECT.keys) == {*STEP_READERS, "balance", "posting"}
    assert set(POSTING.keys) == {"kind", "amount"}


# --- what happens in a flow


@pytest.mark.parametrize(
    "steps",
    [
        # The balance of the payment is that of all steps before.
        [
            HOLD,
            "{request: capture, response: done, expect: {balance: {captured: 600}}}",
            "{request: {like: capture, headers: {Idempotency-Key: c2}, body: {amount: 401}}, "
            "expect: {sent: no, problem: exceeds-remaining}}",
            "{request: {like: capture, headers: {Idempotency-Key: c3}, body: {amount: null}}, response: done, "
            "expect: {posting: {kind: capture, amount: 400}, balance: {captured: 1000}}}",
        ],
        # Every try of a request meets the same, and the clock of the flow moves with it.
        [
            HOLD,
            "{request: capture, response: {status: 503, body: {}}, expect: {sent: yes, outcome: unknown}}",
            "{request: {like: refund, headers: {Idempotency-Key: c2}}, response: {status: 429, body: {}}, "
            "expect: {sent: yes, outcome: failed, balance: {captured: 0}, posting: none}}",
        ],
        # A repeat of something in doubt is sent again within the window of its key, and not after it.
        [
            HOLD,
            "{request: capture, lost: yes, expect: {outcome: unknown, problem: unknown}}",
            "{request: capture, pause: 20h, expect: {sent: no, outcome: unknown, problem: unknown}}",
            "{inquiry: {body: {last: {status: done}}}, of: 2, expect: {found: hit, balance: {captured: 600}}}",
        ],
        [
            HOLD,
            "{request: capture, lost: yes}",
            "{request: capture, pause: 1h, response: done, "
            "expect: {sent: yes, outcome: succeeded, posting: {kind: capture, amount: 600}}}",
        ],
        # Without `of` the newest operation is asked about.
        [
            HOLD,
            "{request: capture, lost: yes}",
            "{inquiry: {body: {last: {status: broken}}}, expect: {operation: capture, outcome: unknown}}",
            "{inquiry: {body: {last: {status: broken}}}, pause: 1h, expect: {operation: capture, outcome: failed}}",
        ],
        # A payment that nobody saw has no known number, and none is made up.
        [
            "{request: refund, response: done, expect: {sent: yes, balance: {authorised: null, captured: null}}}",
        ],
        # An event that names nothing of the flow changes nothing.
        [HOLD, "{event: {body: {id: e1, payment: {id: p2, status: held}}}, expect: {found: none, operation: none}}"],
        # A call without a key has one of its own: it is not a repeat.
        [
            HOLD,
            "{request: {send: POST /v1/payments/p1/captures, body: {amount: 300}}, response: done}",
            "{request: {send: POST /v1/payments/p1/captures, body: {amount: 300}}, response: done, "
            "expect: {sent: yes, balance: {captured: 600}}}",
        ],
        # The key of another payload.
        [HOLD, "{request: {like: hold, body: {amount: 1}}, expect: {sent: no, problem: key-reused, status: 422}}"],
        # What is no operation passes.
        ["{request: {send: POST /v1/customers}, expect: {operation: none, sent: yes}}"],
        ["{request: {like: hold, body: '{'}, expect: {sent: no, problem: body-unreadable}}"],
    ],
)
def test_steps_come_to_what_the_engine_would_do(bank: Path, steps: list[str]) -> None:
    assert failures(with_steps(bank, *steps)) == []


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (["{request: hold, expect: {sent: no}}"], "step 1: the step cannot be run: it was sent, and the step gives"),
        (["{inquiry: held}"], "step 1: the step cannot be run: step 0 has no operation"),
        ([HOLD, "{pause: 1s}", "{inquiry: held, of: 2}"], "step 3: the step cannot be run: step 2 has no operation"),
        (
            ["{request: {like: refund}, lost: yes}", "{inquiry: done}"],
            "step 2: the step cannot be run: refund has no 'ask'",
        ),
        (
            ["{request: {like: hold, headers: {Paywitness-Priority: low}}, response: held}"],
            "the request has paywitness-priority",
        ),
    ],
)
def test_a_step_that_cannot_be_run_says_why_and_ends_its_flow(bank: Path, steps: list[str], says: str) -> None:
    one = with_steps(bank, *steps, "{request: hold, response: held, expect: {sent: no}}")
    (told,) = failures(one)
    assert says in told


# --- reports


def test_flows_are_counted_beside_cases_and_told_with_their_names(bank: Path) -> None:
    one = with_steps(bank, HOLD, "{request: capture, response: done, expect: {balance: {captured: 600}}}")
    lines = list(report_lines([one]))
    assert lines[0].endswith("0 cases and 1 flow passed")
    assert lines[-1].startswith("0 cases, 1 flow, 0 failed")
    one = with_steps(bank, "{request: hold, response: held, expect: {sent: no}}")
    lines = list(report_lines([one]))
    assert lines[0].endswith("0 of 0 cases and 1 of 1 flow failed")
    assert lines[1] == "  FAILED a flow"
    assert lines[2].endswith("tests/bank.yaml:11: step 1: sent: expected no, came yes")
    assert lines[-1].startswith("0 cases, 1 flow, 1 failed")


def test_what_a_flow_reaches_counts_as_reached(bank: Path) -> None:
    one = with_steps(bank, HOLD, "{request: capture, response: done}")
    assert {rule.name for rule in one.coverage.missing} == {
        "refund",
        "answers.payment[1]",
        "answers.payment[2]",
        "answers.capture[1]",
    }


def test_flows_are_told_to_machines(bank: Path) -> None:
    one = with_steps(bank, HOLD, "{request: capture, response: done, expect: {balance: {captured: 1}}}")
    found = json.loads(json.dumps(as_json([one])))
    assert found["ok"] is False
    (flow,) = found["files"][0]["flows"]
    assert flow == {
        "name": "a flow",
        "line": 9,
        "ok": False,
        "failures": [{"step": 2, "line": 12, "key": "balance.captured", "expected": "1", "came": "600"}],
    }


# --- a file that cannot be read


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("{request: hold, inquiry: held}", "steps[0].inquiry: found beside 'request'"),
        ("{expect: {sent: no}}", "found nothing to do, allowed: one of request, inquiry, event, pause"),
        ("{pause: 1s, expect: {sent: no}}", "found beside a pause"),
        ("{pause: soon}", "a duration such as"),
        ("{pause: 1s, response: held}", "found without 'request'"),
        ("{request: hold, of: 1}", "found without 'inquiry'"),
        ("{request: hold, response: held, lost: yes}", "found beside a response or a fault"),
        ("{request: hold, response: held, expect: {}}", "found nothing to compare"),
        ("{request: hold, response: held, expect: {balanse: {}}}", "did you mean 'balance'?"),
        ("{request: hold, response: held, expect: {balance: {captures: 1}}}", "did you mean 'captured'?"),
        ("{request: hold, response: held, expect: {balance: {captured: 6.00}}}", "a whole number from 0 to"),
        ("{request: hold, response: held, expect: {posting: some}}", "a mapping with kind, amount"),
        ("{request: hold, response: held, expect: {sent: maybe}}", "yes or no"),
        ("{request: hold, response: held, expect: {incident: odd}}", "two_references"),
        ("{request: holt, response: held}", "found 'holt', allowed: hold"),
    ],
)
def test_a_bad_step_names_the_place_and_what_is_allowed(step: str, says: str) -> None:
    problems = problems_of(f"      - {step}\n")
    assert any(says in problem for problem in problems), problems
    assert all(problem.startswith("bank.yaml:") for problem in problems)


def test_a_flow_has_a_name_and_steps() -> None:
    with pytest.raises(PolicyError) as caught:
        read_case_file(b"flows: [{}]", "bank.yaml")
    assert any("flows[0].name: found nothing, it is required" in problem for problem in caught.value.problems)
    assert any("flows[0].steps: found nothing, it is required" in problem for problem in caught.value.problems)


# --- what a file shows, and what it leaves out

SHOWN = """\
    shows: [second_capture, over_refund]
    steps: [{request: hold, response: held}]
left_out:
  dispute: the bank has none
"""


def test_a_file_says_which_situations_it_shows_and_why_it_leaves_one_out(bank: Path) -> None:
    head = HEAD.removesuffix("    steps:\n")
    case = "cases: [{request: hold, response: held, shows: begun_anew, expect: {class: succeeded}, name: a case}]\n"
    (bank / "tests" / "bank.yaml").write_text(head + SHOWN + case)
    (one,) = run_case_files([bank / "bank.yaml"])
    assert one.ok
    assert one.situations_shown == {"second_capture": ["a flow"], "over_refund": ["a flow"], "begun_anew": ["a case"]}
    situations = as_json([one])["files"][0]["situations"]
    assert situations == {"shown": one.situations_shown, "left_out": {"dispute": "the bank has none"}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SHOWN.replace("over_refund", "over_refunds"), "did you mean 'over_refund'?"),
        (SHOWN.replace("dispute:", "disputes:"), "did you mean 'dispute'?"),
        (SHOWN.replace("dispute:", "over_refund:"), "left_out.over_refund: found although a case or flow shows it"),
    ],
)
def test_a_situation_that_nobody_knows_or_that_stands_in_both_places_is_refused(text: str, says: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_case_file((HEAD.removesuffix("    steps:\n") + text).encode(), "bank.yaml")
    assert any(says in problem for problem in caught.value.problems), caught.value.problems
