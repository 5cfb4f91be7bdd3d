"""The log of requests that reached the provider, whatever became of them. The newest are kept, the rest counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass

ARRIVALS_MAX = 100_000


@dataclass(slots=True)
class SandboxArrival:
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
        self._newest: deque[SandboxArrival] = deque(maxlen=arrivals_max)
        self.total = 0

    @property
    def dropped(self) -> int:
        return self.total - len(self._newest)

    @property
    def arrivals(self) -> Sequence[SandboxArrival]:
        return self._newest

    def add(self, at: float, method: str, path: str, key: str | None) -> SandboxArrival:
        self.total += 1
        arrival = SandboxArrival(self.total, at, method, path, key)
        self._newest.append(arrival)
        return arrival

    def find(self, key: str | None = None, order: str | None = None) -> list[SandboxArrival]:
        return [
            arrival
            for arrival in self._newest
            if (key is None or arrival.key == key) and (order is None or arrival.order == order)
        ]

    def clear(self) -> None:
        self._newest.clear()
        self.total = 0
