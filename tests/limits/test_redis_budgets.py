"""What only a fleet's budgets do: races, the same arithmetic in Lua, many sidecars, Redis gone and back, a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from paywitness.clock import SystemClock
from paywitness.core.budget import (
    NO_BUDGET_COUNTS,
    AttemptOrigin,
    BudgetRules,
    BudgetScope,
    RetryRequest,
    ScopeRule,
    lines_of_retry,
)
from paywitness.core.call import Priority
from paywitness.core.circuit import CallGroup
from paywitness.core.result import ResultClass
from paywitness.limits.budgets import BudgetRefusal, Budgets, Grant, LocalBudgets
from paywitness.limits.redis_budgets import BUDGET, RedisBudgets
from tests.limits.redis_server import RedisServer
from tests.limits.world import HandClock, ask, grants, only, origin, redis_budgets, sharing
from tests.ports import free_port
from tests.randomness import SeededRandomness

A_BUSY_MACHINE_S = 5.0  # what should take a tenth of a second may take this long beside busy processes

# --- the same sequences, the same grants

STEPS = st.one_of(
    st.tuples(st.just("move"), st.integers(0, 30_000)),
    st.tuples(st.just("first"), st.integers(1, 200)),
    st.tuples(st.just("repeat"), st.sampled_from([1, 2, 4])),
    st.tuples(st.just("fared"), st.tuples(st.integers(0, 30), st.integers(0, 30))),
    st.tuples(st.just("flush"), st.just(0)),
    st.tuples(st.just("end"), st.integers(0, 2)),
    st.tuples(
        st.just("ask"),
        st.tuples(
            st.sampled_from(["charge", "refund"]),
            st.sampled_from(["a", "b"]),
            st.sampled_from([ResultClass.RATE_LIMITED, ResultClass.PROVIDER_TIMEOUT]),
            st.sampled_from([1, 2, 4]),
            st.sampled_from(list(Priority)),
            st.sampled_from([None, "i", "j"]),
            st.sampled_from(list(CallGroup)),
        ),
    ),
)
RULES = st.builds(
    BudgetRules,
    window_s=st.sampled_from([1.0, 10.0, 7.3]),
    provider=st.builds(ScopeRule, st.integers(0, 20), st.sampled_from([0.0, 0.05, 0.3]), st.sampled_from([0.3, 1.0])),
    account=st.builds(ScopeRule, st.integers(0, 20), st.sampled_from([0.0, 0.05, 0.3]), st.sampled_from([0.3, 2.0])),
    per_intent=st.integers(0, 5),
)


class Telling:
    """Tells budgets a sequence of happenings, and keeps what they answer."""

    def __init__(self, budgets: Budgets, clock: HandClock, rules: BudgetRules) -> None:
        self.budgets = budgets
        self.clock = clock
        self.rules = rules
        self.where = AttemptOrigin("acme", "charge", "a", rules)
        self.open: list[Grant] = []
        self.answers: list[object] = []

    async def tell(self, steps: list[tuple[str, Any]]) -> list[object]:
        for what, how in steps:
            await getattr(self, what)(how)
        return self.answers

    async def move(self, later_ms: int) -> None:
        self.clock.seconds = round(self.clock.seconds + later_ms / 1000, 3)

    async def first(self, count: int) -> None:
        for _ in range(count):
            self.budgets.count_first_attempt(self.where)

    async def repeat(self, cost: int) -> None:
        self.budgets.count_caller_retry(self.where, cost)

    async def fared(self, how: tuple[int, int]) -> None:
        for well, count in zip((True, False), how, strict=True):
            for _ in range(count):
                self.budgets.count_result("acme", CallGroup.WRITE, well=well)

    async def flush(self, _: int) -> None:
        await self.budgets.flush()

    async def end(self, kind: int) -> None:
        if not self.open:
            return
        grant = self.open.pop()
        if kind == 0:
            await self.budgets.refund(grant)
        else:
            self.budgets.succeeded(grant) if kind == 1 else self.budgets.failed(grant)

    async def ask(self, wanted: tuple[str, str, ResultClass, int, Priority, str | None, CallGroup]) -> None:
        operation, account, failure_class, cost, priority, intent, group = wanted
        where = AttemptOrigin("acme", operation, account, self.rules, group)
        answer = await self.budgets.acquire(RetryRequest(where, failure_class, cost, priority, intent))
        if isinstance(answer, Grant):
            self.open.append(answer)
            self.answers.append(("granted", answer.cost, answer.remaining))
        else:
            self.answers.append((answer.scope, answer.wait_s, answer.remaining))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rules=RULES, steps=st.lists(STEPS, max_size=40))
def test_local_and_redis_give_the_same_answers_to_the_same_sequence(
    redis_server: RedisServer, rules: BudgetRules, steps: list[tuple[str, Any]]
) -> None:
    async def compare() -> None:
        here, there = HandClock(), HandClock()
        fleet, scripts = redis_budgets(redis_server.url, there)
        try:
            local = await Telling(LocalBudgets(here, SeededRandomness(1)), here, rules).tell(steps)
            assert local == await Telling(fleet, there, rules).tell(steps)
            assert scripts.available
        finally:
            await scripts.close()

    redis_server.call("FLUSHALL")
    asyncio.run(compare())


# --- races


@pytest.mark.parametrize("cost", [1, 4])
async def test_ten_thousand_racing_requests_are_granted_exactly_the_budget(
    redis_server: RedisServer, cost: int
) -> None:
    """On the server's own clock, over twenty connections; the window is so wide that it does not turn meanwhile."""
    rules = BudgetRules(window_s=10**9, provider=ScopeRule(500), operation=ScopeRule(1_000), account=ScopeRule(1_000))
    rules = BudgetRules(rules.window_s, rules.provider, rules.operation, rules.account, ScopeRule(1_000))
    shapes, scripts = redis_budgets(redis_server.url, HandClock())
    shapes._server_time_ms = None
    wanted = ask(origin(rules=rules), cost=cost)
    lines = lines_of_retry(wanted)
    keys, arguments = shapes._script_arguments(
        ("acme", CallGroup.WRITE), lines, [NO_BUDGET_COUNTS] * len(lines), wanted
    )
    async with Redis.from_url(redis_server.url) as client:
        await client.script_load(BUDGET.text)

    async def race(count: int) -> list[list[object]]:
        async with Redis.from_url(redis_server.url, decode_responses=True) as own, own.pipeline(False) as pipeline:
            for _ in range(count):
                pipeline.evalsha(BUDGET.sha, len(keys), *keys, *map(str, arguments))
            return await pipeline.execute()

    replies = [reply for batch in await asyncio.gather(*(race(500) for _ in range(20))) for reply in batch]
    await scripts.close()
    assert len(replies) == 10_000
    assert sum(int(str(reply[0])) for reply in replies) == 500


