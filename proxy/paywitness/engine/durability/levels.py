"""Announces in the journal that this sidecar lives and which level it keeps. Raises the journal's level when no older
sidecar lives any more (`core.levels`)."""

from __future__ import annotations

import logging

from paywitness.clock import Clock
from paywitness.core.errors import JournalUnavailable
from paywitness.core.levels import (
    ENFORCES_LIMITS,
    LEASES_WITHOUT_OLDER,
    LEVEL,
    Fleet,
    JournalLevel,
    SidecarPresence,
    fleet_from_text,
    fleet_to_text,
    may_raise,
)
from paywitness.engine.durability.ages import Ages
from paywitness.journal.base import FLEET_KEY, Journal, LedgerRow, OperationQuery
from paywitness.randomness import RANDOM_BYTES, operation_id

_log = logging.getLogger("paywitness.levels")

_TRIES_MAX = 5  # a lost write means that another sidecar wrote
_NEWEST_LOOKED_AT = 50
_CLOCKS_DIFFER_S = 60.0  # an id holds the time of the sidecar that made it
_NO_PAYMENT = "~"  # later than every id


class Levels:
    """The journal's level at the last reading, and the sidecars that announce themselves."""

    def __init__(
        self, journal: Journal, clock: Clock, ages: Ages, lease_s: float, *, name: str, release: str, level: int = LEVEL
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._ages = ages
        self._lease_s = lease_s
        self._name, self._release = name, release
        self.own_level = level
        self.journal_level: JournalLevel | None = None
        self.fleet: Fleet | None = None

    @property
    def limits_from(self) -> str:
        """The id from which on limits of payments are enforced: an older sidecar may have moved earlier payments."""
        found = self.journal_level
        if found is None or found.level < ENFORCES_LIMITS:
            return _NO_PAYMENT
        return operation_id(found.raised_at + _CLOCKS_DIFFER_S, bytes(RANDOM_BYTES)) if found.raised_at else ""

    @property
    def raises_in_s(self) -> float | None:
        """How long until the level rises by itself; None: it is as high as this release can keep."""
        if self.fleet is None or self.journal_level is None or self.journal_level.level >= self.own_level:
            return None
        without_s = self._ages.low_age_s(self.fleet.without_older_since)
        return max(0.0, LEASES_WITHOUT_OLDER * self._lease_s - without_s)

    @property
    def older_lives(self) -> bool:
        """Whether an older sidecar is known to have lived within the last ten leases."""
        if self.fleet is None or self.fleet.older_at is None:
            return False
        return self._ages.low_age_s(self.fleet.older_at) < LEASES_WITHOUT_OLDER * self._lease_s

    async def keep_announcing(self) -> None:
        while True:
            await self._clock.sleep(self._lease_s / 2)
            try:
                await self.announce()
            except JournalUnavailable:
                continue

    async def announce(self) -> None:
        """Announce this sidecar, and raise the level if it is time. Raises JournalUnavailable."""
        self.journal_level = await self._journal.level()
        looks_for_older = self.journal_level.level < self.own_level
        older_at = await self._trace_of_older() if looks_for_older else None
        self.fleet = fleet = await self._announced(older_at)
        without_older_s = self._ages.low_age_s(fleet.without_older_since)
        if may_raise(self.journal_level, self.own_level, without_older_s, self._lease_s):
            await self.raise_level()

    async def raise_level(self) -> JournalLevel:
        before = self.journal_level
        self.journal_level = await self._journal.raise_level(self.own_level)
        if before is None or before.level < self.journal_level.level:
            _log.warning("the journal is at level %d now: older sidecars are refused", self.journal_level.level)
        return self.journal_level

    async def _announced(self, older_at: float | None) -> Fleet:
        """The fleet after this sidecar was added."""
        for _ in range(_TRIES_MAX):
            [row] = await self._journal.ledger_rows((FLEET_KEY,))
            now = (await self._journal.read_clock()).at
            fleet = fleet_from_text(row.text) if row is not None else Fleet(now)
            present = SidecarPresence(self._name, self._release, self.own_level, now)
            fleet = fleet.with_sidecar(present, LEASES_WITHOUT_OLDER * self._lease_s)
            fleet = fleet.with_older(older_at) if older_at is not None else fleet
            written = LedgerRow(FLEET_KEY, row.version + 1 if row is not None else 1, fleet_to_text(fleet))
            if await self._journal.write_ledger_rows((written,)):
                return fleet
        return self.fleet or fleet

    async def _trace_of_older(self) -> float | None:
        """When a release without levels last started a payment. It announces nothing, but its operations have no
        payment record."""
        newest = await self._journal.find_operations(OperationQuery(limit=_NEWEST_LOOKED_AT))
        found = [one.created_at for one in newest if one.kind.pays and not one.payment]
        if found and (self.fleet is None or max(found) > (self.fleet.older_at or self.fleet.began_at)):
            _log.warning("a sidecar of an older release started a payment: stop it, or its payments go unrecorded")
        return max(found, default=None)
