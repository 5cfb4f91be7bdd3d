"""The listener for webhooks, on a real socket: what it lets in, what it bounds, and what it says to strangers."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from paywitness.clock import Clock, SystemClock
from paywitness.core.call import Headers
from paywitness.engine.webhooks.inbox import InboxResult, WebhookReply
from paywitness.server.limits_and_timeouts import ServerLimits
from paywitness.server.webhook_sources import SOURCES_MAX, SourceLimiter, source_of
from paywitness.server.webhooks import WEBHOOK_LIMITS, WebhookServer
from tests.server.raw_client import Answer, Caller, get, request

PATH = "/paywitness/webhooks/acme"


class ManualClock(SystemClock):
    """Monotonic time stands still until it is told to move."""

    def __init__(self) -> None:
        self.mono_s = 0.0

    def mono(self) -> float:
        return self.mono_s

    def advance(self, seconds: float) -> None:
        self.mono_s += seconds


@dataclass
class FakeReceiver:
    """Records what it was given, and answers as it was told to."""

    reply: WebhookReply = WebhookReply(200)
    error: Exception | None = None
    received: list[tuple[str, str, Headers, bytes]] = field(default_factory=list)
    refused: list[tuple[str, InboxResult]] = field(default_factory=list)

    async def receive(self, provider: str, account: str, headers: Headers, body: bytes) -> WebhookReply:
        self.received.append((provider, account, headers, body))
        if self.error is not None:
            raise self.error
        return self.reply

    def refuse(self, provider: str, result: InboxResult, status_code: int) -> WebhookReply:
        self.refused.append((provider, result))
        return WebhookReply(status_code)


@asynccontextmanager
async def listening(
    receiver: FakeReceiver,
    limits: ServerLimits = WEBHOOK_LIMITS,
    clock: Clock = SystemClock(),
    rate_per_s: float = 1000,
) -> AsyncIterator[tuple[str, int]]:
    server = WebhookServer(receiver, limits, clock, rate_per_s=rate_per_s)
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        await server.close()


async def ask(
    receiver: FakeReceiver, data: bytes, method: str = "POST", limits: ServerLimits = WEBHOOK_LIMITS
) -> Answer:
    async with listening(receiver, limits) as address:
        caller = await Caller.open(address)
        try:
            return await caller.ask(data, method)
        finally:
            caller.close()


def problem_of(answer: Answer) -> str:
    assert answer.header("Content-Type") == "application/problem+json"
    members = json.loads(answer.body)
    assert set(members) == {"type", "title", "status"}  # nothing that a stranger could learn from
    assert members["status"] == answer.status_code
    return str(members["type"]).rpartition(":")[2]


async def test_a_delivery_comes_through_as_it_was_sent() -> None:
    receiver = FakeReceiver(WebhookReply(200, b"[accepted]"))
    body = gzip.compress(b'{"id": "evt_1"}')  # signatures are over the bytes on the wire
    answer = await ask(receiver, request(f"{PATH}/shop-a?x=1", body, "X-Sig: AbC", "Content-Encoding: gzip"))
    assert (answer.status_code, answer.body) == (200, b"[accepted]")
    assert answer.header("Content-Type") == "text/plain; charset=utf-8"
    ((provider, account, headers, received),) = receiver.received
    assert (provider, account, received) == ("acme", "shop-a", body)
    assert (b"X-Sig", b"AbC") in headers
    assert (b"Content-Encoding", b"gzip") in headers


async def test_without_an_account_it_is_the_main_one() -> None:
    receiver = FakeReceiver()
    answer = await ask(receiver, request(PATH, b"{}"))
    assert (answer.status_code, answer.body, answer.header("Content-Type")) == (200, b"", None)
    assert receiver.received[0][:2] == ("acme", "")


async def test_a_connection_serves_one_delivery_after_the_other() -> None:
    receiver = FakeReceiver()
    async with listening(receiver) as address:
        caller = await Caller.open(address)
        for _ in range(3):
            assert (await caller.ask(request(PATH, b"{}"))).status_code == 200
        caller.close()
    assert len(receiver.received) == 3


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/webhooks/acme",
        "/acme",
        "/paywitness",
        "/paywitness/webhooks",
        "/paywitness/webhooks/",
        "/paywitness/webhooks/acme/",
        "/paywitness/webhooks/acme/a/b",
        "/paywitness/operations/op_1",
        "/paywitness/webhooks/../admin",
        "/paywitness/webhooks/acme/%2e%2e",
        "/paywitness/webhooks/a%2fb",
        "/paywitness/webhooks/%00",
        "/metrics",
    ],
)
async def test_every_other_path_is_not_found(path: str) -> None:
    receiver = FakeReceiver()
    answer = await ask(receiver, request(path, b"{}"))
    assert (answer.status_code, problem_of(answer)) == (404, "not-found")
    assert (await ask(receiver, get(path), "GET")).status_code == 404
    assert receiver.received == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_only_posting_is_allowed_whoever_is_named(method: str) -> None:
    receiver = FakeReceiver()
    for path in (PATH, "/paywitness/webhooks/nobody"):
        answer = await ask(receiver, request(path, None, method=method), method)
        assert (answer.status_code, answer.header("Allow")) == (405, "POST")
    assert receiver.received == []


@pytest.mark.parametrize(
    ("status_code", "kind"),
    [
        (400, "webhook-unreadable"),
        (401, "webhook-not-genuine"),
        (403, "webhook-not-genuine"),
        (498, "webhook-not-genuine"),  # which HTTP does not know, and GoCardless wants
        (404, "not-found"),
        (422, "webhook-without-id"),
        (503, "webhook-not-kept"),
    ],
)
async def test_a_refusal_says_what_not_why(status_code: int, kind: str) -> None:
    answer = await ask(FakeReceiver(WebhookReply(status_code, b"the secret was ...")), request(PATH, b"{}"))
    assert (answer.status_code, problem_of(answer)) == (status_code, kind)
    assert b"secret" not in answer.body
    assert (answer.header("Retry-After") is not None) == (status_code == 503)


async def test_a_mistake_of_ours_is_no_acknowledgement_and_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    answer = await ask(FakeReceiver(error=RuntimeError("card 4242424242424242")), request(PATH, b"{}"))
    assert (answer.status_code, problem_of(answer)) == (500, "mistake")
    assert b"4242424242424242" not in answer.body
    assert "4242424242424242" not in caplog.text
    assert "RuntimeError" in caplog.text


async def test_a_body_beyond_the_bound_is_refused_before_it_is_read() -> None:
    receiver = FakeReceiver()
    large = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {256 * 1024 + 1}\r\n\r\n".encode()
    answer = await ask(receiver, large)
    assert answer.status_code == 413
    told = json.loads(answer.body)
    assert told["type"].endswith(":too-large")
    assert told["detail"] == f"The body may have at most {256 * 1024} bytes. The webhook was not kept."
    assert told.keys() == {"type", "title", "status", "detail"}  # no payment is behind it
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    chunked = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunk * 5
    assert (await ask(receiver, chunked)).status_code == 413
    assert receiver.received == []
    assert receiver.refused == [("acme", InboxResult.TOO_LARGE)] * 2
    assert (await ask(receiver, request(PATH, b"x" * 256 * 1024))).status_code == 200


async def test_a_slow_body_and_a_slow_head_are_not_waited_for() -> None:
    receiver = FakeReceiver()
    impatient = replace(WEBHOOK_LIMITS, head_s=0.4, body_s=0.4, body_idle_s=0.4)
    slow = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n".encode()
    assert (await ask(receiver, slow + b"12345", limits=impatient)).status_code == 408
    assert (await ask(receiver, slow[:-2], limits=impatient)).status_code == 408
    assert receiver.received == []
    assert (WEBHOOK_LIMITS.head_s, WEBHOOK_LIMITS.body_s) == (10.0, 10.0)


async def test_connections_are_bounded() -> None:
    async with listening(FakeReceiver(), replace(WEBHOOK_LIMITS, connections_max=2)) as address:
        callers = [await Caller.open(address) for _ in range(2)]
        for caller in callers:
            caller.send(request(PATH, b"{}")[:-1])
        await asyncio.sleep(0.05)
        third = await Caller.open(address)
        assert await third.is_closed()
        callers[0].send(b"}")
        assert (await callers[0].answer()).status_code == 200
        for caller in (*callers, third):
            caller.close()


async def test_connections_that_only_stand_open_keep_no_provider_out() -> None:
    async with listening(FakeReceiver(), replace(WEBHOOK_LIMITS, connections_max=8)) as address:
        idle = [await Caller.open(address) for _ in range(7)]
        idle[0].send(b"POST /paywitness/webhooks/ac")  # half a head is no request either
        idle += [await Caller.open(address) for _ in range(20)]
        provider = await Caller.open(address)
        assert (await provider.ask(request(PATH, b"{}"))).status_code == 200
        assert await idle[0].is_closed()
        for caller in (*idle, provider):
            caller.close()


async def test_framing_that_can_be_read_in_two_ways_is_refused() -> None:
    receiver = FakeReceiver()
    both = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{{}}".encode()
    assert (await ask(receiver, both)).status_code == 400
    assert receiver.received == []


# --- how many, and from whom


async def test_a_source_of_deliveries_that_are_not_genuine_is_told_429_and_counted() -> None:
    """S3: before its body is read. The provider sends again what was genuine."""
    receiver = FakeReceiver(WebhookReply(401))
    time = ManualClock()
    async with listening(receiver, clock=time, rate_per_s=1) as address:
        caller = await Caller.open(address)
        codes = [(await caller.ask(request(PATH, b"{}"))).status_code for _ in range(10)]
        assert codes == [401] * 10
        refused = await caller.ask(request(PATH, b"{}"))
        assert (refused.status_code, problem_of(refused)) == (429, "too-many-webhooks")
        assert refused.header("Retry-After") == "5"
        assert (len(receiver.received), receiver.refused) == (10, [("acme", InboxResult.TOO_MANY)])
        time.advance(2.0)
        assert [(await caller.ask(request(PATH, b"{}"))).status_code for _ in range(3)] == [401, 401, 429]
        caller.close()


async def test_genuine_deliveries_are_not_limited() -> None:
    receiver = FakeReceiver(WebhookReply(200, genuine=True))
    async with listening(receiver, clock=ManualClock(), rate_per_s=1) as address:
        caller = await Caller.open(address)
        assert {(await caller.ask(request(PATH, b"{}"))).status_code for _ in range(50)} == {200}
        caller.close()


@pytest.mark.parametrize("mark", ["Origin: https://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"])
async def test_no_web_page_delivers(mark: str) -> None:
    """S1."""
    receiver = FakeReceiver()
    answer = await ask(receiver, request(PATH, b"{}", mark))
    assert (answer.status_code, answer.json["type"].rpartition(":")[2]) == (403, "cross-site")
    assert receiver.received == []


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "source"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # a stranger's own word
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["198.51.100.1", "10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("2001:db8:1:2:3:4:5:6", [], "2001:db8:1:2::/64"),
        ("", [], ""),
    ],
)
def test_the_source_is_the_nearest_address_that_is_no_proxy_of_ours(
    peer: str, forwarded_for: list[str], source: str
) -> None:
    trusted = (ipaddress.ip_network("10.0.0.0/8"),)
    assert source_of(peer, forwarded_for, trusted) == source


def test_the_table_of_sources_is_bounded() -> None:
    sources = SourceLimiter(ManualClock(), 1)
    for number in range(SOURCES_MAX + 500):
        assert sources.take(f"source {number}")
    assert len(sources._tokens) == SOURCES_MAX
