"""How a request may begin: behind empty lines, and with two spaces in its line. However the bytes are cut, what begins
otherwise is not served, nor what comes behind it."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.conftest import Edge
from tests.server.raw_client import Caller, get, request, until

SECOND = request("/acme/v1/charges/second")
CHUNKED = b"POST /acme/v1/charges HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
FIRSTS = {"length": request(), "chunked": CHUNKED, "no body": get("/acme/v1/charges")}
BARE = [b"\n", b"\r", b"\n\r\n", b"\r\n\n", b"\r\r\n", b"\r\n\r\n\n\r\n\r\n"]
LINES = [b"\r\n", b"\r\n\r\n\r\n"]
PIPELINED = 40  # more than the parser reads ahead
LARGE = request(body=b"\n" * 600_000)  # more than is buffered before the parser is told to wait


def paths(edge: Edge) -> list[str]:
    return [call.path for call in edge.carrier.calls]


async def dribble(caller: Caller, data: bytes) -> None:
    """Each byte in a segment of its own, as near as one process can have it."""
    for byte in data:
        caller.send(bytes([byte]))
        await asyncio.sleep(0.001)


async def refuses(caller: Caller) -> bool:
    answer = await caller.answer()
    return (answer.status_code, answer.problem) == (400, "malformed") and await caller.is_closed()


@pytest.mark.parametrize("bare", BARE, ids=repr)
async def test_a_bare_end_of_line_before_the_first_request_is_refused_byte_by_byte(edge: Edge, bare: bytes) -> None:
    caller = await edge.caller()
    await dribble(caller, bare + request()[:20])
    assert await refuses(caller)
    assert edge.carrier.calls == []


@pytest.mark.parametrize("lines", LINES, ids=repr)
async def test_empty_lines_are_passed_over_byte_by_byte(edge: Edge, lines: bytes) -> None:
    caller = await edge.caller()
    for _ in range(2):
        await dribble(caller, lines + request())
        assert (await caller.answer()).status_code == 200


@pytest.mark.parametrize("bare", BARE, ids=repr)
@pytest.mark.parametrize("first", FIRSTS)
async def test_a_bare_end_of_line_before_a_later_request_is_refused(edge: Edge, first: str, bare: bytes) -> None:
    caller = await edge.caller()
    assert (await caller.ask(FIRSTS[first])).status_code == 200
    caller.send(bare + SECOND)
    assert await refuses(caller)
    assert paths(edge) == ["/v1/charges"]


@pytest.mark.parametrize("first", FIRSTS)
async def test_empty_lines_before_a_later_request_are_passed_over(edge: Edge, first: str) -> None:
    caller = await edge.caller()
    assert (await caller.ask(FIRSTS[first])).status_code == 200
    assert (await caller.ask(b"\r\n\r\n" + SECOND)).status_code == 200
    assert paths(edge) == ["/v1/charges", "/v1/charges/second"]


@pytest.mark.parametrize("cut", [0, 30, len(request()) - 1, len(request())])
@pytest.mark.parametrize("bare", BARE, ids=repr)
async def test_a_bare_end_of_line_behind_a_request_ends_the_connection_with_its_answer(
    edge: Edge, bare: bytes, cut: int
) -> None:
    edge.carrier.hold()
    caller = await edge.caller()
    data = request() + bare + SECOND
    caller.send(data[:cut])
    await asyncio.sleep(0.01)
    caller.send(data[cut:])
    await edge.carrier.arrived.wait()
    await until(edge.connection._parser.begins_ambiguously)
    edge.carrier.release()
    answer = await caller.answer()
    assert (answer.status_code, answer.header("Connection")) == (200, "close")
    assert await caller.is_closed()
    assert paths(edge) == ["/v1/charges"]


@pytest.mark.parametrize("cut", [0, 30, len(request()), len(request()) + 10, len(request()) + 40])
async def test_a_space_too_many_in_a_later_line_ends_the_connection_with_the_answer_before(
    edge: Edge, cut: int
) -> None:
    edge.carrier.hold()
    caller = await edge.caller()
    data = request() + b"\r\n" + SECOND.replace(b" HTTP", b"  HTTP") + request()
    caller.send(data[:cut])
    await asyncio.sleep(0.01)
    caller.send(data[cut:])
    await edge.carrier.arrived.wait()
    await until(edge.connection._parser.begins_ambiguously)
    edge.carrier.release()
    answer = await caller.answer()
    assert (answer.status_code, answer.header("Connection")) == (200, "close")
    assert await caller.is_closed()
    assert paths(edge) == ["/v1/charges"]


async def test_more_requests_than_are_read_ahead_are_all_served_across_empty_lines(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(b"\r\n".join([request(), get("/acme/v1/charges")] * (PIPELINED // 2)))
    for _ in range(PIPELINED):
        assert (await caller.answer()).status_code == 200
    assert len(edge.carrier.calls) == PIPELINED


async def test_of_more_requests_than_are_read_ahead_none_behind_a_bare_end_of_line_is_served(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(request() * PIPELINED + b"\n" + SECOND)
    assert (await caller.answer()).status_code == 200
    assert await caller.rest() != b""
    assert 0 < len(edge.carrier.calls) <= PIPELINED
    assert set(paths(edge)) == {"/v1/charges"}


async def test_a_body_that_fills_the_buffer_may_be_followed_by_an_empty_line(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(LARGE + b"\r\n" + SECOND)
    for _ in range(2):
        assert (await caller.answer()).status_code == 200
    assert paths(edge) == ["/v1/charges", "/v1/charges/second"]


async def test_a_bare_end_of_line_behind_a_body_that_fills_the_buffer_does_not_spoil_it(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(LARGE + b"\n" + SECOND)
    assert (await caller.answer()).status_code == 200
    await caller.is_closed()
    assert paths(edge) == ["/v1/charges"]
