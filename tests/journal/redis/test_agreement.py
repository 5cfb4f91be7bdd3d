"""The same calls in any order get the same answers from Redis as from the simplest store, and leave the same behind."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from paywitness.core.errors import IllegalTransition, StaleWrite
from paywitness.core.money import Money
from paywitness.core.operation import Operation, RepeatPaymentRule, State
from paywitness.journal.base import Journal, OperationChange, OperationQuery
from paywitness.journal.redis.journal import RedisJournal
from tests.journal.memory import MemoryJournal
from tests.journal.samples import (
    FINGERPRINT,
    LEASE_S,
    TARGET,
    HandClock,
    acting,
    asking,
    declining,
    doubting,
    falling_back,
    intent,
    pending,
    resending,
    reversing,
    succeeding,
    telling,
    touching,
    unheard,
    waiting,
)

STEPS = 120
GUARDS = (None, None, intent(), intent("intent-2", after_success=RepeatPaymentRule.BLOCK), TARGET, FINGERPRINT)
CHANGES: tuple[Callable[[Operation], OperationChange], ...] = (
    *(succeeding, succeeding, declining, doubting, waiting, touching, acting, pending, reversing),
    lambda operation: declining(operation, released=True),
    lambda operation: unheard(succeeding(operation)),
    lambda operation: telling(operation, succeeding(operation, accepted_credential=True, sealed_credential=b"kept")),
    lambda operation: telling(operation, doubting(operation)),
    lambda operation: resending(operation, "resolver"),
    lambda operation: touching(operation.changed(incident="two_references")),
    lambda operation: touching(operation.changed(incident=None)),
    lambda operation: touching(operation.changed(due_at=operation.updated_at + 5)),
    lambda operation: touching(operation.changed(lease=None)),
)


class Both:
    """A call is made of both; both must answer alike, or refuse alike."""

    def __init__(self, random: Random, one: Journal, other: Journal, clock: HandClock) -> None:
        self.random = random
        self.one = one
        self.other = other
        self.clock = clock
        self.known: list[Operation] = []
        self._tokens = (f"taker-{number}" for number in itertools.count())

    async def answer(self, call: Callable[[Journal], Awaitable[Any]]) -> Any:
        answers = []
        for journal in (self.one, self.other):
            try:
                answers.append(await call(journal))
            except (StaleWrite, IllegalTransition) as error:
                answers.append(type(error))
        assert answers[0] == answers[1]
        self._remember(answers[0])
        return answers[0]

    def _remember(self, answer: Any) -> None:
        if isinstance(answer, Operation):
            self.known.append(answer)
        elif isinstance(answer, tuple):
            for each in answer:
                self._remember(each)
        elif getattr(answer, "operation", None) is not None:
            self.known.append(answer.operation)

    def any_known(self) -> Operation:
        return self.random.choice(self.known[-25:])

    async def step(self) -> None:
        steps = [self.claim] * 8 + [self.record] * 8
        steps += [self.fall_back, self.take_due, self.expire, self.renew, self.retire, self.move_time]
        steps += [self.hasten]
        await self.random.choice(steps)()

    async def claim(self) -> None:
        random = self.random
        request = asking(
            f"key-{random.randrange(6)}",
            token=random.choice(["", "", "same"]),
            permitted=random.random() < 0.9,
            guard=random.choice(GUARDS),
            fingerprint=random.choice(["one", "one", "one", "two"]),
            key_names_purchase=random.random() < 0.3,
            credential=random.choice(["credential-1", "credential-2"]),
            provider=random.choice(["acme", "other"]),
            distinct=random.choice(["", "", "", "meant"]),
            money=random.choice([None, Money(100, "EUR"), Money(7, "JPY")]),
        )
        await self.answer(lambda journal: journal.claim(request))
        if random.random() < 0.3:
            await self.answer(lambda journal: journal.claim(request))

    async def record(self) -> None:
        if not self.known:
            return
        try:
            change = self.random.choice(CHANGES)(self.any_known())
        except IllegalTransition:
            return
        await self.answer(lambda journal: journal.record(change))

    async def fall_back(self) -> None:
        open_ones = [operation for operation in self.known[-10:] if operation.state is State.SENDING]
        if open_ones:
            change, request = falling_back(open_ones[-1], f"fallback-{self.random.randrange(3)}")
            await self.answer(lambda journal: journal.fall_back(change, request))

    async def take_due(self) -> None:
        token, limit = next(self._tokens), self.random.randrange(1, 5)
        full = frozenset(self.random.choice([(), ("acme",)]))
        await self.answer(lambda journal: journal.take_due(token, LEASE_S, limit=limit, full=full))

    async def hasten(self) -> None:
        provider, limit = self.random.choice(["acme", "other"]), self.random.randrange(1, 5)
        await self.answer(lambda journal: journal.expedite(provider, within_s=2.5, limit=limit))

    async def expire(self) -> None:
        await self.answer(lambda journal: journal.expire_leases())

    async def renew(self) -> None:
        held = {operation.id: operation.lease.token for operation in self.known[-20:] if operation.lease is not None}
        await self.answer(lambda journal: journal.renew(tuple(held), held, LEASE_S))

    async def retire(self) -> None:
        await self.answer(lambda journal: journal.retire(retention_s=200, tombstone_s=300, limit=1000))

    async def move_time(self) -> None:
        self.clock.move(self.random.choice([0.5, 5, LEASE_S, 61, 250, -3]))

    async def compare(self) -> None:
        """What is left behind."""
        operations = await self.answer(lambda journal: journal.find_operations(OperationQuery(limit=500)))
        for operation in operations:
            for name in ("history", "sealed", "read"):
                await self.answer(_asking(name, operation.id))
        for listing in (
            *(OperationQuery(states=frozenset({state}), limit=500) for state in State),
            *(OperationQuery(key=f"{side}-key-{number}") for number in range(6) for side in ("client", "provider")),
            *(OperationQuery(guard=guard.value) for guard in GUARDS if guard is not None),
            *(OperationQuery(stamp=operation.stamp) for operation in operations[:5]),
            OperationQuery(incidents_only=True),
            OperationQuery(subject="order of intent-1", limit=3),
            OperationQuery(money=Money(7, "JPY"), provider="other"),
        ):
            await self.answer(_asking("find_operations", listing))
        assert set(await self.one.doubt_counts()) == set(await self.other.doubt_counts())
        assert await self.one.newest_credentials("account-1", 9) == await self.other.newest_credentials("account-1", 9)
        told = [await journal.announcements(0, limit=10_000) for journal in (self.one, self.other)]
        bare = [[replace(row, seq=0) for row in rows] for rows in told]
        assert bare[0] == bare[1]


def _asking(name: str, argument: object) -> Callable[[Journal], Awaitable[Any]]:
    return lambda journal: getattr(journal, name)(argument)


@pytest.mark.parametrize("seed", range(25))
async def test_redis_agrees_with_memory(seed: int, redis_url: str, clock: HandClock) -> None:
    redis = await RedisJournal.open(redis_url, clock=clock, call_timeout_s=10)
    both = Both(Random(seed), MemoryJournal(clock=clock), redis, clock)
    try:
        for _ in range(STEPS):
            await both.step()
        await both.compare()
    finally:
        await redis.close()
