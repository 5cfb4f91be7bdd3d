"""Which rules every sidecar of a journal keeps, and when they begin."""

from __future__ import annotations

import pytest

from paywitness.core.levels import (
    SIDECARS_MAX,
    Fleet,
    JournalLevel,
    SidecarPresence,
    fleet_from_text,
    fleet_to_text,
    may_raise,
)


def present(name: str, level: int, seen_at: float) -> SidecarPresence:
    return SidecarPresence(name, f"0.{level}", level, seen_at)


@pytest.mark.parametrize(
    ("journal", "own", "without_s", "raises"),
    [(1, 2, 299.9, False), (1, 2, 300.0, True), (2, 2, 9_999.0, False), (3, 2, 9_999.0, False), (1, 3, 300.0, True)],
)
def test_the_level_is_raised_once_no_older_one_has_lived_for_ten_leases(
    journal: int, own: int, without_s: float, raises: bool
) -> None:
    assert may_raise(JournalLevel(journal, 0.0), own, without_s, 30.0) is raises


def test_an_older_one_that_lives_moves_the_moment_on() -> None:
    fleet = Fleet(100.0).with_sidecar(present("new", 2, 100.0), 300.0)
    assert (fleet.older_at, fleet.without_older_since) == (None, 100.0)
    fleet = fleet.with_sidecar(present("old", 1, 150.0), 300.0)
    assert fleet.without_older_since == 150.0
    fleet = fleet.with_sidecar(present("new", 2, 200.0), 300.0)
    assert fleet.without_older_since == 150.0
    fleet = fleet.with_sidecar(present("new", 2, 460.0), 300.0)
    assert [one.name for one in fleet.sidecars] == ["new"]  # the other has not announced itself since
    assert fleet.without_older_since == 150.0


def test_a_trace_of_one_that_announces_nothing_counts_too() -> None:
    fleet = Fleet(100.0).with_older(50.0)
    assert fleet.without_older_since == 100.0
    assert fleet.with_older(180.0).with_older(170.0).without_older_since == 180.0


def test_the_list_is_bounded() -> None:
    fleet = Fleet(0.0)
    for number in range(SIDECARS_MAX + 50):
        fleet = fleet.with_sidecar(present(f"pod-{number:05d}", 2, 1.0), 300.0)
    assert len(fleet.sidecars) == SIDECARS_MAX


def test_it_is_stored_and_read_as_it_was() -> None:
    fleet = Fleet(1.0, 2.0, (present("a", 1, 3.0), present("b", 2, 4.0)))
    assert fleet_from_text(fleet_to_text(fleet)) == fleet
    assert fleet_from_text(fleet_to_text(Fleet(1.0))) == Fleet(1.0)
