"""Events, with real processes: a sink that is down, hangs and refuses, and a sidecar that is killed meanwhile, alone or
in a fleet. Every end, doubt and resolution arrives, in its order, genuine; and the feed tells the same."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from paywitness.redis.url import parse_redis_url
from tests.e2e.conftest import Provider
from tests.e2e.sidecar import Sidecar, wait_until
from tests.journal.redis_server import RedisServer
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KEY = b"a key of the shop's own, thirty-2"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
DOWN_S = 21.0
HANGS_S = 12.0  # longer than the sidecar waits for an answer
CALM_S = 0.3
PAYMENTS = 60
SOON = (("schedule: [2s, 10s, 30s, 2m, 10m, 1h, 6h, 24h]", "schedule: [500ms, 1s, 2s, 3s, 4s, 5s, 6s, 8s, 10s, 20s]"),)
LOST = (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError)


@dataclass
class Offer:
    event: dict
    genuine: bool
    status_code: int | None  # what the sink made of it; None: nothing in time


@dataclass
class Sink:
    """The company's own receiver, which has its troubles by the number of the request."""

    port: int = field(default_factory=free_port)
    offers: list[Offer] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    calm: bool = False  # it takes everything, in its own time
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/outcomes?from=paywitness"

    @property
    def taken(self) -> list[dict]:
        return [offer.event for offer in self.offers if offer.status_code == 204]

    def receive(self, headers: dict[str, str], body: bytes) -> int | None:
        """How it is answered."""
        with self._lock:
            number = len(self.offers)
            status_code = None if number == 50 else 500 if number % 6 == 5 else 204
            status_code = 204 if self.calm else status_code
            self.offers.append(Offer(json.loads(body), is_genuine(headers, body), status_code))
        if self.calm:
            self.over.wait(CALM_S)
        return status_code


def is_genuine(headers: dict[str, str], body: bytes) -> bool:
    """Standard Webhooks, by hand."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    young = abs(time.time() - int(headers["webhook-timestamp"])) < 60
    named = headers["webhook-id"] == json.loads(body)["id"]
    return young and named and expected in headers["webhook-signature"].split(" ")


def server_for(sink: Sink) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # the library's name for it
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status_code = sink.receive({name.lower(): value for name, value in self.headers.items()}, body)
            if status_code is None:
                sink.over.wait(HANGS_S)
                self.close_connection = True
                return
            self.send_response(status_code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Not into the test's output."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A sidecar that was killed, or that waited no longer: it tells again."""

    return Server(("127.0.0.1", sink.port), Handler)


@pytest.fixture
def sink() -> Sink:
    """It does not listen yet."""
    return Sink()


