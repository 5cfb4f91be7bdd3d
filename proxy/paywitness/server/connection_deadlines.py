"""The part of a connection that knows what it waits for, how long, and how to end.

The one rule: while `_timeout_phase` is NOTHING the next step is ours; otherwise it is the caller's, and there is a
moment at which we stop waiting. The server's clock looks at every connection once a tick, so a wait costs no timer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from enum import Enum, auto
from math import inf
from typing import cast

from aiohttp import StreamReader, web

from paywitness.core.problems import Problem
from paywitness.server.errors import BodyIncomplete, RequestRejected
from paywitness.server.limits_and_timeouts import ANSWER_NOT_TAKEN, IDLE
from paywitness.server.registry import ConnectionRegistry
from paywitness.server.reply_encoding import CONNECTION_CLOSE, CONTINUE, reply_bytes

_NEVER_S = 10 * 365 * 86400.0  # aiohttp's own idle timer: ours knows more
_LINGER_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset, not an end


class TimeoutPhase(Enum):
    """What the caller owes us."""

    FIRST_BYTE = auto()
    HEAD = auto()
    NEXT_REQUEST = auto()
    BODY = auto()
    READING_REPLY = auto()  # of the answer
    CLOSING = auto()  # its side too, now that we have said our last
    FLUSHING = auto()  # to take what was written before we closed
    NONE = auto()


AWAITING_REQUEST = (
    TimeoutPhase.FIRST_BYTE,
    TimeoutPhase.HEAD,
    TimeoutPhase.NEXT_REQUEST,
)  # it has no whole request with us


class TimedConnection(web.RequestHandler):
    __slots__ = (
        "_body",
        "_due_mono",
        "_half_closed",
        "_registry",
        "_reply_started",
        "_timeout_phase",
        "_unsent_bytes",
        "_wire",
    )

    def __init__(self, registry: ConnectionRegistry, server: web.Server) -> None:
        limits = registry.limits
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_NEVER_S,
            access_log=cast(logging.Logger, None),  # aiohttp's way to say: none
            max_line_size=limits.line_bytes_max,
            max_field_size=limits.line_bytes_max,
            max_headers=limits.headers_max,
            lingering_time=0.0,  # `_linger_close` lingers
            read_bufsize=limits.piece_bytes_max,
            auto_decompress=False,  # a compressed body is fingerprinted and sent as it came
        )
        self._registry = registry
        self._wire: asyncio.Transport | None = None
        self._timeout_phase = TimeoutPhase.FIRST_BYTE
        self._due_mono = inf
        self._body: StreamReader | None = None  # of the latest request
        self._half_closed = False
        self._reply_started = False  # a byte of the current request's final answer was written
        self._unsent_bytes = 0

    # -- what the exchange asks

    def write(self, data: bytes) -> None:
        """Raises ConnectionResetError if the caller has left."""
        wire = self._wire
        if wire is None or wire.is_closing():
            raise ConnectionResetError
        self._reply_started = True
        wire.write(data)

    def send_continue(self) -> None:
        if self._wire is not None and not self._wire.is_closing():
            self._wire.write(CONTINUE)

    async def drain_writes(self) -> None:
        """Wait until the caller has taken most of what was written. Raises ConnectionError if it leaves instead."""
        if not self.writing_paused or self._wire is None:
            return
        self._start_timeout(TimeoutPhase.READING_REPLY, self._registry.limits.reply_idle_s)
        self._unsent_bytes = self._wire.get_write_buffer_size()
        try:
            await self._drain_helper()
        finally:
            self._clear_timeout()

    async def read_body(self, body: StreamReader, piece_bytes_max: int, within_s: float) -> bytes:
        """Wait for the next piece of the body. Raises BodyIncomplete if it does not come in time."""
        self._start_timeout(TimeoutPhase.BODY, within_s)
        try:
            return await body.read(piece_bytes_max)
        finally:
            self._clear_timeout()

    # -- what the server asks

    @property
    def is_idle(self) -> bool:
        return self._timeout_phase in (TimeoutPhase.FIRST_BYTE, TimeoutPhase.NEXT_REQUEST)

    @property
    def is_ending(self) -> bool:
        """Nobody waits for anything but its end."""
        return self._timeout_phase in (TimeoutPhase.CLOSING, TimeoutPhase.FLUSHING)

    @property
    def is_served(self) -> bool:
        """It has all of its last answer, as far as we can know."""
        return self._wire is None or (self.is_ending and not self._wire.get_write_buffer_size())

    @property
    def file_descriptor(self) -> int:
        return cast(int, self._wire.get_extra_info("socket").fileno()) if self._wire is not None else -1

    @property
    def loop_task(self) -> asyncio.Task[None] | None:
        """The task in which aiohttp takes one request after the other."""
        return self._task_handler

    def reset(self) -> None:
        """End it so that nobody can take what was written for a whole answer."""
        if self._wire is not None:
            self._wire.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
            self._wire.abort()

    def abort(self) -> None:
        """End it now. One that is served keeps what it was given."""
        if self._wire is not None and self.is_served:
            self._wire.abort()
        else:
            self.reset()

    def check_timeouts(self, now: float) -> None:
        """Stop waiting for what is overdue."""
        wire = self._wire
        if wire is None:
            return
        if wire.is_closing() and self._timeout_phase is not TimeoutPhase.FLUSHING:
            self._start_timeout(TimeoutPhase.FLUSHING, self._registry.limits.reply_idle_s)
        if self.is_ending:
            self._registry.changed.set()  # its last bytes may have been taken
        if now >= self._due_mono:
            self._time_out(wire)

    # -- within

    def _start_timeout(self, phase: TimeoutPhase, seconds: float) -> None:
        self._timeout_phase = phase
        self._due_mono = self._loop.time() + seconds

    def _clear_timeout(self) -> None:
        self._timeout_phase = TimeoutPhase.NONE
        self._due_mono = inf

    def _time_out(self, wire: asyncio.Transport) -> None:
        match self._timeout_phase:
            case TimeoutPhase.HEAD:
                limit = self._registry.limits.head_s
                self._reject(RequestRejected(Problem.TOO_SLOW, f"The head was not whole within {limit:g} s."))
            case TimeoutPhase.FIRST_BYTE | TimeoutPhase.NEXT_REQUEST:
                # Silently: an answer that nobody asked for could be taken for that to the next request.
                self._registry.counters.refused[IDLE] += 1
                self.force_close()
            case TimeoutPhase.BODY:
                self._time_out_body()
            case TimeoutPhase.READING_REPLY:
                self._time_out_reply(wire)
            case TimeoutPhase.CLOSING:
                wire.close()
            case TimeoutPhase.FLUSHING:
                self.reset()

    def _time_out_body(self) -> None:
        self._due_mono = inf
        limits = self._registry.limits
        detail = f"The body may take {limits.body_s:g} s, and {limits.body_idle_s:g} s between two pieces."
        if self._body is not None:
            self._body.set_exception(BodyIncomplete(Problem.TOO_SLOW, detail))

    def _time_out_reply(self, wire: asyncio.Transport) -> None:
        unsent_bytes = wire.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._unsent_bytes = unsent_bytes
            self._start_timeout(TimeoutPhase.READING_REPLY, self._registry.limits.reply_idle_s)
            return
        self._registry.counters.broken[ANSWER_NOT_TAKEN] += 1
        self.reset()

    def _reject(self, rejection: RequestRejected) -> None:
        self._registry.counters.refused[rejection.kind] += 1
        if self._wire is not None and not self._wire.is_closing():
            self._wire.write(
                b"".join(reply_bytes(rejection.reply, "", CONNECTION_CLOSE, self._registry.date_line.now()))
            )
        self._linger_close()

    def _linger_close(self) -> None:
        """Say that we have said our last, and wait a moment for the caller to do the same.

        What it sends meanwhile is thrown away. Closing at once would answer it with a reset, and that would take our
        last words out of its hands.
        """
        self._force_close = True  # aiohttp serves no more on it, and leaves the closing to us
        if self._waiter is not None:
            self._waiter.cancel()
        wire = self._wire
        if wire is None or wire.is_closing():
            return
        self._start_timeout(TimeoutPhase.CLOSING, self._registry.limits.linger_s)
        if self._half_closed or not wire.can_write_eof():  # TLS has its own goodbye, and waits for the caller's
            wire.close()
            return
        wire.write_eof()
        self._resume_transport_reading()
        self._registry.changed.set()
