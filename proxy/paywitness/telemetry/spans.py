"""Spans: the events of a call as one trace, by OpenTelemetry. Imported only if traces are configured (`emitter`).

The server begins a call's span. Each step of the call is reported afterwards, by the same events that feed the metrics
and the log, and becomes a child span. A child ends when its event is emitted, and starts its duration earlier. Work
that goes on after the caller has left stays in the trace of the call that began it. A caller's `traceparent` says
whether a trace is kept.

Attributes are names, numbers and ids. No payload, no header value, no key, and no text that came from outside.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from paywitness.core.operation import Operation, Outcome
from paywitness.repeated_lines import REPEATS
from paywitness.telemetry.emitter import EventListener, EventListeners
from paywitness.telemetry.events import AttemptFinished, CallAnswered, InquiryFinished, JournalCalled, OperationEnded

_log = logging.getLogger("paywitness.tracing")

_REMEMBERED_MAX = 10_000  # traces of operations that have not ended; beyond that an inquiry begins a trace of its own
_CLOSE_S = 2.0  # a shutdown waits no longer than this for spans to be delivered
_NAME_LENGTH_MAX = 64

_propagator = TraceContextTextMapPropagator()
_write_began_ns: ContextVar[int] = ContextVar("write_began_ns")  # of this task's last journal write


class Spans:
    """Makes spans of events. `now` is wall time."""

    def __init__(self, provider: TracerProvider, now: Callable[[], float]) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("paywitness")
        self._now = now
        self._remembered: dict[str, SpanContext] = {}  # by operation, oldest first

    @contextmanager
    def call(self, traceparent: str | None, tracestate: str | None) -> Iterator[None]:
        """A call's span, around all work for it, in the caller's trace if it has one. Never raises by itself."""
        span = self._start_span(traceparent, tracestate)
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield
        finally:
            contexts.detach(token)
            span.end(self._now_ns())

    def _start_span(self, traceparent: str | None, tracestate: str | None) -> Span:
        headers = {"traceparent": traceparent, "tracestate": tracestate}
        try:
            parent = _propagator.extract({name: value for name, value in headers.items() if value is not None})
            return self._tracer.start_span("call", parent, SpanKind.SERVER, start_time=self._now_ns())
        except Exception as error:  # noqa: BLE001  # a payment must not fail because of a span
            _log.error("a call has no span: %s", type(error).__name__, extra=REPEATS)
            return trace.INVALID_SPAN

    def with_span_listeners(self, listeners: EventListeners) -> EventListeners:
        """The same listeners, with ours behind them for the events that become spans."""
        joined = dict(listeners)
        ours: dict[type[Any], EventListener] = {
            AttemptFinished: self._attempt_finished,
            CallAnswered: self._call_answered,
            InquiryFinished: self._inquiry_finished,
            JournalCalled: self._journal_called,
            OperationEnded: self._operation_ended,
        }
        for event, listen in ours.items():
            count, write = joined[event]
            joined[event] = (count, _in_sequence(write, listen))
        count, write = joined[CallAnswered]
        joined[CallAnswered] = (_with_own_trace_id(count), _with_own_trace_id(write))
        return joined

    async def close(self) -> None:
        """Deliver the spans that wait, for `_CLOSE_S` at most."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, _CLOSE_S)

    def _now_ns(self) -> int:
        return int(self._now() * 1e9)

    def _call_answered(self, event: CallAnswered) -> None:
        span = trace.get_current_span()
        if not span.is_recording():
            return
        span.update_name(_span_name(event.provider, event.operation_name))
        attributes = {
            "payment.provider": _shortened(event.provider),
            "payment.operation": event.operation_name,
            "payment.outcome": event.outcome,
            "paywitness.operation_id": event.operation_id,
            "paywitness.problem": event.problem,
            "paywitness.replayed": event.replayed,
            "http.response.status_code": event.status_code,
        }
        _describe(span, attributes, failed=event.outcome is Outcome.UNKNOWN or event.status_code >= 500)

    def _attempt_finished(self, event: AttemptFinished) -> None:
        operation, attempt = event.operation, event.attempt
        if not operation.state.ended:
            self._remember(operation)
        measured_s = event.upstream_duration_s
        # The event is emitted after the record is durable. The attempt ended when that write began.
        end_ns = _write_began_ns.get(self._now_ns())
        attributes = {
            **_operation_attributes(operation),
            "payment.attempt": attempt.number,
            "payment.phase": attempt.phase,
            "payment.fault": attempt.fault,
            "payment.reading": attempt.classification.result_class,
            "payment.effect": attempt.classification.effect,
            "payment.action": event.decision.action,
            "payment.because": event.decision.because,
            "http.response.status_code": attempt.status_code,
        }
        took_s = attempt.duration_s if measured_s is None else measured_s
        self._add_child("attempt", took_s, attributes, end_ns=end_ns, failed=attempt.fault is not None)

    def _inquiry_finished(self, event: InquiryFinished) -> None:
        attributes = {
            **_operation_attributes(event.operation),
            "payment.found": event.finding.kind,
            "paywitness.reason": event.reason,
            "paywitness.hedged": event.hedged,
            "http.response.status_code": event.finding.status_code,
        }
        context = None
        remembered = self._remembered.get(event.operation.id)
        if remembered is not None and not trace.get_current_span().get_span_context().is_valid:
            context = trace.set_span_in_context(trace.NonRecordingSpan(remembered))
        self._add_child("inquiry", event.duration_s, attributes, context=context)

    def _journal_called(self, event: JournalCalled) -> None:
        if not trace.get_current_span().get_span_context().is_valid:
            return  # a background read, which belongs to no call
        _write_began_ns.set(self._now_ns() - int(event.duration_s * 1e9))
        self._add_child(
            f"journal {event.call}", event.duration_s, {"paywitness.journal.call": event.call}, failed=event.failed
        )

    def _operation_ended(self, event: OperationEnded) -> None:
        self._remembered.pop(event.operation.id, None)

    def _remember(self, operation: Operation) -> None:
        current = trace.get_current_span().get_span_context()
        if current.is_valid and operation.id not in self._remembered:
            if len(self._remembered) >= _REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[operation.id] = current

    def _add_child(
        self,
        name: str,
        duration_s: float,
        attributes: Mapping[str, Any],
        *,
        end_ns: int | None = None,
        context: contexts.Context | None = None,
        failed: bool = False,
    ) -> None:
        end_ns = self._now_ns() if end_ns is None else end_ns
        span = self._tracer.start_span(name, context, SpanKind.CLIENT, start_time=end_ns - int(duration_s * 1e9))
        if span.is_recording():
            _describe(span, attributes, failed=failed)
            span.end(end_ns)


