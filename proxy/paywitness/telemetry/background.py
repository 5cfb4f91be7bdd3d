"""Counters of work that goes on after the caller has left: inquiries, webhooks, fallbacks, customers who do not act,
deliveries of events. `docs/metrics.md` says what each is for."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from paywitness.core.operation import Operation
from paywitness.telemetry.events import (
    ClockJumped,
    FellBack,
    InquiryFinished,
    OutboxDelivered,
    WebhookDelayed,
    WebhookReceived,
)
from paywitness.telemetry.prometheus import OPERATION_LABELS, BoundedLabels, DurationHistogram, KnownNames

# A webhook that is sent with its response takes a second. Providers repeat a refused one for three days and more.
_DELAY_BUCKETS_S = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0, 259200.0)


class BackgroundMetrics:
    def __init__(self, registry: CollectorRegistry, names: KnownNames) -> None:
        def counter(name: str, help_text: str, labels: Iterable[str]) -> Counter:
            return Counter(name, help_text, labels, registry=registry)

        self._names = names
        self._inquiry_results = BoundedLabels()
        self._webhook_results = BoundedLabels()
        self._fallback_reasons = BoundedLabels()
        self.late_successes = counter(
            "payment_duplicate_late_success_total",
            "Successes after callers got `failed`, or beside another success of the intent.",
            OPERATION_LABELS,
        )
        self.exhausted = counter(
            "payment_schedule_exhausted_total",
            "Operations that went to review after the last inquiry of their schedule.",
            OPERATION_LABELS,
        )
        self.actions_expired = counter(
            "payment_actions_expired_total",
            "Payments whose customer had to act, and did not in time.",
            OPERATION_LABELS,
        )
        self._inquiries = counter(
            "payment_status_inquiry_total",
            "Inquiries at the provider, by reason and result.",
            ("provider", "reason", "outcome"),
        )
        self._webhooks = counter(
            "payment_webhooks_total", "Webhooks and their events, by result.", ("provider", "result")
        )
        self._webhook_delay = DurationHistogram(
            "payment_webhook_delay_seconds",
            "From the change that a webhook reports, or our first send, to its arrival.",
            ("provider",),
            _DELAY_BUCKETS_S,
            registry,
        )
        self._fallbacks = counter(
            "payment_fallback_total",
            "Operations without effect that were started again at another provider.",
            ("from_provider", "to_provider", "reason"),
        )
        self._fallback_outcomes = counter(
            "payment_fallback_outcomes_total",
            "Operations that a fallback started and that ended, by outcome.",
            ("from", "to", "reason", "outcome"),
        )
        self._outbox = counter(
            "paywitness_outbox_deliveries_total", "Changes that the sink took, and deliveries that failed.", ("result",)
        )
        self._clock_jumps = counter(
            "paywitness_clock_jumps_total",
            "Times that the clocks of the journal and of this machine did not agree, or no sidecar had read them.",
            ("kind",),
        )
        self._outbox_pending = Gauge(
            "paywitness_outbox_pending", "Changes that wait for delivery to the sink.", registry=registry
        )

    @property
    def of_operations(self) -> tuple[Counter, ...]:
        """The counters that have an operation's labels, and begin at zero."""
        return self.exhausted, self.late_successes, self.actions_expired

    def begin_at_zero(self) -> None:
        for what in ("jump", "gap"):
            self._clock_jumps.labels(what)

    def inquiry_finished(self, event: InquiryFinished) -> None:
        provider, outcome = self._names.provider(event.operation.provider), event.finding.kind
        self._inquiries.labels(provider, event.reason, self._inquiry_results.label(outcome)).inc()

    def webhook_received(self, event: WebhookReceived) -> None:
        provider = self._names.provider(event.provider)
        self._webhooks.labels(provider, self._webhook_results.label(event.result)).inc()

    def webhook_delayed(self, event: WebhookDelayed) -> None:
        self._webhook_delay.labels(self._names.provider(event.provider)).observe(event.delay_s)

    def fell_back(self, event: FellBack) -> None:
        routes = (self._names.provider(event.from_provider), self._names.provider(event.to_provider))
        self._fallbacks.labels(*routes, self._fallback_reasons.label(event.reason)).inc()
        if event.ended is not None:  # no other event reports the end of an operation that was left for another route
            self.fallback_ended(event.ended)

    def fallback_ended(self, operation: Operation) -> None:
        """Count the end of an operation, which comes once. Only operations that a fallback started are counted."""
        if operation.fallback_from:
            routes = (self._names.provider(operation.fallback_from), self._names.provider(operation.provider))
            reason = self._fallback_reasons.label(operation.fallback_reason)
            self._fallback_outcomes.labels(*routes, reason, operation.outcome).inc()

    def outbox_delivered(self, event: OutboxDelivered) -> None:
        if event.failed:
            self._outbox.labels("failed").inc()
        else:
            self._outbox.labels("delivered").inc(event.count)
        self._outbox_pending.set(event.lag)

    def clock_jumped(self, event: ClockJumped) -> None:
        self._clock_jumps.labels("gap" if event.gap else "jump").inc()
