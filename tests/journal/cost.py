"""What a clean call costs a journal: one claim and one record, in CPU time of our process, both threads of the embedded
journal together. What Redis itself needs is not in it: that is told by `INFO commandstats`.

    python -m tests.journal.cost [seconds] [directory]

Measured in short rounds, because a shared machine is never quiet for long; the best round is the journal's own cost,
the median what it was here and now. The time to make the requests and changes is not counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from paywitness.clock import SystemClock
from paywitness.core.claim import ClaimRequest
from paywitness.core.operation import Guard, GuardKind
from paywitness.journal.base import Journal, OperationChange
from paywitness.journal.redis.journal import RedisJournal
from paywitness.journal.sqlite.journal import SqliteJournal
from tests.journal.memory import MemoryJournal
from tests.journal.redis_server import RedisServer
from tests.journal.samples import asking, succeeding

REQUEST_BYTES = 700  # a small JSON body, sealed
RESPONSE_BYTES = 900


def requests(start: int, count: int) -> list[ClaimRequest]:
    """Keys as they are: hashes, so that they fall anywhere in the index."""
    made = []
    for number in range(start, start + count):
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        request = asking(
            digest,
            client_key=f"order-{digest[:20]}",
            provider_key=f"order-{digest[:20]}",
            fingerprint=digest[::-1],
            request_hash=digest,
            credential="c" * 64,
            guard=Guard(GuardKind.INTENT, digest, f"order-{number}"),
            sealed_request=b"q" * REQUEST_BYTES,
        )
        made.append(request)
    return made


@dataclass
class Rounds:
    """CPU time a call of each round, and the time that claims took."""

    cpu_s: list[float] = field(default_factory=list)
    calls_per_s: list[float] = field(default_factory=list)
    claims_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        cpu, claims = sorted(self.cpu_s), sorted(self.claims_s)
        return (
            f"CPU {cpu[0] * 1e6:4.0f} us a clean call at best, {cpu[len(cpu) // 2] * 1e6:4.0f} us in the median; "
            f"{max(self.calls_per_s):6.0f} calls/s at best; "
            f"claim p50 {claims[len(claims) // 2] * 1e3:.2f} ms, p99 {claims[len(claims) * 99 // 100] * 1e3:.2f} ms"
        )


async def one_round(journal: Journal, waiting: list[ClaimRequest], at_once: int, rounds: Rounds) -> None:
    making_s = 0.0
    queue: Iterator[ClaimRequest] = iter(waiting)

    async def caller() -> None:
        nonlocal making_s
        for request in queue:
            asked = time.perf_counter()
            claim = await journal.claim(request)
            rounds.claims_s.append(time.perf_counter() - asked)
            assert claim.operation is not None
            began = time.thread_time()
            change: OperationChange = replace(
                succeeding(claim.operation), sealed_response=b"p" * RESPONSE_BYTES, accepted_credential=True
            )
            making_s += time.thread_time() - began
            await journal.record(change)

    began, began_cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    rounds.cpu_s.append((time.process_time() - began_cpu - making_s) / len(waiting))
    rounds.calls_per_s.append(len(waiting) / (time.perf_counter() - began))


async def main(seconds: float, directory: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as place:
        sqlite = await SqliteJournal.open(Path(place) / "journal.db", clock=SystemClock())
        server = RedisServer(Path(place) / "redis")
        server.start()
        redis = await RedisJournal.open(server.url)
        journals: dict[str, Journal] = {"sqlite": sqlite, "redis": redis, "memory": MemoryJournal(clock=SystemClock())}
        for name, journal in journals.items():
            start = 0
            for at_once, calls in ((1, 20), (64, 256)):
                rounds = Rounds()
                await one_round(journal, requests(start, 2000), 64, Rounds())  # warm, and not empty
                start += 2000
                until = time.perf_counter() + seconds / 4
                while time.perf_counter() < until:
                    await one_round(journal, requests(start, calls), at_once, rounds)
                    start += calls
                print(f"{name}, {at_once:2d} at once: {rounds}", flush=True)
            await journal.close()
        server.stop()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0, sys.argv[2] if len(sys.argv) > 2 else None))
