"""Nine hundred callers that send a byte a second, or nothing at all, beside one that pays.

They dribble wherever a caller can: in heads, in CONNECT, in the TLS handshake and within TLS, in bodies, in what comes
after a served request. Each counts seconds by its own bytes, so that a slow machine makes none of them late.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from statistics import median

import pytest

from tests.e2e.conftest import Provider
from tests.e2e.sidecar import TOP, Sidecar, wait_until

pytestmark = pytest.mark.slow

MakeSidecar = Callable[..., Sidecar]
EACH = 84  # dribblers of a kind: 504 in all
SILENT = 400
BYTES_MAX = 10  # a byte a second: gone within ten seconds
WINDOW = 40  # calls; the slowest of them stands for the ninety-ninth percentile
TRIES = 3  # noise of the machine only ever adds: one fair try is enough, and real harm shows in all
HEAD = b"POST /acme/v1/charges HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
CONNECT = b"CONNECT api.acme.test:443 HTTP/1.1\r\nHost: api.acme.test:443\r\n"
Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Place:
    """Where the sidecar listens, and what its clients trust."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.port = sidecar.port
        self.trusting = ssl.create_default_context(cafile=str(sidecar.home / "ca-bundle.pem"))

    async def open(self) -> Opened:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def tunnel(self) -> Opened:
        reader, writer = await self.open()
        writer.write(CONNECT + b"\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        return reader, writer


async def in_a_head(place: Place) -> tuple[Opened, bytes]:
    return await place.open(), HEAD


async def in_connect(place: Place) -> tuple[Opened, bytes]:
    return await place.open(), CONNECT


async def in_a_handshake(place: Place) -> tuple[Opened, bytes]:
    outgoing = ssl.MemoryBIO()
    shaking = place.trusting.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="api.acme.test")
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    return await place.tunnel(), outgoing.read()


async def within_tls(place: Place) -> tuple[Opened, bytes]:
    reader, writer = await place.tunnel()
    await writer.start_tls(place.trusting, server_hostname="api.acme.test")
    return (reader, writer), HEAD


async def in_a_body(place: Place) -> tuple[Opened, bytes]:
    reader, writer = await place.open()
    writer.write(HEAD + b"\r\n")
    return (reader, writer), b"{" + b" " * 999


async def in_a_second_head(place: Place) -> tuple[Opened, bytes]:
    reader, writer = await place.open()
    writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    await reader.readexactly(int(length.split(b":")[1]))
    return (reader, writer), HEAD


async def in_silence(place: Place) -> tuple[Opened, bytes]:
    return await place.open(), b""


KINDS = (in_a_head, in_connect, in_a_handshake, within_tls, in_a_body, in_a_second_head)


async def dribble(opened: Opened, data: bytes) -> int:
    """Send byte after byte until the other side has gone; how many it took."""
    reader, writer = opened
    ended = asyncio.ensure_future(reader.read())
    sent = 0
    try:
        while not ended.done():
            writer.write(data[sent : sent + 1])
            sent += 1
            await asyncio.wait([ended], timeout=1.0)
        with contextlib.suppress(OSError):
            await ended
        return sent
    finally:
        ended.cancel()
        writer.transport.abort()


async def besiege(place: Place) -> list[asyncio.Task[int]]:
    """All of them, spread over a second or so."""
    tasks: list[asyncio.Task[int]] = []
    kinds = [*KINDS * EACH, *([in_silence] * SILENT)]
    for number, kind in enumerate(kinds):
        opened, data = await kind(place)
        tasks.append(asyncio.create_task(dribble(opened, data)))
        if number % 10 == 0:
            await asyncio.sleep(0.01)
    return tasks


_numbers = count(1)


async def window(payer: Opened) -> float:
    """The slowest of some charges over one connection, in seconds."""
    reader, writer = payer
    slowest_s = 0.0
    for _ in range(WINDOW):
        name = f"slow-{next(_numbers)}".encode()
        body = b'{"amount":1099,"currency":"EUR","metadata":{"order_id":"%b"}}' % name
        head = (
            b"POST /acme/v1/charges HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer test\r\n"
            b"Content-Type: application/json\r\nIdempotency-Key: %b\r\nContent-Length: %d\r\n\r\n"
        )
        began_mono = time.monotonic()
        writer.write(head % (name, len(body)) + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        slowest_s = max(slowest_s, time.monotonic() - began_mono)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        length = next(line for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
    return slowest_s


async def siege(place: Place) -> tuple[float, float, list[int]]:
    """The payer's p99 in peace and under siege, medians of windows; and how many bytes each besieger could send."""
    payer = await place.open()
    try:
        await window(payer)  # warm
        besiegers = await besiege(place)
        loud: list[float] = []
        while not all(task.done() for task in besiegers):
            loud.append(await window(payer))
        quiet = [await window(payer) for _ in loud[:20]]
        return median(quiet), median(loud), [task.result() for task in besiegers]
    finally:
        payer[1].transport.abort()


@pytest.fixture
def _room_for_a_thousand() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_room_for_a_thousand")
def test_those_who_dribble_are_gone_in_ten_seconds_and_a_payer_hardly_notices(
    sandbox: Provider, make_sidecar: MakeSidecar
) -> None:
    sidecar = make_sidecar(sandbox.url)
    init = ["ca", "init", "--home", str(sidecar.home), "--policies", str(sidecar.home / "policies")]
    subprocess.run([sys.executable, "-m", "paywitness", *init], cwd=TOP, check=True, capture_output=True)
    sidecar.start()
    assert sidecar.process is not None
    descriptors = f"/proc/{sidecar.process.pid}/fd"
    at_first = len(os.listdir(descriptors))
    seen: list[tuple[float, float]] = []
    for _ in range(TRIES):
        quiet_s, loud_s, sent = asyncio.run(siege(Place(sidecar)))
        assert len(sent) == EACH * len(KINDS) + SILENT
        assert max(sent) <= BYTES_MAX
        wait_until(lambda: len(os.listdir(descriptors)) <= at_first + 20, "the end of their connections")
        seen.append((quiet_s, loud_s))
        if loud_s < 2 * quiet_s:
            break
    assert min(loud_s / quiet_s for quiet_s, loud_s in seen) < 2, seen
    assert "Traceback" not in sidecar.log
