"""`policy test`: a case that holds passes, one that does not is told with its place; what no case reaches is listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paywitness.core.errors import PolicyError
from paywitness.core.evidence import NetworkPhase, WireFault
from paywitness.tools.policy_test.case import EXPECT, READERS, GivenAttempt, evidence_of
from paywitness.tools.policy_test.case_file import read_case_file
from paywitness.tools.policy_test.case_runner import CaseRun, as_json, report_lines, run_case_files

TOP = Path(__file__).resolve().parents[2]

POLICY = """\
provider: bank
upstream: http://127.0.0.1:9000
account: [const:main, header:Bank-Account]
idempotency: {send_as: header:Idempotency-Key, window: 24h, errors_under_key: replayed}
stamp: body:metadata.paywitness
operations:
  pay:
    kind: sale
    match: POST /v1/payments
    amount: {at: amount, unit: minor}
    currency: currency
    fits: {amount: amount, unit: minor, stamp: metadata.paywitness}
    intent: order
    reference: id
    answer: payment
    ask: [{needs: reference, request: "GET /v1/payments/{reference}", answer: payment_asked}]
    cancel:
      needs: reference
      request: "POST /v1/payments/{reference}/void"
      read: [{when: "status == 'void'", as: cancelled}]
  refund:
    kind: refund
    match: "POST /v1/payments/{payment}/refunds"
    target: path:payment
    answer: payment
answers:
  payment:
    - {when: "status == 'paid'", as: succeeded}
    - {when: "status == 'refused'", code: reason, table: declines, otherwise: failed}
  payment_asked:
    - {when: "status == 'paid'", as: succeeded}
    - {when: "status == 'new'", as: absent}
classify:
  - {status: 402, code: error.code, table: declines}
tables:
  declines: {issuer_hard_decline: [stolen, expired], issuer_soft_decline: [no_funds]}
webhook:
  scheme: hmac_sha256
  secrets: [env:BANK_SECRET]
  event_id: id
  find: [{operation_id: stamp}, {provider_key: key}, {reference: payment.id}]
  at: payment
  answer: payment
"""
HEAD = """\
requests:
  pay: {send: POST /v1/payments, headers: {Idempotency-Key: k1}, body: {amount: 1099, currency: EUR, order: O-1}}
responses:
  paid: {body: {id: p1, status: paid, amount: 1099}}
  declined: {status: 402, body: {error: {code: "{each}"}}}
