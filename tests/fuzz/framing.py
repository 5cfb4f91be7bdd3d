"""Fuzzing what callers send: whatever the edge carries, another reader reads as the same call; and the edge goes on."""

from __future__ import annotations

import asyncio
import contextlib
import re

import h11

from paywitness.server.limits_and_timeouts import ServerLimits
from paywitness.server.server import HttpServer
from tests.fuzz.mutation import in_pieces, kept, mutated
from tests.server.fake_engine import FakeCarrier

_BODY = b'{"amount": 1099}'
_HEAD = b"POST /acme/v1/charges HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
FOLLOWER = b"POST /acme/v1/charges/second HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
SEEDS = [
    _HEAD + b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY,
    _HEAD + b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY + FOLLOWER,
    _HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(_BODY) + _BODY + b"\r\n0\r\n\r\n" + FOLLOWER,
    _HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}" + FOLLOWER,
    b"GET /acme/v1/charges?limit=1 HTTP/1.1\r\nHost: a\r\n\r\n" + FOLLOWER,
]
PIECES = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b" ",
        b"\t",
        b"\x00",
        b"\x0b",
        b":",
        b",",
        b";a=b",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
    ),
    *(b"Content-Length: 2\r\n", b"content-length: 0\r\n", b"Content-Length : 2\r\n", b"Content-Length: 2, 2\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"transfer-encoding:\tchunked\r\n"),
    *(b"Transfer-Encoding: xchunked\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\n", b"Host: b\r\n", b"HTTP/1.0"),
    *(b" HTTP/1.1\r\n", b"GET ", b"CONNECT ", b"/../", b"%2f", b"//", b"+2", b"0x2", b"ffffffffffffffff\r\n", b"\xff"),
    *(b"Sec-WebSocket-Key: a\r\n", b"Expect: 100-continue\r\n", b"Trailer: a\r\n", b"a: b\r\n", FOLLOWER),
]
REQUESTS = mutated([*SEEDS, *kept("request")], PIECES)
_LINES = re.compile(rb"\A(?:\r\n)+")
Read = tuple[str, bytes]  # the target below the provider's name, and the body

_LIMITS = ServerLimits(head_s=0.3, body_s=0.3, body_start_s=0.3, body_idle_s=0.3, keep_alive_s=0.3, linger_s=0.02)


def request_is_carried_as_another_reads_it(data: bytes, cuts: list[int]) -> None:
    carried, refused, broken, still_serves = asyncio.run(_sent(in_pieces(data, cuts)))
    assert not broken, broken
    assert still_serves
    theirs = _by_h11(data)
    left_out = _left_out(carried, theirs)
    assert left_out is not None, (carried, theirs)
    assert left_out <= refused, (carried, theirs)  # a path may be refused, and the next call be carried


def _left_out(carried: list[Read], theirs: list[Read]) -> int | None:
    """How many of theirs, up to the last that was carried, were not; None where one was carried that is not theirs."""
    place = 0
    for call in carried:
        if call not in theirs[place:]:
            return None
        place = theirs.index(call, place) + 1
    return place - len(carried)


class _CarriesAll(FakeCarrier):
    """Takes every call for an operation, so that all are seen, in their order."""

    def might_be_operation(self, provider: str, method: str, segments: tuple[str, ...]) -> bool:
        return True


async def _sent(pieces: list[bytes]) -> tuple[list[Read], int, dict[str, int], bool]:
    carrier = _CarriesAll()
    server = HttpServer(carrier, _LIMITS)
    address = await server.start("127.0.0.1", 0)
    try:
        await _talk(address, pieces)
        carried = [(call.target, call.body) for call in carrier.calls]
        refused = server.counters.refused.total()
        carrier.calls.clear()
        await _talk(address, [FOLLOWER])
        return carried, refused, dict(server.counters.broken), len(carrier.calls) == 1
    finally:
        await server.close()


async def _talk(address: tuple[str, int], pieces: list[bytes]) -> None:
    """Say it all, hang up our side, and listen until the other has, too."""
    reader, writer = await asyncio.open_connection(*address)
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write_eof()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(10):
            await reader.read()
    writer.transport.abort()


def _by_h11(data: bytes) -> list[Read]:
    """The calls to acme, one after the other, as far as they can be read. Empty lines before one are passed
    over, as RFC 9112 has it; h11 does not."""
    found: list[Read] = []
    with contextlib.suppress(h11.RemoteProtocolError):
        while data := _LINES.sub(b"", data):
            theirs = h11.Connection(h11.SERVER)
            theirs.receive_data(data)
            event, target, body = theirs.next_event(), b"", b""
            while isinstance(event, h11.Request | h11.Data):
                if isinstance(event, h11.Request):
                    target = event.target
                else:
                    body += bytes(event.data)
                event = theirs.next_event()
            if not isinstance(event, h11.EndOfMessage):
                break
            if (below := _below_acme(target.decode("latin-1"))) is not None:
                found.append((below, body))
            if theirs.their_state is h11.MUST_CLOSE:
                break
            data = theirs.trailing_data[0]
    return found


def _below_acme(target: str) -> str | None:
    whole, _, query = target.partition("?")
    first, slash, rest = whole.removeprefix("/").partition("/")
    path = slash + rest or "/"
    return None if first != "acme" else f"{path}?{query}" if query else path
