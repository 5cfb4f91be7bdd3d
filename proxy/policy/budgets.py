"""The `budget` block: how many retries a provider may see, as `core.budget.BudgetRules`. One for all its operations."""

from __future__ import annotations

from proxy.core.budget import BudgetRules, ScopeRule
from proxy.policy.scalars import duration, percentage, whole
from proxy.policy.schema import BUDGET, SCOPE
from proxy.policy.section import Section


def read_budget(file: Section) -> BudgetRules:
    default = BudgetRules()
    section = file.child("budget", BUDGET)
    if section is None:
        return default
    return BudgetRules(
        window_s=section.read_or("window", duration(1, 3600), default.window_s),
        provider=_read_scope(section, "provider", default.provider),
        operation=_read_scope(section, "operation", default.operation),
        account=_read_scope(section, "account", default.account),
        failure_class=_read_scope(section, "failure_class", default.failure_class),
        per_intent=section.read_or("per_intent", whole(0, 100), default.per_intent),
    )


def _read_scope(section: Section, key: str, default: ScopeRule) -> ScopeRule:
    scope = section.child(key, SCOPE)
    if scope is None:
        return default
    floor = scope.read_or("floor", whole(0, 100_000), default.floor)
    ratio = scope.read("ratio", percentage(200))
    ceiling = scope.read("ceiling", percentage(200))
    if ratio is not None and ceiling is not None and ratio > ceiling:
        scope.add("ratio", f"found {ratio:.0%}, allowed: at most the ceiling of {ceiling:.0%}")
    # Where only one of the two is said, the other follows it: neither is wrong by itself.
    if ratio is None:
        ratio = default.ratio if ceiling is None else min(default.ratio, ceiling)
    return ScopeRule(floor, ratio, max(default.ceiling, ratio) if ceiling is None else ceiling)
