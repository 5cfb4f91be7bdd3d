"""LimitsSync: twice a second it reports this sidecar's counts to the limit stores, and reads the state of the fleet.

After an outage, the first success pulls that provider's due inquiries forward, because those of the outage failed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from paywitness.clock import Clock
from paywitness.core.errors import JournalUnavailable
from paywitness.engine.calls.gate import Gate
from paywitness.engine.durability.due_times import DueTimes
from paywitness.journal.base import Journal
from paywitness.limits.budgets import FLUSH_S
from paywitness.limits.factory import Limits
from paywitness.repeated_lines import REPEATS
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import CircuitChanged

_log = logging.getLogger("paywitness.limits")
_EXPEDITED_MAX = 500
_EXPEDITED_WITHIN_S = 5.0  # after a long outage many operations are in doubt; their inquiries are spread over this time
# Each early inquiry uses up one of the schedule, so a provider that keeps failing and recovering must not use up all.
_EXPEDITE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class LimitsSync:
    limits: Limits
    gate: Gate
    journal: Journal
    due_times: DueTimes
    clock: Clock
    telemetry: Telemetry
    expedited_mono: dict[str, float] = field(default_factory=dict)

    async def keep_syncing(self) -> None:
        while True:
            await self.clock.sleep(FLUSH_S)
            try:
                await self.sync()
            except Exception as error:  # noqa: BLE001  # a fault of ours must not freeze the limits for ever
                name = type(error).__name__
                _log.error("reporting to the limits failed by %s; it is tried again", name, extra=REPEATS)

    async def sync(self) -> None:
        await self.limits.budgets.flush()
        for change in await self.limits.circuits.sync():
            self.telemetry.emit(
                CircuitChanged(change.provider, change.group, change.before, change.after, change.fleet)
            )
            self.due_times.operations.set()  # the circuit may let inquiries through now
            if change.recovered:
                self.gate.recovered.add(change.provider)
        for provider in sorted(self.gate.recovered):
            if self.clock.mono() - self.expedited_mono.get(provider, -_EXPEDITE_EVERY_S) < _EXPEDITE_EVERY_S:
                self.gate.recovered.discard(provider)
                continue
            try:
                expedited = await self.journal.expedite(provider, within_s=_EXPEDITED_WITHIN_S, limit=_EXPEDITED_MAX)
            except JournalUnavailable:
                return  # the next round tries again
            self.gate.recovered.discard(provider)
            self.expedited_mono[provider] = self.clock.mono()
            if expedited:
                _log.info("%s answers again: inquiring now about %d operation(s) in doubt", provider, expedited)
                self.due_times.operations.set()
