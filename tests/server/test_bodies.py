"""The caller's body: whole and untouched for an operation, piece by piece for everything else."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from paywitness.server.limits_and_timeouts import ServerLimits
from tests.server.conftest import Edge, MakeEdge
from tests.server.raw_client import Caller, get, request, until

CHUNKED = "Transfer-Encoding: chunked"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_a_compressed_body_arrives_as_it_came(edge: Edge) -> None:
    compressed = gzip.compress(b'{"amount":1}')
    caller = await edge.caller()
    await caller.ask(request("/acme/v1/charges", compressed, "Content-Encoding: gzip"))
    assert edge.carrier.call.body == compressed
    assert edge.carrier.call.headers == ((b"Content-Encoding", b"gzip"),)


async def test_a_body_in_many_pieces_arrives_whole(edge: Edge) -> None:
    body = bytes(range(256)) * 4096  # one MiB: the most that is allowed
    caller = await edge.caller()
    data = request(body=body)
    for start in range(0, len(data), 50_000):
        caller.send(data[start : start + 50_000])
        await caller.writer.drain()
    assert (await caller.answer()).status_code == 200
    assert edge.carrier.call.body == body


async def test_a_body_in_many_chunks_arrives_whole(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(request("/acme/v1/charges", None, CHUNKED))
    for _ in range(5000):
        caller.send(chunk(b"ab"))
    caller.send(b"0\r\n\r\n")
    assert (await caller.answer()).status_code == 200
    assert edge.carrier.call.body == b"ab" * 5000


async def test_a_body_that_says_it_is_too_large_is_refused_unread(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(b"POST /acme/v1/charges HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n")
    answer = await caller.answer()
    assert (answer.status_code, answer.problem) == (413, "too-large")
    assert answer.header("Connection") == "close"
    assert edge.carrier.calls == []


async def test_a_body_that_turns_out_too_large_is_refused(make_edge: MakeEdge) -> None:
    edge = await make_edge(ServerLimits(body_bytes_max=1000))
    caller = await edge.caller()
    caller.send(request("/acme/v1/charges", None, CHUNKED) + chunk(b"x" * 600) + chunk(b"x" * 600))
    answer = await caller.answer()
    assert (answer.status_code, answer.problem) == (413, "too-large")
    whole = await edge.caller()
    caller.abort()
    answer = await whole.ask(request("/acme/v1/charges", None, CHUNKED) + chunk(b"x" * 1001) + b"0\r\n\r\n")
    assert answer.status_code == 413
    assert edge.carrier.calls == []


async def test_a_refusal_reaches_a_caller_that_is_still_sending(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(request(body=b"x" * 8_000_000))  # sent without a look at the answer, as most clients do
    await caller.writer.drain()
    assert (await caller.answer()).status_code == 413


async def test_a_call_that_is_no_operation_has_no_bound_on_its_size(make_edge: MakeEdge) -> None:
    edge = await make_edge(ServerLimits(body_bytes_max=1000))
    body = b"0123456789" * 300_000
    caller = await edge.caller()
    assert (await caller.ask(request("/acme/v1/files", body))).status_code == 200
    seen = edge.carrier.forward_seen
    assert seen.pieces is not None
    assert b"".join(seen.pieces) == body
    assert max(map(len, seen.pieces)) <= 64 * 1024
    assert (seen.length, seen.call.body) == (len(body), b"")


@pytest.mark.parametrize(
    ("data", "length", "pieces"),
    [
        (get("/acme/v1/files"), None, None),
        (request("/acme/v1/files", b""), 0, None),
        (request("/acme/v1/files", b"abc"), 3, [b"abc"]),
        (request("/acme/v1/files", None, CHUNKED) + chunk(b"abc") + b"0\r\n\r\n", None, [b"abc"]),
        (request("/acme/v1/files", None, CHUNKED) + b"0\r\n\r\n", None, []),
    ],
    ids=["none", "empty", "with a length", "chunked", "chunked and empty"],
)
async def test_a_forwarded_body_keeps_what_was_said_of_its_length(
    edge: Edge, data: bytes, length: int | None, pieces: list[bytes] | None
) -> None:
    caller = await edge.caller()
    assert (await caller.ask(data)).status_code == 200
    assert (edge.carrier.forward_seen.length, edge.carrier.forward_seen.pieces) == (length, pieces)


async def takes(caller: Caller, data: bytes) -> bool:
    """Whether the other side goes on taking what is sent."""
    caller.send(data)
    try:
        async with asyncio.timeout(0.3):
            await caller.writer.drain()
    except TimeoutError:
        return False
    return True


async def test_a_body_that_nobody_takes_is_not_read(edge: Edge) -> None:
    edge.carrier.hold()
    caller = await edge.caller()
    caller.send(b"POST /acme/v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
    await edge.carrier.arrived.wait()
    sent = 0
    while await takes(caller, b"x" * 100_000):
        sent += 100_000
    assert sent < 20_000_000  # what the kernel's buffers and ours hold
    edge.carrier.release()
    for _ in range(sent + 100_000, 100_000_000, 100_000):
        caller.send(b"x" * 100_000)
        await caller.writer.drain()
    assert (await caller.answer()).status_code == 200
    assert edge.carrier.forward_seen.pieces is not None
    assert sum(map(len, edge.carrier.forward_seen.pieces)) == 100_000_000


async def test_requests_behind_the_one_that_is_served_are_not_read_without_end(edge: Edge) -> None:
    edge.carrier.hold()
    caller = await edge.caller()
    caller.send(request())
    await edge.carrier.arrived.wait()
    large, sent = request(body=b"x" * 100_000), 0
    while await takes(caller, large):
        sent += 1
        assert sent < 200  # what the kernel's buffers and ours hold
    assert len(edge.carrier.calls) == 1
    edge.carrier.release()
    for _ in range(1 + sent + 1):
        assert (await caller.answer()).status_code == 200
    assert len(edge.carrier.calls) == sent + 2


@pytest.mark.parametrize("path", ["/acme/v1/charges", "/acme/v1/files"])
async def test_a_caller_that_expects_it_is_told_to_continue(edge: Edge, path: str) -> None:
    caller = await edge.caller()
    caller.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n".encode())
    assert (await caller.head())[0] == 100
    assert (await caller.ask(b"{}")).status_code == 200
    call = edge.carrier.call if edge.carrier.calls else edge.carrier.forward_seen.call
    assert call.headers == ()


async def test_a_body_that_is_there_already_needs_no_continue(edge: Edge) -> None:
    caller = await edge.caller()
    assert (await caller.ask(request("/acme/v1/charges", b"{}", "Expect: 100-continue"))).status_code == 200


@pytest.mark.parametrize(
    ("path", "length", "status_code"),
    [("/nobody/v1", 2, 403), ("/acme/v1/charges", 9_999_999, 413), ("/acme/v1/../x", 2, 403)],
)
async def test_a_refused_caller_is_not_told_to_continue(edge: Edge, path: str, length: int, status_code: int) -> None:
    caller = await edge.caller()
    caller.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n".encode())
    answer = await caller.answer()
    assert (answer.status_code, answer.header("Connection")) == (status_code, "close")


async def test_a_forward_that_reads_no_body_asks_for_none(edge: Edge) -> None:
    edge.carrier.reads_bodies = False
    caller = await edge.caller()
    caller.send(b"POST /acme/v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    answer = await caller.answer()
    assert (answer.status_code, answer.header("Connection")) == (200, "close")


async def test_another_expectation_cannot_be_met(edge: Edge) -> None:
    caller = await edge.caller()
    answer = await caller.ask(request("/acme/v1/charges", b"{}", "Expect: miracles"))
    assert (answer.status_code, answer.problem) == (417, "malformed")
    assert edge.carrier.calls == []


async def test_http_1_0_is_never_told_to_continue(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(b"POST /acme/v1/charges HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    await until(lambda: edge.server.counters.requests == 1)
    assert (await caller.ask(b"{}")).status_code == 200


@pytest.mark.parametrize("path", ["/acme/v1/charges", "/acme/v1/files"])
async def test_a_body_whose_framing_breaks_half_way_is_refused(edge: Edge, path: str) -> None:
    caller = await edge.caller()
    caller.send(request(path, None, CHUNKED) + chunk(b"{"))
    await until(lambda: edge.server.counters.requests == 1)
    answer = await caller.ask(b"zz\r\n")
    assert (answer.status_code, answer.problem) == (400, "malformed")
    assert await caller.is_closed()
    assert edge.carrier.calls == []
    assert edge.refused == {"malformed": 1}
