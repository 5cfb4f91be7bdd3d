"""One timer for all who wait: each is passed once when its deadline has come, and nobody's is missed for another's."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from paywitness.clock import SystemClock
from paywitness.engine.calls.waiters import Deadlines

LONG_S = 60.0
SOON_S = 0.02


def waiting(for_s: float) -> Any:
    """All of a call context that is looked at here."""
    return SimpleNamespace(deadline_mono=time.monotonic() + for_s)


class Heard:
    """What was passed; `all_of` returns when that many were."""

    def __init__(self) -> None:
        self.passed: list[Any] = []
        self._enough = asyncio.Event()
        self._wanted = 0

    def __call__(self, context: Any) -> None:
        self.passed.append(context)
        if len(self.passed) >= self._wanted:
            self._enough.set()

    async def all_of(self, count: int) -> list[Any]:
        self._wanted = count
        if len(self.passed) < count:
            await asyncio.wait_for(self._enough.wait(), 5.0)
        return self.passed


async def test_one_that_comes_later_and_waits_less_is_passed_first() -> None:
    heard = Heard()
    deadlines = Deadlines(SystemClock(), heard)
    patient, second, first = waiting(LONG_S), waiting(1.0), waiting(SOON_S)  # apart also on a busy machine
    for context in (patient, second, first):
        deadlines.add(context)
    assert await heard.all_of(2) == [first, second]
    deadlines.remove(patient)


async def test_one_whose_deadline_has_come_already_is_passed_at_once() -> None:
    heard = Heard()
    late = waiting(-1.0)
    Deadlines(SystemClock(), heard).add(late)
    assert await heard.all_of(1) == [late]


async def test_one_that_was_answered_is_not_passed_and_leaves_the_timer_to_the_others() -> None:
    heard = Heard()
    deadlines = Deadlines(SystemClock(), heard)
    answered, other = waiting(SOON_S), waiting(2 * SOON_S)
    deadlines.add(answered)
    deadlines.add(other)
    deadlines.remove(answered)
    assert await heard.all_of(1) == [other]


async def test_after_everybody_was_answered_the_next_one_is_waited_for_anew() -> None:
    heard = Heard()
    deadlines = Deadlines(SystemClock(), heard)
    answered, next_one = waiting(SOON_S), waiting(2 * SOON_S)
    deadlines.add(answered)
    deadlines.remove(answered)
    deadlines.add(next_one)
    assert await heard.all_of(1) == [next_one]


async def test_a_fault_in_one_costs_no_other_its_answer() -> None:
    heard, broken, other = Heard(), waiting(SOON_S), waiting(SOON_S)
    told = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda *_: told.set())

    def passed(context: Any) -> None:
        if context is broken:
            raise RuntimeError("a fault of ours")
        heard(context)

    deadlines = Deadlines(SystemClock(), passed)
    deadlines.add(broken)
    deadlines.add(other)
    assert await heard.all_of(1) == [other]
    await asyncio.wait_for(told.wait(), 5.0)
