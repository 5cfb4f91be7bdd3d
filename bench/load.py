"""The load: so many callers, each on its own connection, each sending its next call when it has its answer.

A process of its own. It reads one job a line from standard input and writes one result a line to standard output, both
JSON. Only what ends inside the measured window counts. The processor time of the process under test is read at both
ends of the same window, by the one who counts the calls.
"""

from __future__ import annotations

import asyncio
import json
import resource
import secrets
import ssl
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import cast

import uvloop

BODY_BYTES = 500
_SHOWN_BYTES = 1000
_HOST = "api.acme.test"
_PROVIDER_HOST = "localhost"  # whom the provider's own certificate names
_CONNECT = b"CONNECT api.acme.test:443 HTTP/1.1\r\nHost: api.acme.test:443\r\n\r\n"
_LAST_ANSWERS_S = 15.0  # what is under way at the end of a window gets this long
_HEAD = (
    b"POST %b HTTP/1.1\r\nHost: api.acme.test\r\nUser-Agent: bench/1\r\nAccept: application/json\r\n"
    b"Authorization: Bearer sk_test_bench\r\nContent-Type: application/json\r\nIdempotency-Key: %b\r\n"
    b"Content-Length: %d\r\n\r\n"
)
_BODY = (
    b'{"amount":1099,"currency":"eur","source":"tok_visa","capture":true,"customer":"cus_4711",'
    b'"metadata":{"order_id":"%b","channel":"web"},"description":"%b"}'
)


@dataclass(frozen=True, slots=True)
class Job:
    """Drive one route for a while."""

    port: int
    path: str
    pid: int  # whose processor time is counted
    concurrency: int
    warm_s: float  # before the window: connections are made, caches and pools filled
    window_s: float
    beside_pid: int = 0  # whose processor time is counted apart: Redis; 0: nobody's
    roots: str = ""  # given: the call goes by TLS, and these vouch for whoever answers
    tunnelled: bool = False  # the route is a proxy that is asked for a tunnel first
    also_pids: tuple[int, ...] = ()  # processes that serve the same route: counted together with `pid`
    pause_s: float = 0.0  # of each caller, between an answer and its next call; they begin spread over it


@dataclass(frozen=True, slots=True)
class Result:
    calls: int
    failed: int  # any answer but a 200, any lost connection; also outside the window
    window_s: float
    cpu_s: float
    p50_s: float
    p99_s: float
    beside_cpu_s: float = 0.0
    first_failed: str = ""  # the first answer that was no 200, for whoever has to find out why
    rss_bytes: int = 0  # resident memory of the process under test at the end of the window


def cpu_time_s(pid: int) -> float:
    """Processor time of a process, user and system, all its threads, those that ended too. As in /proc/PID/stat, but
    in nanoseconds instead of hundredths: Linux makes a clock of every process (clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


def rss_bytes(pid: int) -> int:
    """Resident memory, pages that are shared included."""
    with open(f"/proc/{pid}/statm", "rb") as told:
        return int(told.read().split()[1]) * resource.getpagesize()


@dataclass(slots=True)
class Tally:
    job: Job
    prefix: bytes = field(default_factory=lambda: secrets.token_hex(6).encode())
    sent: int = 0
    failed: int = 0
    first_failed: str = ""
    counting: bool = False
    over: bool = False
    latencies_s: list[float] = field(default_factory=list)
    paused: int = 0

    def next_offset_s(self) -> float:
        self.paused += 1
        return self.job.pause_s * self.paused / self.job.concurrency

    def next_request(self) -> bytes:
        """A call under a key and an order of its own."""
        self.sent += 1
        key = b"%b-%010d" % (self.prefix, self.sent)
        padding = b"x" * (BODY_BYTES - len(_BODY) - len(key) + 4)  # the two places of the template have four characters
        body = _BODY % (key, padding)
        return _HEAD % (self.job.path.encode(), key, len(body)) + body


class Caller(asyncio.Protocol):
    """One connection, one call at a time."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._received = b""
        self._began_mono = 0.0
        self._pause: asyncio.TimerHandle | None = None
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._tally.job.pause_s:
            self._pause_for(self._tally.next_offset_s())
        else:
            self._call()

    def _pause_for(self, seconds: float) -> None:
        self._pause = asyncio.get_running_loop().call_later(seconds, self._call)

    def finish(self) -> None:
        """The run is over: whoever pauses need not come back."""
        if self._pause is not None:
            self._pause.cancel()
            self._transport.close()

    def _call(self) -> None:
        self._pause = None
        self._began_mono = time.monotonic()
        self._transport.write(self._tally.next_request())

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0 or len(self._received) < head_end + 4 + _length_in(self._received[:head_end]):
            return
        tally = self._tally
        if not self._received.startswith(b"HTTP/1.1 200 "):
            tally.failed += 1
            tally.first_failed = tally.first_failed or self._received[:_SHOWN_BYTES].decode(errors="replace")
        elif tally.counting:
            tally.latencies_s.append(time.monotonic() - self._began_mono)
        self._received = b""
        if tally.over:
            self._transport.close()
        elif tally.job.pause_s:
            self._pause_for(tally.job.pause_s)
        else:
            self._call()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._tally.over:
            self._tally.failed += 1
        if not self.done.done():
            self.done.set_result(None)


