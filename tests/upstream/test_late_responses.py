"""What comes after its attempt timed out is still evidence; and while we listen for it nothing else can go wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.evidence import Evidence, NetworkPhase, WireFault
from paywitness.core.policy import UpstreamTimeouts
from paywitness.upstream.client import UpstreamClient, UpstreamLimits
from paywitness.upstream.exchange import UpstreamExchange
from paywitness.upstream.late_responses import LateExchange, LateResponses
from paywitness.upstream.request import request_bytes
from paywitness.upstream.tls import tls_context
from tests.upstream.cases import (
    ANSWER_BYTES_MAX,
    CHUNKED,
    HASTY,
    HEAD,
    SHORT_ANSWER,
    drips,
    drips_until_reset,
    says,
    says_and_closes,
    says_and_is_cut,
    says_and_resets,
)
from tests.upstream.conftest import CHARGE, Authority, origin
from tests.upstream.peer import OK, PATIENCE_S, Peer, Provider, Script, answer_all

SHORT_S = 0.3
LONG_S = 600.0  # nobody waits for its end
LARGE = replace(CHARGE, body=b"x" * 16_000_000)  # more than both kernels' buffers hold
BUFFERED = replace(CHARGE, body=b"x" * 1_000_000)  # as much as our kernel takes at once, and more than the peer's does

AWAITING, RECEIVING = NetworkPhase.AWAITING, NetworkPhase.RECEIVING
FIRST_BYTE_TIMEOUT, BODY_TIMEOUT = WireFault.FIRST_BYTE_TIMEOUT, WireFault.BODY_TIMEOUT


class Told:
    """What `on_late` was told."""

    def __init__(self) -> None:
        self.evidence: list[Evidence] = []
        self._came = asyncio.Event()

    def __call__(self, evidence: Evidence) -> None:
        self.evidence.append(evidence)
        self._came.set()

    async def only(self) -> Evidence:
        async with asyncio.timeout(PATIENCE_S):
            await self._came.wait()
        (evidence,) = self.evidence
        return evidence


class Tardy:
    """Reads the first connection's request, says a first part, and the rest when it is told to."""

    def __init__(self, rest: Script, first: bytes = b"") -> None:
        self.go = threading.Event()
        self.read = threading.Event()
        self._first = first
        self._rest = rest

    def __call__(self, peer: Peer) -> None:
        if peer.number > 1:
            return
        peer.request()
        self.read.set()
        peer.send(self._first)
        self.go.wait(PATIENCE_S)
        self._rest(peer)


@asynccontextmanager
async def listening_client(
    authority: Authority, harvest_s: float = SHORT_S, harvests_max: int = 64
) -> AsyncIterator[UpstreamClient]:
    client = UpstreamClient(
        # One place, and idle for ever: what ends here was ended.
        bounds=UpstreamLimits(connections_per_origin=1, idle_s=LONG_S, response_bytes_max=ANSWER_BYTES_MAX),
        ssl_context=tls_context(cafile=authority.root),
        late_response_s=harvest_s,
        late_responses_max=harvests_max,
    )
    try:
        yield client
    finally:
        await client.close()


async def harvest_over(client: UpstreamClient) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while client._late_responses:  # noqa: ASYNC110 - nobody is told of an end without an answer
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)  # what was to be told is told by now


def secured(authority: Authority, scheme: str) -> dict[str, Any]:
    return {"then": answer_all, "tls": authority.server() if scheme == "https" else None}


def assert_timed_out(evidence: Evidence, phase: NetworkPhase, fault: WireFault, listening_s: float) -> None:
    assert (evidence.phase, evidence.fault, evidence.response) == (phase, fault, None)
    assert evidence.late_response_window_s == pytest.approx(listening_s)
    assert evidence.reset_by_us is (listening_s == 0)


