"""What one part of a sidecar's limits tells another."""

from __future__ import annotations

import functools

import pytest

from paywitness.core.budget import ScopeRule
from paywitness.core.circuit import CircuitRules
from paywitness.core.provider_health import Health, HealthSample
from paywitness.limits.factory import limits_factory
from paywitness.limits.redis_scripts import RedisScriptRunner
from paywitness.option_defaults import LOCAL
from tests.limits.redis_server import RedisServer
from tests.limits.world import HandClock, ask, grants, only, origin
from tests.randomness import SeededRandomness


@pytest.mark.parametrize("store", ["local", "redis"])
@pytest.mark.parametrize("health", [Health.OK, Health.BAD])
async def test_what_an_attempt_shows_the_circuits_the_budgets_know_as_well(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, store: str, health: Health
) -> None:
    # With a timeout for busy machines, and few round trips: what is known halves in half a second of the server's time.
    patient = functools.partial(RedisScriptRunner.open, timeout_s=5.0)
    monkeypatch.setattr(RedisScriptRunner, "open", patient)
    limits = limits_factory(LOCAL if store == "local" else redis_server.url)(
        lambda: {"acme": CircuitRules()}, HandClock(), SeededRandomness(1)
    )
    where = origin(rules=only(provider=ScopeRule(10, ratio=0.5)))
    for _ in range(1_000):
        limits.budgets.count_first_attempt(where)
    for _ in range(100):
        limits.circuits.add_sample("acme", where.group, HealthSample(health))
        limits.circuits.add_sample("acme", where.group, None)
    granted = len(await grants(limits.budgets, ask(where), at_most=60))
    await limits.close()
    assert (granted <= 50) is (health is Health.BAD)  # 5% of a thousand first attempts, not the policy's half


async def test_a_timeout_weighs_more_than_another_failure() -> None:
    """Of ten attempts five failed: by errors that is still worth a retry, by timeouts it is not."""
    left = {}
    for late in (False, True):
        limits = limits_factory(LOCAL)(lambda: {"acme": CircuitRules()}, HandClock(), SeededRandomness(1))
        where = origin(rules=only(provider=ScopeRule(10, ratio=0.5)))
        for _ in range(1_000):
            limits.budgets.count_first_attempt(where)
        for number in range(100):
            health = Health.UNKNOWN if number % 10 < 5 else Health.OK
            limits.circuits.add_sample(
                "acme", where.group, HealthSample(health, overload=late and health is not Health.OK)
            )
        left[late] = len(await grants(limits.budgets, ask(where)))
    assert left[False] >= 500
    assert left[True] < 500 * 0.9
