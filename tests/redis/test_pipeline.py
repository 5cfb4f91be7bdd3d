"""The pipeline: which calls go together, who waits how long, and what an error of Redis means. As the journal uses it
and as limits do, against a server that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from paywitness.core.errors import JournalUnavailable
from paywitness.journal.redis import scripts as journal
from paywitness.journal.redis.scripts import TIME
from paywitness.limits import redis_scripts as limits
from paywitness.redis.connection import CONNECT_TIMEOUT_S, RedisUnavailable
from paywitness.redis.pipeline import PipelineOptions, RedisPipeline
from paywitness.redis.url import RedisTarget, parse_redis_url

INFO = b"role:master\r\nconnected_slaves:0\r\nmaster_replid:abc\r\n"


class TellTale:
    """Answers each command with what is next in `answers`, or +OK; notes the commands."""

    def __init__(self) -> None:
        self.answers: dict[bytes, list[bytes]] = {}
        self.commands: list[list[bytes]] = []
        self.connections = 0
        self.silent = False  # to scripts
        self.login = asyncio.Event()  # set: it is answered
        self.login.set()

    def named(self, name: bytes) -> list[list[bytes]]:
        return [command for command in self.commands if command[0] == name]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                count = int((await reader.readuntil(b"\r\n"))[1:])
                command = []
                for _ in range(count):
                    length = int((await reader.readuntil(b"\r\n"))[1:])
                    command.append((await reader.readexactly(length + 2))[:-2])
                self.commands.append(command)
                if self.silent and command[0] == b"EVALSHA":
                    continue
                if command[0] == b"AUTH":
                    await self.login.wait()
                if command[0] == b"INFO":
                    writer.write(b"$%d\r\n%b\r\n" % (len(INFO), INFO))
                else:
                    waiting = self.answers.get(command[0], [])
                    writer.write(waiting.pop(0) if waiting else b"+OK\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[tuple[TellTale, int]]:
    tell_tale = TellTale()
    server = await asyncio.start_server(tell_tale.serve, "127.0.0.1", 0)
    yield tell_tale, server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


@pytest.fixture
def told(server: tuple[TellTale, int]) -> TellTale:
    return server[0]


@pytest.fixture(params=["journal", "limits"])
def options(request: pytest.FixtureRequest) -> PipelineOptions:
    return journal.pipeline_options(0.5) if request.param == "journal" else limits.pipeline_options(0.5)


@pytest.fixture
def unavailable(options: PipelineOptions) -> type[Exception]:
    """What its owner's callers are told."""
    return type(options.to_error(RedisUnavailable("")))


@pytest.fixture
async def lane(server: tuple[TellTale, int], options: PipelineOptions) -> AsyncIterator[RedisPipeline]:
    lane = RedisPipeline("test", target_of(server), options)
    yield lane
    await lane.close()


def target_of(server: tuple[TellTale, int]) -> RedisTarget:
    return parse_redis_url(f"redis://127.0.0.1:{server[1]}")


def test_each_owner_is_told_in_its_own_error() -> None:
    owners = (journal.pipeline_options(), limits.pipeline_options())
    told = [options.to_error(RedisUnavailable("gone")) for options in owners]
    assert [type(error) for error in told] == [JournalUnavailable, RedisUnavailable]
    assert {str(error) for error in told} == {"gone"}


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        ("MISCONF Redis is configured to save RDB snapshots", "cannot write to its disk"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "memory is full"),
        ("READONLY You can't write against a read only replica.", "it is a replica"),
        ("MASTERDOWN Link with MASTER is down", "lost its primary"),
        ("LOADING Redis is loading the dataset in memory", "loading its data"),
        ("NOREPLICAS Not enough good replicas to write.", "too few replicas"),
        ("BUSY Redis is busy running a script.", "blocks it"),
        ("MOVED 3999 127.0.0.1:6381", "Redis Cluster"),
        ("NOPERM this user has no permissions", "may not do this"),
        ("ERR Error running script", "Error running script"),
    ],
)
async def test_an_error_is_unavailable_in_words_and_the_next_call_goes_on(
    told: TellTale, lane: RedisPipeline, unavailable: type[Exception], error: str, meaning: str
) -> None:
    told.answers[b"EVALSHA"] = [f"-{error}\r\n".encode()]
    with pytest.raises(unavailable, match=meaning):
        await lane.run(TIME, ("k",), ("",))
    assert await lane.run(TIME, ("k",), ("",)) == b"OK"


