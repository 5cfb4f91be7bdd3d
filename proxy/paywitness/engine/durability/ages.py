"""The heartbeat that keeps both ages of everything (`core.ages`): it reads the store's clock together with our own, and
moves the counters of the journal on.

Every sidecar reads every two seconds. One of them writes every ten seconds, or at once after a jump. Between readings,
our own CLOCK_BOOTTIME bounds every age. So a store's clock that was set a moment ago makes nothing look older.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace
from email.utils import parsedate_to_datetime

from paywitness.clock import Clock, JournalClock, host_of
from paywitness.core.ages import (
    TOLERANCE_S,
    AgeTable,
    ClockReading,
    CountedReading,
    count_date,
    count_reading,
    first_table,
    table_from_text,
    table_to_text,
)
from paywitness.core.errors import JournalUnavailable
from paywitness.core.evidence import Response
from paywitness.engine.durability.due_times import DueTimes
from paywitness.journal.base import AGES_KEY, Journal, LedgerRow
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import ClockJumped

_log = logging.getLogger("paywitness.ages")

BEAT_S = 2.0
_WRITE_EVERY_S = 10.0
_COMPARED_FOR_S = 60.0  # a reading is compared with one that is up to this old, to detect a clock that runs too fast
_TRIES_MAX = 3  # a lost write means that another sidecar wrote
_DATE_EVERY_S = 60.0  # for one provider, after its first one


class Ages:
    """Both ages of everything in the journal. Before the first reading the smallest age is zero and the largest
    infinite."""

    def __init__(self, journal: Journal, clock: Clock, journal_clock: JournalClock, telemetry: Telemetry) -> None:
        self._journal = journal
        self._clock = clock
        self._journal_clock = journal_clock
        self._telemetry = telemetry
        self._host = host_of(clock)
        self._lock = asyncio.Lock()
        self._table: AgeTable | None = None
        self._stored: AgeTable | None = None  # the table as last seen in the journal, or written by this sidecar
        self._reading: ClockReading | None = None  # the latest reading
        self._compared: ClockReading | None = None  # the reading with which the next one is compared
        self._compared_next: ClockReading | None = None
        self._dates: dict[str, float] = {}  # by provider: the time in its responses since the table was last written
        self._dated_boot: dict[str, float] = {}
        self.jumps = 0  # jumps that this sidecar has seen
        self.due_times = DueTimes(journal)  # gets the due times with each heartbeat

    # --- The ages

    def low_age_s(self, at: float) -> float:
        """The smallest age: it measures a time that must have passed. Negative: the moment is still to come. Zero for a
        moment in the past as long as no clock can show its age."""
        if self._table is None or self._reading is None:
            return 0.0
        return self._table.low_age_s(at, self._low_now())

    def low_now(self, since: float) -> float:
        """The moment `since`, plus the time that has certainly passed since."""
        return since + self.low_age_s(since)

    def _low_now(self) -> float:
        told_at = self._journal_clock.told_at
        if self._reading is None or told_at is None:
            return -math.inf
        since_s = self._clock.boot() - self._reading.boot
        return min(told_at, self._reading.at + since_s + TOLERANCE_S)

    def high_age_s(self, at: float, provider: str) -> float:
        """The largest age: it measures a permission that runs out."""
        if self._table is None or self._reading is None:
            return math.inf
        now = self._reading.at + (self._clock.boot() - self._reading.boot)
        return self._table.high_age_s(at, max(now, self._journal_clock.told_at or now), provider)

    def leases_over_at(self, lease_s: float) -> float:
        """Leases of other sidecars that end later than this, in the journal's time, are not over."""
        return self._table.leases_over_at(lease_s, self._low_now()) if self._table is not None else -math.inf

    def journal_seconds(self, seconds: float) -> float:
        """How far before `now_max`, in the journal's time, a moment lies since which so many seconds have passed."""
        return self._table.journal_seconds(seconds, self._low_now()) if self._table is not None else math.inf

    @property
    def now_max(self) -> float:
        """In the journal's time it is certainly no later than this."""
        return self._low_now()

    @property
    def awaits_dates(self) -> bool:
        """Whether there was a gap. An operation from before it is re-sent only after its provider has shown a
        `Date`."""
        return self._table is not None and self._table.gap_at is not None

    # --- The readings

    def note_response(self, provider: str, response: Response | None) -> None:
        """Read the `Date` of a provider's response: it may show a time that no clock of ours knows."""
        dated_boot = self._dated_boot.get(provider)
        if response is None or (dated_boot is not None and self._clock.boot() - dated_boot <= _DATE_EVERY_S):
            return
        date_at = _date_in(response)
        if date_at is None:
            return
        self._dates[provider] = date_at
        self._dated_boot[provider] = self._clock.boot()
        if self._table is not None and self._reading is not None:
            now = self._reading.at + (self._clock.boot() - self._reading.boot)
            self._table = count_date(self._table, provider, date_at, now)

    async def keep_counting(self) -> None:
        while True:
            await self._clock.sleep(BEAT_S)
            try:
                await self.count()
            except JournalUnavailable:
                continue  # the next reading covers the time until then

    async def count(self) -> None:
        """Read all clocks, and move the counters on. Raises JournalUnavailable."""
        async with self._lock:
            for _ in range(_TRIES_MAX):
                if await self._count_once():
                    return

    async def _count_once(self) -> bool:
        """False: another sidecar wrote first."""
        boot = self._clock.boot()
        stored = await self._journal.read_clock()
        reading = ClockReading(stored.at, stored.raw_at, self._clock.now(), boot, self._clock.boot(), self._host)
        self._journal_clock.update(stored.at)
        self.due_times.update(stored)
        self._journal_clock.limit(stored.at + (reading.answered_boot - boot))
        before = self._latest(stored.ages)
        counted = (
            CountedReading(first_table(reading))
            if before is None
            else count_reading(before, self._compared, reading, shared=self._journal.shared)
        )
        table = counted.table
        for provider, date_at in self._dates.items():
            table = count_date(table, provider, date_at, reading.at)
        self._table, self._reading = table, reading
        if before is not None and not self._is_news(before, table, reading):
            self._compare_with(reading, counted, before)
            return True
        version = (stored.ages.version if stored.ages is not None else 0) + 1
        if not await self._journal.write_ledger_rows((LedgerRow(AGES_KEY, version, table_to_text(table)),)):
            return False
        self._stored = table
        self._dates.clear()
        self._compare_with(reading, counted, table)
        self._report(counted)
        return True

    def _latest(self, row: LedgerRow | None) -> AgeTable | None:
        """The table to continue from. If the journal came back without its last writes, ours is newer than its own."""
        stored = table_from_text(row.text) if row is not None else None
        if self._stored is not None and (stored is None or stored.seen.at < self._stored.seen.at):
            return self._stored
        self._stored = stored
        return stored

    def _is_news(self, before: AgeTable, table: AgeTable, reading: ClockReading) -> bool:
        if replace(before, seen=table.seen) != table:
            return True
        return reading.at - before.seen.at >= _WRITE_EVERY_S or reading.raw_at < before.seen.raw_at

    def _compare_with(self, reading: ClockReading, counted: CountedReading, stored: AgeTable) -> None:
        """Choose the reading with which the next one is compared: an older one of ours, which the journal has
        counted."""
        if self._compared is None or counted.jump is not None:
            self._compared, self._compared_next = reading, None
            return
        if self._compared_next is None and reading.boot - self._compared.boot > _COMPARED_FOR_S:
            self._compared_next = reading
        if self._compared_next is not None and self._compared_next.at <= stored.seen.at:
            self._compared, self._compared_next = self._compared_next, None

    def _report(self, counted: CountedReading) -> None:
        jump = counted.jump
        if jump is None:
            return
        self.jumps += 1
        self._telemetry.emit(ClockJumped(counted.is_gap, jump.low_s, jump.high_s))


def _date_in(response: Response) -> float | None:
    """When the provider made the response, by its own clock. `Age` shows how long a cache kept it."""
    found = {name.lower(): value for name, value in response.headers if name.lower() in {b"date", b"age"}}
    try:
        date_at = parsedate_to_datetime(found[b"date"].decode("ascii")).timestamp()
        return date_at + max(0, int(found.get(b"age", b"0")))
    except (KeyError, ValueError, UnicodeDecodeError, TypeError, OverflowError):
        return None
