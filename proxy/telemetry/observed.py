"""What was only watched: decisions of providers in observe mode, and rows that would have matched. Bounded labels."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from proxy.core.reading import Observed
from proxy.telemetry.names import NONE, BoundedWords, KnownNames
from proxy.telemetry.records import CallObserved


class ObservedCounts:
    def __init__(self, registry: CollectorRegistry, names: KnownNames) -> None:
        self._names = names
        self._words = BoundedWords()
        self._row_names = BoundedWords()
        self._decisions = Counter(
            "payment_observed_decisions_total",
            "Calls that passed as they came, by what would have been done.",
            ("provider", "operation", "class", "action", "rule"),
            registry=registry,
        )
        self._rows = Counter(
            "payment_observed_rows_total",
            "Answers that a row which is only watched would have read first.",
            ("provider", "operation", "row"),
            registry=registry,
        )

    def call(self, record: CallObserved) -> None:
        read = record.classification
        labels = self._names.pair(record.provider, record.operation_name)
        action, rule = self._words.label(record.action), self._words.label(record.because)
        self._decisions.labels(*labels, read.reading if read is not None else NONE, action, rule).inc()
        if read is not None and read.observed is not None and record.operation_name is not None:
            self.row(record.provider, record.operation_name, read.observed)

    def row(self, provider: str, operation: str, observed: Observed) -> None:
        self._rows.labels(*self._names.pair(provider, operation), self._row_names.label(observed.row)).inc()
