"""The checker of guards: "not sent", "absent" and "safe to pay" are said of a purchase, not of a key.

Whoever is told so may pay elsewhere. So nothing that had left for that purchase before the question came may have paid
it, or pay it later. What leaves after the question came is another's, who asked at the same time. A payment that waits
for its customer holds nothing under the default policy, as long as the journal knows no more of it: "not sent" may be
said beside it. "Safe to pay" may not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.history import History

NOT_SENT_IS_TRUE = "not sent is true of the purchase"
SAFE_IS_TRUE = "safe to pay is true"
FALLBACK_ANSWERS = "the first key answers with the fallback's outcome"


@dataclass(frozen=True)
class _SaidFree:
    promise: str
    came_mono: float  # when the question came
    told_mono: float
    what: str


@dataclass(frozen=True)
class Paid:
    """One payment of a purchase, as the provider's books have it."""

    name: str
    sent_mono: float  # when the request left that made it
    freed_mono: float = math.inf  # since when nothing of it stands
    waits_mono: tuple[float, float] = (math.inf, math.inf)  # from when to when the journal has it as waiting

    def waits_for_customer(self, at_mono: float) -> bool:
        return self.waits_mono[0] <= at_mono < self.waits_mono[1]


class GuardChecker:
    def __init__(self, history: History) -> None:
        self._history = history
        self._said_free: dict[str, list[_SaidFree]] = defaultdict(list)
        self._without_effect: list[tuple[str, str, str]] = []  # operation, order, who was told

    def told_not_sent(self, order: str, came_mono: float, told_mono: float, what: str) -> None:
        self._said_free[order].append(_SaidFree(NOT_SENT_IS_TRUE, came_mono, told_mono, what))

    def told_safe(self, order: str, came_mono: float, told_mono: float) -> None:
        self._said_free[order].append(_SaidFree(SAFE_IS_TRUE, came_mono, told_mono, "safe_to_pay: true"))

    def told_without_effect(self, operation_id: str | None, order: str, what: str) -> None:
        """Somebody was told that this operation was not sent, or is absent."""
        if operation_id is not None:
            self._without_effect.append((operation_id, order, what))

    def judge_fallbacks(self, fallen: dict[str, str]) -> None:
        """At the end. `fallen`: the operations that ended by a fallback, and what stood for each."""
        for operation_id, order, what in self._without_effect:
            if operation_id in fallen:
                detail = (
                    f"{what} was told of {operation_id} that nothing came of it; {fallen[operation_id]} stood for it"
                )
                self._history.violated(FALLBACK_ANSWERS, order, detail)

    def judge(self, payments_of: Callable[[str], list[Paid]]) -> None:
        """At the end: what was in doubt then is known now."""
        for order, said in self._said_free.items():
            for paid in payments_of(order) if said else ():
                for one in said:
                    stands = paid.sent_mono < one.came_mono and one.told_mono < paid.freed_mono
                    may_be_said = one.promise == NOT_SENT_IS_TRUE and paid.waits_for_customer(one.told_mono)
                    if stands and not may_be_said:
                        ago_s = one.came_mono - paid.sent_mono
                        detail = f"{one.what}, though {paid.name} had left {ago_s:.3f} s before the question came"
                        self._history.violated(one.promise, order, detail)
                        break
