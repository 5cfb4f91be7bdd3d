"""Two sidecars over one Redis behind HAProxy, restarted one after the other under load: nobody notices.

HAProxy stands for any balancer that asks /readyz. It may not hide anything: no retries, no second server for a call.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.callers import NOBODY_ANSWERED, callers_session
from tests.e2e.conftest import FLEET_SECRETS, Provider
from tests.e2e.sidecar import LOST, Sidecar, ask, listens, wait_until
from tests.journal.redis_server import RedisServer
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
MakeSidecar = Callable[..., Sidecar]

CALLS_A_SECOND = 200
AT_LEAST_A_SECOND = 100  # beside other tests on two cores; alone it is the whole rate. Fewer would show nothing
AT_ONCE_MAX = 100  # a machine that cannot keep up is called less often, not buried
DRAIN_DELAY = "3s"  # thirty of the balancer's looks

CONFIGURATION = """
global
    maxconn 2000
    stats socket {folder}/haproxy.sock
defaults
    mode http
    retries 0
    no option redispatch
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    timeout check 30s
frontend services
    bind 127.0.0.1:{port}
    default_backend sidecars
backend sidecars
    balance roundrobin
    option httpchk GET /readyz
    http-check expect status 200
    default-server check inter 100ms fall 1 rise 1
{servers}
"""


@dataclass
class Balancer:
    folder: Path
    sidecars: list[Sidecar]
    port: int = field(default_factory=free_port)

    def start(self) -> subprocess.Popen[bytes]:
        program = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
        assert program, "haproxy is missing: sudo apt-get install haproxy (`make test` does it as root)"
        servers = "\n".join(
            f"    server s{number} 127.0.0.1:{sidecar.port} port {sidecar.admin_port}"
            for number, sidecar in enumerate(self.sidecars)
        )
        file = self.folder / "haproxy.cfg"
        file.write_text(CONFIGURATION.format(folder=self.folder, port=self.port, servers=servers))
        process = subprocess.Popen([program, "-db", "-q", "-f", str(file)])
        wait_until(lambda: process.poll() is not None or listens(self.port), "the start of HAProxy")
        assert process.poll() is None
        return process

    def in_service(self) -> list[str]:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(self.folder / "haproxy.sock"))
            asking.sendall(b"show stat\n")
            told = b"".join(iter(lambda: asking.recv(65536), b"")).decode()
        rows = [line.split(",") for line in told.splitlines() if line.startswith("sidecars,s")]
        return [row[1] for row in rows if row[17] == "UP"]


@pytest.fixture
def balanced(
    sandbox: Provider, make_sidecar: MakeSidecar, redis: RedisServer, tmp_path: Path
) -> Iterator[tuple[Balancer, list[Sidecar]]]:
    options = ("--journal", redis.url, "--drain-delay", DRAIN_DELAY, "--grace-seconds", "60")
    fleet = [make_sidecar(sandbox.url, options=options, environment=FLEET_SECRETS).start() for _ in range(2)]
    balancer = Balancer(tmp_path, fleet)
    process = balancer.start()
    wait_until(lambda: len(balancer.in_service()) == 2, "both being in service")
    yield balancer, fleet
    process.kill()
    process.wait()


def ready(sidecar: Sidecar) -> tuple[int, list[str]]:
    try:
        answer = ask(f"{sidecar.admin_url}/readyz")
    except LOST:
        return 0, []
    return answer.status_code, answer.json["why_not"]


def test_in_the_drain_delay_it_says_that_it_leaves_and_serves_on(sandbox: Provider, make_sidecar: MakeSidecar) -> None:
    sidecar = make_sidecar(sandbox.url, options=("--drain-delay", "10m")).start()
    wait_until(lambda: ready(sidecar) == (200, []), "its being ready")
    sidecar.send(signal.SIGTERM)
    wait_until(lambda: ready(sidecar) == (503, ["draining"]), "its saying so")
    assert sidecar.charge().status_code == 200
    assert sandbox.effects() == 1


@dataclass
class Load:
    """Payments at an even pace until told to stop, however long their answers take; what is late is made up for. What
    each was told is counted, whatever it was."""

    url: str
    session: aiohttp.ClientSession
    told: Counter[str] = field(default_factory=Counter)
    begun: int = 0
    slowest_s: float = 0.0
    over: bool = False

    async def run(self) -> float:
        """Returns how many a second it came to."""
        loop = asyncio.get_running_loop()
        at_once, began_mono = asyncio.Semaphore(AT_ONCE_MAX), loop.time()
        async with asyncio.TaskGroup() as calls:
            while not self.over:
                await at_once.acquire()
                self.begun += 1
                calls.create_task(self._pay(self.begun)).add_done_callback(lambda _: at_once.release())
                await asyncio.sleep(max(0.0, began_mono + self.begun / CALLS_A_SECOND - loop.time()))
            return self.begun / (loop.time() - began_mono)

    async def _pay(self, number: int) -> None:
        headers = {"Authorization": "Bearer test", "Idempotency-Key": f"rolling-{number}"}
        body = {"amount": 1099, "currency": "EUR", "metadata": {"order_id": f"order-{number}"}}
        asked_mono = asyncio.get_running_loop().time()
        try:
            async with self.session.post(f"{self.url}/v1/charges", json=body, headers=headers) as response:
                await response.read()
                self.slowest_s = max(self.slowest_s, asyncio.get_running_loop().time() - asked_mono)
                self.told[f"{response.status} {response.headers.get('Paywitness-Outcome', 'not ours')}"] += 1
        except NOBODY_ANSWERED as error:
            self.told[type(error).__name__] += 1


def restart(sidecar: Sidecar, balancer: Balancer) -> None:
    assert sidecar.process is not None
    sidecar.process.terminate()
    wait_until(lambda: len(balancer.in_service()) == 1, "its being out of service")
    assert sidecar.wait_for_end(90) == 0
    sidecar.start()
    wait_until(lambda: len(balancer.in_service()) == 2, "its being in service again")


async def test_a_rolling_restart_under_load_fails_no_call_and_leaves_no_doubt(
    sandbox: Provider, balanced: tuple[Balancer, list[Sidecar]], capsys: pytest.CaptureFixture[str]
) -> None:
    balancer, fleet = balanced
    async with callers_session() as session:
        load = Load(f"http://127.0.0.1:{balancer.port}/acme", session)
        loading = asyncio.ensure_future(load.run())
        for sidecar in fleet:
            before = load.begun
            await asyncio.to_thread(restart, sidecar, balancer)
            assert load.begun > before + 10
        load.over = True
        rate = await loading
    with capsys.disabled():
        reached = f"{rate:.0f} of {CALLS_A_SECOND} a second"
        print(f"\nrolling restart: {load.begun} calls, {reached}; the slowest took {load.slowest_s:.2f} s")
    assert load.told == {"200 succeeded": load.begun}
    assert rate >= AT_LEAST_A_SECOND, reached
    arrived = Counter(arrival["key"] for arrival in sandbox.arrivals() if arrival["method"] == "POST")
    assert arrived == {f"rolling-{number + 1}": 1 for number in range(load.begun)}  # none was even sent again
    assert len(sandbox.ledger()) == load.begun
    assert not fleet[0].operations("&doubt=true")
    assert all("doubt_opened" not in sidecar.log for sidecar in fleet)
