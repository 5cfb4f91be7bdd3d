"""The rows of `priority`: which calls matter more, by what their bodies say and how much they are about."""

from __future__ import annotations

from proxy.core.call import Priority
from proxy.core.priority import PriorityRule
from proxy.policy.expressions import JmesPath
from proxy.policy.scalars import Reader, money, one_of
from proxy.policy.schema import PRIORITY
from proxy.policy.section import Section

_AMOUNTS = ("above", "below")
_CONDITIONS = ("when", *_AMOUNTS)


def read_priorities(parent: Section, over_body: Reader[JmesPath], *, has_money: bool) -> tuple[PriorityRule, ...]:
    """The rows of a file or of an operation. `has_money`: there is an amount and a currency to compare with."""
    sections = parent.children("priority", PRIORITY)
    for section in sections[:-1]:
        if not any(section.has(key) for key in _CONDITIONS):
            found = "found no condition, so no row below it would be reached, allowed: as the last row only"
            section.problems.add(section.mark, section.path, found)
    rules = (_read_row(section, over_body, has_money=has_money) for section in sections)
    return tuple(rule for rule in rules if rule is not None)


def _read_row(section: Section, over_body: Reader[JmesPath], *, has_money: bool) -> PriorityRule | None:
    priority = section.read("as", one_of(Priority))
    when = section.read("when", over_body)
    above, below = section.read("above", money), section.read("below", money)
    for key in _AMOUNTS:
        if section.has(key) and not has_money:
            section.add(
                key, "found with nothing to compare, allowed: where an operation has both 'amount' and 'currency'"
            )
    if above is not None and below is not None:
        if above.currency != below.currency:
            section.add("below", f"found {below} beside {above}, allowed: one currency in a row")
        elif below.minor_units <= above.minor_units + 1:
            section.add(
                "below", f"found {below} beside 'above' {above}, allowed: so much more that an amount is between"
            )
    return PriorityRule(priority, when, above, below) if priority is not None else None