# --- a fleet


async def test_sidecars_share_one_budget(redis_server: RedisServer) -> None:
    clock = HandClock()
    fleet = [redis_budgets(redis_server.url, clock) for _ in range(10)]
    where = origin(rules=only(provider=ScopeRule(10)))
    for budgets, _ in fleet:
        for _ in range(100):
            budgets.count_first_attempt(where)
        await budgets.flush()
    granted = [len(await grants(budgets, ask(where))) for budgets, _ in fleet]
    assert granted == [50, *[0] * 9]
    for _, scripts in fleet:
        await scripts.close()


@pytest.mark.parametrize(("calls_per_s", "most"), [(20, 0.10), (1, 0.5)])
@pytest.mark.parametrize("sidecars", [1, 10, 500])
async def test_in_a_hard_outage_a_fleet_on_redis_sends_hardly_more_than_its_first_attempts(
    redis_server: RedisServer, sidecars: int, calls_per_s: int, most: float
) -> None:
    clock = HandClock()
    first, scripts = redis_budgets(redis_server.url, clock)
    fleet = [first, *(sharing(scripts, clock) for _ in range(sidecars - 1))]
    where, retries, calls = origin(), 0, 0
    well, ill = 10 * calls_per_s, 30 * calls_per_s
    for tick in range(well + ill):
        clock.seconds += 1 / calls_per_s
        budgets = fleet[tick % sidecars]
        budgets.count_first_attempt(where)
        budgets.count_result("acme", CallGroup.WRITE, well=tick < well)
        if tick >= well:
            calls += 1
            answer = await budgets.acquire(ask(where))
            if isinstance(answer, Grant):
                assert answer.fleet
                retries += 1
                budgets.count_result("acme", CallGroup.WRITE, well=False)
                budgets.failed(answer)
        await budgets.flush()
    await scripts.close()
    assert 0 < retries <= calls * most


