"""Deadlines: until when callers wait for their answers. One timer is set for all of them, for whose turn is next.

Nearly every call is answered long before its deadline: a timer of its own would be made and thrown away.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.clock import Clock
from proxy.engine.errand import Errand


@dataclass(slots=True)
class Deadlines:
    """Those who wait. Each is passed once to `passed` when its deadline has come, unless it was forgotten before."""

    clock: Clock
    passed: Callable[[Errand], None]
    _waiting: dict[int, Errand] = field(default_factory=dict)  # by identity
    _timer: asyncio.TimerHandle | None = None
    _next_mono: float = math.inf  # what the timer is set for: no deadline is earlier

    def keep(self, errand: Errand) -> None:
        self._waiting[id(errand)] = errand
        if errand.deadline_mono < self._next_mono:
            self._set(errand.deadline_mono)

    def forget(self, errand: Errand) -> None:
        self._waiting.pop(id(errand), None)
        if not self._waiting:
            self._set(math.inf)

    def _set(self, deadline_mono: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next_mono = deadline_mono
        if deadline_mono < math.inf:
            left_s = max(0.0, deadline_mono - self.clock.mono())
            self._timer = asyncio.get_running_loop().call_later(left_s, self._ring)

    def _ring(self) -> None:
        come_mono = max(self._next_mono, self.clock.mono())  # a loop's timer may be a little early
        come = [errand for errand in self._waiting.values() if errand.deadline_mono <= come_mono]
        for errand in come:
            del self._waiting[id(errand)]
        self._set(min((errand.deadline_mono for errand in self._waiting.values()), default=math.inf))
        loop = asyncio.get_running_loop()
        for errand in come:
            loop.call_soon(self.passed, errand)  # each by itself: a fault in one must not cost another its answer
