"""Bytes between two connections, untouched: for hosts that no policy names, where the configuration lets them pass.

Nothing is read, counted but by its connections, or kept. A side that takes nothing stops the other one's reading.
"""

from __future__ import annotations

import asyncio
from typing import cast

_IDLE_S = 600.0  # without a byte either way
_QUIET_S = 1.0  # after which a tunnel is taken to carry nothing that a drain would cut


class _End(asyncio.Protocol):
    """One end of a tunnel."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self.wire: asyncio.Transport | None = None
        self.other: _End | None = None
        self.said_all = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._tunnel.moved()
        if self.other is not None and self.other.wire is not None:
            self.other.wire.write(data)

    def eof_received(self) -> bool:
        self.said_all = True
        other = self.other
        if other is None or other.said_all:
            self._tunnel.end()
        elif other.wire is not None and not other.wire.is_closing():
            other.wire.write_eof()
        return True  # the other way may still carry

    def pause_writing(self) -> None:
        if self.other is not None and self.other.wire is not None:
            self.other.wire.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.wire is not None:
            self.other.wire.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.wire = None
        self._tunnel.end()


class Tunnel:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._moved_mono = loop.time()
        self.near, self.far = _End(self), _End(self)
        self.near.other, self.far.other = self.far, self.near
        self.ended: asyncio.Future[None] = loop.create_future()

    def moved(self) -> None:
        self._moved_mono = self._loop.time()

    @property
    def is_quiet(self) -> bool:
        return self._loop.time() - self._moved_mono > _QUIET_S

    @property
    def is_forgotten(self) -> bool:
        return self._loop.time() - self._moved_mono > _IDLE_S

    def end(self) -> None:
        """What was written still leaves; a side that has gone takes the other with it."""
        for end in (self.near, self.far):
            if end.wire is not None:
                end.wire.close()
        if not self.ended.done() and self.near.wire is None and self.far.wire is None:
            self.ended.set_result(None)

    def cut(self) -> None:
        for end in (self.near, self.far):
            if end.wire is not None:
                end.wire.abort()
