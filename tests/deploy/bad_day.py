"""A provider's bad day in half a minute: everything that a panel shows is made to happen, for real.

Three providers of one API: `acme`, whose answers get lost; `acme_us`, which nobody reaches, so that its payments fall
back to `acme`; and `acme_watch`, which is only observed.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.conftest import FLEET_LEASE_S, FLEET_SECRETS, Provider, start_provider
from tests.e2e.sidecar import LOST, TOP, Answer, Sidecar, ask
from tests.journal.redis_server import RedisServer
from tests.ports import free_port

SECRET = "whsec_of_the_shop"
EVENTS_SECRET = "whsec_YSBrZXkgb2YgdGhlIHNob3AncyBvd24sIHRoaXJ0eS0y"
HURRIED = (
    ("schedule: [2s, 10s, 30s, 2m, 10m, 1h, 6h, 24h]", "schedule: [300ms, 1s, 2s, 3s]"),
    ("  first_byte: 5s ", "  first_byte: 1s "),
    ("settle: 10m ", "settle: 32s "),
    ("authorization_expires: 7d ", "authorization_expires: 1d "),
    ("capture_before: capture_before ", "capture_before: not_shown "),
    ("rate_limited: {attempts: 4, base: 1s, cap: 20s}", "rate_limited: {attempts: 3, base: 20ms, cap: 50ms}"),
    (
        "network_connect_failure: {attempts: 4, base: 200ms, cap: 2s}",
        "network_connect_failure: {attempts: 2, base: 10ms}",
    ),
)
PAUSE_S = 0.25
LONG_LOST_S = 15.0
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def policy(name: str, upstream: str, *edits: tuple[str, str]) -> str:
    text = (TOP / "policies" / "acme.yaml").read_text("utf-8")
    hosts = ("hosts: [api.acme.test]", f"hosts: [{name.replace('_', '-')}.acme.test]")
    at = ("upstream: http://127.0.0.1:8702", f"upstream: {upstream}\nmerchant: shop")
    for old, new in (("provider: acme ", f"provider: {name} "), hosts, at, *HURRIED, *edits):
        assert old in text, f"the policy has no {old!r}"
        text = text.replace(old, new)
    return text


def unreached(upstream: str) -> str:
    fallback = "\nsame_credentials_as: acme\nfallback: [{to: acme, when: [not_sent, circuit_open]}]\nunmatched: forward"
    return policy("acme_us", upstream, ("\nunmatched: forward", fallback))


def observed(upstream: str) -> str:
    watched = "answers:\n  charge:\n    - {when: \"status == 'succeeded'\", as: succeeded, observe: true}\n"
    return policy(
        "acme_watch", upstream, ("\nbody: json", "\nmode: observe\nbody: json"), ("answers:\n  charge:\n", watched)
    )


@dataclass
class BadDay:
    provider: Provider
    redis: RedisServer
    sidecars: list[Sidecar]
    over: threading.Event = field(default_factory=threading.Event)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    processing: list[str] = field(default_factory=list)  # charges that are not final yet
    started: list[Future[None]] = field(default_factory=list)
    scraped_while_frozen: Answer | None = None  # with a journal that answers nothing

    @property
    def first(self) -> Sidecar:
        return self.sidecars[0]

    def begin(self) -> None:
        """The first sidecar alone; the second comes later, and is seen to come."""
        self.first.start()
        told = f"http://127.0.0.1:{self.first.webhooks_port}/paywitness/webhooks/acme"
        self.provider.tell_webhooks(told, SECRET)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Calls without a pause, and a course of events beside them, until the end of the block."""
        with ThreadPoolExecutor(7) as pool:
            calls = (*[self._one_of_many] * 4, self._unreached, self._aside)
            self.started = [pool.submit(self._course), *(pool.submit(self._repeat, call) for call in calls)]
            try:
                yield
            finally:
                self.over.set()
        self.check()

    def check(self) -> None:
        """Raise what went wrong with it."""
        for each in self.started:
            if each.done():
                each.result()

    def _repeat(self, call: Callable[[int], object]) -> None:
        while not self.over.wait(PAUSE_S):
            with suppress(*LOST):
                call(next(self.numbers))

    def _one_of_many(self, number: int) -> None:
        """Most are paid; some lose their answer, are refused at first, or declined."""
        faults = {1: "drop_after_commit", 3: "rate_limited", 5: "error_500_after_commit", 6: "slow(slow_s=0.3)"}
        self.pay(number, fault=faults.get(number % 8, ""), source="tok_stolen_card" if number % 8 == 7 else "tok_ok")

    def _unreached(self, number: int) -> None:
        """Enough to be judged by. At the other route some are declined, not always as many."""

        def pay(part: int) -> Answer:
            source = "tok_stolen_card" if part < number % 3 else "tok_ok"
            return self.pay(f"{number}-{part}", provider="acme_us", source=source)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(pay, range(8)))

    def _aside(self, number: int) -> None:
        self.pay(number, provider="acme_watch")
        ask(f"{self.first.url}/v1/charges?order=order-{number}", headers={"Authorization": "Bearer test"})
        self.pay("always the same", amount=number)  # a key that is used again with another payload
        self._at_the_door()
        self._settled_later(self.pay(f"{number}-later", source="tok_processing"))
        self._refunded_too_much(number, self.pay(f"{number}-held", capture=False))

    def _at_the_door(self) -> None:
        """Somebody asks for whom nobody knows, and somebody leaves in the midst of asking."""
        ask(f"http://127.0.0.1:{self.first.port}/nobody/v1/charges")
        with socket.create_connection(("127.0.0.1", self.first.port)) as leaving:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # at once, by a reset
            leaving.sendall(b"POST /acme/v1/charges HTTP/1.1\r\nHost: shop\r\nContent-Length: 99\r\n\r\n{")

    def _settled_later(self, answer: Answer) -> None:
        """Accepted and not final: a person's, when its schedule is over, until the provider tells how it ended."""
        if answer.outcome == "pending":
            self.processing.append(answer.json["id"])
        if len(self.processing) > 8:
            settle = f"{self.provider.url}/_sandbox/charges/{self.processing.pop(0)}/settle"
            assert ask(settle, {"status": "succeeded"}).status_code == 200

    def _refunded_too_much(self, number: int, held: Answer) -> None:
        """An authorization that nobody captures, and a refund of it although nothing was captured."""
        if held.outcome == "succeeded":
            headers = {"Authorization": "Bearer test", "Idempotency-Key": f"refund-{number}"}
            url = f"http://127.0.0.1:{self.first.port}/acme/v1/charges/{held.json['id']}/refunds"
            ask(url, {"amount": 1}, {"Content-Type": "application/json", **headers})

    def _course(self) -> None:
        """What happens once, each when the one before it was over."""
        self._long_lost("forgotten", LONG_LOST_S)
        self.sidecars[1].start()
        self._told_as_failed()
        self._refused_edit()
        self.redis.freeze()
        self.over.wait(2.5)  # longer than a call waits for it
        self.scraped_while_frozen = ask(f"{self.first.admin_url}/metrics")
        self.redis.thaw()

    def _long_lost(self, name: str, until_s: float) -> str:
        """In doubt: the provider commits it so much later, and tells it."""
        for tries in itertools.count():  # the provider may be too full at first
            answer = self.pay(f"{name}-{tries}", fault=f"black_hole(heal_s={until_s}, hang_s=0)", timeout_ms=500)
            if answer.outcome == "unknown" or self.over.wait(PAUSE_S):
                break
        return answer.headers["Paywitness-Operation"]

    def _refused_edit(self) -> None:
        file = self.first.home / "policies" / "acme.yaml"
        text = file.read_text("utf-8")
        file.write_text(text + "\nno_such_key: 1\n")
        self.over.wait(4)
        file.write_text(text.replace("deadline: 20s", "deadline: 21s"))

    def _told_as_failed(self) -> None:
        """An operator is wrong: what is told as failed was only late. On a slow machine it may not be late enough."""
        said = {"actor": "ada", "reason": "ticket 1", "as": "failed", "evidence": "Acme's dashboard shows nothing"}
        for tries in range(5):
            operation_id = self._long_lost(f"late-{tries}", 3.0 * 2**tries)
            answer = self.first.admin(f"/v1/operations/{operation_id}/resolve", said)
            if answer.status_code == 200:
                return
        raise AssertionError(f"no operator was fast enough: {answer.body!r}")

    def pay(
        self,
        number: object,
        *,
        provider: str = "acme",
        fault: str = "",
        source: str = "tok_ok",
        amount: int = 1250,
        timeout_ms: int = 1500,
        capture: bool = True,
    ) -> Answer:
        order = {"order_id": f"order-{number}"}
        body = {"amount": amount, "currency": "EUR", "source": source, "capture": capture, "metadata": order}
        headers = {
            "Content-Type": "application/json",
            "Authorization": "Bearer test",
            "Idempotency-Key": f"{provider}-key-{number}",
            "Paywitness-Timeout-Ms": str(timeout_ms),
            "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
        }
        if fault:
            headers["Sandbox-Fault"] = fault
        return ask(f"http://127.0.0.1:{self.first.port}/{provider}/v1/charges", body, headers)


