"""A failing seed, told so that a person can follow it: what was promised, the life of that payment line by line, what
befell everybody meanwhile, and the smallest world in which it still happens."""

from __future__ import annotations

from tests.simulation.swarm import Mix
from tests.simulation.world import Outcome, play

_LINES_MAX = 120


def describe(outcome: Outcome) -> str:
    """The report of a seed that broke a promise."""
    least = shortest(outcome)
    first = least.violations[0]
    seed, payments = outcome.mix.seed, outcome.of_payments
    focus, plain = outcome.mix.focus, "" if outcome.mix.money_between else " --plain"
    worlds = f" --focus {focus}" if focus else plain
    lines = [
        f"seed {seed} breaks a promise with {outcome.mix.payments} payments:",
        *(f"  {violation}" for violation in outcome.violations[:5]),
        f"shortest: --seeds {seed} --payments {payments} --first {least.mix.payments}{worlds}",
        *(f"  {violation}" for violation in least.violations[:3]),
        f"the world: {_told(least.mix)}",
        f"the life of {first.about or 'that world'}:",
        *(f"  {line}" for line in least.history.life_of(first, _LINES_MAX)),
    ]
    return "\n".join(lines)


def shortest(outcome: Outcome) -> Outcome:
    """The fewest first payments with which the seed still breaks a promise, by halving. A beginning goes as it goes in
    the whole world, up to its last payment; what follows is quiet, so one that is longer may break none."""
    works, least = 0, outcome
    while least.mix.payments - works > 1:
        middle = (works + least.mix.payments) // 2
        mix = outcome.mix
        tried = play(mix.seed, outcome.of_payments, middle, between=mix.money_between, focus=mix.focus)
        if tried.ok:
            works = middle
        else:
            least = tried
    return least


def _told(mix: Mix) -> str:
    """What the seed chose, leaving out what it left out."""
    plain = Mix(mix.seed, mix.payments)
    chosen = {name: value for name, value in vars(mix).items() if value != getattr(plain, name) and value != 0}
    return ", ".join(f"{name}={value}" for name, value in chosen.items())
