"""What is asked sooner, pure: the first success after an outage pulls a provider's inquiries forward.

Nothing becomes true by it, so it is no change of an operation: no version, no history. A writer that read the operation
before is not stale, and where it writes the time that it had read, the inquiry comes as it would have come anyway.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxy.core.operation import State

# What only waits for the next look. An action waits for the customer, a review for a person.
HASTENED = frozenset({State.UNKNOWN, State.PENDING})
LOOKED_AT = 10  # times the limit: how many are passed by at most, to find those that may be hastened
_LIMIT_MAX = 500  # in one step: about 10 ms of a store's time


def bounded(limit: int) -> int:
    return max(0, min(limit, _LIMIT_MAX))


def hastened(
    waiting: Iterable[tuple[str, State, float]], now: float, within_s: float, limit: int
) -> list[tuple[str, float]]:
    """When to look at which, of those that nobody holds and that are not due yet, earliest first (id, state, due_at).

    The next `limit` of them shall be due within `within_s`, evenly spread. Those that will be by themselves stay, and
    count: several that ask at the same moment do not ask for more than one of them.
    """
    chosen = [(operation_id, due_at) for operation_id, state, due_at in waiting if state in HASTENED][:limit]
    return [
        (operation_id, now + place * within_s / len(chosen))
        for place, (operation_id, due_at) in enumerate(chosen)
        if due_at > now + within_s
    ]
