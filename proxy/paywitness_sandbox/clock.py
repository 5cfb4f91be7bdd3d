"""The only place that reads the time of day. All other modules get a `Clock`.

Waiting uses `asyncio.sleep`, so an event loop with virtual time also moves the faults.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since the epoch."""


def wall_clock() -> float:
    return time.time()
