"""Priority: how much a call matters where a provider cannot take them all. The caller's word, then the policy's rules.

A priority says who waits and whose retry is refused first. It never says whether a payment may be made.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.core.body import Tree
from proxy.core.call import Priority
from proxy.core.classify import Expression, truthy
from proxy.core.money import Money


@dataclass(frozen=True, slots=True)
class PriorityRule:
    """One row of `priority`. Every condition given must hold; a row without any takes every call."""

    priority: Priority  # `as`
    when: Expression | None = None  # over the request's body
    above: Money | None = None
    below: Money | None = None

    def applies(self, tree: Tree, money: Money | None) -> bool:
        return (
            (self.above is None or _is_more(money, self.above))
            and (self.below is None or _is_less(money, self.below))
            and (self.when is None or truthy(self.when, tree))
        )


def priority_of(wish: Priority | None, rules: tuple[PriorityRule, ...], tree: Tree, money: Money | None) -> Priority:
    """The caller's own word, else the first row that applies, else high.

    A service that says nothing has one kind of payments, and nothing of it is worth less.
    """
    if wish is not None:
        return wish
    for rule in rules:
        if rule.applies(tree, money):
            return rule.priority
    return Priority.HIGH


# Amounts of two currencies do not compare, and an amount that is not known is neither more nor less.


def _is_more(money: Money | None, bound: Money) -> bool:
    return money is not None and money.currency == bound.currency and money.minor_units > bound.minor_units


def _is_less(money: Money | None, bound: Money) -> bool:
    return money is not None and money.currency == bound.currency and money.minor_units < bound.minor_units
