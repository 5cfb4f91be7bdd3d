"""The engine alone: a clean call from `Engine.answer` to its reply, over a journal in memory and a provider that
answers at once. No socket, no disk: what is left is what recognising, claiming, deciding and recording cost.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import uvloop

from paywitness.clock import SystemClock
from paywitness.core.call import Call
from paywitness.core.evidence import Evidence, NetworkPhase, Response
from paywitness.core.policy import Provider
from paywitness.engine.calls.attempts import AttemptSender
from paywitness.engine.engine import Engine
from paywitness.engine.failpoints import NoFailpoints
from paywitness.option_defaults import Settings
from paywitness.policy.book import PolicyBook, load_content
from paywitness.randomness import SystemRandomness
from paywitness.secrets import RingKey, Vault
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.logs import LogWriter
from paywitness.telemetry.metrics import Metrics
from paywitness.wiring import Platform, assemble
from tests.journal.memory import MemoryJournal

_CALLERS = 10
_WARM_CALLS = 300
_CALLS = 1_000  # a part: the median of the parts is told, so that a noisy machine spoils some of them only
_PARTS = 5
_ANSWER_HEADERS = ((b"Content-Type", b"application/json"), (b"Request-Id", b"req_1"))
_ANSWER_BODY = (
    b'{"id":"ch_%d","object":"charge","status":"succeeded","amount":1099,"currency":"eur","captured":true,'
    b'"description":"' + b"a charge that went well" * 6 + b'"}'
)
_BODY = (
    b'{"amount":1099,"currency":"eur","source":"tok_visa","capture":true,"customer":"cus_4711",'
    b'"metadata":{"order_id":"%b","channel":"web"},"description":"%b"}'
)


class _Provider:
    """In the place of the upstream client: every attempt is written and answered at once, by a charge of its own."""

    def __init__(self) -> None:
        self._charges = 0

    async def send(self, *_: object, may_send: object, **__: object) -> Evidence:
        if not callable(may_send) or not may_send():
            raise RuntimeError("a clean call may be sent")
        self._charges += 1
        response = Response(200, b"OK", _ANSWER_HEADERS, _ANSWER_BODY % self._charges)
        return Evidence(NetworkPhase.COMPLETE, 700, None, response, "answered", 0.001)


class _NoSpool:
    async def put(self, *_: object, **__: object) -> bool:
        return False


def _call(number: int) -> Call:
    """What the edge makes of a call of `bench.load`."""
    key = b"alone-%010d" % number
    headers = (
        (b"Host", b"api.acme.test"),
        (b"User-Agent", b"bench/1"),
        (b"Accept", b"application/json"),
        (b"Authorization", b"Bearer sk_test_bench"),
        (b"Content-Type", b"application/json"),
        (b"Idempotency-Key", key),
    )
    return Call("acme", "POST", "/v1/charges", "", ("v1", "charges"), headers, _BODY % (key, b"x" * 320))


def _acme(policies: Path) -> Provider:
    path = policies / "acme.yaml"
    return load_content(path.read_bytes(), str(path))


def engine_of(policies: Path) -> Engine:
    clock, chance = SystemClock(), SystemRandomness()
    logger = logging.getLogger("paywitness")
    logger.setLevel(logging.INFO)
    telemetry = Telemetry(Metrics("bench", clock.now), LogWriter(logger))
    vault = Vault(b"an identity secret of the bench", (RingKey("k1", bytes(32)),), chance.nonce)
    ground = Platform(MemoryJournal(clock=clock), vault, clock, chance, NoFailpoints(), telemetry, {})
    parts = assemble(ground, Settings(policies), PolicyBook.of([_acme(policies)]), _NoSpool())
    sender = AttemptSender(_Provider(), parts.leases, clock, parts.ages)  # type: ignore[arg-type]  # all that is asked of a client here
    parts.engine.pipeline = replace(parts.engine.pipeline, sender=sender)
    return parts.engine


async def drive(engine: Engine, first: int, calls: int) -> float:
    """CPU seconds for so many calls, by a few callers at once."""
    each = calls // _CALLERS
    began_s = time.process_time()
    await asyncio.gather(*(_caller(engine, first + caller * each, each) for caller in range(_CALLERS)))
    return time.process_time() - began_s


async def _caller(engine: Engine, first: int, calls: int) -> None:
    for number in range(first, first + calls):
        reply = await engine.reply_to(_call(number), lambda: True)
        if reply.status_code != 200:
            raise RuntimeError(f"answered {reply.status_code}: no clean path")


async def _measured(policies: Path) -> float:
    engine = engine_of(policies)
    await drive(engine, 0, _WARM_CALLS)
    gc.collect()
    gc.disable()  # a journal in memory keeps all that was written, and the collector would look at it again and again
    parts = [await drive(engine, _WARM_CALLS + part * _CALLS, _CALLS) for part in range(_PARTS)]
    return statistics.median(parts) / _CALLS * 1e6


def measure_engine(top: Path) -> float:
    """Microseconds of CPU per clean call of the engine alone, in a process of its own."""
    ran = subprocess.run([sys.executable, "-m", "bench.engine_alone"], cwd=top, check=True, capture_output=True)
    return float(ran.stdout)


if __name__ == "__main__":
    print(uvloop.run(_measured(Path("policies"))))
