"""Watch: callers of this process that wait for an operation to be resolved, told when something became true of it."""

from __future__ import annotations

import asyncio


class Watch:
    """Who waits for which operation. `resolving`: somebody works on what is in doubt; else waiting would be idle."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self.resolving = False
        self.due = asyncio.Event()  # something is due at once: the resolver need not wait for its next round

    def is_awaited(self, operation_id: str) -> bool:
        return operation_id in self._waiting

    def tell(self, operation_id: str) -> None:
        """Something was written about it."""
        for waiting in self._waiting.get(operation_id, ()):
            if not waiting.done():
                waiting.set_result(None)

    async def change_of(self, operation_id: str, timeout_s: float) -> None:
        """Return when it changes here, or after the time."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(operation_id, set()).add(waiting)
        try:
            await asyncio.wait({waiting}, timeout=max(0.0, timeout_s))
        finally:
            others = self._waiting[operation_id]
            others.discard(waiting)
            if not others:
                del self._waiting[operation_id]
