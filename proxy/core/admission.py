"""Admission: how many calls a provider is given at once, and who goes first when there are more.

The bound (`Limit`) follows what is seen: it falls when answers come slower than they used to, or when there are 429s,
503s or timeouts; it rises while neither happens and it is used. Numbers are those that were tried: a gradient with a
square root of head room.

The floor (`Floor`) is one provider's: a lane for each priority, a part of the bound kept for it while it is in use, a
short queue by the earliest end of patience. A lane's first in line gains with waiting, and one of twenty places goes to
the oldest of the low lane whatever else waits: a flood of low cannot starve high, and low is never starved for ever.

Pure: the time comes in. Waiters are names; who waits behind them is not known here.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from proxy.core.observation import Health, Observation

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
_USUAL_FALLS = 0.3
_USUAL_RISES_S = 300.0

ACTIVE_S = 10.0  # a share is kept for a lane that was used so lately
PATIENCE_MAX_S = 2.0
PATIENCE_SHARE = 0.25  # of the caller's deadline
QUEUE_PER_LIMIT = 2.0
LOW_KEPT = 4  # of low may wait however many others do, so that there is somebody to take when low's turn comes
LOW_EVERY = 20
AGING_S = 0.5  # of waiting are worth a step of priority
RETRY_MAX_S = 30.0

_SHED_WINDOW_S = 10.0


class Lane(StrEnum):
    """The callers' priorities, and resolution: inquiries and re-sends after the caller has left."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    RESOLUTION = "resolution"


RESERVES = {Lane.HIGH: 0.5, Lane.MEDIUM: 0.25, Lane.RESOLUTION: 0.1, Lane.LOW: 0.0}
_BASE = {Lane.HIGH: 2.0, Lane.MEDIUM: 1.0, Lane.RESOLUTION: 1.0, Lane.LOW: 0.0}
# Waiting lifts low above fresh medium after half a second, and nothing above fresh high.
_SCORE_MAX = {Lane.HIGH: math.inf, Lane.MEDIUM: 1.95, Lane.RESOLUTION: 1.95, Lane.LOW: 1.9}
_SHED_K = {Lane.LOW: 1.5, Lane.MEDIUM: 2.0}  # high and resolution are never shed


class AdmissionRefusal(StrEnum):
    """Why a call was not admitted."""

    QUEUE_FULL = "provider_queue_full"
    WAITED = "provider_busy"
    SHED = "shed"


@dataclass(frozen=True, slots=True)
class Bounds:
    least: float = 4.0
    most: float = 500.0
    start: float = 50.0  # most providers take that many; one that does not says so within a second
    queue_least: int = 100  # a burst at a provider that was never full is no overload; who waits in vain waits 2 s


class Limit:
    """How many calls at once."""

    def __init__(self, bounds: Bounds = Bounds()) -> None:
        self.value = bounds.start
        self.usual_s = 0.0  # how long answers took before this batch
        self._bounds = bounds
        self._began_mono = self._concluded_mono = self._overloaded_mono = -math.inf
        self._count = self._overloads = self._answers = 0
        self._answers_s = 0.0
        self._used = 0

    def sample(self, observation: Observation | None, in_flight: int, now_mono: float) -> None:
        """A call ended; `in_flight` counts it too."""
        if self._count == 0 and self._used == 0:
            self._began_mono = now_mono
        self._used = max(self._used, in_flight)
        if observation is None:
            return
        self._count += 1
        self._overloads += observation.overload
        if observation.health is Health.OK:
            self._answers += 1
            self._answers_s += observation.duration_s
        if self._count >= _BATCH_SAMPLES or now_mono - self._began_mono >= _BATCH_S:
            self._conclude(now_mono)

    def _conclude(self, now_mono: float) -> None:
        answer_s = self._answers_s / self._answers if self._answers else 0.0
        # A bound that is not used says nothing about itself, in good times or bad.
        if self._used >= self.value / 2:
            self.value = min(self._bounds.most, max(self._bounds.least, self._next(answer_s, now_mono)))
        if answer_s:
            passed_s = min(_BATCH_S * 2, now_mono - self._concluded_mono)
            weight = _USUAL_FALLS if answer_s < self.usual_s else passed_s / _USUAL_RISES_S
            self.usual_s = self.usual_s + weight * (answer_s - self.usual_s) if self.usual_s else answer_s
        self._concluded_mono = now_mono
        self._count = self._overloads = self._answers = self._used = 0
        self._answers_s = 0.0

    def _next(self, answer_s: float, now_mono: float) -> float:
        if self._overloads > _OVERLOAD_MAX * self._count:
            self._overloaded_mono = now_mono
            return self.value * _BACK_OFF
        if not answer_s:
            return self.value  # nothing but failures, none of them of overload: the circuit's business
        tolerated_s = _TOLERANCE * (self.usual_s or answer_s) + _SLACK_S
        gradient = min(1.0, max(_GRADIENT_LEAST, tolerated_s / answer_s))
        room = math.sqrt(self.value)
        if gradient == 1.0 and self.value < self._bounds.start:
            room = max(room, 1.0 / _WEIGHT)  # back to where it began by one a batch, not by roots of little
        found = (1 - _WEIGHT) * self.value + _WEIGHT * (gradient * self.value + room)
        held = now_mono - self._overloaded_mono < _HOLD_S
        return min(found, self.value) if held else found


