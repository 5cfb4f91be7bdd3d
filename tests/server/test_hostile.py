"""Requests that can be read in two ways, or in none. Each is refused, and what follows it is not served."""

from __future__ import annotations

import pytest

from paywitness.server.limits_and_timeouts import ServerLimits
from tests.server.conftest import Edge, MakeEdge
from tests.server.raw_client import get, request, until

LINE = b"POST /acme/v1/charges HTTP/1.1\r\n"
HOST = b"Host: a\r\n"
CHUNKED = LINE + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
FOLLOWER = b"POST /acme/v1/charges/smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"

MALFORMED = {
    "length and chunked": LINE + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": LINE + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two equal lengths": LINE + HOST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "two lengths": LINE + HOST + b"Content-Length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "a list of lengths": LINE + HOST + b"Content-Length: 2, 2\r\n\r\n{}",
    "a signed length": LINE + HOST + b"Content-Length: +2\r\n\r\n{}",
    "a negative length": LINE + HOST + b"Content-Length: -2\r\n\r\n{}",
    "a length in hex": LINE + HOST + b"Content-Length: 0x2\r\n\r\n{}",
    "an empty length": LINE + HOST + b"Content-Length:\r\n\r\n{}",
    "a length in words": LINE + HOST + b"Content-Length: two\r\n\r\n{}",
    "a length beyond counting": LINE + HOST + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "a length in two parts": LINE + HOST + b"Content-Length: 1 1\r\n\r\n{}",
    "another coding": LINE + HOST + b"Transfer-Encoding: identity\r\n\r\n{}",
    "another coding before chunked": LINE + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another coding after chunked": LINE + HOST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "almost chunked": LINE + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked behind a control": LINE + HOST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": LINE + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an empty coding": LINE + HOST + b"Transfer-Encoding:\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST /acme/v1/charges HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": LINE + HOST + b"X: a\r\n b\r\n\r\n",
    "a header folded into the first line": LINE + b" X: a\r\n" + HOST + b"\r\n",
    "LF before the first line": b"\n" + LINE + HOST + b"\r\n",
    "LF and an empty line before the first": b"\n\r\n" + LINE + HOST + b"\r\n",
    "an empty line and LF before the first": b"\r\n\n" + LINE + HOST + b"\r\n",
    "CR before the first line": b"\r" + LINE + HOST + b"\r\n",
    "a CR too many before the first line": b"\r\r\n" + LINE + HOST + b"\r\n",
    "lines that end in LF": b"POST /acme/v1/charges HTTP/1.1\nHost: a\nContent-Length: 0\n\n",
    "a header that ends in LF": LINE + b"Host: a\nX: b\r\n\r\n",
    "a CR within a value": LINE + HOST + b"X: a\rb\r\n\r\n",
    "a CR too many": LINE + HOST + b"X: a\r\r\n\r\n",
    "NUL in a value": LINE + HOST + b"X: a\0b\r\n\r\n",
    "NUL in a name": LINE + HOST + b"X\0: a\r\n\r\n",
    "a control in a value": LINE + HOST + b"X: a\x01b\r\n\r\n",
    "DEL in a value": LINE + HOST + b"X: a\x7fb\r\n\r\n",
    "a space before the colon": LINE + HOST + b"Content-Length : 2\r\n\r\n{}",
    "a tab before the colon": LINE + HOST + b"X\t: a\r\n\r\n",
    "no colon": LINE + HOST + b"Xa\r\n\r\n",
    "no name": LINE + HOST + b": a\r\n\r\n",
    "a name that is none": LINE + HOST + b"X(: a\r\n\r\n",
    "a name beyond ASCII": LINE + HOST + b"X\xe9: a\r\n\r\n",
    "no host": LINE + b"Content-Length: 0\r\n\r\n",
    "an empty host": LINE + b"Host:\r\n\r\n",
    "two hosts": LINE + HOST + b"hOST: b\r\n\r\n",
    "a host that is none": LINE + b"Host: a@b/c d\r\n\r\n",
    "HTTP/0.9 by silence": b"GET /acme/v1/charges\r\n\r\n",
    "HTTP/0.9 by name": b"GET /acme/v1/charges HTTP/0.9\r\n" + HOST + b"\r\n",
    "HTTP/1.2": b"GET /acme/v1/charges HTTP/1.2\r\n" + HOST + b"\r\n",
    "HTTP/2 by name": b"GET /acme/v1/charges HTTP/2.0\r\n" + HOST + b"\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a version with more": b"GET /acme/v1/charges HTTP/1.1x\r\n" + HOST + b"\r\n",
    "a version in lower case": b"GET /acme/v1/charges http/1.1\r\n" + HOST + b"\r\n",
    "a method in lower case": b"post /acme/v1/charges HTTP/1.1\r\n" + HOST + b"\r\n",
    "a method of another protocol": b"SOURCE /acme/v1/charges ICE/1.0\r\n" + HOST + b"\r\n",
    "TRACE": b"TRACE /acme/v1/charges HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tab for a space": b"GET\t/acme/v1/charges HTTP/1.1\r\n" + HOST + b"\r\n",
    "two spaces before the path": b"GET  /acme/v1/charges HTTP/1.1\r\n" + HOST + b"\r\n",
    "two spaces before the version": b"POST /acme/v1/charges  HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}",
    "two spaces before chunks": CHUNKED.replace(b" HTTP", b"  HTTP") + b"2\r\n{}\r\n0\r\n\r\n",
    "a space behind the version": b"GET /acme/v1/charges HTTP/1.1 \r\n" + HOST + b"\r\n",
    "a space within the path": b"GET /acme/v1/cha rges HTTP/1.1\r\n" + HOST + b"\r\n",
    "NUL in the path": b"GET /acme/v1/cha\0rges HTTP/1.1\r\n" + HOST + b"\r\n",
    "raw bytes in the path": b"GET /acme/v1/\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a chunk size in words": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    "a negative chunk size": CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
    "a chunk size with 0x": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk size beyond counting": CHUNKED + b"ffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "a space behind a chunk size": CHUNKED + b"2 \r\n{}\r\n0\r\n\r\n",
    "a chunk size that ends in LF": CHUNKED + b"2\n{}\r\n0\r\n\r\n",
    "a chunk that ends in LF": CHUNKED + b"2\r\n{}\n0\r\n\r\n",
    "LF in a chunk extension": CHUNKED + b"2;a\nb\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than its size": CHUNKED + b"2\r\n{}}\r\n0\r\n\r\n",
    "a last chunk that ends in LF": CHUNKED + b"2\r\n{}\r\n0\n\n",
    "more than a hundred headers": LINE + HOST + b"X: a\r\n" * 100 + b"\r\n",
    "a hundred trailers": CHUNKED + b"2\r\n{}\r\n0\r\n" + b"X: a\r\n" * 100 + b"\r\n",
}


