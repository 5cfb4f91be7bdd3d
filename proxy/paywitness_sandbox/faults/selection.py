"""Which fault an arrival gets: the header's script first, then the schedule in force. Schedules are read from JSON.

All randomness of the sandbox is here. Every arrival takes the same number of draws, so the same seed and the same order
of arrivals give the same faults.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from paywitness_sandbox.clock import Clock
from paywitness_sandbox.exchange import Fault
from paywitness_sandbox.faults.registry import NO_FAULT, NO_SHORT_NAMES, FaultScript, parse_fault, parse_script

# --- Schedules
# A schedule of faults for any arrival: their probabilities and times. Plain values, read from JSON.
#
#     {"seed": 7, "apply_to": "writes",
#      "faults":    {"drop_after_commit": 0.1, "rate_limited(retry_after_s=2)": 0.05},
#      "latency":   {"kind": "uniform", "low_s": 0.01, "high_s": 0.2},
#      "outages":   [{"start_s": 10, "duration_s": 5, "mode": "refuse"}],
#      "brownouts": [{"start_s": 30, "duration_s": 10, "latency_s": 0.5, "error_probability": 0.3}],
#      "slow_reads_s": 0.5, "read_faults": {"unauthorized": 0.2}}
#
# Times count from the moment the schedule comes into force. A mode is `refuse` (the sandbox does not listen), `hang`,
# or a fault. `slow_reads_s` and `read_faults` apply only to GETs, whatever `apply_to` says. `read_faults` has
# probabilities like `faults`, or is a script by reads, like the Sandbox-Fault header by arrivals: "error_500, -,
# hang*".

WINDOWS_MAX = 1_000
WINDOW_S_MAX = 86_400.0
LATENCY_S_MAX = 60.0

SCHEDULE_KEYS = ("seed", "apply_to", "faults", "latency", "outages", "brownouts", "slow_reads_s", "read_faults")
REFUSE = "refuse"
HANG = "hang"
# A read commits nothing, so its faults need no "before the commit" in their names.
SHORT_NAMES = {HANG: "hang_before_commit", "error_500": "error_500_before_commit"}


class InvalidSchedule(ValueError):
    """The schedule is not valid. The message gives the place. The schedule in force stays."""


class ApplyTo(StrEnum):
    ALL = "all"
    WRITES = "writes"
    READS = "reads"


@dataclass(frozen=True, slots=True)
class ScheduleWindow:
    start_s: float
    duration_s: float

    def covers(self, elapsed_s: float) -> bool:
        return self.start_s <= elapsed_s < self.start_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Outage(ScheduleWindow):
    mode: str
    fault: Fault | None = None
    """None if the sandbox does not listen at all."""


@dataclass(frozen=True, slots=True)
class Brownout(ScheduleWindow):
    latency_s: float
    error_probability: float


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution, by its quantiles: one draw from 0 to 1 gives one delay."""

    kind: str
    first: float
    second: float = 0.0

    def delay_s(self, draw: float) -> float:
        if self.kind == "uniform":
            delay = self.first + draw * (self.second - self.first)
        elif self.kind == "exponential":
            delay = -self.first * math.log(1.0 - draw)
        elif self.kind == "lognormal":
            normal = statistics.NormalDist().inv_cdf(min(max(draw, 1e-12), 1.0 - 1e-12))
            delay = self.first * math.exp(self.second * normal)
        else:
            delay = self.first
        return min(delay, LATENCY_S_MAX)


LATENCY_PARAMETERS = {
    "fixed": ("delay_s",),
    "uniform": ("low_s", "high_s"),
    "exponential": ("mean_s",),
    "lognormal": ("median_s", "sigma"),
}


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    apply_to: ApplyTo = ApplyTo.ALL
    faults: tuple[tuple[Fault, float], ...] = ()
    latency: Latency | None = None
    outages: tuple[Outage, ...] = ()
    brownouts: tuple[Brownout, ...] = ()
    slow_reads_s: float = 0.0
    read_faults: tuple[tuple[Fault, float], ...] = ()
    read_script: FaultScript | None = None
    source: Mapping[str, object] | None = None
    """The source as it was given, for display."""


