"""Admission: how many calls a provider is given at once, and who goes first when there are more.

The bound (`ConcurrencyLimit`) follows what is seen: it falls when answers come slower than they used to, or when there
are 429s, 503s or timeouts; it rises while neither happens and it is used. Numbers are those that were tried: a gradient
with a square root of head room.

The queue (`AdmissionQueue`) is one provider's: a lane for each priority, a part of the bound kept for it while it is in
use, a short queue by the earliest end of patience. A lane's first in line gains with waiting, and one of twenty places
goes to the oldest of the low lane whatever else waits: a flood of low cannot starve high, and low is never starved for
ever.

Pure: the time comes in. Waiters are names; who waits behind them is not known here.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from paywitness.core.provider_health import Health, HealthSample

_BATCH_S = 1.0
_BATCH_SAMPLES = 50
_TOLERANCE = 1.5  # answers may come half as slow again before that counts
_SLACK_S = 0.05  # and so much slower, whatever is usual: that much may be our own machine, busy with other calls
_GRADIENT_LEAST = 0.5
_WEIGHT = 0.2  # of what a batch says
_OVERLOAD_MAX = 0.01
_BACK_OFF = 0.9
_HOLD_S = 10.0  # after an overload the bound does not rise for so long: it was found
# What is usual falls by a third a batch, and rises over minutes: a provider that is slow because it has too much to do
# must not come to count as a slow provider, or the bound would follow it upwards.
_BASELINE_FALLS = 0.3
_BASELINE_RISES_S = 300.0

ACTIVE_S = 10.0  # a share is kept for a lane that was used so lately
QUEUE_WAIT_MAX_S = 2.0
QUEUE_WAIT_SHARE = 0.25  # of the caller's deadline
QUEUE_PER_LIMIT = 2.0
LOW_QUEUE_RESERVED = (
    4  # of low may wait however many others do, so that there is somebody to take when low's turn comes
)
LOW_EVERY = 20
AGING_S = 0.5  # of waiting are worth a step of priority
RETRY_MAX_S = 30.0

_SHED_WINDOW_S = 10.0


class TrafficClass(StrEnum):
    """The callers' priorities, and resolution: inquiries and re-sends after the caller has left."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    RESOLUTION = "resolution"


RESERVES = {TrafficClass.HIGH: 0.5, TrafficClass.MEDIUM: 0.25, TrafficClass.RESOLUTION: 0.1, TrafficClass.LOW: 0.0}
_BASE_SCORES = {TrafficClass.HIGH: 2.0, TrafficClass.MEDIUM: 1.0, TrafficClass.RESOLUTION: 1.0, TrafficClass.LOW: 0.0}
# Waiting lifts low above fresh medium after half a second, and nothing above fresh high.
_SCORE_MAX = {
    TrafficClass.HIGH: math.inf,
    TrafficClass.MEDIUM: 1.95,
    TrafficClass.RESOLUTION: 1.95,
    TrafficClass.LOW: 1.9,
}
_SHED_FACTORS = {TrafficClass.LOW: 1.5, TrafficClass.MEDIUM: 2.0}  # high and resolution are never shed


class AdmissionRefusal(StrEnum):
    """Why a call was not admitted."""

    QUEUE_FULL = "provider_queue_full"
    WAITED = "provider_busy"
    SHED = "shed"


@dataclass(frozen=True, slots=True)
class ConcurrencyBounds:
    least: float = 4.0
    most: float = 500.0
    start: float = 50.0  # most providers take that many; one that does not says so within a second
    queue_least: int = 100  # a burst at a provider that was never full is no overload; who waits in vain waits 2 s


