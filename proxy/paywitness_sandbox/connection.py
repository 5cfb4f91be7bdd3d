"""One connection: bytes into requests, bytes out, and every way to break an exchange.

The faults need the socket itself (a reset, half a response, a byte at a time), so no HTTP server library fits.
httptools parses, and this module does the rest. It does not decide the response.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

import httptools

from paywitness_sandbox.messages import Request, SandboxResponse, error_response

HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 100
BODY_BYTES_MAX = 1024 * 1024
DISCARDED_BYTES_MAX = 16 * BODY_BYTES_MAX  # read and thrown away, so that the caller can still read the 413
QUEUED_REQUESTS_MAX = 16  # pipelined; with more than that, reading pauses
IDLE_S_MAX = 300.0
READ_S_MAX = 60.0

RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, zero seconds

Serve = Callable[["SandboxConnection"], Awaitable[None]]


class CallerGone(Exception):
    """The caller left, or stopped sending, before its request was complete. Nothing may be done for it."""


class SandboxConnection(asyncio.Protocol):
    """One connection. Parser and transport call its methods on one side, server and faults on the other."""

    def __init__(self, serve: Serve, on_end: Callable[[SandboxConnection], None]) -> None:
        self._serve = serve
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request] = deque()
        self._receiving: Request | None = None
        self._changed = asyncio.Event()
        self._head_bytes = 0
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body_bytes = 0
        self._paused = False
        self._refusal: SandboxResponse | None = None
        self._aborted = False
        self.disconnected = asyncio.Event()
        self.busy = False
        self.last_request = False
        self.task: asyncio.Task[None] | None = None

    # -- called by the event loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._aborted:
            self.reset()
            return
        self.task = asyncio.get_running_loop().create_task(self._run(), name="sandbox connection")

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse(400, f"not an HTTP/1.1 request: {error}")
        if self._receiving is None and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, f"a head has at most {HEAD_BYTES_MAX} bytes")
        if len(self._queue) >= QUEUED_REQUESTS_MAX and self._transport is not None and self.usable and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        # The task is not cancelled: a provider continues a payment whose caller has left.
        self.disconnected.set()
        self._changed.set()

    # -- called by the parser -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body_bytes = b"", [], 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        head_bytes = len(self._target) + sum(len(name) + len(value) for name, value in self._headers)
        if head_bytes > HEAD_BYTES_MAX or len(self._headers) > HEADERS_MAX:
            self._refuse(431, f"a head has at most {HEADERS_MAX} headers and {HEAD_BYTES_MAX} bytes")
        if self._refusal is not None:
            return
        request = Request(
            self._parser.get_method().decode("ascii"),
            self._target.decode("latin-1"),
            {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._headers},
            self._parser.should_keep_alive(),
        )
        self._receiving = request
        self._queue.append(request)
        self._changed.set()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > DISCARDED_BYTES_MAX:
            self.reset()
        elif self._receiving is not None and self._body_bytes <= BODY_BYTES_MAX:
            self._receiving.body += body

    def on_message_complete(self) -> None:
        if self._body_bytes > BODY_BYTES_MAX:
            self._refuse(413, f"a body has at most {BODY_BYTES_MAX} bytes")
        elif self._receiving is not None:
            self._receiving.complete = True
        self._receiving, self._head_bytes = None, 0
        self._changed.set()

    # -- called by the server and the faults ----------------------------------------------------------------------

    async def next_request(self) -> Request | None:
        """The next request's head. None if no further one will come.

        A request that was complete before the caller left is still returned: the caller has sent a payment.
        """
        await self._wait_until(lambda: bool(self._queue) or self._refusal is not None, IDLE_S_MAX)
        if not self._queue:
            return None
        request = self._queue.popleft()
        if self._paused and len(self._queue) < QUEUED_REQUESTS_MAX and self._transport is not None and self.usable:
            self._paused = False
            self._transport.resume_reading()
        return request

    async def read(self, request: Request) -> None:
        """Wait for the whole body. Raises CallerGone."""
        if request.complete:
            return
        if request.headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await self._wait_until(lambda: request.complete or self._refusal is not None, READ_S_MAX)
        if not request.complete:
            raise CallerGone

    def write(self, data: bytes) -> bool:
        """Returns False if the caller is gone."""
        if self._transport is None or self._transport.is_closing():
            return False
        self._transport.write(data)
        return True

    def close(self) -> None:
        """Close in order: send everything that was written, then FIN."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Send RST, and drop everything that was not sent yet."""
        if self._transport is None:
            return
        raw_socket = self._transport.get_extra_info("socket")
        if raw_socket is not None and not self._transport.is_closing():
            raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._transport.abort()

    def abort(self) -> None:
        """End it at once, with everything still to be done for it."""
        self._aborted = True  # it may have been accepted and not started
        self.reset()
        if self.task is not None:
            self.task.cancel()

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._serve(self)
            if self._refusal is not None:
                self.write(self._refusal.head(("Connection", "close")) + self._refusal.body)
        finally:
            self.close()
            self._on_end(self)

    async def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until the condition holds, the caller has gone, or the time is up. The caller of this method checks
        which."""
        try:
            async with asyncio.timeout(seconds):
                while not condition() and not self.disconnected.is_set():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self.close()

    def _refuse(self, status_code: int, message: str) -> None:
        if self._refusal is None:
            self._refusal = error_response(status_code, "invalid_request_error", message)
            self._changed.set()
