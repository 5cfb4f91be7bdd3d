"""Services that were told of us by their environment alone, as `paywitness ca env` prints it: whatever HTTP client they
use, a lost response gives one charge."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import Provider, start_provider
from tests.e2e.foreign_clients import CLIENTS, command_of, installed, java_lines
from tests.e2e.sidecar import TOP, Sidecar
from tests.ports import free_port

pytestmark = pytest.mark.slow

# Each is given addresses, and for each a body and headers. It posts one after the other, and says what status it got.
_READ = "import json, sys\nasked = json.loads(sys.argv[1])\n"
REQUESTS = """
import requests
for url, body, headers in asked:
    print(requests.post(url, data=body, headers=headers, timeout=30).status_code)
"""
HTTPX = """
import httpx
with httpx.Client(timeout=30) as client:
    for url, body, headers in asked:
        print(client.post(url, content=body, headers=headers).status_code)
"""
AIOHTTP = """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session:
        for url, body, headers in asked:
            async with session.post(url, data=body, headers=headers) as answer:
                print(answer.status)
asyncio.run(main())
"""
URLLIB = """
import urllib.error, urllib.request
for url, body, headers in asked:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers), timeout=30) as answer:
            print(answer.status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
FETCH = """
(async () => {
  for (const [url, body, headers] of JSON.parse(process.argv[1])) {
    console.log((await fetch(url, { method: 'POST', body, headers })).status);
  }
})();
"""
PYTHON = {"requests": REQUESTS, "httpx": HTTPX, "aiohttp": AIOHTTP, "urllib": URLLIB}


@dataclass
class Service:
    """A process with nothing in its environment but what `paywitness ca env` exports."""

    sidecar: Sidecar
    environment: dict[str, str]
    printed: str  # by `paywitness ca env`
    scratch: Path  # a folder for the programs of clients

    def post(self, client: str, urls: list[str], order: str) -> list[int]:
        """A charge to each, under keys and orders of its own; the first response of each is lost."""
        asked = [(url, body_of(f"{order}-{n}"), headers_of(f"{order}-{n}")) for n, url in enumerate(urls)]
        if client in PYTHON:
            return self._run([sys.executable, "-c", _READ + PYTHON[client], json.dumps(asked)])
        if client == "fetch":
            return self._run(["node", "-e", FETCH, json.dumps(asked)])
        foreign = installed(client)
        folder = self.scratch / order
        folder.mkdir()
        java = self._java_options(folder) if "java" in foreign.needs else []
        command = command_of(foreign, folder, java)
        given = [[url, body, *(f"{name}: {value}" for name, value in headers.items())] for url, body, headers in asked]
        return [status for arguments in given for status in self._run([*command, *arguments], folder)]

    def _java_options(self, folder: Path) -> list[str]:
        """What the printed lines for Java come to, with our command for `paywitness` and theirs for `java`."""
        python, home = shlex.quote(sys.executable), shlex.quote(str(self.sidecar.home))
        ca = f'paywitness() {{ {python} -m paywitness "$@" --home {home}; }}'
        lines = java_lines(self.printed).replace("\njava ", "\nprintf '%s\\n' ").removesuffix("...")
        environment = {**self.environment, "PYTHONPATH": str(TOP / "proxy")}
        done = subprocess.run(
            ["sh", "-ec", f"{ca}\n{lines}"], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [line for line in done.stdout.splitlines() if line.startswith("-D")]

    def _run(self, command: list[str], folder: Path | None = None) -> list[int]:
        done = subprocess.run(
            command, env=self.environment, cwd=folder, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [int(line) for line in done.stdout.split()]


def body_of(order: str) -> str:
    return json.dumps({"amount": 1099, "currency": "EUR", "metadata": {"order_id": order}})


def headers_of(key: str) -> dict[str, str]:
    return {
        "Authorization": "Bearer test",
        "Content-Type": "application/json",
        "Idempotency-Key": key,
        "Sandbox-Fault": "drop_after_commit",
    }


def paywitness_ca(*arguments: str) -> str:
    command = [sys.executable, "-m", "paywitness", "ca", *arguments]
    return subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    found = start_provider("replayed", free_port())
    yield found
    found.process.kill()
    found.process.wait()


@pytest.fixture(scope="module")
def service(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("a place") / "home"  # with a space in it, which a shell and Node both take apart
    sidecar = Sidecar(home, provider.url)
    paywitness_ca("init", "--home", str(home), "--policies", str(home / "policies"))
    told = paywitness_ca("env", "--home", str(home), "--proxy", f"127.0.0.1:{sidecar.port}")
    shell = ["sh", "-c", 'eval "$1"; env', "sh", told]
    after = subprocess.run(shell, check=True, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}).stdout
    sidecar.start()
    environment = dict(line.split("=", 1) for line in after.splitlines())
    environment |= {"HOME": str(home), "GOCACHE": str(home.parent / "go")}  # Go keeps what it compiles
    yield Service(sidecar, environment, told, tmp_path_factory.mktemp("programs"))
    sidecar.kill()


@pytest.mark.parametrize("client", [*PYTHON, "fetch", *CLIENTS])
def test_t8_a_lost_response_is_one_charge_by_what_ca_env_prints(
    provider: Provider, service: Service, client: str
) -> None:
    """By HTTPS, by plain HTTP, and by our own address, which no proxy is asked for."""
    ours = f"http://127.0.0.1:{service.sidecar.port}/acme/v1/charges"
    urls = ["https://api.acme.test/v1/charges", "http://api.acme.test/v1/charges", ours]
    order = re.sub(r"\W+", "-", client)
    assert service.post(client, urls, order) == [200, 200, 200]
    assert [provider.effects(f"{order}-{number}") for number in range(3)] == [1, 1, 1]


def test_what_no_proxy_names_goes_around_us(provider: Provider, service: Service) -> None:
    """The same client, the same environment: the sandbox is on this machine, and has no policy by its own name."""
    answered = service.sidecar.metric("payment_unmatched_calls_total", provider="acme")
    for client in ("curl", "fetch"):
        command = {
            "curl": ["curl", "--silent", f"{provider.url}/v1/charges/none", "--output", "/dev/null"],
            "fetch": ["node", "-e", f"fetch('{provider.url}/v1/charges/none')"],
        }[client]
        before = len(provider.arrivals())
        service._run([*command])
        assert len(provider.arrivals()) == before + 1, client
    assert service.sidecar.metric("payment_unmatched_calls_total", provider="acme") == answered


def test_a_host_no_policy_names_is_refused_in_words_that_a_client_shows(service: Service) -> None:
    """What `--unlisted tunnel` does instead needs addresses of the internet: tests/redirect has a kernel's worth."""
    command = ["curl", "--silent", "--show-error", "--output", "/dev/null", "https://bank.test/"]
    done = subprocess.run(command, env=service.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 56
    assert "403" in done.stderr
    script = "fetch('https://bank.test/').catch((error) => console.log(error.cause.message))"
    told = subprocess.run(
        ["node", "-e", script], env=service.environment, capture_output=True, text=True, check=True
    ).stdout
    assert told.strip() == "the proxy refused bank.test:443: 403"


def test_what_services_read_is_readable_and_what_they_must_not_is_not(service: Service) -> None:
    home = service.sidecar.home
    assert [oct(path.stat().st_mode & 0o777) for path in (home / "ca-bundle.pem", home / "ca.key")] == [
        "0o644",
        "0o600",
    ]
    assert Path(service.environment["NODE_EXTRA_CA_CERTS"]) == home / "ca-bundle.pem"