@pytest.mark.parametrize("split", [False, True], ids=["whole", "head and body apart"])
@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_is_refused_and_the_connection_closed(edge: Edge, name: str, split: bool) -> None:
    caller = await edge.caller()
    data = MALFORMED[name] + FOLLOWER
    if split and data.startswith(LINE):
        head, mark, body = data.partition(b"\r\n\r\n")
        caller.send(head + mark)
        await until(lambda: edge.server.counters.requests > 0 or bool(edge.refused))
        caller.send(body)
    else:
        caller.send(data)
    answer = await caller.answer()
    assert (answer.status_code, answer.problem) == (400, "malformed")
    assert answer.header("Paywitness-Outcome") == "none"
    assert answer.header("Connection") == "close"
    assert answer.json["sent"] is False
    assert await caller.is_closed()
    assert edge.carrier.calls == []
    assert edge.carrier.forwarded == []


@pytest.mark.parametrize(
    "data",
    [
        b"GET /acme/" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        LINE + HOST + b"X: " + b"a" * 9000 + b"\r\n\r\n",
        LINE + HOST + b"".join(b"X-%d: " % number + b"a" * 4000 + b"\r\n" for number in range(10)) + b"\r\n",
    ],
    ids=["line", "header", "all headers"],
)
async def test_a_head_that_is_too_large_is_refused(edge: Edge, data: bytes) -> None:
    caller = await edge.caller()
    answer = await caller.ask(data)
    assert (answer.status_code, answer.problem) == (431, "too-large")
    assert await caller.is_closed()
    assert edge.carrier.calls == []


