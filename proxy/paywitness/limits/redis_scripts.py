"""Lua scripts on Redis, for limits: one bounded try each, no retry, and a small breaker around them.

A limit is on the path of a call, so a script has a few hundredths of a second. After that its owner goes on locally.
A script whose reply was lost may have run, so nothing here sends it again. After three failures in a row no call uses
Redis for one to five seconds. Then one call tries, and if it succeeds all calls use Redis again.

A single Redis is called through `paywitness.redis.pipeline`, as the journal's is. For a Redis Cluster redis-py is used,
one call at a time, because a pipeline would span its nodes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError

from paywitness.clock import Clock
from paywitness.core.errors import StoreUnavailable
from paywitness.randomness import Randomness
from paywitness.redis.connection import CONNECTION_FAILURES, LIMITS_CALL_TIMEOUT_S, RedisUnavailable
from paywitness.redis.pipeline import LuaScript, PipelineOptions, RedisPipeline
from paywitness.redis.url import RedisTarget
from paywitness.repeated_lines import DependencyOutage, OutageLine

_log = logging.getLogger("paywitness.limits")

_BATCH_MAX = 64  # scripts in one pipeline: the largest takes about 2 ms of Redis' time
_CLUSTER_CONNECT_S = 0.1
_FAILURES_MAX = 3
_PAUSE_S, _PAUSE_GROWTH, _PAUSE_MAX_S = 1.0, 1.5, 5.0
_PAUSE_SPREAD = 0.2  # of the pause, either way, so that the sidecars of a fleet do not all return at once

Argument = str | int | float
_RunScript = Callable[[LuaScript, Sequence[str], Sequence[str]], Awaitable[Any]]


class ScriptRunner(Protocol):
    """The interface to Redis for a limit."""

    @property
    def available(self) -> bool:
        """Whether a call to Redis is likely to succeed now. If False, go on locally."""
        ...

    async def run(self, script: LuaScript, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """The script's reply. Raises StoreUnavailable, within the timeout, and then the script may have run."""
        ...


class StoreBreaker:
    """Whether a call to Redis is likely to succeed. Pure, except for the clock and the random draw."""

    def __init__(self, clock: Clock, chance: Randomness) -> None:
        self._clock = clock
        self._chance = chance
        self._failures = 0
        self._pauses = 0
        self._paused_until_mono = 0.0
        self._probing = False
        self._outage = DependencyOutage(clock.mono)

    @property
    def allows(self) -> bool:
        if self._failures < _FAILURES_MAX:
            return True
        return not self._probing and self._clock.mono() >= self._paused_until_mono

    def call_started(self) -> None:
        """A call starts. After a pause no other call starts before it has ended."""
        self._probing = self._failures >= _FAILURES_MAX

    def succeeded(self) -> None:
        if self._failures >= _FAILURES_MAX and (report := self._outage.worked()) is not None:
            _log.warning("the limits' Redis answers again, after %.1f s", report.down_s)
        self._failures, self._pauses, self._probing = 0, 0, False

    def call_cancelled(self) -> None:
        """The caller was cancelled, which shows nothing about Redis."""
        self._probing = False

    def failed(self, error: str) -> None:
        self._probing = False
        if self._failures >= _FAILURES_MAX and self._clock.mono() < self._paused_until_mono:
            return  # the call began before the pause
        self._failures += 1
        if self._failures < _FAILURES_MAX:
            return
        if (report := self._outage.failed()) is not None:
            since = f" for {report.down_s:.0f} s" if report.line is OutageLine.STILL_DOWN else ""
            _log.warning("the limits' Redis does not answer%s (%s): limits are local until it does", since, error)
        pause_s = min(_PAUSE_MAX_S, _PAUSE_S * _PAUSE_GROWTH**self._pauses)
        pause_s *= 1 - _PAUSE_SPREAD + 2 * _PAUSE_SPREAD * self._chance.draw()
        self._pauses = min(self._pauses + 1, 10)
        self._paused_until_mono = self._clock.mono() + pause_s


class RedisScriptRunner:
    """Runs scripts on one Redis or Redis Cluster, if its breaker allows it. Make it with `open`."""

    def __init__(
        self, run_script: _RunScript, close: Callable[[], Awaitable[None]], clock: Clock, chance: Randomness
    ) -> None:
        self._run_script = run_script
        self._breaker = StoreBreaker(clock, chance)
        self.close = close

    @classmethod
    def open(
        cls, target: RedisTarget, clock: Clock, chance: Randomness, timeout_s: float = LIMITS_CALL_TIMEOUT_S
    ) -> RedisScriptRunner:
        """Make a runner. It connects at first use."""
        if target.cluster:
            cluster = _ClusterScripts(target, timeout_s)
            return cls(cluster.run, cluster.close, clock, chance)
        pipeline = RedisPipeline("limits-scripts", target, pipeline_options(timeout_s))
        return cls(functools.partial(pipeline.run, droppable=True), pipeline.close, clock, chance)

    @property
    def available(self) -> bool:
        return self._breaker.allows

    async def run(self, script: LuaScript, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        if not self._breaker.allows:
            raise StoreUnavailable("not asked: it did not answer just now")
        self._breaker.call_started()
        try:
            reply = await self._run_script(script, keys, [str(argument) for argument in arguments])
        except CONNECTION_FAILURES as error:
            cause = error.cause if isinstance(error, RedisUnavailable) else type(error).__name__
            self._breaker.failed(cause)
            raise StoreUnavailable(f"{script.name}: {cause}") from error
        except BaseException:
            self._breaker.call_cancelled()
            raise
        self._breaker.succeeded()
        return reply


def pipeline_options(timeout_s: float = LIMITS_CALL_TIMEOUT_S) -> PipelineOptions:
    """The pipeline's options. A replica is noticed by its first READONLY, because an inquiry for its role would cost a
    round trip of a short time limit."""
    return PipelineOptions(timeout_s, _BATCH_MAX, checks_role=False, close_timeout_s=0.0)


class _ClusterScripts:
    """Scripts on a Redis Cluster. All keys of a call have one hash tag, so one node has them all."""

    def __init__(self, target: RedisTarget, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._client = RedisCluster(
            startup_nodes=[ClusterNode(host, port) for host, port in target.hosts],
            username=target.user or None,
            password=target.password or None,
            ssl=target.tls,
            ssl_ca_certs=target.ca or None,
            ssl_check_hostname=True,
            socket_timeout=timeout_s,
            socket_connect_timeout=max(timeout_s, _CLUSTER_CONNECT_S),
            retry=Retry(NoBackoff(), 0),  # its default is ten: a script whose reply was lost would run eleven times
        )

    async def run(self, script: LuaScript, keys: Sequence[str], arguments: Sequence[str]) -> Any:
        async with asyncio.timeout(self._timeout_s):
            try:
                return await self._client.evalsha(script.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await self._client.eval(script.text, len(keys), *keys, *arguments)

    async def close(self) -> None:
        await self._client.aclose()
