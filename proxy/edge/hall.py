"""What all connections of one server share: bounds, counters, who is connected, who is being served."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxy.edge.answers import DateLine
from proxy.edge.limits import EdgeCounters, EdgeLimits


class Guest(Protocol):
    """A connection, as the server sees it."""

    @property
    def is_idle(self) -> bool: ...

    @property
    def is_served(self) -> bool: ...

    @property
    def file_number(self) -> int: ...

    @property
    def loop_task(self) -> asyncio.Task[Any] | None: ...

    def force_close(self) -> None: ...

    def cut(self) -> None: ...

    def look_at_the_clock(self, now: float) -> None: ...


@dataclass(slots=True)
class Hall:
    limits: EdgeLimits
    date_line: DateLine
    counters: EdgeCounters = field(default_factory=EdgeCounters)
    connections: set[Guest] = field(default_factory=set)
    serving: set[asyncio.Task[object]] = field(default_factory=set)  # also for callers that have left
    draining: bool = False
    closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # a connection has ended, or is about to

    def enter(self, connection: Guest) -> bool:
        """Whether there is room for one more."""
        if self.closed or len(self.connections) >= self.limits.connections_max:
            return False
        self.connections.add(connection)
        self.counters.connections_open = len(self.connections)
        return True

    def leave(self, connection: Guest) -> None:
        self.connections.discard(connection)
        self.counters.connections_open = len(self.connections)
        self.changed.set()

    async def all_served(self) -> None:
        """Wait until nobody is owed an answer, or a part of one."""
        while not all(connection.is_served for connection in self.connections):
            self.changed.clear()
            await self.changed.wait()
