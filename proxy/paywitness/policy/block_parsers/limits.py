"""The blocks `budget`, `circuit` and `priority`: how many retries a provider may get, at which shares of bad calls it
is called less or not at all, and which calls go first.

If the file leaves a value out, that value follows the one that the file gives. So a block with one key is never
contradictory.
"""

from __future__ import annotations

from dataclasses import replace

from paywitness.core.budget import BudgetRules, ScopeRule
from paywitness.core.call import Priority
from paywitness.core.circuit import CircuitRules
from paywitness.core.policy import PriorityRule
from paywitness.policy.reading.expressions import JmesPath
from paywitness.policy.reading.section import Section
from paywitness.policy.reading.value_readers import Reader, duration, money, one_of, percentage, whole_number
from paywitness.policy.schema import BUDGET, CIRCUIT, DEGRADE_AT, OPEN_AT, PRIORITY, SCOPE, Block


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
        per_intent=section.read_or("per_intent", whole_number(0, 100), default.per_intent),
    )


def _read_scope(section: Section, key: str, default: ScopeRule) -> ScopeRule:
    scope = section.child(key, SCOPE)
    if scope is None:
        return default
    floor = scope.read_or("floor", whole_number(0, 100_000), default.floor)
    ratio = scope.read("ratio", percentage(200))
    ceiling = scope.read("ceiling", percentage(200))
    if ratio is not None and ceiling is not None and ratio > ceiling:
        scope.add_problem("ratio", f"found {ratio:.0%}, allowed: at most the ceiling of {ceiling:.0%}")
    # If only one of the two is given, the other follows it, because neither is wrong by itself.
    if ratio is None:
        ratio = default.ratio if ceiling is None else min(default.ratio, ceiling)
    return ScopeRule(floor, ratio, max(default.ceiling, ratio) if ceiling is None else ceiling)


# --- Circuit


def read_circuit(file: Section) -> CircuitRules:
    default = CircuitRules()
    section = file.child("circuit", CIRCUIT)
    if section is None:
        return default
    open_at, degrade_at = _shares(section, "open_at", OPEN_AT), _shares(section, "degrade_at", DEGRADE_AT)
    opens = replace(default.open_at, **open_at)
    for share, value in degrade_at.items():
        if value > open_at.get(share, 1.0):
            section.add_problem("degrade_at", f"found a higher '{share}' than in 'open_at', allowed: at most that")
    # A file may open the circuit earlier than the default degrades it. Then the missing value follows the given one.
    followed = {share: min(getattr(default.degrade_at, share), value) for share, value in open_at.items()}
    return CircuitRules(
        window_s=section.read_or("window", duration(1, 3600), default.window_s),
        minimum=section.read_or("minimum", whole_number(1, 100_000), default.minimum),
        slow_after_s=section.read_or("slow_after", duration(0.05, 600), default.slow_after_s),
        open_at=opens,
        degrade_at=replace(default.degrade_at, **(followed | degrade_at)),
    )


def _shares(section: Section, key: str, block: Block) -> dict[str, float]:
    inner = section.child(key, block)
    if inner is None:
        return {}
    found = {share: inner.read(share, percentage(100)) for share in block.keys}
    return {share: value for share, value in found.items() if value is not None}


# --- Priority

_AMOUNTS = ("above", "below")
_CONDITIONS = ("when", *_AMOUNTS)


def read_priorities(parent: Section, over_body: Reader[JmesPath], *, has_money: bool) -> tuple[PriorityRule, ...]:
    """The rows of a file or of an operation. `has_money`: the operation has an amount and a currency to compare
    with."""
    sections = parent.children("priority", PRIORITY)
    for section in sections[:-1]:
        if not any(section.has(key) for key in _CONDITIONS):
            found = "found no condition, so no row below it would be reached, allowed: as the last row only"
            section.problems.add(section.location, section.path, found)
    rules = (_read_row(section, over_body, has_money=has_money) for section in sections)
    return tuple(rule for rule in rules if rule is not None)


def _read_row(section: Section, over_body: Reader[JmesPath], *, has_money: bool) -> PriorityRule | None:
    priority = section.read("as", one_of(Priority))
    when = section.read("when", over_body)
    above, below = section.read("above", money), section.read("below", money)
    for key in _AMOUNTS:
        if section.has(key) and not has_money:
            section.add_problem(
                key, "found with nothing to compare, allowed: if an operation has both 'amount' and 'currency'"
            )
    if above is not None and below is not None:
        if above.currency != below.currency:
            section.add_problem("below", f"found {below} beside {above}, allowed: one currency in a row")
        elif below.minor_units <= above.minor_units + 1:
            section.add_problem(
                "below", f"found {below} beside 'above' {above}, allowed: so much more that an amount is between"
            )
    return PriorityRule(priority, when, above, below) if priority is not None else None
