"""Bytes to requests, without a socket: what httptools alone would let pass is refused, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paywitness.core.problems import Problem
from paywitness.server.errors import RequestRejected
from paywitness.server.limits_and_timeouts import ServerLimits
from paywitness.server.request_parser import RequestParser, parse_head
from tests.server.raw_client import get, request
from tests.server.test_hostile import CHUNKED, FOLLOWER, HOST, LINE, MALFORMED

LIMITS = ServerLimits()
HUGE = 10**9
# What httptools reads as a request, and another reader may read otherwise, or as another protocol.
LENIENT = {name: data for name, data in MALFORMED.items() if name != "TRACE"} | {
    "two codings in two lines": LINE + HOST + b"Transfer-Encoding: gzip\r\n" + CHUNKED.removeprefix(LINE + HOST),
    "RTSP": b"OPTIONS /acme RTSP/1.0\r\n" + HOST + b"\r\n",
    "a length of nineteen digits": LINE + HOST + b"Content-Length: 0000000000000000002\r\n\r\n{}",
    "two types of content": LINE + HOST + b"Content-Type: text/plain\r\ncontent-type: application/json\r\n\r\n",
}
SOUND = {
    "a length": request(body=b'{"amount":1}'),
    "no body": get("/acme/v1/balance"),
    "empty lines first": b"\r\n\r\n" + request(),
    "chunks": CHUNKED + b"1;a=b\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
    "no chunk": CHUNKED + b"0\r\n\r\n",
    "trailers": CHUNKED + b"2\r\n{}\r\n0\r\nContent-Location: x\r\n\r\n",
    "an upgrade": request("/acme", b"{}", "Upgrade: h2c", "Connection: Upgrade"),
    "two": request() + get("/acme"),
    "an empty line between": request() + b"\r\n" + request(),
}
Read = tuple[list[tuple[str, str, bytes, bool]], bool]


def read(pieces: list[bytes]) -> Read:
    """Every request with its body and whether another may follow it; and whether something was refused."""
    parser = RequestParser(LIMITS)
    found: list[tuple[str, str, bytes, bool]] = []
    current = None
    try:
        for piece in pieces:
            parser.feed(piece)
            while current is not None or (current := parser.next_request()) is not None:
                if parser.body.fault is not None:
                    return found, True
                if not parser.body.complete:
                    break
                keeps = current.keep_alive and parser.body.ends_plainly
                found.append((current.method, current.target, parser.body.take(HUGE), keeps))
                if not keeps:
                    return found, False
                current = None
    except RequestRejected:
        return found, True
    return found, False


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start < end]


@pytest.mark.parametrize("name", LENIENT)
def test_what_can_be_read_in_two_ways_is_refused_however_it_is_cut(name: str) -> None:
    data = LENIENT[name] + FOLLOWER
    for pieces in ([data], [data[:1], data[1:]], [bytes([byte]) for byte in data]):
        found, refused = read(pieces)
        assert (found, refused) == ([], True)


def test_httptools_alone_would_let_much_of_it_pass() -> None:
    """So that nobody takes the grammar in front of it for a luxury."""

    def passes(data: bytes) -> bool:
        try:
            httptools.HttpRequestParser(None).feed_data(data)
        except httptools.HttpParserError:
            return False
        return True

    passed = {name for name, data in LENIENT.items() if passes(data)}
    assert {"LF before the first line", "two spaces before the path", "another coding before chunked"} <= passed
    assert {"two hosts", "chunked in HTTP/1.0", "HTTP/0.9 by silence", "RTSP"} <= passed


def closing(data: bytes) -> bytes:
    """The same of a caller that wants no other request on its connection."""
    return data.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


@pytest.mark.parametrize("name", [name for name in LENIENT if LENIENT[name].startswith(LINE + HOST)])
def test_what_can_be_read_in_two_ways_is_refused_of_a_caller_that_closes_too(name: str) -> None:
    assert read([closing(LENIENT[name])]) == ([], True)


@pytest.mark.parametrize("name", ["a length", "no body", "chunks", "no chunk", "trailers"])
def test_a_caller_that_closes_is_read_as_any_other(name: str) -> None:
    (kept,), _ = read([SOUND[name]])
    assert read([closing(SOUND[name])]) == ([(*kept[:3], False)], False)


@given(st.sampled_from(sorted(SOUND)), st.lists(st.integers(0, 200), max_size=6))
@example("chunks", [90, 91, 92])
def test_cuts_change_nothing_of_a_sound_request(name: str, places: list[int]) -> None:
    data = SOUND[name]
    whole, refused = read([data])
    assert not refused
    assert whole
    assert read(cut(data, places)) == (whole, False)


@given(
    st.binary(max_size=60),
    st.lists(st.integers(0, 300), max_size=4),
    st.integers(0, 200),
    st.sampled_from(sorted(SOUND)),
)
def test_noise_is_refused_or_read_as_the_same_whatever_the_cuts(
    noise: bytes, places: list[int], at: int, name: str
) -> None:
    """A refusal may come sooner or later; what is read before it is the same."""
    data = SOUND[name][:at] + noise + SOUND[name][at:]
    whole, _ = read([data])
    pieces, _ = read(cut(data, places))
    shorter, longer = sorted((whole, pieces), key=len)
    assert longer[: len(shorter)] == shorter or longer[: len(shorter) - 1] == shorter[:-1]


def test_headers_stay_as_they_came_but_for_the_blanks_around_values() -> None:
    incoming, _ = parse_head(LINE + HOST + b"X-A: 1\r\nx-a:\t b  c \t\r\nX-A:\r\nY: \xe9\r\n\r\n", LIMITS)
    assert incoming.headers[1:] == ((b"X-A", b"1"), (b"x-a", b"b  c"), (b"X-A", b""), (b"Y", b"\xe9"))
    assert incoming.values(b"x-a") == ("1", "b  c", "")
    assert incoming.values(b"z") == ()


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        (b"1.1", None, True),
        (b"1.1", b"close", False),
        (b"1.1", b"x, Close", False),
        (b"1.1", b"keep-alive, close", False),
        (b"1.1", b"closed", True),
        (b"1.0", None, False),
        (b"1.0", b"Keep-Alive", True),
        (b"1.0", b"keep-alive, close", False),
    ],
)
def test_whether_another_may_follow(version: bytes, connection: bytes | None, kept: bool) -> None:
    line = b"Connection: %b\r\n" % connection if connection is not None else b""
    incoming, _ = parse_head(b"GET / HTTP/%b\r\n" % version + HOST + line + b"\r\n", LIMITS)
    assert incoming.keep_alive is kept


def test_a_client_of_a_proxy_may_say_it_in_its_own_words() -> None:
    assert not parse_head(LINE + HOST + b"Proxy-Connection: close\r\n\r\n", LIMITS)[0].keep_alive


def test_close_said_first_is_not_taken_back() -> None:
    head = LINE + HOST + b"Connection: close\r\nConnection: keep-alive\r\n\r\n"
    assert not parse_head(head, LIMITS)[0].keep_alive


@pytest.mark.parametrize("beginning", [b"\x16\x03\x01", b"{}", b"get ", b"\x00", b"GET / HTTP/1.1\nHost"])
def test_what_no_continuation_can_mend_is_refused_at_once(beginning: bytes) -> None:
    parser = RequestParser(LIMITS)
    parser.feed(beginning)
    with pytest.raises(RequestRejected):
        parser.next_request()


def test_empty_lines_without_end_are_a_head_too_large() -> None:
    parser = RequestParser(LIMITS)
    for _ in range(LIMITS.head_bytes_max // 1000):
        parser.feed(b"\r\n" * 500)
        assert parser.next_request() is None
    parser.feed(b"\r\n" * 500_000)
    with pytest.raises(RequestRejected) as refused:
        parser.next_request()
    assert (refused.value.kind, refused.value.status_code) == (Problem.TOO_LARGE, 431)


def test_requests_by_the_thousand_in_one_read_are_each_read() -> None:
    parser = RequestParser(LIMITS)
    parser.feed(b"\r\n".join(request(f"/acme/v1/charges/{number}") for number in range(3000)))
    for number in range(3000):
        found = parser.next_request()
        assert found is not None
        assert (found.target, parser.body.take(HUGE)) == (f"/acme/v1/charges/{number}", b"{}")
    assert (parser.next_request(), parser.held_bytes) == (None, 0)


def test_a_head_without_end_is_refused_once_it_is_too_large() -> None:
    parser = RequestParser(LIMITS)
    parser.feed(LINE + HOST)
    while parser.unread_bytes <= LIMITS.head_bytes_max:
        assert parser.next_request() is None
        parser.feed(b"X: " + b"a" * 1000 + b"\r\n")
    with pytest.raises(RequestRejected) as refused:
        parser.next_request()
    assert (refused.value.kind, refused.value.status_code) == (Problem.TOO_LARGE, 431)


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        (b"", b"0" * 1000),
        (b"2;a=", b"x" * 1000),
        (b'2;a="', b"x" * 1000),
        (b"0\r\nX: ", b"a" * 1000),
        (b"", b"1;a=" + b"x" * 1000 + b"\r\na\r\n"),
    ],
    ids=["leading zeros", "an extension", "a quoted extension", "a trailer", "an extension for every byte"],
)
def test_framing_without_body_is_bounded(first: bytes, piece: bytes) -> None:
    parser = RequestParser(LIMITS)
    parser.feed(CHUNKED + first)
    assert parser.next_request() is not None
    for _ in range(200):
        parser.feed(piece)
        if parser.body.fault is not None:
            break
    assert parser.body.fault is not None
    assert parser.body.fault.kind is Problem.MALFORMED
    assert not parser.body.complete


def test_chunks_of_one_byte_are_no_attack() -> None:
    parser = RequestParser(LIMITS)
    parser.feed(CHUNKED)
    assert parser.next_request() is not None
    for _ in range(60_000):
        parser.feed(b"1\r\na\r\n")
    parser.feed(b"0\r\n\r\n")
    assert (parser.body.fault, parser.body.complete, parser.body.ends_plainly) == (None, True, True)
    assert parser.body.take(HUGE) == b"a" * 60_000


@pytest.mark.parametrize(
    "behind", [b"\r\n", b"\n", b"\r", FOLLOWER, CHUNKED + b"0\r\n\r\n", b"0\r\n\r\n", b"X: y\r\n\r\n"]
)
def test_what_comes_behind_a_chunked_body_in_the_same_read_is_not_trusted(behind: bytes) -> None:
    parser = RequestParser(LIMITS)
    parser.feed(CHUNKED + b"2\r\n{}\r\n0\r\n\r\n" + behind)
    assert parser.next_request() is not None
    assert parser.body.take(HUGE) == b"{}"
    assert not (parser.body.complete and parser.body.ends_plainly)


@pytest.mark.parametrize(
    "data",
    [
        LINE + HOST + b'Content-Length: 2\r\n\r\n{"amount": 1099}',
        LINE + HOST + b"Content-Lenght: 2\r\n\r\n{}" + FOLLOWER,
        LINE + HOST + b"Transfer-Encodin: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        request() + b"\r\n{}" + FOLLOWER,
        request() + b"AMOUNT=5\r\n" + FOLLOWER,
        request() + b"AMOUNT",
        CHUNKED + b"2\r\n{}}\r\n0\r\n\r\n",
    ],
    ids=["a short length", "no length", "no coding", "behind an empty line", "a line", "a word", "a broken chunk"],
)
def test_a_request_whose_length_is_known_to_be_wrong_reaches_nobody(data: bytes) -> None:
    found, refused = read([data])
    if data.endswith(b"AMOUNT"):  # it may still become the name of a method
        assert [body for _, _, body, _ in found] == [b"{}"]
    else:
        assert (found, refused) == ([], True)


def test_nothing_of_one_request_is_in_the_next() -> None:
    parser = RequestParser(LIMITS)
    parser.feed(CHUNKED + b"2\r\n{}\r\n")
    assert parser.next_request() is not None
    parser.feed(b"0\r\n\r\n")
    parser.feed(request("/acme/second", b"abc", "X-Second: 2"))
    second = parser.next_request()
    assert second is not None
    assert (second.target, parser.body.take(HUGE)) == ("/acme/second", b"abc")
    assert [name for name, _ in second.headers] == [b"Host", b"X-Second", b"Content-Length"]


@given(st.binary(max_size=300), st.lists(st.integers(1, 80), min_size=1, max_size=30))
def test_a_body_is_taken_in_order_and_no_byte_is_lost(body: bytes, sizes: list[int]) -> None:
    parser = RequestParser(LIMITS)
    data = request(body=body) + FOLLOWER
    parser.feed(data[: len(data) // 2])
    taken = b""
    first = parser.next_request()
    for size in sizes:
        taken += parser.body.take(size)
    parser.feed(data[len(data) // 2 :])
    first = first or parser.next_request()
    assert first is not None
    taken += parser.body.take(HUGE)
    assert taken == body
    assert parser.body.received_bytes == len(body)
    second = parser.next_request()
    assert second is not None
    assert (second.target, parser.body.take(HUGE)) == ("/acme/v1/charges/smuggled", b"{}")
