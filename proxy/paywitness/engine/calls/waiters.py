"""Callers that wait: which operation each one waits for, and until when.

`OperationWaiters` wakes the callers of this process when something is written about their operation. `Deadlines`
calls back once for every call whose deadline passes. It sets one timer for all calls, because nearly every call is
replied to long before its deadline.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from paywitness.clock import Clock
from paywitness.engine.calls.context import CallContext

_HEARD_MAX = 10_000  # calls that wait for one operation end within one deadline of each other


class OperationWaiters:
    """The callers that wait for each operation. `resolver_running`: without it nobody would resolve a doubt, and to
    wait would be pointless."""

    def __init__(self) -> None:
        self._waiters: dict[str, dict[asyncio.Future[None], Callable[[], bool]]] = {}
        self._heard: dict[str, None] = {}  # operations whose reply a caller got, newest last
        self.resolver_running = False

    def has_waiter(self, operation_id: str) -> bool:
        """Whether a caller waits for the operation that will still wait when its end is recorded."""
        return any(still_waiting() for still_waiting in self._waiters.get(operation_id, {}).values())

    def is_awaited(self, operation_id: str) -> bool:
        """Whether any caller waits for the operation, however little time it has left."""
        return operation_id in self._waiters

    def note_heard(self, operation_id: str) -> None:
        """A caller gets the reply. Another call that waited for it too may leave without it."""
        self._heard[operation_id] = None
        if len(self._heard) > _HEARD_MAX:
            del self._heard[next(iter(self._heard))]

    def was_heard(self, operation_id: str) -> bool:
        return operation_id in self._heard

    def notify(self, operation_id: str) -> None:
        """The operation was changed: wake the callers that wait for it."""
        for waiter in self._waiters.get(operation_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    @contextmanager
    def waiting_for(self, operation_id: str, still_waiting: Callable[[], bool]) -> Iterator[asyncio.Future[None]]:
        """Register a caller that waits. The yielded future is done when the operation changes. `still_waiting`: whether
        the caller will still be there when an end that is written from now on is recorded."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(operation_id, {})[waiter] = still_waiting
        try:
            yield waiter
        finally:
            others = self._waiters[operation_id]
            del others[waiter]
            if not others:
                del self._waiters[operation_id]

    async def wait_for_change(self, operation_id: str, timeout_s: float, still_waiting: Callable[[], bool]) -> bool:
        """Wait until the operation changes in this process, or the time is over. Returns whether it has changed."""
        with self.waiting_for(operation_id, still_waiting) as waiter:
            done, _ = await asyncio.wait({waiter}, timeout=max(0.0, timeout_s))
            return bool(done)


# --- Deadlines


@dataclass(slots=True)
class Deadlines:
    """The calls that wait. Each is passed to `on_deadline` once, when its deadline has come, unless it was removed
    before."""

    clock: Clock
    on_deadline: Callable[[CallContext], None]
    _waiting: dict[int, CallContext] = field(default_factory=dict)  # by identity
    _timer: asyncio.TimerHandle | None = None
    _next_mono: float = math.inf  # what the timer is set for: no deadline is earlier

    def add(self, context: CallContext) -> None:
        self._waiting[id(context)] = context
        if context.deadline_mono < self._next_mono:
            self._set_timer(context.deadline_mono)

    def remove(self, context: CallContext) -> None:
        self._waiting.pop(id(context), None)
        if not self._waiting:
            self._set_timer(math.inf)

    def _set_timer(self, deadline_mono: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next_mono = deadline_mono
        if deadline_mono < math.inf:
            time_left_s = max(0.0, deadline_mono - self.clock.mono())
            self._timer = asyncio.get_running_loop().call_later(time_left_s, self._fire)

    def _fire(self) -> None:
        due_mono = max(self._next_mono, self.clock.mono())  # a loop's timer may be a little early
        due = [context for context in self._waiting.values() if context.deadline_mono <= due_mono]
        for context in due:
            del self._waiting[id(context)]
        self._set_timer(min((context.deadline_mono for context in self._waiting.values()), default=math.inf))
        loop = asyncio.get_running_loop()
        for context in due:
            loop.call_soon(self.on_deadline, context)  # each separately: a fault in one must not cost another its reply
