"""What every store of retry budgets does: one suite over the local ones and the fleet's on a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from paywitness.core.budget import AttemptOrigin, BudgetRules, BudgetScope, ScopeRule
from paywitness.core.call import Priority
from paywitness.core.circuit import CallGroup
from paywitness.core.result import ResultClass
from paywitness.limits.budgets import BudgetRefusal, Budgets, Grant
from tests.limits.redis_server import RedisServer
from tests.limits.world import HandClock, ask, grants, local_budgets, only, origin, redis_budgets


def every_scope(rule: ScopeRule) -> BudgetRules:
    return BudgetRules(provider=rule, operation=rule, account=rule, failure_class=rule)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=["local", "redis"])
async def budgets(
    request: pytest.FixtureRequest, clock: HandClock, redis_server: RedisServer
) -> AsyncIterator[Budgets]:
    if request.param == "local":
        yield local_budgets(clock)
        return
    fleet, scripts = redis_budgets(redis_server.url, clock)
    yield fleet
    await scripts.close()


async def test_the_floors_of_a_quiet_provider(budgets: Budgets) -> None:
    for scope, granted in (("provider", 100), ("operation", 50), ("account", 30), ("failure_class", 50)):
        rules = only(**{scope: getattr(BudgetRules(), scope)})
        assert len(await grants(budgets, ask(origin(provider=scope, rules=rules)))) == granted


async def test_first_attempts_make_room_for_retries(budgets: Budgets) -> None:
    where = origin(rules=only(provider=ScopeRule(10)))
    for _ in range(1_000):
        budgets.count_first_attempt(where)
    assert len(await grants(budgets, ask(where))) == 50


async def test_a_callers_own_repeats_are_spent_and_are_no_first_attempts(budgets: Budgets) -> None:
    where = origin(rules=only(provider=ScopeRule(10)))
    for _ in range(1_000):
        budgets.count_caller_retry(where, 1)
    assert await grants(budgets, ask(where)) == []
    other = origin(provider="other", rules=only(provider=ScopeRule(10)))
    budgets.count_caller_retry(other, 4)
    assert len(await grants(budgets, ask(other))) == 6


async def test_a_refusal_tells_scope_wait_and_what_is_left(budgets: Budgets, clock: HandClock) -> None:
    where = origin(rules=only(account=ScopeRule(3)))
    await grants(budgets, ask(where))
    refused = await budgets.acquire(ask(where))
    assert isinstance(refused, BudgetRefusal)
    assert (refused.scope, refused.remaining, refused.because) == (BudgetScope.ACCOUNT, 0, "budget_exhausted")
    clock.seconds += refused.wait_s - 0.02
    assert isinstance(await budgets.acquire(ask(where)), BudgetRefusal)
    clock.seconds += 0.03
    assert isinstance(await budgets.acquire(ask(where)), Grant)


async def test_what_one_scope_refuses_is_spent_in_none(budgets: Budgets) -> None:
    rules = only(provider=ScopeRule(10), account=ScopeRule(3))
    here, there = origin(account="a", rules=rules), origin(account="b", rules=rules)
    assert len(await grants(budgets, ask(here))) == 3
    for _ in range(50):
        assert isinstance(await budgets.acquire(ask(here)), BudgetRefusal)
    assert len(await grants(budgets, ask(there))) == 3
    assert budgets.remaining("acme")[BudgetScope.PROVIDER] == 4


async def test_scopes_are_told_apart_by_their_names(budgets: Budgets) -> None:
    rules = only(operation=ScopeRule(2), failure_class=ScopeRule(3))
    for operation, failure_class, granted in [
        ("charge", ResultClass.RATE_LIMITED, 2),
        ("refund", ResultClass.RATE_LIMITED, 1),
        ("refund", ResultClass.NETWORK_CONNECT_FAILURE, 1),
        ("payout", ResultClass.NETWORK_CONNECT_FAILURE, 2),
    ]:
        wanted = ask(origin(operation=operation, rules=rules), failure_class=failure_class)
        assert len(await grants(budgets, wanted)) == granted


async def test_inquiries_have_a_budget_of_their_own(budgets: Budgets) -> None:
    write = origin(rules=only(provider=ScopeRule(4)))
    inquiry = type(write)(write.provider, write.operation, write.account, write.rules, CallGroup.INQUIRY)
    assert len(await grants(budgets, ask(write))) == 4
    assert len(await grants(budgets, ask(inquiry))) == 4
    assert budgets.remaining("acme", CallGroup.INQUIRY)[BudgetScope.PROVIDER] == 0


async def test_priorities_have_their_shares(budgets: Budgets) -> None:
    where = origin(rules=only(provider=ScopeRule(10)))
    found = [len(await grants(budgets, ask(where, priority=priority))) for priority in reversed(Priority)]
    assert found == [5, 3, 2]


async def test_an_intent_has_three_retries_whatever_else_is_free(budgets: Budgets, clock: HandClock) -> None:
    where = origin(rules=only(per_intent=3))
    for _ in range(3):
        assert isinstance(await budgets.acquire(ask(where, intent="i")), Grant)
        clock.seconds += 60
    refused = await budgets.acquire(ask(where, intent="i"))
    assert isinstance(refused, BudgetRefusal)
    assert refused.scope is BudgetScope.INTENT
    assert refused.wait_s == pytest.approx(86_400 - 180)
    assert isinstance(await budgets.acquire(ask(where, intent="another")), Grant)
    clock.seconds += refused.wait_s
    assert len(await grants(budgets, ask(where, intent="i"))) == 3


async def test_a_grant_is_refunded_once(budgets: Budgets) -> None:
    where = origin(rules=only(provider=ScopeRule(10), per_intent=3))
    wanted = ask(where, cost=2, intent="i")
    first, *_ = await grants(budgets, wanted)
    for _ in range(5):
        await budgets.refund(first)
    assert len(await grants(budgets, wanted)) == 1  # the intent got one of its three back, and no more
    assert len(await grants(budgets, ask(where, cost=2))) == 7


async def test_a_grant_whose_result_is_known_is_not_refunded(budgets: Budgets) -> None:
    where = origin(rules=only(provider=ScopeRule(2)))
    sent, failed = await grants(budgets, ask(where))
    budgets.succeeded(sent)
    budgets.failed(failed)
    await budgets.refund(sent)
    await budgets.refund(failed)
    assert await grants(budgets, ask(where)) == []


async def test_retries_that_help_make_room_and_those_that_do_not_take_it_at_once(
    budgets: Budgets, clock: HandClock
) -> None:
    where = origin(rules=only(provider=ScopeRule(10)))
    granted = []
    for second in range(24):
        for _ in range(100):
            budgets.count_first_attempt(where)
        found = await grants(budgets, ask(where), at_most=40)
        for grant in found:
            budgets.succeeded(grant) if second < 12 else budgets.failed(grant)
        granted.append(len(found))
        clock.seconds += 1
    assert granted[0] <= 10
    assert granted[11] == 40  # all that are asked for are let through while they help
    assert sum(granted[15:]) < 20  # and as good as none once they do not


async def attempts(budgets: Budgets, clock: HandClock, where: AttemptOrigin, *, well: bool) -> None:
    """One retry, so that all its scopes begin; then four seconds of first attempts, and how they fared."""
    await budgets.acquire(ask(where))
    for _ in range(40):
        budgets.count_first_attempt(where)
        budgets.count_result(where.provider, where.group, well=well)
        await budgets.flush()
        clock.seconds += 0.1


async def test_attempts_that_succeed_make_room_before_any_retry_was_made(budgets: Budgets, clock: HandClock) -> None:
    where = origin(rules=every_scope(ScopeRule(2)))
    assert len(await grants(budgets, ask(where, cost=4))) == 2
    await attempts(budgets, clock, where, well=True)
    assert len(await grants(budgets, ask(where, cost=4))) > 20


async def test_attempts_that_fail_take_it_before_any_retry_was_made(budgets: Budgets, clock: HandClock) -> None:
    where = origin()
    await attempts(budgets, clock, where, well=True)
    await attempts(budgets, clock, where, well=False)
    assert len(await grants(budgets, ask(where, cost=4))) <= 1


async def test_what_a_trusted_retry_cost_is_what_is_given_back(budgets: Budgets, clock: HandClock) -> None:
    where = origin(rules=every_scope(ScopeRule(1)))
    await attempts(budgets, clock, where, well=True)
    grant = await budgets.acquire(ask(where, cost=4))
    assert isinstance(grant, Grant)
    assert grant.cost < 4
    left = budgets.remaining(where.provider)
    await budgets.refund(grant)
    await budgets.flush()
    assert budgets.remaining(where.provider) == {scope: room + grant.cost for scope, room in left.items()}


async def test_a_result_of_a_provider_that_nothing_was_sent_to_is_not_counted(budgets: Budgets) -> None:
    budgets.count_result("nobody", CallGroup.WRITE, well=True)
    await budgets.flush()
    assert budgets.remaining("nobody") == {}


async def test_a_flush_tells_everything_and_what_remains(budgets: Budgets, clock: HandClock) -> None:
    where = origin(rules=BudgetRules())
    assert budgets.remaining("acme") == {}
    for _ in range(4_000):
        budgets.count_first_attempt(where)
    await budgets.flush()
    assert budgets.remaining("acme") == dict.fromkeys(
        (BudgetScope.PROVIDER, BudgetScope.OPERATION, BudgetScope.ACCOUNT), 200
    )
    await budgets.acquire(ask(where, cost=4))
    assert set(budgets.remaining("acme").values()) == {199}
    clock.seconds += 100
    assert budgets.remaining("acme")[BudgetScope.PROVIDER] == 100


async def test_many_accounts_are_flushed_in_several_calls(budgets: Budgets) -> None:
    rules = BudgetRules(provider=ScopeRule(10), operation=ScopeRule(10))
    for number in range(700):
        budgets.count_first_attempt(origin(account=f"account {number} {{}} \n", rules=rules))
    await budgets.flush()
    assert budgets.remaining("acme")[BudgetScope.PROVIDER] == 35
    assert budgets.remaining("acme")[BudgetScope.OPERATION] == 35


class _Ticking(HandClock):
    def __init__(self, moved: HandClock) -> None:
        super().__init__()
        self._moved = moved

    async def sleep(self, seconds: float) -> None:
        self._moved.seconds += seconds
        await asyncio.sleep(0.001)
