"""Virtual time: an event loop on which a day passes in no time, and whose processes can be stopped at any await.

Time moves only when nothing else is left to do, straight to the next timer. There are no sockets and no threads. What
runs belongs to a `Life`, a process of the world, by the context it was started in: a paused one is not run until it is
woken, and a dead one never again. That is a true kill -9: no `finally`, no `except`, not one more line of it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

Result = TypeVar("Result")

Ready = tuple[Callable[..., object], tuple[Any, ...], contextvars.Context | None]  # what, with what, whose
LIFE: contextvars.ContextVar[Life] = contextvars.ContextVar("life")
WORLD = contextvars.Context()  # what belongs to nobody's process: the network, the provider, the store, the callers
EPOCH_AT = 1_750_000_000.0  # what the wall clock shows when the world begins
_CANCELLED_MAX = 200


class Deadlock(Exception):
    """Nothing is ready and no timer runs: somebody waits for ever."""


class Life:
    """One process, from its start to its kill."""

    __slots__ = ("_held", "alive", "awake", "context", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.awake = True  # of a dead one False as well: one look tells whether it may run
        self.context = contextvars.Context()
        self.context.run(LIFE.set, self)
        self._held: list[Ready | Handle] = []

    def hold(self, item: Ready | Handle) -> None:
        if self.alive:
            self._held.append(item)

    def kill(self) -> None:
        self.alive = self.awake = False
        self._held.clear()

    def pause(self) -> None:
        self.awake = False

    def wake(self, loop: SimLoop) -> None:
        if self.alive:
            self.awake = True
            loop.run_first(self._held)
            self._held = []


class Handle:
    """What is to be run once, unless it is cancelled. asyncio's own does more for debugging than for running."""

    __slots__ = ("args", "callback", "context", "gone", "loop", "waits")

    def __init__(
        self, loop: SimLoop, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self.loop = loop
        self.callback = callback
        self.args = args
        self.context = context  # None: the world's
        self.gone = False
        self.waits = False  # for its time

    def cancel(self) -> None:
        if not self.gone:
            self.gone = True
            if self.waits:
                self.loop.one_cancelled()

    def cancelled(self) -> bool:
        return self.gone


class SimLoop(asyncio.BaseEventLoop):
    """asyncio's own loop over virtual time. What tasks and futures ask of it is written anew: it needs neither threads
    nor sockets nor debugging, and half of a world's time would go there."""

    def __init__(self) -> None:
        super().__init__()
        self.now_mono = 1_000.0
        self.faults: list[str] = []  # what came out of callbacks and forgotten tasks: a fault of ours
        self.set_exception_handler(self._note_fault)
        self._due: deque[Ready | Handle] = deque()
        self._timers: list[tuple[float, int, Ready | Handle]] = []
        self._number = 0
        self._cancelled = 0
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]

    # asked by every future and task: what answers no in the least time
    get_debug = staticmethod(bool)

    def time(self) -> float:
        return self.now_mono

    def start(self, coroutine: Coroutine[Any, Any, Result], life: Life | None = None) -> asyncio.Task[Result]:
        """A task of the world, or of a process."""
        context = life.context if life is not None else WORLD
        return asyncio.Task(coroutine, loop=self, name="simulated", context=context)

    def after(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Something that the world does later, whatever becomes of whoever asked for it."""
        self._number += 1  # of two at the same time the earlier asked for is the first
        heappush(self._timers, (self.now_mono + delay_s, self._number, (callback, args, None)))

    def unless_cancelled(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Likewise."""
        handle = Handle(self, callback, args, None)
        handle.waits = True
        self._number += 1
        heappush(self._timers, (self.now_mono + delay_s, self._number, handle))
        return handle

    def shift_timers(self, life: Life, by_s: float) -> None:
        """A machine that was suspended: its monotonic time stood still, and so did its timers."""
        for place, (when, number, timer) in enumerate(self._timers):
            context = timer.context if isinstance(timer, Handle) else timer[2]
            if context is not None and context.get(LIFE) is life:
                self._timers[place] = (when + by_s, number, timer)
        heapify(self._timers)

    def run_first(self, items: list[Ready | Handle]) -> None:
        self._due.extend(items)

    def run_in_executor(self, *args: Any) -> Any:  # type: ignore[override]
        raise AssertionError("a thread in the simulation: its time is not ours")

    # What asyncio calls.

    def create_task(  # type: ignore[override]
        self,
        coroutine: Coroutine[Any, Any, Result],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Result]:
        return asyncio.Task(coroutine, loop=self, name=name or "unnamed", context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle | None:
        if context is not None:  # a task or a future asks, who want no handle
            self._due.append((callback, args, context))
            return None
        handle = Handle(self, callback, args, contextvars.copy_context())
        self._due.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self.call_at(self.now_mono + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(self, callback, args, context if context is not None else contextvars.copy_context())
        handle.waits = True
        self._number += 1
        heappush(self._timers, (when, self._number, handle))
        return handle

    def _run_once(self) -> None:  # noqa: C901  # in one piece: nothing else is done so often
        """asyncio calls it for ever; here one call plays on until the loop is stopped. What is ready runs in its order;
        when nothing is left, time moves to the next timer."""
        due, timers, take = self._due, self._timers, self._due.popleft
        while not self._stopping:  # type: ignore[attr-defined]
            if due:
                item = take()
            elif timers:
                when, _, item = heappop(timers)
                if isinstance(item, Handle):
                    item.waits = False
                    if item.gone:
                        self._cancelled -= 1
                        continue
                if when > self.now_mono:
                    self.now_mono = when
            else:
                raise Deadlock(self._who_waits())
            if isinstance(item, Handle):
                if item.gone:
                    continue
                callback, args, context = item.callback, item.args, item.context
            else:
                callback, args, context = item
            try:
                if context is None:
                    callback(*args)
                else:
                    life = context.get(LIFE)
                    if life is None or life.awake:
                        context.run(callback, *args)
                    else:
                        life.hold(item)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  # as asyncio does
                self.call_exception_handler({"message": f"in {callback!r}", "exception": error})

    def one_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > _CANCELLED_MAX and self._cancelled * 2 > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if isinstance(entry[2], tuple) or not entry[2].gone]
            heapify(self._timers)
            self._cancelled = 0

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""

    def _process_events(self, events: object) -> None:
        """There are no sockets."""

    def _who_waits(self) -> str:
        return "; ".join(sorted(f"{task.get_name()} {task.get_coro()!r}" for task in asyncio.all_tasks(self)))

    def _note_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "was destroyed" in context["message"]:
            return  # of a process that was killed
        error = context.get("exception")
        self.faults.append(f"{context['message']}: {type(error).__name__ if error else ''} {error or ''}")


class SimClock:
    """The clocks of one process. `now` may be wrong; `mono` stands still while its machine is suspended; `boot` goes on
    through everything."""

    def __init__(self, loop: SimLoop, boot_offset_s: float = 0.0, host: str = "") -> None:
        self._loop = loop
        self._boot_offset_s = boot_offset_s
        self.host = host
        self.ahead_s = 0.0
        self.suspended_s = 0.0

    def now(self) -> float:
        return EPOCH_AT + self._loop.now_mono + self.ahead_s

    def mono(self) -> float:
        return self._loop.now_mono - self.suspended_s

    def boot(self) -> float:
        return self._loop.now_mono + self._boot_offset_s

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        return asyncio.sleep(seconds)
