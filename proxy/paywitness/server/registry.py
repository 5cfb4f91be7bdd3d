"""What all connections of one server share: limits, counters, who is connected, who is being served."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol

from paywitness.server.limits_and_timeouts import ServerLimits
from paywitness.server.reply_encoding import DateLine
from paywitness.tasks import Tasks
from paywitness.telemetry.gauges import ServerCounters


class TrackedConnection(Protocol):
    """A connection, as the server sees it."""

    @property
    def is_idle(self) -> bool: ...

    @property
    def is_served(self) -> bool: ...

    @property
    def file_descriptor(self) -> int: ...

    @property
    def loop_task(self) -> asyncio.Task[Any] | None: ...

    def force_close(self) -> None: ...

    def abort(self) -> None: ...

    def check_timeouts(self, now: float) -> None: ...


@dataclass(slots=True)
class ConnectionRegistry:
    limits: ServerLimits
    date_line: DateLine
    counters: ServerCounters = field(default_factory=ServerCounters)
    connections: set[TrackedConnection] = field(default_factory=set)
    tasks: Tasks = field(default_factory=Tasks)  # one for each connection; it may outlast its caller
    draining: bool = False
    closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # a connection has ended, or is about to

    def try_register(self, connection: TrackedConnection) -> bool:
        """Whether there is room for one more."""
        if self.closed or len(self.connections) >= self.limits.connections_max:
            return False
        self.connections.add(connection)
        self.counters.connections_open = len(self.connections)
        return True

    def unregister(self, connection: TrackedConnection) -> None:
        self.connections.discard(connection)
        self.counters.connections_open = len(self.connections)
        self.changed.set()

    async def wait_all_served(self) -> None:
        """Wait until nobody is owed an answer, or a part of one."""
        while not all(connection.is_served for connection in self.connections):
            self.changed.clear()
            await self.changed.wait()
