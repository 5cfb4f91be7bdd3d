"""Tasks: start one with a name, hold it until it ends, log its failure. The only place that calls `create_task`.

The event loop keeps only weak references, so a task that nobody holds may vanish half-way. An exception in a task that
nobody awaits is reported late or never. Here every task is held until it ends, and every failure is logged: by the name
of the task, the class of the exception and the place, never by its message, which may carry a caller's data.

`LongWork` reads large bodies in a thread, because that takes milliseconds and would block the event loop. There is one
thread at a time: it shares the interpreter with the event loop, and two of them would take two thirds of it. Only
admitted calls wait for the thread, so their number has a bound. A process would share nothing, but taking a tree back
from it costs as much as making it (`bench/hostile.py` measures the delay of other calls).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Callable, Coroutine
from pathlib import PurePath
from typing import Any, ParamSpec, TypeVar

from paywitness.core.errors import PaywitnessError
from paywitness.repeated_lines import repeats

_log = logging.getLogger("paywitness.tasks")
_CANCEL_GRACE_S = 5.0  # the time that a cancelled task has to record its state

Result = TypeVar("Result")


class TaskRefused(PaywitnessError):
    """The task was not started: the limit is reached, or `close` has begun. No part of it has run."""


class Tasks:
    """The tasks of one owner. Each ends by itself, or when its owner closes."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
        """Start it and hold it until it ends. Raises TaskRefused if it may not start."""
        if self._closed or (self._limit is not None and len(self._tasks) >= self._limit):
            coroutine.close()
            raise TaskRefused(f"{name}: {'closed' if self._closed else f'{self._limit} tasks run already'}")
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self, grace_s: float) -> None:
        """Wait for the tasks to end, at most `grace_s`; then cancel the rest and wait until they are gone.

        During the grace a task may still start others; after it nothing starts.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while others := self._others():
                    await asyncio.wait(others)
        self._closed = True
        others = self._others()
        if not others:
            return
        _log.warning("cancelling %d tasks that did not end within %.1f s", len(others), grace_s)
        for task in others:
            task.cancel()
        _, stuck = await asyncio.wait(others, timeout=_CANCEL_GRACE_S)
        for task in stuck:
            _log.error("task %s does not end, though cancelled", task.get_name())

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended: for loops that never end by themselves."""
        self._closed = True
        others = self._others()
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_CANCEL_GRACE_S)

    def _others(self) -> set[asyncio.Task[Any]]:
        """All tasks but the current one, which cannot wait for itself."""
        return self._tasks - {asyncio.current_task()}

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        name, place = task.get_name(), _location(error)
        _log.error("task %s died of %s at %s", name, type(error).__name__, place, extra=repeats(name, place))


def _location(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown place"
    last = frames[-1]
    return f"{PurePath(last.filename).name}:{last.lineno} in {last.name}"


# --- Long work


INLINE_BYTES = 16 * 1024  # read in about a millisecond; nearly every body is smaller

Arguments = ParamSpec("Arguments")


class LongWork:
    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    async def run(
        self, body: bytes, read: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        """The result of reading the body: read at once if it is small, otherwise in the thread."""
        if len(body) <= INLINE_BYTES:
            return read(*arguments, **options)
        async with self._turn:
            return await asyncio.to_thread(read, *arguments, **options)
