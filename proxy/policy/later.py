"""Blocks that are read and checked whole, and not in force yet: budget and circuit.

They are checked all the same, so that a file which loads today also loads when they act.
"""

from __future__ import annotations

from proxy.policy.scalars import duration, percentage, whole
from proxy.policy.schema import BUDGET, CIRCUIT, DEGRADE_AT, OPEN_AT, SCOPE
from proxy.policy.section import Section


def read_budget(file: Section) -> None:
    section = file.child("budget", BUDGET)
    if section is None:
        return
    section.read("window", duration(1, 3600))
    section.read("per_intent", whole(0, 100))
    for key in ("provider", "operation", "account", "failure_class"):
        scope = section.child(key, SCOPE)
        if scope is None:
            continue
        scope.read("floor", whole(0, 100_000))
        ratio = scope.read("ratio", percentage(200))
        ceiling = scope.read("ceiling", percentage(200))
        if ratio is not None and ceiling is not None and ratio > ceiling:
            scope.add("ratio", f"found {ratio:.0%}, allowed: at most the ceiling of {ceiling:.0%}")


def read_circuit(file: Section) -> None:
    section = file.child("circuit", CIRCUIT)
    if section is None:
        return
    section.read("window", duration(1, 3600))
    section.read("minimum", whole(1, 100_000))
    section.read("slow_after", duration(0.05, 600))
    shares: dict[str, dict[str, float]] = {}
    for key, block in (("open_at", OPEN_AT), ("degrade_at", DEGRADE_AT)):
        inner = section.child(key, block)
        if inner is not None:
            found = {share: inner.read(share, percentage(100)) for share in block.keys}
            shares[key] = {share: value for share, value in found.items() if value is not None}
    for share, value in shares.get("degrade_at", {}).items():
        if value > shares.get("open_at", {}).get(share, 1.0):
            section.add("degrade_at", f"found a higher '{share}' than in 'open_at', allowed: at most that")
