"""Who goes first: the caller's word, then the first row that applies, then high."""

from __future__ import annotations

import pytest

from paywitness.core.bodies.tree import Tree
from paywitness.core.call import Priority
from paywitness.core.money import Money
from paywitness.core.policy import PriorityRule, priority_of

LOW, MEDIUM, HIGH = PriorityRule(Priority.LOW), PriorityRule(Priority.MEDIUM), PriorityRule(Priority.HIGH)


def is_subscription(tree: Tree) -> Tree:
    return isinstance(tree, dict) and tree.get("kind") == "subscription"


@pytest.mark.parametrize("wish", list(Priority))
def test_the_callers_word_comes_before_every_row(wish: Priority) -> None:
    for rules in ((), (LOW,), (MEDIUM,), (HIGH,)):
        assert priority_of(wish, rules, {}, None) is wish


def test_where_nothing_is_said_a_call_is_high() -> None:
    assert priority_of(None, (), {}, None) is Priority.HIGH
    assert priority_of(None, (PriorityRule(Priority.LOW, when=is_subscription),), {}, None) is Priority.HIGH


def test_the_first_row_that_applies_counts() -> None:
    rules = (PriorityRule(Priority.LOW, when=is_subscription), MEDIUM, HIGH)
    assert priority_of(None, rules, {"kind": "subscription"}, None) is Priority.LOW
    assert priority_of(None, rules, {"kind": "order"}, None) is Priority.MEDIUM


@pytest.mark.parametrize(
    ("rule", "applies_to"),
    [
        (PriorityRule(Priority.LOW, above=Money(500, "EUR")), {501}),
        (PriorityRule(Priority.LOW, below=Money(500, "EUR")), {499}),
        (PriorityRule(Priority.LOW, above=Money(498, "EUR"), below=Money(501, "EUR")), {499, 500}),
    ],
)
def test_an_amount_is_above_or_below_and_never_equal(rule: PriorityRule, applies_to: set[int]) -> None:
    assert {amount for amount in (499, 500, 501) if rule.applies({}, Money(amount, "EUR"))} == applies_to


@pytest.mark.parametrize("money", [None, Money(1, "JPY"), Money(10**9, "JPY")])
def test_an_unknown_amount_or_another_currency_is_neither_above_nor_below(money: Money | None) -> None:
    assert not PriorityRule(Priority.LOW, above=Money(500, "EUR")).applies({}, money)
    assert not PriorityRule(Priority.LOW, below=Money(500, "EUR")).applies({}, money)


def test_every_condition_of_a_row_must_hold() -> None:
    rule = PriorityRule(Priority.LOW, when=is_subscription, below=Money(500, "EUR"))
    subscription: Tree = {"kind": "subscription"}
    assert rule.applies(subscription, Money(499, "EUR"))
    assert not rule.applies({}, Money(499, "EUR"))
    assert not rule.applies(subscription, Money(500, "EUR"))