def _describe(span: Span, attributes: Mapping[str, Any], *, failed: bool) -> None:
    traced = {name: value for name, value in attributes.items() if value is not None}
    span.set_attributes({name: str(value) if isinstance(value, str) else value for name, value in traced.items()})
    if failed:
        span.set_status(Status(StatusCode.ERROR))


def _operation_attributes(operation: Operation) -> dict[str, Any]:
    return {
        "payment.provider": operation.provider,
        "payment.operation": operation.operation,
        "paywitness.operation_id": operation.id,
    }


def _span_name(provider: str | None, operation: str | None) -> str:
    """The span's name. It has few values, because no name that a caller made up is in it."""
    return f"{provider} {operation}" if provider is not None and operation is not None else "call"


def _shortened(name: str | None) -> str | None:
    return None if name is None else name[:_NAME_LENGTH_MAX]


def _in_sequence(first: EventListener, second: EventListener) -> EventListener:
    def listen(event: Any) -> None:
        first(event)
        second(event)

    return listen


def _with_own_trace_id(listen: EventListener) -> EventListener:
    """If the caller sent no trace, the event gets the id of the trace that we began, for the log and the exemplars."""

    def traced(event: CallAnswered) -> None:
        if event.trace_id is None:
            current = trace.get_current_span().get_span_context()
            if current.is_valid and current.trace_flags.sampled:
                event = replace(event, trace_id=trace.format_trace_id(current.trace_id))
        listen(event)

    return traced
