"""The log of requests that reached the provider, whatever became of them. The newest are kept, the rest counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass

ARRIVALS_MAX = 100_000


@dataclass(slots=True)
class Arrival:
    seq: int
    at: float
    method: str
    path: str
    key: str | None
    order: str | None = None
    fault: str | None = None
    executed: bool = False
    """The bank did the work for this arrival, and not for an earlier one."""
    replayed: bool = False
    effects: int = 0
    """Lines this arrival wrote into the ledger."""
    answered: int | None = None
    """Status of the whole response that was written; None when none was."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class ArrivalLog:
    def __init__(self, arrivals_max: int = ARRIVALS_MAX) -> None:
        self.arrivals_max = arrivals_max
        self._kept: deque[Arrival] = deque(maxlen=arrivals_max)
        self.total = 0

    @property
    def dropped(self) -> int:
        return self.total - len(self._kept)

    @property
    def arrivals(self) -> Sequence[Arrival]:
        return self._kept

    def note(self, at: float, method: str, path: str, key: str | None) -> Arrival:
        self.total += 1
        arrival = Arrival(self.total, at, method, path, key)
        self._kept.append(arrival)
        return arrival

    def find(self, key: str | None = None, order: str | None = None) -> list[Arrival]:
        return [
            arrival
            for arrival in self._kept
            if (key is None or arrival.key == key) and (order is None or arrival.order == order)
        ]

    def clear(self) -> None:
        self._kept.clear()
        self.total = 0
