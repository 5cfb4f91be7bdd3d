"""One caller's connection: aiohttp's, with what it lacks.

aiohttp parses and queues; it has no bound on the time that heads and bodies take, drops the answer of a caller that
half-closes, leaves a body waiting for ever once its framing has failed, gives the trailers of one request to the next,
is lenient where a request begins, and logs malformed lines as they came. That is mended here, in `connection_deadlines`
and in `request_boundary`. What it would make for every request (a task, a request, a writer, a response) nobody here
needs: `start` takes the parsed heads itself. Some of the attributes with an underscore are aiohttp's own; the tests of
this room hold them down.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from math import inf
from typing import cast

from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from paywitness.core.problems import Problem
from paywitness.repeated_lines import REPEATS
from paywitness.server.connection_deadlines import AWAITING_REQUEST, TimedConnection, TimeoutPhase
from paywitness.server.errors import BodyIncomplete, RequestRejected, malformed
from paywitness.server.limits_and_timeouts import TOO_MANY_CONNECTIONS
from paywitness.server.registry import ConnectionRegistry
from paywitness.server.reply_encoding import CONNECTION_CLOSE, CONNECTION_IMPLICIT, CONNECTION_KEEP_ALIVE
from paywitness.server.request_boundary import BoundaryTracker
from paywitness.server.request_target import Ingress

_log = logging.getLogger("paywitness.edge")

ServeRequest = Callable[
    [RawRequestMessage, StreamReader, "ServerConnection"], Awaitable[bool]
]  # whether the connection goes on

_CHUNKED_END = b"\r\n0\r\n\r\n"  # how a chunked body without trailers ends


class ServerConnection(TimedConnection):
    __slots__ = (
        "_boundary",
        "_caller_watched",
        "_head_bytes",
        "_head_due_mono",
        "_latest_chunked",
        "_latest_request",
        "_partial_request",
        "_serving",
        "_tail",
        "head_may_exceed_limit",
        "http11",
        "ingress",
    )

    def __init__(
        self, registry: ConnectionRegistry, server: web.Server, ingress: Ingress, *, due_mono: float = inf
    ) -> None:
        """`due_mono`: when its first head must be whole, where its time has begun before."""
        super().__init__(registry, server)
        self.ingress = ingress
        self._head_due_mono = due_mono
        self.http11 = True
        self.head_may_exceed_limit = False  # a head may have been larger than is allowed: measure it
        self._latest_request: object = None  # the request that came last
        self._latest_chunked = False
        self._tail = b""  # the last bytes of its chunked body
        self._boundary = BoundaryTracker()
        self._head_bytes = 0  # of a head that is not whole yet
        self._partial_request = False  # bytes came after the latest request that are no whole request yet
        self._serving = False  # a request is being answered
        self._caller_watched = False  # whether its caller can still be told decides something

    # -- what the loop tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._registry.try_register(self):
            self._registry.counters.refused[TOO_MANY_CONNECTIONS] += 1
            cast(asyncio.Transport, transport).abort()
            return
        self._wire = cast(asyncio.Transport, transport)
        self._start_timeout(TimeoutPhase.FIRST_BYTE, self._registry.limits.head_s)
        self._due_mono = min(self._due_mono, self._head_due_mono)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._wire is None:
            return  # it was never let in
        self._registry.unregister(self)
        self._wire = None
        if self._body is not None and not self._body.is_eof():
            self._body.set_exception(ConnectionResetError())  # somebody may be waiting for the rest of it
        super().connection_lost(exc)

    async def start(self) -> None:
        """Serve one request after the other, in the one task that aiohttp makes for a connection."""
        serve = cast(ServeRequest, self._request_handler)
        while not self._force_close:
            if not self._messages:
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
                continue  # what woke us may have been refused since
            message, body = self._messages.popleft()
            if self._parser is not None:
                self._parser.message_consumed()
            if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
                self._resume_reading_if_drained()
            if not await self._serve_one(serve, message, body):
                break
        if not self._force_close and self._wire is not None:
            self._wire.close()

    async def _serve_one(self, serve: ServeRequest, message: object, body: StreamReader) -> bool:
        """Whether another request may follow."""
        try:
            if isinstance(message, RawRequestMessage):
                return await serve(message, body, self) and not self._close
            self._reject_unparsable(getattr(message, "exc", None))
        except asyncio.CancelledError:
            self.force_close()
            raise
        except Exception as error:  # noqa: BLE001 - nobody knows what has been done: promise nothing
            # Its text may hold a caller's bytes; its class does not.
            _log.error("a connection ended by %s", type(error).__name__, extra=REPEATS)
            self.reset()
        return False

    def data_received(self, data: bytes) -> None:
        requests_before = self._request_count
        body_before = self._body
        try:
            super().data_received(data)
            sound = self._boundary.feed(data, self._messages, self._request_count - requests_before)
        except Exception:  # noqa: BLE001 - the parser lets more than its own errors escape; none may be logged
            self._fail_unreadable()
            return
        if self._boundary.is_ambiguous and not sound and self._timeout_phase in AWAITING_REQUEST:
            self._reject(malformed("The request line, or what stands before it, can be read in two ways."))
            return
        if self._latest_chunked:
            self._track_chunked_end(self._tail + data)
        if self._request_count == requests_before:
            if data:
                self._count_partial_head(len(data))
            return
        if body_before is not None and not body_before.is_eof():
            # Nothing can follow an unfinished body but the parser's complaint about it. It forgets to tell the reader.
            body_before.set_exception(BodyIncomplete(Problem.MALFORMED, "The framing of the body is broken."))
            return
        if len(data) + self._head_bytes > self._registry.limits.head_bytes_max:
            self.head_may_exceed_limit = True
        self._latest_request, self._body = self._messages[-1]
        self._head_bytes = 0
        self._partial_request = False
        if self._timeout_phase in AWAITING_REQUEST:
            self._clear_timeout()
        self._latest_chunked = getattr(self._latest_request, "chunked", False)
        if self._latest_chunked:
            self._track_chunked_end(data)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Every read of a body asks for it, paused or not; aiohttp would parse nothing, at the cost of something."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp declares less than asyncio allows
        """The caller will send no more. It may still read: only a reset, or a failed write, shows that it is gone."""
        self._half_closed = True
        if self._timeout_phase is TimeoutPhase.HEAD:
            self._reject(malformed("The request ended before its head did."))
        elif self._body is not None and not self._body.is_eof():
            self._body.set_exception(BodyIncomplete(Problem.MALFORMED, "The body ended before its end."))
        self._probe_half_closed()
        if self._wire is not None and not self._wire.can_write_eof():
            return False  # under TLS nobody can half-close
        return self._timeout_phase in (TimeoutPhase.NONE, TimeoutPhase.BODY, TimeoutPhase.READING_REPLY)

    # -- what the exchange asks

    def begin_request(self, *, http11: bool) -> None:
        """The next request is being served."""
        self._clear_timeout()
        self.http11 = http11
        self._serving, self._reply_started, self._caller_watched = True, False, False

    def watch_caller(self) -> None:
        """The request may be a payment's: from now on it must show if the caller closes altogether."""
        self._caller_watched = True
        if self._half_closed:
            self._probe_half_closed()

    def finish_request(self, *, keep_alive: bool) -> None:
        """Its answer is written. From here the caller owes us the next request, or the rest of it, or its leaving."""
        self._serving = False
        limits = self._registry.limits
        if not keep_alive:
            self._linger_close()
        elif self._messages:
            return
        elif self._partial_request:
            self._start_timeout(TimeoutPhase.HEAD, limits.head_s)
        else:
            self._start_timeout(TimeoutPhase.NEXT_REQUEST, limits.keep_alive_s)

    def is_caller_connected(self) -> bool:
        """Whether the caller may still read an answer."""
        wire = self._wire
        if wire is None or wire.is_closing():
            return False
        if self._half_closed and wire.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            wire.abort()  # it had closed altogether: what we wrote was answered by a reset
            return False
        return True

    @property
    def peer(self) -> str:
        """The caller's address; empty once it has gone."""
        name = self._wire.get_extra_info("peername") if self._wire is not None else None
        return str(name[0]) if name else ""

    def may_keep_alive(self, message: RawRequestMessage, body: StreamReader) -> bool:
        """Whether the connection can be trusted with a request after this one, and there is somebody to serve it."""
        if message.should_close or not body.is_eof():
            return False
        if message.upgrade:
            return False  # the parser loses what came with it
        if message.chunked and (message is not self._latest_request or self._tail != _CHUNKED_END):
            return False  # the parser hands the trailers of one request to the next, as headers
        return self.accepts_more

    @property
    def accepts_more(self) -> bool:
        """Whether a further request can come, and is to be served. What has come is served also in a drain."""
        if self._close or self._boundary.is_ambiguous:
            return False
        if self._messages:
            return True
        return not self._half_closed and (self._partial_request or not self._registry.draining)

    def connection_line(self, *, keep_alive: bool) -> bytes:
        if not keep_alive:
            return CONNECTION_CLOSE
        return CONNECTION_IMPLICIT if self.http11 else CONNECTION_KEEP_ALIVE

    # -- within

    def _probe_half_closed(self) -> None:
        """Make a caller that closed altogether show it: its kernel answers any byte with a reset.

        A caller that only half-closed must be able to skip an interim answer (RFC 9110 15.2). It gets one only if it
        pays: a reply to a payment that nobody can read is kept for who asks next.
        """
        watched = self._serving and self._caller_watched and not self._reply_started
        if watched and self.http11 and self._timeout_phase is TimeoutPhase.NONE:
            self.send_continue()

    def _reject_unparsable(self, error: object) -> None:
        """aiohttp's own words for it would log the offending line and send it back."""
        if not isinstance(error, HttpProcessingError):
            self.reset()  # not the caller's fault, and nobody knows what has been done: promise nothing
        elif isinstance(error, LineTooLong):
            limit = self._registry.limits.line_bytes_max
            self._reject(RequestRejected(Problem.TOO_LARGE, f"A line of the head is longer than {limit} bytes.", 431))
        else:
            detail = "The request is not well-formed HTTP/1.1, or its framing can be read in two ways."
            self._reject(malformed(detail))

    def _fail_unreadable(self) -> None:
        if self._timeout_phase in AWAITING_REQUEST:
            self._reject(malformed("The request cannot be read."))
            return
        if self._body is not None and not self._body.is_eof():
            self._body.set_exception(BodyIncomplete(Problem.MALFORMED, "The body cannot be read."))
        self.close()  # after the answer that is under way

    def _track_chunked_end(self, data: bytes) -> None:
        """Of a chunked body only the parser knows the end; that nothing came behind it, its last bytes show."""
        self._tail = data[-len(_CHUNKED_END) :]
        if self._tail == _CHUNKED_END and self._body is not None and self._body.is_eof():
            self._boundary.request_ended()

    def _count_partial_head(self, size: int) -> None:
        """Bytes came that completed no head."""
        if self._timeout_phase is TimeoutPhase.FIRST_BYTE:
            self._timeout_phase = TimeoutPhase.HEAD  # its time runs since the connection was opened
        elif self._timeout_phase is TimeoutPhase.NEXT_REQUEST:
            self._start_timeout(TimeoutPhase.HEAD, self._registry.limits.head_s)
        elif self._timeout_phase is not TimeoutPhase.HEAD:
            if self.is_ending or self._body is None or not self._body.is_eof():
                return
            self._partial_request = True
        self._head_bytes += size
        limit = self._registry.limits.head_bytes_max
        if self._head_bytes <= limit:
            return
        if self._timeout_phase is TimeoutPhase.HEAD:
            self._reject(RequestRejected(Problem.TOO_LARGE, f"The head is larger than {limit} bytes.", 431))
        else:
            self.close()  # after the answer that is under way