# -- a whole answer


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("first", "rest", "phase", "fault", "body"),
    [
        pytest.param(b"", says(OK), AWAITING, FIRST_BYTE_TIMEOUT, b"ok", id="all of it late"),
        pytest.param(b"", drips(OK), AWAITING, FIRST_BYTE_TIMEOUT, b"ok", id="in single bytes"),
        pytest.param(b"HTTP/1.1 100 C\r\n\r\n", says(OK), RECEIVING, FIRST_BYTE_TIMEOUT, b"ok", id="100, then late"),
        pytest.param(OK[:9], says(OK[9:]), RECEIVING, BODY_TIMEOUT, b"ok", id="the rest of a head"),
        pytest.param(OK[:-1], says(OK[-1:]), RECEIVING, BODY_TIMEOUT, b"ok", id="the rest of a body"),
        pytest.param(
            CHUNKED + b"2\r\nok\r\n",
            says(b"1\r\n!\r\n0\r\n\r\n"),
            RECEIVING,
            BODY_TIMEOUT,
            b"ok!",
            id="the rest of the chunks",
        ),
        pytest.param(
            CHUNKED + b"4\r\nok",
            says(b"!!\r\n0\r\n\r\n"),
            RECEIVING,
            BODY_TIMEOUT,
            b"ok!!",
            id="the rest of one chunk",
        ),
    ],
)
async def test_a_late_answer_is_told_once_with_its_whole_body(
    authority: Authority, scheme: str, first: bytes, rest: Script, phase: NetworkPhase, fault: WireFault, body: bytes
) -> None:
    told, tardy = Told(), Tardy(rest, first)
    async with listening_client(authority, 5.0) as client:
        with Provider(tardy, **secured(authority, scheme)) as provider:
            where = origin(provider.port, scheme)
            evidence = await client.send(where, CHARGE, HASTY, on_late=told)
            assert_timed_out(evidence, phase, fault, 5.0)
            assert evidence.bytes_written == len(request_bytes(where, CHARGE))

            tardy.go.set()
            late = await told.only()
            assert (late.phase, late.fault) == (NetworkPhase.COMPLETE, None)
            assert late.response is not None
            assert (late.response.status_code, late.response.body) == (200, body)
            assert late.bytes_written == evidence.bytes_written
            assert late.duration_s > evidence.duration_s
            assert (late.late_response_window_s, late.reset_by_us, late.reused_connection) == (0.0, False, False)
            assert late.detail == "answered 200, after the attempt had timed out"

            assert await provider.ending() == "fin"  # answered, so it ends in peace; but it ends
            assert len(client._late_responses) == 0
            assert len(told.evidence) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_late_answer_that_ends_with_the_connection_is_told(authority: Authority, scheme: str) -> None:
    told, tardy = Told(), Tardy(says_and_closes(HEAD + b"\r\nok"))
    async with listening_client(authority, 5.0) as client:
        with Provider(tardy, **secured(authority, scheme)) as provider:
            await client.send(origin(provider.port, scheme), CHARGE, HASTY, on_late=told)
            tardy.go.set()
            late = await told.only()
    assert late.response is not None
    assert (late.response.body, late.response.close_delimited) == (b"ok", True)


async def test_a_late_answer_on_a_kept_connection_says_so(authority: Authority) -> None:
    told, go = Told(), threading.Event()

    def tardy_at_the_second(peer: Peer) -> None:
        peer.request()
        peer.send(OK)
        peer.request()
        go.wait(PATIENCE_S)
        peer.send(OK)

    async with listening_client(authority, 5.0) as client:
        with Provider(tardy_at_the_second, then=answer_all) as provider:
            where = origin(provider.port)
            assert (await client.send(where, CHARGE, UpstreamTimeouts(), on_late=told)).complete
            # Longer than a kernel puts off an acknowledgement on a connection in conversation.
            evidence = await client.send(where, CHARGE, UpstreamTimeouts(first_byte_s=0.4), on_late=told)
            assert_timed_out(evidence, AWAITING, FIRST_BYTE_TIMEOUT, 5.0)
            go.set()
            assert (await told.only()).reused_connection
            assert await provider.ending() == "fin"


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_no_other_call_shares_a_connection_that_listens(authority: Authority, scheme: str) -> None:
    """Nor does it take up a place in the lane: there is only one, and the next call gets it."""
    told, tardy = Told(), Tardy(says(OK.replace(b"ok", b"no")))
    async with listening_client(authority, 5.0) as client:
        with Provider(tardy, **secured(authority, scheme)) as provider:
            where = origin(provider.port, scheme)
            await client.send(where, CHARGE, HASTY, on_late=told)
            second = await client.send(where, CHARGE, UpstreamTimeouts())
            tardy.go.set()
            late = await told.only()
            third = await client.send(where, CHARGE, UpstreamTimeouts())
            assert second.response is not None
            assert third.response is not None
            assert late.response is not None
            assert [answer.response.body for answer in (second, third, late) if answer.response] == [
                b"ok",
                b"ok",
                b"no",
            ]
            assert (second.reused_connection, third.reused_connection) == (False, True)
            assert [len(peer.requests) for peer in provider.peers] == [1, 2]
            assert await provider.ending() == "fin"


