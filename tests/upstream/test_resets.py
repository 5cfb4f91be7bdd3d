"""What is given up is reset: the provider sees RST, and what the kernel still held is not delivered later."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from paywitness.core.evidence import NetworkPhase, WireFault
from paywitness.core.policy import UpstreamTimeouts
from paywitness.upstream.client import UpstreamClient, UpstreamLimits
from paywitness.upstream.request import request_bytes
from paywitness.upstream.tls import tls_context
from tests.upstream.conftest import CHARGE, Authority, origin
from tests.upstream.peer import OK, PATIENCE_S, Peer, Provider, answer_all

LARGE = replace(CHARGE, body=b"x" * 16_000_000)  # more than both kernels' buffers hold
MEDIUM = replace(CHARGE, body=b"x" * 4_000_000)  # more than one write takes


class BlackHole:
    """Reads nothing until told to; then it reads all that ever arrives."""

    def __init__(self) -> None:
        self.look = threading.Event()

    def __call__(self, peer: Peer) -> None:
        self.look.wait(PATIENCE_S)
        peer.secured = None  # count what is on the wire
        peer.until_gone()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_black_hole_ends_by_reset_and_the_kernel_delivers_no_more(
    client: UpstreamClient, authority: Authority, scheme: str
) -> None:
    hole = BlackHole()
    tls = authority.server() if scheme == "https" else None
    with Provider(hole, tls=tls, receive_buffer_bytes=65536) as provider:
        where = origin(provider.port, scheme)
        evidence = await client.send(where, LARGE, UpstreamTimeouts(write_s=0.2))
        assert (evidence.phase, evidence.fault) == (NetworkPhase.SENDING, WireFault.WRITE_TIMEOUT)
        assert 0 < evidence.bytes_written < len(request_bytes(where, LARGE))
        assert evidence.reset_by_us
        peer = provider.peers[0]
        hole.look.set()
        assert await provider.ending() == "reset"
        assert len(peer._unread) < evidence.bytes_written / 2  # what our kernel had taken is gone with the connection


async def test_the_kernel_gives_up_by_itself_when_nothing_is_acknowledged(client: UpstreamClient) -> None:
    """TCP_USER_TIMEOUT: the bound holds even if this process is stopped or killed."""
    hole = BlackHole()
    with Provider(hole, receive_buffer_bytes=65536) as provider:
        evidence = await client.send(origin(provider.port), LARGE, UpstreamTimeouts(write_s=30.0, first_byte_s=0.3))
        assert (evidence.phase, evidence.fault) == (NetworkPhase.SENDING, WireFault.WRITE_TIMEOUT)
        assert "acknowledging" in evidence.detail
        assert evidence.reset_by_us
        hole.look.set()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_large_request_that_is_read_slowly_goes_through(
    client: UpstreamClient, authority: Authority, scheme: str
) -> None:
    with Provider(answer_all, tls=authority.server() if scheme == "https" else None) as provider:
        where = origin(provider.port, scheme)
        evidence = await client.send(where, MEDIUM, UpstreamTimeouts(write_s=20.0, first_byte_s=20.0))
        assert evidence.complete
        assert evidence.bytes_written == len(request_bytes(where, MEDIUM))
        assert provider.peers[0].requests == [request_bytes(where, MEDIUM)]


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_answer_before_the_request_was_written_counts_and_the_rest_is_dropped(
    client: UpstreamClient, authority: Authority, scheme: str
) -> None:
    too_large = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"
    hole = BlackHole()

    def refuses(peer: Peer) -> None:
        if peer.number == 1:
            if peer.secured is None:
                peer.until_readable()
            peer.send(too_large)
            hole(peer)

    tls = authority.server() if scheme == "https" else None
    with Provider(refuses, then=answer_all, tls=tls, receive_buffer_bytes=65536) as provider:
        where = origin(provider.port, scheme)
        evidence = await client.send(where, LARGE, UpstreamTimeouts())
        assert evidence.phase is NetworkPhase.COMPLETE
        assert evidence.response is not None
        assert evidence.response.status_code == 413
        assert evidence.bytes_written < len(request_bytes(where, LARGE))
        assert evidence.reset_by_us
        hole.look.set()
        assert await provider.ending() == "reset"
        following = await client.send(where, CHARGE, UpstreamTimeouts())
        assert following.complete
        assert not following.reused_connection


async def test_half_an_early_answer_does_not_extend_the_time_to_write(client: UpstreamClient) -> None:
    hole = BlackHole()

    def begins(peer: Peer) -> None:
        peer.until_readable()
        peer.send(OK[:-1])
        hole(peer)

    with Provider(begins, receive_buffer_bytes=65536) as provider:
        evidence = await client.send(origin(provider.port), LARGE, UpstreamTimeouts(write_s=0.2))
        assert (evidence.phase, evidence.fault) == (NetworkPhase.RECEIVING, WireFault.WRITE_TIMEOUT)
        assert evidence.reset_by_us
        hole.look.set()


# -- cancellation


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_call_cancelled_in_mid_flight_is_reset_and_frees_its_place(authority: Authority, scheme: str) -> None:
    client = UpstreamClient(
        bounds=UpstreamLimits(connections_per_origin=1), ssl_context=tls_context(cafile=authority.root)
    )
    arrived = threading.Event()

    def holds_the_first(peer: Peer) -> None:
        if peer.number == 1:
            peer.request()
            arrived.set()
            peer.until_gone()

    tls = authority.server() if scheme == "https" else None
    with Provider(holds_the_first, then=answer_all, tls=tls) as provider:
        where = origin(provider.port, scheme)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            await asyncio.to_thread(arrived.wait, PATIENCE_S)
            call.cancel()
        assert call.cancelled()
        assert await provider.ending() == "reset"
        assert (await client.send(where, CHARGE, UpstreamTimeouts())).complete
    await client.close()


async def test_a_call_cancelled_during_the_handshake_frees_its_place() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1))
    arrived = threading.Event()

    def hangs(peer: Peer) -> None:
        peer.until_readable()
        arrived.set()
        peer.until_gone()

    with Provider(hangs) as provider:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(client.send(origin(provider.port, "https"), CHARGE, UpstreamTimeouts()))
            await asyncio.to_thread(arrived.wait, PATIENCE_S)
            call.cancel()
        await provider.ending()
        assert client._origin_pools[origin(provider.port, "https")]._busy == 0
    await client.close()


async def test_steps_that_raise_free_the_place_and_reset_what_was_written() -> None:
    class Crash(Exception):
        pass

    class Steps:
        at = ""

        async def hit(self, name: str) -> None:
            if name == self.at:
                raise Crash

    steps = Steps()
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1), at_failpoint=steps.hit)
    with Provider(answer_all) as provider:
        where = origin(provider.port)
        for steps.at in ("upstream_connected", "upstream_written", "upstream_answered"):
            with pytest.raises(Crash):
                await client.send(where, CHARGE, UpstreamTimeouts())
        steps.at = ""
        assert (await client.send(where, CHARGE, UpstreamTimeouts())).complete
    await client.close()
