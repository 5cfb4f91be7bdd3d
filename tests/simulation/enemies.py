"""The enemies of a world: what lies, is mixed up or is taken away, beside the faults that everybody knows.

Each seed picks some of them. They are drawn apart: a world without enemies goes as it would go if there were none.
Each is one field of `Mix`, so that a test can play a world with one enemy alone.
"""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.swarm import GATEWAYS, USUAL_PAYMENTS, Mix, stream

_ROUGHEST = 0.25  # of the full rates, in a world of the usual length


def with_enemies(mix: Mix) -> Mix:
    """The same world, with the enemies that its seed chose."""
    for enemy in (_gateways, _strange_objects, _merchants, _clocks, _copies, _questions):
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
    chosen = dice.choice(("", "", "", "selector", "header", "owners", "many"))
    rotates, restricted = dice.random() < 0.4, dice.choice(("", "", "sends", "reads"))
    if mix.failovers or not (chosen or rotates or restricted):
        return mix
    if chosen == "header":
        rotates, restricted = False, ""
    mix = replace(mix, rotates=rotates, restricted=restricted)
    if not chosen:
        return mix
    return replace(mix, merchants=chosen, asks=True, webhooks=False, fallback=False, retires=False)


def _clocks(mix: Mix) -> Mix:
    """The store's clock is set, or machines are started anew. Only in plain worlds of one merchant."""
    dice = stream(mix.seed, "mix, clocks")
    steps, reboots = dice.choice(((0, False), (1, False), (3, False), (0, True), (0, True)))
    if mix.failovers or mix.money_between or mix.merchants:
        return mix
    crashes = max(mix.crashes, dice.choice((1, 2))) if reboots else mix.crashes
    return replace(mix, store_steps=steps, reboots=reboots, crashes=crashes)


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
