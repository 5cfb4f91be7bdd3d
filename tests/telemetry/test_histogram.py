"""Durations: the same samples as the library's own histogram."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from paywitness.telemetry.prometheus import DurationHistogram

BOUNDS_S = (0.005, 0.1, 1.0, 86400.0)


def shown(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.0050001, 0.1, 0.5, 86400.0, 1e9])
def test_a_duration_falls_into_the_buckets_that_the_library_puts_it_in(seconds: float) -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    library = Histogram("took_seconds", "How long.", ("call",), registry=theirs, buckets=BOUNDS_S)
    durations = DurationHistogram("took_seconds", "How long.", ("call",), BOUNDS_S, ours)
    for family in (library, durations):
        family.labels("claim").observe(seconds)
        family.labels("claim").observe(0.05)
        family.labels("record").observe(0.2)
    assert shown(ours) == shown(theirs)


def test_a_family_is_registered_once() -> None:
    registry = CollectorRegistry()
    DurationHistogram("took_seconds", "How long.", ("call",), BOUNDS_S, registry)
    with pytest.raises(ValueError, match="Duplicated"):
        DurationHistogram("took_seconds", "How long.", ("call",), BOUNDS_S, registry)