cases:
"""


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "bank.yaml").write_text(POLICY)
    return tmp_path


def with_cases(bank: Path, *cases: str) -> CaseRun:
    (bank / "tests" / "bank.yaml").write_text(HEAD + "".join(f"  - {case}\n" for case in cases))
    (one,) = run_case_files([bank / "bank.yaml"])
    return one


def failures(one: CaseRun) -> list[str]:
    assert not one.problems, one.problems
    return [str(failure) for judged in one.judged for failure in judged.failures]


def problems_of(cases: str) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as caught:
        read_case_file(cases.encode(), "bank.yaml")
    return caught.value.problems


# --- the shipped cases


@pytest.mark.parametrize("file", sorted((TOP / "policies" / "tests").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_cases_that_ship_pass_and_reach_every_rule_of_their_policy(file: Path) -> None:
    (one,) = run_case_files([file])
    assert one.policy == str(TOP / "policies" / file.name)
    assert one.ok, "\n".join(report_lines([one]))
    assert one.covered, "\n".join(report_lines([one]))
    assert len(one.judged) > 50


def test_acme_and_stripe_have_cases() -> None:
    assert {"acme.yaml", "stripe.yaml"} <= {file.name for file in (TOP / "policies" / "tests").glob("*.yaml")}


def test_a_row_put_in_front_of_a_shipped_policy_makes_its_cases_fail(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    text = (TOP / "policies" / "acme.yaml").read_text()
    (tmp_path / "acme.yaml").write_text(text.replace("classify:\n", "classify:\n  - {status: 402, as: succeeded}\n", 1))
    (tmp_path / "tests" / "acme.yaml").write_text((TOP / "policies" / "tests" / "acme.yaml").read_text())
    (one,) = run_case_files([tmp_path / "acme.yaml"])
    assert any(
        "class: expected issuer_hard_decline, came succeeded (read by classify[0])" in line for line in failures(one)
    )
    assert "tables.declines: stolen_card" in {rule.name for rule in one.coverage.missing}


# --- facts


def test_a_case_may_expect_every_fact_of_a_request(bank: Path) -> None:
    expect = (
        "{operation: pay, client_key: k1, key_from: header:Idempotency-Key, provider_key: own, account: [main, a9], "
        "amount: 10.99 EUR, guard: intent:O-1, class: succeeded, effect: done, row: 'answers.payment[0]', "
        "reference: p1, state: succeeded, action: stop, because: succeeded, outcome: succeeded, "
        "status: 200, problem: none}"
    )
    request = "{like: pay, headers: {Bank-Account: a9}}"
    assert failures(with_cases(bank, f"{{request: {request}, response: paid, expect: {expect}}}")) == []


@pytest.mark.parametrize(
    ("key", "wrong", "came"),
    [
        ("operation", "refund", "pay"),
        ("client_key", "k2", "k1"),
        ("key_from", "generated", "header:Idempotency-Key"),
        ("provider_key", "derived", "own"),
        ("account", "[main, a9]", "main, "),
        ("amount", "10.98 EUR", "10.99 EUR"),
        ("guard", "none", "intent:O-1"),
        ("class", "pending", "succeeded"),
        ("effect", "possible", "done"),
        ("advice", "contact_issuer", "do_not_pay_again"),
        ("row", "classify[0]", "answers.payment[0]"),
        ("observed", "answers.payment[0]", "none"),
        ("reference", "p2", "p1"),
        ("state", "failed", "succeeded"),
        ("action", "cancel", "stop"),
        ("because", "unforeseen", "succeeded"),
        ("outcome", "unknown", "succeeded"),
        ("status", "201", "200"),
        ("problem", "unknown", "none"),
        ("found", "hit", "none"),
        ("found_by", "reference", "none"),
    ],
)
def test_a_wrong_expectation_of_any_fact_fails_and_says_what_came(bank: Path, key: str, wrong: str, came: str) -> None:
    value = wrong if wrong.startswith("[") else f"'{wrong}'"
    (line,) = failures(with_cases(bank, f"{{request: pay, response: paid, expect: {{{key}: {value}}}}}"))
    assert f"{bank}/tests/bank.yaml:7: {key}: expected " in line
    assert f", came {came}" in line


def test_every_fact_is_among_those_shown_to_fail() -> None:
    (mark,) = test_a_wrong_expectation_of_any_fact_fails_and_says_what_came.pytestmark  # type: ignore[attr-defined]
    assert {key for key, _, _ in mark.args[1]} == set(EXPECT.keys) == set(READERS)


def test_the_line_told_is_that_of_the_expectation(bank: Path) -> None:
    case = "request: pay\n    response: paid\n    expect:\n      class: succeeded\n      outcome: unknown"
    (line,) = failures(with_cases(bank, case))
    assert line == f"{bank}/tests/bank.yaml:11: outcome: expected unknown, came succeeded"


def test_a_decision_that_did_not_come_is_explained(bank: Path) -> None:
    case = "{request: pay, after: {fault: reset, age: 20h}, expect: {because: in_doubt_same_key_is_safe}}"
    (line,) = failures(with_cases(bank, case))
    assert "came in_doubt_ask (in_doubt_same_key_is_safe does not apply: the first send is 20h old" in line


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("fault: connect_refused", "class: network_connect_failure, effect: none, status: none"),
        ("fault: first_byte_timeout", "because: in_doubt_same_key_is_safe, outcome: unknown"),
        ("fault: reset, phase: connecting", "effect: none"),
        ("fault: circuit_open", "because: no_effect_held_back, problem: not-sent, status: 503"),
        ("response: 500", "effect: possible, because: in_doubt_same_key_is_safe"),
        ("response: {status: 500, body: {}}", "effect: possible, because: in_doubt_ask, status: 504"),
        ("response: {status: 503, body: {}}", "status: 504, problem: unknown"),
        ("response: {body: {status: paid, amount: 1}}", "row: does_not_fit_its_request"),
        ("after: {fault: reset, age: 5h}", "action: retry_same_operation"),
        ("after: {fault: reset, age: 20h}", "action: status_inquiry, status: 504"),
        ("after: {response: {status: 500, body: {}}, age: 5h}", "action: status_inquiry"),
        ("after: {fault: reset, age: 2s}, fault: connect_refused", "outcome: unknown"),
        ("after: {response: 429, age: 2s}, response: paid", "outcome: succeeded"),
        ("after: {tries: 3}, fault: connect_refused", "because: no_effect_tries_used_up, status: 503"),
        ("after: {background: true}, fault: reset", "because: in_doubt_ask"),
        ("response: {status: 429, headers: {Retry-After: '90'}}", "because: no_effect_wait_beyond_deadline"),
        ("after: {reference: p1}, asked: paid", "found: hit, class: succeeded, outcome: succeeded"),
        ("after: {reference: p1}, asked: {body: {status: new}}", "found: missed, class: absent"),
        ("after: {reference: p1}, asked: 404", "found: failed, class: none, outcome: unknown"),
        ("after: {reference: p1}, cancelled: {body: {status: void}}", "found: hit, outcome: failed"),
        (
            "event: {body: {id: e1, stamp: '{operation_id}', payment: {status: paid}}}",
            "found_by: operation_id, outcome: succeeded",
        ),
        ("event: {body: {id: e1, key: k1, payment: {status: paid}}}", "found_by: provider_key, found: hit"),
        ("event: {body: {id: e1, key: other, payment: {status: paid}}}", "found_by: none, outcome: unknown"),
        ("request: {send: GET /v1/payments/p1}, response: paid", "operation: none"),
        ("request: {like: pay, body: '{'}, response: paid", "problem: body-unreadable, status: 400"),
        ("request: {like: pay, body: {order: null}}, response: paid", "guard: fingerprint"),
        (
            "request: {like: pay, headers: {Paywitness-Key: mine}}, response: paid",
            "client_key: mine, provider_key: derived",
        ),
        ("request: {send: POST /v1/payments/p1/refunds}, response: paid", "guard: target:p1, amount: none"),
    ],
)
def test_what_the_engine_would_do_is_what_comes(bank: Path, given: str, expected: str) -> None:
    request = "" if given.startswith("request") else "request: pay, "
    assert failures(with_cases(bank, f"{{{request}{given}, expect: {{{expected}}}}}")) == []


@pytest.mark.parametrize(
    ("old", "new", "given", "expected"),
    [
        (
            "errors_under_key: replayed}",
            "errors_under_key: replayed, required: true}",
            "response: paid",
            "problem: none, status: 200",
        ),
        (
            "errors_under_key: replayed}",
            "errors_under_key: replayed, required: true}",
            "request: {send: POST /v1/payments, body: {}}, response: paid",
            "problem: key-required, status: 400, outcome: none",
        ),
        (
            "account:",
            "unmatched: refuse\naccount:",
            "request: {send: POST /v1/else, body: {}}, response: paid",
            "operation: none, problem: operation-not-allowed, status: 403",
        ),
        (
            "account:",
            "merchant: shop\nfallback: [{to: bank_eu, when: [not_sent]}]\naccount:",
            "after: {tries: 3}, fault: connect_refused",
            "action: fallback_new_attempt, because: no_effect_pay_elsewhere",
        ),
        (
            "account:",
            "merchant: shop\nfallback: [{to: bank_eu, when: [circuit_open], after: 1}]\naccount:",
            "fault: circuit_open",
            "action: fallback_new_attempt, because: no_effect_enough_tries_here, status: none",
        ),
        (
            "classify:\n",
            "merchant: shop\nfallback: [{to: bank_eu, when: [rejected]}]\n"
            "classify:\n  - {status: 400, as: validation_error, fallback: true}\n",
            "response: {status: 400, body: {error: currency}}",
            "action: fallback_new_attempt, because: rejected_pay_elsewhere, effect: none",
        ),
        (
            "classify:\n",
            "merchant: shop\nfallback: [{to: bank_eu, when: [rejected]}]\n"
            "classify:\n  - {status: 400, as: validation_error, fallback: true}\n",
            "response: {status: 422, body: {error: currency}}",
            "action: mark_terminal_failure, because: trying_again_cannot_help, outcome: failed",
        ),
        (
            "    target: path:payment\n",
            "    target: path:payment\n    webhook: none\n",
            "request: {send: POST /v1/payments/p/refunds}, response: {status: 500, body: {}}",
            "action: send_to_review, state: requires_review, because: in_doubt_nobody_to_ask, outcome: unknown",
        ),
        (
            "  event_id: id\n",
            "  event_id: id\n  hint: true\n",
            "event: {body: {id: e1, key: k1, payment: {status: paid}}}",
            "found_by: provider_key, found: none, action: status_inquiry, outcome: unknown",
        ),
        ("account:", "account:", "after: {reference: p1}, cancelled: {body: {}}", "found: missed, outcome: unknown"),
        ("account:", "account:", "after: {reference: p1}, cancelled: {body: {status: odd}}", "found: failed"),
    ],
)
def test_what_a_policy_says_otherwise_comes_otherwise(
    bank: Path, old: str, new: str, given: str, expected: str
) -> None:
    assert old in POLICY
    (bank / "bank.yaml").write_text(POLICY.replace(old, new, 1))
    request = "" if given.startswith("request") else "request: pay, "
    assert failures(with_cases(bank, f"{{{request}{given}, expect: {{{expected}}}}}")) == []


def test_each_runs_the_case_with_every_value_and_names_the_one_that_failed(bank: Path) -> None:
    one = with_cases(
        bank, "{request: pay, response: declined, each: [stolen, no_funds], expect: {class: issuer_hard_decline}}"
    )
    assert [judged.case.name for judged in one.judged] == [
        "pay: response declined [stolen]",
        "pay: response declined [no_funds]",
    ]
    assert [bool(judged.failures) for judged in one.judged] == [False, True]


@pytest.mark.parametrize("fault", list(WireFault))
def test_every_fault_shows_in_a_phase_of_its_own(fault: WireFault) -> None:
    evidence = evidence_of(GivenAttempt(fault=fault))
    before_a_byte = {
        "circuit_open",
        "not_admitted",
        "pool_exhausted",
        "dns_failure",
        "tls_failure",
        "tls_timeout",
        "lease_over",
    }
    assert evidence.sent == (fault not in before_a_byte and not fault.startswith("connect_"))
    assert evidence.phase < NetworkPhase.COMPLETE


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("{request: pay, after: {response: paid}, response: paid, expect: {class: pending}}", "no attempt can follow"),
        (
            "{request: pay, after: {response: paid}, expect: {class: pending}}",
            "a repeat is decided only if the outcome is unknown",
        ),
        ("{request: pay, asked: paid, expect: {class: pending}}", "no 'ask' that can be filled in"),
        (
            "{request: {send: POST /v1/payments/p/refunds}, cancelled: paid, expect: {class: pending}}",
            "has no 'cancel'",
        ),
        (
            "{request: {like: pay, headers: {Paywitness-Priority: low}}, response: paid, expect: {class: pending}}",
            "paywitness-priority",
        ),
    ],
)
def test_a_case_that_cannot_be_run_says_why(bank: Path, case: str, says: str) -> None:
    (line,) = failures(with_cases(bank, case))
    assert f"{bank}/tests/bank.yaml:7: the case cannot be run: " in line
    assert says in line


# --- coverage


def test_what_no_case_reaches_is_listed_with_its_line(bank: Path) -> None:
    one = with_cases(bank, "{request: pay, response: declined, each: [stolen], expect: {class: issuer_hard_decline}}")
    missing = {rule.name: rule.location.line for rule in one.coverage.missing}
    lines = POLICY.splitlines()
    assert "classify[0]" not in missing
    assert "tables.declines: stolen" not in missing
    assert lines[missing["refund"] - 1] == "  refund:"
    assert lines[missing["answers.payment[1]"] - 1].startswith("    - {when: \"status == 'refused'\"")
    assert set(missing) == {
        "refund",
        "answers.payment[0]",
        "answers.payment[1]",
        "answers.payment[1].otherwise",
        "answers.payment_asked[0]",
        "answers.payment_asked[1]",
        "operations.pay.cancel.read[0]",
        "tables.declines: expired",
        "tables.declines: no_funds",
    }


def test_a_code_not_in_the_table_reaches_otherwise_and_no_code(bank: Path) -> None:
    one = with_cases(bank, "{request: pay, response: {body: {status: refused, reason: odd}}, expect: {class: failed}}")
    missing = {rule.name for rule in one.coverage.missing}
    assert "answers.payment[1].otherwise" not in missing
    assert "tables.declines: stolen" in missing


def test_every_rule_is_of_a_kind_that_is_counted(bank: Path) -> None:
    row = "  read: [{when: type, code: type, table: declines, otherwise: failed}]\n"
    (bank / "bank.yaml").write_text(POLICY + row)
    coverage = with_cases(bank, "{request: pay, response: paid, expect: {class: succeeded}}").coverage
    assert sum(there for _, _, there in coverage.counts()) == len(coverage.targets)
    assert {"webhook.read[0]", "webhook.read[0].otherwise"} <= {rule.name for rule in coverage.missing}


def test_only_what_the_file_itself_says_counts(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "mine.yaml").write_text("extends: paywitness:acme\nclassify: [{status: 418, as: validation_error}]\n")
    (tmp_path / "tests" / "mine.yaml").write_text(
        "cases: [{request: {send: POST /v1/payouts, body: {}}, response: 418, expect: {row: 'classify[0]'}}]\n"
    )
    (one,) = run_case_files([tmp_path])
    assert one.ok
    assert [rule.name for rule in one.coverage.targets] == ["classify[0]"]
    assert one.covered


# --- files


def test_a_policy_without_cases_is_told_where_to_write_them(bank: Path) -> None:
    (one,) = run_case_files([bank])
    assert not one.covered
    assert one.ok
    assert f"no cases: write {bank}/tests/bank.yaml" in "\n".join(report_lines([one]))


def test_a_case_file_finds_its_policy_by_name_or_by_key(bank: Path) -> None:
    with_cases(bank, "{request: pay, response: paid, expect: {class: succeeded}}")
    text = (bank / "tests" / "bank.yaml").read_text()
    (bank / "tests" / "more.yaml").write_text("policy: ../bank.yaml\n" + text)
    assert [one.policy for one in run_case_files([bank / "tests" / "bank.yaml"])] == [str(bank / "bank.yaml")]
    (one,) = run_case_files([bank / "tests" / "more.yaml"])
    assert one.ok
    assert len(one.judged) == 1


def test_cases_of_a_policy_that_does_not_load_are_not_run(bank: Path) -> None:
    (bank / "bank.yaml").write_text(POLICY.replace("kind: sale", "kind: sail"))
    one = with_cases(bank, "{request: pay, response: paid, expect: {class: succeeded}}")
    assert not one.ok
    assert "did you mean 'sale'?" in one.problems[0]


@pytest.mark.parametrize(
    ("cases", "says"),
    [
        ("cases: []", "bank.yaml:1:8: cases: found an empty list"),
        ("requests: {}", "bank.yaml:1:1: cases: found nothing, it is required: a list of cases"),
        (
            "cases: [{request: pay, response: 200, expect: {class: failed}}]",
            "and there is none above it under 'requests'",
        ),
        (
            HEAD + "  - {request: pai, response: 200, expect: {class: failed}}",
            "found 'pai', allowed: pay",
        ),
        (HEAD + "  - {request: pay, response: payd, expect: {class: failed}}", "did you mean 'paid'?"),
        (HEAD + "  - {request: pay, respons: 200, expect: {class: failed}}", "did you mean 'response'?"),
        (HEAD + "  - {request: pay, response: 200, expect: {clas: failed}}", "did you mean 'class'?"),
        (HEAD + "  - {request: pay, response: 200, expect: {class: fail}}", "did you mean 'failed'?"),
        (HEAD + "  - {request: pay, response: 200, expect: {}}", "found nothing to compare"),
        (HEAD + "  - {request: pay, response: 200, expect: {because: in_doubt_same_key}}", "did you mean"),
        (HEAD + "  - {request: pay, response: 200, expect: {amount: 10}}", "such as 500.00 EUR"),
        (HEAD + "  - {request: pay, response: 999, expect: {class: failed}}", "a whole number from 100 to 599"),
        (HEAD + "  - {request: pay, fault: reste, expect: {class: failed}}", "did you mean 'reset'?"),
        (HEAD + "  - {request: pay, response: 200, fault: reset, expect: {class: failed}}", "found beside 'response'"),
        (HEAD + "  - {request: pay, response: 200, phase: sending, expect: {class: failed}}", "found without 'fault'"),
        (HEAD + "  - {request: pay, expect: {class: failed}}", "found no result of the request"),
        (HEAD + "  - {request: pay, after: {age: soon}, response: 200, expect: {class: failed}}", "a duration such as"),
        (
            HEAD + "  - {request: {send: v1/payments}, response: 200, expect: {class: failed}}",
            "a method and a path such as",
        ),
        (
            HEAD + "  - {request: {headers: {A: b}}, response: 200, expect: {class: failed}}",
            "it is required: a method and a path",
        ),
        (
            HEAD + "  - {request: pay, response: {body: {code: {each}}}, each: [a], expect: {class: failed}}",
            'allowed: "{each}"',
        ),
        ("cases: {", "this is not YAML"),
    ],
)
def test_a_bad_case_file_names_the_place_and_what_is_allowed(cases: str, says: str) -> None:
    problems = problems_of(cases)
    assert any(says in problem for problem in problems), problems
    assert all(problem.startswith("bank.yaml:") for problem in problems)


def test_the_same_is_told_to_machines(bank: Path) -> None:
    one = with_cases(bank, "{request: pay, response: paid, expect: {class: pending}}")
    found = json.loads(json.dumps(as_json([one])))
    assert found["ok"] is False
    assert found["covered"] is False
    (file,) = found["files"]
    (case,) = file["cases"]
    assert case["failures"] == [{"line": 7, "key": "class", "expected": "pending", "came": "succeeded"}]
    assert file["classes"] == {"pay": ["succeeded"]}
    assert file["reached"]["operations"] == {"reached": 1, "of": 2}
    assert {"rule": "refund", "kind": "operations", "file": str(bank / "bank.yaml"), "line": 21} in file["not_reached"]
