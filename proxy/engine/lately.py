"""What one sidecar saw lately of providers that it only observes: operations by key and by guard, a bounded number.

A memory, not a record: the oldest is forgotten first, and a restart forgets all of it.
"""

from __future__ import annotations

from collections import OrderedDict

from proxy.core.guard import guard_kept
from proxy.core.operation import Guard, Operation

_MOST = 10_000  # some 35 MB at most, since every text of an operation is bounded; a few minutes of a busy shop
_UNDER_ONE_GUARD = 32  # a customer tries a handful of cards


class Lately:
    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._by_key: OrderedDict[str, Operation] = OrderedDict()
        self._keys_by_guard: dict[str, OrderedDict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def under(self, key: str) -> Operation | None:
        """The newest operation under the key."""
        return self._by_key.get(key)

    def guarded_by(self, guard: Guard | None) -> tuple[Operation, ...]:
        """Those that may still hold the guard, oldest first."""
        keys = self._keys_by_guard.get(guard.value) if guard is not None else None
        held = [self._by_key[key] for key in keys or ()]
        return tuple(sorted(held, key=lambda operation: operation.created_at))

    def keep(self, operation: Operation) -> None:
        """Remember the operation as it now stands, in place of the one that its key had."""
        self.forget(operation)
        self._by_key[operation.key] = operation
        held = guard_kept(operation)
        if held is not None:
            keys = self._keys_by_guard.setdefault(held, OrderedDict())
            keys[operation.key] = None
            if len(keys) > _UNDER_ONE_GUARD:
                keys.popitem(last=False)
        if len(self._by_key) > self._most:
            self.forget(next(iter(self._by_key.values())))

    def forget(self, operation: Operation) -> None:
        """Forget what is remembered under its key."""
        known = self._by_key.pop(operation.key, None)
        held = known.guard.value if known is not None and known.guard is not None else None
        keys = self._keys_by_guard.get(held) if held is not None else None
        if held is not None and keys is not None:
            keys.pop(operation.key, None)
            if not keys:
                del self._keys_by_guard[held]
