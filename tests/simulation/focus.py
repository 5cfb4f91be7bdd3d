"""Worlds with a focus: one enemy is certain and frequent there, and the others are off.

The worlds of the swarm have so many enemies that some are rare, and what one of them does is ended by another one
before it matters. A world with a focus begins quiet. Its seed draws the contract, the load and the patience, and the
focus adds its own enemy and the faults that go with it. Nothing of it is drawn for the worlds of the swarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from tests.simulation.swarm import DENSE, LONG_LAGS_S, PATIENT_S, SPARSE, Mix, stream


@dataclass(frozen=True)
class Focus:
    """What one focus makes of a quiet world. `between`: with the money between operations."""

    name: str
    change: Callable[[Mix, Random], Mix]
    between: bool = False


def focused_mix(name: str, seed: int, payments: int) -> Mix:
    """The world of this seed with this focus. Raises KeyError."""
    focus = FOCUSES[name]
    dice = stream(seed, f"focus {name}")
    mix = _quiet(name, seed, payments, dice)
    if focus.between:
        mix = replace(mix, money_between=True, orders=0.8, partial=dice.choice(("sequence", "sequence", "single")))
    return focus.change(mix, dice)


def _quiet(name: str, seed: int, payments: int, dice: Random) -> Mix:
    """A world in which nothing goes wrong yet."""
    load_s = dice.choice((5.0, 10.0, 20.0))
    return Mix(
        seed=seed,
        payments=payments,
        focus=name,
        contract=dice.choice(("replayed", "reexecuted", "not_stored", "none")),
        webhooks=False,
        attempts=dice.choice((1, 2, 3)),
        deadline_s=dice.choice((3, 6, 15)),
        resend_for_s=dice.choice((0, 45, 45)),
        harvest_s=dice.choice((0.0, 5.0, 20.0)),
        schedule=dice.choice((DENSE, SPARSE)),
        sidecars=dice.choice((1, 2, 3)),
        rate_per_s=payments / load_s,
        weather_s=load_s + 2.0,
        patience=dice.choice((2, 3, 5)),
        again_after_answer=0.1,
        twice_at_once=0.05,
        retires=dice.random() < 0.5,
    )


def _absence(mix: Mix, dice: Random) -> Mix:
    """Requests that are lost or worked on until all has nearly settled, and searches that show late what was made."""
    faults = {"black_hole": 0.15, "late_commit": 0.25, "answer_lost": 0.05}
    return replace(
        mix,
        lag_s=dice.choice(LONG_LAGS_S),
        stale_looks=dice.choice((0.0, 0.5)),
        faults=faults,
        fresh_key=dice.choice((0.0, 0.3)),
        goes_elsewhere=dice.choice((0.0, 0.5)),
    )


def _other_routes(mix: Mix, dice: Random) -> Mix:
    """Two routes. The first loses requests, works long on them, or refuses them, and what inquiries show to be absent
    is paid at the other for callers that wait for it. Many repeat their call meanwhile."""
    return replace(
        mix,
        contract=dice.choice(("not_stored", "none")),  # sent again under its key it would not be in doubt for long
        fallback=True,
        leaves_if_absent=True,
        leaves_if_rejected=True,
        deadline_s=PATIENT_S,
        lag_s=dice.choice((0.0, 3.0)),
        stale_looks=dice.choice((0.0, 0.5)),
        faults={"black_hole": 0.15, "late_commit": 0.15, "unauthorized": 0.05, "refused": 0.05},
        twice_at_once=0.3,
        hangs_up=0.1,
    )


def _late_resends(mix: Mix, dice: Random) -> Mix:
    """Many requests are lost and sent again, seconds later. The last one is worked on until all has nearly settled.
    The provider forgets the key soon: what was taken for absent would be executed again."""
    return replace(
        mix,
        contract=dice.choice(("replayed", "reexecuted")),
        window_s=60,
        attempts=5,
        deadline_s=15,
        resend_for_s=45,
        lag_s=0.0,
        faults={"black_hole": 0.4, "late_commit": 0.3},
        rate_per_s=mix.payments / 40.0,  # retries have a budget of so many a second
        weather_s=42.0,
        fresh_key=dice.choice((0.0, 0.3)),
    )


def _moves(mix: Mix, dice: Random) -> Mix:
    """The upstream moves while many outcomes are unknown. The first address still answers."""
    lost = {"answer_lost": 0.2, "late_answer": 0.1, "black_hole": 0.05}
    return replace(mix, moves=True, lag_s=dice.choice((0.0, 3.0)), faults=lost, fresh_key=dice.choice((0.0, 0.3)))


def _lost_stores(mix: Mix, dice: Random) -> Mix:
    """The store loses its keys, or comes back as it was seconds ago. Many callers repeat what was answered, some of
    them when the lease is over for which nothing is sent after a rollback."""
    return replace(
        mix,
        contract=dice.choice(("none", "none", "replayed", "reexecuted")),
        window_s=30,
        resend_for_s=min(mix.resend_for_s, 24),
        failovers=1,
        forgets_s=dice.choice((5.0, 8.0, math.inf, math.inf)),
        weather_s=10.0,
        rate_per_s=mix.payments / 10.0,
        again_after_answer=0.5,
        returns_late=dice.choice((0.2, 0.5)),
        faults={"answer_lost": 0.05},
        retires=False,
    )


def _strange_objects(mix: Mix, dice: Random) -> Mix:
    """Half of the inquiries show another object, also those of steps that bear no stamp."""
    return replace(
        mix,
        foreign_objects=0.5,
        equal_amounts=True,
        stories=("two_steps", "captures", "void_against_capture"),
        lag_s=dice.choice((0.0, 3.0)),
        faults={"answer_lost": 0.15, "black_hole": 0.1, "late_commit": 0.05},
    )


def _stale_declines(mix: Mix, dice: Random) -> Mix:
    """A payment shows the decline of an earlier confirm while a later one is worked on."""
    return replace(
        mix,
        shows_declines=True,
        stories=("two_steps",),
        stale_looks=dice.choice((0.0, 0.5)),
        faults={"declined_once": 0.1, "late_commit": 0.15, "answer_lost": 0.1, "black_hole": 0.05},
    )


def _movements(mix: Mix, dice: Random) -> Mix:
    """Captures, refunds and voids whose answers are lost, in parts and at once, at a provider that adds nothing up."""
    return replace(
        mix,
        stories=("captures", "refunds", "void_against_capture"),
        limits="enforce",
        limits_edited="enforce",
        lenient=dice.random() < 0.7,
        lag_s=dice.choice((0.0, 3.0)),
        stale_looks=dice.choice((0.0, 0.7)),
        faults={"answer_lost": 0.15, "late_commit": 0.1, "black_hole": 0.05},
    )


def _rotations(mix: Mix, dice: Random) -> Mix:
    """Merchants change their credentials, the first ones are revoked soon, and some credentials may only send.
    Responses are lost, and inquiries meet no other trouble."""
    return replace(
        mix,
        rotates=True,
        restricted=dice.choice(("sends", "sends", "reads")),
        merchants=dice.choice(("", "selector", "selector")),
        asks=True,
        contract=dice.choice(("not_stored", "none")),  # a re-send would end most doubts without an inquiry
        lag_s=dice.choice((0.0, 3.0)),
        faults={"answer_lost": 0.15, "late_answer": 0.1, "black_hole": 0.05},
        retires=False,
    )


FOCUSES = {
    focus.name: focus
    for focus in (
        Focus("absence", _absence),
        Focus("other_routes", _other_routes),
        Focus("late_resends", _late_resends),
        Focus("moves", _moves),
        Focus("lost_stores", _lost_stores),
        Focus("strange_objects", _strange_objects, between=True),
        Focus("stale_declines", _stale_declines, between=True),
        Focus("movements", _movements, between=True),
        Focus("rotations", _rotations),
    )
}
