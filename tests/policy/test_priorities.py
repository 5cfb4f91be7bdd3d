"""The rows of `priority`: what they become, and how a call is told by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from paywitness.core.call import Priority
from paywitness.core.money import Money
from paywitness.core.policy import Policy, priority_of
from paywitness.core.result import ResultClass
from paywitness.policy.check import check
from paywitness.policy.explain import FailureScenario, explain
from tests.policy.bad_files import problems_of
from tests.policy.texts import MINIMAL, changed, load, operation

ROWS = """\
priority:
  - {when: "metadata.kind == 'subscription'", as: low}
  - {above: 500.00 EUR, as: high}
  - {as: medium}
"""
OWN = '    kind: sale\n    priority: [{when: "urgent == `true`", as: high}, {below: 100 JPY, as: low}]\n'


def policy_of(text: str) -> Policy:
    return operation(load(text), "pay")


def priority(policy: Policy, tree: dict[str, object], money: Money | None = None) -> Priority:
    return priority_of(None, policy.priorities, tree, money)


def test_rows_are_tried_in_their_order() -> None:
    policy = policy_of(ROWS + MINIMAL)
    subscription: dict[str, object] = {"metadata": {"kind": "subscription"}}
    assert priority(policy, subscription, Money(99_999, "EUR")) is Priority.LOW
    assert priority(policy, {}, Money(50_001, "EUR")) is Priority.HIGH
    assert priority(policy, {}, Money(50_000, "EUR")) is Priority.MEDIUM
    assert priority(policy, {"metadata": "no mapping"}) is Priority.MEDIUM


def test_a_file_without_rows_says_nothing() -> None:
    assert policy_of(MINIMAL).priorities == ()


def test_the_operations_rows_go_in_front_of_the_files() -> None:
    policy = policy_of(ROWS + changed("    kind: sale\n", OWN))
    assert [str(rule.priority) for rule in policy.priorities] == ["high", "low", "low", "high", "medium"]
    assert priority(policy, {"urgent": True, "metadata": {"kind": "subscription"}}) is Priority.HIGH
    assert priority(policy, {}, Money(99, "JPY")) is Priority.LOW
    assert priority(policy, {}, Money(99, "EUR")) is Priority.MEDIUM


@pytest.mark.parametrize(
    ("written", "money"),
    [
        ("500.00 EUR", Money(50_000, "EUR")),
        ("500 EUR", Money(50_000, "EUR")),
        ("500 JPY", Money(500, "JPY")),
        ("1.234 KWD", Money(1_234, "KWD")),
        ("0 EUR", Money(0, "EUR")),
    ],
)
def test_an_amount_is_in_major_units_with_its_currency(written: str, money: Money) -> None:
    (rule,) = policy_of(f"priority: [{{above: {written}, as: low}}]\n" + MINIMAL).priorities
    assert rule.above == money


def test_the_body_of_a_form_has_texts_only() -> None:
    text = 'body: form\npriority: [{when: "urgent == `true`", as: high}]\n' + MINIMAL
    assert problems_of(text) == (
        "bank.yaml:2:19: priority[0].when: found a comparison with `true`, but form values are texts: write 'true'",
    )


def test_the_kept_content_gives_the_same_rows_again() -> None:
    provider = load(ROWS + changed("    kind: sale\n", OWN))
    assert load(provider.content) == provider


def test_a_problem_of_the_files_rows_is_told_once_and_hides_none_of_an_operation() -> None:
    text = "priority: [{as: urgent}]\n" + changed("kind: sale", "kind: sail")
    assert [problem.split(": ")[1] for problem in problems_of(text)] == ["priority[0].as", "operations.pay.kind"]


def test_check_and_explain_tell_them(tmp_path: Path) -> None:
    def told(text: str) -> list[str]:
        file = tmp_path / "bank.yaml"
        file.write_text(text)
        return [line.strip() for line in check([file]).lines if line.strip().startswith("priority:")]

    said = "priority: low if metadata.kind == 'subscription', else high if above 500.00 EUR, else medium"
    assert told(MINIMAL) == []
    assert told(ROWS + MINIMAL) == [said]
    own = "priority: high if urgent == `true`, else low if below 100 JPY, else high"
    assert told(changed("    kind: sale\n", OWN)) == [own]
    lines = explain(policy_of(ROWS + MINIMAL), FailureScenario(ResultClass.NETWORK_READ_TIMEOUT)).lines
    assert f"  {said}" in lines


def test_a_file_none_of_whose_operations_has_an_amount_cannot_go_by_amounts() -> None:
    text = "priority: [{above: 1 EUR, as: low}]\n" + changed("    amount: {at: amount, unit: minor}\n", "")
    assert problems_of(text) == (
        "bank.yaml:1:20: priority[0].above: found with nothing to compare, "
        "allowed: if an operation has both 'amount' and 'currency'",
    )


def test_explain_tells_what_a_retry_costs_where_there_is_one() -> None:
    def told(reading: ResultClass) -> list[str]:
        lines = explain(policy_of(MINIMAL), FailureScenario(reading)).lines
        return [line.strip().partition("; ")[0] for line in lines if line.strip().startswith("budget:")]

    assert told(ResultClass.NETWORK_READ_TIMEOUT) == ["budget:   if it allows a retry of cost 4"]
    assert told(ResultClass.RATE_LIMITED) == ["budget:   if it allows a retry of cost 1"]
    assert told(ResultClass.ISSUER_HARD_DECLINE) == []