class ConcurrencyLimit:
    """How many calls at once."""

    def __init__(self, bounds: ConcurrencyBounds = ConcurrencyBounds()) -> None:
        self.value = bounds.start
        self.baseline_s = 0.0  # how long answers took before this batch
        self._bounds = bounds
        self._began_mono = self._concluded_mono = self._overloaded_mono = -math.inf
        self._count = self._overloads = self._answers = 0
        self._answers_s = 0.0
        self._used = 0

    def add_sample(self, sample: HealthSample | None, in_flight: int, now_mono: float) -> None:
        """A call ended; `in_flight` counts it too."""
        if self._count == 0 and self._used == 0:
            self._began_mono = now_mono
        self._used = max(self._used, in_flight)
        if sample is None:
            return
        self._count += 1
        self._overloads += sample.overload
        if sample.health is Health.OK:
            self._answers += 1
            self._answers_s += sample.duration_s
        if self._count >= _BATCH_SAMPLES or now_mono - self._began_mono >= _BATCH_S:
            self._end_batch(now_mono)

    def _end_batch(self, now_mono: float) -> None:
        answer_s = self._answers_s / self._answers if self._answers else 0.0
        # A bound that is not used says nothing about itself, in good times or bad.
        if self._used >= self.value / 2:
            self.value = min(self._bounds.most, max(self._bounds.least, self._next_value(answer_s, now_mono)))
        if answer_s:
            passed_s = min(_BATCH_S * 2, now_mono - self._concluded_mono)
            weight = _BASELINE_FALLS if answer_s < self.baseline_s else passed_s / _BASELINE_RISES_S
            self.baseline_s = self.baseline_s + weight * (answer_s - self.baseline_s) if self.baseline_s else answer_s
        self._concluded_mono = now_mono
        self._count = self._overloads = self._answers = self._used = 0
        self._answers_s = 0.0

    def _next_value(self, answer_s: float, now_mono: float) -> float:
        if self._overloads > _OVERLOAD_MAX * self._count:
            self._overloaded_mono = now_mono
            return self.value * _BACK_OFF
        if not answer_s:
            return self.value  # nothing but failures, none of them of overload: the circuit's business
        tolerated_s = _TOLERANCE * (self.baseline_s or answer_s) + _SLACK_S
        gradient = min(1.0, max(_GRADIENT_LEAST, tolerated_s / answer_s))
        room = math.sqrt(self.value)
        if gradient == 1.0 and self.value < self._bounds.start:
            room = max(room, 1.0 / _WEIGHT)  # back to where it began by one a batch, not by roots of little
        found = (1 - _WEIGHT) * self.value + _WEIGHT * (gradient * self.value + room)
        held = now_mono - self._overloaded_mono < _HOLD_S
        return min(found, self.value) if held else found


@dataclass(slots=True)
class _ClassState:
    """One lane's share of the floor."""

    in_flight: int = 0
    active_mono: float = -math.inf
    waiting: int = 0
    queue: list[tuple[float, int]] = field(default_factory=list)  # end of patience, waiter; some have given up


@dataclass(frozen=True, slots=True)
class _Waiter:
    traffic_class: TrafficClass
    queued_mono: float


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """What becomes of a call that comes: in, waiting, or refused. `evicted` lost its place to it."""

    admitted: bool
    queued: bool = False
    evicted: int | None = None


_ADMITTED, _REFUSED = AdmissionResult(admitted=True), AdmissionResult(admitted=False)


