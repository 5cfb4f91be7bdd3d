"""The sandbox's only look at the time of day; everything else is handed a `Clock`.

Waiting is asyncio's (`asyncio.sleep`), so an event loop with virtual time moves the faults as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since the epoch."""


def wall_clock() -> float:
    return time.time()