@pytest.mark.parametrize("error", ["READONLY it is", "MASTERDOWN it is", "LOADING it is"])
async def test_one_that_is_not_the_primary_is_left(
    told: TellTale, lane: RedisPipeline, unavailable: type[Exception], error: str
) -> None:
    told.answers[b"EVALSHA"] = [f"-{error}\r\n".encode()]
    with pytest.raises(unavailable):
        await lane.run(TIME, ("k",), ("",))
    await lane.run(TIME, ("k",), ("",))
    assert told.connections == 2


async def test_an_error_is_its_own_calls_alone(
    told: TellTale, lane: RedisPipeline, unavailable: type[Exception]
) -> None:
    told.answers[b"EVALSHA"] = [b"+1\r\n", b"-ERR no\r\n", b"-NOSCRIPT no\r\n", b"+4\r\n"]
    told.answers[b"EVAL"] = [b"+3\r\n"]
    results = await asyncio.gather(*(lane.run(TIME, ("k",), ("",)) for _ in range(4)), return_exceptions=True)
    assert [result for result in results if isinstance(result, bytes)] == [b"1", b"3", b"4"]
    assert isinstance(results[1], unavailable)
    assert lane.round_trips == 2
    assert len(told.named(b"EVAL")) == 1


async def test_calls_of_one_turn_and_those_made_meanwhile_ride_together(told: TellTale, lane: RedisPipeline) -> None:
    await asyncio.gather(*(lane.run(TIME, ("k",), (str(number),)) for number in range(50)))
    assert lane.round_trips == 1
    first = asyncio.ensure_future(lane.run(TIME, ("k",), ("first",)))
    await asyncio.sleep(0)  # it is on its way
    await asyncio.gather(first, *(lane.run(TIME, ("k",), (str(number),)) for number in range(50)))
    assert lane.round_trips == 3
    assert len(told.named(b"EVALSHA")) == 101


async def test_a_caller_that_leaves_does_not_disturb_the_others(told: TellTale, lane: RedisPipeline) -> None:
    told.answers[b"EVALSHA"] = [b"+%d\r\n" % number for number in range(10)]
    calls = [asyncio.ensure_future(lane.run(TIME, ("k",), (str(number),))) for number in range(10)]
    await asyncio.sleep(0)
    calls[3].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    answered = [result for result in results if isinstance(result, bytes)]
    assert answered == [b"%d" % number for number in range(10) if number != 3]


async def test_what_nobody_waits_for_is_sent_only_where_it_is_not_moot(
    told: TellTale, lane: RedisPipeline, unavailable: type[Exception]
) -> None:
    told.silent = True
    blocking = asyncio.ensure_future(lane.run(TIME, ("k",), ("blocking",)))
    await asyncio.sleep(0.05)
    left = [
        asyncio.ensure_future(lane.run(TIME, ("k",), (name,), droppable=name == "moot")) for name in ("moot", "kept")
    ]
    await asyncio.sleep(0.05)
    for call in left:
        call.cancel()
    told.silent = False
    with pytest.raises(unavailable, match="did not answer in"):
        await blocking
    await lane.run(TIME, ("k",), ("last",))
    assert [command[4] for command in told.named(b"EVALSHA")] == [b"blocking", b"kept", b"last"]


