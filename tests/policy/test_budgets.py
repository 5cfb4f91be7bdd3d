"""The `budget` block: what it says, and what follows from what it does not say."""

from __future__ import annotations

import pytest

from paywitness.core.budget import BudgetRules, ScopeRule
from paywitness.policy.block_parsers.limits import read_budget
from paywitness.policy.reading.document import read_document
from paywitness.policy.reading.locations import FileProblems
from paywitness.policy.reading.section import Section
from paywitness.policy.schema import FILE

FILLED = "\nprovider: bank\nupstream: https://bank.test\noperations: {}\n"


def read(text: str) -> tuple[BudgetRules, int]:
    problems = FileProblems()
    document = read_document((text + FILLED).encode(), "bank.yaml", problems)
    assert document is not None
    return read_budget(Section(document, "", FILE, problems)), problems.count


def test_without_a_block_the_defaults_hold() -> None:
    rules, problems = read("")
    assert (rules, problems) == (BudgetRules(), 0)
    floors = (rules.provider.floor, rules.operation.floor, rules.account.floor, rules.failure_class.floor)
    assert (rules.window_s, floors, rules.per_intent) == (10.0, (100, 50, 30, 50), 3)
    assert rules.provider == ScopeRule(100, 0.05, 1.0)


def test_all_of_it_can_be_said() -> None:
    rules, problems = read("budget: {window: 30s, provider: {floor: 20, ratio: 10%, ceiling: 50%}, per_intent: 0}")
    assert (rules, problems) == (BudgetRules(30.0, ScopeRule(20, 0.1, 0.5), per_intent=0), 0)


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("ceiling: 2%", ScopeRule(30, 0.02, 0.02)),
        ("ratio: 150%", ScopeRule(30, 1.5, 1.5)),
        ("floor: 0", ScopeRule(0, 0.05, 1.0)),
    ],
)
def test_what_is_not_said_follows_what_is(said: str, rule: ScopeRule) -> None:
    assert read(f"budget: {{account: {{{said}}}}}") == (BudgetRules(account=rule), 0)


def test_a_ratio_above_its_ceiling_is_a_problem() -> None:
    assert read("budget: {account: {ratio: 20%, ceiling: 10%}}")[1] == 1
