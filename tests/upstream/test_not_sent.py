"""What ends before the first byte is proved not sent: an early phase, no byte written, nothing to reset."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from paywitness.core.evidence import Evidence, NetworkPhase, WireFault
from paywitness.core.policy import UpstreamTimeouts
from paywitness.upstream.client import UpstreamClient, UpstreamLimits
from paywitness.upstream.connection import UpstreamConnection
from paywitness.upstream.request import Origin
from tests.upstream.conftest import CHARGE, Authority, origin
from tests.upstream.peer import OK, PATIENCE_S, Peer, Provider, answer_all

HASTY = UpstreamTimeouts(connect_s=0.15, tls_s=0.15)


def assert_not_sent(evidence: Evidence, phase: NetworkPhase, fault: WireFault) -> None:
    assert (evidence.phase, evidence.fault) == (phase, fault), evidence
    assert (evidence.bytes_written, evidence.response, evidence.reset_by_us) == (0, None, False)
    assert not evidence.sent
    assert evidence.detail


# -- the name and the address


@pytest.mark.parametrize("host", ["nowhere.invalid", "x" * 64 + ".invalid"])
async def test_a_name_that_does_not_exist_is_a_dns_failure(client: UpstreamClient, host: str) -> None:
    evidence = await client.send(Origin("http", host, 80), CHARGE, UpstreamTimeouts())
    assert_not_sent(evidence, NetworkPhase.RESOLVING, WireFault.DNS_FAILURE)


async def test_a_name_lookup_that_hangs_is_a_dns_failure(
    client: UpstreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
    evidence = await client.send(Origin("http", "slow.test", 80), CHARGE, HASTY)
    assert_not_sent(evidence, NetworkPhase.RESOLVING, WireFault.DNS_FAILURE)


async def test_a_closed_port_refuses(client: UpstreamClient) -> None:
    evidence = await client.send(origin(_closed_port()), CHARGE, UpstreamTimeouts())
    assert_not_sent(evidence, NetworkPhase.CONNECTING, WireFault.CONNECT_REFUSED)


async def test_a_connect_that_hangs_times_out(client: UpstreamClient) -> None:
    with _full_backlog() as port:
        evidence = await client.send(origin(port), CHARGE, HASTY)
    assert_not_sent(evidence, NetworkPhase.CONNECTING, WireFault.CONNECT_TIMEOUT)


async def test_an_unreachable_address_fails(client: UpstreamClient) -> None:
    evidence = await client.send(Origin("http", "255.255.255.255", 80), CHARGE, UpstreamTimeouts())
    assert_not_sent(evidence, NetworkPhase.CONNECTING, WireFault.CONNECT_FAILED)


async def test_the_next_address_is_tried_when_one_refuses_or_hangs(
    client: UpstreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _full_backlog() as hanging, Provider(answer_all) as provider:
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo

        async def several(host: str, *rest: Any, **named: Any) -> list[Any]:
            if host != "several.test":
                return await real(host, *rest, **named)
            ports = (_closed_port(), hanging, provider.port)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

        monkeypatch.setattr(loop, "getaddrinfo", several)
        evidence = await client.send(Origin("http", "several.test", 80), CHARGE, UpstreamTimeouts(connect_s=0.6))
        assert evidence.response is not None


async def test_an_ipv6_address_is_dialled(client: UpstreamClient) -> None:
    evidence = await client.send(Origin("http", "::1", _closed_port()), CHARGE, UpstreamTimeouts())
    assert evidence.phase is NetworkPhase.CONNECTING


# -- TLS


async def test_an_unknown_authority_is_a_tls_failure(client: UpstreamClient, stranger: Authority) -> None:
    with Provider(answer_all, tls=stranger.server()) as provider:
        evidence = await client.send(origin(provider.port, "https"), CHARGE, UpstreamTimeouts())
    assert_not_sent(evidence, NetworkPhase.HANDSHAKING, WireFault.TLS_FAILURE)
    assert "certificate refused" in evidence.detail


async def test_a_certificate_for_another_name_is_a_tls_failure(client: UpstreamClient, authority: Authority) -> None:
    with Provider(answer_all, tls=authority.server("other.test")) as provider:
        evidence = await client.send(origin(provider.port, "https"), CHARGE, UpstreamTimeouts())
    assert_not_sent(evidence, NetworkPhase.HANDSHAKING, WireFault.TLS_FAILURE)


async def test_a_certificate_for_an_address_is_checked_against_it(client: UpstreamClient, authority: Authority) -> None:
    with Provider(answer_all, tls=authority.server()) as provider:
        good = await client.send(Origin("https", "127.0.0.1", provider.port), CHARGE, UpstreamTimeouts())
    with Provider(answer_all, tls=authority.server("other.test")) as provider:
        bad = await client.send(Origin("https", "127.0.0.1", provider.port), CHARGE, UpstreamTimeouts())
    assert good.complete
    assert_not_sent(bad, NetworkPhase.HANDSHAKING, WireFault.TLS_FAILURE)


async def test_a_server_that_speaks_no_tls_is_a_tls_failure(client: UpstreamClient) -> None:
    def plain(peer: Peer) -> None:
        peer.until_readable()
        peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        peer.until_gone()

    with Provider(plain) as provider:
        evidence = await client.send(origin(provider.port, "https"), CHARGE, UpstreamTimeouts())
    assert_not_sent(evidence, NetworkPhase.HANDSHAKING, WireFault.TLS_FAILURE)


async def test_a_handshake_that_hangs_times_out(client: UpstreamClient) -> None:
    with Provider(lambda peer: None, then=_until_gone) as provider:
        evidence = await client.send(origin(provider.port, "https"), CHARGE, HASTY)
    assert_not_sent(evidence, NetworkPhase.HANDSHAKING, WireFault.TLS_TIMEOUT)


@pytest.mark.parametrize("end", [Peer.cut, Peer.reset])
async def test_a_handshake_that_breaks_off_is_a_tls_failure(client: UpstreamClient, end: Any) -> None:
    def breaks_off(peer: Peer) -> None:
        peer.until_readable()
        end(peer)

    with Provider(breaks_off) as provider:
        evidence = await client.send(origin(provider.port, "https"), CHARGE, UpstreamTimeouts())
    assert_not_sent(evidence, NetworkPhase.HANDSHAKING, WireFault.TLS_FAILURE)


async def test_tls_names_the_host_and_agrees_on_http_1_1(client: UpstreamClient, authority: Authority) -> None:
    names: list[str | None] = []
    context = authority.server()
    context.sni_callback = lambda _, name, __: names.append(name)
    with Provider(answer_all, tls=context) as provider:
        evidence = await client.send(origin(provider.port, "https"), CHARGE, UpstreamTimeouts())
        secured = provider.peers[0].secured
        assert evidence.complete
        assert names == ["localhost"]
        assert secured is not None
        assert secured.object.selected_alpn_protocol() == "http/1.1"
        assert secured.object.version() in ("TLSv1.2", "TLSv1.3")


async def test_a_refused_client_certificate_after_the_handshake_counts_as_sent(
    client: UpstreamClient, authority: Authority
) -> None:
    """In TLS 1.3 the client is done before the server has judged it: by then the request is on its way."""
    context = authority.server()
    context.load_verify_locations(authority.root)
    context.verify_mode = ssl.CERT_REQUIRED
    with Provider(answer_all, tls=context) as provider:
        evidence = await client.send(origin(provider.port, "https"), CHARGE, UpstreamTimeouts())
    assert evidence.sent
    assert evidence.response is None
    assert evidence.fault in (WireFault.TLS_FAILURE, WireFault.RESET, WireFault.CLOSED)


# -- the moment before the first byte


class Steps:
    """Writes down each step; `pause` runs at the first one."""

    def __init__(self, pause: Any = None) -> None:
        self.names: list[str] = []
        self._pause = pause

    async def hit(self, name: str) -> None:
        self.names.append(name)
        if self._pause is not None and name == "upstream_connected":
            pause, self._pause = self._pause, None
            pause()


@pytest.mark.parametrize(("scheme", "phase"), [("http", NetworkPhase.CONNECTING), ("https", NetworkPhase.HANDSHAKING)])
async def test_without_the_right_to_send_nothing_is_written_and_the_connection_is_kept(
    client: UpstreamClient, authority: Authority, scheme: str, phase: NetworkPhase
) -> None:
    with Provider(answer_all, tls=authority.server() if scheme == "https" else None) as provider:
        where = origin(provider.port, scheme)
        refused = await client.send(where, CHARGE, UpstreamTimeouts(), may_send=lambda: False)
        assert_not_sent(refused, phase, WireFault.LEASE_OVER)
        sent = await client.send(where, CHARGE, UpstreamTimeouts(), may_send=lambda: True)
        assert sent.complete
        assert sent.reused_connection
        assert len(provider.peers[0].requests) == 1


async def test_the_right_to_send_is_asked_after_the_connection_is_up() -> None:
    lease = threading.Event()
    client = UpstreamClient(at_failpoint=Steps(pause=lease.set).hit)
    with Provider(answer_all) as provider:
        evidence = await client.send(
            origin(provider.port), CHARGE, UpstreamTimeouts(), may_send=lambda: not lease.is_set()
        )
        assert_not_sent(evidence, NetworkPhase.CONNECTING, WireFault.LEASE_OVER)
    await client.close()


async def test_the_steps_are_told_in_order() -> None:
    steps = Steps()
    client = UpstreamClient(at_failpoint=steps.hit)
    with Provider(answer_all) as provider:
        await client.send(origin(provider.port), CHARGE, UpstreamTimeouts())
    assert steps.names == ["upstream_connected", "upstream_written", "upstream_answered"]
    await client.close()


@pytest.mark.parametrize("end", [Peer.cut, Peer.reset])
async def test_a_peer_that_leaves_right_after_connecting_gets_nothing(end: Any) -> None:
    connected, left = threading.Event(), threading.Event()

    def leaves(peer: Peer) -> None:
        connected.wait(PATIENCE_S)
        end(peer)
        left.set()

    def pause() -> None:
        connected.set()
        left.wait(PATIENCE_S)

    client = UpstreamClient(at_failpoint=Steps(pause).hit)
    with Provider(leaves) as provider:
        evidence = await client.send(origin(provider.port), CHARGE, UpstreamTimeouts())
        assert_not_sent(evidence, NetworkPhase.CONNECTING, WireFault.CLOSED)
    await client.close()


async def test_a_first_write_that_the_kernel_refuses_is_not_sent(
    client: UpstreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke between the last look and the write. Not one byte was taken, and that is a proof."""
    go = threading.Event()

    def answers_then_resets(peer: Peer) -> None:
        peer.request()
        peer.send(OK)
        go.wait(PATIENCE_S)
        peer.reset()

    monkeypatch.setattr(UpstreamConnection, "is_usable", lambda self: True)
    with Provider(answers_then_resets) as provider:
        assert (await client.send(origin(provider.port), CHARGE, UpstreamTimeouts())).complete
        go.set()
        provider.peers[0].acted.wait(PATIENCE_S)  # the loop stands still meanwhile, so it cannot have read the reset
        evidence = await client.send(origin(provider.port), CHARGE, UpstreamTimeouts())
    assert_not_sent(evidence, NetworkPhase.CONNECTING, WireFault.RESET)
    assert evidence.reused_connection


