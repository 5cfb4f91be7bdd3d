"""A policy diff in lines for a person, and as JSON for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from paywitness.core.money import Money
from paywitness.tools.policy_diff.backtest import BacktestReport, OperationDifference
from paywitness.tools.policy_diff.comparison import ProviderDiff

_PROVIDER_ITSELF = "provider"


def diff_lines(diffs: list[ProviderDiff], limit: int) -> Iterator[str]:
    """The changes of an edit, provider by provider, with at most `limit` cases of each."""
    differing = [one for one in diffs if one.differs]
    for one in differing:
        yield from _provider_lines(one, limit)
    if not differing:
        yield f"No difference in meaning ({_counted(_cases_run(diffs), 'case')} run under both)."
        return
    differ = "differs" if len(differing) == 1 else "differ"
    yield f"{len(differing)} of {_counted(len(diffs), 'provider')} {differ}: {summary(diffs)}."


def summary(diffs: list[ProviderDiff]) -> str:
    """The numbers of changes, in one line."""
    facts, rows = sum(len(one.facts) for one in diffs), sum(len(one.rows) for one in diffs)
    codes, cases = sum(len(one.codes) for one in diffs), sum(len(one.cases) for one in diffs)
    parts = [_counted(facts, "fact"), _counted(rows, "row"), _counted(codes, "code")]
    return f"{', '.join(parts)}; {cases} of {_counted(_cases_run(diffs), 'case')} have another result"


def _cases_run(diffs: list[ProviderDiff]) -> int:
    return sum(one.cases_run for one in diffs)


def _provider_lines(one: ProviderDiff, limit: int) -> Iterator[str]:
    if one.old is None or one.new is None:
        there = one.new or one.old
        yield f"{one.name}: {'added' if one.old is None else 'removed'} ({there.source if there is not None else ''})"
        return
    yield f"{one.name}: {one.old.source} -> {one.new.source}"
    if one.identity:
        yield "  gives known calls another identity; refused unless the file says `identity_change: accepted`:"
        yield from (f"    {line}" for line in one.identity)
    for what, names in (("added", one.operations_added), ("removed", one.operations_removed)):
        if names:
            yield f"  operations {what}: {', '.join(names)}"
    for operation, changes in groupby(one.facts, key=lambda change: change.operation):
        yield f"  {operation or _PROVIDER_ITSELF}:"
        yield from (f"    {change.fact}: {change.old} -> {change.new}" for change in changes)
    for title, lines in (("rows", one.rows), ("tables", one.codes)):
        if lines:
            yield f"  {title}:"
            yield from (f"    {line}" for line in lines)
    yield from _case_lines(one, limit)


def _case_lines(one: ProviderDiff, limit: int) -> Iterator[str]:
    if not one.case_file:
        yield "  cases: neither policy has any, so none was run"
        return
    found = f"{len(one.cases)} of {one.cases_run} have another result"
    yield f"  cases: {found} ({one.case_file})"
    for change in one.cases[:limit]:
        yield f"    {change.case.name}"
        yield from (f"      {name}: {old} -> {new}" for name, old, new in change.facts)
    if len(one.cases) > limit:
        yield f"    and {len(one.cases) - limit} more (--limit)"


def backtest_lines(found: BacktestReport, journal: str) -> Iterator[str]:
    """The effect of the edit on recorded operations."""
    which = "all of them" if found.complete else "the newest (--newest)"
    yield f"{journal}: examined {_counted(found.examined, 'operation')}, {which}."
    yield f"  {found.same:,} would have been treated alike"
    for kind, total in sorted(found.totals.items(), key=lambda pair: -pair[1].count):
        money = f" ({_money(total.money)})" if total.money else ""
        yield f"  {total.count:,} would have been {kind}{money}"
    for reason, count in found.not_replayed.most_common():
        yield f"  {count:,} could not be replayed: {reason}"
    if found.requests_erased:
        why = "their requests are erased when they end, and the edit changes how calls are recognised"
        yield f"  of {found.requests_erased:,} it is unknown whether they would be recognised under the same key: {why}"
    if found.decided_differently:
        why = "another revision, another deadline, or a limit that refused a retry"
        yield f"  {found.decided_differently:,} are recorded with another decision than the old policy makes: {why}"
    if found.examples:
        yield "Examples:"
    for example in found.examples:
        yield from _example_lines(example)


def _example_lines(example: OperationDifference) -> Iterator[str]:
    operation = example.operation
    money = f" {operation.money}" if operation.money is not None else ""
    yield f"  {operation.id} {operation.provider} {operation.operation}{money}: {example.kind}, {example.when}"
    yield f"    old: {example.old}"
    yield f"    new: {example.new}"


def _money(amounts: Counter[str]) -> str:
    return ", ".join(str(Money(minor_units, currency)) for currency, minor_units in sorted(amounts.items()))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


# --- JSON


def as_json(diffs: list[ProviderDiff], limit: int, found: BacktestReport | None = None) -> dict[str, Any]:
    report: dict[str, Any] = {
        "differs": any(one.differs for one in diffs),
        "providers": [_provider_as_json(one, limit) for one in diffs],
    }
    return {**report, "against": _backtest_as_json(found)} if found is not None else report


def _provider_as_json(one: ProviderDiff, limit: int) -> dict[str, Any]:
    return {
        "provider": one.name,
        "old": one.old.source if one.old is not None else None,
        "new": one.new.source if one.new is not None else None,
        "differs": one.differs,
        "identity": one.identity,
        "operations_added": one.operations_added,
        "operations_removed": one.operations_removed,
        "facts": [
            {"operation": change.operation or None, "fact": change.fact, "old": change.old, "new": change.new}
            for change in one.facts
        ],
        "rows": [
            {"change": change.kind, "row": change.row, "old": change.old or None, "new": change.new or None}
            for change in one.rows
        ],
        "codes": [
            {"table": change.table, "code": change.code, "old": change.old, "new": change.new} for change in one.codes
        ],
        "cases": {
            "file": one.case_file or None,
            "run": one.cases_run,
            "differ": len(one.cases),
            "examples": [
                {
                    "name": change.case.name,
                    "facts": {name: {"old": old, "new": new} for name, old, new in change.facts},
                }
                for change in one.cases[:limit]
            ],
        },
    }


def _backtest_as_json(found: BacktestReport) -> dict[str, Any]:
    return {
        "looked_at": found.examined,
        "complete": found.complete,
        "same": found.same,
        "differ": found.differing,
        "kinds": [
            {
                "kind": kind,
                "count": total.count,
                "money": {
                    currency: str(Money(minor_units, currency).major) for currency, minor_units in total.money.items()
                },
            }
            for kind, total in found.totals.items()
        ],
        "not_replayed": dict(found.not_replayed),
        "recognition_not_known": found.requests_erased,
        "decided_otherwise_then": found.decided_differently,
        "examples": [
            {
                "operation_id": example.operation.id,
                "provider": example.operation.provider,
                "operation": example.operation.operation,
                "amount": str(example.operation.money) if example.operation.money is not None else None,
                "kind": example.kind,
                "when": example.when,
                "old": example.old,
                "new": example.new,
            }
            for example in found.examples
        ],
    }
