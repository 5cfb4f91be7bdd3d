"""A failing seed, told so that a person can follow it: what was promised, the life of that payment line by line, what
befell everybody meanwhile, and the smallest world in which it still happens."""

from __future__ import annotations

from tests.simulation.swarm import Mix, mix_of
from tests.simulation.world import Outcome, play

_LINES_MAX = 120


def describe(outcome: Outcome) -> str:
    """The report of a seed that broke a promise."""
    least = shortest(outcome)
    first = least.violations[0]
    timeline = least.history.lines(first.about)
    if len(timeline) > _LINES_MAX:
        about = [line for line in timeline if f" {first.about} " in line] if first.about else timeline[-_LINES_MAX:]
        timeline = about[-_LINES_MAX:]
    lines = [
        f"seed {outcome.seed} breaks a promise with {outcome.payments} payments:",
        *(f"  {violation}" for violation in outcome.violations[:5]),
        f"shortest: --seeds {outcome.seed} --payments {least.payments}",
        *(f"  {violation}" for violation in least.violations[:3]),
        f"the world: {_told(mix_of(outcome.seed, least.payments))}",
        f"the life of {first.about or 'that world'}:",
        *(f"  {line}" for line in timeline),
    ]
    return "\n".join(lines)


def shortest(outcome: Outcome) -> Outcome:
    """The fewest payments with which the seed still breaks a promise, by halving. The first payments of a seed are the
    same however many there are; what the network does to them is not, so this finds a short world, not the shortest."""
    works, least = 0, outcome
    while least.payments - works > 1:
        middle = (works + least.payments) // 2
        tried = play(outcome.seed, middle)
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