# -- no connection to be had


async def test_a_full_pool_is_exhausted_after_the_connect_timeout() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1))
    release = threading.Event()

    def waits(peer: Peer) -> None:
        while peer.request():
            release.wait(PATIENCE_S)
            peer.send(OK)

    with Provider(waits) as provider:
        where = origin(provider.port)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            second = await _after(first, client.send(where, CHARGE, HASTY))
            assert_not_sent(second, NetworkPhase.RESOLVING, WireFault.POOL_EXHAUSTED)
            waiting = group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            release.set()
        assert first.result().complete
        assert waiting.result().reused_connection
        assert len(provider.peers) == 1
    await client.close()


async def test_a_closed_client_dials_nobody(client: UpstreamClient) -> None:
    await client.close()
    with Provider(answer_all) as provider:
        evidence = await client.send(origin(provider.port), CHARGE, UpstreamTimeouts())
        assert_not_sent(evidence, NetworkPhase.RESOLVING, WireFault.POOL_EXHAUSTED)
        assert not provider.peers


async def _after(started: asyncio.Task[Evidence], coroutine: Any) -> Evidence:
    """Let the task get going first."""
    await asyncio.sleep(0)
    assert not started.done()
    result: Evidence = await coroutine
    return result


def _until_gone(peer: Peer) -> None:
    peer.until_gone()


def _closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@contextlib.contextmanager
def _full_backlog() -> Iterator[int]:
    """A port whose queue of connections is full: the kernel drops every further SYN, so a connect hangs."""
    with contextlib.ExitStack() as sockets:
        listening = sockets.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        while True:
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
            _, writable, _ = select.select([], [filler], [], 0.1)
            if not writable:
                break
        yield listening.getsockname()[1]
