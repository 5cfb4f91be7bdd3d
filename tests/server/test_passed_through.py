"""A call that is no operation, from a provider's socket to the caller's: its response arrives as it was sent."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from paywitness.core.call import Call
from paywitness.core.policy import Provider
from paywitness.core.reply import Reply
from paywitness.engine.calls.passthrough import Passthrough, StreamedReply
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.logs import LogWriter
from paywitness.telemetry.metrics import Metrics
from paywitness.upstream.client import UpstreamClient
from tests.server.conftest import Edge
from tests.server.fake_engine import FakeCarrier
from tests.server.raw_client import Caller, get, request
from tests.upstream import peer

LENGTH_OF_MORE = b'HTTP/1.1 %b\r\nContent-Length: 31\r\nETag: "a"\r\n\r\n'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Digest\r\n\r\n2\r\nok\r\n0\r\n"


class PassingCarrier(FakeCarrier):
    """Hands every call that is no operation to the engine's own passthrough; `whole` one that is first read whole."""

    passthrough: Passthrough
    provider: Provider
    whole: bool = False

    async def forward(  # type: ignore[override]
        self, call: Call, body: AsyncIterator[bytes] | None, length: int | None
    ) -> Reply | StreamedReply:
        if self.whole:
            return await self.passthrough.forward_whole(call, self.provider)
        return await self.passthrough.forward_stream(call, self.provider, body, length)


@pytest.fixture
def carrier() -> FakeCarrier:
    return PassingCarrier()


@pytest.fixture(params=["streamed", "whole"])
async def passing(edge: Edge, request: pytest.FixtureRequest) -> AsyncIterator[PassingCarrier]:
    client = UpstreamClient()
    carrier = edge.carrier
    assert isinstance(carrier, PassingCarrier)
    carrier.passthrough = Passthrough(
        client, Telemetry(Metrics("test", lambda: 0.0), LogWriter(logging.getLogger("paywitness.test")))
    )
    carrier.whole = request.param == "whole"
    yield carrier
    await client.close()


def provider_that_sends(response: bytes) -> peer.Provider:
    def script(connected: peer.Peer) -> None:
        if connected.request():
            connected.send(response)

    return peer.Provider(script)


def provider_at(port: int) -> Provider:
    return Provider("acme", f"http://127.0.0.1:{port}", (), "revision", "", "acme.yaml", ())


async def passed(edge: Edge, carrier: PassingCarrier, response: bytes, method: str = "GET") -> tuple[Caller, bytes]:
    """The caller, and what it reads up to the end of the head."""
    with provider_that_sends(response) as provider:
        carrier.provider = provider_at(provider.port)
        caller = await edge.caller()
        caller.send(request("/acme/v1/files", None, method=method))
        head = await caller.reader.readuntil(b"\r\n\r\n")
        caller.half_close()
        return caller, head


@pytest.mark.parametrize(("method", "status"), [("HEAD", b"200 OK"), ("GET", b"304 Not Modified")])
async def test_t4_the_length_of_a_body_that_does_not_come_is_told(
    edge: Edge, passing: PassingCarrier, method: str, status: bytes
) -> None:
    """It says how long the body would be. A download manager sizes its work by it."""
    caller, head = await passed(edge, passing, LENGTH_OF_MORE % status, method)
    assert b"\r\nContent-Length: 31\r\n" in head
    assert await caller.rest() == b""


async def test_t4_a_length_stays_a_length(edge: Edge, passing: PassingCarrier) -> None:
    caller, head = await passed(edge, passing, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert b"\r\nContent-Length: 2\r\n" in head
    assert b"chunked" not in head
    assert await caller.rest() == b"ok"


@pytest.mark.parametrize("phrase", [b"Very Much Fine", b"", b"\xe9t\xe9"])
async def test_t4_the_providers_own_phrase_is_told(edge: Edge, passing: PassingCarrier, phrase: bytes) -> None:
    _, head = await passed(edge, passing, b"HTTP/1.1 200 %b\r\nContent-Length: 0\r\n\r\n" % phrase)
    assert head.startswith(b"HTTP/1.1 200 %b\r\n" % phrase)


async def test_t4_trailers_follow_a_chunked_body(edge: Edge, passing: PassingCarrier) -> None:
    if passing.whole:
        pytest.skip("a response that is read whole goes on with its length, which leaves no place for trailers")
    trailers = b"Digest: abc\r\nServer-Timing: db;dur=3\r\n\r\n"
    caller, head = await passed(edge, passing, CHUNKED + trailers)
    assert b"\r\nTrailer: Digest\r\n" in head
    assert await caller.rest() == b"2\r\nok\r\n0\r\n" + trailers


async def test_trailers_of_a_connection_or_in_our_name_do_not_follow(edge: Edge, passing: PassingCarrier) -> None:
    trailers = b"Paywitness-Outcome: succeeded\r\nKeep-Alive: timeout=9\r\nTrailer: X\r\n\r\n"
    caller, _ = await passed(edge, passing, CHUNKED + trailers)
    assert await caller.rest() in (b"2\r\nok\r\n0\r\n\r\n", b"ok")


async def test_the_next_call_on_the_connection_is_not_disturbed(edge: Edge, passing: PassingCarrier) -> None:
    with provider_that_sends(CHUNKED + b"Digest: abc\r\n\r\n") as provider:
        passing.provider = provider_at(provider.port)
        caller = await edge.caller()
        caller.send(get("/acme/v1/files") + get("/"))
        wanted = b"Digest: abc\r\n\r\nHTTP/1.1 200 OK" if not passing.whole else b"okHTTP/1.1 200 OK"
        assert (await caller.reader.readuntil(wanted)).endswith(wanted)


@pytest.mark.parametrize(
    ("method", "has_effect"), [("GET", False), ("OPTIONS", False), ("POST", True), ("DELETE", True)]
)
async def test_a_lost_response_says_that_a_safe_method_had_no_effect(
    edge: Edge, passing: PassingCarrier, method: str, has_effect: bool
) -> None:
    """A call that is read whole may be an operation by its path and method, so it never counts as safe."""
    with provider_that_sends(b"") as provider:
        passing.provider = provider_at(provider.port)
        caller = await edge.caller()
        answer = await caller.ask(request("/acme/v1/files", None, method=method), method)
    assert (answer.status_code, answer.problem) == (504, "forward-failed")
    may_exist = has_effect or passing.whole
    assert answer.json["side_effect_may_exist"] is may_exist
    assert answer.json["advice"] == ("do_not_pay_again" if may_exist else "try_again_later")
    assert ("has no effect" in answer.json["detail"]) is not may_exist
