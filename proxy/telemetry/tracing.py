"""Tracing: whether spans are made, and where they go. An extra, off unless the environment names a collector.

Everything is said by OpenTelemetry's own variables; its SDK reads the rest of them itself. Where nothing is asked for,
nothing of it is imported and no call passes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

_log = logging.getLogger("paywitness.tracing")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

Listener = Callable[[Any], None]
Listeners = Mapping[type[Any], tuple[Listener, Listener]]


class Tracing(Protocol):
    """What makes spans: `spans.Spans`, by its shape."""

    def call(self, traceparent: str | None, tracestate: str | None) -> AbstractContextManager[None]:
        """Around all that is done for one call."""
        ...

    def joined(self, listeners: Listeners) -> Listeners:
        """Listeners to records, with those that make spans among them."""
        ...

    async def close(self) -> None: ...


def asked_for(environment: Mapping[str, str]) -> bool:
    """Whether a collector is named, and nothing says that it shall get no traces."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() != "otlp":
        return False
    return any(environment.get(name, "").strip() for name in _ENDPOINTS)


def open_tracing(environment: Mapping[str, str], version: str, now: Callable[[], float]) -> Tracing | None:
    """Spans for the collector that the environment names; None where there is none, or the extra is missing."""
    if not asked_for(environment):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from proxy.telemetry.spans import Spans
    except ImportError:
        _log.warning("a collector of traces is named, but paywitness[otel] is not installed: no spans are made")
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
