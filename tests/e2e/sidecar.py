"""A real sidecar process in front of a real sandbox, on free ports, with its journal in a directory of the test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from tests.ports import free_port

TOP = Path(__file__).resolve().parents[2]
START_S = 60.0  # a start takes one on an idle machine
# Most tests lose more answers than an honest provider does, and are not about sparing it: a circuit that judges
# nothing, and a budget for it. The tests of the limits have those of the shipped policy.
ROOMY = (
    ("  minimum: 20 ", "  minimum: 10000 "),
    ("  provider: {floor: 100, ratio: 5%, ceiling: 100%} ", "  provider: {floor: 10000} "),
    (
        "  per_intent: 3 ",
        "  operation: {floor: 10000}\n  account: {floor: 10000}\n  failure_class: {floor: 10000}\n  per_intent: 20 ",
    ),
)
LOST = (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError)  # nobody answered


@dataclass
class Answer:
    status_code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def outcome(self) -> str:
        return self.headers.get("Paywitness-Outcome", "")

    @property
    def problem(self) -> str:
        """The kind of an answer of ours; "" where it is the provider's."""
        if self.headers.get("Content-Type") != "application/problem+json":
            return ""
        return str(self.json["type"]).rpartition(":")[2]

    @property
    def sent(self) -> bool:
        """Whether this very call sent anything, as far as it says."""
        return not self.problem or self.json.get("sent") is not False


def ask(
    url: str,
    body: object | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    method: str | None = None,
) -> Answer:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=dict(headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return Answer(response.status, dict(response.headers), response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, dict(error.headers), error.read())


def wait_until(condition, what: str, within_s: float = START_S) -> None:
    """Look again and again; fail when it takes too long."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {within_s} s")
        time.sleep(0.02)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free(port: int) -> bool:
    return not listens(port)


@dataclass
class Sidecar:
    """`start` and `stop` as often as wanted: the journal, the ports and the secrets stay."""

    home: Path
    sandbox_url: str
    edits: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    admin_port: int = field(default_factory=free_port)
    webhooks_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    provider: str = "acme"
    group: int | None = None  # whom it runs as; None: as we do
    limited: bool = False  # as the shipped policy limits it
    overlay: str = (
        ""  # a policy that extends the shipped one, and has the provider's address as {upstream}; no edits then
    )

    def __post_init__(self) -> None:
        policies = self.home / "policies"
        policies.mkdir(parents=True, exist_ok=True)
        if self.overlay:
            text = self.overlay.replace("{upstream}", self.sandbox_url)
            (policies / f"{self.provider}.yaml").write_text(text)
            return
        text = (TOP / "policies" / f"{self.provider}.yaml").read_text()
        roomy = () if self.limited or self.provider != "acme" else ROOMY
        for old, new in (*self.edits, *roomy, *self._addresses()):
            assert old in text, f"the policy has no {old!r}"
            text = text.replace(old, new)
        (policies / f"{self.provider}.yaml").write_text(text)

    def _addresses(self) -> tuple[tuple[str, str], ...]:
        where = {"acme": "http://127.0.0.1:8702", "stripe": "https://api.stripe.com"}
        return ((f"upstream: {where[self.provider]}", f"upstream: {self.sandbox_url}"),)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.provider}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def log(self) -> str:
        return (self.home / "log").read_text()

    def start(self, *, step: str = "", on_step: str = "KILL", wait: bool = True) -> Sidecar:
        """Start it; with a step, so that it kills or stops itself when it first reaches that step."""
        command = (
            [sys.executable, "-m", "tests.e2e.process", step, on_step] if step else [sys.executable, "-m", "paywitness"]
        )
        arguments = [
            "run",
            *("--policies", str(self.home / "policies")),
            *("--listen", f"127.0.0.1:{self.port}"),
            *("--admin", f"127.0.0.1:{self.admin_port}"),
            *("--webhooks", f"127.0.0.1:{self.webhooks_port}"),
            *("--journal", f"sqlite:///{self.home / 'journal.db'}"),
            *("--home", str(self.home)),
            *self.options,
        ]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=TOP,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
                group=self.group,
            )
        if wait:
            wait_until(lambda: self.ended or listens(self.port), "the start of the sidecar")
            assert not self.ended, self.log
        return self

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    @property
    def stopped(self) -> bool:
        """By SIGSTOP."""
        assert self.process is not None
        with open(f"/proc/{self.process.pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "T"

    def wait_for_end(self, within_s: float = 30.0) -> int:
        assert self.process is not None
        return self.process.wait(within_s)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.wait_for_end()

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    def charge(
        self,
        key: str = "key-1",
        order: str = "order-1",
        *,
        amount: int = 1099,
        timeout: float = 30.0,
        fault: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        given = {"Content-Type": "application/json", "Authorization": "Bearer test", "Idempotency-Key": key}
        given |= headers or {}
        if fault:
            given["Sandbox-Fault"] = fault
        body = {"amount": amount, "currency": "EUR", "metadata": {"order_id": order}}
        return ask(f"{self.url}/v1/charges", body, given, timeout)

    def charge_and_die(self, key: str = "key-1", order: str = "order-1", *, fault: str = "") -> None:
        """A call, and repeats of it where it is answered, until the sidecar dies under one."""
        end_mono = time.monotonic() + START_S
        with suppress(*LOST):
            while time.monotonic() < end_mono:
                answer = self.charge(key, order, fault=fault, headers={"Paywitness-Timeout-Ms": "2000"})
                assert answer.status_code == 504, answer
        assert self.wait_for_end() == -signal.SIGKILL

    def admin(self, path: str, body: object | None = None) -> Answer:
        token = (self.home / "admin-token").read_text().strip()
        return ask(f"{self.admin_url}{path}", body, {"Authorization": f"Bearer {token}"})

    def operation(self, operation_id: str) -> dict:
        return self.admin(f"/v1/operations/{operation_id}").json

    def operations(self, query: str = "") -> list[dict]:
        """All of them, page by page, newest first."""
        found: list[dict] = []
        before = ""
        while True:
            page = self.admin(f"/v1/operations?limit=200{query}{before}").json
            found += page["operations"]
            if page["next"] is None:
                return found
            before = f"&before={page['next']}"

    def metric(self, name: str, **labels: str) -> float:
        """What /metrics says, all samples with these labels together; 0 where it was never counted."""
        found = [
            float(line.rpartition(" ")[2])
            for line in ask(f"{self.admin_url}/metrics").body.decode().splitlines()
            if line.startswith(f"{name}{{") and all(f'{label}="{value}"' in line for label, value in labels.items())
        ]
        return sum(found)
