"""The parts of the demo: providers on their own ports, the sidecar as a process, a folder. All of it is removed.

It never uses the standard ports, so it does not disturb a sidecar that runs on this machine, and never reads its files.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import aiohttp

import paywitness
from paywitness.core.errors import PaywitnessError
from paywitness.option_defaults import ADMIN_TOKEN
from paywitness_sandbox.server import Sandbox

FIRST_BYTE_S = 1.5  # how long every caller here waits for the first byte of a response
DEADLINE_S = 6.0
START_S_MAX = 20.0
GRACE_S = 4.0
STOP_S_MAX = GRACE_S + 3.0
IDLE_S_MAX = 10.0
POLL_S = 0.05

# The shipped policy of the sandbox with shorter timeouts, because the demo has a minute in all. Its retry budget is
# larger: here half of all requests fail at random in half a minute, which a shop would see in a month.
POLICY = """\
extends: paywitness:acme
upstream: {upstream}
timeouts: {{connect: 1s, first_byte: {first_byte_ms}ms, deadline: {deadline_ms}ms}}
budget:
  provider: {{floor: 200}}
  operation: {{floor: 200}}
  account: {{floor: 200}}
  failure_class: {{floor: 200}}
"""

# `paywitness` as a process that does not outlive this one, even if this one is killed.
SIDECAR_PROGRAM = """\
import ctypes, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
from paywitness.cli.main import main
main(prog_name="paywitness")
"""


class DemoSetupFailed(PaywitnessError):
    """The demo could not be set up. The message holds the sidecar's log."""


@dataclass(frozen=True, slots=True)
class DemoSidecar:
    """A running `paywitness run` in front of one provider."""

    url: str
    admin_url: str
    admin_token: str
    process: Process

    async def stop(self) -> None:
        """Drain it, so that nothing more reaches the provider. A second call does nothing."""
        if self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


@asynccontextmanager
async def sidecar_for(upstream: str) -> AsyncIterator[DemoSidecar]:
    with tempfile.TemporaryDirectory(prefix="paywitness-demo-") as name, free_ports(2) as ports:
        folder = Path(name)
        write_policy(folder, upstream)
        token = secrets.token_hex(16)
        process = await start_process(folder, ports, token)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        sidecar = DemoSidecar(f"{urls[0]}/acme", urls[1], token, process)
        try:
            await wait_until_ready(sidecar, folder)
            yield sidecar
        finally:
            await asyncio.shield(sidecar.stop())


async def start_process(folder: Path, ports: list[int], token: str) -> Process:
    arguments = (
        *("--policies", str(folder / "policies"), "--journal", f"sqlite:///{folder}/journal.db"),
        *("--listen", f"127.0.0.1:{ports[0]}", "--admin", f"127.0.0.1:{ports[1]}"),
        *("--webhooks", "off", "--home", str(folder), "--grace-seconds", str(GRACE_S)),
    )
    with log_file(folder).open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SIDECAR_PROGRAM, "run", *arguments),
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment(token),
        )


def environment(token: str) -> dict[str, str]:
    """Our environment without variables that configure a sidecar, and with this source tree first."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAYWITNESS_")}
    source = str(Path(paywitness.__path__[0]).parent)
    path = os.pathsep.join(filter(None, (source, inherited.get("PYTHONPATH"))))
    return {**inherited, "PYTHONPATH": path, ADMIN_TOKEN: token}


async def wait_until_ready(sidecar: DemoSidecar, folder: Path) -> None:
    until = monotonic() + START_S_MAX
    timeout = aiohttp.ClientTimeout(total=1.0)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while sidecar.process.returncode is None and monotonic() < until:
            try:
                async with session.get(f"{sidecar.admin_url}/readyz") as response:
                    if response.status == 200 and await listens(sidecar.url):
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass  # not yet
            await asyncio.sleep(POLL_S)
    raise DemoSetupFailed(f"The sidecar of the demo did not start:\n{log_tail(folder)}")


async def listens(url: str) -> bool:
    """Whether the callers' port accepts connections. The admin port opens before it."""
    _, _, port = url.removesuffix("/acme").rpartition(":")
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", int(port))
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


def write_policy(folder: Path, upstream: str) -> None:
    policies = folder / "policies"
    policies.mkdir()
    text = POLICY.format(
        upstream=upstream, first_byte_ms=round(FIRST_BYTE_S * 1000), deadline_ms=round(DEADLINE_S * 1000)
    )
    (policies / "acme.yaml").write_text(text, "utf-8")


def log_file(folder: Path) -> Path:
    return folder / "paywitness.log"


def log_tail(folder: Path) -> str:
    lines = log_file(folder).read_text("utf-8", "replace").splitlines()
    return "\n".join(lines[-20:])


@contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Ports that nobody else gets while this context lasts: they are bound, and not listened on."""
    holders = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for holder in holders:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
        yield [holder.getsockname()[1] for holder in holders]
    finally:
        for holder in holders:
            holder.close()


async def wait_until_idle(providers: list[Sandbox]) -> None:
    """Wait until no request can still change a ledger. A late commit has then happened."""
    until = monotonic() + IDLE_S_MAX
    while any(provider.under_way for provider in providers) and monotonic() < until:  # noqa: ASYNC110  # it has no event
        await asyncio.sleep(POLL_S)