@contextmanager
def bad_day(home: Path, events_url: str) -> Iterator[BadDay]:
    """Not yet begun."""
    with ExitStack() as stack:
        redis = RedisServer(home / "redis")
        redis.start()
        stack.callback(redis.stop)
        provider = start_provider("replayed", free_port())
        stack.callback(provider.process.wait)
        stack.callback(provider.process.kill)
        options = ("--journal", redis.url, "--limits", redis.url, "--lease-seconds", f"{FLEET_LEASE_S:.0f}")
        environment = {
            **FLEET_SECRETS,
            "ACME_WEBHOOK_SECRET": SECRET,
            "PAYWITNESS_EVENTS": events_url,
            "PAYWITNESS_EVENTS_SECRET": EVENTS_SECRET,
        }
        sidecars = []
        nowhere = f"http://127.0.0.1:{free_port()}"
        for number in range(2):
            # Acme itself is not spared as its policy would, so that its answers can be lost at leisure.
            sidecar = Sidecar(home / f"sidecar-{number}", provider.url, HURRIED, options, environment)
            stack.callback(sidecar.kill)
            (sidecar.home / "policies" / "acme.yaml").write_text(policy("acme", provider.url))
            (sidecar.home / "policies" / "acme_us.yaml").write_text(unreached(nowhere))
            (sidecar.home / "policies" / "acme_watch.yaml").write_text(observed(provider.url))
            sidecars.append(sidecar)
        yield BadDay(provider, redis, sidecars)
