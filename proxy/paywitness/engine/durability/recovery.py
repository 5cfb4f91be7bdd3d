"""Recovery after a crash, a pause or a lost holder. An expired lease on SENDING is an unknown outcome, not a
failure."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from paywitness.clock import Clock
from paywitness.core.errors import JournalUnavailable
from paywitness.core.operation import DoubtCount, Operation, State
from paywitness.engine.durability.ages import Ages
from paywitness.journal.base import Journal, OperationQuery
from paywitness.journal.ledger import EXPIRY_NOTICE_S
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import EvidenceKind, JournalCalled, JournalUnanswered, transition_events
from paywitness.telemetry.gauges import queue_rows, reviews_by_reason

_log = logging.getLogger("paywitness.recovery")
_GAUGES_EVERY_S = 5.0
_IN_REVIEW = OperationQuery(states=frozenset({State.REQUIRES_REVIEW}), limit=500)
_PENDING = OperationQuery(states=frozenset({State.PENDING}), limit=500)
_IN_DOUBT = frozenset(state for state in State if state.in_doubt)
_ROUNDS_MAX = 1_000  # of 1,000 operations each: a start that finds more has other problems


@dataclass(slots=True)
class Recovery:
    journal: Journal
    clock: Clock
    telemetry: Telemetry
    lease_s: float
    ages: Ages
    _unavailable_boot: float = -math.inf  # when the journal last did not answer

    async def at_start(self, *, only_holder: bool) -> int:
        """Expire every lease that is over. In a journal that only one process can hold, all leases of earlier holders
        are."""
        total = 0
        for _ in range(_ROUNDS_MAX):
            found = await self.journal.expire_leases(
                all_of_earlier_holders=only_holder, over_at=self.ages.leases_over_at(self.lease_s)
            )
            self._emit_changes(found)
            total += len(found)
            if not found:
                break
        if total:
            _log.warning("recovered operations that an earlier process had left under way: %d", total)
        return total

    async def keep_expiring_leases(self) -> None:
        """Expire the leases that run out while we run."""
        due_times = self.ages.due_times
        while True:
            try:
                expired = await self._expire_leases()
                if expired:
                    due_times.operations.set()
                    due_times.announcements.set()
                await due_times.wait(due_times.leases, did_something=expired > 0)
            except JournalUnavailable:
                await self._pause_without_journal("leases that ran out")

    async def _expire_leases(self) -> int:
        """Expire the leases that are over. If the journal was away, holders could not renew, so they first get the time
        of one lease to report."""
        rolled_back_s = self.journal.rolled_back_s()
        available_s = self.clock.boot() - self._unavailable_boot
        if min(available_s, rolled_back_s if rolled_back_s is not None else available_s) < self.lease_s:
            return 0
        expired = await self.journal.expire_leases(over_at=self.ages.leases_over_at(self.lease_s))
        self._emit_changes(expired)
        return len(expired)

    async def keep_updating_gauges(self) -> None:
        """Update the gauges of operations in doubt, at a fixed period. So an idle sidecar also notices that the journal
        is away."""
        while True:
            try:
                await self._update_gauges()
                await self.clock.sleep(_GAUGES_EVERY_S)
            except JournalUnavailable:
                await self._pause_without_journal("operations in doubt")

    async def _pause_without_journal(self, what: str) -> None:
        self._unavailable_boot = self.clock.boot()
        self.telemetry.emit(JournalUnanswered(what))
        await self.clock.sleep(_GAUGES_EVERY_S)

    async def _update_gauges(self) -> None:
        """Read the gauges that a scrape then shows without calling the journal. The cost depends on the open
        operations, not on all that are stored. It counts as a journal call, so that an idle sidecar also shows a
        journal that is down."""
        began_mono = self.clock.mono()
        try:
            await self._read_gauges()
        except JournalUnavailable:
            self.telemetry.emit(JournalCalled("look", self.clock.mono() - began_mono, failed=True))
            raise
        self.telemetry.emit(JournalCalled("look", self.clock.mono() - began_mono))

    async def _read_gauges(self) -> None:
        in_review = await self.journal.find_operations(_IN_REVIEW)
        pending = await self.journal.find_operations(_PENDING)
        counts = await self.journal.doubt_counts()
        self.telemetry.metrics.learn_journal(self.journal.journal_id())
        self.telemetry.metrics.learn_operations((*in_review, *pending))
        await self._learn_kinds(counts)
        self.telemetry.metrics.set_doubt(counts, reviews_by_reason(in_review))
        self.telemetry.metrics.set_queue(queue_rows(counts, pending, self.clock.now()))
        # Such rows become due a day before the expiry, and stay due for a day after it: two days.
        self.telemetry.metrics.set_expiring_authorizations(await self.journal.count_due_ledger_rows(EXPIRY_NOTICE_S))

    async def _learn_kinds(self, counts: tuple[DoubtCount, ...]) -> None:
        """A count has no kind. The book gives it. If a policy was removed, an operation of that name gives it, which is
        read once for each name."""
        for provider, operation in sorted(self.telemetry.metrics.names_without_kind(counts)):
            query = OperationQuery(provider=provider, operation=operation, states=_IN_DOUBT, limit=1)
            self.telemetry.metrics.learn_operations(await self.journal.find_operations(query))

    def _emit_changes(self, operations: tuple[Operation, ...]) -> None:
        now = self.clock.now()
        for operation in operations:
            for record in transition_events(None, operation, EvidenceKind.LEASE, now):
                self.telemetry.emit(record)
