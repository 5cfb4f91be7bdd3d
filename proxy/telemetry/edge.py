"""What the edge counts by itself: callers' connections, and requests that never became a call.

Nothing is told of these as a record: strangers could write the log. Looked at when somebody scrapes, by `look`, in the
loop's thread, as the limits are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from proxy.telemetry.names import BoundedWords

_REASON = ("reason",)


class EdgeCounted(Protocol):
    """What a server counts: the edge's `EdgeCounters`, by its shape. Reasons are words of our code."""

    @property
    def connections_open(self) -> int: ...
    @property
    def refused(self) -> Mapping[str, int]: ...
    @property
    def broken(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class _Seen:
    connections: int
    refused: Mapping[str, int]
    broken: Mapping[str, int]


class EdgeGauges:
    """A collector of the registry. Shows nothing before it was told what to watch, and has looked."""

    def __init__(self) -> None:
        self._watched: EdgeCounted | None = None
        self._seen: _Seen | None = None
        self._reasons = BoundedWords()

    def watch(self, watched: EdgeCounted) -> None:
        self._watched = watched

    def look(self) -> None:
        """See how things stand now. Not in another thread than the edge's."""
        if self._watched is not None:
            refused, broken = self._bounded(self._watched.refused), self._bounded(self._watched.broken)
            self._seen = _Seen(self._watched.connections_open, refused, broken)

    def _bounded(self, counted: Mapping[str, int]) -> dict[str, int]:
        shown: dict[str, int] = {}
        for reason, number in counted.items():
            label = self._reasons.label(reason)
            shown[label] = shown.get(label, 0) + number
        return shown

    def collect(self) -> Iterator[Metric]:
        connections = GaugeMetricFamily("paywitness_edge_connections", "Connections of callers that are open.")
        refused = CounterMetricFamily(
            "paywitness_edge_refusals_total", "Requests and connections turned away at the door.", labels=_REASON
        )
        broken = CounterMetricFamily(
            "paywitness_edge_broken_answers_total", "Answers that did not reach their end.", labels=_REASON
        )
        seen = self._seen
        if seen is not None:
            connections.add_metric((), seen.connections)
            for reason, number in seen.refused.items():
                refused.add_metric((reason,), number)
            for reason, number in seen.broken.items():
                broken.add_metric((reason,), number)
        yield from (connections, refused, broken)
