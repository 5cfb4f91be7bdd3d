"""The system's clocks are the right ones, on the scale their users rely on."""

import asyncio
import time

import pytest
import uvloop

from paywitness.clock import Clock, SystemClock


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


def test_now_is_wall_time_since_the_epoch(clock):
    before = time.time()
    assert before <= clock.now() <= time.time()


def test_boot_counts_suspension_and_so_is_never_behind_mono(clock):
    mono = clock.mono()
    assert clock.boot() >= mono


@pytest.mark.parametrize("reading", ["mono", "boot"])
def test_monotonic_readings_never_go_back(clock, reading):
    readings = [getattr(clock, reading)() for _ in range(1000)]
    assert readings == sorted(readings)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_mono_is_on_the_scale_of_the_event_loop(clock, new_loop):
    async def difference_s():
        await asyncio.sleep(0)
        return abs(asyncio.get_running_loop().time() - clock.mono())

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(difference_s()) < 1.0


async def test_a_sleep_lasts_at_least_as_long_as_asked(clock):
    before = clock.mono()
    await clock.sleep(0.02)
    assert clock.mono() - before >= 0.019  # a loop may fire within its own resolution of the time asked


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_sleep_of_nothing_lets_others_run_and_returns(clock, seconds):
    others: list[str] = []
    asyncio.get_running_loop().call_soon(others.append, "ran")
    await asyncio.wait_for(clock.sleep(seconds), timeout=5)
    assert others == ["ran"]
