"""Recovery: what a crash, a pause or a lost holder left behind. An expired lease on SENDING is doubt, no failure."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from proxy.clock import Clock
from proxy.core.errors import JournalUnavailable
from proxy.core.operation import Operation, State
from proxy.journal.base import Journal, Listing
from proxy.telemetry.doubt import reviews_by_reason
from proxy.telemetry.queue import waiting
from proxy.telemetry.records import EvidenceKind, JournalCalled, changes
from proxy.telemetry.telemetry import Telemetry

_log = logging.getLogger("paywitness.recovery")
_LOOK_EVERY_S = 5.0
_IN_REVIEW = Listing(states=frozenset({State.REQUIRES_REVIEW}), limit=500)
_PENDING = Listing(states=frozenset({State.PENDING}), limit=500)
_ROUNDS_MAX = 1_000  # of 1,000 operations each: a start that finds more has other problems


@dataclass(frozen=True, slots=True)
class Recovery:
    journal: Journal
    clock: Clock
    telemetry: Telemetry
    lease_s: float

    async def at_start(self, *, only_holder: bool) -> int:
        """Act upon every lease that is over. In a journal that only one process can hold, all of them are."""
        total = 0
        for _ in range(_ROUNDS_MAX):
            found = await self.journal.expire_leases(all_of_earlier_holders=only_holder)
            self._tell(found)
            total += len(found)
            if not found:
                break
        if total:
            _log.warning("recovered what an earlier process had left under way: %d operation(s)", total)
        return total

    async def keep_looking(self) -> None:
        """Leases that ran out while we run, and the gauges of what is in doubt. After the journal was away, holders
        first get a lease's time to say what they know: their leases could not be renewed."""
        away_boot = -self.lease_s
        while True:
            try:
                rolled_back_s = self.journal.rolled_back_s()
                back_s = self.clock.boot() - away_boot
                if min(back_s, rolled_back_s if rolled_back_s is not None else back_s) >= self.lease_s:
                    self._tell(await self.journal.expire_leases())
                await self._show()
            except JournalUnavailable:
                away_boot = self.clock.boot()
                _log.warning("the journal does not answer; looking again in %.0f s", _LOOK_EVERY_S)
            await self.clock.sleep(_LOOK_EVERY_S)

    async def _show(self) -> None:
        """What a scrape then shows, which asks no journal: it costs by what is open, not by what is kept. Told like any
        other call, so that a journal that is down is seen where nobody pays."""
        began_mono = self.clock.mono()
        try:
            await self._look()
        except JournalUnavailable:
            self.telemetry.tell(JournalCalled("look", self.clock.mono() - began_mono, failed=True))
            raise
        self.telemetry.tell(JournalCalled("look", self.clock.mono() - began_mono))

    async def _look(self) -> None:
        in_review = await self.journal.listing(_IN_REVIEW)
        pending = await self.journal.listing(_PENDING)
        counts = await self.journal.doubt_counts()
        self.telemetry.metrics.show_doubt(counts, reviews_by_reason(in_review))
        self.telemetry.metrics.show_queue(waiting(counts, pending, self.clock.now()))

    def _tell(self, operations: tuple[Operation, ...]) -> None:
        now = self.clock.now()
        for operation in operations:
            for record in changes(None, operation, EvidenceKind.LEASE, now):
                self.telemetry.tell(record)
