"""Every wire fault leaves its exact evidence, and never a connection on which the next call could go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from paywitness.upstream.client import UpstreamClient, UpstreamLimits
from paywitness.upstream.request import request_bytes
from paywitness.upstream.tls import tls_context
from tests.upstream.cases import ALL, ANSWER_BYTES_MAX, Case
from tests.upstream.conftest import CHARGE, Authority, origin
from tests.upstream.peer import PATIENCE_S, Peer, Provider, answer_all


@pytest.fixture
async def client(authority: Authority) -> AsyncIterator[UpstreamClient]:
    bounds = UpstreamLimits(response_bytes_max=ANSWER_BYTES_MAX)
    made = UpstreamClient(bounds=bounds, ssl_context=tls_context(cafile=authority.root))
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("case", "scheme"),
    [pytest.param(case, scheme, id=f"{case.name}-{scheme}") for case in ALL for scheme in case.schemes],
)
async def test_a_wire_fault_leaves_its_exact_evidence(
    case: Case, scheme: str, client: UpstreamClient, authority: Authority
) -> None:
    def script(peer: Peer) -> None:
        if peer.number == 1:
            if case.reads:
                peer.request()
            case.act(peer)

    tls = authority.server() if scheme == "https" else None
    with Provider(script, then=answer_all, tls=tls) as provider:
        where = origin(provider.port, scheme)
        request = replace(CHARGE, method=case.method)
        evidence = await client.send(where, request, case.timeouts)

        assert (evidence.phase, evidence.fault) == (case.phase, case.fault), evidence
        assert evidence.bytes_written == len(request_bytes(where, request))
        assert evidence.reset_by_us is case.reset
        assert not evidence.reused_connection
        assert evidence.sent
        assert evidence.detail
        assert not any(secret in evidence.detail for secret in ("\n", "amount", "acme", "half"))
        response = evidence.response
        assert (response.status_code if response else None) == case.status_code
        assert (response.body if response else None) == case.body
        assert (response.close_delimited if response else False) is case.close_delimited

        first = provider.peers[0]
        await asyncio.to_thread(first.acted.wait, PATIENCE_S)
        if case.reset:
            assert await provider.ending() == "reset"

        following = await client.send(where, CHARGE, case.timeouts)
        assert following.response is not None
        assert following.response.body == b"ok"
        assert following.reused_connection is case.kept
        assert len(provider.peers) == (1 if case.kept else 2)
