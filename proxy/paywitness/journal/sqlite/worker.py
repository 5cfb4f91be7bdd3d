"""A worker: one thread that serves what the event loop asks of it, everything that is waiting at once.

The thread's side never touches a future: a whole batch is answered by one callback. Bounded both ways: so many may
wait, and each for so long. A call that gave up may still be served.

One batch is handed over at a time, and the loop may step aside while the thread computes, for some milliseconds at
most; while the thread waits for its disk, the loop runs. Two threads that both compute take the interpreter from each
other at every statement, and that costs several times what the statements do.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from paywitness.core.errors import JournalUnavailable
from paywitness.repeated_lines import REPEATS, repeats

_log = logging.getLogger("paywitness.journal")

_LOOP_CHECK_S = 5.0  # how often an idle thread looks whether its loop is still there

# What to do, with what, and whom to tell; and whether it need not be done once nobody waits for it any more.
WorkerCall = tuple[Callable[[Any], Any], Any, "asyncio.Future[Any]", bool]


class WorkerBackend(Protocol):
    """What the thread does. All methods run in the thread."""

    def run_batch(self, calls: list[WorkerCall], computed: Callable[[], None]) -> list[Any]:
        """One result for each call, in order; an exception as a result is raised to its caller. `computed` may be
        called, any number of times, when all that is left is to wait."""
        ...

    def on_idle(self) -> None:
        """Nothing came for a while after something was done."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


class SqliteWorker:
    def __init__(
        self,
        name: str,
        backend: WorkerBackend,
        *,
        batch_max: int,
        waiting_max: int,
        call_timeout_s: float,
        idle_after_s: float,
        loop_yield_s: float = 0.0,
        on_timeout: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._backend = backend
        self._batch_max = batch_max
        self._waiting_max = waiting_max
        self._call_timeout_s = call_timeout_s
        self._idle_after_s = idle_after_s
        self._loop_yield_s = loop_yield_s  # how long the loop steps aside for a batch at most
        self._on_timeout = on_timeout  # told, on the loop, when a call was given up
        self._loop = asyncio.get_running_loop()
        self._queued: list[WorkerCall] = []  # not handed over yet
        self._hand_over_scheduled = False  # in this turn of the loop
        self._busy = False  # the thread has a batch
        self._computed = threading.Event()
        self._queue: SimpleQueue[list[WorkerCall] | None] = SimpleQueue()  # at most one batch, and the end
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()  # oldest first; all wait equally long
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._ended = self._loop.create_future()
        # A daemon: a process that is told to end must not wait for a disk that hangs.
        self._thread = threading.Thread(target=self._run, name=f"paywitness-{name}", daemon=True)
        self._thread.start()

    def submit(self, method: Callable[[Any], Any], argument: Any, *, droppable: bool = False) -> asyncio.Future[Any]:
        """Have `method(argument)` done in the thread. `droppable`: not done any more if its caller has given up by
        then."""
        if self._closed:
            raise JournalUnavailable("the journal is closed")
        if len(self._queued) >= self._waiting_max:
            raise JournalUnavailable(f"{self._waiting_max} calls wait for the journal already")
        loop = self._loop
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((loop.time() + self._call_timeout_s, future))
        if self._timer is None:
            self._timer = loop.call_later(self._call_timeout_s, self._fail_overdue)
        self._queued.append((method, argument, future, droppable))
        self._hand_over_soon()
        return future

    async def close(self, timeout_s: float) -> bool:
        """Serve what waits, then end the thread. False where it did not end in time: it may still be writing."""
        if not self._closed:
            self._closed = True
            self._hand_over_soon()
        await asyncio.wait((self._ended,), timeout=timeout_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._ended.done():
            return False
        self._thread.join()
        return True

    def _hand_over_soon(self) -> None:
        """At the end of this turn of the loop, so that all who ask in it share a batch; or when the thread is free."""
        if not self._hand_over_scheduled and not self._busy:
            self._hand_over_scheduled = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._hand_over_scheduled = False
        calls = self._queued[: self._batch_max]
        if not calls:
            self._queue.put(None)  # closed, and nothing is left
            return
        del self._queued[: self._batch_max]
        self._busy = True
        self._computed.clear()
        self._queue.put(calls)
        if self._loop_yield_s:
            self._computed.wait(self._loop_yield_s)

    def _fail_overdue(self) -> None:
        self._timer = None
        now = self._loop.time()
        timed_out = False
        waiting = self._waiting
        while waiting and (waiting[0][1].done() or waiting[0][0] <= now):
            _, future = waiting.popleft()
            if not future.done():
                future.set_exception(JournalUnavailable(f"the journal did not answer in {self._call_timeout_s:g} s"))
                timed_out = True
        if waiting:
            self._timer = self._loop.call_at(waiting[0][0], self._fail_overdue)
        if timed_out and self._on_timeout is not None:
            self._on_timeout()

    def _deliver(self, calls: list[WorkerCall], results: list[Any]) -> None:
        for (_, _, future, _), result in zip(calls, results, strict=True):
            if future.done():
                continue  # its caller has gone, or was told already that this took too long
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        waiting = self._waiting
        while waiting and waiting[0][1].done():
            waiting.popleft()
        self._busy = False
        if self._queued or self._closed:
            self._hand_over_soon()

    def _mark_ended(self) -> None:
        self._closed = True
        if not self._ended.done():
            self._ended.set_result(None)

    # From here on: the thread's side.

    def _run(self) -> None:
        try:
            self._run_batches()
        finally:
            try:
                self._backend.close()
            finally:
                self._call_on_loop(self._mark_ended)

    def _run_batches(self) -> None:
        idle = True
        while True:
            try:
                calls = self._queue.get(timeout=_LOOP_CHECK_S if idle else self._idle_after_s)
            except Empty:
                if self._loop.is_closed():
                    return  # abandoned: nothing more will come, and nobody will close us
                if not idle:
                    self._run_idle()
                idle = True
                continue
            if calls is None:
                return
            results = self._run_batch(calls)
            self._computed.set()
            if not self._call_on_loop(self._deliver, calls, results):
                return  # the loop is gone, and nothing more will come
            idle = False

    def _run_batch(self, calls: list[WorkerCall]) -> list[Any]:
        try:
            return self._backend.run_batch(calls, self._computed.set)
        except Exception as error:  # noqa: BLE001  # whatever it was: nobody must wait for ever, and the thread goes on
            name = type(error).__name__
            _log.error("journal %s failed with %s", self._name, name, exc_info=error, extra=repeats(name))
            return [JournalUnavailable(f"the journal failed: {type(error).__name__}") for _ in calls]

    def _run_idle(self) -> None:
        try:
            self._backend.on_idle()
        except Exception as error:  # noqa: BLE001  # it will rest another time; the thread goes on
            _log.warning(
                "journal %s could not rest: %s", self._name, type(error).__name__, exc_info=error, extra=REPEATS
            )

    def _call_on_loop(self, callback: Callable[..., None], *arguments: Any) -> bool:
        """False where there is no loop to tell any more: it was closed before the journal was."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            return False
        return True
