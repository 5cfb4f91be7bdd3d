"""Which fault an arrival gets: the header's script first, then the schedule in force.

The only randomness of the sandbox lives here. Every arrival takes the same number of draws, whatever they are used for,
so the same seed and the same order of arrivals give the same faults.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from proxy.sandbox.catalogue import fault_called
from proxy.sandbox.clock import Clock
from proxy.sandbox.fault import Fault
from proxy.sandbox.schedule import WINDOWS_MAX, ApplyTo, BadSchedule, Outage, Schedule
from proxy.sandbox.script import NO_FAULT, parse_script

FAULT_HEADER = "sandbox-fault"
SCRIPTS_MAX = 100_000  # identities whose arrivals are counted; the oldest is forgotten first


@dataclass(frozen=True, slots=True)
class Choice:
    fault: Fault = NO_FAULT
    delay_s: float = 0.0


class ScheduleInForce:
    """A schedule, since when it counts, and its dice."""

    def __init__(self, schedule: Schedule, clock: Clock, defaults: Mapping[str, float]) -> None:
        self.schedule = schedule
        self._clock = clock
        self._since = clock()
        self._dice = random.Random(schedule.seed)
        self._reads = 0
        self._overload = fault_called("error_503", defaults)

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._since

    def draw(self, writes: bool) -> Choice:
        """Called once for every arrival, in the order in which they arrive."""
        by_chance, by_latency, by_brownout = self._dice.random(), self._dice.random(), self._dice.random()
        choice = self._weather(writes, by_chance, by_latency, by_brownout)
        return choice if writes else self._for_a_read(choice, by_chance)

    def _for_a_read(self, choice: Choice, by_chance: float) -> Choice:
        """What befalls reads alone comes first; then whatever befalls anybody."""
        schedule = self.schedule
        self._reads += 1
        fault = NO_FAULT if schedule.read_script is None else schedule.read_script.fault_for(self._reads)
        for candidate, probability in schedule.read_faults:
            if by_chance < probability:
                fault = candidate
                break
            by_chance -= probability
        return Choice(choice.fault if fault is NO_FAULT else fault, choice.delay_s + schedule.slow_reads_s)

    def _weather(self, writes: bool, by_chance: float, by_latency: float, by_brownout: float) -> Choice:
        schedule, elapsed_s = self.schedule, self.elapsed_s
        if schedule.apply_to not in (ApplyTo.ALL, ApplyTo.WRITES if writes else ApplyTo.READS):
            return Choice()
        delay_s = 0.0 if schedule.latency is None else schedule.latency.delay_s(by_latency)
        for outage in schedule.outages:
            if outage.fault is not None and outage.covers(elapsed_s):
                return Choice(outage.fault, delay_s)
        for brownout in schedule.brownouts:
            if brownout.covers(elapsed_s):
                delay_s += brownout.latency_s
                if by_brownout < brownout.error_probability:
                    return Choice(self._overload, delay_s)
        for fault, probability in schedule.faults:
            if by_chance < probability:
                return Choice(fault, delay_s)
            by_chance -= probability
        return Choice(delay_s=delay_s)

    def add_outage(self, outage: Outage) -> None:
        """From now on. Outages that are over make room."""
        elapsed_s = self.elapsed_s
        current = [item for item in self.schedule.outages if elapsed_s < item.start_s + item.duration_s]
        if len(current) >= WINDOWS_MAX:
            raise BadSchedule(f"there are {WINDOWS_MAX} outages to come already")
        begun = replace(outage, start_s=elapsed_s + outage.start_s)
        self.schedule = replace(self.schedule, outages=(*current, begun))

    def refuses(self) -> bool:
        """Nobody should be listening now."""
        return any(outage.fault is None and outage.covers(self.elapsed_s) for outage in self.schedule.outages)

    def next_change_s(self) -> float | None:
        """Seconds until `refuses` may change; None when it never will."""
        elapsed_s = self.elapsed_s
        edges = [
            edge - elapsed_s
            for outage in self.schedule.outages
            if outage.fault is None
            for edge in (outage.start_s, outage.start_s + outage.duration_s)
            if edge > elapsed_s
        ]
        return min(edges, default=None)


class ScriptedArrivals:
    """How many arrivals of each identity a script has seen. Another script for the same identity begins anew."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def fault_for(self, script: str, identity: str, defaults: Mapping[str, float]) -> Fault:
        parsed = parse_script(script, defaults)
        number = self._counts.pop((identity, script), 0) + 1
        if len(self._counts) >= SCRIPTS_MAX:
            del self._counts[next(iter(self._counts))]
        self._counts[identity, script] = number
        return parsed.fault_for(number)

    def clear(self) -> None:
        self._counts.clear()
