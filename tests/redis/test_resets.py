"""A Redis whose connections are reset under load, as a load balancer does it: every call is answered or fails in time,
and nothing dies. On both event loops, because a closed connection of uvloop raises what asyncio's does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from paywitness.redis.connection import RedisUnavailable
from paywitness.redis.pipeline import LuaScript, PipelineOptions, RedisPipeline
from paywitness.redis.url import parse_redis_url
from tests.journal.redis_server import RedisServer
from tests.journal.tcp_forwarder import Forwarder

COUNT = LuaScript.of("count", "return redis.call('INCR', KEYS[1])")
RESETS = 60
CALLS_BETWEEN = 20  # calls that are under way or wait when a connection is reset
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def forwarder(tmp_path: Path) -> Iterator[Forwarder]:
    server = RedisServer(tmp_path / "redis")
    try:
        server.start()
        forwarder = Forwarder(server.port)
        try:
            yield forwarder
        finally:
            forwarder.close()
    finally:
        server.stop()


@pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
def test_a_reset_fails_its_calls_and_kills_nothing(
    forwarder: Forwarder, new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner, caplog.at_level(logging.ERROR):
        answers = runner.run(_count_under_resets(forwarder))
    assert [record.getMessage() for record in caplog.records] == []
    assert {type(answer) for answer in answers} <= {int, RedisUnavailable}
    assert isinstance(answers[-1], int)  # and it goes on
    numbers = [answer for answer in answers if isinstance(answer, int)]
    assert numbers == sorted(set(numbers))  # each call got its own answer
    stalled = [answer for answer in answers if isinstance(answer, RedisUnavailable) and "did not answer" in str(answer)]
    assert stalled == []


async def _count_under_resets(forwarder: Forwarder) -> list[object]:
    """What became of each call, in their order."""
    options = PipelineOptions(call_timeout_s=30.0, batch_max=CALLS_BETWEEN // 4)
    lane = RedisPipeline("test", parse_redis_url(f"redis://127.0.0.1:{forwarder.port}"), options)
    calls: list[asyncio.Future[int]] = []
    try:
        for number in range(RESETS):
            calls += [lane.run(COUNT, ["counted"], []) for _ in range(CALLS_BETWEEN)]
            if number % 2:  # the reset meets an idle connection; else one with calls under way
                await asyncio.wait(calls[-1:])
            await asyncio.to_thread(forwarder.reset)
            for _ in range(number % 5):  # the event loop has noticed it, or not yet
                await asyncio.sleep(0)
        answers: list[object] = list(await asyncio.gather(*calls, return_exceptions=True))
        for _ in range(2):  # the last reset may show only when something is written
            answers += await asyncio.gather(lane.run(COUNT, ["counted"], []), return_exceptions=True)
    finally:
        await lane.close()
    return answers
