"""What it costs to look into TLS: the same call in reverse mode, in an intercepted tunnel, and in mitmproxy's.

All three lead to the same provider in the clear, so that the difference is the caller's side. mitmproxy journals
nothing; it is the peer that people use for looking into TLS.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.compare.peers import Peers
from bench.load import Job, Result
from bench.processes import (
    BenchError,
    LoadProcess,
    NotMeasured,
    Started,
    free_port,
    start,
    start_paywitness,
    start_provider,
)
from bench.rounds import PATH, PATH_OF_PAYWITNESS, scratch_folder

REVERSE, INTERCEPTED, MITMPROXY = "reverse mode", "intercepted TLS", "mitmproxy, intercepted TLS"
_ROUNDS, _WARM_S, _WINDOW_S, _CONCURRENCY = 3, 0.4, 0.8, 16
_ADDON = """
def request(flow):
    flow.request.scheme, flow.request.host, flow.request.port = "http", "127.0.0.1", {port}
"""


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    path: str
    process: Started
    roots: str = ""

    def job(self, concurrency: int) -> Job:
        return Job(
            self.process.port,
            self.path,
            self.process.pid,
            concurrency,
            _WARM_S,
            _WINDOW_S,
            roots=self.roots,
            tunnelled=bool(self.roots),
        )


@dataclass(slots=True)
class Measured:
    cpu_us: dict[str, list[float]] = field(default_factory=dict)  # by way, a round each
    p50_ms: dict[str, list[float]] = field(default_factory=dict)
    not_measured: str = ""

    def add(self, way: Way, alone: Result, crowded: Result) -> None:
        self.cpu_us.setdefault(way.name, []).append(1e6 * crowded.cpu_s / crowded.calls)
        self.p50_ms.setdefault(way.name, []).append(1e3 * alone.p50_s)


def measure(top: Path, say: Callable[[str], None]) -> Measured:
    measured = Measured()
    with ExitStack() as stack:
        scratch = scratch_folder(stack, top)
        provider = start_provider(stack, top, scratch)
        paywitness = start_paywitness(stack, top, scratch, provider)
        (folder,) = scratch.glob("paywitness-*")
        ways = [
            Way(REVERSE, PATH_OF_PAYWITNESS, paywitness),
            Way(INTERCEPTED, PATH, paywitness, _authority(folder)),
        ]
        try:
            ways.append(_mitmproxy(stack, top, scratch, provider, say))
        except NotMeasured as error:
            measured.not_measured = str(error)
        load = LoadProcess(stack, top)
        for number in range(_ROUNDS):
            say(f"intercepted TLS: round {number + 1} of {_ROUNDS}")
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                measured.add(way, _driven(load, way, 1), _driven(load, way, _CONCURRENCY))
    return measured


def lines(measured: Measured) -> Iterator[str]:
    yield f"Looking into TLS ({_CONCURRENCY} callers; medians and ratios of {_ROUNDS} rounds in turns; SQLite journal)"
    for name, cpu_us in measured.cpu_us.items():
        ratio = statistics.median(ours / plain for ours, plain in zip(cpu_us, measured.cpu_us[REVERSE], strict=True))
        added_ms = statistics.median(
            ours - plain for ours, plain in zip(measured.p50_ms[name], measured.p50_ms[REVERSE], strict=True)
        )
        cpu = f"{statistics.median(cpu_us):7.0f} us of CPU a call (x {ratio:.2f})"
        yield f"  {name:<28} {cpu}, p50 alone {statistics.median(measured.p50_ms[name]):.2f} ms ({added_ms:+.2f} ms)"
    if measured.not_measured:
        yield f"  {MITMPROXY}: not measured: {measured.not_measured}"


def _driven(load: LoadProcess, way: Way, concurrency: int) -> Result:
    result = load.drive(way.job(concurrency))
    if result.failed or not result.calls:
        raise BenchError(f"{way.name}: {result.failed} calls failed: no clean path\n{result.first_failed}".rstrip())
    return result


def _authority(folder: Path) -> str:
    command = [str(Path(sys.executable).with_name("paywitness")), "ca", "init", "--home", "home"]
    subprocess.run([*command, "--policies", "policies"], cwd=folder, check=True, capture_output=True)
    return str(folder / "home" / "ca-bundle.pem")


def _mitmproxy(stack: ExitStack, top: Path, scratch: Path, provider: Started, say: Callable[[str], None]) -> Way:
    peers = Peers(top)
    peers.fetch(say)
    folder = scratch / "mitmproxy"
    folder.mkdir()
    addon = folder / "to_the_provider.py"
    addon.write_text(_ADDON.format(port=provider.port))
    port = free_port()
    command = [peers.program("mitmdump"), "--quiet", "--listen-host", "127.0.0.1", "--listen-port", str(port)]
    command += ["--set", f"confdir={folder}", "--set", "connection_strategy=lazy", "-s", str(addon)]
    process = start(stack, "mitmproxy", port, command, folder, folder / "mitmproxy.log")
    return Way(MITMPROXY, PATH, process, str(folder / "mitmproxy-ca-cert.pem"))
