"""Passing a call through: pieces both ways, at the slower side's pace, and a cut body never looks whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from paywitness.core.evidence import Evidence, NetworkPhase, WireFault
from paywitness.core.policy import UpstreamTimeouts
from paywitness.upstream.client import UpstreamClient, UpstreamLimits
from paywitness.upstream.request import StreamRequest
from paywitness.upstream.stream import ResponseBodyBroken, StreamedResponse
from tests.upstream.conftest import CHARGE, Authority, origin
from tests.upstream.peer import OK, PATIENCE_S, Peer, Provider, Script, answer_all

UPLOAD = StreamRequest("POST", b"/v1/files", ((b"Host", b"files.acme.test"),), 10)
FETCH = StreamRequest("GET", b"/v1/reports", (), None)


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece


async def begun(client: UpstreamClient, port: int, *, scheme: str = "http", timeouts: UpstreamTimeouts | None = None):
    response = await client.stream(origin(port, scheme), FETCH, None, timeouts or UpstreamTimeouts())
    assert isinstance(response, StreamedResponse), response
    return response


async def whole(response: StreamedResponse) -> bytes:
    return b"".join([piece async for piece in response])


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_body_of_known_length_goes_out_as_it_came(
    client: UpstreamClient, authority: Authority, scheme: str
) -> None:
    with Provider(answer_all, tls=authority.server() if scheme == "https" else None) as provider:
        where = origin(provider.port, scheme)
        response = await client.stream(where, UPLOAD, pieces(b"01234", b"", b"56789"), UpstreamTimeouts())
        assert isinstance(response, StreamedResponse)
        assert (response.status_code, response.reason) == (200, b"OK")
        assert response.headers == ((b"Content-Length", b"2"),)
        assert await whole(response) == b"ok"
        assert provider.peers[0].requests == [
            b"POST /v1/files HTTP/1.1\r\nHost: files.acme.test\r\nContent-Length: 10\r\n\r\n0123456789"
        ]
        assert (await client.send(where, CHARGE, UpstreamTimeouts())).reused_connection


async def test_a_body_of_unknown_length_goes_out_chunked(client: UpstreamClient) -> None:
    heard = bytearray()

    def hears_chunks(peer: Peer) -> None:
        while not heard.endswith(b"0\r\n\r\n"):
            heard.extend(peer.socket.recv(65536))
        peer.send(OK)

    with Provider(hears_chunks) as provider:
        request = StreamRequest("PUT", b"/f", ((b"Host", b"h"), (b"Content-Length", b"7")), None)
        response = await client.stream(origin(provider.port), request, pieces(b"hello", b"x" * 16), UpstreamTimeouts())
        assert isinstance(response, StreamedResponse)
        assert await whole(response) == b"ok"
    chunks = b"5\r\nhello\r\n10\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n"
    assert bytes(heard) == b"PUT /f HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks


async def test_a_call_without_a_body_has_none(client: UpstreamClient) -> None:
    with Provider(answer_all) as provider:
        assert await whole(await begun(client, provider.port)) == b"ok"
        assert provider.peers[0].requests == [b"GET /v1/reports HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % provider.port]


async def test_the_head_is_given_before_the_body_is_there(client: UpstreamClient) -> None:
    go_on = threading.Event()

    def slow(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        go_on.wait(PATIENCE_S)
        peer.send(b"2\r\nay\r\n0\r\n\r\n")

    with Provider(slow, then=answer_all) as provider:
        response = await begun(client, provider.port)
        body = aiter(response)
        assert await anext(body) == b"ok"
        go_on.set()
        assert [piece async for piece in body] == [b"ay"]
        assert (await client.send(origin(provider.port), CHARGE, UpstreamTimeouts())).reused_connection


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_slow_caller_slows_the_provider_down(client: UpstreamClient, authority: Authority, scheme: str) -> None:
    size = 30_000_000  # far more than both kernels and our own bound hold
    sent = 0

    def pours(peer: Peer) -> None:
        nonlocal sent
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // 100_000):
            peer.send(b"x" * 100_000)
            sent += 100_000

    with Provider(pours, tls=authority.server() if scheme == "https" else None) as provider:
        response = await begun(client, provider.port, scheme=scheme)
        exchange = response._exchange
        while exchange._connection.transport.is_reading():  # noqa: ASYNC110 - no event tells that it is our turn
            await asyncio.sleep(0)
        assert exchange.parser.held_bytes < 2_000_000
        assert sent < size
        assert len(await whole(response)) == size


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("act", "fault"),
    [
        (Peer.close, WireFault.CLOSED),
        (Peer.reset, WireFault.RESET),
        (lambda peer: peer.send(b"zz\r\n"), WireFault.MALFORMED),
        (lambda peer: None, WireFault.BODY_TIMEOUT),
    ],
    ids=["close", "reset", "malformed", "silence"],
)
async def test_a_body_that_breaks_off_raises_after_what_had_come(
    client: UpstreamClient, authority: Authority, act: Script, fault: WireFault, scheme: str
) -> None:
    go = threading.Event()

    def breaks(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        go.wait(PATIENCE_S)
        act(peer)
        peer.finish_reading()

    with Provider(breaks, tls=authority.server() if scheme == "https" else None) as provider:
        response = await begun(client, provider.port, scheme=scheme, timeouts=UpstreamTimeouts(body_idle_s=0.3))
        body = aiter(response)
        assert await anext(body) == b"ok"
        go.set()
        with pytest.raises(ResponseBodyBroken) as broken:
            await anext(body)
        evidence = broken.value.evidence
        assert (evidence.phase, evidence.fault, evidence.response) == (NetworkPhase.RECEIVING, fault, None)
        assert client._origin_pools[origin(provider.port, scheme)]._busy == 0


async def test_no_answer_is_evidence(client: UpstreamClient) -> None:
    def silent(peer: Peer) -> None:
        peer.request()
        peer.until_gone()

    with Provider(silent) as provider:
        evidence = await client.stream(origin(provider.port), FETCH, None, UpstreamTimeouts(first_byte_s=0.15))
        assert isinstance(evidence, Evidence)
        assert (evidence.phase, evidence.fault) == (NetworkPhase.AWAITING, WireFault.FIRST_BYTE_TIMEOUT)
        assert evidence.reset_by_us


async def test_a_head_that_is_malformed_is_evidence(client: UpstreamClient) -> None:
    def mumbles(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx")
        peer.until_gone()

    with Provider(mumbles) as provider:
        evidence = await client.stream(origin(provider.port), FETCH, None, UpstreamTimeouts())
        assert isinstance(evidence, Evidence)
        assert (evidence.fault, evidence.response) == (WireFault.MALFORMED, None)


async def test_an_unreachable_provider_is_evidence(client: UpstreamClient) -> None:
    with Provider(answer_all) as provider:
        port = provider.port
    evidence = await client.stream(origin(port), UPLOAD, pieces(b"0123456789"), UpstreamTimeouts())
    assert isinstance(evidence, Evidence)
    assert (evidence.fault, evidence.sent) == (WireFault.CONNECT_REFUSED, False)


@pytest.mark.parametrize("answer", [OK.replace(b"200 OK", b"413 Too Large"), b""], ids=["answered", "closed"])
async def test_an_upload_ends_when_the_provider_has_spoken_or_left(client: UpstreamClient, answer: bytes) -> None:
    ended = False

    async def endless() -> AsyncIterator[bytes]:
        nonlocal ended
        try:
            yield b"x" * 5
            await asyncio.get_running_loop().create_future()  # the caller sends no more for now
        finally:
            ended = True

    def refuses(peer: Peer) -> None:
        peer.until_readable()
        if answer:
            peer.send(answer)
        else:
            peer.cut()
        peer.until_gone()

    with Provider(refuses) as provider:
        result = await client.stream(origin(provider.port), UPLOAD, endless(), UpstreamTimeouts())
        if answer:
            assert isinstance(result, StreamedResponse)
            assert (result.status_code, await whole(result)) == (413, b"ok")
        else:
            assert isinstance(result, Evidence)
            assert result.fault is WireFault.CLOSED
        assert await provider.ending() == "reset"
        assert ended


async def test_an_early_answer_that_stops_arriving_times_out(client: UpstreamClient) -> None:
    def begins(peer: Peer) -> None:
        peer.until_readable()
        peer.send(OK[:-1])
        peer.until_gone()

    async def stalls() -> AsyncIterator[bytes]:
        yield b"01234"
        await asyncio.get_running_loop().create_future()

    with Provider(begins) as provider:
        where = origin(provider.port)
        response = await client.stream(where, UPLOAD, stalls(), UpstreamTimeouts(body_idle_s=0.15))
        assert isinstance(response, StreamedResponse)
        with pytest.raises(ResponseBodyBroken) as broken:
            await whole(response)
        assert broken.value.evidence.fault is WireFault.BODY_TIMEOUT


@pytest.mark.parametrize("given", [(b"0123456789", b"more"), (b"short",)], ids=["longer", "shorter"])
async def test_a_body_that_does_not_fit_its_length_is_our_callers_error(
    client: UpstreamClient, given: tuple[bytes, ...]
) -> None:
    with Provider(answer_all) as provider:
        where = origin(provider.port)
        with pytest.raises(ValueError, match="than was said"):
            await client.stream(where, UPLOAD, pieces(*given), UpstreamTimeouts())
        assert await provider.ending() == "reset"
        assert client._origin_pools[where]._busy == 0


async def test_what_the_callers_body_raises_comes_out(client: UpstreamClient) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"01234"
        raise TimeoutError("the caller left")

    with Provider(answer_all) as provider:
        with pytest.raises(TimeoutError, match="the caller left"):
            await client.stream(origin(provider.port), UPLOAD, breaks(), UpstreamTimeouts())
        assert await provider.ending() == "reset"


async def test_an_upload_into_a_black_hole_times_out(client: UpstreamClient) -> None:
    look = threading.Event()

    def hole(peer: Peer) -> None:
        look.wait(PATIENCE_S)

    async def much() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 1_000_000

    with Provider(hole, receive_buffer_bytes=65536) as provider:
        request = StreamRequest("POST", b"/", (), 100_000_000)
        evidence = await client.stream(origin(provider.port), request, much(), UpstreamTimeouts(write_s=0.2))
        look.set()
    assert isinstance(evidence, Evidence)
    assert (evidence.phase, evidence.fault) == (NetworkPhase.SENDING, WireFault.WRITE_TIMEOUT)
    assert evidence.reset_by_us


async def test_a_response_that_is_dropped_is_reset_and_frees_its_place() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1))

    def endless(peer: Peer) -> None:
        if peer.number == 1:
            peer.request()
            peer.send(b"HTTP/1.1 200 OK\r\n\r\nsome")
            peer.until_gone()

    with Provider(endless, then=answer_all) as provider:
        response = await begun(client, provider.port)
        await response.close()
        await response.close()
        assert await provider.ending() == "reset"
        assert (await client.send(origin(provider.port), CHARGE, UpstreamTimeouts())).complete
    await client.close()


async def test_a_response_that_nobody_reads_is_given_up_and_frees_its_place() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1))

    def pours(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while peer.number == 1:
            peer.send(b"x" * 100_000)

    with Provider(pours) as provider:
        await begun(client, provider.port, timeouts=UpstreamTimeouts(body_idle_s=0.15))
        lane = client._origin_pools[origin(provider.port)]
        assert await provider.ending() == "reset"
        assert lane._busy == 0
    await client.close()


async def test_a_finished_response_does_not_disturb_the_next_call_on_its_connection(client: UpstreamClient) -> None:
    go = threading.Event()

    def waits_on_the_second(peer: Peer) -> None:
        peer.request()
        peer.send(OK)
        peer.request()
        go.wait(PATIENCE_S)
        peer.send(OK)

    with Provider(waits_on_the_second) as provider:
        response = await begun(client, provider.port)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(client.send(origin(provider.port), CHARGE, UpstreamTimeouts()))
            await asyncio.sleep(0)
            await response.close()
            go.set()
        assert following.result().complete
        assert following.result().reused_connection
        assert await whole(response) == b"ok"
