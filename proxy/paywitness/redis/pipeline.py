"""One connection to Redis. All waiting calls go out as one pipeline.

Calls made in one turn of the event loop, or while a pipeline is under way, go out together. Each has its own reply and
its own error. If Redis no longer knows a script, its text is sent again. That is safe, because NOSCRIPT means that the
script did not run. If a connection fails, all its calls fail, and the outcome of their writes is unknown.

A call gets its reply or an error within `call_timeout_s`, waiting included. Connecting may take longer. Then its
callers get their error in time, and the next ones find the connection open.

With a `ReplicationGuard`, a write before a send is followed by WAIT in the same pipeline, if there are replicas. If we
know of none, the pipeline also asks whether any sidecar does. If so, it then waits for them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from redis.asyncio.connection import Connection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from paywitness.redis.connection import (
    CONNECT_TIMEOUT_S,
    CONNECTION_FAILURES,
    NOT_PRIMARY_ERRORS,
    REPLICATION_INFO_COMMAND,
    Argument,
    Command,
    RedisResponseReader,
    RedisUnavailable,
    ReplicationInfo,
    connect_primary,
    disconnect,
    has_ended,
    pack_command,
    parse_replication_info,
    unavailable,
)
from paywitness.redis.url import RedisTarget
from paywitness.tasks import Tasks

# --- Scripts
# Redis runs a script by the hash of its text. It gets the text only if it does not know the hash.


@dataclass(frozen=True, slots=True)
class LuaScript:
    name: str
    text: str
    sha: str

    @classmethod
    def of(cls, name: str, text: str) -> LuaScript:
        return cls(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def load(cls, directory: Path, name: str, *, head: str = "", includes: tuple[str, ...] = ()) -> LuaScript:
        """The script of `{name}.lua`. `head` and the included files stand before it, in this order."""
        parts = [(directory / f"{part}.lua").read_text("utf-8") for part in (*includes, name)]
        return cls.of(name, "\n".join([head, *parts] if head else parts))


# --- Pipeline

WAIT_MS = 500  # for a replica; within the call's time
REPLICATION_CHECK_S = 1.0  # a replica that joined is noticed within this time

_CLOSED = "the connection to Redis is closed"

NeedsReplication = Callable[[Any], bool]  # whether something may be sent because of this reply


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The options of a pipeline's owner."""

    call_timeout_s: float  # in all, waiting included
    batch_max: int  # commands in one pipeline
    to_error: Callable[[RedisUnavailable], Exception] = lambda error: error  # makes the caller's error
    checks_role: bool = True  # refuse a replica when connecting; otherwise its READONLY shows it later
    waiting_max: int = 10_000
    close_timeout_s: float = 5.0  # for waiting calls, when the pipeline is closed


class ReplicationGuard(Protocol):
    """The known replicas of a Redis, and the histories that it has had."""

    replicas_required: int  # that must have a write before something is sent because of it
    replication_id: str  # of the history, as last reported

    @property
    def replicas_seen_command(self) -> Command:
        """The command that asks Redis whether any sidecar has seen a replica. The reply is then 1."""
        ...

    @property
    def should_check_replicas_seen(self) -> bool: ...

    def require_replica(self) -> None:
        """Note that a sidecar has seen a replica."""
        ...

    async def update(self, connection: Connection, info: ReplicationInfo) -> None:
        """Take the facts that Redis reports about its replication."""
        ...


@dataclass(slots=True, eq=False)
class _QueuedCommand:
    command: Command
    wire: bytes  # the encoded command; encoded by the caller, so that one that cannot be encoded fails no other call
    future: asyncio.Future[Any]
    script: LuaScript | None
    droppable: bool
    needs_replication: NeedsReplication | None


