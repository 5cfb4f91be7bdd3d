"""A connection is used again only when nothing is owed on it by either side, and its time is not over."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import replace

import pytest

from paywitness.core.evidence import NetworkPhase, WireFault
from paywitness.core.policy import UpstreamTimeouts
from paywitness.upstream.client import UpstreamClient, UpstreamLimits
from paywitness.upstream.tls import tls_context
from tests.upstream.conftest import CHARGE, Authority, origin
from tests.upstream.peer import OK, PATIENCE_S, Peer, Provider, Script, answer_all

STRANGE = OK.replace(b"ok", b"no")  # an answer that nobody asked for: if it reaches a call, money is misread


def answers_then(*acts: Script) -> tuple[Script, threading.Event]:
    """On the first connection: answer once, wait for the test, act. Later connections behave."""
    go = threading.Event()

    def script(peer: Peer) -> None:
        if peer.number > 1:
            return
        peer.request()
        peer.send(OK)
        go.wait(PATIENCE_S)
        for act in acts:
            act(peer)

    return script, go


def says(data: bytes) -> Script:
    return lambda peer: peer.send(data)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("loop_runs", [True, False], ids=["the loop runs meanwhile", "the loop stands still"])
@pytest.mark.parametrize(
    "act",
    [says(STRANGE), says(b"\r\n"), says(b"x"), Peer.close, Peer.cut, Peer.reset],
    ids=["a late answer", "an empty line", "a byte", "a close", "a cut", "a reset"],
)
async def test_a_connection_that_stirs_while_idle_is_never_used_again(
    client: UpstreamClient, authority: Authority, act: Script, loop_runs: bool, scheme: str
) -> None:
    """Also when the kernel knows and the loop does not yet: it is asked right before the first byte."""
    script, go = answers_then(act)
    with Provider(script, then=answer_all, tls=authority.server() if scheme == "https" else None) as provider:
        where = origin(provider.port, scheme)
        assert (await client.send(where, CHARGE, UpstreamTimeouts())).complete
        go.set()
        if loop_runs:
            await asyncio.to_thread(provider.peers[0].acted.wait, PATIENCE_S)
        else:
            provider.peers[0].acted.wait(PATIENCE_S)
        evidence = await client.send(where, CHARGE, UpstreamTimeouts())
        assert evidence.response is not None
        assert evidence.response.body == b"ok"
        assert not evidence.reused_connection
        assert len(provider.peers[0].requests) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("act", "fault", "reset"), [(Peer.close, WireFault.CLOSED, True), (Peer.reset, WireFault.RESET, False)]
)
async def test_a_close_that_crosses_our_request_is_a_doubt(
    client: UpstreamClient, authority: Authority, act: Script, fault: WireFault, reset: bool, scheme: str
) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(OK)
        peer.until_readable()
        act(peer)

    with Provider(script, tls=authority.server() if scheme == "https" else None) as provider:
        where = origin(provider.port, scheme)
        assert (await client.send(where, CHARGE, UpstreamTimeouts())).complete
        evidence = await client.send(where, CHARGE, UpstreamTimeouts())
        assert (evidence.phase, evidence.fault) == (NetworkPhase.AWAITING, fault)
        assert evidence.reused_connection
        assert evidence.sent
        assert evidence.reset_by_us is reset
        assert len(provider.peers) == 1  # and nothing was sent again


async def test_without_reuse_every_call_has_a_connection_of_its_own(client: UpstreamClient) -> None:
    with Provider(answer_all) as provider:
        where = origin(provider.port)
        first = await client.send(where, CHARGE, UpstreamTimeouts(), reuse=False)
        second = await client.send(where, CHARGE, UpstreamTimeouts(), reuse=False)
        third = await client.send(where, CHARGE, UpstreamTimeouts())
    assert [each.reused_connection for each in (first, second, third)] == [False, False, True]
    assert len(provider.peers) == 2


async def test_each_call_gets_the_answer_to_its_own_request(client: UpstreamClient) -> None:
    def echoes(peer: Peer) -> None:
        while request := peer.request():
            body = request.partition(b"\r\n\r\n")[2]
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async def call(number: int) -> None:
        body = b"call %d" % number
        for _ in range(5):
            evidence = await client.send(where, replace(CHARGE, body=body), UpstreamTimeouts())
            assert evidence.response is not None
            assert evidence.response.body == body

    with Provider(echoes) as provider:
        where = origin(provider.port)
        await asyncio.gather(*(call(number) for number in range(20)))


@pytest.mark.parametrize(
    ("bounds", "connections"),
    [
        (UpstreamLimits(calls_per_connection=2), 2),
        (UpstreamLimits(age_s=0.0), 4),
        (UpstreamLimits(idle_s=0.0), 4),
        (UpstreamLimits(), 1),
    ],
    ids=["calls", "age", "idle", "none"],
)
async def test_a_connection_ends_at_its_bounds(bounds: UpstreamLimits, connections: int) -> None:
    client = UpstreamClient(bounds=bounds, ssl_context=tls_context())
    with Provider(answer_all) as provider:
        for _ in range(4):
            assert (await client.send(origin(provider.port), CHARGE, UpstreamTimeouts())).complete
        assert len(provider.peers) == connections
    await client.close()


class HandMovedClock:
    def __init__(self) -> None:
        self.now_mono = 1000.0

    def mono(self) -> float:
        return self.now_mono


async def test_a_connection_idle_for_too_long_is_closed_and_not_used() -> None:
    clock = HandMovedClock()
    client = UpstreamClient(ssl_context=tls_context(), monotonic=clock.mono)
    with Provider(answer_all) as provider:
        where = origin(provider.port)
        await client.send(where, CHARGE, UpstreamTimeouts())
        clock.now_mono += 3.9
        kept = await client.send(where, CHARGE, UpstreamTimeouts())
        clock.now_mono += 4.0
        fresh = await client.send(where, CHARGE, UpstreamTimeouts())
        assert (kept.reused_connection, fresh.reused_connection) == (True, False)
        assert await provider.ending() == "fin"
    await client.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_idle_connection_closes_by_itself_in_peace(authority: Authority, scheme: str) -> None:
    client = UpstreamClient(bounds=UpstreamLimits(idle_s=0.05), ssl_context=tls_context(cafile=authority.root))
    with Provider(answer_all, tls=authority.server() if scheme == "https" else None) as provider:
        quick = UpstreamTimeouts(
            write_s=0.3, first_byte_s=0.3
        )  # the timer of an exchange is the one that looks in later
        assert (await client.send(origin(provider.port, scheme), CHARGE, quick)).complete
        assert await provider.ending() == "fin"  # with a goodbye where there is TLS
    await client.close()


async def test_sockets_send_at_once_and_do_not_deliver_for_longer_than_the_first_byte_may_take(
    client: UpstreamClient,
) -> None:
    with Provider(answer_all) as provider:
        where = origin(provider.port)

        async def user_timeout_ms(first_byte_s: float) -> int:
            await client.send(where, CHARGE, UpstreamTimeouts(first_byte_s=first_byte_s))
            kept = client._origin_pools[where]._idle[0]._socket
            assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            return kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

        assert await user_timeout_ms(5.0) == 5000
        assert await user_timeout_ms(7.5) == 7500  # the same connection, another operation
        assert len(provider.peers) == 1


def paid(name: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nRequest-Id: req_%b\r\n\r\n%b" % (len(name), name, name)


async def test_m11_a_stray_copy_of_an_answer_is_marked_and_nothing_more_on_its_connection_is_believed(
    client: UpstreamClient,
) -> None:
    """The copy comes after the next request began. Unmarked, every later call gets the answer of the one before it."""

    def script(peer: Peer) -> None:
        if peer.number > 1:
            while peer.request():
                peer.send(paid(b"ch_3_of_the_third_call"))
            return
        peer.request()
        peer.send(paid(b"ch_1_of_the_first_call"))
        peer.request()
        peer.send(paid(b"ch_1_of_the_first_call"))
        peer.send(paid(b"ch_2_of_the_second_call"))

    with Provider(script) as provider:
        where = origin(provider.port)
        first = await client.send(where, CHARGE, UpstreamTimeouts())
        second = await client.send(where, CHARGE, UpstreamTimeouts())
        third = await client.send(where, CHARGE, UpstreamTimeouts())
        assert first.response is not None
        assert not first.repeats_previous
        assert second.repeats_previous or second.response is None  # None: both answers came at once
        assert third.response is not None
        assert (third.response.body, third.reused_connection, third.repeats_previous) == (
            b"ch_3_of_the_third_call",
            False,
            False,
        )


async def test_m11_an_answer_that_is_the_one_before_it_is_marked_as_such(client: UpstreamClient) -> None:
    def script(peer: Peer) -> None:
        while peer.request():
            peer.send(paid(b"ch_1_of_the_first_call"))

    with Provider(script) as provider:
        where = origin(provider.port)
        found = [await client.send(where, CHARGE, UpstreamTimeouts()) for _ in range(2)]
        assert [(one.reused_connection, one.repeats_previous) for one in found] == [(False, False), (True, True)]


async def test_m11_two_answers_at_once_on_a_kept_connection_are_none(client: UpstreamClient) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(paid(b"ch_1_of_the_first_call"))
        peer.request()
        peer.send(paid(b"ch_0") + paid(b"ch_2_of_the_second_call"))

    with Provider(script) as provider:
        where = origin(provider.port)
        assert (await client.send(where, CHARGE, UpstreamTimeouts())).complete
        evidence = await client.send(where, CHARGE, UpstreamTimeouts())
        assert (evidence.response, evidence.fault, evidence.sent) == (None, WireFault.MALFORMED, True)
