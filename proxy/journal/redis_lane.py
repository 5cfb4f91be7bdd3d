"""A lane to Redis: one connection, and whatever is waiting goes out as one pipeline.

Calls made in one turn of the event loop, or while a pipeline is under way, ride together; each has its own answer and
its own error. A script that Redis does not know any more is sent whole, and only then: NOSCRIPT means that it did not
run. A connection that fails fails all that rode on it: what they wrote is not known.

A write before a send is followed by WAIT in the same pipeline, where there are replicas (`redis_replication`). Where we
know of none, it is followed by the question whether others do: then it waits for them after all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio.connection import Connection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from proxy.core.errors import JournalUnavailable
from proxy.journal.redis_answers import Answers
from proxy.journal.redis_connection import (
    ASK_REPLICATION,
    ELSEWHERE,
    Argument,
    Command,
    connected,
    packed,
    replication_in,
    unavailable,
)
from proxy.journal.redis_replication import Standing
from proxy.journal.redis_scripts import Script
from proxy.journal.redis_url import Place
from proxy.tasks import Tasks

CALL_TIMEOUT_S = 1.0  # in all, waiting included: a caller is told within a second
BATCH_MAX = 256  # scripts in one pipeline: about 10 ms of Redis' time
WAITING_MAX = 10_000
WAIT_MS = 500  # for a replica: within the call's second
REPLICAS_AGAIN_AFTER_S = 1.0  # how soon a replica that joined is counted upon
CLOSE_TIMEOUT_S = 5.0

Binding = Callable[[Any], bool]  # whether an answer means that something may be sent now


@dataclass(slots=True, eq=False)
class _Call:
    command: Command
    wire: bytes  # the command as it goes out; made where it is asked, so that what cannot be sent fails nobody else
    future: asyncio.Future[Any]
    script: Script | None
    moot: bool
    binding: Binding | None


class Lane:
    """Calls to one Redis, in the order they were made. Use it from one event loop alone."""

    def __init__(
        self,
        name: str,
        place: Place,
        *,
        call_timeout_s: float = CALL_TIMEOUT_S,
        standing: Standing | None = None,
        binds: bool = False,  # something may be sent on the strength of what rides here
    ) -> None:
        self._name = name
        self._place = place
        self._seen: Command = ("HGET", f"{place.prefix}meta", "replicas_seen")  # whether anybody has seen a replica
        self._call_timeout_s = call_timeout_s
        self._waiting: deque[_Call] = deque()
        self._unanswered: deque[tuple[float, asyncio.Future[Any]]] = deque()  # oldest first; all wait equally long
        self._timer: asyncio.TimerHandle | None = None  # one for them all
        self._tasks = Tasks()
        self._running: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._answers: Answers | None = None  # what comes on it
        self._standing = standing
        self._binds = binds
        self._standing_asked_at = 0.0
        self._connected_under = ""  # the history that was known then: where that is over, so is the connection
        self._open = True
        self.round_trips = 0  # pipelines so far; fewer than calls, where calls came together
        self.calls = 0

    def run(
        self, script: Script, *arguments: Argument, moot: bool = False, binding: Binding | None = None
    ) -> asyncio.Future[Any]:
        """Run a script. `moot`: not sent once nobody waits for it any more. `binding`: see `Binding`."""
        return self._ask(("EVALSHA", script.sha, 1, self._place.prefix, *arguments), script, moot, binding)

    def ask(self, name: str, *arguments: Argument | int) -> asyncio.Future[Any]:
        """Any other command."""
        return self._ask((name, *arguments), None, True, None)

    def _ask(self, command: Command, script: Script | None, moot: bool, binding: Binding | None) -> asyncio.Future[Any]:
        """What will be the answer. Whoever awaits it needs no coroutine in between: a call asks twice."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._open or len(self._waiting) >= WAITING_MAX:
            why = f"{WAITING_MAX} calls wait for Redis already" if self._open else "the journal is closed"
            future.set_exception(JournalUnavailable(why))
            return future
        self._waiting.append(_Call(command, packed(command), future, script, moot, binding))
        self.calls += 1
        if self._running is None:
            self._running = self._tasks.start(self._run(), self._name)
        self._unanswered.append((loop.time() + self._call_timeout_s, future))
        if self._timer is None:
            self._timer = loop.call_later(self._call_timeout_s, self._give_up)
        return future

    def _give_up(self) -> None:
        """Tell those that have waited too long, and wait for the next."""
        self._timer = None
        loop, unanswered = asyncio.get_running_loop(), self._unanswered
        now = loop.time()
        while unanswered and (unanswered[0][1].done() or unanswered[0][0] <= now):
            _, future = unanswered.popleft()
            if not future.done():
                future.set_exception(JournalUnavailable(f"Redis did not answer in {self._call_timeout_s:g} s"))
        if unanswered:
            self._timer = loop.call_at(unanswered[0][0], self._give_up)

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch: list[_Call] = []
                while self._waiting and len(batch) < BATCH_MAX:
                    call = self._waiting.popleft()
                    if not (call.moot and call.future.done()):
                        batch.append(call)
                if batch:
                    await self._serve(batch)
                while self._unanswered and self._unanswered[0][1].done():
                    self._unanswered.popleft()
        finally:
            self._running = None

    async def _serve(self, batch: list[_Call]) -> None:
        error: BaseException
        try:
            async with asyncio.timeout(self._call_timeout_s):
                forgotten = await self._exchange(await self._connected(), batch, [call.wire for call in batch])
                if forgotten:
                    await self._exchange(await self._connected(), forgotten, [_whole(call) for call in forgotten])
                return
        except (RedisError, OSError, TimeoutError, JournalUnavailable) as failure:
            error = failure
        except BaseException as failure:
            await self._fail(batch, failure)
            raise
        await self._fail(batch, error)

    async def _fail(self, batch: list[_Call], error: BaseException) -> None:
        for call in batch:
            if not call.future.done():
                call.future.set_exception(unavailable(error))
                call.future.exception()  # somebody may have gone away without it
        await self._disconnect()

    async def _exchange(self, connection: Connection, calls: list[_Call], wires: list[bytes]) -> list[_Call]:
        """Send all, read all; the calls whose script is not known, which have not run."""
        standing = self._standing if self._binds else None
        wanted = standing.replicas_wanted if standing is not None else 0
        binds = standing is not None and any(call.binding is not None for call in calls)
        waits = wanted > 0 and binds
        looks = binds and standing is not None and standing.may_learn
        asks = standing is not None and self._is_time_to_ask()
        answers = self._answers
        assert answers is not None  # they come and go with the connection
        after: list[Command] = [_wait_for(wanted)] if waits else [self._seen] if looks else []
        await _send(connection, wires, [*after, ASK_REPLICATION] if asks else after)
        self.round_trips += 1
        heard = _Heard(waits or looks)
        unheard = iter(calls)
        left = len(calls)
        while left:
            for answer in await answers.some(left):
                heard.take(next(unheard), answer)
                left -= 1
        told_of_replicas = await answers.next() if after else None
        if waits:
            _release(heard.bound, told_of_replicas, wanted)
        if asks and standing is not None:
            info = await answers.next()
            told = replication_in(info) if isinstance(info, bytes) else None
            if told is not None and told.primary:
                await standing.hear(connection, told)
                self._connected_under = standing.replication_id
        if looks and standing is not None:
            if told_of_replicas == b"1":
                standing.learn()
            await self._let_go(connection, answers, heard.bound, standing.replicas_wanted)
        if heard.lost:
            await self._disconnect()
        return heard.forgotten

    async def _let_go(
        self, connection: Connection, answers: Answers, bound: list[tuple[_Call, Any]], wanted: int
    ) -> None:
        """What was written before we knew whether replicas are to be waited for."""
        replicas = 0
        if wanted and bound:
            await _send(connection, [], [_wait_for(wanted)])
            replicas = await answers.next()
        _release(bound, replicas, wanted)

    def _is_time_to_ask(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._standing_asked_at < REPLICAS_AGAIN_AFTER_S:
            return False
        self._standing_asked_at = now
        return True

    async def _connected(self) -> Connection:
        if self._connection is not None and self._connection.is_connected and self._connected_under == self._history:
            return self._connection
        await self._disconnect()
        self._connection = connection = await connected(self._place)
        await connection.send_command(*ASK_REPLICATION, check_health=False)
        self._answers = Answers(connection)
        info = await self._answers.next()
        if isinstance(info, bytes):
            told = replication_in(info)
            if not told.primary:
                raise JournalUnavailable(f"Redis at {self._place} is a replica: a failover may be under way")
            if self._standing is not None and self._binds:
                await self._standing.hear(connection, told)
        self._connected_under = self._history
        return connection

    @property
    def _history(self) -> str:
        return self._standing.replication_id if self._standing is not None else ""

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._answers = None
        if connection is not None:
            with contextlib.suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Send what waits, then let go of the connection."""
        self._open = False
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=CLOSE_TIMEOUT_S)
        await self._tasks.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._disconnect()


@dataclass(slots=True)
class _Heard:
    """What became of the calls of one pipeline."""

    waits: bool  # for replicas, where an answer binds
    forgotten: list[_Call] = field(default_factory=list)  # their script is not known: they have not run
    bound: list[tuple[_Call, Any]] = field(default_factory=list)  # told once enough replicas have them
    lost: bool = False  # the primary is elsewhere

    def take(self, call: _Call, answer: Any) -> None:
        """Tell a call its answer. Raises what ends the connection."""
        if isinstance(answer, RedisError):
            self._take_error(call, answer)
        elif self.waits and call.binding is not None and call.binding(answer):
            self.bound.append((call, answer))
        elif not call.future.done():
            call.future.set_result(answer)

    def _take_error(self, call: _Call, error: RedisError) -> None:
        if isinstance(error, NoScriptError):
            self.forgotten.append(call)
        elif isinstance(error, ResponseError):
            _refuse(call, error)
            self.lost = self.lost or isinstance(error, ELSEWHERE)
        else:
            raise error


def _wait_for(replicas: int) -> Command:
    return ("WAIT", replicas, WAIT_MS)


async def _send(connection: Connection, wires: list[bytes], after: list[Command]) -> None:
    await connection.send_packed_command(b"".join([*wires, *map(packed, after)]), check_health=False)


def _release(bound: list[tuple[_Call, Any]], replicas: Any, wanted: int) -> None:
    """Tell those whose write may now be acted upon, or that too few replicas have it."""
    enough = isinstance(replicas, int) and replicas >= wanted
    for call, answer in bound:
        if enough:
            _tell(call, answer)
        else:
            few = f"{replicas} of {wanted} replicas had the write in {WAIT_MS} ms"
            _refuse(call, JournalUnavailable(f"Redis: {few}; nothing may be sent on it"))


def _whole(call: _Call) -> bytes:
    assert call.script is not None
    return packed(("EVAL", call.script.text, *call.command[2:]))


def _tell(call: _Call, answer: Any) -> None:
    if not call.future.done():
        call.future.set_result(answer)


def _refuse(call: _Call, error: BaseException) -> None:
    if not call.future.done():
        call.future.set_exception(unavailable(error))
