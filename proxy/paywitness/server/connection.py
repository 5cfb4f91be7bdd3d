"""One caller's connection: the bytes it sends become requests, served one after the other in a task of their own.

It knows what it waits for, how long, and how to end. The one rule: while `_timeout_phase` is NONE the next step is
ours. Otherwise the next step is the caller's, and there is a moment at which we stop waiting. The server checks every
connection once a tick, so a wait needs no timer. `request_parser` judges the bytes; `dispatch` serves the requests.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, cast

from paywitness.core.problems import Problem
from paywitness.repeated_lines import REPEATS
from paywitness.server.errors import RequestRejected, malformed
from paywitness.server.heads import (
    CONNECTION_CLOSE,
    CONTINUE,
    reply_bytes,
)
from paywitness.server.limits_and_timeouts import ANSWER_NOT_TAKEN, IDLE, TOO_MANY_CONNECTIONS
from paywitness.server.request import Ingress
from paywitness.server.request_parser import NO_BODY, IncomingRequest, LengthBody, RequestParser

if TYPE_CHECKING:
    from paywitness.server.listener import ConnectionRegistry  # the listener imports this module

_log = logging.getLogger("paywitness.edge")

ServeRequest = Callable[[IncomingRequest, "ServerConnection"], Awaitable[bool]]  # whether the connection goes on
# Takes over a connection whose first bytes may be a CONNECT. The time given is when its head must be whole.
TakeOverConnect = Callable[[asyncio.Transport, bytes, float], None]

_LINGER_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset, not an end
# Bytes that have arrived and that nobody has taken: a body that is passed on, or the requests behind the one being
# served. From the higher bound on we stop reading; from the lower one on we read again. An incomplete head must fit
# below both.
_HELD_BYTES_MAX = 128 * 1024
_HELD_BYTES_LOW = 64 * 1024


class TimeoutPhase(Enum):
    """What we wait for the caller to do."""

    FIRST_BYTE = auto()
    HEAD = auto()
    NEXT_REQUEST = auto()
    BODY = auto()
    READING_REPLY = auto()  # to read more of the reply
    CLOSING = auto()  # to close its side too, after we have closed ours
    FLUSHING = auto()  # to take the bytes that were written before we closed
    NONE = auto()


_AWAITING_REQUEST = (  # it has no whole request with us
    TimeoutPhase.FIRST_BYTE,
    TimeoutPhase.HEAD,
    TimeoutPhase.NEXT_REQUEST,
)


_ENDING = (TimeoutPhase.CLOSING, TimeoutPhase.FLUSHING)
_CONNECT_BEGINS = b"C"  # no other method that is served does


class ServerConnection(asyncio.Protocol):
    __slots__ = (
        "_body_waiter",
        "_caller_watched",
        "_closes",
        "_drain_waiter",
        "_due_mono",
        "_half_closed",
        "_loop",
        "_parser",
        "_registry",
        "_reply_started",
        "_request",
        "_serve",
        "_serving",
        "_take_over_connect",
        "_task",
        "_timeout_phase",
        "_unsent_bytes",
        "_wire",
        "body",
        "http11",
        "ingress",
        "reading_paused",
        "writing_paused",
    )

    def __init__(
        self,
        registry: ConnectionRegistry,
        serve: ServeRequest,
        ingress: Ingress,
        *,
        due_mono: float = inf,
        take_over_connect: TakeOverConnect | None = None,
    ) -> None:
        """`due_mono`: when its first head must be whole, if that time began before. `take_over_connect` serves the
        connection if it begins with CONNECT."""
        self.ingress = ingress
        self.http11 = True
        self._registry = registry
        self._serve = serve
        self._take_over_connect = take_over_connect
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser(registry.limits)
        self._wire: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._timeout_phase = TimeoutPhase.FIRST_BYTE
        self._due_mono = due_mono
        self._request: IncomingRequest | None = None  # the next one to be served
        self.body: LengthBody = NO_BODY  # of the request being served
        self._body_waiter: asyncio.Future[None] | None = None
        self._drain_waiter: asyncio.Future[None] | None = None
        self._serving = False  # a request is being served
        self._caller_watched = False  # it matters whether the caller of this request can still get a reply
        self._reply_started = False  # a byte of its final reply was written
        self._closes = False  # no further request is served
        self._half_closed = False
        self.reading_paused = self.writing_paused = False
        self._unsent_bytes = 0

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast(asyncio.Transport, transport)
        if not self._registry.try_register(self):
            self._registry.counters.refused[TOO_MANY_CONNECTIONS] += 1
            wire.abort()
            return
        self._wire = wire
        self._registry.silent[self] = None
        wire.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._due_mono = min(self._due_mono, self._loop.time() + self._registry.limits.head_s)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._wire is None:
            return  # it was never registered
        self._registry.unregister(self)
        self._wire = None
        self._closes = True
        if self._body_waiter is not None:
            self._end_body_wait(self._body_waiter)
        if self._drain_waiter is not None:
            _wake(self._drain_waiter)

    def data_received(self, data: bytes) -> None:
        if self._closes:
            return  # nobody serves it
        if self._take_over_connect is not None:
            take_over, self._take_over_connect = self._take_over_connect, None
            if data.startswith(_CONNECT_BEGINS) and self._wire is not None:
                wire, self._wire, self._closes = self._wire, None, True
                self._registry.unregister(self)
                take_over(wire, data, self._due_mono)
                return
        try:
            held_bytes = self._parser.feed(data)
        except Exception:  # noqa: BLE001 - an error of ours or of httptools; its text may hold a caller's bytes
            self._fail_unreadable()
            return
        if self._timeout_phase in _AWAITING_REQUEST:
            self._read_request()
            return
        body = self.body
        if self._body_waiter is not None and (body.held or body.complete or body.fault):
            self._end_body_wait(self._body_waiter)
        if held_bytes > _HELD_BYTES_MAX:
            self.balance_reading()

    def eof_received(self) -> bool:
        """The caller will send no more. It may still read. Only a reset or a failed write shows that it has left."""
        self._half_closed = True
        if self._timeout_phase is TimeoutPhase.HEAD:
            self._reject(malformed("The request ended before its head did."))
        elif not self.body.complete:
            self._fail_body(Problem.MALFORMED, "The body ended before its end.")
        if self._serving:
            self._probe_half_closed()
        if self._wire is not None and not self._wire.can_write_eof():
            return False  # under TLS nobody can half-close
        return self._timeout_phase in (TimeoutPhase.NONE, TimeoutPhase.BODY, TimeoutPhase.READING_REPLY)

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._drain_waiter is not None:
            _wake(self._drain_waiter)

    # -- its task

    async def _serve_requests(self) -> None:
        """Serve the request that has come, and those that came behind it."""
        try:
            while (request := self._request) is not None and not self._closes:
                self._request = None
                self.http11 = request.is_http11
                self._serving, self._reply_started, self._caller_watched = True, False, False
                if not await self._serve(request, self):
                    return
        except asyncio.CancelledError:
            self.force_close()
            raise
        except Exception as error:  # noqa: BLE001 - it is unknown what was done, so send no reply
            # Its text may hold a caller's bytes; its class does not.
            _log.error("a connection ended by %s", type(error).__name__, extra=REPEATS)
            self.reset()
        finally:
            self._task = None

    # -- called while a request is served

    def watch_caller(self) -> None:
        """The request may be a payment's. From now on we must notice if the caller closes both directions."""
        self._caller_watched = True
        if self._half_closed:
            self._probe_half_closed()

    def await_next_request(self) -> None:
        """The reply is written. From here we wait for the caller's next request, or the rest of it."""
        self._serving = False
        self._start_timeout(TimeoutPhase.NEXT_REQUEST, self._registry.limits.keep_alive_s)
        if self._parser.unread_bytes:
            self._read_request()

    @property
    def accepts_more(self) -> bool:
        """Whether a further request can come and will be served. In a drain, requests that have arrived are served."""
        if self._closes or self._parser.begins_ambiguously():
            return False
        if self._parser.unread_bytes:
            return not self._half_closed or self._parser.has_whole_head
        return not self._half_closed and not self._registry.draining

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
        self._drain_waiter = self._loop.create_future()
        try:
            await self._drain_waiter
        finally:
            self._drain_waiter = None
            if self._timeout_phase is TimeoutPhase.READING_REPLY:
                self._timeout_phase, self._due_mono = TimeoutPhase.NONE, inf
        if self._wire is None:
            raise ConnectionResetError

    def body_arrival(self, within_s: float) -> asyncio.Future[None]:
        """Done when more of the body has come, or its fault is known, or the caller has left."""
        self._timeout_phase, self._due_mono = TimeoutPhase.BODY, self._loop.time() + within_s
        self._body_waiter = self._loop.create_future()
        return self._body_waiter

    def _end_body_wait(self, waiter: asyncio.Future[None]) -> None:
        self._body_waiter = None
        if self._timeout_phase is TimeoutPhase.BODY:
            self._timeout_phase, self._due_mono = TimeoutPhase.NONE, inf
        if not waiter.done():
            waiter.set_result(None)

    @property
    def is_open(self) -> bool:
        return self._wire is not None

    def is_caller_connected(self) -> bool:
        """Whether the caller may still read a reply."""
        wire = self._wire
        if wire is None or wire.is_closing():
            return False
        if self._half_closed and wire.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            wire.abort()  # the caller had closed both directions: its kernel answered our bytes with a reset
            return False
        return True

    @property
    def peer(self) -> str:
        """The caller's address; empty once it has gone."""
        name = self._wire.get_extra_info("peername") if self._wire is not None else None
        return str(name[0]) if name else ""

    # -- called by the server

    @property
    def is_idle(self) -> bool:
        return self._timeout_phase in (TimeoutPhase.FIRST_BYTE, TimeoutPhase.NEXT_REQUEST)

    @property
    def is_ending(self) -> bool:
        """The only step left is its end."""
        return self._timeout_phase in _ENDING

    @property
    def is_served(self) -> bool:
        """The caller has all of its last reply, as far as we can know."""
        return self._wire is None or (self.is_ending and not self._wire.get_write_buffer_size())

    @property
    def file_descriptor(self) -> int:
        return cast(int, self._wire.get_extra_info("socket").fileno()) if self._wire is not None else -1

    @property
    def loop_task(self) -> asyncio.Task[None] | None:
        return self._task

    def force_close(self) -> None:
        """End it after the bytes that were written have left."""
        self._closes = True
        if self._wire is not None:
            self._wire.close()

    def reset(self) -> None:
        """End it by a reset, so that the caller cannot take a partial reply for a whole one."""
        if self._wire is not None:
            self._wire.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
            self._wire.abort()

    def abort(self) -> None:
        """End it now. A caller that has its whole reply keeps it."""
        if self._wire is not None and self.is_served:
            self._wire.abort()
        else:
            self.reset()

    def check_timeouts(self, now: float) -> None:
        """Stop waiting if the time is over."""
        wire = self._wire
        if wire is None:
            return
        if wire.is_closing() and self._timeout_phase is not TimeoutPhase.FLUSHING:
            self._start_timeout(TimeoutPhase.FLUSHING, self._registry.limits.reply_idle_s)
        if self._timeout_phase in _ENDING:
            self._registry.changed.set()  # the caller may have taken the last bytes
        if now >= self._due_mono:
            self._time_out(wire)

    # -- reading

    def _read_request(self) -> None:
        """Read the next request from the bytes that have just arrived, or that were already held."""
        try:
            request = self._parser.next_request()
        except RequestRejected as rejection:
            self._reject(rejection)
            return
        except Exception:  # noqa: BLE001 - as in `data_received`
            self._fail_unreadable()
            return
        if request is not None:
            self._request, self.body = request, self._parser.body
            self._registry.silent.pop(self, None)
            self._timeout_phase, self._due_mono = TimeoutPhase.NONE, inf
            if self._task is None:
                self._task = self._registry.tasks.start(self._serve_requests(), name="connection")
        elif self._timeout_phase is TimeoutPhase.FIRST_BYTE:
            self._timeout_phase = TimeoutPhase.HEAD  # its time began when the connection was opened
        elif self._timeout_phase is TimeoutPhase.NEXT_REQUEST:
            self._start_timeout(TimeoutPhase.HEAD, self._registry.limits.head_s)
        if self.reading_paused:
            self.balance_reading()

    def balance_reading(self) -> None:
        """Stop or resume reading, so that the bytes held stay within their bound."""
        held_bytes = self._parser.held_bytes
        if self.reading_paused:
            if held_bytes <= _HELD_BYTES_LOW:
                self._resume_reading()
        elif held_bytes > _HELD_BYTES_MAX and self._wire is not None and not self._wire.is_closing():
            self.reading_paused = True
            self._wire.pause_reading()

    def _resume_reading(self) -> None:
        if self.reading_paused and self._wire is not None and not self._wire.is_closing():
            self.reading_paused = False
            self._wire.resume_reading()

    def _fail_unreadable(self) -> None:
        if self._timeout_phase in _AWAITING_REQUEST:
            self._reject(malformed("The request cannot be read."))
            return
        self._closes = True  # after the reply that is under way
        self._fail_body(Problem.MALFORMED, "The body cannot be read.")

    def _fail_body(self, kind: Problem, detail: str) -> None:
        """If the body is not whole yet, it never will be."""
        body = self.body
        if not body.complete and body.fault is None:
            body.fault = RequestRejected(kind, detail)
            if self._body_waiter is not None:
                self._end_body_wait(self._body_waiter)

    def _probe_half_closed(self) -> None:
        """Find out whether a half-closed caller has closed both directions. If so, its kernel resets the connection.

        A caller that only half-closed must be able to skip an interim response (RFC 9110 15.2). We send one only for a
        payment: if nobody can read its reply, the reply is kept for the next duplicate.
        """
        watched = self._serving and self._caller_watched and not self._reply_started
        if watched and self.http11 and self._timeout_phase is TimeoutPhase.NONE:
            self.send_continue()

    # -- timeouts and ends

    def _start_timeout(self, phase: TimeoutPhase, seconds: float) -> None:
        self._timeout_phase = phase
        self._due_mono = self._loop.time() + seconds

    def _time_out(self, wire: asyncio.Transport) -> None:
        limits = self._registry.limits
        match self._timeout_phase:
            case TimeoutPhase.HEAD:
                self._reject(RequestRejected(Problem.TOO_SLOW, f"The head was not whole within {limits.head_s:g} s."))
            case TimeoutPhase.FIRST_BYTE | TimeoutPhase.NEXT_REQUEST:
                # Send nothing: the caller could take an unrequested reply for the reply to its next request.
                self._registry.counters.refused[IDLE] += 1
                self.force_close()
            case TimeoutPhase.BODY:
                self._due_mono = inf
                detail = f"The body may take {limits.body_s:g} s, and {limits.body_idle_s:g} s between two pieces."
                self._fail_body(Problem.TOO_SLOW, detail)
            case TimeoutPhase.READING_REPLY:
                self._time_out_reply(wire)
            case TimeoutPhase.CLOSING:
                wire.close()
            case TimeoutPhase.FLUSHING:
                self.reset()

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
        self.linger_close()

    def linger_close(self) -> None:
        """Close our side, and wait a moment for the caller to close its side.

        Bytes that it sends meanwhile are thrown away. If we closed both directions at once, its bytes would be answered
        with a reset, and the caller could lose the end of our reply.
        """
        self._serving, self._closes = False, True
        wire = self._wire
        if wire is None or wire.is_closing():
            return
        self._timeout_phase = TimeoutPhase.CLOSING
        self._due_mono = self._loop.time() + self._registry.limits.linger_s
        if self._half_closed or not wire.can_write_eof():  # TLS sends its own close_notify, and waits for the caller's
            wire.close()
            return
        wire.write_eof()
        if self.reading_paused:
            self._resume_reading()
        self._registry.changed.set()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
