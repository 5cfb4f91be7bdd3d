"""Ids that the bank issues (`ch_...`, `re_...`, `po_...`, `evt_...`), the index it finds objects in, and its refusals.

An object is found by id at once; by label (key, order, stamp) once the search index has caught up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from paywitness_sandbox.clock import Clock


class BankRefused(Exception):
    """The bank will not do it; `conflict` says that the state forbids it, rather than the request."""

    def __init__(self, code: str, message: str, *, conflict: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.conflict = conflict


class ObjectNotFound(Exception):
    """No such charge, refund, payout or event."""


# --- Ids


class IdSequence:
    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._issued = 0

    def new(self, prefix: str) -> str:
        """Looks like a provider's, is the same for the same salt, and never repeats."""
        self._issued += 1
        digest = hashlib.blake2s(f"{self._salt}:{self._issued}".encode(), digest_size=10).hexdigest()
        return f"{prefix}_{digest}"


# --- Index

OBJECTS_MAX = 1_000_000

Label = tuple[str, str]


class IndexedObject(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> float: ...


Indexed = TypeVar("Indexed", bound=IndexedObject)


class ObjectIndex(Generic[Indexed]):
    """Of one kind of thing: `noun` is its name in complaints."""

    def __init__(self, noun: str, clock: Clock, search_lag_s: float) -> None:
        self._noun = noun
        self._clock = clock
        self._search_lag_s = search_lag_s
        self._objects: dict[str, Indexed] = {}
        self._by_label: dict[Label, list[Indexed]] = {}

    def require_room(self) -> None:
        if len(self._objects) >= OBJECTS_MAX:
            message = f"the sandbox holds its {OBJECTS_MAX} {self._noun}s"
            raise BankRefused(f"too_many_{self._noun}s", message, conflict=False)

    def add(self, item: Indexed, labels: Iterable[Label]) -> None:
        self.require_room()
        self._objects[item.id] = item
        for label in labels:
            self._by_label.setdefault(label, []).append(item)

    def get(self, name: str) -> Indexed:
        """Never lags: only the searches do."""
        item = self._objects.get(name)
        if item is None:
            raise ObjectNotFound(f"no such {self._noun}: {name}")
        return item

    def search(self, labels: Iterable[Label] = ()) -> list[Indexed]:
        """What bears every label, newest first, as far as the search index has caught up."""
        groups: list[Sequence[Indexed]] = [self._by_label.get(label, []) for label in labels]
        first = min(groups, key=len) if groups else list(self._objects.values())
        names = [{item.id for item in group} for group in groups]
        seen_until = self._clock() - self._search_lag_s
        return [
            item
            for item in reversed(first)
            if item.created_at <= seen_until and all(item.id in group for group in names)
        ]

    def clear(self) -> None:
        self._objects.clear()
        self._by_label.clear()


def labels_of(metadata: Iterable[tuple[str, object]], **named: str | None) -> list[Label]:
    """`metadata.order_id`, `metadata.paywitness`, ...; and what else it is looked up by, where it has it."""
    labels = [(f"metadata.{name}", str(value)) for name, value in metadata]
    return labels + [(name, value) for name, value in named.items() if value is not None]
