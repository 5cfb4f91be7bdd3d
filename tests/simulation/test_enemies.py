"""The enemies of simulated worlds: each is played by several seeds, and one alone breaks no promise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from paywitness_sandbox.messages import Request, json_response
from tests.simulation.enemies import with_enemies
from tests.simulation.provider import _Arrived
from tests.simulation.strange_objects import StrangeObjects
from tests.simulation.swarm import GATEWAYS, Mix, mix_of, stream, with_money_between
from tests.simulation.world import World

_SILENT: dict[str, Any] = {"events": False, "webhooks": False}
ALONE = {
    "gateways": Mix(3, 40, contract="not_stored", faults=dict.fromkeys(GATEWAYS, 0.05), events=False, webhooks=False),
    "strange_objects": Mix(
        4,
        40,
        contract="not_stored",
        faults={"answer_lost": 0.2, "black_hole": 0.1},
        foreign_objects=0.5,
        equal_amounts=True,
        events=False,
        webhooks=False,
    ),
    "declines_on_shared_objects": Mix(
        5,
        40,
        contract="not_stored",
        faults={"answer_lost": 0.1, "black_hole": 0.1, "late_commit": 0.1},
        money_between=True,
        orders=1.0,
        shows_declines=True,
        events=False,
        webhooks=False,
    ),
}


ALONE |= {
    "a_store_s_clock": Mix(
        6, 40, contract="none", faults={"late_commit": 0.3}, store_steps=6, late_steps_s=60.0, **_SILENT
    ),
    "a_clock_that_stops": Mix(
        2,
        60,
        contract="replayed",
        asks=False,
        window_s=30,
        faults={"answer_lost": 0.3},
        attempts=1,
        reboots=True,
        clock_stops=True,
        crashes=3,
        **_SILENT,
    ),
    "lists_by_another_clock": Mix(
        8,
        40,
        contract="not_stored",
        faults={"answer_lost": 0.2, "late_commit": 0.2},
        bounded_lists=True,
        provider_ahead_s=-900.0,
        shows_dates=True,
        **_SILENT,
    ),
    "an_address_that_moves": Mix(
        9, 40, contract="replayed", sidecars=2, faults={"answer_lost": 0.3, "late_answer": 0.1}, moves=True, **_SILENT
    ),
    "pods_that_live_shortly": Mix(
        10, 40, contract="not_stored", sidecars=2, faults={"late_commit": 0.3}, pods_live_s=15.0, **_SILENT
    ),
    "names_that_are_gone": Mix(11, 40, contract="not_stored", asks=False, odd_statuses=0.3, **_SILENT),
    "a_store_without_keys": Mix(
        12, 60, contract="none", sidecars=2, rate_per_s=6.0, failovers=1, forgets_s=math.inf, **_SILENT
    ),
    "a_store_put_back": Mix(13, 60, contract="none", sidecars=2, rate_per_s=6.0, failovers=1, forgets_s=5.0, **_SILENT),
}

TWO_MERCHANTS = Mix(7, 40, contract="not_stored", events=False, webhooks=False)


@pytest.mark.parametrize("told_by", ["selector", "many"])
def test_two_merchants_with_equal_keys_orders_and_amounts_do_not_meet(told_by: str) -> None:
    world = World(replace(TWO_MERCHANTS, merchants=told_by, equal_amounts=True))
    outcome = world.play()
    assert outcome.ok, outcome.violations
    assert world.twin is not None
    first, second = world.checkers.ledger, world.twin.checkers.ledger
    assert min(len(first), len(second)) >= 30
    assert not {entry.charge for entry in first.entries} & {entry.charge for entry in second.entries}


def test_a_payment_is_not_opened_before_its_owner_is_known() -> None:
    """It was opened under an account without an owner, so its intent did not reach the confirm: the order was paid by
    a second payment."""
    mix = with_enemies(with_money_between(mix_of(23, 60)))
    outcome = World(replace(mix, merchants="many", rotates=True, asks=True, webhooks=False, retires=False)).play()
    assert "an order is paid once" not in {violation.promise for violation in outcome.violations}


@pytest.mark.parametrize("name", ALONE)
def test_an_enemy_alone_breaks_no_promise(name: str) -> None:
    outcome = World(ALONE[name]).play()
    assert outcome.ok, "\n".join(outcome.history.lines(outcome.violations[0].about))


def test_every_enemy_is_played_by_several_of_fifty_seeds() -> None:
    mixes = [with_enemies(with_money_between(mix_of(seed, 1_000))) for seed in range(1, 51)]
    seldom = {name for name in GATEWAYS if sum(name in mix.faults for mix in mixes) < 5}
    enemies = ("foreign_objects", "equal_amounts", "shows_declines", "bounded_lists", "pods_live_s")
    seldom |= {name for name in enemies if sum(bool(getattr(mix, name)) for mix in mixes) < 5}
    plain = [with_enemies(mix_of(seed, 1_000)) for seed in range(1, 51)]
    of_plain = ("merchants", "store_steps", "reboots", "clock_stops", "moves", "bounded_lists", "pods_live_s")
    seldom |= {name for name in of_plain if sum(bool(getattr(mix, name)) for mix in plain) < 5}
    seldom |= {"odd_statuses"} if sum(mix.odd_statuses > 0 for mix in plain) < 3 else set()
    seldom |= {"lost_stores"} if sum(mix.forgets_s > 1.0 for mix in plain) < 2 else set()
    assert not seldom


def test_somebody_else_s_object_is_shown_and_never_an_old_copy_of_what_was_asked_for() -> None:
    strange = StrangeObjects(1.0, stream(1, "strange"))
    for name in ("ch_a", "ch_b"):
        made = json_response(200, {"id": name, "object": "charge", "metadata": {"paywitness": f"op_{name}"}})
        strange.instead(_asked("POST", "/v1/charges"), made, calm=False)
    right = json_response(200, {"id": "ch_a", "object": "charge"})
    assert _ids(strange.instead(_asked("GET", "/v1/charges/ch_a"), right, calm=False).body) == ["ch_b"]
    nothing = json_response(200, {"data": [], "has_more": False})
    searched = _asked("GET", "/v1/charges?paywitness=op_ch_a")
    assert _ids(strange.instead(searched, nothing, calm=False).body) == ["ch_b"]
    assert strange.instead(searched, nothing, calm=True) is nothing


def _asked(method: str, target: str) -> Request:
    return _Arrived(method, target, {}, b"")


def _ids(body: bytes) -> list[str]:
    shown = json.loads(body)
    return [one["id"] for one in shown.get("data", [shown])]
