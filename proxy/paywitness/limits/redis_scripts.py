"""Lua scripts on Redis, for limits: one bounded try each, never a second by itself, and a small breaker around them.

A limit is asked on the path of a call, so it is given a few hundredths of a second and then its owner goes on locally.
A script whose reply was lost may have run: nothing here sends it again. After three failures in a row nobody waits at
all, for one to five seconds; then one call tries, and if it gets through all do. Concurrent calls ride in one pipeline,
because over redis-py a call each costs as much as the rest of the proxy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from paywitness.clock import Clock
from paywitness.core.errors import SettingsError, StoreUnavailable
from paywitness.randomness import Randomness
from paywitness.redis.scripts import LuaScript
from paywitness.tasks import TaskRefused, Tasks

_log = logging.getLogger("paywitness.limits")

TIMEOUT_S = 0.05  # a script takes a tenth of a millisecond; 25 to 100 ms is a Redis in trouble
_CONNECT_S = 0.1  # beyond the timeout nobody waits for it, but the next one may find it made
_FAILURES_MAX = 3
_PAUSE_S, _PAUSE_GROWTH, _PAUSE_MAX_S = 1.0, 1.5, 5.0
_PAUSE_SPREAD = 0.2  # of the pause, either way: a fleet does not come back in step
_PIPELINE_MAX = 64
_WAITING_MAX = 10_000
_PREFIX = "paywitness"
_SENTINEL_PORT = 26379

Argument = str | int | float
Client = Redis | RedisCluster


class ScriptRunner(Protocol):
    """What a limit needs of Redis."""

    @property
    def available(self) -> bool:
        """Whether it is worth asking now. False costs nothing: go on locally."""
        ...

    async def run(self, script: LuaScript, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """The script's reply. Raises StoreUnavailable, within the timeout, and then the script may have run."""
        ...


class StoreBreaker:
    """Whether Redis is worth asking. Pure but for the clock and the draw that come in."""

    def __init__(self, clock: Clock, chance: Randomness) -> None:
        self._clock = clock
        self._chance = chance
        self._failures = 0
        self._pauses = 0
        self._paused_until_mono = 0.0
        self._probing = False

    @property
    def allows(self) -> bool:
        if self._failures < _FAILURES_MAX:
            return True
        return not self._probing and self._clock.mono() >= self._paused_until_mono

    def call_started(self) -> None:
        """A call goes out. After a pause it is the only one until it has ended."""
        self._probing = self._failures >= _FAILURES_MAX

    def succeeded(self) -> None:
        if self._failures >= _FAILURES_MAX:
            _log.warning("the limits' Redis answers again")
        self._failures, self._pauses, self._probing = 0, 0, False

    def call_cancelled(self) -> None:
        """The one who asked was cancelled: that says nothing of Redis."""
        self._probing = False

    def failed(self, error: str) -> None:
        self._probing = False
        if self._failures >= _FAILURES_MAX and self._clock.mono() < self._paused_until_mono:
            return  # a call of before the pause
        self._failures += 1
        if self._failures < _FAILURES_MAX:
            return
        if self._failures == _FAILURES_MAX:
            _log.warning("the limits' Redis does not answer (%s): limits are local until it does", error)
        pause_s = min(_PAUSE_MAX_S, _PAUSE_S * _PAUSE_GROWTH**self._pauses)
        pause_s *= 1 - _PAUSE_SPREAD + 2 * _PAUSE_SPREAD * self._chance.draw()
        self._pauses = min(self._pauses + 1, 10)
        self._paused_until_mono = self._clock.mono() + pause_s


@dataclass(slots=True)
class _QueuedScript:
    script: LuaScript
    keys: Sequence[str]
    arguments: Sequence[Argument]
    reply: asyncio.Future[Any]