@pytest.fixture
def listening(sink: Sink) -> Iterator[Callable[[], None]]:
    """Listen from the call on, until the test is over."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def listen() -> None:
        server = server_for(sink)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        servers.append((server, thread))

    yield listen
    sink.over.set()
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def rows(sidecar: Sidecar) -> list[dict]:
    """All of the feed, as a reader would page through it."""
    found: list[dict] = []
    after = 0
    while True:
        page = sidecar.admin(f"/v1/outcomes?after={after}&limit=50").json
        if not page["outcomes"]:
            return found
        found += page["outcomes"]
        after = page["next"]


def feed(sidecar: Sidecar) -> list[dict]:
    return [row["event"] for row in rows(sidecar)]


def expected_ids(sidecar: Sidecar) -> dict[str, list[str]]:
    """By operation, what the journal says was told, in its order."""
    whole = [sidecar.operation(row["id"]) for row in sidecar.operations()]
    return {
        operation["id"]: [f"{operation['id']}:{entry['version']}" for entry in operation["timeline"] if entry["told"]]
        for operation in whole
    }


def is_lost(number: int) -> bool:
    return number % 3 == 0


def is_declined(number: int) -> bool:
    return number % 10 == 1 and not is_lost(number)


def pay(sidecar: Sidecar, number: int) -> None:
    """A third loses its answers, as often as a call tries; some callers are patient. Whoever hears nothing repeats."""
    fault = ",".join(["drop_after_commit"] * 3) if is_lost(number) else "declined" if is_declined(number) else ""
    wishes = {"Paywitness-Timeout-Ms": "400" if number % 2 else "8000"}
    for _ in range(100):
        with suppress(*LOST):
            if sidecar.charge(f"key-{number}", f"order-{number}", fault=fault, headers=wishes).status_code != 503:
                return
        time.sleep(0.1)  # until somebody listens again


def test_every_event_arrives_in_order_and_genuine_whatever_befalls_the_sink_and_the_sidecar(
    start_sandbox: Callable[..., Provider],
    make_sidecar: Callable[..., Sidecar],
    sink: Sink,
    listening: Callable[[], None],
) -> None:
    provider = start_sandbox("replayed")
    environment = {"PAYWITNESS_EVENTS_SECRET": SECRET}
    sidecar = make_sidecar(provider.url, *SOON, options=("--events", sink.url), environment=environment).start()
    began_mono = time.monotonic()
    provider.weather(seed=2, read_faults={"error_500": 0.5}, slow_reads_s=0.3)  # what is lost is not found at once
    with ThreadPoolExecutor(10) as callers:
        paying = [callers.submit(pay, sidecar, number) for number in range(PAYMENTS)]
        wait_until(lambda: sum(each.done() for each in paying) >= PAYMENTS // 3, "a third of the payments")
        kill_and_start(sidecar)  # with calls under way
        assert [each.result() for each in paying]
    provider.weather()
    wait_until(lambda: all_ended(sidecar), "the end of all doubt, with nobody to tell it to", 40)
    wait_until(lambda: time.monotonic() - began_mono > DOWN_S, "a sink that was down for long enough", 40)
    expected = expected_ids(sidecar)
    wanted = {event_id for ids in expected.values() for event_id in ids}
    kill_and_start(sidecar)  # it has told nobody anything yet
    listening()
    wait_until(lambda: len(sink.taken) >= 20, "the first events", 60)
    kill_and_start(sidecar)  # in the midst of the telling: some are told twice
    wait_until(lambda: wanted <= {event["id"] for event in sink.taken}, "the last event", 90)
    assert {offer.status_code for offer in sink.offers} == {204, 500, None}
    assert all(offer.genuine for offer in sink.offers)
    assert {event["id"] for event in sink.taken} == wanted
    assert complaints_about_order(sink, expected) == []
    told = feed(sidecar)
    assert {event["id"]: event for event in told} == {event["id"]: event for event in sink.taken}
    assert len(told) == len(wanted)  # the feed has each of them once
    assert_what_was_told(told, provider)


def test_in_a_fleet_another_one_delivers_when_the_deliverer_is_killed(
    start_sandbox: Callable[..., Provider],
    make_fleet: Callable[..., list[Sidecar]],
    redis: RedisServer,
    sink: Sink,
    listening: Callable[[], None],
) -> None:
    provider = start_sandbox("replayed")
    sink.calm = True
    environment = {"PAYWITNESS_EVENTS": sink.url, "PAYWITNESS_EVENTS_SECRET": SECRET}
    fleet = make_fleet(provider.url, *SOON, environment=environment)
    listening()
    for sidecar in fleet:
        sidecar.start()
    pay(fleet[0], 2)
    wait_until(lambda: cursor_in(redis) > 0, "the first event")
    other, deliverer = sorted(fleet, key=delivered)
    assert (delivered(other), delivered(deliverer)) == (0, 1)
    with ThreadPoolExecutor(10) as callers:
        paying = [callers.submit(pay, other, number) for number in range(PAYMENTS)]
        wait_until(lambda: len(sink.offers) >= PAYMENTS // 2, "half of the events", 40)
        deliverer.kill()
        time.sleep(1)  # what it had sent is read; nobody else delivers for longer than that
        come_to, before = cursor_in(redis), len(sink.offers)
        assert delivered(other) == 0
        assert [each.result() for each in paying]
    wait_until(lambda: all_ended(other), "the end of all doubt", 40)
    wait_until(lambda: cursor_in(redis) == rows(other)[-1]["seq"], "the last event", 60)
    expected = expected_ids(other)
    wanted = {event_id for ids in expected.values() for event_id in ids}
    assert {event["id"] for event in sink.taken} == wanted
    assert all(offer.genuine for offer in sink.offers)
    assert complaints_about_order(sink, expected) == []
    noted = {row["event"]["id"] for row in rows(other) if row["seq"] <= come_to}
    again = [offer.event["id"] for offer in sink.offers[before:]]
    assert len(again) == len(set(again))
    assert noted.isdisjoint(again)  # twice came only what was not yet noted as taken
    by_id: dict[str, list[dict]] = {}
    for event in sink.taken:
        by_id.setdefault(event["id"], []).append(event)
    assert all(event == events[0] for events in by_id.values() for event in events)
    assert_what_was_told([events[0] for events in by_id.values()], provider)


def delivered(sidecar: Sidecar) -> float:
    return sidecar.metric("paywitness_outbox_deliveries_total", result="delivered")


def cursor_in(redis: RedisServer) -> int:
    """How far the sink has come, as the fleet's journal has it."""
    answer = redis.ask("HGET", f"{parse_redis_url(redis.url).prefix}cursors", "sink")
    return 0 if answer == b"$-1\r\n" else int(answer.split(b"\r\n")[1])


def kill_and_start(sidecar: Sidecar) -> None:
    sidecar.kill()
    sidecar.start()


def all_ended(sidecar: Sidecar) -> bool:
    return {operation["state"] for operation in sidecar.operations()} <= {"succeeded", "failed"}


def complaints_about_order(sink: Sink, expected: dict[str, list[str]]) -> list[str]:
    """An event is offered only after the one before it of its operation was taken."""
    taken: set[str] = set()
    found = []
    for offer in sink.offers:
        event_id, operation_id = offer.event["id"], offer.event["subject"]
        before = expected[operation_id][: expected[operation_id].index(event_id)]
        if not taken.issuperset(before):
            found.append(f"{event_id} was offered before {set(before) - taken}")
        if offer.status_code == 204:
            taken.add(event_id)
    return found


def assert_what_was_told(told: list[dict], provider: Provider) -> None:
    """Each payment's end, once and as the ledger has it; and of what was lost its doubt before."""
    by_order: dict[str, list[dict]] = {}
    for event in told:
        by_order.setdefault(event["data"]["about"]["id"], []).append(event["data"])
    assert len(by_order) == PAYMENTS
    for number in range(PAYMENTS):
        order = f"order-{number}"
        words = [word for data in by_order[order] for word in data["words"]]
        last = by_order[order][-1]
        assert words.count("ended") == 1, by_order[order]
        assert (last["outcome"] == "succeeded") == (provider.effects(order) == 1), by_order[order]
        doubted = ["doubt_opened", "resolved", "ended"]
        assert words == doubted if is_lost(number) else words in (["ended"], doubted), by_order[order]
        if is_declined(number):
            assert last["outcome"] == "declined"
    assert any(data["evidence"] == "inquiry" for events in by_order.values() for data in events)
