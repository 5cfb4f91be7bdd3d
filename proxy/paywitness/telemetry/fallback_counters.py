"""Counters of fallbacks: which routes were left and why, and what became of the money at the other route."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from paywitness.core.operation import Operation
from paywitness.telemetry.events import FellBack
from paywitness.telemetry.prometheus import BoundedLabels, KnownNames


class FallbackCounters:
    def __init__(self, registry: CollectorRegistry, names: KnownNames) -> None:
        self._names = names
        self._reasons = BoundedLabels()
        self._started = Counter(
            "payment_fallback_total",
            "Operations without effect that were started again at another provider.",
            ("from_provider", "to_provider", "reason"),
            registry=registry,
        )
        self._ended = Counter(
            "payment_fallback_outcomes_total",
            "Operations that stood for another provider's and ended, by what became of the money.",
            ("from", "to", "reason", "outcome"),
            registry=registry,
        )

    def fell_back(self, event: FellBack) -> None:
        routes = (self._names.provider(event.from_provider), self._names.provider(event.to_provider))
        self._started.labels(*routes, self._reasons.label(event.reason)).inc()
        if event.ended is not None:  # one that is left for a further route is not told as ended otherwise
            self.ended(event.ended)

    def ended(self, operation: Operation) -> None:
        """An operation has ended, for the first and only time. Those that stand for none are not counted."""
        if operation.fallback_from:
            routes = (self._names.provider(operation.fallback_from), self._names.provider(operation.provider))
            self._ended.labels(*routes, self._reasons.label(operation.fallback_reason), operation.outcome).inc()
