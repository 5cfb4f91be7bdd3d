"""The part of a connection that knows what it waits for, how long, and how to end.

The one rule: while `_waits_for` is NOTHING the next step is ours; otherwise it is the caller's, and there is a moment
at which we stop waiting. The server's clock looks at every connection once a tick, so a wait costs no timer.
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

from proxy.core.reply import Problem
from proxy.edge.answers import CLOSES, CONTINUE, reply_bytes
from proxy.edge.hall import Hall
from proxy.edge.limits import ANSWER_NOT_TAKEN, IDLE
from proxy.edge.refused import BodyLost, Refused

_NEVER_S = 10 * 365 * 86400.0  # aiohttp's own idle timer: ours knows more
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset, not an end


class Waits(Enum):
    """What the caller owes us."""

    FIRST_BYTE = auto()
    HEAD = auto()
    NEXT_REQUEST = auto()
    BODY = auto()
    TAKING = auto()  # of the answer
    CLOSING = auto()  # its side too, now that we have said our last
    FLUSHING = auto()  # to take what was written before we closed
    NOTHING = auto()


ASKING = (Waits.FIRST_BYTE, Waits.HEAD, Waits.NEXT_REQUEST)  # it has no whole request with us


class PatientConnection(web.RequestHandler):
    __slots__ = ("_answering", "_body", "_due_mono", "_half_closed", "_hall", "_untaken_bytes", "_waits_for", "_wire")

    def __init__(self, hall: Hall, server: web.Server) -> None:
        limits = hall.limits
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_NEVER_S,
            access_log=cast(logging.Logger, None),  # aiohttp's way to say: none
            max_line_size=limits.line_bytes_max,
            max_field_size=limits.line_bytes_max,
            max_headers=limits.headers_max,
            lingering_time=0.0,  # `_part` lingers
            read_bufsize=limits.piece_bytes_max,
            auto_decompress=False,  # a compressed body is fingerprinted and sent as it came
        )
        self._hall = hall
        self._wire: asyncio.Transport | None = None
        self._waits_for = Waits.FIRST_BYTE
        self._due_mono = inf
        self._body: StreamReader | None = None  # of the latest request
        self._half_closed = False
        self._answering = False  # a byte of the current request's final answer was written
        self._untaken_bytes = 0

    # -- what the exchange asks

    def write(self, data: bytes) -> None:
        """Raises ConnectionResetError if the caller has left."""
        wire = self._wire
        if wire is None or wire.is_closing():
            raise ConnectionResetError
        self._answering = True
        wire.write(data)

    def say_continue(self) -> None:
        if self._wire is not None and not self._wire.is_closing():
            self._wire.write(CONTINUE)

    async def taken(self) -> None:
        """Wait until the caller has taken most of what was written. Raises ConnectionError if it leaves instead."""
        if not self.writing_paused or self._wire is None:
            return
        self._wait_for(Waits.TAKING, self._hall.limits.answer_idle_s)
        self._untaken_bytes = self._wire.get_write_buffer_size()
        try:
            await self._drain_helper()
        finally:
            self._wait_for_nothing()

    async def more_of(self, body: StreamReader, piece_bytes_max: int, within_s: float) -> bytes:
        """Wait for the next piece of the body. Raises BodyLost if it does not come in time."""
        self._wait_for(Waits.BODY, within_s)
        try:
            return await body.read(piece_bytes_max)
        finally:
            self._wait_for_nothing()

    # -- what the server asks

    @property
    def is_idle(self) -> bool:
        return self._waits_for in (Waits.FIRST_BYTE, Waits.NEXT_REQUEST)

    @property
    def is_over(self) -> bool:
        """Nobody waits for anything but its end."""
        return self._waits_for in (Waits.CLOSING, Waits.FLUSHING)

    @property
    def is_served(self) -> bool:
        """It has all of its last answer, as far as we can know."""
        return self._wire is None or (self.is_over and not self._wire.get_write_buffer_size())

    @property
    def file_number(self) -> int:
        return cast(int, self._wire.get_extra_info("socket").fileno()) if self._wire is not None else -1

    @property
    def loop_task(self) -> asyncio.Task[None] | None:
        """The task in which aiohttp takes one request after the other."""
        return self._task_handler

    def break_off(self) -> None:
        """End it so that nobody can take what was written for a whole answer."""
        if self._wire is not None:
            self._wire.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._wire.abort()

    def cut(self) -> None:
        """End it now. One that is served keeps what it was given."""
        if self._wire is not None and self.is_served:
            self._wire.abort()
        else:
            self.break_off()

    def look_at_the_clock(self, now: float) -> None:
        """Stop waiting for what is overdue."""
        wire = self._wire
        if wire is None:
            return
        if wire.is_closing() and self._waits_for is not Waits.FLUSHING:
            self._wait_for(Waits.FLUSHING, self._hall.limits.answer_idle_s)
        if self.is_over:
            self._hall.changed.set()  # its last bytes may have been taken
        if now >= self._due_mono:
            self._stop_waiting(wire)

    # -- within

    def _wait_for(self, what: Waits, seconds: float) -> None:
        self._waits_for = what
        self._due_mono = self._loop.time() + seconds

    def _wait_for_nothing(self) -> None:
        self._waits_for = Waits.NOTHING
        self._due_mono = inf

    def _stop_waiting(self, wire: asyncio.Transport) -> None:
        match self._waits_for:
            case Waits.HEAD:
                limit = self._hall.limits.head_s
                self._say_and_part(Refused(Problem.TOO_SLOW, f"The head was not whole within {limit:g} s."))
            case Waits.FIRST_BYTE | Waits.NEXT_REQUEST:
                # Silently: an answer that nobody asked for could be taken for that to the next request.
                self._hall.counters.refused[IDLE] += 1
                self.force_close()
            case Waits.BODY:
                self._give_up_body()
            case Waits.TAKING:
                self._give_up_taking(wire)
            case Waits.CLOSING:
                wire.close()
            case Waits.FLUSHING:
                self.break_off()

    def _give_up_body(self) -> None:
        self._due_mono = inf
        limits = self._hall.limits
        detail = f"The body may take {limits.body_s:g} s, and {limits.body_idle_s:g} s between two pieces."
        if self._body is not None:
            self._body.set_exception(BodyLost(Problem.TOO_SLOW, detail))

    def _give_up_taking(self, wire: asyncio.Transport) -> None:
        untaken_bytes = wire.get_write_buffer_size()
        if untaken_bytes < self._untaken_bytes:
            self._untaken_bytes = untaken_bytes
            self._wait_for(Waits.TAKING, self._hall.limits.answer_idle_s)
            return
        self._hall.counters.broken[ANSWER_NOT_TAKEN] += 1
        self.break_off()

    def _say_and_part(self, refusal: Refused) -> None:
        self._hall.counters.refused[refusal.kind] += 1
        if self._wire is not None and not self._wire.is_closing():
            self._wire.write(b"".join(reply_bytes(refusal.reply, "", CLOSES, self._hall.date_line.now())))
        self._part()

    def _part(self) -> None:
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
        self._wait_for(Waits.CLOSING, self._hall.limits.linger_s)
        if self._half_closed or not wire.can_write_eof():  # TLS has its own goodbye, and waits for the caller's
            wire.close()
            return
        wire.write_eof()
        self._resume_transport_reading()
        self._hall.changed.set()
