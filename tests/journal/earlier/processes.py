"""The processes that make a journal, and that open it later: a sidecar, its provider, and a receiver of its events."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.e2e.sidecar import TOP, Answer, ask, listens, wait_until
from tests.ports import free_port

POLICIES = Path(__file__).parent / "policies"
WEBHOOK_SECRET = "whsec_of_the_shop"
SECRETS = {
    "ACME_WEBHOOK_SECRET": WEBHOOK_SECRET,
    "PAYWITNESS_EVENTS_SECRET": f"whsec_{base64.b64encode(b'of a journal for tests, 32 bytes').decode()}",
    "PAYWITNESS_ADMIN_TOKEN": "a-token-for-tests-only",
}
# A journal in Redis has no file beside it for these two.
REDIS_SECRETS = {
    "PAYWITNESS_IDENTITY_SECRET": "bm90IGEgc2VjcmV0LCBidXQgbG9uZyBlbm91Z2ggZm9yIGl0IQ==",
    "PAYWITNESS_ENCRYPTION_KEYS": "k1:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
}


@dataclass(frozen=True)
class Code:
    """A checkout of some release, and how it is run."""

    top: Path = TOP

    def start(self, folder: Path, log: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        moved = (self.top / "proxy" / "paywitness").is_dir()
        source, module = (self.top / "proxy", "paywitness") if moved else (self.top, "proxy")
        with (folder / log).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=folder,  # neither checkout: only the path below says whose code it is
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(source), "PYTHONUNBUFFERED": "1", **environment},
            )


@dataclass
class Sandbox:
    folder: Path
    code: Code = field(default_factory=Code)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Sandbox:
        self.process = self.code.start(self.folder, "sandbox.log", "sandbox", "--listen", f"127.0.0.1:{self.port}")
        wait_until(lambda: listens(self.port), "the start of the sandbox")
        return self

    def control(self, path: str, body: object | None = None, method: str | None = None) -> dict:
        answer = ask(f"{self.url}/_sandbox/{path}", body, method=method)
        assert answer.status_code < 300, answer
        return answer.json

    def effects(self, order: str) -> int:
        return len(self.control(f"ledger?order={order}")["entries"])

    def arrivals(self) -> list[dict]:
        return list(self.control("requests?limit=10000")["requests"])

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Receiver:
    """The company's own receiver of outcome events. It accepts the first `accepts` of them, and refuses the rest."""

    accepts: int = 1_000_000
    accepted: list[dict] = field(default_factory=list)
    port: int = field(default_factory=free_port)
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/outcomes"

    def receive(self, body: bytes) -> int:
        if len(self.accepted) >= self.accepts:
            return 503
        self.accepted.append(json.loads(body))
        return 204

    def start(self) -> Receiver:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.send_response(receiver.receive(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


@dataclass
class Proxy:
    """A sidecar of some release, with its files in `folder`."""

    folder: Path
    sandbox: Sandbox
    journal: str  # its URL
    code: Code = field(default_factory=Code)
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    admin_port: int = field(default_factory=free_port)
    webhooks_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def write_policies(self, *edits: tuple[str, str]) -> None:
        """The policies of the fixtures, for the sandbox at hand."""
        (self.folder / "policies").mkdir(exist_ok=True)
        for file in POLICIES.glob("*.yaml"):
            text = file.read_text().replace("http://127.0.0.1:8702", self.sandbox.url)
            for old, new in edits:
                text = text.replace(old, new)
            (self.folder / "policies" / file.name).write_text(text)

    def start(self, *options: str) -> Proxy:
        self.process = self.code.start(
            self.folder,
            "proxy.log",
            "run",
            *("--policies", "policies", "--home", ".", "--journal", self.journal),
            *("--listen", f"127.0.0.1:{self.port}"),
            *("--admin", f"127.0.0.1:{self.admin_port}"),
            *("--webhooks", f"127.0.0.1:{self.webhooks_port}"),
            *options,
            **{**SECRETS, **self.environment},
        )
        process = self.process
        wait_until(lambda: process.poll() is not None or self.ready, "the start of the sidecar")
        assert process.poll() is None, self.log
        return self

    @property
    def ready(self) -> bool:
        return listens(self.admin_port) and ask(f"http://127.0.0.1:{self.admin_port}/readyz").status_code == 200

    @property
    def log(self) -> str:
        return (self.folder / "proxy.log").read_text()

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def admin(self, path: str, body: object | None = None) -> Answer:
        token = SECRETS["PAYWITNESS_ADMIN_TOKEN"]
        return ask(f"http://127.0.0.1:{self.admin_port}{path}", body, {"Authorization": f"Bearer {token}"})

    def operations(self) -> list[dict]:
        """All of them, newest first, and those that are left out of plain lists too."""
        states = "prepared sending backoff unknown pending requires_action succeeded failed requires_review".split()
        query = "&".join(f"state={state}" for state in states)
        return list(self.admin(f"/v1/operations?limit=200&{query}").json["operations"])

    def operation(self, operation_id: str) -> dict:
        return self.admin(f"/v1/operations/{operation_id}").json

    def of_key(self, key: str) -> dict:
        """The newest operation of a key of the caller's, with its timeline; empty if there is none yet."""
        found = self.admin(f"/v1/operations?key={key}&limit=1").json["operations"]
        return self.operation(found[0]["id"]) if found else {}

    def charge(self, key: str, **how: str) -> Answer:
        """A charge for the order of the same name, unless `order` says which. `call` knows the other words."""
        provider, order = how.pop("provider", "acme"), how.pop("order", key)
        body = {"amount": int(how.pop("amount", "1099")), "currency": "EUR", "metadata": {"order_id": order}}
        body["source"] = how.pop("source", "tok_ok")
        return self.call(provider, "charges", key, body, how)

    def payout(self, key: str, destination: str, **how: str) -> Answer:
        body = {"amount": 700, "currency": "EUR", "destination": destination, "reference": key}
        return self.call("acme", "payouts", key, body, how)

    def call(self, provider: str, path: str, key: str, body: dict, how: dict[str, str]) -> Answer:
        """`how`: headers by short names, and `leave_s`, after which the caller closes its connection."""
        leave_s = float(how.pop("leave_s", "30"))
        names = {"fault": "Sandbox-Fault", "webhook": "Sandbox-Webhook", "timeout_ms": "Paywitness-Timeout-Ms"}
        headers = {"Content-Type": "application/json", "Authorization": "Bearer test", "Idempotency-Key": key}
        headers |= {names[word]: value for word, value in how.items()}
        return ask(f"http://127.0.0.1:{self.port}/{provider}/v1/{path}", body, headers, leave_s)
