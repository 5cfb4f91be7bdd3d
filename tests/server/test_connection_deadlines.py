"""Every wait for a caller ends: for its head, its body, its next request, its taking of the answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from paywitness.core.operation import Outcome
from paywitness.core.reply import Reply
from tests.server.conftest import PATIENCE, Edge, MakeEdge
from tests.server.fake_engine import Streamed
from tests.server.raw_client import Caller, get, request, until

pytestmark = pytest.mark.slow  # it waits for real patience to end

HEAD = b"POST /acme/v1/charges HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n"


async def dribble(caller: Caller, data: bytes, every_s: float) -> None:
    """Send byte after byte until the end of the connection."""
    for place in range(len(data)):
        if caller.reader.at_eof() or caller.writer.transport.is_closing():
            return
        caller.send(data[place : place + 1])
        await asyncio.sleep(every_s)


async def test_a_connection_that_says_nothing_is_closed_in_silence(impatient: Edge) -> None:
    caller = await impatient.caller()
    assert await caller.rest() == b""
    assert impatient.refused == {"idle": 1}


async def test_a_dribbled_head_is_cut(impatient: Edge) -> None:
    caller = await impatient.caller()
    sending = asyncio.ensure_future(dribble(caller, HEAD * 1000, 0.01))
    answer = await caller.answer()
    assert (answer.status_code, answer.problem) == (408, "too-slow")
    assert answer.header("Connection") == "close"
    assert await caller.is_closed()
    await sending
    assert impatient.carrier.calls == []
    assert impatient.refused == {"too-slow": 1}


async def test_a_dribbled_second_head_is_cut(impatient: Edge) -> None:
    caller = await impatient.caller()
    assert (await caller.ask(request())).status_code == 200
    sending = asyncio.ensure_future(dribble(caller, HEAD * 1000, 0.01))
    assert (await caller.answer()).status_code == 408
    assert await caller.is_closed()
    await sending


async def test_a_head_begun_behind_a_request_is_cut(impatient: Edge) -> None:
    impatient.carrier.hold()
    caller = await impatient.caller()
    caller.send(request())
    await impatient.carrier.arrived.wait()
    caller.send(HEAD)
    impatient.carrier.release()
    assert (await caller.answer()).status_code == 200
    assert (await caller.answer()).status_code == 408


async def test_empty_lines_without_end_are_no_request(impatient: Edge) -> None:
    caller = await impatient.caller()
    sending = asyncio.ensure_future(dribble(caller, b"\r\n" * 1000, 0.01))
    assert (await caller.answer()).status_code == 408
    await sending


@pytest.mark.parametrize("path", [b"/acme/v1/charges", b"/acme/v1/files"])
async def test_a_body_that_stops_is_cut(impatient: Edge, path: bytes) -> None:
    caller = await impatient.caller()
    caller.send(b"POST " + path + b" HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
    answer = await caller.answer()
    assert (answer.status_code, answer.problem) == (408, "too-slow")
    assert answer.json["sent"] is (path == b"/acme/v1/files")  # what is passed on has been sent as far as it came
    assert await caller.is_closed()
    assert impatient.carrier.calls == []


@pytest.mark.parametrize("path", [b"/acme/v1/charges", b"/acme/v1/files"])
async def test_a_dribbled_body_is_cut(impatient: Edge, path: bytes) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    caller = await impatient.caller()
    caller.send(b"POST " + path + b" HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n")
    sending = asyncio.ensure_future(dribble(caller, b"x" * 100_000, 0.02))
    assert (await caller.answer()).status_code == 408
    assert loop.time() - began >= PATIENCE.body_s - 0.01  # uvloop counts whole milliseconds
    caller.abort()
    await sending


async def test_a_body_earns_its_time_by_its_bytes(make_edge: MakeEdge) -> None:
    edge = await make_edge(replace(PATIENCE, body_s=60.0, body_start_s=0.3, body_bytes_per_s_min=500))
    slow, fast = await edge.caller(), await edge.caller()
    head = b"POST /acme/v1/charges HTTP/1.1\r\nHost: a\r\nContent-Length: 30000\r\n\r\n"
    slow.send(head)
    fast.send(head)
    sending = asyncio.ensure_future(dribble(slow, b"x" * 30_000, 0.02))
    told = asyncio.ensure_future(slow.answer())
    for _ in range(30):  # longer than the start that everybody has
        fast.send(b"x" * 1000)
        await asyncio.sleep(0.02)
    assert (await fast.answer()).status_code == 200
    assert (await told).problem == "too-slow"
    slow.abort()
    await sending


async def test_a_dribbled_chunk_size_is_cut(impatient: Edge) -> None:
    caller = await impatient.caller()
    caller.send(request("/acme/v1/charges", None, "Transfer-Encoding: chunked"))
    sending = asyncio.ensure_future(dribble(caller, b"2;" + b"x" * 1000, 0.01))
    assert (await caller.answer()).status_code == 408
    caller.abort()
    await sending


async def test_time_in_which_nobody_reads_is_not_the_callers(impatient: Edge) -> None:
    """The engine is slow to take the body: the caller must not be cut for that."""
    impatient.carrier.hold()
    caller = await impatient.caller()
    caller.send(b"POST /acme/v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab")
    await impatient.carrier.arrived.wait()
    await asyncio.sleep(PATIENCE.body_s + PATIENCE.body_idle_s)
    impatient.carrier.release()
    caller.send(b"cd")
    assert (await caller.answer()).status_code == 200


async def test_the_engine_may_take_longer_than_any_caller(impatient: Edge) -> None:
    impatient.carrier.hold()
    caller = await impatient.caller()
    caller.send(request())
    await impatient.carrier.arrived.wait()
    await asyncio.sleep(PATIENCE.body_s + PATIENCE.keep_alive_s)
    impatient.carrier.release()
    assert (await caller.answer()).status_code == 200


async def test_an_idle_connection_is_closed_in_silence(impatient: Edge) -> None:
    caller = await impatient.caller()
    assert (await caller.ask(request())).status_code == 200
    assert await caller.rest() == b""
    assert impatient.refused == {"idle": 1}


async def test_a_request_that_meets_the_end_of_its_connection_is_answered_or_never_begun(impatient: Edge) -> None:
    async def ask_late(number: int) -> bool:
        caller = await impatient.caller()
        assert (await caller.ask(request())).status_code == 200
        await asyncio.sleep(PATIENCE.keep_alive_s + number * 0.004)  # around the tick that ends it
        try:
            return (await caller.ask(request())).status_code == 200
        except (asyncio.IncompleteReadError, ConnectionError):
            return False

    answered = await asyncio.gather(*(ask_late(number) for number in range(-10, 40)))
    assert len(impatient.carrier.calls) == len(answered) + sum(answered)
    assert not all(answered)


async def test_each_request_starts_the_idle_time_again(impatient: Edge) -> None:
    caller = await impatient.caller()
    for _ in range(6):
        assert (await caller.ask(get("/"), "GET")).status_code == 200
        await asyncio.sleep(PATIENCE.keep_alive_s / 3)


def deaf(caller: Caller) -> None:
    caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.writer.transport.pause_reading()  # type: ignore[attr-defined]


async def test_a_caller_that_does_not_take_its_answer_is_cut(impatient: Edge) -> None:
    impatient.carrier.reply = Reply(200, (), b"x" * 30_000_000, Outcome.NONE)
    caller = await impatient.caller()
    deaf(caller)
    caller.send(request())
    await until(lambda: impatient.broken.get("answer-not-taken") == 1)
    await until(lambda: impatient.server.counters.connections_open == 0)


async def test_asking_on_does_not_excuse_from_taking(impatient: Edge) -> None:
    impatient.carrier.reply = Reply(200, (), b"x" * 30_000_000, Outcome.NONE)
    caller = await impatient.caller()
    deaf(caller)
    caller.send(request())
    await impatient.carrier.arrived.wait()
    caller.send(request() + HEAD)
    await until(lambda: impatient.broken.get("answer-not-taken") == 1)


async def test_a_caller_that_does_not_take_a_streamed_answer_is_cut(impatient: Edge) -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            closed.set()

    impatient.carrier.streamed = lambda: Streamed(200, (), endless())
    caller = await impatient.caller()
    deaf(caller)
    caller.send(get("/acme/v1/files"))
    async with asyncio.timeout(10):
        await closed.wait()
    assert impatient.broken.get("answer-not-taken") == 1


async def test_a_caller_that_takes_its_answer_slowly_is_not_cut(impatient: Edge) -> None:
    body = b"x" * 12_000_000
    impatient.carrier.reply = Reply(200, (), body, Outcome.NONE)
    caller = await impatient.caller()
    caller.send(request())
    taken = 0
    while taken < len(body):
        taken += len(await caller.reader.read(1_000_000))
        await asyncio.sleep(PATIENCE.reply_idle_s / 8)
    assert impatient.broken == {}
