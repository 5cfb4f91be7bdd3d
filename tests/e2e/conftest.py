"""A sandbox in a process of its own, and sidecars that are always ended with their test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.sidecar import TOP, Sidecar, ask, listens, wait_until
from tests.journal.redis_server import RedisServer
from tests.ports import free_port

# One for the whole fleet: any of them reads and recognises what another one wrote.
FLEET_SECRETS = {
    "PAYWITNESS_IDENTITY_SECRET": "bm90IGEgc2VjcmV0LCBidXQgbG9uZyBlbm91Z2ggZm9yIGl0IQ==",
    "PAYWITNESS_ENCRYPTION_KEYS": "k1:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
}
FLEET_LEASE_S = 6.0  # the shortest: a fleet knows that a holder is gone by its lease alone


@dataclass
class Provider:
    """The sandbox as a judge: asked over its control routes alone."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def effects(self, order: str = "order-1") -> int:
        return len(ask(f"{self.url}/_sandbox/ledger?order={order}").json["entries"])

    def arrivals(self) -> list[dict]:
        return list(ask(f"{self.url}/_sandbox/requests?limit=100000").json["requests"])

    def ledger(self, query: str = "") -> list[dict]:
        """Every effect, in the order in which it happened."""
        return list(ask(f"{self.url}/_sandbox/ledger?limit=100000{query}").json["entries"])

    def weather(self, **schedule: object) -> None:
        """From now on; without any, the sky is clear."""
        assert ask(f"{self.url}/_sandbox/faults", schedule, method="PUT").status_code == 200

    def tell_webhooks(self, url: str, secret: str, **how: object) -> None:
        told = {"url": url, "secret": secret, **how}
        assert ask(f"{self.url}/_sandbox/webhooks", told, method="PUT").status_code == 200

    def webhooks(self, query: str = "") -> list[dict]:
        """Every event, and how the telling of it went."""
        return list(ask(f"{self.url}/_sandbox/webhooks?limit=10000{query}").json["events"])

    def tell_again(self, event: str) -> None:
        """Once more, properly signed, whatever was wrong with it before."""
        assert ask(f"{self.url}/_sandbox/webhooks/{event}/resend", {}).status_code == 200


def start_provider(contract: str, port: int) -> Provider:
    command = [sys.executable, "-m", "paywitness", "sandbox", "--listen", f"127.0.0.1:{port}", "--contract", contract]
    process = subprocess.Popen(command, cwd=TOP, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: listens(port), "the start of the sandbox")
    return Provider(port, process)


@pytest.fixture
def start_sandbox() -> Iterator[Callable[..., Provider]]:
    running: list[Provider] = []

    def start(contract: str = "replayed", port: int | None = None) -> Provider:
        running.append(start_provider(contract, port or free_port()))
        return running[-1]

    yield start
    for provider in running:
        provider.process.kill()
        provider.process.wait()


@pytest.fixture(scope="session")
def shared_sandbox() -> Iterator[Provider]:
    """One for all tests of this worker: starting a process costs more than most tests."""
    provider = start_provider("replayed", free_port())
    yield provider
    provider.process.kill()
    provider.process.wait()


@pytest.fixture
def sandbox(shared_sandbox: Provider) -> Provider:
    assert ask(f"{shared_sandbox.url}/_sandbox/reset", {}).status_code < 300
    return shared_sandbox


@pytest.fixture
def make_sidecar(tmp_path: Path) -> Iterator[Callable[..., Sidecar]]:
    made: list[Sidecar] = []

    def make(
        sandbox_url: str,
        *edits: tuple[str, str],
        options: tuple[str, ...] = (),
        provider: str = "acme",
        environment: dict[str, str] | None = None,
        limited: bool = False,
    ) -> Sidecar:
        home = tmp_path / f"sidecar-{len(made)}"
        made.append(Sidecar(home, sandbox_url, edits, options, environment or {}, provider=provider, limited=limited))
        return made[-1]

    yield make
    for sidecar in made:
        sidecar.kill()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def make_fleet(make_sidecar: Callable[..., Sidecar], redis: RedisServer) -> Callable[..., list[Sidecar]]:
    """Sidecars over one Redis, not yet started."""
    options = ("--journal", redis.url, "--lease-seconds", f"{FLEET_LEASE_S:.0f}")

    def make(
        sandbox_url: str, *edits: tuple[str, str], count: int = 2, environment: dict[str, str] | None = None
    ) -> list[Sidecar]:
        secrets = {**FLEET_SECRETS, **(environment or {})}
        return [make_sidecar(sandbox_url, *edits, options=options, environment=secrets) for _ in range(count)]

    return make
