"""The reader gives the same verdict however the bytes are cut, and leaves them as they came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paywitness.core.evidence import WireFault
from paywitness.upstream.exchange import HEAD_BYTES_MAX, HEADERS_MAX, ResponseParser
from tests.upstream.peer import OK

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n2;x\r\nok\r\n3\r\nay!\r\n0\r\nT: u\r\n\r\n"
ANSWERS = [
    OK,
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK,
    CHUNKED,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\noops\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\n\r\n",
    b"garbage",
    b"5\r\nhello\r\n" * 70 + b"\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * (HEADERS_MAX + 1) + b"A: b\n\r\n\r\n",
]
AFTER = [b"", b"\r\n", b"x", OK, b"HTTP/1.1 200 OK\r\n\r\n"]


def read(*pieces: bytes, head_only: bool = False, body_bytes_max: int | None = 1000) -> ResponseParser:
    reader = ResponseParser(head_only=head_only, body_bytes_max=body_bytes_max)
    for piece in pieces:
        if reader.fault is not None:
            break
        reader.feed(piece)
    return reader


def verdict(reader: ResponseParser) -> tuple[object, ...]:
    whole = reader.response() if reader.complete else None
    return whole, reader.fault, reader.leftover, reader.keep_alive if whole else None


@pytest.mark.parametrize("after", AFTER, ids=repr)
@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
def test_the_verdict_is_the_same_wherever_the_bytes_are_cut(answer: bytes, after: bytes) -> None:
    data = answer + after
    expected = verdict(read(data))
    for cut in range(1, len(data)):
        assert verdict(read(data[:cut], data[cut:])) == expected
    assert verdict(read(*(data[i : i + 1] for i in range(len(data))))) == expected


@pytest.mark.parametrize(
    ("line_feed_at", "fault"), [(HEAD_BYTES_MAX - 1, WireFault.MALFORMED), (HEAD_BYTES_MAX, WireFault.OVERSIZED)]
)
def test_of_two_faults_in_a_large_head_the_one_that_comes_first_is_told(line_feed_at: int, fault: WireFault) -> None:
    data = b"HTTP/1.1 200 OK\r\nA: ".ljust(line_feed_at, b"a") + b"\n" + b"a" * 1000 + b"\r\n\r\n"
    for cut in (1, 1000, line_feed_at, line_feed_at + 1, line_feed_at + 2, len(data) - 4, len(data)):
        assert read(data[:cut], data[cut:]).fault is fault


@pytest.mark.parametrize("after", AFTER[1:], ids=repr)
@pytest.mark.parametrize("answer", [OK, CHUNKED, ANSWERS[3]], ids=["length", "chunks", "204"])
def test_what_follows_an_answer_spoils_the_connection_and_not_the_answer(answer: bytes, after: bytes) -> None:
    alone, followed = read(answer), read(answer + after)
    assert (alone.leftover, followed.leftover) == (False, True)
    assert followed.response() == alone.response()
    assert followed.fault is None


def test_headers_keep_their_order_case_and_repetition() -> None:
    head = b"HTTP/1.1 200 Very: OK\r\nx-dup: 1\r\nX-Dup:2\r\nEmpty:\r\nUrl: http://a/b:c\r\nContent-Length: 0\r\n\r\n"
    response = read(head).response()
    assert response.reason == b"Very: OK"
    assert response.headers == (
        (b"x-dup", b"1"),
        (b"X-Dup", b"2"),
        (b"Empty", b""),
        (b"Url", b"http://a/b:c"),
        (b"Content-Length", b"0"),
    )


def test_a_trailer_is_no_header() -> None:
    assert read(CHUNKED).response().headers == ((b"Transfer-Encoding", b"chunked"), (b"A", b"b"))


def test_a_header_whose_name_only_ends_like_a_length_is_none() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Content-Length: 9\r\nContent-Length: 2\r\nX: content-length: 7\r\n\r\nok"
    assert read(head).response().body == b"ok"


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    for beginning in (b"", b"HTTP/1.1 ", b"HTTP/1.1 204 OK\r\n", b"HTTP/1.1 200 OK\r\n", CHUNKED[:55]):
        reader = read(beginning + data)
        assert reader.fault in (None, WireFault.MALFORMED, WireFault.OVERSIZED)
        assert not (reader.fault and reader.complete)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6))
def test_chunks_are_joined(pieces: list[bytes]) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    reader = read(CHUNKED[: CHUNKED.index(b"2;x")] + chunks + b"0\r\n\r\n", body_bytes_max=2000)
    assert reader.response().body == b"".join(pieces)
    assert not reader.leftover


def test_a_server_says_how_long_it_keeps_a_connection() -> None:
    with_words = OK.replace(b"\r\n\r\n", b"\r\nKeep-Alive: timeout=5, max=100\r\n\r\n")
    assert read(with_words).keep_alive_s == 5
    assert read(OK).keep_alive_s is None
