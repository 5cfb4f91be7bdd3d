"""What became of one payment, in a line a lane: from the provider's log, and from the operation's timeline. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from proxy.demo.verdict import Answered, Told
from proxy.sandbox.arrivals import Arrival

STEPS_MAX = 4  # more than that nobody reads


def chosen(
    carried: Sequence[Answered], arrivals: Sequence[Arrival], charged_twice_elsewhere: set[str]
) -> Answered | None:
    """A payment that was carried to its end although its answer got lost: best one that was charged twice elsewhere,
    and of those the one that takes the fewest words."""
    lost = lost_after_commit(arrivals)
    candidates = [line for line in carried if line.told is Told.PAID and line.operation and line.order in lost]
    return min(
        candidates,
        key=lambda line: (line.order not in charged_twice_elsewhere, line.attempts or 0, line.order),
        default=None,
    )


def lost_after_commit(arrivals: Sequence[Arrival]) -> set[str]:
    """Orders that were charged by a request whose answer nobody got."""
    return {arrival.order for arrival in arrivals if arrival.order and arrival.effects and arrival.answered is None}


def seen_by_provider(arrivals: Sequence[Arrival], told: Told, charges: int) -> str:
    """`key 1: charged but 500, then 500 again; key 2: charged and 200. Told paid; the ledger shows 2 charges.`"""
    calls = [list(group) for _, group in groupby(arrivals, key=lambda arrival: arrival.key)]
    keys = [f"key {number}: {', then '.join(map(_arrival, call))}" for number, call in enumerate(calls, 1)]
    return f"{'; '.join(keys)}. {_end(told, charges)}"


def _arrival(arrival: Arrival) -> str:
    answer = "no answer" if arrival.answered is None else str(arrival.answered)
    if arrival.effects:
        return f"charged {'and' if arrival.answered == 200 else 'but'} {answer}"
    return f"{answer} again" if arrival.replayed and arrival.answered is not None else answer


def seen_by_witness(operation: Mapping[str, Any], told: Told, charges: int) -> str:
    """`attempt 1: no answer came in time -> unknown; same key again; attempt 2: answered 200 -> succeeded.`"""
    ends = [
        (f"{entry['attempt']['detail']} -> {entry['state']}", entry["attempt"]["number"])
        for entry in operation["timeline"]
        if entry["attempt"] is not None
    ]
    groups = [(end, [number for _, number in group]) for end, group in groupby(ends, key=itemgetter(0))]
    if len(groups) > STEPS_MAX:
        between = [number for _, numbers in groups[1:-1] for number in numbers]
        groups = [groups[0], ("nothing that settles it", between), groups[-1]]
    steps = [f"{_attempts(numbers)}: {end}" for end, numbers in groups]
    return f"{'; same key again; '.join(steps)}. {_end(told, charges)}"


def _attempts(numbers: Sequence[int]) -> str:
    return f"attempt {numbers[0]}" if len(numbers) == 1 else f"attempts {numbers[0]} to {numbers[-1]}"


def _end(told: Told, charges: int) -> str:
    return f"Told {told}; the ledger shows {charges} {'charge' if charges == 1 else 'charges'}."