@dataclass(slots=True)
class _Place:
    """One lane's share of the floor."""

    in_flight: int = 0
    active_mono: float = -math.inf
    waiting: int = 0
    queue: list[tuple[float, int]] = field(default_factory=list)  # end of patience, waiter; some have given up


@dataclass(frozen=True, slots=True)
class _Waiter:
    lane: Lane
    came_mono: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """What becomes of a call that comes: in, waiting, or refused. `evicted` lost its place to it."""

    admitted: bool
    queued: bool = False
    evicted: int | None = None


_IN, _FULL = Arrival(admitted=True), Arrival(admitted=False)


class Floor:
    """The calls of one provider: those in flight, and those that wait."""

    def __init__(self, bounds: Bounds = Bounds()) -> None:
        self.limit = Limit(bounds)
        self._queue_least = bounds.queue_least
        self.in_flight = 0
        self._places = {lane: _Place() for lane in Lane}
        self._waiters: dict[int, _Waiter] = {}
        self._given = 0

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def in_flight_of(self, lane: Lane) -> int:
        return self._places[lane].in_flight

    def enter(self, lane: Lane, now_mono: float) -> bool:
        """Whether a call that comes is in at once: nobody of its lane waits, and there is room."""
        place = self._places[lane]
        place.active_mono = now_mono
        if (place.queue and self._head(lane) is not None) or not self._has_room(lane, now_mono):
            return False
        place.in_flight += 1
        self.in_flight += 1
        return True

    def arrive(self, lane: Lane, waiter: int, now_mono: float, patience_s: float) -> Arrival:
        if self.enter(lane, now_mono):
            return _IN
        place = self._places[lane]
        evicted = None
        if patience_s <= 0:
            return _FULL
        if self.waiting >= max(self._queue_least, QUEUE_PER_LIMIT * self.limit.value) and not self._is_kept(lane):
            evicted = self._last_below(lane)
            if evicted is None:
                return _FULL
            self.give_up(evicted)
        self._waiters[waiter] = _Waiter(lane, now_mono)
        place.waiting += 1
        heapq.heappush(place.queue, (now_mono + patience_s, waiter))
        return Arrival(admitted=False, queued=True, evicted=evicted)

    def leave(self, lane: Lane, observation: Observation | None, now_mono: float) -> None:
        """A call that was admitted has ended. Then ask `admit_next`."""
        self.limit.sample(observation, self.in_flight, now_mono)
        self._places[lane].in_flight -= 1
        self.in_flight -= 1

    def give_up(self, waiter: int) -> bool:
        """It waits no longer. False: it is not waiting any more."""
        found = self._waiters.pop(waiter, None)
        if found is None:
            return False
        self._places[found.lane].waiting -= 1
        self._head(found.lane)  # drops those at its front who gave up
        return True

    def admit_next(self, now_mono: float) -> Iterator[int]:
        """Those that wait and may now go in, best first. Each one given is in."""
        while self._waiters and self.in_flight + 1 <= self.limit.value:
            lane = self._next_lane(now_mono)
            if lane is None:
                return
            place = self._places[lane]
            _, waiter = heapq.heappop(place.queue)
            del self._waiters[waiter]
            place.waiting -= 1
            place.active_mono = now_mono
            place.in_flight += 1
            self.in_flight += 1
            self._given += 1
            yield waiter

    def retry_after_s(self) -> float:
        """When the queue of now will be gone, at the pace of now."""
        each_s = (self.limit.usual_s or 1.0) / self.limit.value
        return min(RETRY_MAX_S, max(1.0, (self.waiting + 1) * each_s))

    def _has_room(self, lane: Lane, now_mono: float) -> bool:
        limit = self.limit.value
        if self.in_flight + 1 > limit:
            return False
        if self._places[lane].in_flight < RESERVES[lane] * limit:
            return True
        kept = 0.0
        for other, place in self._places.items():
            if other is not lane and now_mono - place.active_mono < ACTIVE_S:
                kept += max(0.0, RESERVES[other] * limit - place.in_flight)
        return limit - self.in_flight > kept

    def _next_lane(self, now_mono: float) -> Lane | None:
        heads = {lane: head for lane in Lane if (head := self._head(lane)) is not None}
        if Lane.LOW in heads and self._given % LOW_EVERY == LOW_EVERY - 1:
            return Lane.LOW
        best, best_score = None, (-1.0, 0.0)
        for lane, head in heads.items():
            waited_s = now_mono - head.came_mono
            score = (min(_SCORE_MAX[lane], _BASE[lane] + waited_s / AGING_S), waited_s)
            if score > best_score and self._has_room(lane, now_mono):
                best, best_score = lane, score
        return best

    def _head(self, lane: Lane) -> _Waiter | None:
        queue = self._places[lane].queue
        while queue:
            waiter = self._waiters.get(queue[0][1])
            if waiter is not None:
                return waiter
            heapq.heappop(queue)  # it gave up
        return None

    def _is_kept(self, lane: Lane) -> bool:
        return lane is Lane.LOW and self._places[lane].waiting < LOW_KEPT

    def _last_below(self, lane: Lane) -> int | None:
        """Who came last of the least lane that waits, if that is below this one."""
        for other, kept in ((Lane.LOW, LOW_KEPT), (Lane.RESOLUTION, 0), (Lane.MEDIUM, 0)):
            if _BASE[other] < _BASE[lane] and self._places[other].waiting > kept:
                return max((waiter.came_mono, name) for name, waiter in self._waiters.items() if waiter.lane is other)[
                    1
                ]
        return None


