"""The planted bugs can still be planted, and the cheapest of them are caught."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.simulation.planted import BUGS, SEEDS_MAX, TOP, Bug, applied, hunted


@pytest.mark.parametrize("planted", BUGS, ids=lambda planted: planted.name)
def test_a_planted_bug_still_fits_the_source(planted: Bug, tmp_path: Path) -> None:
    for path in {edit.path for edit in planted.edits}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / path, tmp_path / path)
    applied(planted, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["new_key_per_retry", "garbage_read_as_a_400", "gateway_timeout_is_a_failure"])
def test_a_planted_bug_is_caught(name: str) -> None:
    planted = next(planted for planted in BUGS if planted.name == name)
    assert hunted(planted, 100, SEEDS_MAX) is not None