def _length_in(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


async def drive(job: Job) -> Result:
    loop = asyncio.get_running_loop()
    tally = Tally(job)
    callers = []
    for _ in range(job.concurrency):
        if job.tunnelled:
            callers.append(await _through_tunnel(tally))
            continue
        context = ssl.create_default_context(cafile=job.roots) if job.roots else None
        name = _PROVIDER_HOST if job.roots else None
        _, caller = await loop.create_connection(
            lambda: Caller(tally), "127.0.0.1", job.port, ssl=context, server_hostname=name
        )
        callers.append(caller)
    await asyncio.sleep(job.warm_s)
    began_mono, cpu_before_s, beside_before_s = time.monotonic(), _cpu_s(job), _beside_s(job)
    tally.counting = True
    await asyncio.sleep(job.window_s)
    tally.counting = False
    window_s, cpu_s = time.monotonic() - began_mono, _cpu_s(job) - cpu_before_s
    beside_cpu_s = _beside_s(job) - beside_before_s
    resident = sum(map(rss_bytes, (job.pid, *job.also_pids)))
    tally.over = True
    for caller in callers:
        caller.finish()
    _, late = await asyncio.wait([caller.done for caller in callers], timeout=_LAST_ANSWERS_S)
    ordered = sorted(tally.latencies_s)
    return Result(
        calls=len(ordered),
        failed=tally.failed + len(late),
        window_s=window_s,
        cpu_s=cpu_s,
        p50_s=_quantile(ordered, 0.50),
        p99_s=_quantile(ordered, 0.99),
        beside_cpu_s=beside_cpu_s,
        first_failed=tally.first_failed,
        rss_bytes=resident,
    )


class _Asking(asyncio.Protocol):
    """Waits for a proxy's word that the tunnel is there."""

    def __init__(self) -> None:
        self.answered = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(_CONNECT)

    def data_received(self, data: bytes) -> None:
        if not self.answered.done():
            self.answered.set_result(data)


async def _through_tunnel(tally: Tally) -> Caller:
    loop = asyncio.get_running_loop()
    transport, asking = await loop.create_connection(_Asking, "127.0.0.1", tally.job.port)
    answer = await asyncio.wait_for(asking.answered, _LAST_ANSWERS_S)
    assert answer.split(b" ", 2)[1] == b"200", answer
    caller = Caller(tally)
    context = ssl.create_default_context(cafile=tally.job.roots)
    secured = await loop.start_tls(transport, caller, context, server_hostname=_HOST)
    assert secured is not None
    caller.connection_made(secured)
    return caller


def _cpu_s(job: Job) -> float:
    return sum(map(cpu_time_s, (job.pid, *job.also_pids)))


def _beside_s(job: Job) -> float:
    return cpu_time_s(job.beside_pid) if job.beside_pid else 0.0


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def main() -> None:
    for line in sys.stdin:
        result = uvloop.run(drive(Job(**json.loads(line))))
        print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
