"""A scrape in pieces is the library's own, byte for byte."""

from __future__ import annotations

import pytest
from prometheus_client.exposition import choose_encoder

from paywitness.core.operation import Outcome
from paywitness.telemetry.events import CallAnswered
from paywitness.telemetry.prometheus import exposition_pieces
from tests.telemetry.conftest import Told
from tests.telemetry.test_documented import shown

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@pytest.mark.parametrize("accept", [OPEN_METRICS, "text/plain; version=0.0.4", ""])
def test_everything_that_is_told_is_written_as_the_library_writes_it(told: Told, accept: str) -> None:
    shown(told)
    told.tell(CallAnswered("acme", "authorization", Outcome.SUCCEEDED, 200, None, 0.2, trace_id=TRACE))
    encode, _ = choose_encoder(accept)
    written = list(exposition_pieces(told.metrics.registry, encode))
    assert _still(b"".join(written)) == _still(encode(told.metrics.registry))
    assert len(written) > 20
    assert (TRACE.encode() in b"".join(written)) == (accept == OPEN_METRICS)


def _still(written: bytes) -> list[bytes]:
    """Without what the process itself changes between two looks."""
    return [line for line in written.splitlines() if not line.startswith(b"process_")]
