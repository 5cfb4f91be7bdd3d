"""Admission: how many calls a provider gets at once, and which call goes first if there are more.

The bound (`ConcurrencyLimit`) adapts to what the provider shows. It falls when responses become slower than usual, or
when there are 429s, 503s or timeouts. It rises while none of that happens and the bound is used. The formula is a
gradient with a square root of head room; its numbers come from experiments.

The queue (`AdmissionQueue`) belongs to one provider. It has a class of traffic for each priority, and keeps a part of
the bound for each class that is in use. Each class has a short queue, ordered by the time at which a waiter gives up.
The first waiter of a class gains priority as it waits. One of twenty admissions goes to the oldest waiter of low
priority, whatever else waits. So a flood of low priority cannot starve high priority, and low priority never starves
for ever.

Pure: the caller passes the time. A waiter is only a number here; the caller knows which call it is.
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
_TOLERANCE = 1.5  # responses may take half as long again before that counts as slower
# This much longer never counts, whatever is usual: our own machine may be the cause, if it is busy with other calls.
_SLACK_S = 0.05
_GRADIENT_LEAST = 0.5
_WEIGHT = 0.2  # the weight of one batch in the next bound
_OVERLOAD_MAX = 0.01
_BACK_OFF = 0.9
# After an overload the bound does not rise for this long, because the overload has just shown the provider's limit.
_HOLD_S = 10.0
# The usual duration falls by a third of the difference with each batch, and rises over minutes. A provider that is slow
# because it is overloaded must not come to count as a slow provider, or the bound would rise with the overload.
_BASELINE_FALLS = 0.3
_BASELINE_RISES_S = 300.0

ACTIVE_S = 10.0  # a part of the bound is kept for a class that was used within this time
QUEUE_WAIT_MAX_S = 2.0
QUEUE_WAIT_SHARE = 0.25  # of the caller's deadline
QUEUE_PER_LIMIT = 2.0
# This many of low may wait, however many others do: otherwise low's turn could come with nobody to take.
LOW_QUEUE_RESERVED = 4
LOW_EVERY = 20
AGING_S = 0.5  # this much waiting is worth one step of priority
RETRY_MAX_S = 30.0

_SHED_WINDOW_S = 10.0


class TrafficClass(StrEnum):
    """The priorities of callers, and `resolution`: inquiries and re-sends after the caller has left."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    RESOLUTION = "resolution"


RESERVES = {TrafficClass.HIGH: 0.5, TrafficClass.MEDIUM: 0.25, TrafficClass.RESOLUTION: 0.1, TrafficClass.LOW: 0.0}
_BASE_SCORES = {TrafficClass.HIGH: 2.0, TrafficClass.MEDIUM: 1.0, TrafficClass.RESOLUTION: 1.0, TrafficClass.LOW: 0.0}
# After half a second of waiting, low goes before medium that has just come. It never goes before high.
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
    start: float = 50.0  # most providers take this many; a provider that does not shows it within a second
    # A burst at a provider that was never full is no overload, and a call that is not admitted has waited only 2 s.
    queue_least: int = 100


class ConcurrencyLimit:
    """How many calls the provider gets at once."""

    def __init__(self, bounds: ConcurrencyBounds = ConcurrencyBounds()) -> None:
        self.value = bounds.start
        self.baseline_s = 0.0  # how long responses took before this batch
        self._bounds = bounds
        self._began_mono = self._concluded_mono = self._overloaded_mono = -math.inf
        self._count = self._overloads = self._answers = 0
        self._answers_s = 0.0
        self._used = 0

    def add_sample(self, sample: HealthSample | None, in_flight: int, now_mono: float) -> None:
        """Count a call that ended. `in_flight` still includes it. Without a sample only the use of the bound counts."""
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
        # A bound that was not used proves nothing about itself, in good times or bad.
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
            return self.value  # only failures, and none of them an overload: that is for the circuit
        tolerated_s = _TOLERANCE * (self.baseline_s or answer_s) + _SLACK_S
        gradient = min(1.0, max(_GRADIENT_LEAST, tolerated_s / answer_s))
        room = math.sqrt(self.value)
        if gradient == 1.0 and self.value < self._bounds.start:
            # Back to its start by one a batch: the square root of a low bound would take too long.
            room = max(room, 1.0 / _WEIGHT)
        found = (1 - _WEIGHT) * self.value + _WEIGHT * (gradient * self.value + room)
        held = now_mono - self._overloaded_mono < _HOLD_S
        return min(found, self.value) if held else found


@dataclass(slots=True)
class _ClassState:
    """One class's part of the calls in flight, and its queue."""

    in_flight: int = 0
    active_mono: float = -math.inf
    waiting: int = 0
    # (the time at which it gives up, waiter); some have given up already
    queue: list[tuple[float, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Waiter:
    traffic_class: TrafficClass
    queued_mono: float


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """The result for a call that arrives: admitted, queued, or refused. `evicted` is the waiter that lost its place to
    it."""

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
        """Admit the call at once, if no call of its class waits and there is room. False: it was not admitted."""
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
        """Count the end of a call that was admitted. Then call `admit_next`."""
        self.limit.add_sample(sample, self.in_flight, now_mono)
        self._classes[traffic_class].in_flight -= 1
        self.in_flight -= 1

    def cancel(self, waiter: int) -> bool:
        """Remove a waiter. False: it was not waiting any more."""
        found = self._waiters.pop(waiter, None)
        if found is None:
            return False
        self._classes[found.traffic_class].waiting -= 1
        self._head(found.traffic_class)  # drops the waiters at the front that gave up
        return True

    def admit_next(self, now_mono: float) -> Iterator[int]:
        """The waiters that may go in now, best first. Each waiter that it yields is admitted."""
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
        """How long until the calls that wait now have gone in, at the present pace."""
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
        """The waiter that came last in the lowest class that waits, if that class is below this one."""
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
    """How long a call may wait in the queue: a part of its deadline, and never so long that too little time is left for
    the attempt."""
    return max(0.0, min(QUEUE_WAIT_MAX_S, QUEUE_WAIT_SHARE * deadline_s, deadline_s - 2 * usual_s))


class AcceptRate:
    """How many calls of one priority the provider accepted of late, and so which share of them to shed.

    Two buckets slide over ten seconds. Shed calls count as asked. So the share that is shed does not grow by itself: if
    the provider accepts half of all calls and the factor is 2, nothing is shed.
    """

    def __init__(self) -> None:
        self._index = -1
        self._now = [0, 0]  # asked, accepted
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
    """How full the queue of one provider is, for gauges and people."""

    provider: str
    limit: float
    in_flight: int
    waiting: int
    waiting_by_priority: Mapping[TrafficClass, int]
