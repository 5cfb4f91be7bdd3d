"""Virtual time: an event loop on which a day passes in no time, and whose processes can be stopped at any await.

Time moves only when nothing else is left to do, straight to the next timer. There are no sockets and no threads. What
runs belongs to a `Life`, a process of the world, by the context it was started in: a paused one is not run until it is
woken, and a dead one never again. That is a true kill -9: no `finally`, no `except`, not one more line of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

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
        self._held: list[asyncio.Handle] = []

    def hold(self, handle: asyncio.Handle) -> None:
        if self.alive:
            self._held.append(handle)

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


class SimLoop(asyncio.BaseEventLoop):
    """asyncio's own loop over virtual time."""

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self.now_mono = 1_000.0
        self.faults: list[str] = []  # what came out of callbacks and forgotten tasks: a fault of ours
        self.set_exception_handler(self._note_fault)
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = 0
        self._cancelled = 0

    def time(self) -> float:
        return self.now_mono

    def start(self, coroutine: Coroutine[Any, Any, Result], life: Life | None = None) -> asyncio.Task[Result]:
        """A task of the world, or of a process."""
        return self.create_task(coroutine, context=life.context if life is not None else WORLD)

    def after(self, delay_s: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Something that the world does later, whatever becomes of whoever asked for it."""
        return self.call_later(delay_s, callback, *args, context=WORLD)

    def shift_timers(self, life: Life, by_s: float) -> None:
        """A machine that was suspended: its monotonic time stood still, and so did its timers."""
        for place, (when, number, timer) in enumerate(self._timers):
            if timer._context.get(LIFE) is life:  # type: ignore[attr-defined]
                self._timers[place] = (when + by_s, number, timer)
        heapq.heapify(self._timers)

    def run_first(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def run_in_executor(self, *args: Any) -> Any:  # type: ignore[override]
        raise AssertionError("a thread in the simulation: its time is not ours")

    # What asyncio calls. Its own versions check for debugging and other threads, which takes half of their time.

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_mono + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._number += 1  # of two at the same time the earlier asked for is the first
        heapq.heappush(self._timers, (when, self._number, timer))
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
                self._cancelled -= 1
            if not timers:
                raise Deadlock(self._who_waits())
            self.now_mono = max(self.now_mono, timers[0][0])
        now = self.now_mono
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False  # type: ignore[attr-defined]
            if timer._cancelled:
                self._cancelled -= 1
            else:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            life = handle._context.get(LIFE)  # type: ignore[attr-defined]
            if life is None or life.awake:
                handle._run()
            else:
                life.hold(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled += 1
        if self._cancelled > _CANCELLED_MAX and self._cancelled * 2 > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if not entry[2]._cancelled]
            heapq.heapify(self._timers)
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

    def __init__(self, loop: SimLoop, boot_offset_s: float = 0.0) -> None:
        self._loop = loop
        self._boot_offset_s = boot_offset_s
        self.ahead_s = 0.0
        self.suspended_s = 0.0

    def now(self) -> float:
        return EPOCH_AT + self._loop.now_mono + self.ahead_s

    def mono(self) -> float:
        return self._loop.now_mono - self.suspended_s

    def boot(self) -> float:
        return self._loop.now_mono + self._boot_offset_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