class RedisScriptRunner:
    """Runs scripts on one Redis (or Redis Cluster), many at once in a pipeline."""

    def __init__(self, client: Client, clock: Clock, chance: Randomness, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._breaker = StoreBreaker(clock, chance)
        self._queued: deque[_QueuedScript] = deque()
        self._tasks = Tasks()
        self._sending = False

    @property
    def available(self) -> bool:
        return self._breaker.allows

    async def run(self, script: LuaScript, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        if not self._breaker.allows:
            raise StoreUnavailable("not asked: it did not answer just now")
        self._breaker.call_started()
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._reply(script, keys, arguments)
        except (RedisError, OSError, TimeoutError, TaskRefused) as error:
            self._breaker.failed(type(error).__name__)
            raise StoreUnavailable(f"{script.name}: {type(error).__name__}") from error
        except BaseException:
            self._breaker.call_cancelled()
            raise
        self._breaker.succeeded()
        return reply

    async def close(self) -> None:
        await self._tasks.stop()
        await self._client.aclose()

    async def _reply(self, script: LuaScript, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        if isinstance(self._client, RedisCluster):
            return await _evaluate(self._client, script, keys, arguments)  # a pipeline would span nodes
        if len(self._queued) >= _WAITING_MAX:
            raise TimeoutError
        queued = _QueuedScript(script, keys, arguments, asyncio.get_running_loop().create_future())
        self._queued.append(queued)
        if not self._sending:
            self._sending = True
            try:
                self._tasks.start(self._send_queued(self._client), "limits-scripts")
            except TaskRefused:
                self._sending = False
                raise
        return await queued.reply

    async def _send_queued(self, client: Redis) -> None:
        """Send whatever is waiting, pipeline after pipeline, until nothing is."""
        try:
            await asyncio.sleep(0)  # let those who ask at the same moment come in
            while self._queued:
                batch = [self._queued.popleft() for _ in range(min(_PIPELINE_MAX, len(self._queued)))]
                batch = [queued for queued in batch if not queued.reply.done()]  # who timed out is not sent
                if batch:
                    await _send(client, batch, self._timeout_s)
        finally:
            self._sending = False


async def _send(client: Redis, batch: list[_QueuedScript], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            replies = await _pipelined(client, batch)
    except (RedisError, OSError, TimeoutError) as error:
        replies = [error] * len(batch)
    for queued, reply in zip(batch, replies, strict=True):
        if queued.reply.done():
            continue
        if isinstance(reply, Exception):
            queued.reply.set_exception(reply)
        else:
            queued.reply.set_result(reply)


async def _pipelined(client: Redis, batch: list[_QueuedScript]) -> list[Any]:
    """One pipeline by hash. What the server does not know (a restart, a flush) did not run: once more, by its text."""
    replies = await _execute(client, batch, by_text=False)
    unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        again = await _execute(client, [batch[index] for index in unknown], by_text=True)
        for index, reply in zip(unknown, again, strict=True):
            replies[index] = reply
    return replies


async def _execute(client: Redis, batch: list[_QueuedScript], *, by_text: bool) -> list[Any]:
    async with client.pipeline(transaction=False) as pipeline:
        for queued in batch:
            call = pipeline.eval if by_text else pipeline.evalsha
            name = queued.script.text if by_text else queued.script.sha
            call(name, len(queued.keys), *queued.keys, *map(str, queued.arguments))
        return await pipeline.execute(raise_on_error=False)


async def _evaluate(client: RedisCluster, script: LuaScript, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
    parts = [*keys, *map(str, arguments)]
    try:
        return await client.evalsha(script.sha, len(keys), *parts)
    except NoScriptError:
        return await client.eval(script.text, len(keys), *parts)


def redis_client(url: str, timeout_s: float = TIMEOUT_S) -> tuple[Client, str]:
    """The client for a `--limits` URL, and its key prefix (`?prefix=`). Connects when first used; never retries.

    redis://user:password@host:6379/0, redis+sentinel://host:26379,host:26379/service/0, redis+cluster://host:6379; all
    three also with rediss. `ca=` is whom TLS trusts, `sentinel_user=` and `sentinel_password=` the sentinels' own.
    """
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    prefix = query.get("prefix", _PREFIX).rstrip(":")
    if not prefix.isprintable() or {"{", "}", " "} & set(prefix):
        raise SettingsError(f"--limits: prefix {prefix!r}: give a name without braces and spaces")
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": max(timeout_s, _CONNECT_S),
        "decode_responses": True,
        "retry": Retry(NoBackoff(), 0),  # its default is ten: a script whose reply was lost would run eleven times
    }
    secure, kind = parts.scheme.startswith("rediss"), parts.scheme.partition("+")[2]
    if secure and "ca" in query:
        options["ssl_ca_certs"] = query["ca"]
    plain = urlunsplit(("rediss" if secure else "redis", parts.netloc, parts.path, "", ""))
    if parts.scheme not in {f"{name}{kind}" for name in ("redis", "rediss") for kind in ("", "+cluster", "+sentinel")}:
        allowed = "local, redis://, redis+sentinel://, redis+cluster://, or those with rediss"
        raise SettingsError(f"--limits {parts.scheme}://: give {allowed}")
    try:
        match kind:
            case "cluster":
                return RedisCluster.from_url(plain, **options), prefix
            case "sentinel":
                return _sentinel_client(parts, query, options | ({"ssl": True} if secure else {})), prefix
            case _:
                return Redis.from_url(plain, **options), prefix
    except ValueError as error:  # a port or a database that is no number
        raise SettingsError(f"--limits: the URL cannot be used: {error}") from error


def _sentinel_client(parts: SplitResult, query: dict[str, str], options: dict[str, Any]) -> Redis:
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    sentinels = []
    for host in hosts.split(","):
        name, _, port = host.partition(":")
        sentinels.append((name, int(port or _SENTINEL_PORT)))
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("it names no service: redis+sentinel://host:26379/service")
    options |= {"username": unquote(username) or None, "password": unquote(password) or None, "db": int(database or 0)}
    own = {"socket_timeout": _CONNECT_S, "retry": Retry(NoBackoff(), 0)}
    own |= {"username": query.get("sentinel_user"), "password": query.get("sentinel_password")}
    found = Sentinel(  # type: ignore[no-untyped-call]  # redis-py left its constructor without types
        sentinels, sentinel_kwargs=own, **options
    )
    return cast(Redis, found.master_for(service))
