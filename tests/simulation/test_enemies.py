"""The enemies of simulated worlds: each is played by several seeds, and one alone breaks no promise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from paywitness_sandbox.messages import Request, json_response
from tests.simulation.enemies import with_enemies
from tests.simulation.guard_checkers import NOT_SENT_IS_TRUE, SAFE_IS_TRUE, GuardChecker, Paid
from tests.simulation.history import History
from tests.simulation.loop import SimLoop
from tests.simulation.merchants import Merchant
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
    "pages_for_inquiries": Mix(
        6,
        40,
        contract="not_stored",
        faults={"answer_lost": 0.2, "black_hole": 0.1},
        inquiry_pages=0.8,
        open_ends=0.3,
        events=False,
        webhooks=False,
    ),
    "copies": Mix(
        8,
        40,
        contract="not_stored",
        faults={"answer_lost": 0.1, "black_hole": 0.1},
        copies_stamps=0.5,
        copied_events=1.0,
        open_ends=0.3,
        payouts=0.2,
        events=False,
    ),
    "questions": Mix(
        9,
        60,
        contract="not_stored",
        faults={"answer_lost": 0.1, "black_hole": 0.1, "late_commit": 0.1},
        sidecars=2,
        looks=1.0,
        long_names=0.3,
        drains=3,
        fresh_key=0.5,
        patience=4,
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


QUESTIONS_AND_COPIES = ("copies_stamps", "copied_events", "looks", "long_names", "drains")


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


@pytest.mark.parametrize("told_by", ["selector", "header", "many"])
def test_two_merchants_with_equal_keys_orders_and_amounts_do_not_meet(told_by: str) -> None:
    world = World(replace(TWO_MERCHANTS, merchants=told_by, equal_amounts=True))
    outcome = world.play()
    assert outcome.ok, outcome.violations
    assert world.twin is not None
    first, second = world.checkers.ledger, world.twin.checkers.ledger
    assert min(len(first), len(second)) >= 30
    assert not {entry.charge for entry in first.entries} & {entry.charge for entry in second.entries}


CREDENTIALS = (
    {"merchants": "owners"},
    {"merchants": "owners", "rotates": True},
    {"merchants": "selector", "restricted": "sends"},
    {"merchants": "many", "restricted": "reads"},
    {"rotates": True},
    {"restricted": "sends"},
)


@pytest.mark.parametrize("credentials", CREDENTIALS, ids=str)
def test_credentials_that_are_renewed_restricted_and_foreign_break_no_promise(credentials: dict[str, Any]) -> None:
    faults = {"answer_lost": 0.1, "black_hole": 0.05}
    outcome = World(replace(TWO_MERCHANTS, faults=faults, equal_amounts=True, **credentials)).play()
    assert outcome.ok, "\n".join(outcome.history.lines(outcome.violations[0].about))


def test_the_provider_takes_each_credential_for_what_it_may_and_while_it_is_good() -> None:
    merchant = Merchant(rotated_mono=100.0, overlap_s=10.0, restricted="sends")

    def refused(token: str, method: str, now_mono: float) -> int | None:
        refusal = merchant.refusal(_Arrived(method, "/v1/charges", {"authorization": f"Bearer {token}"}, b""), now_mono)
        return refusal.status_code if refusal is not None else None

    assert [refused("shop", "GET", at) for at in (99.0, 109.0, 110.0)] == [None, None, 401]
    assert [refused("shop-2", "POST", at) for at in (99.0, 100.0)] == [401, None]
    assert [refused("shop-r", method, 0.0) for method in ("POST", "GET")] == [None, 403]
    assert refused("twin", "GET", 0.0) == 401


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
    of_objects = ("foreign_objects", "equal_amounts", "shows_declines", "inquiry_pages", "bounded_lists", "pods_live_s")
    enemies = (*of_objects, "merchants", "rotates", "restricted", *QUESTIONS_AND_COPIES)
    seldom |= {name for name in enemies if sum(bool(getattr(mix, name)) for mix in mixes) < 5}
    plain = [with_enemies(mix_of(seed, 1_000)) for seed in range(1, 51)]
    of_clocks = ("store_steps", "reboots", "clock_stops", "moves", "bounded_lists", "pods_live_s")
    in_plain = ("merchants", "rotates", "restricted", *of_clocks, *QUESTIONS_AND_COPIES)
    seldom |= {name for name in in_plain if sum(bool(getattr(mix, name)) for mix in plain) < 5}
    seldom |= {"odd_statuses"} if sum(mix.odd_statuses > 0 for mix in plain) < 3 else set()
    seldom |= {"lost_stores"} if not any(mix.forgets_s > 1.0 for mix in plain) else set()  # and two of `ALONE`
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


@pytest.mark.parametrize(
    ("sent_mono", "freed_mono", "is_lie"),
    [(1.0, math.inf, True), (3.0, math.inf, False), (1.0, 2.5, False), (1.0, 9.0, True)],
    ids=["left_before", "left_after", "given_back_before", "given_back_after"],
)
def test_not_sent_is_held_against_what_had_left_for_the_order(
    sent_mono: float, freed_mono: float, is_lie: bool
) -> None:
    loop = SimLoop()
    history = History(loop)
    loop.close()
    guards = GuardChecker(history)
    guards.told_not_sent("o1", 2.0, 3.0, "o1, key another")
    guards.told_safe("o2", 2.0, 3.0)
    guards.judge(lambda order: [Paid("ch_1", sent_mono, freed_mono)])
    broken = [(violation.promise, violation.about) for violation in history.violations]
    assert broken == ([(NOT_SENT_IS_TRUE, "o1"), (SAFE_IS_TRUE, "o2")] if is_lie else [])


@pytest.mark.parametrize(
    ("waits_mono", "is_lie"),
    [((1.5, 9.0), False), ((1.5, 2.5), True), ((3.5, 9.0), True), ((math.inf, math.inf), True)],
    ids=["waits", "the_journal_knows_its_end", "the_journal_does_not_know_it_yet", "no_action_is_needed"],
)
def test_not_sent_may_be_said_beside_a_payment_that_waits_for_its_customer(
    waits_mono: tuple[float, float], is_lie: bool
) -> None:
    loop = SimLoop()
    history = History(loop)
    loop.close()
    guards = GuardChecker(history)
    guards.told_not_sent("o1", 2.0, 3.0, "o1, key another")
    guards.told_safe("o2", 2.0, 3.0)
    guards.judge(lambda order: [Paid("ch_1", 1.0, waits_mono=waits_mono)])
    broken = [(violation.promise, violation.about) for violation in history.violations]
    assert broken == [*([(NOT_SENT_IS_TRUE, "o1")] if is_lie else []), (SAFE_IS_TRUE, "o2")]


def _asked(method: str, target: str) -> Request:
    return _Arrived(method, target, {}, b"")


def _ids(body: bytes) -> list[str]:
    shown = json.loads(body)
    return [one["id"] for one in shown.get("data", [shown])]
