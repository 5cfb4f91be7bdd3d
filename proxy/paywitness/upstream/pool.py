"""How many connections an origin may have, which of them is used next, and who waits for one.

A lane is one origin's share: busy connections (and dials under way) plus idle ones never exceed the bound. Idle ones
are used last in, first out, so that the fewest stay warm and the rest grow stale in peace. Waiting is first come, first
served: whatever is given back goes straight to the one who has waited longest, never past him. A connection that only
listens for a late answer is none of the pool's any more: `late_responses` has a bound of its own.

Guarantee: everyone who got a connection or the right to dial gives it back exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from enum import Enum

from paywitness.core.record import record
from paywitness.upstream.connection import UpstreamConnection
from paywitness.upstream.request import Origin


@record
class UpstreamLimits:
    """What is kept finite towards a provider: connections, waiting calls, a connection's age, a response's size."""

    connections_per_origin: int = 256
    waiting_per_origin: int = 1024
    idle_s: float = 4.0  # below the 5 s of common servers: whoever closes first must be us
    age_s: float = 300.0  # so that a change of DNS is noticed
    calls_per_connection: int = 1000  # nginx closes after 1000
    response_bytes_max: int = 4 * 1024 * 1024


class PoolGrant(Enum):
    """What one gets who does not get a connection."""

    DIAL = "dial"  # the right to open one
    NONE = "none"  # nothing became free in time, or too many are waiting already


class OriginPool:
    """The connections to one origin."""

    __slots__ = ("_bounds", "_busy", "_closed", "_idle", "_waiting")

    def __init__(self, bounds: UpstreamLimits) -> None:
        self._bounds = bounds
        self._busy = 0
        self._idle: list[UpstreamConnection] = []
        self._waiting: deque[tuple[asyncio.Future[UpstreamConnection | PoolGrant], bool]] = deque()
        self._closed = False

    def acquire_idle(self) -> UpstreamConnection | None:
        """The idle connection that was used last, if one is still good. At once, or not at all."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.open:
                continue
            if connection.stale:
                connection.close()
                continue
            self._busy += 1
            return connection
        return None

    async def acquire(self, *, reuse: bool, timeout_s: float) -> UpstreamConnection | PoolGrant:
        """An idle connection (where `reuse` allows), or the right to dial one, or the news that there is neither."""
        connection = self.acquire_idle() if reuse else None
        if connection is not None:
            return connection
        if self._make_room():
            self._busy += 1
            return PoolGrant.DIAL
        if self._closed or len(self._waiting) >= self._bounds.waiting_per_origin or timeout_s <= 0:
            return PoolGrant.NONE
        return await self._wait(reuse, timeout_s)

    def release(self, connection: UpstreamConnection | None) -> None:
        """End one's turn. An open connection is the next one's; None, or a closed one, leaves the right to dial."""
        if connection is not None and (self._closed or not connection.open):
            connection.close()
            connection = None
        while self._waiting:
            waiter, reuse = self._waiting.popleft()
            if waiter.done():
                continue
            if connection is not None and not reuse:
                connection.close()
                connection = None
            waiter.set_result(PoolGrant.DIAL if connection is None else connection)
            return  # the turn passed on: as many are busy as before
        self._busy -= 1
        if connection is not None:
            self._idle.append(connection)

    def close(self) -> None:
        """Close what is idle and send the waiting away. What is busy closes when it is given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        for waiter, _ in self._waiting:
            if not waiter.done():
                waiter.set_result(PoolGrant.NONE)
        self._waiting.clear()

    def _make_room(self) -> bool:
        """Whether one more may be opened. The oldest idle connection gives way where it must."""
        if self._closed or self._busy >= self._bounds.connections_per_origin:
            return False
        if self._busy + len(self._idle) >= self._bounds.connections_per_origin:
            self._idle.pop(0).close()
        return True

    async def _wait(self, reuse: bool, timeout_s: float) -> UpstreamConnection | PoolGrant:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[UpstreamConnection | PoolGrant] = loop.create_future()
        entry = (waiter, reuse)
        self._waiting.append(entry)
        timer = loop.call_later(timeout_s, _give_up, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            # The turn may have come in the very moment of the cancellation: then it must go on to the next.
            if waiter.done() and not waiter.cancelled():
                grant = waiter.result()
                if grant is not PoolGrant.NONE:
                    self.release(grant if isinstance(grant, UpstreamConnection) else None)
            raise
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):  # served, and so no longer in the queue
                self._waiting.remove(entry)


class Pool:
    """The lanes of all origins. Origins come from policies, so there are as many as those name."""

    __slots__ = ("_bounds", "_closed", "_origin_pools")

    def __init__(self, bounds: UpstreamLimits) -> None:
        self._bounds = bounds
        self._origin_pools: dict[Origin, OriginPool] = {}
        self._closed = False

    def origin_pool(self, origin: Origin) -> OriginPool:
        origin_pool = self._origin_pools.get(origin)
        if origin_pool is None:
            origin_pool = self._origin_pools[origin] = OriginPool(self._bounds)
            if self._closed:
                origin_pool.close()
        return origin_pool

    def close(self) -> None:
        self._closed = True
        for origin_pool in self._origin_pools.values():
            origin_pool.close()


def _give_up(waiter: asyncio.Future[UpstreamConnection | PoolGrant]) -> None:
    if not waiter.done():
        waiter.set_result(PoolGrant.NONE)
