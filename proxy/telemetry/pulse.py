"""The pulse: how late the event loop runs. Every call waits for the same loop, so what holds it up holds up all."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.clock import Clock
from proxy.telemetry.metrics import Metrics

_BEAT_S = 0.25  # four looks a second cost nothing that can be measured


@dataclass(frozen=True, slots=True)
class Pulse:
    clock: Clock
    metrics: Metrics

    async def keep_beating(self) -> None:
        """Sleep and see how much later than asked for it is."""
        while True:
            due_mono = self.clock.mono() + _BEAT_S
            await self.clock.sleep(_BEAT_S)
            self.metrics.loop_was_late(max(0.0, self.clock.mono() - due_mono))
