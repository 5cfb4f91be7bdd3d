"""`Telemetry.emit`: the only entry. One event feeds the metrics and the log, so the two cannot disagree. It feeds the
spans too, if traces are configured.
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
# OpenTelemetry's own environment variables configure it; its SDK reads most of them itself. If none names a collector,
# OpenTelemetry is not imported and no call pays for it.

_tracing_log = logging.getLogger("paywitness.tracing")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

EventListener = Callable[[Any], None]
EventListeners = Mapping[type[Any], tuple[EventListener, EventListener]]  # the one that counts it, the one that logs it


class Tracing(Protocol):
    """A maker of spans: the interface of `spans.Spans`."""

    def call(self, traceparent: str | None, tracestate: str | None) -> AbstractContextManager[None]:
        """A span around all work for one call."""
        ...

    def with_span_listeners(self, listeners: EventListeners) -> EventListeners:
        """The listeners, with those that make spans added."""
        ...

    async def close(self) -> None: ...


def is_configured(environment: Mapping[str, str]) -> bool:
    """Whether a collector is named, and no variable switches traces off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() != "otlp":
        return False
    return any(environment.get(name, "").strip() for name in _ENDPOINTS)


def open_tracing(environment: Mapping[str, str], version: str, now: Callable[[], float]) -> Tracing | None:
    """Spans for the collector that the environment names. None if it names none, or if the extra is missing."""
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
    """The attributes that name this service, unless the operator has set them."""
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
    """Another line reports it already: that of its first attempt, or that of the webhook."""


# Every call emits these events. For each the highest level that its lines have: if the log drops that level, the log
# listener is not called. Refused calls and journal calls count in lines about an outage of the journal, which are
# warnings.
_LOG_LEVELS: Mapping[type[Any], int] = {
    AttemptFinished: logging.INFO,
    CallAnswered: logging.WARNING,
    JournalCalled: logging.WARNING,
    OperationStarted: logging.NOTSET,  # no line at all
    OperationEnded: logging.INFO,
}


class Telemetry:
    """Passes each event to its listeners. It has no state of its own."""

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
        self._log_levels = _LOG_LEVELS if tracing is None else {}  # events that are not logged become spans too

    def emit(self, event: TelemetryEvent) -> None:
        """Count the event and log it. Never raises: money has moved, and the reply must not be lost for a log line."""
        try:
            kind = type(event)
            count, write = self._listeners[kind]
            count(event)
            if self.logs.logger.isEnabledFor(self._log_levels.get(kind, logging.CRITICAL)):
                write(event)
        except Exception as error:  # noqa: BLE001  # whatever went wrong here is not the call's fault
            names = (type(event).__name__, type(error).__name__)
            _log.error("a %s was not told: %s", *names, extra=repeats(*names))
