"""`Telemetry.emit`: the only entry. One event feeds the metrics and the log, so the two cannot disagree. It feeds the
spans too, when traces are asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from paywitness.repeated_lines import repeats
from paywitness.telemetry.events import (
    ActionExpired,
    AttemptFinished,
    CallAnswered,
    CallForwarded,
    CallRefused,
    CallShadowed,
    CircuitChanged,
    CircuitForced,
    ClockJumped,
    DoubtClosed,
    DoubtOpened,
    FellBack,
    IncidentOpened,
    InquiryFinished,
    JournalCalled,
    JournalRolledBack,
    JournalUnanswered,
    LimitChecked,
    OperationEnded,
    OperationStarted,
    OutboxDelivered,
    PaymentCommandRun,
    PolicyReloaded,
    RetryRefused,
    ReviewOpened,
    ScheduleRanOut,
    TelemetryEvent,
    WebhookDelayed,
    WebhookReceived,
)
from paywitness.telemetry.logs import LogWriter
from paywitness.telemetry.metrics import Metrics

# --- Tracing
# Tracing: whether spans are made, and where they go. An extra, off unless the environment names a collector.
#
# Everything is said by OpenTelemetry's own variables; its SDK reads the rest of them itself. Where nothing is asked
# for, nothing of it is imported and no call passes it.

_tracing_log = logging.getLogger("paywitness.tracing")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

EventListener = Callable[[Any], None]
EventListeners = Mapping[type[Any], tuple[EventListener, EventListener]]  # who counts it, who writes it down


class Tracing(Protocol):
    """What makes spans: `spans.Spans`, by its shape."""

    def call(self, traceparent: str | None, tracestate: str | None) -> AbstractContextManager[None]:
        """Around all that is done for one call."""
        ...

    def with_span_listeners(self, listeners: EventListeners) -> EventListeners:
        """Listeners to records, with those that make spans among them."""
        ...

    async def close(self) -> None: ...


def is_configured(environment: Mapping[str, str]) -> bool:
    """Whether a collector is named, and nothing says that it shall get no traces."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() != "otlp":
        return False
    return any(environment.get(name, "").strip() for name in _ENDPOINTS)


def open_tracing(environment: Mapping[str, str], version: str, now: Callable[[], float]) -> Tracing | None:
    """Spans for the collector that the environment names; None where there is none, or the extra is missing."""
    if not is_configured(environment):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from paywitness.telemetry.spans import Spans
    except ImportError:
        _tracing_log.warning("a collector of traces is named, but paywitness[otel] is not installed: no spans are made")
        return None
    resource = Resource.create(dict(_attributes(environment, version)))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Spans(provider, now)


def _attributes(environment: Mapping[str, str], version: str) -> Iterator[tuple[str, str]]:
    """Who we are, where the operator has not said it better."""
    said = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if "OTEL_SERVICE_NAME" not in environment and "service.name=" not in said:
        yield "service.name", "paywitness"
    if "service.version=" not in said:
        yield "service.version", version


# --- Emitter

_log = logging.getLogger("paywitness.telemetry")


def _not_counted(event: TelemetryEvent) -> None:
    """A gauge shows it already."""


def _not_logged(event: TelemetryEvent) -> None:
    """Another line says it: that of its first attempt, or that of the webhook."""


# The highest level of the lines that come of these, which every call emits. If no such line is written, nobody is asked
# for one. Refused calls and journal calls count in lines about an outage of the journal, which are warnings.
_LOG_LEVELS: Mapping[type[Any], int] = {
    AttemptFinished: logging.INFO,
    CallAnswered: logging.WARNING,
    JournalCalled: logging.WARNING,
    OperationStarted: logging.NOTSET,  # no line at all
    OperationEnded: logging.INFO,
}


class Telemetry:
    """Tells records on. Holds nothing of its own."""

    def __init__(self, metrics: Metrics, logs: LogWriter, tracing: Tracing | None = None) -> None:
        self.metrics = metrics
        self.logs = logs
        self.tracing = tracing
        listeners: EventListeners = {
            OperationStarted: (metrics.operation_started, _not_logged),
            AttemptFinished: (metrics.attempt_finished, logs.attempt_finished),
            CallAnswered: (metrics.call_answered, logs.call_answered),
            CallRefused: (metrics.call_refused, logs.call_refused),
            LimitChecked: (metrics.limit_checked, logs.limit_checked),
            CallForwarded: (metrics.call_forwarded, logs.call_forwarded),
            CallShadowed: (metrics.call_shadowed, logs.call_shadowed),
            OperationEnded: (metrics.operation_ended, logs.operation_ended),
            DoubtOpened: (metrics.doubt_opened, logs.doubt_opened),
            DoubtClosed: (metrics.doubt_closed, logs.doubt_closed),
            IncidentOpened: (metrics.incident_opened, logs.incident_opened),
            ReviewOpened: (_not_counted, logs.review_opened),
            InquiryFinished: (metrics.background.inquiry_finished, logs.inquiry_finished),
            WebhookReceived: (metrics.background.webhook_received, logs.webhook_received),
            WebhookDelayed: (metrics.background.webhook_delayed, _not_logged),
            FellBack: (metrics.background.fell_back, logs.fell_back),
            ActionExpired: (metrics.action_expired, logs.action_expired),
            ScheduleRanOut: (metrics.schedule_ran_out, logs.schedule_ran_out),
            OutboxDelivered: (metrics.background.outbox_delivered, logs.outbox_delivered),
            RetryRefused: (metrics.retry_refused, logs.retry_refused),
            CircuitChanged: (_not_counted, logs.circuit_changed),
            CircuitForced: (_not_counted, logs.circuit_forced),
            PaymentCommandRun: (_not_counted, logs.payment_command_run),
            JournalRolledBack: (metrics.journal_rolled_back, logs.journal_rolled_back),
            ClockJumped: (metrics.background.clock_jumped, logs.clock_jumped),
            JournalCalled: (metrics.journal_called, logs.journal_called),
            JournalUnanswered: (_not_counted, logs.journal_unanswered),
            PolicyReloaded: (metrics.policy_reloaded, logs.policy_reloaded),
        }
        self._listeners = listeners if tracing is None else tracing.with_span_listeners(listeners)
        self._log_levels = _LOG_LEVELS if tracing is None else {}  # a span is made of what is not logged too

    def emit(self, event: TelemetryEvent) -> None:
        """Count it and write it down. Never raises: the money has moved, and its answer must not be lost for a line."""
        try:
            kind = type(event)
            count, write = self._listeners[kind]
            count(event)
            if self.logs.logger.isEnabledFor(self._log_levels.get(kind, logging.CRITICAL)):
                write(event)
        except Exception as error:  # noqa: BLE001  # whatever went wrong here is not the call's fault
            names = (type(event).__name__, type(error).__name__)
            _log.error("a %s was not told: %s", *names, extra=repeats(*names))
