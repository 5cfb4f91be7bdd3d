"""What an ended operation takes in Redis: operations through a real sidecar, and Redis' own word before and after."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import redis as redis_client

from bench.processes import BenchError, LoadProcess, Started, start_paywitness_on_redis, start_provider, start_redis
from bench.rounds import PATH_OF_PAYWITNESS, Route, Say, drive, scratch_folder

_CALLERS = 16
_WARM_S = 0.5  # scripts, connections and their buffers are there before the first look
_STEP_S = 1.0
_PATIENCE_S = 300.0
_SAMPLES = 200
_PREFIX = "paywitness:{j}:"
_LEAST_SHARE = 0.01  # what takes less than that of an operation is not told by name


@dataclass(frozen=True, slots=True)
class Memory:
    """Per ended operation."""

    operations: int
    bytes_each: float  # of used_memory
    keys_each: float
    log_bytes_each: float  # of the append-only file, which grows until Redis rewrites it
    parts: dict[str, float]  # bytes by kind of key, the largest first


@dataclass(frozen=True, slots=True)
class _Look:
    operations: int
    used_bytes: int
    keys: int
    log_bytes: int


def measure_memory(operations: int, top: Path, say: Say) -> Memory:
    with ExitStack() as stack:
        scratch = scratch_folder(stack, top)
        redis = start_redis(stack, scratch)
        provider = start_provider(stack, top, scratch)
        paywitness, _ = start_paywitness_on_redis(stack, top, scratch, provider, redis)
        client = stack.enter_context(redis_client.Redis(port=redis.port))
        load = LoadProcess(stack, top)
        route = Route("paywitness, Redis", PATH_OF_PAYWITNESS, paywitness)
        say(f"memory: {operations} operations")
        drive(load, route, route.job(_CALLERS, 0.0, _WARM_S))
        before = after = _look(client, redis)
        until_mono = time.monotonic() + _PATIENCE_S
        while after.operations - before.operations < operations:
            if time.monotonic() > until_mono:
                raise BenchError(f"{operations} operations were not made in {_PATIENCE_S:.0f} s")
            drive(load, route, route.job(_CALLERS, 0.0, _STEP_S))
            after = _look(client, redis)
        return _memory(before, after, client)


def _look(client: Any, redis: Started) -> _Look:
    told = client.info()
    return _Look(int(client.get(f"{_PREFIX}number")), told["used_memory"], client.dbsize(), told["aof_current_size"])


def _memory(before: _Look, after: _Look, client: Any) -> Memory:
    ended = after.operations - before.operations
    each = (after.used_bytes - before.used_bytes) / ended
    parts = {name: taken for name, taken in _parts(client, after.operations).items() if taken >= each * _LEAST_SHARE}
    return Memory(
        operations=ended,
        bytes_each=each,
        keys_each=(after.keys - before.keys) / ended,
        log_bytes_each=(after.log_bytes - before.log_bytes) / ended,
        parts=dict(sorted(parts.items(), key=lambda part: -part[1])),
    )


def _parts(client: Any, operations: int) -> dict[str, float]:
    parts: dict[str, float] = {}
    sampled: list[int] = []
    for key in client.scan_iter(count=1000):
        name = key.decode().removeprefix(_PREFIX)
        if not name.startswith("o:"):
            parts[name] = client.memory_usage(key, samples=0) / operations
        elif len(sampled) < _SAMPLES:
            sampled.append(client.memory_usage(key, samples=0))
    parts["o:ID"] = mean(sampled)
    return parts
