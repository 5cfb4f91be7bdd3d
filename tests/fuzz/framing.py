"""Fuzzing what callers send: whatever the edge carries, another reader reads as the same call; and the edge goes on."""

from __future__ import annotations

import asyncio
import contextlib
import re

import h11

from proxy.edge.limits import EdgeLimits
from proxy.edge.server import EdgeServer
from tests.edge.carrier import FakeCarrier
from tests.fuzz.mutation import in_pieces, kept, mutated

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
Read = tuple[str, bytes]  # the path and the body

_LIMITS = EdgeLimits(head_s=0.3, body_s=0.3, body_start_s=0.3, body_idle_s=0.3, keep_alive_s=0.3, linger_s=0.02)


def request_is_carried_as_another_reads_it(data: bytes, cuts: list[int]) -> None:
    carried, broken, still_serves = asyncio.run(_sent(in_pieces(data, cuts)))
    assert not broken, broken
    assert still_serves
    theirs = _by_h11(data)
    assert carried == theirs[: len(carried)], (carried, theirs)


async def _sent(pieces: list[bytes]) -> tuple[list[Read], dict[str, int], bool]:
    carrier = FakeCarrier()
    server = EdgeServer(carrier, _LIMITS)
    address = await server.start("127.0.0.1", 0)
    try:
        await _talk(address, pieces)
        carried = [(call.target, call.body) for call in carrier.calls]
        carrier.calls.clear()
        await _talk(address, [FOLLOWER])
        return carried, dict(server.counters.broken), len(carrier.calls) == 1
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
    """The calls under v1/charges, one after the other, as far as they can be read. Empty lines before one are passed
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
            if target.startswith(b"/acme/v1/charges"):
                found.append((target.decode("latin-1").removeprefix("/acme"), body))
            if theirs.their_state is h11.MUST_CLOSE:
                break
            data = theirs.trailing_data[0]
    return found
