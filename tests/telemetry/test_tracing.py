"""Spans of records: which, in whose trace, and nothing in them that may not leave. None where none are asked for."""

from __future__ import annotations

import builtins
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, format_trace_id

from paywitness.core.inquiry import InquiryReason
from paywitness.core.operation import Finding, FindingKind, Operation, Outcome, State
from paywitness.core.result import ResultClass
from paywitness.telemetry import spans as rooms
from paywitness.telemetry.emitter import Telemetry, is_configured, open_tracing
from paywitness.telemetry.events import (
    AttemptFinished,
    CallAnswered,
    EvidenceKind,
    InquiryFinished,
    JournalCalled,
    OperationEnded,
)
from paywitness.telemetry.logs import LogWriter
from paywitness.telemetry.metrics import Metrics
from paywitness.telemetry.spans import Spans
from tests.telemetry.samples import CREATED_AT, attempt, decision, operation

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01"
NOT_SAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"
COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@dataclass
class Traced:
    now: float = CREATED_AT
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def __post_init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = Spans(self.provider, lambda: self.now)
        self.metrics = Metrics("1", lambda: self.now)
        self.tell = Telemetry(self.metrics, LogWriter(logging.getLogger("paywitness.test")), self.spans).emit

    def pay(self, traceparent: str | None = SAMPLED, state: State = State.SUCCEEDED, number: int = 1) -> Operation:
        """A call as the engine tells of one: a second of waiting, a quarter of it for each write."""
        carried = operation(state, id=f"op_{number}")
        with self.spans.call(traceparent, None):
            self.now += 0.25
            self.tell(JournalCalled("claim", 0.25))
            self.now += 0.75
            self.tell(JournalCalled("record", 0.25))
            reading = ResultClass.NETWORK_READ_TIMEOUT if state is State.UNKNOWN else ResultClass.SUCCEEDED
            self.tell(AttemptFinished(carried, attempt(reading, duration_s=0.5), decision()))
            outcome = Outcome.UNKNOWN if state is State.UNKNOWN else Outcome.SUCCEEDED
            trace_id = TRACE if traceparent is not None else None
            self.tell(CallAnswered("acme", "sale", outcome, 200, None, 1.0, False, carried.id, trace_id))
        return carried

    def asked(self, about: Operation) -> None:
        """The resolver, which no caller waits for."""
        self.tell(InquiryFinished(about, Finding("by_key", FindingKind.HIT, 200), 0.5, InquiryReason.PENDING))

    def finished(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.provider.shutdown()


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    return round(span.start_time / 1e9 - CREATED_AT, 3), round(span.end_time / 1e9 - CREATED_AT, 3)


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def context(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def test_a_call_is_one_span_in_its_callers_trace_with_its_attempts_and_writes_under_it(traced: Traced) -> None:
    traced.pay()
    spans = traced.finished()
    assert set(spans) == {"acme sale", "attempt", "journal claim", "journal record"}
    call = spans.pop("acme sale")
    assert parent(call) == int("b7ad6b7169203331", 16)
    assert {format_trace_id(context(span).trace_id) for span in (call, *spans.values())} == {TRACE}
    assert {parent(span) for span in spans.values()} == {context(call).span_id}


def test_an_attempt_ends_where_its_record_begins(traced: Traced) -> None:
    traced.pay()
    shown = {name: seconds(span) for name, span in traced.finished().items()}
    assert shown == {
        "acme sale": (0.0, 1.0),
        "journal claim": (0.0, 0.25),
        "attempt": (0.25, 0.75),
        "journal record": (0.75, 1.0),
    }


def test_a_trace_that_its_caller_does_not_keep_is_not_kept_here(traced: Traced) -> None:
    traced.asked(traced.pay(NOT_SAMPLED, State.UNKNOWN))
    assert traced.finished() == {}


def test_a_call_without_a_trace_begins_one_which_the_exemplar_names(traced: Traced) -> None:
    traced.pay(None)
    call = traced.finished()["acme sale"]
    assert call.parent is None
    shown = [
        sample.exemplar.labels["trace_id"]
        for family in traced.metrics.registry.collect()
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert shown == [format_trace_id(context(call).trace_id)]


def test_an_inquiry_stays_in_the_trace_of_the_call_that_left_the_doubt(traced: Traced) -> None:
    doubtful = traced.pay(state=State.UNKNOWN)
    traced.asked(doubtful)
    spans = traced.finished()
    assert parent(spans["inquiry"]) == context(spans["acme sale"]).span_id


def test_what_has_ended_is_not_remembered_and_what_is_remembered_is_bounded(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "_REMEMBERED_MAX", 2)
    first, second, third = (traced.pay(state=State.UNKNOWN, number=number) for number in range(3))
    traced.tell(OperationEnded(operation(id=third.id), EvidenceKind.INQUIRY))
    traced.exporter.clear()
    for one in (first, second, third):
        traced.asked(one)
    assert [span.parent is None for span in traced.exporter.get_finished_spans()] == [True, False, True]


@pytest.mark.parametrize(
    "traceparent", ["", "00", "garbage", f"ff-{TRACE}-b7ad6b7169203331-01", "\udcff", "-" * 10_000]
)
def test_a_header_that_is_none_begins_a_trace_of_its_own(traced: Traced, traceparent: str) -> None:
    traced.pay(traceparent)
    assert traced.finished()["acme sale"].parent is None


def test_a_call_goes_on_where_its_span_cannot_be_begun(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_propagator", None)
    assert traced.pay().id == "op_1"
    assert set(traced.finished()) == {"attempt"}  # which has no call to stand under


def test_a_journal_call_of_nobodys_makes_no_span(traced: Traced) -> None:
    traced.tell(JournalCalled("look", 0.1))
    assert traced.finished() == {}


def test_a_fault_and_a_doubt_are_errors_and_a_success_is_none(traced: Traced) -> None:
    traced.pay(state=State.UNKNOWN)
    assert not traced.finished()["acme sale"].status.is_ok
    traced.exporter.clear()
    traced.pay()
    assert all(span.status.is_ok or span.status.is_unset for span in traced.finished().values())


def test_attributes_are_names_numbers_and_ids(traced: Traced) -> None:
    secret = "4242424242424242"
    carried = operation(State.UNKNOWN, client_key=secret, provider_key=secret, reference=secret)
    with traced.spans.call(SAMPLED, None):
        traced.tell(AttemptFinished(carried, attempt(detail=secret), decision()))
        traced.tell(
            InquiryFinished(
                carried, Finding("by_key", FindingKind.FAILED, 500, detail=secret), 0.5, InquiryReason.PENDING
            )
        )
        traced.tell(CallAnswered("acme", "sale", Outcome.UNKNOWN, 504, None, 1.0, False, carried.id, TRACE))
    written = " ".join(span.to_json() for span in traced.exporter.get_finished_spans())
    assert carried.id in written
    assert secret not in written
    known: set[type[Any]] = {str, int, bool}
    values = {type(value) for span in traced.finished().values() for value in (span.attributes or {}).values()}
    assert values <= known


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, False),
        (COLLECTOR, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (COLLECTOR | {"OTEL_SDK_DISABLED": "true"}, False),
        (COLLECTOR | {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_traces_are_asked_for_by_opentelemetrys_own_variables(said: dict[str, str], wanted: bool) -> None:
    assert is_configured(said) is wanted


def test_without_the_extra_it_goes_on_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert open_tracing(COLLECTOR, "1", lambda: 0.0) is None
    assert "paywitness[otel]" in caplog.text


def test_where_no_collector_is_named_nothing_of_it_is_imported_and_nobody_listens() -> None:
    """What a call costs is what it cost before. (redis imports OpenTelemetry's API by itself, where it finds it.)"""
    script = """
import json, sys
from paywitness.process import _telemetry
from paywitness.clock import SystemClock
telemetry = _telemetry(None, {}, SystemClock())
bare = {record: (getattr(telemetry.metrics, count.__name__, count), getattr(telemetry.logs, write.__name__, write))
        for record, (count, write) in telemetry._listeners.items()}
ours = ("paywitness.telemetry.spans", "opentelemetry.exporter")
print(json.dumps([telemetry._listeners == bare, [name for name in sys.modules if name.startswith(ours)]]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [True, []]
