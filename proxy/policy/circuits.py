"""The `circuit` block: from which shares on a provider is called less, or not at all."""

from __future__ import annotations

from dataclasses import replace

from proxy.core.circuit import CircuitRules
from proxy.policy.scalars import duration, percentage, whole
from proxy.policy.schema import CIRCUIT, DEGRADE_AT, OPEN_AT, Block
from proxy.policy.section import Section


def read_circuit(file: Section) -> CircuitRules:
    default = CircuitRules()
    section = file.child("circuit", CIRCUIT)
    if section is None:
        return default
    open_at, degrade_at = _shares(section, "open_at", OPEN_AT), _shares(section, "degrade_at", DEGRADE_AT)
    opens = replace(default.open_at, **open_at)
    for share, value in degrade_at.items():
        if value > open_at.get(share, 1.0):
            section.add("degrade_at", f"found a higher '{share}' than in 'open_at', allowed: at most that")
    # A file that opens earlier than the default degrades says nothing wrong: what is not said follows what is.
    followed = {share: min(getattr(default.degrade_at, share), value) for share, value in open_at.items()}
    return CircuitRules(
        window_s=section.read_or("window", duration(1, 3600), default.window_s),
        minimum=section.read_or("minimum", whole(1, 100_000), default.minimum),
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
