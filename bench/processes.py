"""The processes of a run: started on free ports, awaited until they listen, ended with the run."""

from __future__ import annotations

import base64
import functools
import http.client
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.load import Job, Result

_START_S = 60.0
_END_S = 10.0
_LOOK_S = 0.005  # the start-up times stand on it
_IDENTITY = "PAYWITNESS_IDENTITY_SECRET"
_ENCRYPTION = "PAYWITNESS_ENCRYPTION_KEYS"
_UPSTREAM = re.compile(r"^upstream: \S+", re.MULTILINE)


class BenchError(Exception):
    """The run cannot go on; the message says why, to a person."""


class NotMeasured(Exception):
    """One route cannot be measured here; the message says why, and the report says it again."""


@dataclass(frozen=True, slots=True)
class Started:
    name: str
    port: int
    process: subprocess.Popen[bytes]
    listening_s: float = 0.0  # from its start until it took connections
    ready_s: float = 0.0  # until it said so itself, where it can: `/readyz` of ours

    @property
    def pid(self) -> int:
        return self.process.pid


def free_port() -> int:
    """A port that nobody listens on now. Somebody may take it before we do: then the start fails and says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(
    stack: ExitStack,
    name: str,
    port: int,
    command: list[str],
    folder: Path,
    log: Path,
    environment: dict[str, str] | None = None,
    admin_port: int = 0,
) -> Started:
    """Start it, end it with the stack, return when it listens; given an admin port, when it says there that it is
    ready too."""
    surroundings = {**os.environ, **(environment or {})}
    began_mono = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=surroundings
        )
    stack.callback(end, process)
    listening_s = _await(lambda: _listens(port), name, process, log, began_mono)
    ready_s = _await(lambda: _is_ready(admin_port), name, process, log, began_mono) if admin_port else 0.0
    return Started(name, port, process, listening_s, ready_s)


def _await(
    holds: Callable[[], bool], name: str, process: subprocess.Popen[bytes], log: Path, began_mono: float
) -> float:
    """How long after its beginning that was so."""
    while not holds():
        if process.poll() is not None or time.monotonic() > began_mono + _START_S:
            raise BenchError(f"{name} did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(_LOOK_S)
    return time.monotonic() - began_mono


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_ready(admin_port: int) -> bool:
    asking = http.client.HTTPConnection("127.0.0.1", admin_port, timeout=_START_S)
    try:
        asking.request("GET", "/readyz")
        return asking.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        asking.close()


@dataclass(frozen=True, slots=True)
class Secured:
    """What a provider shows when it is called by TLS, and who vouches for it. For `localhost`."""

    certificate: Path  # with its key
    roots: Path


def start_provider(stack: ExitStack, top: Path, scratch: Path, secured: Secured | None = None) -> Started:
    port = free_port()
    command = [sys.executable, "-m", "bench.provider", str(port), *([str(secured.certificate)] if secured else [])]
    return start(stack, "the provider", port, command, top, scratch / f"provider-{port}.log")


def start_passthrough(
    stack: ExitStack, top: Path, scratch: Path, provider: Started, secured: Secured | None = None
) -> Started:
    port = free_port()
    command = [sys.executable, "-m", "bench.passthrough", str(port), upstream_of(provider, secured)]
    command += [str(secured.roots)] if secured else []
    return start(stack, "the pass-through", port, command, top, scratch / f"passthrough-{port}.log")


def upstream_of(provider: Started, secured: Secured | None = None) -> str:
    return f"https://localhost:{provider.port}" if secured else f"http://127.0.0.1:{provider.port}"


def start_redis(stack: ExitStack, scratch: Path) -> Started:
    """A Redis of its own, as docs/fleet.md wants it. The log is never rewritten: that would fall into some window."""
    program = shutil.which("redis-server")
    if program is None:
        raise NotMeasured("redis-server is not installed")
    folder = scratch / "redis"
    folder.mkdir()
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"]
    command += ["--auto-aof-rewrite-percentage", "0"]
    return start(stack, "redis-server", port, command, folder, scratch / "redis.log")


def start_paywitness(
    stack: ExitStack,
    top: Path,
    scratch: Path,
    provider: Started,
    *,
    redis: Started | None = None,
    limits: str = "local",
    secured: Secured | None = None,
    policies: Sequence[str] = (),
    port: int = 0,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Started:
    """`paywitness run` as a user runs it: its own defaults, a fresh journal, the shipped policy with our upstream.

    Given: other `policies`, a `port` that is shared, `options` and variables of the `environment` besides."""
    program = Path(sys.executable).with_name("paywitness")
    if not program.exists():
        raise BenchError("paywitness is not installed beside this Python: `make setup` installs it")
    folder = Path(tempfile.mkdtemp(prefix="paywitness-", dir=scratch))
    (folder / "policies").mkdir()
    for number, text in enumerate(policies or [policy_for(top, provider, secured)]):
        (folder / "policies" / f"{number}.yaml").write_text(text)
    port, admin_port = port or free_port(), free_port()
    journal = "sqlite:///journal.db" if redis is None else url_of(redis)
    command = [str(program), "run", "--policies", "policies"]
    command += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin_port}"]
    command += ["--webhooks", "off", "--journal", journal, "--limits", limits, "--home", "home", *options]
    keys = {**(environment or {}), **({} if redis is None else _keys_of_the_fleet())}
    return start(stack, "paywitness", port, command, folder, folder / "paywitness.log", keys, admin_port)


def policy_for(top: Path, provider: Started, secured: Secured | None = None) -> str:
    """The shipped policy of acme; only its upstream is ours."""
    shipped = (top / "policies" / "acme.yaml").read_text()
    trust = f"\ntls: {{roots: {secured.roots}}}\n" if secured else ""
    return _UPSTREAM.sub(f"upstream: {upstream_of(provider, secured)}", shipped) + trust


def start_paywitness_on_redis(
    stack: ExitStack, top: Path, scratch: Path, provider: Started, redis: Started, secured: Secured | None = None
) -> tuple[Started, str]:
    """With its limits in Redis too where this version takes them, else local; and what became of it, for the report."""
    try:
        started = start_paywitness(stack, top, scratch, provider, redis=redis, limits=url_of(redis), secured=secured)
    except BenchError as error:
        why = f"local; in Redis it does not start: {str(error).strip().splitlines()[-1]}"
        return start_paywitness(stack, top, scratch, provider, redis=redis, secured=secured), why
    return started, "in Redis"


def url_of(redis: Started) -> str:
    return f"redis://127.0.0.1:{redis.port}/0"


@functools.cache
def _keys_of_the_fleet() -> dict[str, str]:
    """The same for all that share a Redis: a second start with other keys would be refused."""
    return {_IDENTITY: _secret(), _ENCRYPTION: f"bench:{_secret()}"}


def _secret() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


class LoadProcess:
    """The callers, in a process of their own."""

    def __init__(self, stack: ExitStack, top: Path) -> None:
        command = [sys.executable, "-m", "bench.load"]
        self._process = subprocess.Popen(command, cwd=top, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        stack.callback(end, self._process)

    def drive(self, job: Job) -> Result:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("the load process ended early")
        return Result(**json.loads(line))