def patience_s(deadline_s: float, usual_s: float) -> float:
    """How long a call may wait for its turn: a part of its deadline, and never so long that no time is left to go."""
    return max(0.0, min(PATIENCE_MAX_S, PATIENCE_SHARE * deadline_s, deadline_s - 2 * usual_s))


class Acceptance:
    """How many of one lane's calls the provider took lately, and so what part of them is not worth sending.

    Two buckets slide over ten seconds. Shed calls count as asked, so that shedding grows no stricter by itself than the
    provider is: with half of all calls taken and K of 2, nothing is shed.
    """

    def __init__(self) -> None:
        self._index = -1
        self._now = [0, 0]  # asked, taken
        self._before = [0, 0]

    def count(self, taken: bool, now_mono: float) -> None:
        self._turn(now_mono)
        self._now[0] += 1
        self._now[1] += taken

    def shed_share(self, lane: Lane, now_mono: float) -> float:
        factor = _SHED_K.get(lane)
        if factor is None:
            return 0.0
        self._turn(now_mono)
        left = 1 - now_mono % _SHED_WINDOW_S / _SHED_WINDOW_S
        asked, taken = (now + before * left for now, before in zip(self._now, self._before, strict=True))
        return max(0.0, (asked - factor * taken) / (asked + 1))

    def _turn(self, now_mono: float) -> None:
        index = int(now_mono // _SHED_WINDOW_S)
        if index != self._index:
            self._before = self._now if index == self._index + 1 else [0, 0]
            self._index, self._now = index, [0, 0]
