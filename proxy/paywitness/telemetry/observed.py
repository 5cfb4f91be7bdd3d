"""Counters of shadow mode: the action that the policy would have taken, and the shadow rows that would have matched."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from paywitness.core.result import ShadowMatch
from paywitness.telemetry.events import CallShadowed
from paywitness.telemetry.prometheus import NONE, OPERATION_LABELS, BoundedLabels, KnownNames


class ShadowCounters:
    def __init__(self, registry: CollectorRegistry, names: KnownNames) -> None:
        self._names = names
        self._rule_labels = BoundedLabels()
        self._row_labels = BoundedLabels()
        self._decisions = Counter(
            "payment_observed_decisions_total",
            "Calls in shadow mode, by the action that the policy would have taken.",
            (*OPERATION_LABELS, "class", "action", "rule"),
            registry=registry,
        )
        self._rows = Counter(
            "payment_observed_rows_total",
            "Responses that a row in shadow mode would have matched first.",
            (*OPERATION_LABELS, "row"),
            registry=registry,
        )

    def call(self, event: CallShadowed) -> None:
        read = event.classification
        labels = self._names.operation(event.provider, event.operation_name)
        action, rule = self._rule_labels.label(event.action), self._rule_labels.label(event.because)
        self._decisions.labels(*labels, read.result_class if read is not None else NONE, action, rule).inc()
        if read is not None and read.shadow_match is not None and event.operation_name is not None:
            self.row(event.provider, event.operation_name, read.shadow_match)

    def row(self, provider: str, operation: str, observed: ShadowMatch) -> None:
        self._rows.labels(*self._names.operation(provider, operation), self._row_labels.label(observed.rule)).inc()
