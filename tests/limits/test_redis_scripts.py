"""Scripts on Redis for limits: the small breaker around them, and how long somebody waits."""

from __future__ import annotations

import asyncio

import pytest

from paywitness.core.errors import StoreUnavailable
from paywitness.limits.redis_scripts import RedisScriptRunner, StoreBreaker
from paywitness.redis.pipeline import LuaScript
from paywitness.redis.url import parse_limits_url
from tests.limits.redis_server import RedisServer
from tests.limits.world import HandClock
from tests.ports import free_port
from tests.randomness import SeededRandomness

ECHO = LuaScript("echo", "return {KEYS[1], ARGV[1]}", "0" * 40)  # under a hash that no server knows


def opened(url: str, timeout_s: float = 5.0) -> RedisScriptRunner:
    return RedisScriptRunner.open(parse_limits_url(url), HandClock(), SeededRandomness(1), timeout_s)


def test_after_three_failures_nobody_asks_for_a_while_and_then_one_does() -> None:
    clock = HandClock()
    breaker = StoreBreaker(clock, SeededRandomness(1))
    for _ in range(3):
        assert breaker.allows
        breaker.call_started()
        breaker.failed("TimeoutError")
    seen = [breaker.allows]
    clock.seconds += 1.3
    seen.append(breaker.allows)
    breaker.call_started()
    seen.append(breaker.allows)  # one tries, the others go on without
    breaker.succeeded()
    assert [*seen, breaker.allows] == [False, True, False, True]


def test_the_pauses_grow_to_five_seconds_and_a_fifth() -> None:
    clock = HandClock()
    breaker = StoreBreaker(clock, SeededRandomness(1))
    for _ in range(3):
        breaker.failed("TimeoutError")
    pauses = []
    for _ in range(8):
        start = clock.seconds
        while not breaker.allows:
            clock.seconds += 0.05
        pauses.append(clock.seconds - start)
        breaker.call_started()
        breaker.failed("TimeoutError")
    assert 0.8 <= pauses[0] <= 1.25
    assert max(pauses) <= 6.05
    assert min(pauses[-3:]) >= 4.0


def test_failures_of_before_the_pause_do_not_lengthen_it() -> None:
    clock = HandClock()
    breaker = StoreBreaker(clock, SeededRandomness(1))
    for _ in range(64):
        breaker.failed("TimeoutError")
    clock.seconds += 1.3
    assert breaker.allows


def test_an_outage_is_told_when_it_begins_once_a_minute_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    breaker = StoreBreaker(clock, SeededRandomness(1))
    while clock.seconds < 1_150.0:
        if breaker.allows:
            breaker.failed("TimeoutError")
        clock.seconds += 1.0
    breaker.succeeded()
    began, one_minute, two_minutes, back = caplog.messages
    assert began == "the limits' Redis does not answer (TimeoutError): limits are local until it does"
    for said, seconds in ((one_minute, 60), (two_minutes, 120)):
        since = int(said.removeprefix("the limits' Redis does not answer for ").partition(" ")[0])
        assert seconds <= since < seconds + 10  # it is tried every five seconds
    assert back == "the limits' Redis answers again, after 148.0 s"


async def test_concurrent_calls_ride_together_and_each_gets_its_own_reply(redis_server: RedisServer) -> None:
    scripts = opened(redis_server.url)
    replies = await asyncio.gather(*(scripts.run(ECHO, [f"key:{n}"], [n]) for n in range(150)))
    assert replies == [[b"key:%d" % n, b"%d" % n] for n in range(150)]
    await scripts.close()


async def test_a_script_that_fails_is_a_store_that_is_unavailable(redis_server: RedisServer) -> None:
    scripts = opened(redis_server.url)
    broken = LuaScript("broken", "return redis.call('NOSUCH')", "1" * 40)
    asked = [scripts.run(ECHO, ["k"], ["v"]), scripts.run(broken, ["k"], [])]
    replies = await asyncio.gather(*asked, return_exceptions=True)
    assert replies[0] == [b"k", b"v"]
    assert isinstance(replies[1], StoreUnavailable)
    await scripts.close()


async def test_nothing_listens_and_nobody_waits_long() -> None:
    scripts = opened(f"redis://127.0.0.1:{free_port()}", 0.1)
    for _ in range(3):
        assert scripts.available
        with pytest.raises(StoreUnavailable):
            await scripts.run(ECHO, ["k"], [])
    assert not scripts.available
    await scripts.close()
