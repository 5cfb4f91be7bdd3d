"""What ended long ago is retired in small steps, for as long as there is some, and never in a hurry."""

from __future__ import annotations

import asyncio
import math

from paywitness.clock import SystemClock
from paywitness.core.errors import JournalUnavailable
from paywitness.engine.durability.ages import Ages
from paywitness.engine.durability.retention_sweep import Retention
from paywitness.journal.base import PAYMENTS_KEPT_S
from tests.engine.world import telemetry_for
from tests.journal.memory import MemoryJournal


class Time(SystemClock):
    def __init__(self) -> None:
        self.slept_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        await asyncio.sleep(0)


class ExactAges(Ages):
    """Of clocks that never jumped."""

    def __init__(self) -> None:
        pass

    def journal_seconds(self, seconds: float) -> float:
        return seconds

    @property
    def now_max(self) -> float:
        return math.inf


EXACT = ExactAges()


class FullJournal(MemoryJournal):
    """So many are old enough."""

    def __init__(self, old: int, *, failures: int = 0) -> None:
        super().__init__(clock=SystemClock())
        self.old, self.failures = old, failures
        self.asked: list[tuple[float, float, float, int]] = []

    async def retire(
        self,
        *,
        retention_s: float,
        tombstone_s: float,
        limit: int,
        payments_s: float = PAYMENTS_KEPT_S,
        now_max: float = math.inf,
    ) -> int:
        self.asked.append((retention_s, tombstone_s, payments_s, limit))
        if self.failures:
            self.failures -= 1
            raise JournalUnavailable("down")
        found = min(self.old, limit)
        self.old -= found
        return found


async def test_a_sweep_goes_on_while_there_is_more_and_pauses_in_between() -> None:
    journal, clock = FullJournal(1_200), Time()
    assert await Retention(journal, clock, EXACT, telemetry_for(clock), 30.0, 90.0, 400.0).sweep() == 1_200
    assert journal.asked == [(30.0, 90.0, 400.0, 500)] * 3
    assert clock.slept_s == [0.1, 0.1]


async def test_a_sweep_ends_though_there_is_always_more() -> None:
    journal = FullJournal(10_000_000)
    assert await Retention(journal, Time(), EXACT, telemetry_for(Time()), 30.0, 90.0, 400.0).sweep() == 300 * 500


async def test_the_loop_starts_late_goes_on_every_minute_and_outlives_an_outage() -> None:
    journal, clock = FullJournal(2, failures=1), Time()
    loop = asyncio.ensure_future(
        Retention(journal, clock, EXACT, telemetry_for(clock), 30.0, 90.0, 400.0).keep_sweeping()
    )
    while len(journal.asked) < 3:  # noqa: ASYNC110  # the clock does not wait, so neither do we
        await asyncio.sleep(0)
    loop.cancel()
    assert clock.slept_s[:3] == [5.0, 60.0, 60.0]
    assert journal.old == 0
