"""`observe`: a row that is only watched is asked, told and passed over; a policy that only observes says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from paywitness.cli.run import startup_lines
from paywitness.core.classify import ExpectedPayment, classify
from paywitness.core.inquiry import read_object
from paywitness.core.operation import FindingKind
from paywitness.core.policy import Policy
from paywitness.core.result import Classification, ResultClass, ShadowMatch
from paywitness.option_defaults import Settings
from paywitness.policy.book import PolicyBook
from paywitness.policy.check import describe_provider
from paywitness.policy.explain import FailureScenario, explain
from paywitness.policy.watch import book_changes
from paywitness.tools.policy_test.case_runner import run_case_files
from tests.core.samples import answered, response
from tests.policy.bad_files import problems_of
from tests.policy.test_fallbacks import FIRST, OTHER, problems_in
from tests.policy.texts import MINIMAL, changed, load

PAID = """    - {when: "status == 'paid'", as: succeeded}\n"""
WATCHED = """\
    - {when: "status == 'paid'", as: pending, observe: true}
    - {when: "id == 'p1'", as: failed, observe: true}
"""
TWO = changed(PAID, WATCHED + PAID)


def pay(text: str) -> Policy:
    (policy,) = load(text).policies
    return policy


def read(text: str, body: object, status: int = 200) -> Classification:
    return classify(answered(response(status, body)), pay(text).classify)


def test_a_row_that_is_only_watched_is_told_and_the_rows_below_it_decide() -> None:
    found = read(TWO, {"status": "paid", "id": "p1"})
    assert (found.result_class, found.rule) == (ResultClass.SUCCEEDED, "answers.payment[2]")
    assert found.shadow_match == ShadowMatch("answers.payment[0]", ResultClass.PENDING)


def test_the_first_of_those_watched_is_told_and_no_row_that_does_not_match() -> None:
    found = read(TWO, {"status": "odd", "id": "p1"})
    assert (found.result_class, found.rule) == (ResultClass.UNKNOWN_OUTCOME, "unrecognised_2xx")
    assert found.shadow_match == ShadowMatch("answers.payment[1]", ResultClass.FAILED)
    assert read(TWO, {"status": "odd"}).shadow_match is None


def test_a_watched_row_below_the_one_that_matches_would_not_have_been_asked() -> None:
    assert read(changed(PAID, PAID + WATCHED), {"status": "paid", "id": "p1"}).shadow_match is None


def test_an_answer_is_read_as_if_the_watched_rows_were_not_there() -> None:
    for body in ({"status": "paid", "id": "p1"}, {"status": "refused", "reason": "no_funds", "id": "p1"}, {}, None):
        for status in (200, 402, 500):
            with_them, without = read(TWO, body, status), read(MINIMAL, body, status)
            assert (with_them.result_class, with_them.effect) == (without.result_class, without.effect)
            assert (with_them.lost, with_them.reference) == (without.lost, without.reference)


def test_an_inquiry_passes_it_over_too() -> None:
    policy = pay(TWO)
    shown = {"status": "odd", "id": "p1"}
    rows = policy.inquiries[0].answers
    seen = read_object("ask[0]", rows, policy.classify, ExpectedPayment(), response(200, shown), shown)
    assert seen.finding.kind is FindingKind.FAILED


def test_a_success_that_is_only_watched_is_none() -> None:
    only = changed(PAID, PAID.replace("succeeded}", "succeeded, observe: true}"))
    (problem,) = problems_of(only)
    assert "none of whose rows reads a success" in problem


def test_a_cancel_that_is_only_watched_is_none() -> None:
    row = "{status: 200, as: cancelled, observe: true}"
    cancel = f"    cancel: {{request: 'POST /v1/{{provider_key}}/void', read: [{row}]}}\n"
    (problem,) = problems_of(changed("    kind: sale\n", f"    kind: sale\n{cancel}"))
    assert "found no row that reads 'cancelled'" in problem


def test_it_is_described_and_explained() -> None:
    text = "mode: observe\n" + TWO
    lines = [line.strip() for line in describe_provider(load(text))]
    assert "mode: observe: calls pass unchanged; the decisions that would have been made are counted" in lines
    assert "rows in shadow mode, which decide nothing: answers.payment[0], answers.payment[1]" in lines
    told = explain(pay(text), FailureScenario(ResultClass.PENDING)).lines
    assert "  row:      answers.payment[0] reads pending (observe: passed over)" in told
    assert any(line.startswith("  mode:     observe: calls pass") for line in told)
    plain = explain(pay(MINIMAL), FailureScenario(ResultClass.PENDING)).lines
    assert not any("observe" in line for line in plain)


def test_no_fallback_leads_to_a_provider_that_is_only_observed(tmp_path: Path) -> None:
    (problem,) = problems_in(tmp_path, a=FIRST, b="mode: observe\n" + OTHER)
    assert problem.endswith("found 'other', which is in shadow mode, allowed: one that is in force")
    assert problems_in(tmp_path, a="mode: observe\n" + FIRST, b=OTHER) == []


@pytest.mark.parametrize(("expected", "passes"), [("answers.payment[0]", True), ("answers.payment[1]", False)])
def test_a_case_reaches_a_watched_row_and_may_expect_it(tmp_path: Path, expected: str, passes: bool) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "bank.yaml").write_text(TWO)
    (tmp_path / "tests" / "bank.yaml").write_text(
        "cases:\n  - request: {send: POST /v1/payments, body: {amount: 1, currency: EUR}}\n"
        f"    response: {{body: {{status: paid}}}}\n    expect: {{row: 'answers.payment[2]', observed: '{expected}'}}\n"
    )
    (run,) = run_case_files([tmp_path / "bank.yaml"])
    assert run.ok is passes, run
    missing = {rule.name for rule in run.coverage.missing}
    assert "answers.payment[0]" not in missing
    assert "answers.payment[1]" in missing


def test_a_reload_tells_what_is_only_observed_and_what_no_longer_is() -> None:
    before, after = PolicyBook.of([load(MINIMAL)]), PolicyBook.of([load("mode: observe\n" + MINIMAL)])
    assert "bank: only observed from now on" in book_changes(before, after)
    assert "bank: in force again" in book_changes(after, before)


def test_a_start_tells_what_is_only_observed() -> None:
    settings = Settings(Path())
    lines = startup_lines(settings, PolicyBook.of([load("mode: observe\n" + MINIMAL)]), 0)
    assert "Shadow mode, so calls pass unchanged and unguarded: bank" in lines
    assert not any("Shadow mode" in line for line in startup_lines(settings, PolicyBook.of([load(MINIMAL)]), 0))
