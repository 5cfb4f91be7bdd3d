"""What the bank can look up: by name at once, by label (key, order, stamp) as far as the search has caught up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from proxy.sandbox.clock import Clock
from proxy.sandbox.refusals import NotFound, Refused

THINGS_MAX = 1_000_000

Label = tuple[str, str]


class Entered(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> float: ...


Thing = TypeVar("Thing", bound=Entered)


class Register(Generic[Thing]):
    """Of one kind of thing: `what` is its name in complaints."""

    def __init__(self, what: str, clock: Clock, search_lag_s: float) -> None:
        self._what = what
        self._clock = clock
        self._search_lag_s = search_lag_s
        self._things: dict[str, Thing] = {}
        self._by_label: dict[Label, list[Thing]] = {}

    def require_room(self) -> None:
        if len(self._things) >= THINGS_MAX:
            message = f"the sandbox holds its {THINGS_MAX} {self._what}s"
            raise Refused(f"too_many_{self._what}s", message, conflict=False)

    def add(self, thing: Thing, labels: Iterable[Label]) -> None:
        self.require_room()
        self._things[thing.id] = thing
        for label in labels:
            self._by_label.setdefault(label, []).append(thing)

    def named(self, name: str) -> Thing:
        """Never lags: only the searches do."""
        thing = self._things.get(name)
        if thing is None:
            raise NotFound(f"no such {self._what}: {name}")
        return thing

    def search(self, labels: Iterable[Label] = ()) -> list[Thing]:
        """What bears every label, newest first, as far as the search index has caught up."""
        groups: list[Sequence[Thing]] = [self._by_label.get(label, []) for label in labels]
        first = min(groups, key=len) if groups else list(self._things.values())
        names = [{thing.id for thing in group} for group in groups]
        seen_until = self._clock() - self._search_lag_s
        return [
            thing
            for thing in reversed(first)
            if thing.created_at <= seen_until and all(thing.id in group for group in names)
        ]

    def clear(self) -> None:
        self._things.clear()
        self._by_label.clear()


def labels_of(metadata: Iterable[tuple[str, object]], **named: str | None) -> list[Label]:
    """`metadata.order_id`, `metadata.paywitness`, ...; and what else it is looked up by, where it has it."""
    labels = [(f"metadata.{name}", str(value)) for name, value in metadata]
    return labels + [(name, value) for name, value in named.items() if value is not None]
