"""The processes of a run: started on free ports, awaited until they listen, ended with the run."""

from __future__ import annotations

import base64
import functools
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
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.load import Job, Result

_START_S = 60.0
_END_S = 10.0
_LOOK_S = 0.02
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
) -> Started:
    """Start it, end it with the stack, return when it listens."""
    surroundings = {**os.environ, **(environment or {})}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=surroundings
        )
    stack.callback(end, process)
    until_mono = time.monotonic() + _START_S
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > until_mono:
            raise BenchError(f"{name} did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(_LOOK_S)
    return Started(name, port, process)


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


def start_provider(stack: ExitStack, top: Path, scratch: Path) -> Started:
    port = free_port()
    command = [sys.executable, "-m", "bench.provider", str(port)]
    return start(stack, "the provider", port, command, top, scratch / "provider.log")


def start_passthrough(stack: ExitStack, top: Path, scratch: Path, provider: Started) -> Started:
    port = free_port()
    command = [sys.executable, "-m", "bench.passthrough", str(port), f"http://127.0.0.1:{provider.port}"]
    return start(stack, "the pass-through", port, command, top, scratch / "passthrough.log")


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
) -> Started:
    """`paywitness run` as a user runs it: its own defaults, a fresh journal, the shipped policy with our upstream."""
    program = Path(sys.executable).with_name("paywitness")
    if not program.exists():
        raise BenchError("paywitness is not installed beside this Python: `make setup` installs it")
    folder = Path(tempfile.mkdtemp(prefix="paywitness-", dir=scratch))
    policies = folder / "policies"
    policies.mkdir()
    shipped = (top / "policies" / "acme.yaml").read_text()
    (policies / "acme.yaml").write_text(_UPSTREAM.sub(f"upstream: http://127.0.0.1:{provider.port}", shipped))
    port = free_port()
    journal = "sqlite:///journal.db" if redis is None else url_of(redis)
    command = [str(program), "run", "--policies", "policies"]
    command += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{free_port()}"]
    command += ["--webhooks", "off", "--journal", journal, "--limits", limits, "--home", "home"]
    keys = {} if redis is None else _keys_of_the_fleet()
    return start(stack, "paywitness", port, command, folder, folder / "paywitness.log", keys)


def start_paywitness_on_redis(
    stack: ExitStack, top: Path, scratch: Path, provider: Started, redis: Started
) -> tuple[Started, str]:
    """With its limits in Redis too where this version takes them, else local; and what became of it, for the report."""
    try:
        started = start_paywitness(stack, top, scratch, provider, redis=redis, limits=url_of(redis))
    except BenchError as error:
        why = str(error).strip().splitlines()[-1]
        return start_paywitness(stack, top, scratch, provider, redis=redis), f"local; in Redis it does not start: {why}"
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
