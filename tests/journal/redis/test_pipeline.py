"""The lane: who rides together, who waits how long, and what an error of Redis means. Against a server that answers as
it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from paywitness.core.errors import JournalUnavailable
from paywitness.journal.redis import pipeline
from paywitness.journal.redis.pipeline import RedisPipeline
from paywitness.journal.redis.scripts import TIME
from paywitness.redis.url import parse_redis_url

INFO = b"role:master\r\nconnected_slaves:0\r\nmaster_replid:abc\r\n"


class TellTale:
    """Answers each command with what is next in `answers`, or +OK; notes the commands."""

    def __init__(self) -> None:
        self.answers: dict[bytes, list[bytes]] = {}
        self.commands: list[list[bytes]] = []
        self.connections = 0
        self.silent = False

    def named(self, name: bytes) -> list[list[bytes]]:
        return [command for command in self.commands if command[0] == name]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        greeted = False
        try:
            while True:
                count = int((await reader.readuntil(b"\r\n"))[1:])
                command = []
                for _ in range(count):
                    length = int((await reader.readuntil(b"\r\n"))[1:])
                    command.append((await reader.readexactly(length + 2))[:-2])
                self.commands.append(command)
                if self.silent and greeted:
                    continue
                greeted = True
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


@pytest.fixture
async def lane(server: tuple[TellTale, int]) -> AsyncIterator[RedisPipeline]:
    lane = RedisPipeline("test", parse_redis_url(f"redis://127.0.0.1:{server[1]}"), call_timeout_s=0.5)
    yield lane
    await lane.close()


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        ("MISCONF Redis is configured to save RDB snapshots", "cannot write to its disk"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "memory is full"),
        ("READONLY You can't write against a read only replica.", "it is a replica"),
        ("MASTERDOWN Link with MASTER is down", "lost its primary"),
        ("LOADING Redis is loading the dataset in memory", "loading its data"),
        ("NOREPLICAS Not enough good replicas to write.", "too few replicas"),
        ("BUSY Redis is busy running a script.", "holds it up"),
        ("MOVED 3999 127.0.0.1:6381", "Redis Cluster"),
        ("NOPERM this user has no permissions", "may not do this"),
        ("ERR Error running script", "Error running script"),
    ],
)
async def test_an_error_is_unavailable_in_words_and_the_next_call_goes_on(
    told: TellTale, lane: RedisPipeline, error: str, meaning: str
) -> None:
    told.answers[b"EVALSHA"] = [f"-{error}\r\n".encode()]
    with pytest.raises(JournalUnavailable, match=meaning):
        await lane.run(TIME, "")
    assert await lane.run(TIME, "") == b"OK"


@pytest.mark.parametrize("error", ["READONLY it is", "MASTERDOWN it is", "LOADING it is"])
async def test_one_that_is_not_the_primary_is_left(told: TellTale, lane: RedisPipeline, error: str) -> None:
    told.answers[b"EVALSHA"] = [f"-{error}\r\n".encode()]
    with pytest.raises(JournalUnavailable):
        await lane.run(TIME, "")
    await lane.run(TIME, "")
    assert told.connections == 2


async def test_an_error_is_its_own_calls_alone(told: TellTale, lane: RedisPipeline) -> None:
    told.answers[b"EVALSHA"] = [b"+1\r\n", b"-ERR no\r\n", b"-NOSCRIPT no\r\n", b"+4\r\n"]
    told.answers[b"EVAL"] = [b"+3\r\n"]
    results = await asyncio.gather(*(lane.run(TIME, "") for _ in range(4)), return_exceptions=True)
    assert [result for result in results if isinstance(result, bytes)] == [b"1", b"3", b"4"]
    assert isinstance(results[1], JournalUnavailable)
    assert lane.round_trips == 2
    assert len(told.named(b"EVAL")) == 1


async def test_calls_of_one_turn_and_those_made_meanwhile_ride_together(told: TellTale, lane: RedisPipeline) -> None:
    await asyncio.gather(*(lane.run(TIME, str(number)) for number in range(50)))
    assert lane.round_trips == 1
    first = asyncio.ensure_future(lane.run(TIME, "first"))
    await asyncio.sleep(0)  # it is on its way
    await asyncio.gather(first, *(lane.run(TIME, str(number)) for number in range(50)))
    assert lane.round_trips == 3
    assert len(told.named(b"EVALSHA")) == 101


async def test_a_caller_that_leaves_does_not_disturb_the_others(told: TellTale, lane: RedisPipeline) -> None:
    told.answers[b"EVALSHA"] = [b"+%d\r\n" % number for number in range(10)]
    calls = [asyncio.ensure_future(lane.run(TIME, str(number))) for number in range(10)]
    await asyncio.sleep(0)
    calls[3].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    answered = [result for result in results if isinstance(result, bytes)]
    assert answered == [b"%d" % number for number in range(10) if number != 3]


async def test_what_nobody_waits_for_is_sent_only_where_it_is_not_moot(told: TellTale, lane: RedisPipeline) -> None:
    told.silent = True
    blocking = asyncio.ensure_future(lane.run(TIME, "blocking"))
    await asyncio.sleep(0.05)
    left = [asyncio.ensure_future(lane.run(TIME, name, droppable=name == "moot")) for name in ("moot", "kept")]
    await asyncio.sleep(0.05)
    for call in left:
        call.cancel()
    told.silent = False
    with pytest.raises(JournalUnavailable, match="did not answer in"):
        await blocking
    await lane.run(TIME, "last")
    assert [command[4] for command in told.named(b"EVALSHA")] == [b"blocking", b"kept", b"last"]


async def test_no_more_wait_than_may(told: TellTale, lane: RedisPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "WAITING_MAX", 5)
    results = await asyncio.gather(*(lane.run(TIME, "") for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(result, JournalUnavailable) for result in results) == 3


async def test_silence_is_told_of_in_time_and_the_connection_is_left(told: TellTale, lane: RedisPipeline) -> None:
    told.silent = True
    with pytest.raises(JournalUnavailable, match="did not answer"):
        await lane.run(TIME, "")
    told.silent = False
    assert await lane.run(TIME, "") == b"OK"
    assert told.connections == 2


async def test_who_waits_behind_a_silence_is_told_of_it_in_its_own_time(told: TellTale, lane: RedisPipeline) -> None:
    """Its own pipeline goes out when the first one is given up, and would be given up later ("in time") than it is."""
    told.silent = True
    first = asyncio.ensure_future(lane.run(TIME, "first"))
    await asyncio.sleep(0.05)
    with pytest.raises(JournalUnavailable, match=r"did not answer in 0\.5 s"):
        await lane.run(TIME, "second")
    with pytest.raises(JournalUnavailable):
        await first


async def test_a_closed_lane_takes_nothing(lane: RedisPipeline) -> None:
    await lane.close()
    with pytest.raises(JournalUnavailable, match="closed"):
        await lane.run(TIME, "")