def parse_schedule(source: Mapping[str, object], *, seed: int, defaults: Mapping[str, float]) -> Schedule:
    """Raises InvalidSchedule, or UnknownFault for an unknown name of a fault."""
    unknown = set(source) - set(SCHEDULE_KEYS)
    if unknown:
        raise InvalidSchedule(f"unknown: {', '.join(sorted(unknown))}")
    given_seed = source.get("seed", seed)
    if isinstance(given_seed, bool) or not isinstance(given_seed, int):
        raise InvalidSchedule("seed is a whole number")
    apply_to = source.get("apply_to", ApplyTo.ALL)
    if apply_to not in list(ApplyTo):
        raise InvalidSchedule(f"apply_to is one of {', '.join(ApplyTo)}")
    read_faults = source.get("read_faults", {})
    scripted = isinstance(read_faults, str)
    return Schedule(
        seed=given_seed,
        apply_to=ApplyTo(str(apply_to)),
        faults=_faults(_mapping(source.get("faults", {}), "faults"), defaults),
        latency=_latency(source.get("latency")),
        outages=tuple(parse_outage(item, defaults) for item in _list(source.get("outages", []), "outages")),
        brownouts=tuple(_brownout(item) for item in _list(source.get("brownouts", []), "brownouts")),
        slow_reads_s=_number(source, "slow_reads_s", LATENCY_S_MAX, 0.0),
        read_faults=() if scripted else _faults(_mapping(read_faults, "read_faults"), defaults, SHORT_NAMES),
        read_script=parse_script(str(read_faults), defaults, SHORT_NAMES) if scripted else None,
        source=dict(source),
    )


def parse_outage(source: object, defaults: Mapping[str, float]) -> Outage:
    item = _mapping(source, "an outage")
    mode = item.get("mode", REFUSE)
    if not isinstance(mode, str):
        raise InvalidSchedule("an outage's mode is refuse, hang, or the name of a fault")
    window = _window(item)
    if mode == REFUSE:
        return Outage(window.start_s, window.duration_s, mode)
    fault = parse_fault("hang_before_commit" if mode == HANG else mode, defaults)
    return Outage(window.start_s, window.duration_s, mode, fault)


def _brownout(source: object) -> Brownout:
    item = _mapping(source, "a brownout")
    window = _window(item)
    latency_s = _number(item, "latency_s", LATENCY_S_MAX, 0.0)
    return Brownout(window.start_s, window.duration_s, latency_s, _number(item, "error_probability", 1.0, 0.0))


def _faults(
    source: Mapping[str, object], defaults: Mapping[str, float], short_names: Mapping[str, str] = NO_SHORT_NAMES
) -> tuple[tuple[Fault, float], ...]:
    faults = tuple((parse_fault(short_names.get(call, call), defaults), _number(source, call, 1.0)) for call in source)
    if sum(probability for _, probability in faults) > 1.0 + 1e-9:
        raise InvalidSchedule("the probabilities of all faults together are at most 1")
    return faults


def _latency(source: object) -> Latency | None:
    if source is None:
        return None
    item = _mapping(source, "latency")
    names = LATENCY_PARAMETERS.get(str(item.get("kind")))
    if names is None:
        raise InvalidSchedule(f"latency.kind is one of {', '.join(LATENCY_PARAMETERS)}")
    return Latency(str(item["kind"]), *(_number(item, name, LATENCY_S_MAX) for name in names))


def _window(item: Mapping[str, object]) -> ScheduleWindow:
    return ScheduleWindow(_number(item, "start_s", WINDOW_S_MAX, 0.0), _number(item, "duration_s", WINDOW_S_MAX))


def _number(item: Mapping[str, object], name: str, most: float, default: float | None = None) -> float:
    value = item.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise InvalidSchedule(f"{name} is a number from 0 to {most:g}")
    return float(value)


