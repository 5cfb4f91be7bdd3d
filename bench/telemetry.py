"""What it costs to be seen: a clean call of the engine alone, with metrics and logs, and without either.

In one process, in alternating rounds, by stand-ins of the bench: the product has no switch for it. Differences and
ratios are taken round by round, as everywhere here. What they come to is less than the noise of a busy machine, so the
records of a clean call are also told by themselves, many times: that is the figure to trust.
"""

from __future__ import annotations

import gc
import io
import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench.engine_alone import drive, engine_of
from paywitness.engine.engine import Engine
from paywitness.telemetry.emitter import EventListeners, Telemetry
from paywitness.telemetry.logs import JsonLogFormatter, LogWriter
from paywitness.telemetry.metrics import Metrics

SHIPPED = "as shipped: metrics, log level info"
NO_METRICS = "without metrics"
NO_LOGS = "without logs"
NEITHER = "without either"

_ROUNDS, _WARM_CALLS, _CALLS = 30, 300, 100
_SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_LISTENED, _TELLINGS, _PARTS = 10, 100, 9  # the records of so many calls, told so often; the median of the parts


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one way of telling: CPU per clean call, and what it is over telling nothing."""

    us: float
    added_us: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Measured:
    """`metrics_us`, `logs_us`: what telling the records of one clean call costs by itself, at the shipped level."""

    ways: dict[str, Cost]
    records: float  # of a clean call
    metrics_us: float
    logs_us: float
    debug_us: float  # of writing each of them as a line
    spans_us: float | None  # of making spans of them and encoding those; None without the extra
    rounds: int = _ROUNDS

    @property
    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class _Nowhere(io.TextIOBase):
    """A stream that takes a line at no cost: what is measured is making it."""

    def write(self, text: str) -> int:
        return len(text)


def _ignore(record: object) -> None:
    """In the place of a listener."""


def _engine(policies: Path, *, metrics: bool, logs: bool) -> Engine:
    engine = engine_of(policies)
    telemetry = engine.telemetry
    telemetry._listeners = {
        record: (count if metrics else _ignore, write if logs else _ignore)
        for record, (count, write) in telemetry._listeners.items()
    }
    return engine


def _engines(policies: Path) -> dict[str, Engine]:
    return {
        SHIPPED: _engine(policies, metrics=True, logs=True),
        NO_METRICS: _engine(policies, metrics=False, logs=True),
        NO_LOGS: _engine(policies, metrics=True, logs=False),
        NEITHER: _engine(policies, metrics=False, logs=False),
    }


def _every_line() -> LogWriter:
    logger = logging.getLogger("bench.every_line")  # not ours: its level is its own
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    handler = logging.StreamHandler(_Nowhere())
    handler.setFormatter(JsonLogFormatter())
    logger.addHandler(handler)
    return LogWriter(logger)


async def _records(engine: Engine) -> list[Any]:
    """What is told of some clean calls that follow others."""
    told: list[Any] = []
    engine.telemetry.emit = told.append  # type: ignore[method-assign,assignment]  # of this one engine
    await drive(engine, 10**6, _LISTENED)
    return told


def _told_us(listeners: list[tuple[Callable[[Any], None], Any]]) -> float:
    """Of one call's records."""
    parts = []
    for _ in range(_PARTS):
        began_s = time.process_time()
        for _ in range(_TELLINGS):
            for listen, record in listeners:
                listen(record)
        parts.append((time.process_time() - began_s) / _TELLINGS / _LISTENED * 1e6)
    return statistics.median(parts)


