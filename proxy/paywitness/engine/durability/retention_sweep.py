"""Retention: an operation that ended long ago becomes a tombstone, and later the tombstone is deleted. Open operations
stay. Payments, with their balances, outlive their operations.

The journal decides which rows may go (`Journal.retire`). This module decides when, and that calls are not held up. The
time since an end is its smallest age (`ages`), so a clock that was set ahead retires nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from paywitness.clock import Clock
from paywitness.core.errors import JournalUnavailable
from paywitness.engine.durability.ages import Ages
from paywitness.journal.base import Journal
from paywitness.option_defaults import DEFAULTS
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import JournalUnanswered

_log = logging.getLogger("paywitness.retention")

_FIRST_AFTER_S = 5.0  # calls come first after a start
_SWEEP_EVERY_S = 60.0
_BATCH_MAX = 500  # of each kind, in one transaction of a few milliseconds
_PAUSE_S = 0.1  # between two transactions, for the calls that wait to be recorded
# Of one sweep: half of its minute, some 2,000 operations a second, which is more than one journal receives.
_ROUNDS_MAX = 300


@dataclass(frozen=True, slots=True)
class Retention:
    journal: Journal
    clock: Clock
    ages: Ages
    telemetry: Telemetry
    retention_s: float
    tombstone_s: float
    payments_kept_s: float = DEFAULTS.payments_kept_s

    async def keep_sweeping(self) -> None:
        await self.clock.sleep(_FIRST_AFTER_S)
        while True:
            await self.sweep()
            await self.clock.sleep(_SWEEP_EVERY_S)

    async def sweep(self) -> int:
        """Retire the rows that are old enough, in small steps. Returns how many. The rest waits for the next sweep."""
        retired, ages = 0, self.ages
        try:
            for _ in range(_ROUNDS_MAX):
                found = await self.journal.retire(
                    retention_s=ages.journal_seconds(self.retention_s),
                    tombstone_s=ages.journal_seconds(self.tombstone_s),
                    limit=_BATCH_MAX,
                    payments_s=ages.journal_seconds(self.payments_kept_s),
                    now_max=ages.now_max,
                )
                retired += found
                if found < _BATCH_MAX:
                    break
                await self.clock.sleep(_PAUSE_S)
        except JournalUnavailable:
            self.telemetry.emit(JournalUnanswered("retiring old operations"))
        if retired:
            _log.info("retired old rows: %d", retired)
        return retired
