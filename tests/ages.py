"""Ages for parts that a test puts together by hand."""

from __future__ import annotations

import logging

from paywitness.clock import Clock, JournalClock
from paywitness.engine.durability.ages import Ages
from paywitness.journal.base import Journal
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.logs import LogWriter
from paywitness.telemetry.metrics import Metrics


def ages_for(journal: Journal, clock: Clock, telemetry: Telemetry | None = None) -> Ages:
    told = telemetry or Telemetry(Metrics("test", clock.now), LogWriter(logging.getLogger("paywitness.test")))
    return Ages(journal, clock, JournalClock(clock), told)
