"""The clocks of one simulated machine: its wall clock is handed in, and its CLOCK_BOOTTIME passes when told."""

from __future__ import annotations

import asyncio

from paywitness.journal.transitions import WallClock


class StepClock:
    def __init__(self, wall_clock: WallClock, host: str, boot: float = 1_000.0) -> None:
        self._wall_clock = wall_clock
        self._boot = boot
        self.host = host

    def pass_s(self, seconds: float) -> None:
        self._boot += seconds

    def now(self) -> float:
        return self._wall_clock.now()

    def mono(self) -> float:
        return self._boot

    def boot(self) -> float:
        return self._boot

    async def sleep(self, seconds: float) -> None:
        self.pass_s(seconds)
        await asyncio.sleep(0)
