"""A clock moved by hand, and budgets over it: local, and a fleet's on a real Redis that is told the same time."""

from __future__ import annotations

from paywitness.core.budget import AttemptOrigin, BudgetRules, RetryRequest, ScopeRule
from paywitness.core.call import Priority
from paywitness.core.result import ResultClass
from paywitness.limits.budgets import Budgets, Grant, LocalBudgets
from paywitness.limits.redis_budgets import RedisBudgets
from paywitness.limits.redis_scripts import RedisScriptRunner
from paywitness.redis.url import parse_limits_url
from tests.randomness import own_randomness

WIDE = ScopeRule(1e9)


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def now(self) -> float:
        return self.seconds

    def mono(self) -> float:
        return self.seconds

    def boot(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def local_budgets(clock: HandClock) -> LocalBudgets:
    return LocalBudgets(clock, own_randomness())


def redis_budgets(
    url: str, clock: HandClock, *, timeout_s: float = 5.0, peers: int | None = 1
) -> tuple[RedisBudgets, RedisScriptRunner]:
    """With a timeout for busy machines: one that timed out would be counted twice, which is safe and no test's wish."""
    scripts = RedisScriptRunner.open(parse_limits_url(url), clock, own_randomness(), timeout_s)
    return sharing(scripts, clock, peers=peers), scripts


def sharing(scripts: RedisScriptRunner, clock: HandClock, *, peers: int | None = 1) -> RedisBudgets:
    """The budgets of one more sidecar, over the same connection."""
    moved = lambda: int(clock.mono() * 1000)  # noqa: E731  # the server's TIME, moved with everything else
    known_peers = {"acme": peers} if peers is not None else {}
    return RedisBudgets(scripts, clock, own_randomness(), "paywitness", known_peers, server_time_ms=moved)


def origin(
    *, operation: str = "charge", account: str = "main", provider: str = "acme", rules: BudgetRules | None = None
) -> AttemptOrigin:
    return AttemptOrigin(provider, operation, account, rules or BudgetRules())


def only(**tight: ScopeRule | int) -> BudgetRules:
    """Every scope wide but those given."""
    wide: dict[str, object] = dict.fromkeys(("provider", "operation", "account", "failure_class"), WIDE)
    return BudgetRules(**(wide | {"per_intent": 1_000_000} | tight))  # type: ignore[arg-type]


def ask(
    where: AttemptOrigin,
    *,
    cost: int = 1,
    intent: str | None = None,
    priority: Priority = Priority.HIGH,
    failure_class: ResultClass = ResultClass.NETWORK_CONNECT_FAILURE,
    repeatable: bool = True,
) -> RetryRequest:
    return RetryRequest(where, failure_class, cost, priority, intent, repeatable)


async def grants(budgets: Budgets, wanted: RetryRequest, at_most: int = 1_000) -> list[Grant]:
    """Ask until one is refused."""
    found: list[Grant] = []
    while len(found) < at_most and isinstance(grant := await budgets.acquire(wanted), Grant):
        found.append(grant)
    return found
