"""Answers read by the packet: whole ones only, in their order, errors among them; with hiredis and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio.connection import Connection
from redis.exceptions import BusyLoadingError, NoScriptError, RedisError

from paywitness.redis import connection as responses
from paywitness.redis.connection import RedisResponseReader, connect_primary
from paywitness.redis.url import parse_redis_url

Given = Callable[[bytes], Awaitable[None]]


@pytest.fixture(params=["with hiredis", "without"])
async def redis(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RedisResponseReader, Given]]:
    """A connection that was greeted, and how to send bytes on it from the other side; nothing at all is its end."""
    if request.param == "without":
        monkeypatch.setattr(responses, "hiredis", None)
    writers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await writers.put(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection: Connection = await connect_primary(
        parse_redis_url(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    )
    writer = await writers.get()

    async def given(data: bytes) -> None:
        if not data:
            writer.close()
            return
        writer.write(data)
        await writer.drain()

    yield RedisResponseReader(connection), given
    await connection.disconnect(nowait=True)
    writer.close()
    server.close()
    await server.wait_closed()


async def all_of(answers: RedisResponseReader, count: int) -> list[object]:
    found: list[object] = []
    while len(found) < count:
        found += await answers.read_available(count - len(found))
    return found


async def test_what_comes_together_is_read_in_its_order(redis: tuple[RedisResponseReader, Given]) -> None:
    answers, given = redis
    await given(b"*2\r\n$5\r\nowned\r\n$3\r\n1.5\r\n:3\r\n$-1\r\n+OK\r\n")
    assert await all_of(answers, 4) == [[b"owned", b"1.5"], 3, None, b"OK"]


async def test_half_an_answer_is_waited_for(redis: tuple[RedisResponseReader, Given]) -> None:
    answers, given = redis
    await given(b"+first\r\n$6\r\nsec")
    assert await answers.read_available(2) == [b"first"]
    second = asyncio.ensure_future(answers.read_one())
    await asyncio.sleep(0)
    assert not second.done()
    await given(b"ond\r\n")
    assert await second == b"second"


async def test_an_error_is_the_answer_of_its_own_call_alone(redis: tuple[RedisResponseReader, Given]) -> None:
    answers, given = redis
    await given(b"+before\r\n-NOSCRIPT No matching script.\r\n+after\r\n")
    before, error, after = await all_of(answers, 3)
    assert (before, after) == (b"before", b"after")
    assert isinstance(error, NoScriptError)


async def test_a_redis_that_is_loading_ends_what_waits_behind_it(redis: tuple[RedisResponseReader, Given]) -> None:
    answers, given = redis
    await given(b"-LOADING Redis is loading the dataset in memory\r\n")
    try:
        answer = await answers.read_one()
    except RedisError as error:
        answer = error
    assert isinstance(answer, BusyLoadingError)  # which the lane raises: it is no answer to a call


async def test_no_more_is_taken_than_was_asked_for(redis: tuple[RedisResponseReader, Given]) -> None:
    answers, given = redis
    await given(b"+one\r\n+two\r\n")
    assert await answers.read_available(1) == [b"one"]
    assert await answers.read_one() == b"two"


async def test_an_end_is_raised(redis: tuple[RedisResponseReader, Given]) -> None:
    answers, given = redis
    await given(b"*2\r\n+half\r\n")
    await given(b"")
    with pytest.raises(RedisError):
        await answers.read_one()
