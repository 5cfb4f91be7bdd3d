"""Reports: twice a second the limits' stores hear what this sidecar counted, and say where the fleet stands.

The first success after an outage pulls that provider's due inquiries forward: what is in doubt was asked about in vain.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from proxy.clock import Clock
from proxy.core.errors import JournalUnavailable
from proxy.engine.gate import Gate
from proxy.engine.watch import Watch
from proxy.journal.base import Journal
from proxy.limits.budgets import FLUSH_S
from proxy.limits.opening import Limits
from proxy.telemetry.records import CircuitChanged
from proxy.telemetry.telemetry import Telemetry

_log = logging.getLogger("paywitness.limits")
_HASTENED_MAX = 500
_HASTENED_WITHIN_S = 5.0  # of a long outage much is in doubt: not all of it in one moment
_HASTEN_EVERY_S = 60.0  # a look is a look: a provider that comes and goes must not use up the schedule


@dataclass(frozen=True, slots=True)
class Reports:
    limits: Limits
    gate: Gate
    journal: Journal
    watch: Watch
    clock: Clock
    telemetry: Telemetry
    hastened_mono: dict[str, float] = field(default_factory=dict)

    async def keep_reporting(self) -> None:
        while True:
            await self.clock.sleep(FLUSH_S)
            try:
                await self.report()
            except Exception as error:  # noqa: BLE001  # a fault of ours must not freeze the limits for ever
                _log.error("reporting to the limits failed by %s; it is tried again", type(error).__name__)

    async def report(self) -> None:
        await self.limits.budgets.flush()
        for change in await self.limits.circuits.report():
            self.telemetry.tell(
                CircuitChanged(change.provider, change.group, change.before, change.after, change.fleet)
            )
            if change.recovered:
                self.gate.recovered.add(change.provider)
        for provider in tuple(self.gate.recovered):
            if self.clock.mono() - self.hastened_mono.get(provider, -_HASTEN_EVERY_S) < _HASTEN_EVERY_S:
                self.gate.recovered.discard(provider)
                continue
            try:
                hastened = await self.journal.hasten(provider, within_s=_HASTENED_WITHIN_S, limit=_HASTENED_MAX)
            except JournalUnavailable:
                return  # the next time
            self.gate.recovered.discard(provider)
            self.hastened_mono[provider] = self.clock.mono()
            if hastened:
                _log.info("%s answers again: %d that are in doubt are looked at now", provider, hastened)
                self.watch.due.set()
