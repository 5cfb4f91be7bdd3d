"""A telemetry with its metrics and its lines at hand, and a clock that stands where it is put."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.logs import LogFormat, LogWriter, install_logging
from paywitness.telemetry.metrics import Metrics
from tests.telemetry.samples import CREATED_AT


@dataclass
class Told:
    """What was told, on both sides."""

    stream: io.StringIO = field(default_factory=io.StringIO)
    now: float = CREATED_AT

    def __post_init__(self) -> None:
        self.metrics = Metrics("1.2.3", lambda: self.now)
        self.telemetry = Telemetry(self.metrics, LogWriter(logging.getLogger("paywitness.test")))
        self.tell = self.telemetry.emit

    def value(self, name: str, **labels: str) -> float | None:
        """Of the sample with these labels. A label that is empty is none, as for Prometheus."""
        wanted = {label: value for label, value in labels.items() if value}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == name and {label: value for label, value in sample.labels.items() if value} == wanted:
                    return sample.value
        return None

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def written(self) -> str:
        """All lines without their times, in which three digits of a card may stand by chance."""
        return "\n".join(
            json.dumps({name: value for name, value in line.items() if name != "at"}) for line in self.lines()
        )


@pytest.fixture(params=[logging.INFO])
def told(request: pytest.FixtureRequest) -> Iterator[Told]:
    told = Told()
    undo = install_logging(told.stream, request.param, LogFormat.JSON)
    yield told
    undo()


at_debug = pytest.mark.parametrize("told", [logging.DEBUG], indirect=True)