def _spans_us(records: list[Any], metrics: Metrics) -> float | None:
    """What spans cost beside metrics and logs: made in a call's own, encoded for a collector, and thrown away."""
    try:
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

        from paywitness.telemetry.spans import Spans
    except ImportError:
        return None

    class Nobody(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            encode_spans(spans).SerializeToString()
            return SpanExportResult.SUCCESS

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Nobody(), max_queue_size=2**16))
    tracing = Spans(provider, time.time)
    none: EventListeners = {type(record): (_ignore, _ignore) for record in records}
    listeners = tracing.with_span_listeners(
        {**Telemetry(metrics, LogWriter(logging.getLogger("bench")))._listeners, **none}
    )
    parts, each = [], len(records) // _LISTENED
    for _ in range(_PARTS):
        began_s = time.process_time()
        for _ in range(_TELLINGS):
            for first in range(0, len(records), each):
                with tracing.call(_SAMPLED, None):
                    for record in records[first : first + each]:
                        listeners[type(record)][1](record)
        provider.force_flush()
        parts.append((time.process_time() - began_s) / _TELLINGS / _LISTENED * 1e6)
    provider.shutdown()
    return statistics.median(parts)


async def _by_itself(policies: Path) -> dict[str, float | None]:
    engine = engine_of(policies)
    await drive(engine, 0, _WARM_CALLS)
    records = await _records(engine)
    shipped = engine.telemetry._listeners
    loud = Telemetry(engine.telemetry.metrics, _every_line())._listeners
    return {
        "records": len(records) / _LISTENED,
        "metrics_us": _told_us([(shipped[type(record)][0], record) for record in records]),
        "logs_us": _told_us([(shipped[type(record)][1], record) for record in records]),
        "debug_us": _told_us([(loud[type(record)][1], record) for record in records]),
        "spans_us": _spans_us(records, engine.telemetry.metrics),
    }


async def _rounds(policies: Path) -> dict[str, list[float]]:
    """Microseconds a call by way, a round each."""
    engines = list(_engines(policies).items())
    for _, engine in engines:
        await drive(engine, 0, _WARM_CALLS)
    gc.collect()
    gc.disable()  # as in engine_alone
    took_us: dict[str, list[float]] = {name: [] for name, _ in engines}
    for number in range(_ROUNDS):
        turn = number % len(engines)
        for name, engine in engines[turn:] + engines[:turn]:
            took_s = await drive(engine, _WARM_CALLS + number * _CALLS, _CALLS)
            took_us[name].append(took_s / _CALLS * 1e6)
    return took_us


async def _all(policies: Path) -> dict[str, Any]:
    return {"by_itself": await _by_itself(policies), "took_us": await _rounds(policies)}


def costs(took_us: dict[str, list[float]], by_itself: dict[str, Any]) -> Measured:
    """Rounds to figures: medians, and medians of the rounds' own differences and ratios. Pure."""
    bare_us = took_us[NEITHER]
    ways = {
        name: Cost(
            statistics.median(us),
            statistics.median(ours - bare for ours, bare in zip(us, bare_us, strict=True)),
            statistics.median(ours / bare for ours, bare in zip(us, bare_us, strict=True)),
        )
        for name, us in took_us.items()
    }
    return Measured(ways, **by_itself)


def measure(top: Path, say: Callable[[str], None]) -> Measured:
    say("metrics and logs: the engine alone with and without them")
    ran = subprocess.run([sys.executable, "-m", "bench.telemetry"], cwd=top, check=True, capture_output=True)
    return costs(**json.loads(ran.stdout))


def lines(measured: Measured) -> Iterator[str]:
    shipped_us = measured.ways[SHIPPED].us
    yield f"Metrics and logs, us of CPU per clean call: its {measured.records:.0f} records told by themselves"
    yield f"  metrics {measured.metrics_us:.1f} us ({measured.metrics_us / shipped_us:.1%} of the engine alone)"
    yield f"  logs at level info {measured.logs_us:.1f} us ({measured.logs_us / shipped_us:.1%}): no line is due"
    yield f"  logs at level debug {measured.debug_us:.0f} us: a line for each"
    spans = (
        "not measured: paywitness[otel] is not installed"
        if measured.spans_us is None
        else f"{measured.spans_us:.0f} us"
    )
    yield f"  spans, where a collector is named: {spans}"
    yield f"The engine alone with and without them (medians of {measured.rounds} rounds in turns)"
    for name, cost in measured.ways.items():
        yield f"  {name:<36} {cost.us:6.1f} us (x {cost.ratio:.3f}, {cost.added_us:+.1f} us)"


if __name__ == "__main__":
    print(json.dumps(uvloop.run(_all(Path("policies")))))