async def test_a_head_that_grows_without_end_is_refused_before_it_ends(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(LINE + HOST)
    for number in range(20):
        caller.send(b"X-%d: " % number + b"a" * 4000 + b"\r\n")
        await caller.writer.drain()
    answer = await caller.answer()
    assert (answer.status_code, answer.problem) == (431, "too-large")


async def test_a_large_body_in_one_segment_with_its_head_is_no_large_head(edge: Edge) -> None:
    caller = await edge.caller()
    assert (await caller.ask(request(body=b"x" * 60_000))).status_code == 200
    assert (await caller.ask(request())).status_code == 200


@pytest.mark.parametrize("data", [b"\r\n" + get("/"), b"\r\n\r\n" + get("/"), get("/") + b"\r\n"])
async def test_empty_lines_around_a_request_are_harmless(edge: Edge, data: bytes) -> None:
    caller = await edge.caller()
    assert (await caller.ask(data, "GET")).status_code == 200
    assert (await caller.ask(get("/"), "GET")).status_code == 200


async def test_trailers_never_become_headers_of_the_next_request(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(CHUNKED + b"2\r\n{}\r\n0\r\nPaywitness-Key: smuggled\r\nX-Trailer: t\r\n\r\n" + FOLLOWER)
    answer = await caller.answer()
    assert (answer.status_code, answer.header("Connection")) == (200, "close")
    assert await caller.is_closed()
    assert edge.carrier.call.body == b"{}"
    assert edge.carrier.call.headers == ()


async def test_a_chunked_request_that_ends_plainly_keeps_its_connection(edge: Edge) -> None:
    caller = await edge.caller()
    answer = await caller.ask(CHUNKED + b"1;a=b\r\n{\r\n1\r\n}\r\n0\r\n\r\n")
    assert (answer.status_code, answer.header("Connection")) == (200, None)
    caller.send(CHUNKED)
    caller.send(b"2\r\n{}\r\n0\r\n")
    caller.send(b"\r\n")
    assert (await caller.answer()).status_code == 200
    assert [call.body for call in edge.carrier.calls] == [b"{}", b"{}"]


async def test_what_follows_a_chunked_request_in_one_segment_is_not_trusted(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(CHUNKED + b"2\r\n{}\r\n0\r\n\r\n" + FOLLOWER)
    assert (await caller.answer()).header("Connection") == "close"
    assert await caller.is_closed()
    assert edge.carrier.call.path == "/v1/charges"


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
async def test_an_upgrade_is_ignored_and_ends_the_connection(edge: Edge, protocol: str) -> None:
    caller = await edge.caller()
    data = request("/acme/v1/charges", b"{}", f"Upgrade: {protocol}", "Connection: Upgrade, HTTP2-Settings")
    answer = await caller.ask(data + FOLLOWER)
    assert (answer.status_code, answer.header("Connection")) == (200, "close")
    assert await caller.is_closed()
    assert edge.carrier.call.headers == ()


async def test_http_1_0_is_served_and_closed(edge: Edge) -> None:
    caller = await edge.caller()
    answer = await caller.ask(b"POST /acme/v1/charges HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
    assert (answer.status_code, answer.header("Connection")) == (200, "close")
    assert await caller.is_closed()


async def test_http_1_0_is_kept_alive_when_it_asks(edge: Edge) -> None:
    caller = await edge.caller()
    for _ in range(2):
        answer = await caller.ask(get("/", "Connection: keep-alive", version="1.0"), "GET")
        assert (answer.status_code, answer.header("Connection")) == (200, "keep-alive")


async def test_connections_beyond_the_limit_are_closed_at_once(make_edge: MakeEdge) -> None:
    edge = await make_edge(ServerLimits(connections_max=2))
    first, second = await edge.caller(), await edge.caller()
    assert (await first.ask(get("/"), "GET")).status_code == 200
    assert (await second.ask(get("/"), "GET")).status_code == 200
    assert edge.server.counters.connections_open == 2
    third = await edge.caller()
    assert await third.is_closed()
    assert edge.refused == {"too-many-connections": 1}
    first.close()
    await until(lambda: edge.server.counters.connections_open == 1)
    assert (await (await edge.caller()).ask(get("/"), "GET")).status_code == 200
