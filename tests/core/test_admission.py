"""Admission: the bound that follows the provider, the lanes, and three times the load in time that does not pass."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random

import pytest

from paywitness.core.admission import (
    LOW_EVERY,
    LOW_QUEUE_RESERVED,
    QUEUE_PER_LIMIT,
    QUEUE_WAIT_MAX_S,
    AcceptRate,
    AdmissionQueue,
    ConcurrencyBounds,
    ConcurrencyLimit,
    TrafficClass,
    queue_wait_max_s,
)
from paywitness.core.call import Priority
from paywitness.core.provider_health import Health, HealthSample

HIGH, MEDIUM, LOW, RESOLUTION = TrafficClass
BUSY = HealthSample(Health.THROTTLED, 0.1, overload=True)


def answered(seconds: float) -> HealthSample:
    return HealthSample(Health.OK, seconds)


TRIED = ConcurrencyBounds(least=4, most=200, start=20, queue_least=0)  # small numbers, to count by hand


def test_every_priority_has_its_lane():
    assert {TrafficClass(priority) for priority in Priority} == {HIGH, MEDIUM, LOW}


# --- the bound


TICKS = itertools.count()  # fifty a second: a batch


def after_batches(limit: ConcurrencyLimit, observation: HealthSample, batches: int, used: int | None = None) -> float:
    for _ in range(batches * 50):
        limit.add_sample(observation, int(limit.value) if used is None else used, next(TICKS) * 0.02)
    return limit.value


def test_the_bound_rises_while_answers_come_as_they_used_to():
    limit = ConcurrencyLimit(TRIED)
    after_batches(limit, answered(0.1), 1)
    assert limit.value == pytest.approx(20 + 0.2 * 20**0.5)
    assert after_batches(limit, answered(0.1), 1000) == 200


def test_the_bound_falls_when_answers_come_slower():
    limit = ConcurrencyLimit(TRIED)
    after_batches(limit, answered(0.1), 20)
    high = limit.value
    after_batches(limit, answered(0.4), 20)
    assert limit.value < high / 2


def test_a_provider_that_stays_slow_does_not_hold_the_bound_down_for_ever():
    limit = ConcurrencyLimit(TRIED)
    after_batches(limit, answered(0.1), 5)
    low = after_batches(limit, answered(0.4), 20)
    assert after_batches(limit, answered(0.4), 400) > low * 1.5


@pytest.mark.parametrize("part", [2, 50])
def test_one_in_a_hundred_signs_of_overload_is_too_many(part):
    limit = ConcurrencyLimit(TRIED)
    for number in range(50):
        limit.add_sample(BUSY if number % part == 0 else answered(0.1), 20, 0.0)
    assert limit.value == pytest.approx(18)


def test_the_bound_has_bounds():
    limit = ConcurrencyLimit(TRIED)
    assert after_batches(limit, BUSY, 100) == 4
    assert after_batches(limit, answered(0.1), 9) == 4  # held for a while
    assert after_batches(limit, answered(0.1), 16) > 18  # then back by one a batch, not by roots of little


@pytest.mark.parametrize("observation", [BUSY, answered(0.1)], ids=["overload", "well"])
def test_a_bound_that_is_not_used_does_not_move(observation):
    limit = ConcurrencyLimit(TRIED)
    assert after_batches(limit, observation, 10, used=9) == 20


def test_plain_failures_do_not_move_the_bound():
    assert after_batches(ConcurrencyLimit(TRIED), HealthSample(Health.BAD), 10) == 20


def test_a_slow_trickle_is_judged_by_the_second():
    limit = ConcurrencyLimit(TRIED)
    for number in range(5):
        limit.add_sample(answered(0.1), 20, number * 0.5)
    assert limit.value > 20


# --- the floor


def full(bounds: ConcurrencyBounds = TRIED, lane: TrafficClass = HIGH) -> AdmissionQueue:
    floor = AdmissionQueue(bounds)
    for number in range(int(bounds.start)):
        assert floor.admit_or_queue(lane, -number, 0.0, 2.0).admitted
    return floor


def test_alone_a_lane_has_the_whole_floor():
    for lane in TrafficClass:
        floor = full(lane=lane)
        assert floor.in_flight == 20
        assert not floor.admit_or_queue(lane, 99, 0.0, 2.0).admitted


def test_a_lane_that_is_in_use_keeps_its_share():
    floor = AdmissionQueue(TRIED)
    assert floor.admit_or_queue(HIGH, 0, 0.0, 2.0).admitted
    lows = sum(floor.admit_or_queue(LOW, number, 0.0, 2.0).admitted for number in range(1, 40))
    assert lows == 10
    assert sum(floor.admit_or_queue(HIGH, 100 + number, 0.0, 2.0).admitted for number in range(9)) == 9


def test_a_share_is_kept_only_while_its_lane_is_in_use():
    floor = AdmissionQueue(TRIED)
    floor.admit_or_queue(HIGH, 0, 0.0, 2.0)
    floor.release(HIGH, None, 0.0)
    assert sum(floor.admit_or_queue(LOW, number, 10.0, 2.0).admitted for number in range(1, 40)) == 20


def test_the_earliest_end_of_patience_goes_first():
    floor = full()
    for waiter, patience in ((1, 2.0), (2, 0.5), (3, 1.0)):
        floor.admit_or_queue(HIGH, waiter, 0.0, patience)
    order: list[int] = []
    for _ in range(3):
        floor.release(HIGH, None, 0.1)
        order += floor.admit_next(0.1)
    assert order == [2, 3, 1]


def served(floor: AdmissionQueue, now: float) -> list[int]:
    floor.release(HIGH, None, now)
    return list(floor.admit_next(now))


@pytest.mark.parametrize(
    ("low_waited_s", "other", "first"),
    [(0.0, MEDIUM, "other"), (0.4, MEDIUM, "other"), (0.6, MEDIUM, "low"), (1.9, HIGH, "other")],
)
def test_waiting_lifts_low_above_fresh_medium_and_never_above_fresh_high(low_waited_s, other, first):
    floor = full()
    floor.admit_or_queue(LOW, 1, 5.0 - low_waited_s, 2.0)
    floor.admit_or_queue(other, 2, 5.0, 2.0)
    for _ in range(10):  # more than the shares that are kept for others
        floor.release(HIGH, None, 5.0)
    assert next(floor.admit_next(5.0)) == (1 if first == "low" else 2)


def test_one_place_of_twenty_goes_to_the_oldest_of_low():
    floor = full()
    for waiter in range(3):
        floor.admit_or_queue(LOW, 1000 + waiter, 0.0, 2.0)
    order: list[int] = []
    for waiter in range(60):
        floor.admit_or_queue(HIGH, waiter, 0.0, 2.0)
        order += served(floor, 0.0)
    assert [place for place, waiter in enumerate(order, 1) if waiter >= 1000] == [LOW_EVERY, 2 * LOW_EVERY, 60]
    assert [waiter for waiter in order if waiter >= 1000] == [1000, 1001, 1002]


def test_the_queue_is_bounded_and_low_makes_room_for_high():
    floor = full()
    room = int(QUEUE_PER_LIMIT * 20)
    for waiter in range(room):
        assert floor.admit_or_queue(LOW, waiter, waiter * 0.001, 2.0).queued
    assert not floor.admit_or_queue(LOW, 900, 0.1, 2.0).queued
    arrival = floor.admit_or_queue(HIGH, 901, 0.1, 2.0)
    assert arrival.queued
    assert arrival.evicted == room - 1
    assert floor.waiting == room
    assert not floor.cancel(room - 1)


def test_who_gives_up_is_passed_over():
    floor = full()
    floor.admit_or_queue(HIGH, 1, 0.0, 2.0)
    floor.admit_or_queue(HIGH, 2, 0.0, 2.0)
    assert floor.cancel(1)
    assert served(floor, 0.1) == [2]


@pytest.mark.parametrize(("deadline", "usual", "patience"), [(20, 0.1, 2.0), (4, 0.1, 1.0), (1, 0.45, 0.1), (1, 2, 0)])
def test_patience_is_a_small_part_of_the_deadline(deadline, usual, patience):
    assert queue_wait_max_s(deadline, usual) == pytest.approx(patience)


# --- shedding


def shed(lane: TrafficClass, taken: int, of: int) -> float:
    acceptance = AcceptRate()
    for number in range(of):
        acceptance.count(number < taken, 1.0)
    return acceptance.shed_share(lane, 1.0)


@pytest.mark.parametrize(
    ("lane", "taken", "share"),
    [
        (LOW, 100, 0),
        (LOW, 67, 0),
        (LOW, 50, 25 / 101),
        (LOW, 0, 100 / 101),
        (MEDIUM, 50, 0),
        (MEDIUM, 25, 50 / 101),
        (HIGH, 0, 0),
        (RESOLUTION, 0, 0),
    ],
)
def test_what_part_is_shed(lane, taken, share):
    assert shed(lane, taken, 100) == pytest.approx(share, abs=0.006)


def test_what_was_refused_is_forgotten():
    acceptance = AcceptRate()
    for _ in range(100):
        acceptance.count(False, 1.0)
    assert acceptance.shed_share(LOW, 9.9) > 0.9
    assert acceptance.shed_share(LOW, 19.5) == pytest.approx(5 / 6, abs=0.01)
    assert acceptance.shed_share(LOW, 25.0) == 0


# --- three times the load


@dataclass
class Provider:
    """Twenty at once take a tenth of a second each; more than that share it; more than sixty are told 429."""

    room: int = 20
    service_s: float = 0.1
    at_once: int = 0

    def answer(self) -> HealthSample:
        if self.at_once > 3 * self.room:
            return HealthSample(Health.THROTTLED, 0.01, overload=True)
        return answered(self.service_s * max(1.0, self.at_once / self.room))


@dataclass
class World:
    """Calls come at random, for a while, and the floor decides. Events are moved through, not waited for."""

    rates: dict[TrafficClass, float]
    seed: int
    seconds: float = 40.0
    floor: AdmissionQueue = field(default_factory=AdmissionQueue)
    provider: Provider = field(default_factory=Provider)

    def __post_init__(self) -> None:
        self.random, self.numbers = Random(self.seed), itertools.count()
        self.events: list[tuple[float, int, str, TrafficClass, int]] = []
        self.came: dict[int, float] = {}
        self.lanes: dict[int, TrafficClass] = {}
        self.ends: dict[TrafficClass, Counter[str]] = defaultdict(Counter)
        self.waits: dict[TrafficClass, list[float]] = defaultdict(list)
        self.served_at: dict[TrafficClass, list[float]] = defaultdict(list)
        self.answers: dict[int, HealthSample] = {}

    def push(self, at: float, what: str, lane: TrafficClass, call: int) -> None:
        heapq.heappush(self.events, (at, next(self.numbers), what, lane, call))

    def run(self) -> World:
        for lane in self.rates:
            self.push(self.random.expovariate(self.rates[lane]), "come", lane, next(self.numbers))
        while self.events:
            now, _, what, lane, call = heapq.heappop(self.events)
            getattr(self, what)(now, lane, call)
        return self

    def come(self, now: float, lane: TrafficClass, call: int) -> None:
        if now < self.seconds:
            self.push(now + self.random.expovariate(self.rates[lane]), "come", lane, next(self.numbers))
        self.came[call], self.lanes[call] = now, lane
        arrival = self.floor.admit_or_queue(lane, call, now, queue_wait_max_s(8.0, self.floor.limit.baseline_s))
        if arrival.evicted is not None:
            self.refused(now, arrival.evicted)
        if arrival.admitted:
            self.go(now, call)
        elif arrival.queued:
            self.push(now + queue_wait_max_s(8.0, self.floor.limit.baseline_s), "tire", lane, call)
        else:
            self.refused(now, call)

    def shrink(self, now: float, lane: TrafficClass, call: int) -> None:
        self.provider.room //= 2

    def tire(self, now: float, lane: TrafficClass, call: int) -> None:
        if self.floor.cancel(call):
            self.refused(now, call)

    def refused(self, now: float, call: int) -> None:
        self.ends[self.lanes[call]]["refused"] += 1
        self.waits[self.lanes[call]].append(now - self.came[call])

    def go(self, now: float, call: int) -> None:
        self.provider.at_once += 1
        self.waits[self.lanes[call]].append(now - self.came[call])
        observation = self.answers[call] = self.provider.answer()
        self.push(now + observation.duration_s, "end", self.lanes[call], call)

    def end(self, now: float, lane: TrafficClass, call: int) -> None:
        observation = self.answers.pop(call)
        self.provider.at_once -= 1
        self.ends[lane]["ok" if observation.healthy else "throttled"] += 1
        self.served_at[lane].append(now)
        self.floor.release(lane, observation, now)
        for waiter in self.floor.admit_next(now):
            self.go(now, waiter)

    def succeeded(self, lane: TrafficClass) -> float:
        return self.ends[lane]["ok"] / self.ends[lane].total()


MIXES = {
    "a flood of low": {HIGH: 80.0, MEDIUM: 40.0, LOW: 480.0},
    "a flood of low and medium": {HIGH: 80.0, MEDIUM: 260.0, LOW: 260.0},
    "most of what it can take is high": {HIGH: 140.0, MEDIUM: 30.0, LOW: 430.0},
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("seed", range(2))
def test_at_three_times_the_load_high_succeeds_and_low_waits_a_bounded_time(mix, seed):
    assert sum(MIXES[mix].values()) == 600  # it can take 200 a second
    world = World(MIXES[mix], seed).run()
    assert world.succeeded(HIGH) >= 0.99
    assert max(itertools.chain(*world.waits.values())) <= QUEUE_WAIT_MAX_S + 1e-9
    served = sorted(at for at in world.served_at[LOW] if at < world.seconds)
    gaps = [later - earlier for earlier, later in itertools.pairwise([0.0, *served, world.seconds])]
    assert max(gaps) < 1.0  # low is served all the time, if little
    total = sum(ends["ok"] for ends in world.ends.values())
    assert total / world.seconds > 180  # and the provider is kept busy
    assert world.floor.in_flight == world.floor.waiting == world.provider.at_once == 0


def test_when_the_provider_loses_half_of_its_room_the_bound_follows():
    world = World({HIGH: 60.0, LOW: 400.0}, 1)
    world.push(15.0, "shrink", LOW, -1)
    world.run()
    assert world.succeeded(HIGH) >= 0.97  # those of the moment itself are told 429
    assert world.floor.limit.value < 35  # above 30 it is told 429


def test_low_keeps_somebody_in_the_queue_however_many_others_wait():
    floor = full()
    for waiter in range(200):
        floor.admit_or_queue(MEDIUM, waiter, 0.0, 2.0)
    kept = [floor.admit_or_queue(LOW, 1000 + waiter, 0.0, 2.0).queued for waiter in range(6)]
    assert kept == [True] * LOW_QUEUE_RESERVED + [False] * 2
    for waiter in range(200):
        floor.admit_or_queue(HIGH, 2000 + waiter, 0.0, 2.0)
    assert all(floor.cancel(1000 + waiter) for waiter in range(LOW_QUEUE_RESERVED))