# -- less than a whole answer


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("rest", "resets"),
    [
        pytest.param(says_and_closes(b""), True, id="a close"),
        pytest.param(says_and_closes(OK[:-1]), True, id="a close within the body"),
        pytest.param(says_and_is_cut(CHUNKED + b"2\r\nok\r\n"), True, id="a cut before the last chunk"),
        pytest.param(says_and_resets(b""), False, id="a reset"),
        pytest.param(says_and_resets(OK[:-1]), False, id="a reset within the body"),
        pytest.param(says(b"nonsense\r\n\r\n"), True, id="nonsense"),
        pytest.param(says(HEAD + b"Content-Length: %d\r\n\r\n" % (ANSWER_BYTES_MAX + 1)), True, id="too much"),
        pytest.param(says(HEAD + b"\r\n" + b"x" * (ANSWER_BYTES_MAX + 1)), True, id="too much, without a length"),
    ],
)
async def test_a_late_answer_that_is_not_whole_is_not_told(
    authority: Authority, scheme: str, rest: Script, resets: bool
) -> None:
    told, tardy = Told(), Tardy(rest)
    async with listening_client(authority, LONG_S) as client:
        with Provider(tardy, **secured(authority, scheme)) as provider:
            evidence = await client.send(origin(provider.port, scheme), CHARGE, HASTY, on_late=told)
            assert_timed_out(evidence, AWAITING, FIRST_BYTE_TIMEOUT, LONG_S)
            tardy.go.set()
            await harvest_over(client)
            if resets:
                assert await provider.ending() == "reset"
            assert told.evidence == []


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_what_never_comes_ends_by_a_reset_when_the_time_to_listen_is_over(
    authority: Authority, scheme: str
) -> None:
    told = Told()

    def silent(peer: Peer) -> None:
        peer.request()
        peer.until_gone()

    async with listening_client(authority) as client:
        with Provider(silent, **secured(authority, scheme)) as provider:
            evidence = await client.send(origin(provider.port, scheme), CHARGE, HASTY, on_late=told)
            assert_timed_out(evidence, AWAITING, FIRST_BYTE_TIMEOUT, SHORT_S)
            assert len(client._late_responses) == 1
            assert not provider.peers[0].gone.is_set()
            assert await provider.ending() == "reset"
            assert len(client._late_responses) == 0
            assert told.evidence == []


async def test_signs_of_life_gain_no_time(authority: Authority) -> None:
    told = Told()

    def drips_on(peer: Peer) -> None:
        peer.request()
        drips_until_reset(HEAD + b"\r\n")(peer)

    async with listening_client(authority) as client:
        with Provider(drips_on, then=answer_all) as provider:
            evidence = await client.send(origin(provider.port), CHARGE, SHORT_ANSWER, on_late=told)
            assert_timed_out(evidence, RECEIVING, BODY_TIMEOUT, SHORT_S)
            assert await provider.ending() == "reset"
            assert told.evidence == []


# -- reset at once


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_where_the_harvest_is_full_a_timeout_ends_by_a_reset_at_once(authority: Authority, scheme: str) -> None:
    told, tardy = Told(), Tardy(says(OK))

    def silent(peer: Peer) -> None:
        if peer.number == 1:
            tardy(peer)
        else:
            peer.request()
            peer.until_gone()

    async with listening_client(authority, LONG_S, harvests_max=1) as client:
        with Provider(silent, **secured(authority, scheme)) as provider:
            where = origin(provider.port, scheme)
            first = await client.send(where, CHARGE, HASTY, on_late=told)
            assert_timed_out(first, AWAITING, FIRST_BYTE_TIMEOUT, LONG_S)
            second = await client.send(where, CHARGE, HASTY, on_late=told)
            assert_timed_out(second, AWAITING, FIRST_BYTE_TIMEOUT, 0.0)
            assert await provider.ending(2) == "reset"

            tardy.go.set()
            await told.only()
            third = await client.send(where, CHARGE, HASTY, on_late=told)  # one has ended: there is room again
            assert_timed_out(third, AWAITING, FIRST_BYTE_TIMEOUT, LONG_S)


@pytest.mark.parametrize("how", ["nobody asks", "no time", "no room"])
async def test_without_a_harvest_a_timeout_ends_by_a_reset_at_once(authority: Authority, how: str) -> None:
    harvest_s, harvests_max = (0.0 if how == "no time" else LONG_S), (0 if how == "no room" else 64)
    async with listening_client(authority, harvest_s, harvests_max) as client:
        with Provider(Peer.request, then=Peer.finish_reading) as provider:  # type: ignore[arg-type]
            on_late = None if how == "nobody asks" else Told()
            evidence = await client.send(origin(provider.port), CHARGE, HASTY, on_late=on_late)
            assert_timed_out(evidence, AWAITING, FIRST_BYTE_TIMEOUT, 0.0)
            assert await provider.ending() == "reset"