async def test_no_more_wait_than_may(
    server: tuple[TellTale, int], options: PipelineOptions, unavailable: type[Exception]
) -> None:
    lane = RedisPipeline("test", target_of(server), replace(options, waiting_max=5))
    results = await asyncio.gather(*(lane.run(TIME, ("k",), ("",)) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(result, unavailable) for result in results) == 3
    await lane.close()


async def test_silence_is_told_of_in_time_and_the_connection_is_left(
    told: TellTale, lane: RedisPipeline, unavailable: type[Exception]
) -> None:
    told.silent = True
    with pytest.raises(unavailable, match="did not answer"):
        await lane.run(TIME, ("k",), ("",))
    told.silent = False
    assert await lane.run(TIME, ("k",), ("",)) == b"OK"
    assert told.connections == 2


async def test_who_waits_behind_a_silence_is_told_of_it_in_its_own_time(
    told: TellTale, lane: RedisPipeline, unavailable: type[Exception]
) -> None:
    """Its own pipeline goes out when the first one is given up, and would be given up later ("in time") than it is."""
    told.silent = True
    first = asyncio.ensure_future(lane.run(TIME, ("k",), ("first",)))
    await asyncio.sleep(0.05)
    with pytest.raises(unavailable, match=r"did not answer in 0\.5 s"):
        await lane.run(TIME, ("k",), ("second",))
    with pytest.raises(unavailable):
        await first


async def test_a_fault_of_ours_does_not_stall_who_waits_behind_it(
    server: tuple[TellTale, int], told: TellTale, options: PipelineOptions, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [KeyError("ours")]

    def to_error(error: RedisUnavailable) -> Exception:
        if faults:
            raise faults.pop()
        return error

    told.answers[b"EVALSHA"] = [b"-MISCONF disk\r\n"]
    patient = replace(options, to_error=to_error, batch_max=1, call_timeout_s=30.0)
    lane = RedisPipeline("test", target_of(server), patient)
    first, second = lane.run(TIME, [], []), lane.run(TIME, [], [])
    with pytest.raises(RedisUnavailable):
        await first
    assert await second == b"OK"
    assert "KeyError" in caplog.text
    await lane.close()


async def test_a_closed_lane_takes_nothing(lane: RedisPipeline, unavailable: type[Exception]) -> None:
    await lane.close()
    with pytest.raises(unavailable, match="closed"):
        await lane.run(TIME, ("k",), ("",))


async def test_who_waits_when_it_is_closed_is_told(
    told: TellTale, server: tuple[TellTale, int], options: PipelineOptions, unavailable: type[Exception]
) -> None:
    told.silent = True
    lane = RedisPipeline("test", target_of(server), replace(options, call_timeout_s=30.0, close_timeout_s=0.0))
    sent = asyncio.ensure_future(lane.run(TIME, ("k",), ("sent",)))
    await asyncio.sleep(0.05)
    queued = asyncio.ensure_future(lane.run(TIME, ("k",), ("queued",)))
    await lane.close()
    results = await asyncio.gather(sent, queued, return_exceptions=True)
    assert [type(result) for result in results] == [unavailable] * 2


async def test_connecting_goes_on_after_its_callers_were_told(
    told: TellTale, server: tuple[TellTale, int], options: PipelineOptions, unavailable: type[Exception]
) -> None:
    """As TLS and a login may take longer than the time of a call. What was asked meanwhile is not sent late."""
    told.login.clear()
    target = replace(target_of(server), password="secret")
    lane = RedisPipeline("test", target, replace(options, call_timeout_s=0.1))
    with pytest.raises(unavailable, match=r"did not answer in 0\.1 s"):
        await lane.run(TIME, ("k",), ("first",))
    told.login.set()
    await asyncio.sleep(0.1)
    assert await lane.run(TIME, ("k",), ("second",)) == b"OK"
    assert told.connections == 1
    assert [command[4] for command in told.named(b"EVALSHA")] == [b"second"]
    await lane.close()


async def test_a_connection_that_is_never_made_is_given_up(
    told: TellTale, server: tuple[TellTale, int], options: PipelineOptions, unavailable: type[Exception]
) -> None:
    told.login.clear()
    target = replace(target_of(server), password="secret")
    lane = RedisPipeline("test", target, replace(options, call_timeout_s=0.1))
    with pytest.raises(unavailable):
        await lane.run(TIME, ("k",), ("first",))
    await asyncio.sleep(CONNECT_TIMEOUT_S)
    told.login.set()
    assert await lane.run(TIME, ("k",), ("second",)) == b"OK"
    assert told.connections == 2
    await lane.close()
