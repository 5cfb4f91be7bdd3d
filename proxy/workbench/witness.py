"""Rows that tell when they were reached: how `policy test` knows what its cases cover.

A witnessed provider decides exactly as the provider it was made from; its rows call back when one of them reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from proxy.core.body import Tree
from proxy.core.classify import Row, evaluate
from proxy.core.evidence import Response
from proxy.core.frozen import frozen
from proxy.core.policy import Policy, Provider
from proxy.core.reading import Reading


@dataclass(frozen=True, slots=True)
class Reached:
    """A row that read something, by its table's code where it has one. No code: by `otherwise`."""

    row: str
    reading: Reading
    code: str | None = None
    observed: bool = False  # the row is only watched, and was passed over


Tell = Callable[[Reached], None]


def _nobody(_: Reached) -> None:
    return None


@frozen
class WitnessedRow(Row):
    tell: Tell = _nobody

    def read(self, response: Response, tree: Tree) -> Reading | None:
        reading = Row.read(self, response, tree)
        if reading is not None:
            found = str(evaluate(self.code, tree)) if self.code is not None else None
            listed = found is not None and found in (self.table or {})
            self.tell(Reached(self.name, reading, found if listed else None, self.observe))
        return reading


def witnessed(provider: Provider, tell: Tell) -> Provider:
    """The provider with every row of it telling."""
    notices = provider.notices
    if notices is not None:
        answers = {name: _rows(rows, tell) for name, rows in notices.answers.items()}
        notices = replace(notices, answers=answers, read=_rows(notices.read, tell))
    policies = tuple(_policy(policy, tell) for policy in provider.policies)
    return replace(provider, policies=policies, notices=notices)


def _policy(policy: Policy, tell: Tell) -> Policy:
    rules = policy.classify
    cancel = policy.cancel
    return replace(
        policy,
        classify=replace(rules, rows=_rows(rules.rows, tell), answers=_rows(rules.answers, tell)),
        inquiries=tuple(replace(one, answers=_rows(one.answers, tell)) for one in policy.inquiries),
        cancel=replace(cancel, read=_rows(cancel.read, tell)) if cancel is not None else None,
    )


def _rows(rows: tuple[Row, ...], tell: Tell) -> tuple[Row, ...]:
    names = Row.__dataclass_fields__
    return tuple(WitnessedRow(**{name: getattr(row, name) for name in names}, tell=tell) for row in rows)