class RedisPipeline:
    """Calls to one Redis, in order. Use it from one event loop only."""

    def __init__(
        self,
        name: str,
        target: RedisTarget,
        options: PipelineOptions,
        *,
        replication: ReplicationGuard | None = None,
        guards_sends: bool = False,  # something may be sent because of a call in this pipeline
    ) -> None:
        self._name = name
        self._target = target
        self._options = options
        self._call_timeout_s = options.call_timeout_s
        self._queued: deque[_QueuedCommand] = deque()
        self._unanswered: deque[tuple[float, asyncio.Future[Any]]] = deque()  # oldest first; all have the same timeout
        self._timer: asyncio.TimerHandle | None = None  # one for all of them
        self._tasks = Tasks()
        self._running: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._responses: RedisResponseReader | None = None  # the replies on the connection
        self._replication = replication
        self._guards_sends = guards_sends
        self._replication_checked_mono = 0.0
        # the history at the time of connecting; if the history ends, so does the connection
        self._connected_replication_id = ""
        self._open = True
        self.round_trips = 0  # pipelines so far; fewer than calls, if calls went out together
        self.calls = 0

    def run(
        self,
        script: LuaScript,
        keys: Sequence[str],
        arguments: Iterable[Argument],
        *,
        droppable: bool = False,
        needs_replication: NeedsReplication | None = None,
    ) -> asyncio.Future[Any]:
        """Run a script. A `droppable` one is not sent once nobody waits for it."""
        return self._enqueue(
            ("EVALSHA", script.sha, len(keys), *keys, *arguments), script, droppable, needs_replication
        )

    def execute(self, name: str, *arguments: Argument | int) -> asyncio.Future[Any]:
        """Run any other command."""
        return self._enqueue((name, *arguments), None, True, None)

    def _enqueue(
        self, command: Command, script: LuaScript | None, droppable: bool, needs_replication: NeedsReplication | None
    ) -> asyncio.Future[Any]:
        """The future of the reply. The caller awaits it directly, because a call runs two scripts and each coroutine
        costs time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        waiting_max = self._options.waiting_max
        if not self._open or len(self._queued) >= waiting_max:
            why = f"{waiting_max} calls wait for Redis already" if self._open else _CLOSED
            future.set_exception(self._options.to_error(RedisUnavailable(why)))
            return future
        self._queued.append(
            _QueuedCommand(command, pack_command(command), future, script, droppable, needs_replication)
        )
        self.calls += 1
        if self._running is None:
            self._running = self._tasks.start(self._run_batches(), self._name)
        self._unanswered.append((loop.time() + self._call_timeout_s, future))
        if self._timer is None:
            self._timer = loop.call_later(self._call_timeout_s, self._fail_overdue)
        return future

    def _fail_overdue(self) -> None:
        """Fail the calls that have waited too long, and set the timer for the next."""
        self._timer = None
        loop, unanswered = asyncio.get_running_loop(), self._unanswered
        now = loop.time()
        while unanswered and (unanswered[0][1].done() or unanswered[0][0] <= now):
            _, future = unanswered.popleft()
            if not future.done():
                late = RedisUnavailable(f"Redis did not answer in {self._call_timeout_s:g} s")
                future.set_exception(self._options.to_error(late))
        if unanswered:
            self._timer = loop.call_at(unanswered[0][0], self._fail_overdue)

    async def _run_batches(self) -> None:
        try:
            while self._queued:
                batch: list[_QueuedCommand] = []
                while self._queued and len(batch) < self._options.batch_max:
                    call = self._queued.popleft()
                    if not (call.droppable and call.future.done()):
                        batch.append(call)
                if batch:
                    await self._run_batch(batch)
                while self._unanswered and self._unanswered[0][1].done():
                    self._unanswered.popleft()
        except Exception:  # a fault of ours ends this task; the calls queued behind it must not wait for the next call
            self._running = None
            if self._queued and self._open:
                self._running = self._tasks.start(self._run_batches(), self._name)
            raise
        finally:
            if self._running is asyncio.current_task():
                self._running = None

    async def _run_batch(self, batch: list[_QueuedCommand]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._call_timeout_s
        try:
            if not self._is_connected:
                async with asyncio.timeout(max(self._call_timeout_s, CONNECT_TIMEOUT_S)):
                    await self._connect()
                if loop.time() >= deadline:
                    self._reject(batch, TimeoutError())
                # A call that has failed meanwhile is not sent late: its caller may have done something else.
                batch = [call for call in batch if call.future.cancelled() or not call.future.done()]
                if not batch:
                    return  # the next batch uses the connection
            async with asyncio.timeout_at(deadline):
                unknown_scripts = await self._exchange(batch, [call.wire for call in batch])
                if unknown_scripts:
                    if not self._is_connected:
                        await self._connect()
                    await self._exchange(unknown_scripts, [_eval_command(call) for call in unknown_scripts])
        except BaseException as error:
            self._reject(batch, error)
            await self._disconnect()
            if not isinstance(error, CONNECTION_FAILURES):
                raise

    def _reject(self, calls: Iterable[_QueuedCommand], error: BaseException) -> None:
        for call in calls:
            if not call.future.done():
                call.future.set_exception(self._options.to_error(unavailable(error)))
                call.future.exception()  # so that an error which nobody awaits is not logged

    async def _exchange(self, calls: list[_QueuedCommand], wires: list[bytes]) -> list[_QueuedCommand]:
        """Send all, read all. Returns the calls whose script Redis did not know, so they have not run."""
        replication = self._replication if self._guards_sends else None
        required = replication.replicas_required if replication is not None else 0
        guards_sends = replication is not None and any(call.needs_replication is not None for call in calls)
        waits = required > 0 and guards_sends
        checks_replicas_seen = guards_sends and replication is not None and replication.should_check_replicas_seen
        checks_replication = replication is not None and self._is_replication_check_due()
        connection, responses = self._connection, self._responses
        assert connection is not None
        assert responses is not None  # set and unset together with the connection
        after = [_wait_command(required)] if waits else []
        if checks_replicas_seen and replication is not None:
            after = [replication.replicas_seen_command]
        await _send(connection, wires, [*after, REPLICATION_INFO_COMMAND] if checks_replication else after)
        self.round_trips += 1
        result = _BatchResult(self._options.to_error, waits or checks_replicas_seen)
        unanswered_calls = iter(calls)
        left = len(calls)
        while left:
            for response in await responses.read_available(left):
                result.resolve(next(unanswered_calls), response)
                left -= 1
        replicas_response = await responses.read_one() if after else None
        if waits:
            result.release(replicas_response, required)
        if checks_replication and replication is not None:
            info = await responses.read_one()
            reported = parse_replication_info(info) if isinstance(info, bytes) else None
            if reported is not None and reported.is_primary:
                await replication.update(connection, reported)
                self._connected_replication_id = replication.replication_id
        if checks_replicas_seen and replication is not None:
            if replicas_response == b"1":
                replication.require_replica()
            await _wait_and_release(connection, responses, result, replication.replicas_required)
        if result.not_primary:
            await self._disconnect()
        return result.unknown_scripts

    def _is_replication_check_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._replication_checked_mono < REPLICATION_CHECK_S:
            return False
        self._replication_checked_mono = now
        return True

    @property
    def _is_connected(self) -> bool:
        connection = self._connection
        same_history = self._connected_replication_id == self._replication_id
        return connection is not None and not has_ended(connection) and same_history

    async def _connect(self) -> None:
        await self._disconnect()
        self._connection = connection = await connect_primary(self._target)
        self._responses = RedisResponseReader(connection)
        if self._options.checks_role:
            await self._check_role(connection, self._responses)
        self._connected_replication_id = self._replication_id

    async def _check_role(self, connection: Connection, responses: RedisResponseReader) -> None:
        await _send(connection, [], [REPLICATION_INFO_COMMAND])
        info = await responses.read_one()
        if isinstance(info, bytes):
            reported = parse_replication_info(info)
            if not reported.is_primary:
                raise RedisUnavailable(f"Redis at {self._target} is a replica: a failover may be under way")
            if self._replication is not None and self._guards_sends:
                await self._replication.update(connection, reported)

    @property
    def _replication_id(self) -> str:
        return self._replication.replication_id if self._replication is not None else ""

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._responses = None
        if connection is not None:
            await disconnect(connection)

    async def close(self) -> None:
        """Send waiting calls, then close the connection."""
        self._open = False
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=self._options.close_timeout_s)
        await self._tasks.stop()
        self._reject(self._queued, RedisUnavailable(_CLOSED))
        self._queued.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._disconnect()


@dataclass(slots=True)
class _BatchResult:
    """The results of the calls of one pipeline."""

    to_error: Callable[[RedisUnavailable], Exception]
    holds_for_replicas: bool  # hold a reply that needs replication until replicas have the write
    # Redis did not know their script, so they have not run
    unknown_scripts: list[_QueuedCommand] = field(default_factory=list)
    # resolved once replicas have the writes
    awaiting_replicas: list[tuple[_QueuedCommand, Any]] = field(default_factory=list)
    not_primary: bool = False  # the primary is elsewhere

    def resolve(self, call: _QueuedCommand, response: Any) -> None:
        """Give a call its reply. Raises errors that end the connection."""
        if isinstance(response, RedisError):
            self._resolve_error(call, response)
        elif self.holds_for_replicas and call.needs_replication is not None and call.needs_replication(response):
            self.awaiting_replicas.append((call, response))
        elif not call.future.done():
            call.future.set_result(response)

    def _resolve_error(self, call: _QueuedCommand, error: RedisError) -> None:
        if isinstance(error, NoScriptError):
            self.unknown_scripts.append(call)
        elif isinstance(error, ResponseError):
            self._reject(call, unavailable(error))
            self.not_primary = self.not_primary or isinstance(error, NOT_PRIMARY_ERRORS)
        else:
            raise error

    def _reject(self, call: _QueuedCommand, error: RedisUnavailable) -> None:
        if not call.future.done():
            call.future.set_exception(self.to_error(error))

    def release(self, replicas: Any, required: int) -> None:
        """Resolve the calls whose write replicas now have, or fail them if too few have it."""
        enough = isinstance(replicas, int) and replicas >= required
        few = f"Redis: {replicas} of {required} replicas had the write in {WAIT_MS} ms; so nothing may be sent"
        for call, response in self.awaiting_replicas:
            if not enough:
                self._reject(call, RedisUnavailable(few))
            elif not call.future.done():
                call.future.set_result(response)


async def _wait_and_release(
    connection: Connection, responses: RedisResponseReader, result: _BatchResult, required: int
) -> None:
    """Wait for replicas, for writes that went out before we knew that there are any."""
    replicas = 0
    if required and result.awaiting_replicas:
        await _send(connection, [], [_wait_command(required)])
        replicas = await responses.read_one()
    result.release(replicas, required)


def _wait_command(replicas: int) -> Command:
    return ("WAIT", replicas, WAIT_MS)


async def _send(connection: Connection, wires: list[bytes], after: list[Command]) -> None:
    await connection.send_packed_command(b"".join([*wires, *map(pack_command, after)]), check_health=False)


def _eval_command(call: _QueuedCommand) -> bytes:
    assert call.script is not None
    return pack_command(("EVAL", call.script.text, *call.command[2:]))
