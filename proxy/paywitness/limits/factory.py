"""Which limits a sidecar has: its own, or its fleet's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from paywitness.clock import Clock
from paywitness.limits.admission import Admission
from paywitness.limits.budgets import Budgets, KnownPeers, LocalBudgets, budget_listener
from paywitness.limits.circuits import Circuits, CurrentRules, LocalCircuits
from paywitness.option_defaults import LOCAL
from paywitness.randomness import Randomness
from paywitness.redis.url import parse_limits_url


async def _nothing_to_close() -> None:
    return


@dataclass(frozen=True, slots=True)
class Limits:
    circuits: Circuits
    budgets: Budgets
    admission: Admission  # a sidecar's own, always: a bound on calls in flight cannot wait for a store
    close: Callable[[], Awaitable[None]] = _nothing_to_close


LimitsFactory = Callable[[CurrentRules, Clock, Randomness], Limits]


def local_limits(current_rules: CurrentRules, clock: Clock, chance: Randomness) -> Limits:
    budgets = LocalBudgets(clock, chance)
    return Limits(
        LocalCircuits(current_rules, clock, chance, budget_listener(budgets)), budgets, Admission(clock, chance)
    )


def limits_factory(url: str) -> LimitsFactory:
    """The limits of a `--limits` setting. Raises SettingsError for an unusable URL. Connects at first use."""
    if url == LOCAL:
        return local_limits
    from paywitness.limits.redis_budgets import RedisBudgets  # takes 0.1 s, which only a fleet's sidecars pay
    from paywitness.limits.redis_circuits import RedisCircuits
    from paywitness.limits.redis_scripts import RedisScriptRunner

    target = parse_limits_url(url)

    def shared(current_rules: CurrentRules, clock: Clock, chance: Randomness) -> Limits:
        scripts = RedisScriptRunner.open(target, clock, chance)
        known_peers: KnownPeers = {}
        budgets = RedisBudgets(scripts, clock, chance, target.prefix, known_peers)
        return Limits(
            RedisCircuits(scripts, target.prefix, current_rules, clock, chance, known_peers, budget_listener(budgets)),
            budgets,
            Admission(clock, chance),
            scripts.close,
        )

    return shared
