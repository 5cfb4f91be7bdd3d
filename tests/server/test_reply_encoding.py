"""What a reply looks like on the wire: untouched but for framing, connection and a missing date."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from paywitness.core.call import Headers
from paywitness.core.operation import Outcome
from paywitness.core.reply import Reply
from tests.server.conftest import Edge
from tests.server.fake_engine import Streamed
from tests.server.raw_client import get, request, until


def reply(status_code: int = 200, headers: Headers = (), body: bytes = b"") -> Reply:
    return Reply(status_code, headers, body, Outcome.NONE)


async def test_headers_leave_in_their_order_case_and_number(edge: Edge) -> None:
    headers = (
        (b"Set-Cookie", b"a=1"),
        (b"x-REQUEST-id", b"r\xff\xe9"),
        (b"Set-Cookie", b"b=2"),
        (b"set-cookie", b"c=3"),
        (b"Date", b"Thu, 01 Jan 1970 00:00:00 GMT"),
        (b"Server", b"theirs"),
    )
    edge.carrier.reply = reply(201, headers, b"made")
    answer = await (await edge.caller()).ask(request())
    assert (answer.status_code, answer.reason, answer.body) == (201, "Created", b"made")
    assert answer.headers == [*headers, (b"Content-Length", b"4")]


async def test_nothing_is_invented_but_a_date(edge: Edge) -> None:
    edge.carrier.reply = reply(200, (), b"x")
    answer = await (await edge.caller()).ask(request())
    assert [name for name, _ in answer.headers] == [b"Content-Length", b"Date"]
    assert answer.header("Date").endswith(" GMT")  # type: ignore[union-attr]


async def test_framing_and_connection_headers_of_a_reply_do_not_leave(edge: Edge) -> None:
    framing = ((b"Content-Length", b"999"), (b"Transfer-Encoding", b"chunked"), (b"Connection", b"close"))
    edge.carrier.reply = reply(200, (*framing, (b"Keep-Alive", b"1"), (b"X", b"y")), b"{}")
    caller = await edge.caller()
    answer = await caller.ask(request())
    assert [name for name, _ in answer.headers] == [b"X", b"Content-Length", b"Date"]
    assert (await caller.ask(request())).body == b"{}"


@pytest.mark.parametrize(("status_code", "reason"), [(299, ""), (402, "Payment Required"), (599, ""), (422, None)])
async def test_any_final_status_leaves(edge: Edge, status_code: int, reason: str | None) -> None:
    edge.carrier.reply = reply(status_code, (), b"{}")
    answer = await (await edge.caller()).ask(request())
    assert answer.status_code == status_code
    assert reason is None or answer.reason == reason


async def test_a_status_that_ends_nothing_breaks_the_connection(edge: Edge) -> None:
    edge.carrier.reply = reply(101)
    caller = await edge.caller()
    caller.send(request())
    with pytest.raises(ConnectionResetError):
        await caller.rest()


@pytest.mark.parametrize("status_code", [204, 304])
async def test_a_status_without_a_body_has_none(edge: Edge, status_code: int) -> None:
    edge.carrier.reply = reply(status_code, ((b"ETag", b"1"),), b"never")
    caller = await edge.caller()
    answer = await caller.ask(request())
    assert [name for name, _ in answer.headers] == [b"ETag", b"Date"]
    assert (await caller.ask(request())).status_code == status_code


@pytest.mark.parametrize(("headers", "length"), [(((b"Content-Length", b"42"),), "42"), ((), None)])
async def test_the_answer_to_head_has_no_body_and_no_invented_length(
    edge: Edge, headers: Headers, length: str | None
) -> None:
    edge.carrier.reply = reply(200, headers, b"")
    caller = await edge.caller()
    answer = await caller.ask(request(method="HEAD", body=None), "HEAD")
    assert answer.header("Content-Length") == length
    assert (await caller.ask(request())).status_code == 200


async def test_a_header_that_would_split_the_head_does_not_leave(edge: Edge) -> None:
    headers = (
        (b"Paywitness-Key", b"k\r\nSet-Cookie: stolen=1"),
        (b"X-Lf", b"a\nb"),
        (b"X-Nul", b"a\0b"),
        (b"X Name", b"a"),
        (b"X-Fine", b"a\tb"),
    )
    edge.carrier.reply = reply(200, headers, b"{}")
    answer = await (await edge.caller()).ask(request())
    assert [name for name, _ in answer.headers] == [b"X-Fine", b"Content-Length", b"Date"]


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 4_000_000])
async def test_a_body_leaves_byte_for_byte(edge: Edge, size: int) -> None:
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    edge.carrier.reply = reply(200, (), body)
    caller = await edge.caller()
    for _ in range(2):
        assert (await caller.ask(request())).body == body


async def test_a_reply_is_never_compressed(edge: Edge) -> None:
    edge.carrier.reply = reply(200, ((b"Content-Type", b"text/plain"),), b"a" * 10_000)
    answer = await (await edge.caller()).ask(request("/acme/v1/charges", b"", "Accept-Encoding: gzip, deflate"))
    assert answer.header("Content-Encoding") is None
    assert answer.body == b"a" * 10_000


# --- answers that are still coming


def pieces(*data: bytes, then: Exception | None = None) -> AsyncIterator[bytes]:
    async def generate() -> AsyncIterator[bytes]:
        for piece in data:
            yield piece
        if then is not None:
            raise then

    return generate()


async def test_a_streamed_answer_is_chunked(edge: Edge) -> None:
    edge.carrier.streamed = lambda: Streamed(200, ((b"X", b"y"),), pieces(b"ab", b"", b"c"))
    caller = await edge.caller()
    answer = await caller.ask(get("/acme/v1/files"))
    assert (answer.body, answer.header("Transfer-Encoding"), answer.header("X")) == (b"abc", "chunked", "y")
    assert (await caller.ask(get("/acme/v1/files"))).body == b"abc"


async def test_a_streamed_answer_keeps_a_length_it_knows(edge: Edge) -> None:
    edge.carrier.streamed = lambda: Streamed(200, ((b"Content-Length", b"3"),), pieces(b"ab", b"c"))
    caller = await edge.caller()
    answer = await caller.ask(get("/acme/v1/files"))
    assert (answer.body, answer.header("Content-Length")) == (b"abc", "3")
    assert (await caller.ask(get("/acme/v1/files"))).body == b"abc"


async def test_a_streamed_answer_to_http_1_0_ends_with_the_connection(edge: Edge) -> None:
    edge.carrier.streamed = lambda: Streamed(200, (), pieces(b"ab", b"c"))
    caller = await edge.caller()
    answer = await caller.ask(get("/acme/v1/files", "Connection: keep-alive", version="1.0"))
    assert (answer.body, answer.header("Connection")) == (b"abc", "close")


@pytest.mark.parametrize(("method", "status_code"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_a_streamed_answer_without_a_body_has_none(edge: Edge, method: str, status_code: int) -> None:
    edge.carrier.streamed = lambda: Streamed(status_code, (), pieces(b"never"))
    caller = await edge.caller()
    answer = await caller.ask(request("/acme/v1/files", None, method=method), method)
    assert (answer.status_code, [name for name, _ in answer.headers]) == (status_code, [b"Date"])
    assert (await caller.ask(request("/acme/v1/files", None, method="HEAD"), "HEAD")).status_code == status_code


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ((), lambda: pieces(b"ab", then=RuntimeError("cut"))),
        ((), lambda: pieces(b"ab", then=ConnectionResetError())),
        (((b"Content-Length", b"3"),), lambda: pieces(b"ab", then=RuntimeError("cut"))),
        (((b"Content-Length", b"3"),), lambda: pieces(b"ab")),
        (((b"Content-Length", b"3"),), lambda: pieces(b"ab", b"cd")),
    ],
    ids=["chunked", "reset", "with a length", "shorter", "longer"],
)
async def test_an_answer_that_breaks_off_never_looks_whole(edge: Edge, version: str, headers: Headers, body) -> None:
    edge.carrier.streamed = lambda: Streamed(200, headers, body())
    caller = await edge.caller()
    caller.send(get("/acme/v1/files", version=version))
    with pytest.raises(ConnectionResetError):
        await caller.rest()
    assert edge.broken == {"upstream-broke": 1}


async def test_a_streamed_answer_waits_for_a_slow_caller(edge: Edge) -> None:
    given = 0

    async def generate() -> AsyncIterator[bytes]:
        nonlocal given
        for _ in range(2000):
            given += 1
            yield b"x" * 65_536

    edge.carrier.streamed = lambda: Streamed(200, (), generate())
    caller = await edge.caller()
    caller.send(get("/acme/v1/files"))
    await caller.head()
    seen = -1
    while seen != given:  # until it stands still
        seen = given
        await asyncio.sleep(0.1)
    assert given < 500
    total = 0
    while size := int(await caller.reader.readuntil(b"\r\n"), 16):
        total += len(await caller.reader.readexactly(size + 2)) - 2
    assert total == 2000 * 65_536


async def test_a_caller_that_leaves_ends_the_stream(edge: Edge) -> None:
    closed = asyncio.Event()

    async def generate() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65_536
                await asyncio.sleep(0)
        finally:
            closed.set()

    edge.carrier.streamed = lambda: Streamed(200, (), generate())
    caller = await edge.caller()
    caller.send(get("/acme/v1/files"))
    await caller.head()
    caller.reset()
    async with asyncio.timeout(10):
        await closed.wait()
    await until(lambda: edge.broken.get("caller-left") == 1)
