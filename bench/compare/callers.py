"""The shop: an order is placed at its time, whatever became of the others, and its job pays it.

A job makes up to `JOB_RUNS` runs. It runs again, a moment later, whenever it was not told "paid" or "declined": so do
queues, and people. What it says of the order at its end is what all its runs together know.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.compare.clients import Heard, Runs, together
from paywitness.demo.score import ReportedOutcome

JOB_RUNS = 2
JOB_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Order:
    """One payment as its shop saw it. Times are wall time, as the sandbox's."""

    name: str
    number: int
    placed_at: float
    run_at: tuple[float, ...]
    first_told: ReportedOutcome  # by the first run
    told: ReportedOutcome
    told_at: float


@dataclass(slots=True)
class Shop:
    """All orders of one lane."""

    client: Runs
    urls: Sequence[str]  # of the sidecars; of the provider, as each pod reaches it, where there are none
    scenario: str
    late_s: list[float] = field(default_factory=list)  # how late each order was placed: the callers' own fault
    orders: list[Order] = field(default_factory=list)

    async def pay_all(self, times_s: Sequence[float], start_mono: float) -> None:
        async with asyncio.TaskGroup() as group:
            for number, at_s in enumerate(times_s):
                await asyncio.sleep(max(start_mono + at_s - time.monotonic(), 0.0))
                self.late_s.append(time.monotonic() - start_mono - at_s)
                group.create_task(self._pay(number), name="an order")

    async def _pay(self, number: int) -> None:
        name = f"{self.scenario}-{number:05d}"
        placed_at = time.time()
        run_at: list[float] = []
        heard: list[Heard] = []
        for run in range(JOB_RUNS):
            if run:
                await asyncio.sleep(JOB_PAUSE_S)
            run_at.append(time.time())
            heard.append(await self._run(name, number + run))
            if heard[-1].told in (ReportedOutcome.PAID, ReportedOutcome.DECLINED):
                break
        told = together(heard).told
        self.orders.append(Order(name, number, placed_at, tuple(run_at), heard[0].told, told, time.time()))

    async def _run(self, name: str, turn: int) -> Heard:
        return await self.client.run(name, self.urls[turn % len(self.urls)])
