"""A scrape is written as the library writes it, byte for byte."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from prometheus_client import Counter, Gauge, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from proxy.core.operation import Outcome
from proxy.telemetry.exposition import open_metrics, plain_text
from proxy.telemetry.metrics import Registry
from proxy.telemetry.records import CallAnswered
from tests.telemetry.conftest import Told
from tests.telemetry.test_documented import shown

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
NUMBERS = [0, 1, -1, 0.1, 1e-9, 12.5, 999_999, 1e6, 1_000_000.5, 123_456_789.0, 1.79e9, 1e21, -1e7]
NUMBERS += [math.inf, -math.inf, math.nan]


def test_everything_that_is_told_is_written_as_the_library_writes_it(told: Told) -> None:
    shown(told)
    told.tell(CallAnswered("acme", "authorization", Outcome.SUCCEEDED, 200, None, 0.2, trace_id=TRACE))
    written = _whole(open_metrics(told.metrics.registry))
    assert _still(written) == _still(openmetrics.generate_latest(told.metrics.registry))
    assert TRACE.encode() in written
    assert _still(_whole(plain_text(told.metrics.registry))) == _still(generate_latest(told.metrics.registry))


def _whole(pieces: Iterator[str]) -> bytes:
    return "".join(pieces).encode()


def test_a_large_family_comes_in_pieces() -> None:
    registry = Registry()
    many = Counter("one", "One.", ("name",), registry=registry)
    for number in range(450):
        many.labels(str(number)).inc()
    pieces = list(open_metrics(registry))
    assert [piece.count("\n") for piece in pieces] == [101, 100, 100, 100, 51, 1]
    assert "".join(pieces).encode() == openmetrics.generate_latest(registry)


def _still(written: bytes) -> list[bytes]:
    """Without what the process itself changes between two looks."""
    return [line for line in written.splitlines() if not line.startswith(b"process_")]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_written_alike(number: float) -> None:
    registry = Registry()
    Gauge("one", "One.", registry=registry).set(number)
    assert _whole(open_metrics(registry)) == openmetrics.generate_latest(registry)
    assert _whole(plain_text(registry)) == generate_latest(registry)


@pytest.mark.parametrize("value", ["", "acme", "a b", 'quoted "so"', "a\\b", "two\nlines", "\\n", "größer", "{}=,#"])
def test_labels_are_written_alike(value: str) -> None:
    registry = Registry()
    Counter("one", "One.", ("zebra", "ant"), registry=registry).labels(value, "x").inc()
    assert _whole(open_metrics(registry)) == openmetrics.generate_latest(registry)
    assert _whole(plain_text(registry)) == generate_latest(registry)
