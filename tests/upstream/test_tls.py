"""Whom we believe to be the provider, whom we show who we are, and where a name may lead."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from paywitness.core.evidence import NetworkPhase, WireFault
from paywitness.core.policy import UpstreamTimeouts, UpstreamTrust
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import Origin, WireRequest
from tests.upstream.conftest import Authority
from tests.upstream.peer import Provider, answer_all

CHARGE = WireRequest("POST", b"/v1/charges", (), b"{}")


def where(port: int, trust: UpstreamTrust) -> Origin:
    return Origin("https", "localhost", port, trust)


async def test_a_policys_own_roots_are_believed_and_no_others(authority: Authority, stranger: Authority) -> None:
    client = UpstreamClient()
    try:
        with Provider(answer_all, tls=authority.server()) as peer:
            good = await client.send(where(peer.port, UpstreamTrust(roots=authority.root)), CHARGE, UpstreamTimeouts())
            other = await client.send(where(peer.port, UpstreamTrust(roots=stranger.root)), CHARGE, UpstreamTimeouts())
            usual = await client.send(where(peer.port, UpstreamTrust()), CHARGE, UpstreamTimeouts())
    finally:
        await client.close()
    assert good.response is not None
    assert [(one.phase, one.fault, one.sent) for one in (other, usual)] == [
        (NetworkPhase.HANDSHAKING, WireFault.TLS_FAILURE, False)
    ] * 2
    assert "certificate refused" in other.detail


async def test_a_provider_that_wants_our_certificate_gets_it(authority: Authority, tmp_path: Path) -> None:
    wanting = authority.server()
    wanting.verify_mode = ssl.CERT_REQUIRED
    wanting.load_verify_locations(authority.root)
    wanting.maximum_version = ssl.TLSVersion.TLSv1_2  # where its refusal comes within the handshake
    ours = str(authority.folder / f"{authority.name}-other.test")
    client = UpstreamClient()
    try:
        with Provider(answer_all, tls=wanting) as peer:
            trust = UpstreamTrust(authority.root, f"{ours}.pem", f"{ours}.key")
            shown = await client.send(where(peer.port, trust), CHARGE, UpstreamTimeouts())
            without = await client.send(where(peer.port, UpstreamTrust(authority.root)), CHARGE, UpstreamTimeouts())
    finally:
        await client.close()
    assert shown.response is not None
    assert (without.fault, without.sent) == (WireFault.TLS_FAILURE, False)


async def test_files_that_changed_are_read_again(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    roots = tmp_path / "roots.pem"
    shutil.copy(stranger.root, roots)
    os.utime(roots, (1.0, 1.0))
    client = UpstreamClient()
    try:
        with Provider(answer_all, tls=authority.server()) as peer:
            before = await client.send(where(peer.port, UpstreamTrust(roots=str(roots))), CHARGE, UpstreamTimeouts())
            shutil.copy(authority.root, roots)
            after = await client.send(where(peer.port, UpstreamTrust(roots=str(roots))), CHARGE, UpstreamTimeouts())
    finally:
        await client.close()
    assert (before.response, before.sent) == (None, False)
    assert after.response is not None


@pytest.mark.parametrize("content", [None, "not a certificate"])
async def test_a_file_that_cannot_be_used_means_nothing_was_sent(tmp_path: Path, content: str | None) -> None:
    roots = tmp_path / "roots.pem"
    if content is not None:
        roots.write_text(content)
    client = UpstreamClient()
    evidence = await client.send(where(1, UpstreamTrust(roots=str(roots))), CHARGE, UpstreamTimeouts())
    await client.close()
    assert (evidence.phase, evidence.fault, evidence.sent) == (NetworkPhase.HANDSHAKING, WireFault.TLS_FAILURE, False)
    assert "its policy's tls" in evidence.detail


@pytest.mark.parametrize(
    "answers", [["127.0.0.1"], ["169.254.169.254", "10.0.0.1", "fd00::1"], ["::ffff:127.0.0.1"], []]
)
async def test_a_name_of_the_internet_is_not_followed_into_a_private_network(
    monkeypatch: pytest.MonkeyPatch, answers: list[str]
) -> None:
    """Whoever can answer for the name must not lead our credentials to a place of his choice."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        _answer_with(monkeypatch, answers, port)
        client = UpstreamClient()
        evidence = await client.send(Origin("http", "api.example.com", port), CHARGE, UpstreamTimeouts(connect_s=1.0))
        await client.close()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert (evidence.fault, evidence.sent) == (WireFault.DNS_FAILURE, False)


async def test_where_a_policy_says_so_a_name_may_lead_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with Provider(answer_all) as provider:
        _answer_with(monkeypatch, ["127.0.0.1"], provider.port)
        client = UpstreamClient()
        where = Origin("http", "psp.example.com", provider.port, UpstreamTrust(private=True))
        evidence = await client.send(where, CHARGE, UpstreamTimeouts())
        await client.close()
    assert evidence.response is not None


def _answer_with(monkeypatch: pytest.MonkeyPatch, answers: list[str], port: int) -> None:
    async def lookup(host: str, *rest: Any, **named: Any) -> list[Any]:
        kinds = [socket.AF_INET6 if ":" in answer else socket.AF_INET for answer in answers]
        return [(kind, socket.SOCK_STREAM, 6, "", (found, port)) for kind, found in zip(kinds, answers, strict=True)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