# --- Redis gone, and back


async def test_scripts_that_the_server_forgot_are_sent_again(redis_server: RedisServer) -> None:
    budgets, scripts = redis_budgets(redis_server.url, HandClock())
    where = origin(rules=only(provider=ScopeRule(10)))
    for _ in range(3):
        answers = await asyncio.gather(*(budgets.acquire(ask(where)) for _ in range(3)))
        assert all(isinstance(answer, Grant) and answer.fleet for answer in answers)
        redis_server.call("SCRIPT", "FLUSH", "SYNC")
    assert len(await grants(budgets, ask(where))) == 1
    await scripts.close()


@pytest.fixture
async def fleet_of_one(mortal_redis: RedisServer) -> AsyncIterator[tuple[RedisBudgets, HandClock]]:
    clock = HandClock()
    budgets, scripts = redis_budgets(mortal_redis.url, clock)
    yield budgets, clock
    await scripts.close()


async def test_without_redis_the_warm_local_budget_answers_within_the_timeout_and_redis_comes_back(
    mortal_redis: RedisServer, fleet_of_one: tuple[RedisBudgets, HandClock]
) -> None:
    budgets, clock = fleet_of_one
    where = origin(rules=only(provider=ScopeRule(10)))
    assert len(await grants(budgets, ask(where), at_most=4)) == 4
    mortal_redis.stop()
    time = SystemClock()
    for _ in range(3):
        before = time.mono()
        answer = await budgets.acquire(ask(where))
        assert time.mono() - before < A_BUSY_MACHINE_S  # the timeout is a tenth
        assert isinstance(answer, Grant)
        assert not answer.fleet
    assert len(await grants(budgets, ask(where))) == 3  # warm: four were spent before, three just now
    assert budgets.remaining("acme")[BudgetScope.PROVIDER] == 0
    before = time.mono()
    for _ in range(100):
        assert isinstance(await budgets.acquire(ask(where)), BudgetRefusal)
    assert time.mono() - before < A_BUSY_MACHINE_S  # ten, if each waited: nobody does for what is known to be gone

    mortal_redis.start()
    clock.seconds += 6  # the longest pause
    refused = await budgets.acquire(ask(where))
    assert isinstance(refused, Grant)  # an empty Redis: but it heard of the six
    assert refused.fleet
    assert len(await grants(budgets, ask(where))) == 3


async def test_what_was_granted_without_redis_is_told_to_it_when_it_is_back(
    mortal_redis: RedisServer, fleet_of_one: tuple[RedisBudgets, HandClock]
) -> None:
    budgets, clock = fleet_of_one
    where = origin(rules=only(provider=ScopeRule(10)))
    await budgets.acquire(ask(where))
    mortal_redis.stop()
    given = await grants(budgets, ask(where))
    assert len(given) == 9
    await budgets.refund(given[0])
    await budgets.refund(given[0])
    await budgets.flush()
    mortal_redis.start()
    clock.seconds += 6
    await budgets.flush()
    assert budgets.remaining("acme")[BudgetScope.PROVIDER] == pytest.approx(2)  # ten, less eight; it forgot the first


@pytest.mark.parametrize(("peers", "part"), [(1, 100), (5, 20), (500, 1), (None, 1)])
async def test_a_sidecar_that_lost_redis_has_its_part_of_the_floor(
    mortal_redis: RedisServer, peers: int | None, part: int
) -> None:
    """Ten a second divided by its peers, and one in ten seconds at least; who never heard of peers has the least."""
    budgets, scripts = redis_budgets(mortal_redis.url, HandClock(), peers=peers)
    mortal_redis.stop()
    where = origin(rules=only(provider=BudgetRules().provider))
    assert len(await grants(budgets, ask(where))) == part
    await scripts.close()


