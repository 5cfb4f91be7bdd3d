"""One run of chaos: payments at an even pace, mishaps one after the other, then calm, then the verdict."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.chaos.mishaps import Mishaps
from tests.chaos.report import Progress, late, met, report
from tests.chaos.shop import FAULTS, READ_FAULTS, READS_FAULTY, Shop, session_of_the_shop
from tests.chaos.verdict import Verdict, verdict_of
from tests.chaos.world import World, world_of
from tests.e2e.judge import all_at_rest

KILLS = ("kill", "kill_at_step")
SECONDS_A_KILL = 30.0  # more than any takes: a bound on the whole
CALM_S = 120.0  # the longest wait for an end: what must settle first, and a schedule that was just missed


@dataclass(frozen=True)
class Plan:
    """How long, how often, how much. It ends when the seconds are over and the kills are made."""

    journal: str = "redis"
    contract: str = "replayed"
    seconds: float = 60.0
    kills: int = 0
    redis_kills: int = 0
    calls_a_second: float = 20.0
    seed: int = 1
    only: tuple[str, ...] = ()  # these mishaps; none named: all
    faults: tuple[str, ...] = FAULTS
    reads_faulty: float = READS_FAULTY  # of all inquiries
    calm_s: float = CALM_S


@dataclass(frozen=True)
class Outcome:
    plan: Plan
    mishaps: Mishaps
    payments: int
    verdict: Verdict
    report: str
    faults: Counter[str] = field(default_factory=Counter)  # how often each was met

    @property
    def broken(self) -> list[str]:
        return self.verdict.broken + late(self.mishaps.happened)


async def wreak(plan: Plan, folder: Path) -> Outcome:
    with world_of(folder, plan.journal, plan.contract) as world:
        async with session_of_the_shop() as session:
            dice = Random(plan.seed)
            shop = Shop(world, session, Random(plan.seed + 1), plan.calls_a_second, plan.faults)
            mishaps = Mishaps(world, shop, dice)
            progress = Progress(shop, mishaps)
            chances = {fault: plan.reads_faulty / len(READ_FAULTS) for fault in READ_FAULTS}
            await asyncio.to_thread(world.provider.weather, seed=plan.seed, read_faults=chances)
            paying = asyncio.ensure_future(shop.run())
            try:
                await _wreak(plan, mishaps, progress)
                await asyncio.to_thread(world.provider.weather)
                shop.closed, shop.gives_up_mono = True, time.monotonic() + plan.calm_s
                while not paying.done():
                    await asyncio.wait([paying], timeout=1.0)
                    progress.show()
                await paying
            finally:
                paying.cancel()
                await asyncio.wait([paying])
            return await asyncio.to_thread(_judged, plan, world, shop, mishaps)


async def _wreak(plan: Plan, mishaps: Mishaps, progress: Progress) -> None:
    until_mono = time.monotonic() + plan.seconds
    at_most_mono = until_mono + (1 + plan.kills + plan.redis_kills) * SECONDS_A_KILL
    ahead: list[str] = []
    while (owed := _owed(plan, mishaps)) or time.monotonic() < until_mono:
        now_mono = time.monotonic()
        assert now_mono < at_most_mono, "the kills were not made within any reasonable time"
        if not ahead:
            ahead = _round(plan, mishaps)
        kind = ahead.pop()
        if now_mono > until_mono and kind not in owed:
            ahead = []
            kind = mishaps.dice.choice(sorted(owed))
        progress.show(await mishaps.happen(kind))


def _round(plan: Plan, mishaps: Mishaps) -> list[str]:
    kinds = {kind: times for kind, times in mishaps.kinds().items() if not plan.only or kind in plan.only}
    assert kinds, f"none of {', '.join(plan.only)} can happen here: {', '.join(mishaps.kinds())}"
    listed = [kind for kind, times in kinds.items() for _ in range(times)]
    mishaps.dice.shuffle(listed)
    return listed


def _owed(plan: Plan, mishaps: Mishaps) -> set[str]:
    owed = set(KILLS) if mishaps.count(*KILLS) < plan.kills else set()
    redis = mishaps.world.redis is not None and mishaps.count("kill_redis") < plan.redis_kills
    return owed | ({"kill_redis"} if redis else set())


def _judged(plan: Plan, world: World, shop: Shop, mishaps: Mishaps) -> Outcome:
    one = world.sidecars[0]
    until_mono = time.monotonic() + plan.calm_s
    while not all_at_rest(one) and time.monotonic() < until_mono:
        time.sleep(0.2)
    operations = one.operations()
    verdict = verdict_of(shop.payments, operations, world.provider)
    faults = met(world.provider.arrivals())
    told = report(world, shop, mishaps, verdict, len(operations), faults)
    return Outcome(plan, mishaps, len(shop.payments), verdict, told, faults)
