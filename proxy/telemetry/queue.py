"""The gauges about what waits to be tried or looked at again: shown as they were last counted, as those about doubt.

Only the age moves between two counts. Before the first there are no samples; after it every known provider and
operation has one, so that a queue that ran empty is seen as a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from proxy.core.operation import Operation, State
from proxy.telemetry.doubt import DoubtCounted
from proxy.telemetry.names import KnownNames

_LABELS = ("provider", "operation")


class Queued(Protocol):
    """What waits for one provider and operation, by its shape. `oldest_age_s`: of the one that waits longest."""

    @property
    def provider(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def oldest_age_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A row to show, where nothing of that shape is at hand."""

    provider: str
    operation: str
    count: int
    oldest_age_s: float


def waiting(counts: Iterable[DoubtCounted], pending: Iterable[Operation], now: float) -> tuple[QueueRow, ...]:
    """What will be looked at again by itself: what is in doubt, as the journal counted it, and what is pending."""
    in_doubt = [
        QueueRow(each.provider, each.operation, each.count, max(0.0, now - each.oldest_at))
        for each in counts
        if each.state is State.UNKNOWN
    ]
    not_final = [QueueRow(each.provider, each.operation, 1, max(0.0, now - each.created_at)) for each in pending]
    return (*in_doubt, *not_final)


@dataclass(frozen=True, slots=True)
class _Shown:
    depth: Mapping[tuple[str, str], int] = field(default_factory=dict)
    oldest_at: Mapping[tuple[str, str], float] = field(default_factory=dict)


class QueueGauges:
    """A collector of the registry."""

    def __init__(self, names: KnownNames, now: Callable[[], float]) -> None:
        self._names = names
        self._now = now
        self._shown: _Shown | None = None

    def show(self, rows: Iterable[Queued]) -> None:
        counted = tuple(rows)
        for row in counted:
            self._names.learn_pair(row.provider, row.operation)
        depth = dict.fromkeys(self._names.pairs(), 0)
        oldest_at: dict[tuple[str, str], float] = {}
        now = self._now()
        for row in counted:
            pair = self._names.pair(row.provider, row.operation)
            depth[pair] = depth.get(pair, 0) + row.count
            if row.count:
                oldest_at[pair] = min(oldest_at.get(pair, now), now - row.oldest_age_s)
        self._shown = _Shown(depth, oldest_at)

    def collect(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "payment_retry_queue_depth", "Operations that wait to be tried or looked at again.", labels=_LABELS
        )
        age = GaugeMetricFamily(
            "payment_retry_queue_oldest_age_seconds",
            "Age of the oldest operation that waits to be tried or looked at again, 0 where there is none.",
            labels=_LABELS,
        )
        shown = self._shown
        if shown is not None:
            now = self._now()
            for labels, number in shown.depth.items():
                depth.add_metric(labels, number)
                oldest_at = shown.oldest_at.get(labels)
                age.add_metric(labels, 0.0 if oldest_at is None else max(0.0, now - oldest_at))
        yield from (depth, age)
