"""A fleet of sidecars over one real Redis, in time that the test moves: the script's own text, its clock replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redis import Redis

from paywitness.core.circuit import CallGroup, CircuitRules
from paywitness.core.errors import StoreUnavailable
from paywitness.core.holds import EVERYONE
from paywitness.core.provider_health import Health, HealthSample
from paywitness.limits.budgets import KnownPeers
from paywitness.limits.circuits import CircuitChange, Circuits, LocalCircuits
from paywitness.limits.redis_circuits import RedisCircuits
from paywitness.limits.redis_scripts import Argument
from paywitness.redis.pipeline import LuaScript
from tests.randomness import own_randomness

START_S = 50_000.0
WELL = HealthSample(Health.OK)
BAD = HealthSample(Health.BAD)
UNKNOWN = HealthSample(Health.UNKNOWN)

_TIME = "redis.call('TIME')"
_MOVED_TIME = (
    "(function() local ms = tonumber(redis.call('GET', 'moved-time'))"
    " return {math.floor(ms / 1000), (ms % 1000) * 1000} end)()"
)


class MovedClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = START_S

    def now(self) -> float:
        return self.seconds + 1e9

    def mono(self) -> float:
        return self.seconds

    def boot(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += max(0.0, seconds)
        await asyncio.sleep(0)


def in_moved_time(script: LuaScript) -> LuaScript:
    assert script.text.count(_TIME) == 1
    return replace(script, text=script.text.replace(_TIME, _MOVED_TIME))


class MovedScriptRunner:
    """Runs scripts on a real Redis whose clock is the test's, some way off ours. `down`: it does not answer."""

    def __init__(self, client: Redis, clock: MovedClock, ahead_ms: int = 7_654_321) -> None:
        self._client = client
        self._clock = clock
        self._ahead_ms = ahead_ms
        self.down = False
        self.deaf = False  # it does what it is asked, and the answer is lost
        self.calls = 0

    @property
    def available(self) -> bool:
        return not self.down

    async def run(self, script: LuaScript, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        await asyncio.sleep(0)
        if self.down:
            raise StoreUnavailable("down")
        self.calls += 1
        self._client.set("moved-time", int(self._clock.seconds * 1000) + self._ahead_ms)
        answer = self._client.eval(in_moved_time(script).text, len(keys), *keys, *map(str, arguments))
        if self.deaf:
            raise StoreUnavailable("deaf")
        return answer


class Sidecars:
    """Any number of sidecars, one clock. Every half second each of them reports."""

    def __init__(self, clock: MovedClock, circuits: Sequence[Circuits]) -> None:
        self.clock = clock
        self.all = list(circuits)

    def __getitem__(self, number: int) -> Circuits:
        return self.all[number]

    async def sync(self) -> list[CircuitChange]:
        return [change for circuits in self.all for change in await circuits.sync()]

    async def pass_time(self, seconds: float) -> list[CircuitChange]:
        changes: list[CircuitChange] = []
        for _ in range(round(seconds / 0.5)):
            self.clock.seconds += 0.5
            changes += await self.sync()
        return changes

    def see(
        self,
        observation: HealthSample,
        times: int = 30,
        group: CallGroup = CallGroup.WRITE,
        who: Any = None,
        party: str = EVERYONE,
    ) -> None:
        for circuits in self.all if who is None else [self.all[number] for number in who]:
            for _ in range(times):
                circuits.add_sample("acme", group, observation, party)


RULES = {"acme": CircuitRules()}


def local(clock: MovedClock) -> LocalCircuits:
    return LocalCircuits(lambda: RULES, clock, own_randomness())


def shared(clock: MovedClock, scripts: Any, known_peers: KnownPeers | None = None) -> RedisCircuits:
    return RedisCircuits(
        scripts, "test", lambda: RULES, clock, own_randomness(), {} if known_peers is None else known_peers
    )