async def test_a_request_that_was_not_all_written_is_reset_at_once(authority: Authority) -> None:
    look = threading.Event()

    def hole(peer: Peer) -> None:
        look.wait(PATIENCE_S)
        peer.until_gone()

    async with listening_client(authority, LONG_S) as client:
        with Provider(hole, receive_buffer_bytes=65536) as provider:
            evidence = await client.send(origin(provider.port), LARGE, UpstreamTimeouts(write_s=0.2), on_late=Told())
            assert_timed_out(evidence, NetworkPhase.SENDING, WireFault.WRITE_TIMEOUT, 0.0)
            look.set()
            assert await provider.ending() == "reset"


async def test_a_request_that_has_not_all_arrived_is_reset_at_once(authority: Authority) -> None:
    """Our kernel has taken it all, the provider reads on, slowly. Listening would let it read to the end."""
    read_bytes = 0

    def reads_slowly(peer: Peer) -> None:
        nonlocal read_bytes
        while True:
            try:
                read = len(peer.socket.recv(32 * 1024))
            except ConnectionResetError:
                peer._end("reset")
                return
            if not read:
                peer._end("fin")
                return
            read_bytes += read
            peer.gone.wait(0.04)  # so that all of it would take four times as long as the first byte may

    async with listening_client(authority, LONG_S) as client:
        with Provider(reads_slowly, receive_buffer_bytes=65536) as provider:
            where = origin(provider.port)
            evidence = await client.send(where, BUFFERED, UpstreamTimeouts(first_byte_s=0.3), on_late=Told())
            assert_timed_out(evidence, AWAITING, FIRST_BYTE_TIMEOUT, 0.0)
            assert evidence.bytes_written == len(request_bytes(where, BUFFERED))
            assert await provider.ending() == "reset"
            assert read_bytes < evidence.bytes_written


# -- the end


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_closing_the_client_resets_what_listens_and_does_not_wait(authority: Authority, scheme: str) -> None:
    told, tardy = Told(), Tardy(Peer.finish_reading)
    async with listening_client(authority, LONG_S) as client:
        with Provider(tardy, **secured(authority, scheme)) as provider:
            await client.send(origin(provider.port, scheme), CHARGE, HASTY, on_late=told)
            assert len(client._late_responses) == 1
            async with asyncio.timeout(5.0):
                await client.close()
            assert len(client._late_responses) == 0
            tardy.go.set()
            assert await provider.ending() == "reset"
            assert told.evidence == []


async def test_a_call_that_times_out_after_the_client_was_closed_is_reset_at_once(authority: Authority) -> None:
    tardy = Tardy(Peer.finish_reading)
    async with listening_client(authority, LONG_S) as client:
        with Provider(tardy) as provider:
            async with asyncio.TaskGroup() as group:
                call = group.create_task(client.send(origin(provider.port), CHARGE, HASTY, on_late=Told()))
                await asyncio.to_thread(tardy.read.wait, PATIENCE_S)
                await client.close()
            assert_timed_out(call.result(), AWAITING, FIRST_BYTE_TIMEOUT, 0.0)
            tardy.go.set()
            assert await provider.ending() == "reset"


async def test_a_call_cancelled_in_the_moment_of_its_timeout_is_reset(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever cancels has no evidence, so nobody knows that there is something to wait for."""
    take_over = LateResponses.take_over
    told = Told()
    calls: list[asyncio.Task[Evidence]] = []

    def cancels(harvest: LateResponses, exchange: UpstreamExchange, now: float, **given: Any) -> LateExchange | None:
        calls[0].cancel()
        return take_over(harvest, exchange, now, **given)

    monkeypatch.setattr(LateResponses, "take_over", cancels)
    tardy = Tardy(Peer.finish_reading)
    async with listening_client(authority, LONG_S) as client:
        with Provider(tardy, then=answer_all) as provider:
            where = origin(provider.port)
            async with asyncio.TaskGroup() as group:
                calls.append(group.create_task(client.send(where, CHARGE, HASTY, on_late=told)))
            assert calls[0].cancelled()
            assert len(client._late_responses) == 0
            tardy.go.set()
            assert await provider.ending() == "reset"
            assert client._origin_pools[where]._busy == 0
            assert (await client.send(where, CHARGE, UpstreamTimeouts())).complete
            assert told.evidence == []
