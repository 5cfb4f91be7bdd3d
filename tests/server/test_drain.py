"""The end of a server: those being served finish, those that have asked are answered, the rest is let go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from paywitness.core.operation import Outcome
from paywitness.core.reply import Reply
from tests.server.conftest import Edge, MakeEdge
from tests.server.fake_engine import Streamed
from tests.server.raw_client import get, request, until

GRACE_S = 10.0


def listens(edge: Edge) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(edge.address) == 0


async def test_an_idle_server_drains_at_once(edge: Edge) -> None:
    idle, silent = await edge.caller(), await edge.caller()
    await idle.ask(request())
    await until(lambda: edge.server.counters.connections_open == 2)
    async with asyncio.timeout(GRACE_S / 2):
        assert await edge.server.drain(GRACE_S) == 0
    assert await idle.rest() == b""
    assert await silent.rest() == b""
    assert not listens(edge)


async def test_what_is_being_served_finishes_and_its_connection_closes(edge: Edge) -> None:
    edge.carrier.hold()
    caller = await edge.caller()
    caller.send(request())
    await edge.carrier.arrived.wait()
    draining = asyncio.ensure_future(edge.server.drain(GRACE_S))
    await until(lambda: not listens(edge))
    assert not draining.done()
    edge.carrier.release()
    answer = await caller.answer()
    assert (answer.status_code, answer.header("Connection")) == (200, "close")
    assert await caller.rest() == b""
    assert await draining == 0


async def test_what_outlasts_the_grace_is_cut_and_counted(edge: Edge) -> None:
    edge.carrier.hold()
    caller = await edge.caller()
    caller.send(request())
    await edge.carrier.arrived.wait()
    assert await edge.server.drain(0.05) == 1
    with pytest.raises(ConnectionResetError):
        await caller.rest()
    assert edge.carrier.still_there is not None
    assert not edge.carrier.still_there()
    edge.carrier.release()
    await until(lambda: edge.carrier.answered == 1)  # cutting its caller cancelled nothing


async def test_requests_that_have_come_are_answered_in_a_drain(edge: Edge) -> None:
    edge.carrier.hold()
    caller = await edge.caller()
    caller.send(request("/acme/v1/charges/1"))
    await edge.carrier.arrived.wait()
    caller.send(request("/acme/v1/charges/2") + request("/acme/v1/charges/3"))
    connection = edge.connection
    await until(lambda: connection._parser.unread_bytes > 0)
    draining = asyncio.ensure_future(edge.server.drain(GRACE_S))
    edge.carrier.release()
    answers = [await caller.answer() for _ in range(3)]
    assert [answer.header("Connection") for answer in answers] == [None, None, "close"]
    assert await draining == 0


async def test_a_request_that_nobody_has_read_yet_counts_as_come(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = await edge.caller()
    assert (await caller.ask(get("/"), "GET")).status_code == 200

    async def at_the_last_moment() -> None:
        caller.send(request())  # into the kernel at once; the server's loop does not run before it looks

    monkeypatch.setattr(edge.server, "_accept_all", at_the_last_moment)
    assert await edge.server.drain(GRACE_S) == 0
    answer = await caller.answer()
    assert (answer.status_code, answer.header("Connection")) == (200, "close")


async def test_a_connection_that_nobody_has_accepted_yet_counts_as_come(edge: Edge) -> None:
    with socket.create_connection(edge.address) as caller:  # blocking: the loop does not run meanwhile
        caller.sendall(request())
        assert await edge.server.drain(GRACE_S) == 0
        caller.settimeout(5)
        assert caller.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_request_that_is_half_there_is_awaited_and_answered(edge: Edge) -> None:
    caller = await edge.caller()
    data = request()
    caller.send(data[:20])
    await until(lambda: edge.server.counters.connections_open == 1)
    waits = asyncio.ensure_future(edge.server.drain(GRACE_S))
    caller.send(data[20:])
    answer = await caller.answer()
    assert (answer.status_code, answer.header("Connection")) == (200, "close")
    assert await waits == 0


async def test_an_answer_that_was_under_way_ends_its_connection(edge: Edge) -> None:
    more = asyncio.Event()

    async def generate() -> AsyncIterator[bytes]:
        yield b"a"
        await more.wait()
        yield b"b"

    edge.carrier.streamed = lambda: Streamed(200, (), generate())
    caller = await edge.caller()
    caller.send(get("/acme/v1/files"))
    await caller.head()
    draining = asyncio.ensure_future(edge.server.drain(GRACE_S))
    await asyncio.sleep(0)
    more.set()
    assert await caller.rest() == b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"
    assert await draining == 0


async def test_an_answer_that_is_slowly_taken_is_not_cut_short(edge: Edge) -> None:
    body = b"x" * 8_000_000
    edge.carrier.reply = Reply(200, (), body, Outcome.NONE)
    caller = await edge.caller()
    caller.send(request())
    await until(lambda: edge.carrier.answered == 1)
    draining = asyncio.ensure_future(edge.server.drain(GRACE_S))
    assert (await caller.answer()).body == body
    assert await caller.rest() == b""
    assert await draining == 0


async def test_close_leaves_nothing_running(make_edge: MakeEdge) -> None:
    edge = await make_edge()
    edge.carrier.hold()
    before = asyncio.all_tasks()
    callers = [await edge.caller() for _ in range(5)]
    for caller in callers:
        caller.send(request())
    await until(lambda: len(edge.carrier.calls) == 5)
    await edge.server.close()
    await until(lambda: asyncio.all_tasks() <= before)
    assert edge.server.counters.connections_open == 0
    await edge.server.close()  # twice is harmless


async def test_whoever_is_asked_to_leave_is_served_and_told_to_go(edge: Edge) -> None:
    kept = await edge.caller()
    assert (await kept.ask(request())).header("Connection") is None
    edge.server.stop_keep_alive()
    new = await edge.caller()
    for caller in (kept, new):
        answer = await caller.ask(request())
        assert (answer.status_code, answer.header("Connection")) == (200, "close")
        assert await caller.is_closed()