class AdmissionQueue:
    """The calls of one provider: those in flight, and those that wait."""

    def __init__(self, bounds: ConcurrencyBounds = ConcurrencyBounds()) -> None:
        self.limit = ConcurrencyLimit(bounds)
        self._queue_least = bounds.queue_least
        self.in_flight = 0
        self._classes = {traffic_class: _ClassState() for traffic_class in TrafficClass}
        self._waiters: dict[int, _Waiter] = {}
        self._admitted_from_queue = 0

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @property
    def waiting_by_priority(self) -> Mapping[TrafficClass, int]:
        return {traffic_class: state.waiting for traffic_class, state in self._classes.items()}

    def try_admit(self, traffic_class: TrafficClass, now_mono: float) -> bool:
        """Whether a call that comes is in at once: nobody of its lane waits, and there is room."""
        state = self._classes[traffic_class]
        state.active_mono = now_mono
        if (state.queue and self._head(traffic_class) is not None) or not self._has_room(traffic_class, now_mono):
            return False
        state.in_flight += 1
        self.in_flight += 1
        return True

    def admit_or_queue(
        self, traffic_class: TrafficClass, waiter: int, now_mono: float, wait_max_s: float
    ) -> AdmissionResult:
        if self.try_admit(traffic_class, now_mono):
            return _ADMITTED
        state = self._classes[traffic_class]
        evicted = None
        if wait_max_s <= 0:
            return _REFUSED
        if self.waiting >= max(self._queue_least, QUEUE_PER_LIMIT * self.limit.value) and not self._is_reserved(
            traffic_class
        ):
            evicted = self._eviction_candidate(traffic_class)
            if evicted is None:
                return _REFUSED
            self.cancel(evicted)
        self._waiters[waiter] = _Waiter(traffic_class, now_mono)
        state.waiting += 1
        heapq.heappush(state.queue, (now_mono + wait_max_s, waiter))
        return AdmissionResult(admitted=False, queued=True, evicted=evicted)

    def release(self, traffic_class: TrafficClass, sample: HealthSample | None, now_mono: float) -> None:
        """A call that was admitted has ended. Then ask `admit_next`."""
        self.limit.add_sample(sample, self.in_flight, now_mono)
        self._classes[traffic_class].in_flight -= 1
        self.in_flight -= 1

    def cancel(self, waiter: int) -> bool:
        """It waits no longer. False: it is not waiting any more."""
        found = self._waiters.pop(waiter, None)
        if found is None:
            return False
        self._classes[found.traffic_class].waiting -= 1
        self._head(found.traffic_class)  # drops those at its front who gave up
        return True

    def admit_next(self, now_mono: float) -> Iterator[int]:
        """Those that wait and may now go in, best first. Each one given is in."""
        while self._waiters and self.in_flight + 1 <= self.limit.value:
            traffic_class = self._next_class(now_mono)
            if traffic_class is None:
                return
            state = self._classes[traffic_class]
            _, waiter = heapq.heappop(state.queue)
            del self._waiters[waiter]
            state.waiting -= 1
            state.active_mono = now_mono
            state.in_flight += 1
            self.in_flight += 1
            self._admitted_from_queue += 1
            yield waiter

    def retry_after_s(self) -> float:
        """When the queue of now will be gone, at the pace of now."""
        each_s = (self.limit.baseline_s or 1.0) / self.limit.value
        return min(RETRY_MAX_S, max(1.0, (self.waiting + 1) * each_s))

    def _has_room(self, traffic_class: TrafficClass, now_mono: float) -> bool:
        limit = self.limit.value
        if self.in_flight + 1 > limit:
            return False
        if self._classes[traffic_class].in_flight < RESERVES[traffic_class] * limit:
            return True
        reserved = 0.0
        for other, state in self._classes.items():
            if other is not traffic_class and now_mono - state.active_mono < ACTIVE_S:
                reserved += max(0.0, RESERVES[other] * limit - state.in_flight)
        return limit - self.in_flight > reserved

    def _next_class(self, now_mono: float) -> TrafficClass | None:
        heads = {
            traffic_class: head for traffic_class in TrafficClass if (head := self._head(traffic_class)) is not None
        }
        if TrafficClass.LOW in heads and self._admitted_from_queue % LOW_EVERY == LOW_EVERY - 1:
            return TrafficClass.LOW
        best, best_score = None, (-1.0, 0.0)
        for traffic_class, head in heads.items():
            waited_s = now_mono - head.queued_mono
            score = (min(_SCORE_MAX[traffic_class], _BASE_SCORES[traffic_class] + waited_s / AGING_S), waited_s)
            if score > best_score and self._has_room(traffic_class, now_mono):
                best, best_score = traffic_class, score
        return best

    def _head(self, traffic_class: TrafficClass) -> _Waiter | None:
        queue = self._classes[traffic_class].queue
        while queue:
            waiter = self._waiters.get(queue[0][1])
            if waiter is not None:
                return waiter
            heapq.heappop(queue)  # it gave up
        return None

    def _is_reserved(self, traffic_class: TrafficClass) -> bool:
        return traffic_class is TrafficClass.LOW and self._classes[traffic_class].waiting < LOW_QUEUE_RESERVED

    def _eviction_candidate(self, traffic_class: TrafficClass) -> int | None:
        """Who came last of the least lane that waits, if that is below this one."""
        for other, reserved in (
            (TrafficClass.LOW, LOW_QUEUE_RESERVED),
            (TrafficClass.RESOLUTION, 0),
            (TrafficClass.MEDIUM, 0),
        ):
            if _BASE_SCORES[other] < _BASE_SCORES[traffic_class] and self._classes[other].waiting > reserved:
                return max(
                    (waiter.queued_mono, name)
                    for name, waiter in self._waiters.items()
                    if waiter.traffic_class is other
                )[1]
        return None


def queue_wait_max_s(deadline_s: float, usual_s: float) -> float:
    """How long a call may wait for its turn: a part of its deadline, and never so long that no time is left to go."""
    return max(0.0, min(QUEUE_WAIT_MAX_S, QUEUE_WAIT_SHARE * deadline_s, deadline_s - 2 * usual_s))


class AcceptRate:
    """How many of one lane's calls the provider took lately, and so what part of them is not worth sending.

    Two buckets slide over ten seconds. Shed calls count as asked, so that shedding grows no stricter by itself than the
    provider is: with half of all calls taken and K of 2, nothing is shed.
    """

    def __init__(self) -> None:
        self._index = -1
        self._now = [0, 0]  # asked, taken
        self._before = [0, 0]

    def count(self, accepted: bool, now_mono: float) -> None:
        self._rotate(now_mono)
        self._now[0] += 1
        self._now[1] += accepted

    def shed_share(self, traffic_class: TrafficClass, now_mono: float) -> float:
        factor = _SHED_FACTORS.get(traffic_class)
        if factor is None:
            return 0.0
        self._rotate(now_mono)
        left = 1 - now_mono % _SHED_WINDOW_S / _SHED_WINDOW_S
        asked, accepted = (now + before * left for now, before in zip(self._now, self._before, strict=True))
        return max(0.0, (asked - factor * accepted) / (asked + 1))

    def _rotate(self, now_mono: float) -> None:
        index = int(now_mono // _SHED_WINDOW_S)
        if index != self._index:
            self._before = self._now if index == self._index + 1 else [0, 0]
            self._index, self._now = index, [0, 0]


@dataclass(frozen=True, slots=True)
class AdmissionStats:
    """How full it is at one provider, for gauges and people."""

    provider: str
    limit: float
    in_flight: int
    waiting: int
    waiting_by_priority: Mapping[TrafficClass, int]
