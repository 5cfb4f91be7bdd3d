"""One connection: the bytes written on it, the bytes that came back, and when it must be reset.

An asyncio protocol over a plain TCP socket; `tls` puts TLS on top of it. The first try at a write goes straight to
the socket, so that we know exactly how many bytes the kernel took.

Rules that must hold:
- a byte or an end that arrives while no exchange is under way ends the connection, because it belongs to no request;
- if an exchange ends without a whole response after bytes were written, the connection is reset. Otherwise the kernel
  could go on delivering, and a request that was given up could arrive later. Only if the peer has acknowledged every
  byte may another exchange listen on for a late response instead. Then the reset comes at the end of that one;
- a connection stays open after a response only if neither side has anything left to send;
- on a kept connection a response with bytes behind it is refused: either of the two may be a stray copy. A response
  that equals the one before it, byte for byte, is marked and ends the connection, because from then on every response
  could belong to the request before.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import select
import socket
import struct
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from paywitness.core.evidence import NetworkPhase, WireFault
from paywitness.upstream.dial import NotConnected, set_user_timeout
from paywitness.upstream.exchange import UpstreamExchange

if TYPE_CHECKING:
    from paywitness.upstream.client import UpstreamLimits  # the client imports this module
    from paywitness.upstream.tls import TlsSession

_NO_BYTES = struct.pack("i", 0)
_LINGER_RESET = struct.pack("ii", 1, 0)  # close() then sends RST and drops the bytes that the kernel still holds

# Bound once, because on the path of every call the look-up of an enum member is the most expensive part of its use.
_SENDING = NetworkPhase.SENDING
_RECEIVING = NetworkPhase.RECEIVING
_COMPLETE = NetworkPhase.COMPLETE

# An idle connection may outlive its time by this much, so that its timer need not be moved after every call. Whether it
# may still be used is decided by the exact time.
_IDLE_SLACK_S = 2.0
_COPY_BYTES_MIN = 16  # a shorter body has no room for an id that tells one payment from another


class UpstreamConnection(asyncio.Protocol):
    """A connection to one origin. One exchange at a time."""

    ready_phase = NetworkPhase.CONNECTING  # how far it had got when it was ready to write

    tls: TlsSession | None = None  # a connection with TLS has one

    def __init__(
        self, connected: socket.socket, bounds: UpstreamLimits, first_byte_s: float, monotonic: Callable[[], float]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._monotonic = monotonic
        self._socket = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._bounds = bounds
        self._first_byte_s = first_byte_s  # the kernel's bound on its own deliveries (TCP_USER_TIMEOUT)
        self.transport: asyncio.Transport
        self._exchange: UpstreamExchange | None = None
        self._calls = 0
        self._reads_only = False  # the request under way is a GET
        self._last_answer = b""  # a digest of the response before, if its request was not a GET
        self._handed_bytes = 0  # bytes of this exchange given to socket and transport, as they go on the wire (sealed)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_mono = 0.0
        now = monotonic()
        self._ages_mono = now + bounds.age_s
        self.stale_mono = now + bounds.idle_s  # if it is still idle then, the peer may close it at any moment

    async def start(self) -> NotConnected | None:
        """Join the loop. On anything but None the connection is closed."""
        try:
            await self._loop.create_connection(lambda: self, sock=self._socket)
        except OSError:
            self._socket.close()
            return NotConnected(NetworkPhase.CONNECTING, WireFault.CONNECT_FAILED, "the connection broke at once")
        return None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)  # so that resume_writing means: the kernel has it all

    # -- between exchanges -------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return not self.transport.is_closing()

    def is_usable(self) -> bool:
        """Whether an exchange may begin. Checks the kernel too: an end that has arrived but was not read yet counts."""
        return not self.transport.is_closing() and not self._poll.poll(0)

    def close(self) -> None:
        """Close normally: nothing is left to send or to receive."""
        if not self.transport.is_closing():
            if self.tls is not None:
                self._push(self.tls.close_notify())
            self.transport.close()

    def reset(self) -> bool:
        """End by RST and drop bytes that were not delivered. False if the connection was gone already."""
        if self._socket.fileno() < 0:
            return False
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self.transport.abort()
        return True

    # -- writing -----------------------------------------------------------------------------------------------------

    def begin(self, exchange: UpstreamExchange, payload: bytes) -> None:
        """Write a request. From here on the connection reports to the exchange, and always concludes it."""
        first_byte_s = exchange.timeouts.first_byte_s
        if first_byte_s != self._first_byte_s:
            set_user_timeout(self._socket, first_byte_s)
            self._first_byte_s = first_byte_s
        self._exchange = exchange
        self._reads_only = payload.startswith(b"GET ")
        self._calls += 1
        self._handed_bytes = 0
        raw = payload if self.tls is None else self.tls.encrypt(payload)  # never shorter than the payload
        exchange.phase = _SENDING
        exchange.bytes_total = len(payload)
        write_error = self._push(raw)
        if write_error is not None:
            # No byte was taken: the kernel either takes a part and says how much, or refuses and takes nothing.
            exchange.phase = self.ready_phase
            exchange.bytes_total = 0
            self._fail(exchange, WireFault.RESET, "the connection was gone before the first byte")
            exchange.reset_by_us = False
            return
        self._note_written(exchange)

    def write_more(self, exchange: UpstreamExchange, payload: bytes) -> None:
        """Write a further piece of the request that was begun. Does nothing if that exchange is over."""
        if self._exchange is not exchange:
            return
        exchange.bytes_total += len(payload)
        write_error = self._push(payload if self.tls is None else self.tls.encrypt(payload))
        if write_error is not None:
            self._fail(exchange, WireFault.RESET, "the connection was reset while the request was written")
        else:
            self._note_written(exchange)

    def _push(self, raw: bytes) -> OSError | None:
        """Give bytes to the kernel, and the bytes that it does not take to the transport. Returns the error if the
        kernel took nothing at all."""
        if not raw:
            return None
        if self.transport.is_closing():
            return OSError(errno.ENOTCONN, "closing")
        self._handed_bytes += len(raw)
        sent = 0
        if not self.transport.get_write_buffer_size():
            try:
                sent = self._socket.send(raw)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                return error
        if sent < len(raw):
            self.transport.write(memoryview(raw)[sent:])
        return None

    def _note_written(self, exchange: UpstreamExchange) -> None:
        now = self._monotonic()
        if self.transport.get_write_buffer_size():
            exchange.writing(now)
        else:
            exchange.flushed(now)
        if self._timer is None or self._timer_mono > exchange.expires_mono:
            self._arm_timer(exchange.expires_mono, now)

    def resume_writing(self) -> None:
        if self._exchange is not None and not self._exchange.drained:
            self._note_written(self._exchange)

    # -- reading -----------------------------------------------------------------------------------------------------

    def eof_received(self) -> None:
        self._receive_eof(proper=True)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.close()
            return
        exchange.phase = _RECEIVING
        parser = exchange.parser
        parser.feed(data)
        if parser.fault is not None:
            self._fail(exchange, parser.fault, parser.detail)
        elif parser.complete and parser.leftover and self._calls > 1:
            self._fail(exchange, WireFault.MALFORMED, "more than one answer to one request")
        elif parser.complete:
            self._complete(exchange)
        else:
            now = self._monotonic()
            exchange.received(now)
            if self._timer is None or self._timer_mono > exchange.expires_mono:
                self._arm_timer(exchange.expires_mono, now)
            exchange.progressed()

    def pause(self) -> None:
        """Stop reading, so that the peer must wait."""
        if self.open:
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.open and not self.transport.is_reading():
            self.transport.resume_reading()

    def _receive_eof(self, *, proper: bool) -> None:
        """The peer sends no more. Only a proper end can complete a body without length and chunks."""
        exchange = self._exchange
        if exchange is None:
            self.close()
            return
        if proper:
            exchange.parser.finish()
        if exchange.parser.complete:
            self._complete(exchange)
        elif exchange.phase < _RECEIVING:
            self._fail(exchange, WireFault.CLOSED, "the peer closed without an answer")
        else:
            self._fail(exchange, WireFault.CLOSED, "the peer closed before the answer was whole")

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        exchange = self._exchange
        if exchange is None:
            return
        if isinstance(error, TimeoutError):  # TCP_USER_TIMEOUT: our own bound, enforced by the kernel
            self._fail(exchange, exchange.expiry, f"{exchange.expiry_detail}: the peer stopped acknowledging")
            return
        number = error.errno if isinstance(error, OSError) else None
        self._fail(exchange, WireFault.RESET, f"the connection broke: {_errno_detail(number)}")
        if number in (errno.ECONNRESET, errno.EPIPE):
            exchange.reset_by_us = False

    # -- ending an exchange ------------------------------------------------------------------------------------------

    def _complete(self, exchange: UpstreamExchange) -> None:
        exchange.phase = _COMPLETE
        if exchange.drained:
            exchange.bytes_written = exchange.bytes_total
        else:
            self._count(exchange)
        parser = exchange.parser
        exchange.repeated = self._is_copy(exchange)
        if not exchange.drained:  # the response came before we had written it all: the rest must not arrive after it
            exchange.reset_by_us = self.reset()
        elif (
            not parser.keep_alive
            or parser.leftover
            or exchange.last
            or exchange.repeated
            or self._calls >= self._bounds.calls_per_connection
        ):
            self.close()
        else:
            self._keep_idle(parser.keep_alive_s)
        self._exchange = None
        exchange.conclude()

    def _is_copy(self, exchange: UpstreamExchange) -> bool:
        """Whether this response equals, byte for byte, the one before it on this connection. Reads may have equal
        responses, and so may calls whose response holds no id. Neither counts."""
        if self._reads_only or exchange.last or exchange.parser.body_bytes < _COPY_BYTES_MIN:
            self._last_answer = b""
            return False
        before, self._last_answer = self._last_answer, exchange.parser.digest()
        return before == self._last_answer

    def _keep_idle(self, peer_keeps_s: int | None) -> None:
        """Stay open for the next call, for less time than the peer will."""
        now = self._monotonic()
        idle_s = self._bounds.idle_s
        if peer_keeps_s is not None:
            idle_s = min(idle_s, peer_keeps_s - 1.0)
        if idle_s <= 0 or now >= self._ages_mono:
            self.close()
            return
        self.stale_mono = now + idle_s
        if self._timer is None or self._timer_mono > self.stale_mono + _IDLE_SLACK_S:
            self._arm_timer(self.stale_mono, now)

    def abandon(self, exchange: UpstreamExchange) -> None:
        """Nobody waits for this exchange any more. If it is still under way, or another exchange listens on in its
        place, end that by a reset."""
        current = self._exchange
        if current is not None and current.attempt is exchange:
            self._fail(current, WireFault.CLOSED, "given up before the answer was whole")

    def _expire(self, exchange: UpstreamExchange, now: float) -> None:
        """The time is up: another exchange listens on, or the connection is reset."""
        late = None
        if exchange.take_over is not None and exchange.drained and self.open and self._all_acknowledged():
            late = exchange.take_over(exchange, now)
        if late is None:
            self._fail(exchange, exchange.expiry, exchange.expiry_detail)
            return
        exchange.fault = exchange.expiry
        exchange.detail = exchange.expiry_detail
        exchange.listening_s = late.expires_mono - now
        self._count(exchange)
        self._exchange = late
        if self._timer is None or self._timer_mono > late.expires_mono:
            self._arm_timer(late.expires_mono, now)
        exchange.conclude()

    def _all_acknowledged(self) -> bool:
        """Whether the peer's kernel has all bytes that we wrote. If ours still held some, a peer that reads slowly
        would go on receiving them while we listen: TCP_USER_TIMEOUT ends a silent connection, not a slow one."""
        try:
            return fcntl.ioctl(self._socket, termios.TIOCOUTQ, _NO_BYTES) == _NO_BYTES
        except OSError:  # a kernel that cannot say
            return False

    def _fail(self, exchange: UpstreamExchange, fault: WireFault, detail: str) -> None:
        exchange.fault = fault
        exchange.detail = detail
        self._count(exchange)
        exchange.reset_by_us = self.reset()
        self._exchange = None
        exchange.conclude()

    def _count(self, exchange: UpstreamExchange) -> None:
        """Count the bytes that the kernel took. Ciphertext is never shorter than its plaintext, so the smaller of both
        numbers is not too low."""
        taken_bytes = self._handed_bytes - self.transport.get_write_buffer_size()
        exchange.bytes_written = min(exchange.bytes_total, taken_bytes)

    # -- time --------------------------------------------------------------------------------------------------------

    def _arm_timer(self, when_mono: float, now: float) -> None:
        """Let `_check_timer` run by then. Not called if a timer fires earlier: that one checks the time and sets itself
        again. To move a timer costs more than that, and most calls end long before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_mono = when_mono
        self._timer = self._loop.call_later(max(when_mono - now, 0.001), self._check_timer)

    def _check_timer(self) -> None:
        self._timer = None
        now = self._monotonic()
        exchange = self._exchange
        ends_mono = self.stale_mono if exchange is None else exchange.expires_mono
        if now < ends_mono:
            self._arm_timer(ends_mono, now)
        elif exchange is None:
            self.close()
        else:
            self._expire(exchange, now)


def _errno_detail(number: int | None) -> str:
    if number == errno.ECONNRESET:
        return "reset by the peer"
    return errno.errorcode.get(number, "unknown error") if number is not None else "closed under us"
