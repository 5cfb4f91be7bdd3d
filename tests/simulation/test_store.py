"""The simulation's journal with indexes says what the journal in memory says."""

from __future__ import annotations

from typing import cast

import pytest

from paywitness.journal.transitions import WallClock
from tests.journal.memory import MemoryJournal
from tests.journal.memory_tables import MemoryTables
from tests.simulation.store import IndexedJournal, IndexedTables
from tests.simulation.swarm import mix_of
from tests.simulation.world import World


class PlainJournal(MemoryJournal):
    """The journal in memory as it is."""

    def reopened(self, clock: WallClock) -> PlainJournal:
        self._tables.latest_at = self._time.latest_at
        self._open = False
        return PlainJournal(clock=clock, tables=self._tables)

    @property
    def tables(self) -> IndexedTables:
        return cast(IndexedTables, self._tables)


@pytest.mark.parametrize("seed", [2, 8])
def test_a_world_over_the_plain_journal_has_the_same_history(seed: int) -> None:
    mix = mix_of(seed, 60)
    assert not mix.failovers
    indexed, plain = World(mix), World(mix)
    # Both look things up by the indexes.
    plain._check_lease = lambda sent: None  # type: ignore[method-assign]
    plain._any_open = lambda tables: any(map(plain._is_open, tables.operations.values()))  # type: ignore[method-assign]
    journal = PlainJournal(clock=plain.fleet.store_clock, tables=MemoryTables())
    plain.fleet.journal = cast(IndexedJournal, journal)
    assert plain.play().history.lines() == indexed.play().history.lines()