async def test_a_new_sidecar_knows_of_an_outage_before_its_first_retry(redis_server: RedisServer) -> None:
    clock = HandClock()
    (old, scripts), (new, other_scripts) = (redis_budgets(redis_server.url, clock) for _ in range(2))
    where = origin()
    old.count_first_attempt(where)
    for _ in range(5):
        old.count_result("acme", CallGroup.WRITE, well=False)
    await old.flush()
    granted = await grants(new, ask(where, cost=4))
    assert (len(granted), [grant.cost for grant in granted]) == (1, [4])
    await scripts.close()
    await other_scripts.close()


async def test_what_an_earlier_release_counted_of_an_intent_counts_on_and_its_tallies_are_left_alone(
    redis_server: RedisServer,
) -> None:
    clock = HandClock()
    budgets, scripts = redis_budgets(redis_server.url, clock)
    stem, day_later = "paywitness:budget:{acme}:tally:write", int(clock.mono() * 1000) + 86_400_000
    spent_twice = f"{day_later} 0 0 2 0 0 0 0 0 0 0"
    busy = f"{int(clock.mono()) // 10} 0 0 1000 1000 0 0 0 0.05 0 100"
    redis_server.call("SET", f"{stem}:intent:i", spent_twice)
    redis_server.call("SET", f"{stem}:provider:", busy)
    assert len(await grants(budgets, ask(origin(), intent="i"))) == 1
    assert redis_server.call("GET", f"{stem}:provider:") == busy
    await scripts.close()


async def test_without_redis_what_is_ambiguous_and_unkeyed_is_refused_and_what_is_keyed_gets_one(
    mortal_redis: RedisServer, fleet_of_one: tuple[RedisBudgets, HandClock]
) -> None:
    budgets, _ = fleet_of_one
    mortal_redis.stop()
    where = origin(rules=only(per_intent=3))
    refused = await budgets.acquire(ask(where, cost=4, repeatable=False))
    assert isinstance(refused, BudgetRefusal)
    assert refused.because == "limits_unavailable"
    assert isinstance(await budgets.acquire(ask(where, cost=1, repeatable=False)), Grant)
    assert len(await grants(budgets, ask(where, cost=4, intent="i"))) == 1
    assert len(await grants(budgets, ask(where, cost=1, intent="j"))) == 3


async def test_a_redis_that_hangs_is_given_up_after_the_timeout() -> None:
    heard: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: heard.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    budgets, scripts = redis_budgets(f"redis://127.0.0.1:{port}", HandClock(), timeout_s=0.05)
    time = SystemClock()
    before = time.mono()
    answer = await budgets.acquire(ask(origin()))
    assert time.mono() - before < A_BUSY_MACHINE_S
    assert isinstance(answer, Grant)
    assert not answer.fleet
    await scripts.close()
    silent.close()
    for writer in heard:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


# --- a cluster


async def test_budgets_run_on_a_redis_cluster(tmp_path: Path) -> None:
    """Every key of a call in one slot: a server in cluster mode refuses a script that spans slots."""
    options = ("--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-port", str(free_port()))
    server = RedisServer(tmp_path, *options)
    try:
        server.start()
        server.call("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        for _ in range(500):
            if "cluster_state:ok" in str(server.call("CLUSTER", "INFO")):
                break
            await asyncio.sleep(0.02)
        budgets, scripts = redis_budgets(f"redis+cluster://127.0.0.1:{server.port}", HandClock())
        for provider in ("acme", "stripe", "adyen"):
            where = origin(provider=provider, account="{tag}")
            budgets.count_first_attempt(where)
            await budgets.flush()
            found = [await budgets.acquire(ask(where, intent="i")) for _ in range(4)]
            assert [isinstance(answer, Grant) for answer in found] == [True, True, True, False]
            assert all(answer.fleet for answer in found)
        await scripts.close()
    finally:
        server.stop()