def _mapping(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidSchedule(f"{name} is an object")
    return value


def _list(value: object, name: str) -> list[object]:
    if not isinstance(value, list | tuple) or len(value) > WINDOWS_MAX:
        raise InvalidSchedule(f"{name} is a list of at most {WINDOWS_MAX}")
    return list(value)


# --- Selection

FAULT_HEADER = "sandbox-fault"
SCRIPTS_MAX = 100_000  # identities whose arrivals are counted; the oldest is forgotten first


@dataclass(frozen=True, slots=True)
class FaultChoice:
    fault: Fault = NO_FAULT
    delay_s: float = 0.0


class ActiveSchedule:
    """A schedule, the time of its start, and its random numbers."""

    def __init__(self, schedule: Schedule, clock: Clock, defaults: Mapping[str, float]) -> None:
        self.schedule = schedule
        self._clock = clock
        self._started_at = clock()
        self._random = random.Random(schedule.seed)
        self._reads = 0
        self._overload = parse_fault("error_503", defaults)

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started_at

    def draw(self, writes: bool) -> FaultChoice:
        """Call it once for every arrival, in the order of arrival."""
        by_chance, by_latency, by_brownout = self._random.random(), self._random.random(), self._random.random()
        choice = self._scheduled_choice(writes, by_chance, by_latency, by_brownout)
        return choice if writes else self._read_choice(choice, by_chance)

    def _read_choice(self, choice: FaultChoice, by_chance: float) -> FaultChoice:
        """The faults for reads only come first, then those for any arrival."""
        schedule = self.schedule
        self._reads += 1
        fault = NO_FAULT if schedule.read_script is None else schedule.read_script.fault_for(self._reads)
        for candidate, probability in schedule.read_faults:
            if by_chance < probability:
                fault = candidate
                break
            by_chance -= probability
        return FaultChoice(choice.fault if fault is NO_FAULT else fault, choice.delay_s + schedule.slow_reads_s)

    def _scheduled_choice(self, writes: bool, by_chance: float, by_latency: float, by_brownout: float) -> FaultChoice:
        schedule, elapsed_s = self.schedule, self.elapsed_s
        if schedule.apply_to not in (ApplyTo.ALL, ApplyTo.WRITES if writes else ApplyTo.READS):
            return FaultChoice()
        delay_s = 0.0 if schedule.latency is None else schedule.latency.delay_s(by_latency)
        for outage in schedule.outages:
            if outage.fault is not None and outage.covers(elapsed_s):
                return FaultChoice(outage.fault, delay_s)
        for brownout in schedule.brownouts:
            if brownout.covers(elapsed_s):
                delay_s += brownout.latency_s
                if by_brownout < brownout.error_probability:
                    return FaultChoice(self._overload, delay_s)
        for fault, probability in schedule.faults:
            if by_chance < probability:
                return FaultChoice(fault, delay_s)
            by_chance -= probability
        return FaultChoice(delay_s=delay_s)

    def add_outage(self, outage: Outage) -> None:
        """Add an outage that begins now. Outages that are over make room."""
        elapsed_s = self.elapsed_s
        current = [item for item in self.schedule.outages if elapsed_s < item.start_s + item.duration_s]
        if len(current) >= WINDOWS_MAX:
            raise InvalidSchedule(f"there are {WINDOWS_MAX} outages to come already")
        begun = replace(outage, start_s=elapsed_s + outage.start_s)
        self.schedule = replace(self.schedule, outages=(*current, begun))

    def refuses(self) -> bool:
        """Whether the sandbox should not be listening now."""
        return any(outage.fault is None and outage.covers(self.elapsed_s) for outage in self.schedule.outages)

    def next_change_s(self) -> float | None:
        """Seconds until `refuses` may change. None if it never will."""
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
    """The number of arrivals of each identity that a script has seen. Another script for the same identity begins at
    1."""

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
