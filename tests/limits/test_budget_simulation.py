"""A fleet in virtual time against a provider in trouble: attempts per call, and what comes of the calls.

A discrete simulation, without waiting: sidecars share one set of tallies as they would share a Redis, each counts for
itself and flushes twice a second, and every failed attempt asks for its retry at the decision.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from paywitness.core.budget import AttemptOrigin
from paywitness.core.result import ResultClass
from paywitness.limits.budgets import FLUSH_S, Grant, LocalBudgets, ScopeTallies
from tests.limits.world import HandClock, ask, origin
from tests.randomness import SeededRandomness

TRIES_MAX = 3
CLASSES = (
    ResultClass.TEMPORARY_PROVIDER_ERROR,
    ResultClass.NETWORK_CONNECT_FAILURE,
    ResultClass.UNKNOWN_OUTCOME,
    ResultClass.NETWORK_READ_TIMEOUT,
)
ANSWERS_AFTER_S = 0.2
WARM_S = 20.0  # of good weather before the trouble


@dataclass(order=True)
class Event:
    at: float
    number: int
    sidecar: int = field(compare=False)
    tries: int = field(compare=False)  # 0: a flush
    where: AttemptOrigin | None = field(compare=False, default=None)
    grant: Grant | None = field(compare=False, default=None)


@dataclass
class Outcome:
    calls: int = 0
    attempts: int = 0
    succeeded: int = 0

    @property
    def attempts_per_call(self) -> float:
        return self.attempts / self.calls

    @property
    def goodput(self) -> float:
        return self.succeeded / self.calls


class Fleet:
    def __init__(
        self,
        sidecars: int,
        calls_per_s: float,
        cost: int,
        seed: int,
        fails: Callable[[float], float],
        *,
        accounts: int = 1,
    ) -> None:
        self.random = Random(seed)
        self.clock = HandClock()
        self.start = self.clock.seconds
        tallies = ScopeTallies()
        self.sidecars = [LocalBudgets(self.clock, SeededRandomness(seed + n), tallies) for n in range(sidecars)]
        self.calls_per_s = calls_per_s
        self.origins = [origin(operation=f"operation {n}", account=f"account {n}") for n in range(accounts)]
        self.cost = cost
        self.fails = fails  # the part of attempts that fail, by seconds since the start
        self.outcome = Outcome()
        self.queue: list[Event] = []
        self.number = 0

    def at(
        self, at: float, sidecar: int, tries: int, where: AttemptOrigin | None = None, grant: Grant | None = None
    ) -> None:
        self.number += 1
        heapq.heappush(self.queue, Event(at, self.number, sidecar, tries, where, grant))

    async def run(self, seconds: float) -> Outcome:
        calls = int(seconds * self.calls_per_s)
        for number in range(calls):
            at = self.start + number / self.calls_per_s + self.random.random() * 0.01
            self.at(at, self.random.randrange(len(self.sidecars)), 1, self.origins[number % len(self.origins)])
        for sidecar in range(len(self.sidecars)):
            self.at(self.start + self.random.random() * FLUSH_S, sidecar, 0)
        while self.queue:
            event = heapq.heappop(self.queue)
            self.clock.seconds = event.at
            if event.where is not None:
                await self.attempt(event, event.where)
            elif event.at < self.start + seconds:
                await self.sidecars[event.sidecar].flush()
                self.at(event.at + FLUSH_S, event.sidecar, 0)
        return self.outcome

    async def attempt(self, event: Event, where: AttemptOrigin) -> None:
        budgets = self.sidecars[event.sidecar]
        elapsed = event.at - self.start
        counted = elapsed >= WARM_S
        if event.tries == 1:
            budgets.count_first_attempt(where)
            self.outcome.calls += counted
        self.outcome.attempts += counted
        failed = self.random.random() < self.fails(elapsed)
        self.clock.seconds += ANSWERS_AFTER_S
        budgets.count_result(where.provider, where.group, well=not failed)
        if event.grant is not None:
            budgets.failed(event.grant) if failed else budgets.succeeded(event.grant)
        self.outcome.succeeded += counted and not failed
        if failed and event.tries < TRIES_MAX:
            failure_class = self.random.choice(CLASSES)
            answer = await budgets.acquire(ask(where, cost=self.cost, failure_class=failure_class))
            if isinstance(answer, Grant):
                wait = self.random.random() * 0.1 * 2 ** (event.tries - 1)
                self.at(event.at + ANSWERS_AFTER_S + wait, event.sidecar, event.tries + 1, where, answer)


def after_the_warm_up(rate: float) -> Callable[[float], float]:
    return lambda elapsed: rate if elapsed >= WARM_S else 0.0


@pytest.mark.parametrize("cost", [1, 2, 4])
@pytest.mark.parametrize("accounts", [1, 10])
@pytest.mark.parametrize(("sidecars", "calls_per_s"), [(1, 20), (10, 20), (500, 20), (50, 200)])
def test_in_a_hard_outage_there_are_at_most_110_attempts_for_100_calls(
    sidecars: int, calls_per_s: float, cost: int, accounts: int
) -> None:
    fleet = Fleet(sidecars, calls_per_s, cost, 7, after_the_warm_up(1.0), accounts=accounts)
    assert asyncio.run(fleet.run(WARM_S + 10)).attempts_per_call <= 1.10


@pytest.mark.parametrize("cost", [1, 2, 4])
@pytest.mark.parametrize("accounts", [1, 10])
@pytest.mark.parametrize("sidecars", [1, 10, 500])
def test_in_a_hard_outage_one_call_a_second_becomes_at_most_one_and_a_half(
    sidecars: int, cost: int, accounts: int
) -> None:
    fleet = Fleet(sidecars, 1, cost, 7, after_the_warm_up(1.0), accounts=accounts)
    assert asyncio.run(fleet.run(WARM_S + 60)).attempts_per_call <= 1.5


@pytest.mark.parametrize("sidecars", [1, 10, 500])
def test_at_one_call_a_second_every_lost_response_is_retried(sidecars: int) -> None:
    """A fifth of them is lost. Three attempts without any budget give 99.2%."""
    fleet = Fleet(sidecars, 1, 4, 1, after_the_warm_up(0.2))
    assert asyncio.run(fleet.run(WARM_S + 300)).goodput >= 0.99


def test_an_outage_after_a_bad_while_is_noticed() -> None:
    """The ratio is high, for retries helped; then nothing helps any more."""
    fleet = Fleet(10, 20, 2, 3, lambda elapsed: 0.4 if elapsed < WARM_S else 1.0)
    assert asyncio.run(fleet.run(WARM_S + 30)).attempts_per_call <= 1.10


@pytest.mark.parametrize(("sidecars", "calls_per_s", "seconds"), [(1, 20, 300), (10, 20, 300), (50, 200, 60)])
def test_with_a_quarter_of_random_failures_as_good_as_all_calls_succeed(
    sidecars: int, calls_per_s: float, seconds: float
) -> None:
    """Three tries without any budget give 98.4%."""
    fleet = Fleet(sidecars, calls_per_s, 2, 1, after_the_warm_up(0.25))
    assert asyncio.run(fleet.run(WARM_S + seconds)).goodput >= 0.98
