"""Time: the only place that reads it, and the only place that waits for it to pass.

Three clocks, because no single one is right for everything:

- `now` is for dates that people and other machines read: in records, headers, signatures. It may jump.
- `mono` is for how long something took and when a timer fires. It never goes back, but it may stand still while the
  machine is suspended.
- `boot` is for leases. It never goes back and counts suspension too, so a sidecar that wakes up knows that its right
  to send is over.

Names follow the clock: wall time ends in `_at`, monotonic time in `_mono`, durations in `_s`. Everything that needs
time is handed a Clock, so the simulator can hand in its own.

`JournalClock` is the journal's time as its replies reported it: due times and dates are made with it. An age is never
just the difference of two of its times: see `core.ages` and `engine.durability.ages`.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Protocol

# Linux counts suspension in CLOCK_BOOTTIME alone. macOS has no clock of that name; its CLOCK_MONOTONIC counts sleep.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """The only source of time. All values are seconds; values of two clocks are never compared with each other."""

    def now(self) -> float:
        """Wall time, since the epoch. For dates only: a duration measured with it is wrong when the clock is set."""
        ...

    def mono(self) -> float:
        """Monotonic time, on the scale of the event loop's `time()`. For durations and timers."""
        ...

    def boot(self) -> float:
        """Monotonic time that also passes while the machine is suspended. For leases. Starts anew with each boot."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait on the monotonic clock. Zero or less only lets others run."""
        ...


class SystemClock:
    """The machine's own clocks. A call reads them some thirty times, so its methods are the system's functions."""

    now = staticmethod(time.time)
    mono = staticmethod(time.monotonic)
    boot = staticmethod(partial(time.clock_gettime, _BOOT_CLOCK))

    def __init__(self) -> None:
        self.host = _boot_id()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _boot_id() -> str:
    """An id of the machine's present boot, on whose scale `boot` counts. It differs after each start. Empty if the
    system gives none."""
    try:
        return _BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""


def host_of(clock: Clock) -> str:
    """The id of the machine's boot that the clock's `boot` counts from; empty if it has none."""
    return str(getattr(clock, "host", ""))


class SteadyWallClock:
    """Wall time as it was at the start, moved on by the clock that counts suspension. For a journal of one process: if
    somebody sets the machine's clock while it runs, no lease runs out and no operation looks settled."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_at, self._began_boot = clock.now(), clock.boot()

    def now(self) -> float:
        return self._began_at + (self._clock.boot() - self._began_boot)


# --- Journal clock


_AHEAD_MAX_S = 1.0  # clocks differ a little from each other


class JournalClock:
    """The latest time that the journal reported, moved on by a clock that counts suspension. It goes back only if it is
    provably ahead of the journal (`limit`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: float | None = None
        self._boot = 0.0
        self.told_at: float | None = None  # the latest time that the journal reported, unchanged

    def update(self, at: float) -> None:
        """The journal has just reported its time. Its reply took a moment, so we are a little behind the journal."""
        if self.told_at is None or at > self.told_at:
            self.told_at = at
        boot = self._clock.boot()
        if self._at is None or at > self._at + (boot - self._boot):
            self._at, self._boot = at, boot

    def limit(self, latest_at: float) -> None:
        """It is no later than `latest_at` now. A journal whose clock was set back lets its time pass at half speed
        until the clock has caught up. Our time passes at full speed. So without this limit our due times would be too
        late, by as much as the clock was set back."""
        if self._at is not None and self.now() > latest_at + _AHEAD_MAX_S:
            self._at, self._boot = latest_at, self._clock.boot()

    @property
    def known(self) -> bool:
        return self._at is not None

    def now(self) -> float:
        """The journal's time. Before its first report: our own wall clock's, which must not be used to decide that
        something has settled."""
        if self._at is None:
            return self._clock.now()
        return self._at + (self._clock.boot() - self._boot)
