"""A real Prometheus and a real Alertmanager as child processes, with the rules of deploy/prometheus in a hurry."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.rules import ALERTS, RULES
from tests.e2e.sidecar import ask, wait_until
from tests.ports import free_port

SCRAPE_S = 1
OLD_S = 3  # an operation in doubt that is older is told to somebody
VARIABLES = {
    "$__rate_interval": "8s",
    "$__range": "2m",
    **dict.fromkeys(("$provider", "$operation", "$kind", "$instance"), ".*"),
}


@dataclass
class Pager:
    """Whoever is woken: Alertmanager's receiver. It takes the sidecars' events too, most of the time."""

    port: int = field(default_factory=free_port)
    alerts: list[dict] = field(default_factory=list)
    events: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def receive(self, path: str, body: bytes) -> int:
        if path.startswith("/alerts"):
            self.alerts += json.loads(body)["alerts"]
            return 204
        self.events += 1
        return 500 if self.events % 5 == 0 else 204

    def woken_by(self, name: str) -> list[dict]:
        return [alert for alert in self.alerts if alert["labels"]["alertname"] == name and alert["status"] == "firing"]


@contextmanager
def listening(pager: Pager) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # the library's name for it
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(pager.receive(self.path, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Not into the test's output."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Somebody was killed in the midst of telling."""

    server = Server(("127.0.0.1", pager.port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def running(command: Sequence[str], log: Path, ready_url: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(lambda: process.poll() is not None or answers(ready_url), f"the start of {command[0]}")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        return ask(url, timeout=2.0).status_code == 200
    except OSError:
        return False


def hurried(text: str) -> str:
    """The alerts as they are shipped, but for their patience."""
    assert "unknown_age_seconds:max > 1800\n" in text
    text = text.replace("unknown_age_seconds:max > 1800\n", f"unknown_age_seconds:max > {OLD_S}\n")
    return re.sub(r"(?m)^( +)for: \w+$", r"\1for: 0s", text)


@dataclass
class Prometheus:
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def query(self, expression: str) -> list[dict]:
        return self._asked("query", query=expression)

    def course(self, expression: str, since: float, until: float) -> list[dict]:
        """Every series with its values from then to then."""
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        return self._asked("query_range", query=expression, start=since, end=until, step=SCRAPE_S)

    def traces(self, metric: str, since: float, until: float) -> set[str]:
        """Those of the exemplars beside it."""
        shown = self._data("query_exemplars", query=metric, start=since, end=until)
        return {each["labels"]["trace_id"] for series in shown for each in series["exemplars"]}

    def _asked(self, what: str, **asked: object) -> list[dict]:
        return list(self._data(what, **asked)["result"])

    def _data(self, what: str, **asked: object) -> Any:
        answer = ask(f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(asked)}")
        assert answer.status_code == 200, (asked, answer.body)
        return answer.json["data"]


@contextmanager
def watching(home: Path, targets: Sequence[str], pager: Pager) -> Iterator[Prometheus]:
    """Prometheus over these admin ports, telling an Alertmanager that tells the pager."""
    prometheus, manager_port = Prometheus(), free_port()
    home.mkdir()
    (home / "rules.yaml").write_text(RULES.read_text("utf-8"))
    (home / "alerts.yaml").write_text(hurried(ALERTS.read_text("utf-8")))
    often = {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"}
    configuration = {
        "global": often,
        "rule_files": ["rules.yaml", "alerts.yaml"],
        "scrape_configs": [{"job_name": "paywitness", "static_configs": [{"targets": list(targets)}]}],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{manager_port}"]}]}]},
    }
    (home / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    route = {"receiver": "pager", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"}
    receivers = [{"name": "pager", "webhook_configs": [{"url": f"{pager.url}/alerts"}]}]
    (home / "alertmanager.yaml").write_text(yaml.safe_dump({"route": route, "receivers": receivers}))
    manager = [
        "prometheus-alertmanager",
        f"--config.file={home / 'alertmanager.yaml'}",
        f"--storage.path={home / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{manager_port}",
        "--cluster.listen-address=",
    ]
    scraper = [
        "prometheus",
        f"--config.file={home / 'prometheus.yaml'}",
        f"--storage.tsdb.path={home / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{prometheus.port}",
        "--enable-feature=exemplar-storage",
    ]
    with (
        running(manager, home / "alertmanager.log", f"http://127.0.0.1:{manager_port}/-/ready"),
        running(scraper, home / "prometheus.log", f"{prometheus.url}/-/ready"),
    ):
        yield prometheus
