"""Telemetry: the one door. A record told here feeds the metrics and the log, so the two cannot disagree; and the spans,
where traces are asked for."""

from __future__ import annotations

import logging

from proxy.telemetry.logs import Logs
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.records import (
    AttemptFinished,
    CallAnswered,
    CallForwarded,
    CallObserved,
    CallRefused,
    CircuitChanged,
    CircuitForced,
    DoubtClosed,
    DoubtOpened,
    FellBack,
    IncidentOpened,
    InquiryFinished,
    JournalCalled,
    JournalRolledBack,
    NoticeReceived,
    OperationEnded,
    OutboxDelivered,
    PolicyReloaded,
    Record,
    RetryRefused,
    ReviewOpened,
    ScheduleRanOut,
)
from proxy.telemetry.tracing import Listeners, Tracing

_log = logging.getLogger("paywitness.telemetry")


def _not_counted(record: Record) -> None:
    """A gauge shows it already."""


class Telemetry:
    """Tells records on. Holds nothing of its own."""

    def __init__(self, metrics: Metrics, logs: Logs, tracing: Tracing | None = None) -> None:
        self.metrics = metrics
        self.logs = logs
        self.tracing = tracing
        listeners: Listeners = {
            AttemptFinished: (metrics.attempt_finished, logs.attempt_finished),
            CallAnswered: (metrics.call_answered, logs.call_answered),
            CallRefused: (metrics.call_refused, logs.call_refused),
            CallForwarded: (metrics.call_forwarded, logs.call_forwarded),
            CallObserved: (metrics.call_observed, logs.call_observed),
            OperationEnded: (metrics.operation_ended, logs.operation_ended),
            DoubtOpened: (metrics.doubt_opened, logs.doubt_opened),
            DoubtClosed: (metrics.doubt_closed, logs.doubt_closed),
            IncidentOpened: (metrics.incident_opened, logs.incident_opened),
            ReviewOpened: (_not_counted, logs.review_opened),
            InquiryFinished: (metrics.inquiry_finished, logs.inquiry_finished),
            NoticeReceived: (metrics.notice_received, logs.notice_received),
            FellBack: (metrics.fell_back, logs.fell_back),
            ScheduleRanOut: (metrics.schedule_ran_out, logs.schedule_ran_out),
            OutboxDelivered: (metrics.outbox_delivered, logs.outbox_delivered),
            RetryRefused: (metrics.retry_refused, logs.retry_refused),
            CircuitChanged: (_not_counted, logs.circuit_changed),
            CircuitForced: (_not_counted, logs.circuit_forced),
            JournalRolledBack: (metrics.journal_rolled_back, logs.journal_rolled_back),
            JournalCalled: (metrics.journal_called, logs.journal_called),
            PolicyReloaded: (metrics.policy_reloaded, logs.policy_reloaded),
        }
        self._listeners = listeners if tracing is None else tracing.joined(listeners)

    def tell(self, record: Record) -> None:
        """Count it and write it down. Never raises: the money has moved, and its answer must not be lost for a line."""
        try:
            count, write = self._listeners[type(record)]
            count(record)
            write(record)
        except Exception as error:  # noqa: BLE001  # whatever went wrong here is not the call's fault
            _log.error("a %s was not told: %s", type(record).__name__, type(error).__name__)
