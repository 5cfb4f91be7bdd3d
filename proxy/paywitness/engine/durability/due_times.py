"""Due times: when each background loop next has something to do. A loop sleeps until then; it does not poll.

    turn -> read the due times -> sleep until the earliest, or until something wakes the loop -> turn

Three sources wake a loop. This sidecar's own writes do it at once. The heartbeat of `ages` reads the due times together
with the clock. So within a heartbeat a loop learns of another sidecar's writes, of a clock that was set, of a machine
that was suspended, and of a store that came back with older due times. And the reading after a turn gives the next due
time after that turn.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

from paywitness.core.operation import Operation
from paywitness.journal.base import Journal, OperationChange, StoreClock

# Without a reading of the journal. It is longer than a heartbeat, so that an idle loop reads nothing itself.
LONGEST_SLEEP_S = 3.0
# If a store's clock runs at half its pace, a loop would otherwise wake at ever shorter intervals.
_SHORTEST_SLEEP_S = 0.01


class Wakeup:
    """Wakes one loop: at once, or at the earliest of the times that were set."""

    def __init__(self, rest_s: float = LONGEST_SLEEP_S) -> None:
        """`rest_s`: how long the loop rests after a turn that could do nothing about a due row."""
        self._event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._at_mono = math.inf
        self._rest_s = rest_s
        self._rests_until_mono = -math.inf

    def set(self) -> None:
        self._event.set()

    def set_within(self, seconds: float) -> None:
        """Wake the loop in so many seconds, if it does not wake earlier."""
        if seconds <= 0.0:
            self._event.set()
            return
        loop = asyncio.get_running_loop()
        at_mono = loop.time() + seconds
        if at_mono >= self._at_mono:
            return
        self._cancel_timer()
        self._at_mono, self._timer = at_mono, loop.call_at(at_mono, self._event.set)

    def set_as_read(self, due_in_s: float) -> None:
        """Set the due time that the journal gave. A row that is still due after a turn that did nothing can wait."""
        if due_in_s <= 0.0:
            due_in_s = self._rests_until_mono - asyncio.get_running_loop().time()
        self.set_within(due_in_s if due_in_s <= 0.0 else max(due_in_s, _SHORTEST_SLEEP_S))

    def end_turn(self, *, did_something: bool) -> None:
        rest_s = -math.inf if did_something else self._rest_s
        self._rests_until_mono = asyncio.get_running_loop().time() + rest_s

    async def wait(self, longest_s: float) -> bool:
        """Sleep until it is time; False if nothing woke the loop for `longest_s`."""
        # Not wait_for: until Python 3.12 it forgets a cancellation that comes together with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._event.wait()
        if not self._event.is_set():
            return False
        self._event.clear()
        self._cancel_timer()
        return True

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at_mono, self._timer = math.inf, None


class DueTimes:
    """The wakeups of all loops that take due rows of the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._read_mono = -math.inf
        self._announced_seq: int | None = None
        self.operations = Wakeup()
        self.leases = Wakeup(rest_s=1.0)  # `ages` may count a lease as over a little later than the journal does
        self.webhook_events = Wakeup(rest_s=1.0)  # another sidecar has taken the due event
        self.ledger_rows = Wakeup(rest_s=5.0)  # also for the rest of a batch, because each payment needs an inquiry
        self.announcements = Wakeup()
        self.providers_held_back: frozenset[str] = frozenset()  # the resolver takes no operations of these now

    def update(self, stored: StoreClock) -> None:
        """Apply the due times that the journal has just given."""
        due = stored.next_due
        self._read_mono = asyncio.get_running_loop().time()
        operations = [at for provider, at in due.operations.items() if provider not in self.providers_held_back]
        self.operations.set_as_read(min(operations, default=math.inf) - stored.at)
        self.leases.set_as_read(due.lease - stored.at)
        self.webhook_events.set_as_read(due.webhook_event - stored.at)
        self.ledger_rows.set_as_read(due.ledger_row - stored.at)
        if due.announced_seq != self._announced_seq:
            self._announced_seq = due.announced_seq
            self.announcements.set()

    def note_written(self, change: OperationChange, written: Operation) -> None:
        """This sidecar has written a change."""
        if written.due_at is not None and written.lease is None:
            self.operations.set_within(written.due_at - written.updated_at)
        if change.announcement is not None:
            self.announcements.set()

    async def wait(self, wakeup: Wakeup, *, did_something: bool) -> None:
        """Sleep between two turns of a loop until there is something to do. Raises JournalUnavailable."""
        wakeup.end_turn(did_something=did_something)
        self.update(await self._journal.read_clock())
        while not await wakeup.wait(LONGEST_SLEEP_S):
            if asyncio.get_running_loop().time() - self._read_mono >= LONGEST_SLEEP_S:
                self.update(await self._journal.read_clock())
