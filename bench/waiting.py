"""Memory of a call that waits for its provider: how much a proxy grows while so many are held there, each on a
connection of its own.

Each proxy is started anew, makes some calls that are answered, and then has 200, 600 and 1,000 calls under way. At one
provider Paywitness has fifty at first (docs/circuits.md), so it is given twenty.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.compare.peers import Peers
from bench.figures import PASS_THROUGH, PAYWITNESS_REDIS, PLAIN
from bench.load import Job, Tally, cpu_time_s, rss_bytes
from bench.processes import (
    BenchError,
    NotMeasured,
    Started,
    free_port,
    policy_for,
    start,
    start_passthrough,
    start_paywitness,
    start_redis,
    url_of,
)
from bench.proxies import fetched, last_line, start_proxies
from bench.rounds import PATH, Say, scratch_folder

LEVELS = (200, 600, 1000)
LEVELS_QUICK = (200, 1000)
_WARM_CALLS = 40  # once over, connections included: what is loaded on first use is no call's
_PROVIDERS, _PORTS = 20, 5  # fifty calls to each provider, two hundred connections to each port
_PATIENCE_S = 60.0
_LOOK_S = 0.05
_IDLE_S, _IDLE_SHARE = 0.25, 0.04  # what keeps a process below so much of a core for so long is nobody's call
_NAME = re.compile(r"^provider: acme\b", re.MULTILINE)
_HOSTS = re.compile(r"^hosts: .*$", re.MULTILINE)
_TIMEOUTS = re.compile(r"^timeouts:\n(?:  .*\n)+", re.MULTILINE)


@dataclass(slots=True)
class Measured:
    rss_mb: dict[str, dict[int, float]] = field(default_factory=dict)  # by proxy, by calls held; 0: before
    notes: list[str] = field(default_factory=list)

    def bytes_each(self, name: str) -> float:
        """From none to the most that were held."""
        by_calls = self.rss_mb[name]
        most = max(by_calls)
        return (by_calls[most] - by_calls[0]) * 1e6 / most


@dataclass(frozen=True, slots=True)
class _Proxy:
    name: str
    process: Started
    paths: tuple[str, ...] = (PATH,)


def measure(top: Path, say: Say, levels: tuple[int, ...] = LEVELS) -> Measured:
    measured = Measured()
    with ExitStack() as stack:
        scratch = scratch_folder(stack, top)
        providers = _start_providers(stack, top, scratch)
        peers = fetched(top, say)
        for name in (PASS_THROUGH, *PLAIN, PAYWITNESS_REDIS):
            say(f"memory of calls that wait: {name}")
            try:
                with ExitStack() as its_own:
                    proxy = _start(its_own, top, scratch, providers, peers, name)
                    measured.rss_mb[name] = asyncio.run(_grown(proxy, providers[0], levels))
            except (NotMeasured, BenchError) as error:
                measured.notes.append(f"{name}: not measured: {last_line(error)}")
    return measured


def lines(measured: Measured) -> Iterator[str]:
    yield "Memory of calls that wait for the provider (resident MB of a fresh process with so many held there)"
    levels = sorted({level for by_calls in measured.rss_mb.values() for level in by_calls})
    columns = "  {:<24}" + "{:>8}" * len(levels) + "{:>14}"
    yield columns.format("", *map(str, levels), "KB a call")
    for name, by_calls in measured.rss_mb.items():
        grown = [f"{by_calls[level]:.1f}" for level in levels]
        yield columns.format(name, *grown, f"{measured.bytes_each(name) / 1e3:.1f}")
    yield from (f"  {note}" for note in measured.notes)


# -- the processes ----------------------------------------------------------------------------------------------------


def _start_providers(stack: ExitStack, top: Path, scratch: Path) -> list[Started]:
    """One process, on several ports."""
    ports = [free_port() for _ in range(_PORTS)]
    command = [sys.executable, "-m", "bench.holding", *map(str, ports)]
    started = start(stack, "the provider that holds", ports[-1], command, top, scratch / "holding.log")
    return [Started(started.name, port, started.process) for port in ports]


def _start(stack: ExitStack, top: Path, scratch: Path, providers: list[Started], peers: Peers, name: str) -> _Proxy:
    if name == PASS_THROUGH:
        return _Proxy(name, start_passthrough(stack, top, scratch, providers[0]))
    if name == PAYWITNESS_REDIS:
        redis = start_redis(stack, scratch)
        policies = [policy(top, providers[number % _PORTS], number) for number in range(_PROVIDERS)]
        options = ["--calls-max", str(2 * max(LEVELS))]
        started = start_paywitness(
            stack,
            top,
            scratch,
            providers[0],
            redis=redis,
            limits=url_of(redis),
            policies=policies,
            options=options,
        )
        return _Proxy(name, started, tuple(f"/acme{number}{PATH}" for number in range(_PROVIDERS)))
    started_by_name, notes = start_proxies([name], stack, scratch, providers[0], peers)
    if name not in started_by_name:
        raise NotMeasured(notes[0].partition("not measured: ")[2])
    return _Proxy(name, started_by_name[name])


def policy(top: Path, provider: Started, number: int) -> str:
    """The shipped policy of acme under another name, with patience."""
    text = policy_for(top, provider)
    text = _NAME.sub(f"provider: acme{number}", text)
    text = _HOSTS.sub(f"hosts: [api{number}.acme.test]", text)
    return _TIMEOUTS.sub(
        f"timeouts: {{connect: 30s, first_byte: {_PATIENCE_S:.0f}s, deadline: {2 * _PATIENCE_S:.0f}s}}\n", text
    )


# -- the calls --------------------------------------------------------------------------------------------------------


async def _grown(proxy: _Proxy, provider: Started, levels: tuple[int, ...]) -> dict[int, float]:
    await _held(proxy, provider, _WARM_CALLS)
    return {
        0: rss_bytes(proxy.process.pid) / 1e6,
        **{level: await _held(proxy, provider, level) for level in levels},
    }


async def _held(proxy: _Proxy, provider: Started, calls: int) -> float:
    """Resident MB while so many calls are held at the provider; then all are answered."""
    tallies = [Tally(Job(proxy.process.port, path, proxy.process.pid, 1, 0, 0)) for path in proxy.paths]
    connections = []
    try:
        for number in range(calls):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.process.port)
            connections.append((reader, writer))
            writer.write(tallies[number % len(tallies)].next_request())
        await _until_held(proxy, provider, calls)
        await _until_idle(proxy.process.pid)
        resident = rss_bytes(proxy.process.pid) / 1e6
        _ask(provider, "/release")
        async with asyncio.timeout(_PATIENCE_S):
            answers = await asyncio.gather(*(reader.readline() for reader, _ in connections))
    except OSError as error:  # a TimeoutError is one
        raise BenchError(f"{calls} calls at once did not end well: {type(error).__name__} {error}".rstrip()) from None
    finally:
        for _, writer in connections:
            writer.close()
    wrong = [answer for answer in answers if not answer.startswith(b"HTTP/1.1 200 ")]
    if wrong:
        raise BenchError(f"{len(wrong)} of {calls} calls were not answered 200: {wrong[0].decode(errors='replace')}")
    return resident


async def _until_held(proxy: _Proxy, provider: Started, calls: int) -> None:
    until_mono = time.monotonic() + _PATIENCE_S / 2
    while (held := _ask(provider, "/held")) < calls:
        if time.monotonic() > until_mono:
            raise BenchError(f"only {held} of {calls} calls came to the provider")
        await asyncio.sleep(_LOOK_S)


async def _until_idle(pid: int) -> None:
    until_mono = time.monotonic() + _PATIENCE_S / 4
    while time.monotonic() < until_mono:
        before_s = cpu_time_s(pid)
        await asyncio.sleep(_IDLE_S)
        if cpu_time_s(pid) - before_s < _IDLE_S * _IDLE_SHARE:
            return


def _ask(provider: Started, path: str) -> int:
    asking = http.client.HTTPConnection("127.0.0.1", provider.port, timeout=_PATIENCE_S)
    with suppress(http.client.HTTPException):
        asking.request("GET", path)
        answer = asking.getresponse().read()
        asking.close()
        return int(answer)
    raise BenchError("the provider that holds does not answer")
