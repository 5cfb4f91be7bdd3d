"""Watch: callers of this process that wait for an operation to be resolved, told when something became true of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def _always() -> bool:
    return True


class Watch:
    """Who waits for which operation. `resolving`: somebody works on what is in doubt; else waiting would be idle."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[asyncio.Future[None], Callable[[], bool]]] = {}
        self.resolving = False
        self.due = asyncio.Event()  # something is due at once: the resolver need not wait for its next round

    def is_awaited(self, operation_id: str) -> bool:
        """Whether somebody waits for it who would still hear it."""
        return any(hears() for hears in self._waiting.get(operation_id, {}).values())

    def tell(self, operation_id: str) -> None:
        """Something was written about it."""
        for waiting in self._waiting.get(operation_id, ()):
            if not waiting.done():
                waiting.set_result(None)

    @contextmanager
    def awaited(self, operation_id: str, hears: Callable[[], bool] = _always) -> Iterator[asyncio.Future[None]]:
        """Somebody waits for it; what is yielded is done when something is written about it. `hears`: whether it is
        still there to be told."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(operation_id, {})[waiting] = hears
        try:
            yield waiting
        finally:
            others = self._waiting[operation_id]
            del others[waiting]
            if not others:
                del self._waiting[operation_id]

    async def change_of(self, operation_id: str, timeout_s: float, hears: Callable[[], bool] = _always) -> None:
        """Return when it changes here, or after the time."""
        with self.awaited(operation_id, hears) as waiting:
            await asyncio.wait({waiting}, timeout=max(0.0, timeout_s))
