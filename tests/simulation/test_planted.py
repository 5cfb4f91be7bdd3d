"""The planted bugs can still be planted, and the cheapest of them are caught."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.simulation.planted import BUGS, PAYMENTS, SEEDS_MAX, TOP, Bug, applied, hunted


@pytest.mark.parametrize("planted", BUGS, ids=lambda planted: planted.name)
def test_a_planted_bug_still_fits_the_source(planted: Bug, tmp_path: Path) -> None:
    for path in {edit.path for edit in planted.edits}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / path, tmp_path / path)
    applied(planted, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sent_without_the_journal", "new_key_per_retry", "garbage_read_as_a_400"])
def test_a_planted_bug_is_caught(name: str) -> None:
    """The quickest; `python -m tests.simulation.planted` hunts them all."""
    planted = next(planted for planted in BUGS if planted.name == name)
    caught = hunted(planted, PAYMENTS, SEEDS_MAX)
    assert caught is not None
    assert caught[1] in planted.breaks


def test_a_bug_is_caught_by_what_it_breaks_and_by_nothing_less() -> None:
    """A task that died, or a budget that was counted wrong, is no proof that a double payment would be seen."""
    seen_so = {"no fault of ours", "no contradiction", "everybody is answered"}
    assert all(planted.breaks and seen_so.isdisjoint(planted.breaks) for planted in BUGS)
    assert len(BUGS) >= 20
