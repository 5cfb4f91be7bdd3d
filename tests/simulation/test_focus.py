"""Worlds with a focus: the enemy that each is named after is there with every seed, and none breaks a promise."""

from __future__ import annotations

import pytest

from tests.simulation.focus import FOCUSES, focused_mix
from tests.simulation.report import describe
from tests.simulation.world import play

_SEEDS = range(1, 21)


@pytest.mark.parametrize("name", FOCUSES)
def test_every_seed_of_a_focus_has_its_enemy(name: str) -> None:
    certain = _CERTAIN[name]
    for seed in _SEEDS:
        mix = focused_mix(name, seed, 150)
        assert mix.focus == name
        assert mix.money_between == FOCUSES[name].between
        assert all(mix.faults.get(one) or getattr(mix, one, None) for one in certain), (seed, certain)


_CERTAIN = {
    "absence": ("late_commit", "black_hole", "lag_s"),
    "other_routes": ("fallback", "leaves_if_absent", "leaves_if_rejected", "black_hole"),
    "late_resends": ("late_commit", "black_hole", "resend_for_s"),
    "moves": ("moves", "answer_lost"),
    "lost_stores": ("failovers", "returns_late"),
    "strange_objects": ("foreign_objects", "equal_amounts", "answer_lost"),
    "stale_declines": ("shows_declines", "declined_once", "late_commit"),
    "movements": ("enforces", "stories", "answer_lost"),
    "rotations": ("rotates", "restricted", "answer_lost"),
}


@pytest.mark.parametrize("name", FOCUSES)
def test_a_world_with_a_focus_breaks_no_promise(name: str) -> None:
    outcome = play(1, 60, focus=name)
    assert outcome.ok, describe(outcome)
    assert outcome.faults
