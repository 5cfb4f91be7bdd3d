"""The enemies of a world: what lies, is mixed up or is taken away, beside the faults that everybody knows.

Each seed picks some of them. They are drawn apart: a world without enemies goes as it would go if there were none.
Each is one field of `Mix`, so that a test can play a world with one enemy alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tests.simulation.swarm import GATEWAYS, USUAL_PAYMENTS, Mix, stream

_ROUGHEST = 0.25  # of the full rates, in a world of the usual length


def with_enemies(mix: Mix) -> Mix:
    """The same world, with the enemies that its seed chose."""
    for enemy in (_gateways, _strange_objects, _merchants, *_ABSENCE, _copies, _questions):
        mix = enemy(mix)
    return mix


def _gateways(mix: Mix) -> Mix:
    """Something in front of the provider answers in its place: with pages, and with redirects to elsewhere."""
    dice = stream(mix.seed, "mix, gateways")
    if dice.random() < 0.5:
        return mix
    rough = min(1.0, _ROUGHEST * max(1.0, USUAL_PAYMENTS / mix.payments))
    chosen = dice.sample(GATEWAYS, dice.choice((1, 2, len(GATEWAYS))))
    faults = mix.faults | {name: dice.choice((0.01, 0.03)) * rough for name in chosen}
    return replace(mix, faults=faults, inquiry_pages=dice.choice((0.0, 0.3, 0.8)))


def _strange_objects(mix: Mix) -> Mix:
    """An inquiry shows another object, of the same amount; or ours, with the decline of an earlier attempt on it."""
    dice = stream(mix.seed, "mix, strange objects")
    foreign = dice.choice((0.0, 0.0, 0.1, 0.4))
    return replace(
        mix,
        foreign_objects=foreign,
        equal_amounts=foreign > 0 and dice.random() < 0.8,
        shows_declines=mix.money_between and dice.random() < 0.5 and not mix.failovers,
    )


def _merchants(mix: Mix) -> Mix:
    """A second merchant with the keys, orders and amounts of the first, credentials that are renewed, restricted ones.
    What only our own header names has no credential but its own: there they stay as they are."""
    dice = stream(mix.seed, "mix, merchants")
    chosen = dice.choice(("", "", "", "", "", "", "selector", "header", "owners", "many"))
    rotates, restricted = dice.random() < 0.4, dice.choice(("", "", "sends", "reads"))
    if mix.failovers or not (chosen or rotates or restricted):
        return mix
    if chosen == "header":
        rotates, restricted = False, ""
    mix = replace(mix, rotates=rotates, restricted=restricted)
    if not chosen:
        return mix
    return replace(mix, merchants=chosen, asks=True, webhooks=False, fallback=False, retires=False)


# --- absence and clocks


def _clocks(mix: Mix) -> Mix:
    """The store's clock is set, by more than `settle`; or machines are started anew, some with a clock that stood still
    while they were down. Only in plain worlds of one merchant: with the money between operations two of some 36 seeds
    break promises about payments that were given back, which is not explained yet."""
    dice = stream(mix.seed, "mix, clocks")
    steps, reboots = dice.choice(((0, False), (3, False), (6, False), (0, True), (0, True)))
    stops = reboots and dice.random() < 0.6
    if mix.failovers or mix.merchants or mix.money_between or not (steps or reboots):
        return mix
    if steps:
        # What is worked on for long matters, and whether somebody believes meanwhile that it was long ago.
        return replace(
            mix, store_steps=steps, late_steps_s=60.0, faults=_with_late_commits(mix, dice.choice((0.05, 0.15)))
        )
    crashes = max(mix.crashes, dice.choice((1, 2)))
    if not stops:
        return replace(mix, reboots=True, crashes=crashes)
    # One machine, with the store on it. What a provider forgets soon must not be sent again after the machine was down.
    return replace(
        mix,
        reboots=True,
        crashes=max(crashes, 3),
        sidecars=1,
        clock_stops=True,
        contract=dice.choice(("replayed", "reexecuted")),
        window_s=30,
        resend_for_s=min(mix.resend_for_s, 24),
        returns_late=max(mix.returns_late, 0.2),
        faults=mix.faults | {"answer_lost": max(mix.faults.get("answer_lost", 0.0), 0.1)},
    )


def _with_late_commits(mix: Mix, rate: float) -> dict[str, float]:
    return mix.faults | {"late_commit": max(mix.faults.get("late_commit", 0.0), rate)}


def _bounded_lists(mix: Mix) -> Mix:
    """Searches begin at a time, by the clock of a provider that is minutes off. With reboots its clock is right: if it
    was never seen before a gap, what its `Date` says of the gap is all that anybody knows, and is believed."""
    dice = stream(mix.seed, "mix, bounded lists")
    chosen, ahead_s, dates = (
        dice.random() < 0.3,
        dice.choice((-3_600.0, -900.0, -900.0, 0.0, 900.0)),
        dice.random() < 0.7,
    )
    if not chosen or not mix.asks:
        return mix
    lost = {name: max(mix.faults.get(name, 0.0), 0.05) for name in ("answer_lost", "late_commit", "black_hole")}
    return replace(
        mix,
        bounded_lists=True,
        provider_ahead_s=0.0 if mix.reboots else ahead_s,
        shows_dates=dates,
        faults=mix.faults | lost,
    )


def _moves(mix: Mix) -> Mix:
    """An edit of the policy moves the upstream while outcomes are unknown. The first address still answers. What is
    done about a payment of the first address goes to the new one, which does not know it: about that nothing is
    promised, so these worlds have no captures, voids and refunds."""
    dice = stream(mix.seed, "mix, moves")
    if dice.random() >= 0.3 or mix.merchants or mix.money_between or mix.failovers:
        return mix
    lost = {name: max(mix.faults.get(name, 0.0), 0.05) for name in ("answer_lost", "late_answer")}
    contract = dice.choice((mix.contract, "replayed", "reexecuted"))  # a key is known at the first address alone
    faults = mix.faults | lost
    return replace(mix, moves=True, contract=contract, follow_ups=0.0, authorizations=0.0, faults=faults)


def _pods(mix: Mix) -> Mix:
    """Sidecars that live shorter than `settle` (40 s), each on another machine. A store that forgets needs holders
    that live on."""
    dice = stream(mix.seed, "mix, pods")
    chosen, lives_s = dice.random() < 0.2, dice.choice((15.0, 25.0, 35.0))
    if not chosen or mix.failovers or mix.reboots:
        return mix
    return replace(mix, pods_live_s=lives_s, shows_dates=True, sidecars=max(mix.sidecars, dice.choice((1, 2, 2))))


def _odd_statuses(mix: Mix) -> Mix:
    """A payment is executed and named, with a status that no row knows, and its page is not found. There is no search
    and no webhook: by them the payment would be found. Only in plain worlds."""
    dice = stream(mix.seed, "mix, odd statuses")
    if dice.random() >= 0.35 or mix.merchants or mix.money_between or mix.failovers or mix.bounded_lists:
        return mix
    return replace(mix, odd_statuses=0.1, asks=False, webhooks=False)


def _lost_stores(mix: Mix) -> Mix:
    """The store loses all its keys, or comes back as it was seconds ago, also if the provider dedupes nothing: for one
    lease nothing is sent there. Sidecars remember what they wrote within one lease, and put it back. So this is played
    while everything is younger than a lease (30 s), and all that wrote it live. What is older is forgotten for good,
    and what a dead sidecar wrote too: about both nothing is promised. Under a fresh key nobody can know meanwhile that
    the order is being paid."""
    dice = stream(mix.seed, "mix, lost stores")
    chosen, forgets_s = dice.random() < 0.9, dice.choice((5.0, 8.0, math.inf, math.inf))
    quiet = not (mix.merchants or mix.money_between or mix.store_steps or mix.reboots or mix.pods_live_s or mix.moves)
    if not chosen or not quiet or mix.failovers:
        return mix
    return replace(
        mix,
        failovers=1,
        forgets_s=forgets_s,
        weather_s=10.0,
        crashes=0,
        crashes_at_steps=0,
        pauses=0,
        pauses_connecting=0,
        clock_jumps=0,
        journal_stalls=0,
        cut_offs=0,
        journal_lost_replies=0.0,
        journal_refusals=0.0,
        journal_late_writes=0.0,
        fresh_key=0.0,
        odd_statuses=0.0,
        retires=False,
    )


_ABSENCE = (_clocks, _bounded_lists, _moves, _pods, _odd_statuses, _lost_stores)


def _copies(mix: Mix) -> Mix:
    """A caller's metadata are those of an earlier answer, our stamp among them; or an object is copied at the provider,
    stamp and all, and its events come too."""
    dice = stream(mix.seed, "mix, copies")
    copied_events = dice.choice((0.0, 0.2, 0.5)) if mix.webhooks else 0.0
    return replace(mix, copies_stamps=dice.choice((0.0, 0.0, 0.1, 0.4)), copied_events=copied_events)


def _questions(mix: Mix) -> Mix:
    """Somebody asks whether an order may be paid, and pays elsewhere if it may. Some orders have very long names, and
    sidecars are shut down while calls come."""
    dice = stream(mix.seed, "mix, questions")
    looks, long_names = dice.choice((0.0, 0.2, 0.5)), dice.choice((0.0, 0.0, 0.3))
    drains = dice.choice((0, 0, 1, 3))
    if mix.failovers:  # what a store forgets, nobody can be told of
        return replace(mix, long_names=long_names)
    fresh_key = max(mix.fresh_key, dice.choice((0.0, 0.3, 0.6)) if drains else 0.0)  # the next try is another job's
    return replace(mix, looks=looks, long_names=long_names, drains=drains, fresh_key=fresh_key)
