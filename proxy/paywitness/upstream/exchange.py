"""One request and its response on one connection: the bytes of the response, and the running record from which Evidence
is made. No socket, no clock.

`ResponseParser` turns the bytes into a response, or into the reason why they are none. httptools judges the head and
reads the chunks. A grammar of our own checks the raw head first, because httptools accepts heads that are too ambiguous
for a payment: two codings, a repeated coding, any version number, empty lines before and after a message. A head must
satisfy both. The rule: framing that can be read in two ways is refused, never repaired. Bytes that follow a complete,
well-framed response spoil the connection and not the response.

`UpstreamExchange` holds the facts (the phase reached, the bytes written, the response) and the moment at which the
present phase times out. The connection calls it for every event. The rule: phases only go forward, and when two are
possible the record has the later one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from hashlib import blake2b

import httptools

from paywitness.core.credential_and_hop_headers import TOKEN_BYTE_CLASS
from paywitness.core.evidence import Evidence, NetworkPhase, Response, WireFault
from paywitness.core.policy import UpstreamTimeouts

# --- The response's bytes

HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 128
INTERIM_MAX = 8  # informational responses before the final one

# Chunk sizes, extensions and trailers carry no body. They may take this much, plus eight bytes for every byte of body.
# A server that sends one byte in each chunk needs five.
_CHUNK_OVERHEAD_BYTES = 64 * 1024
_CHUNK_OVERHEAD_RATIO = 8

_HEAD = re.compile(
    rb"HTTP/1\.[01] [1-9][0-9]{2}(?: [\t\x20-\x7e\x80-\xff]*+)?\r\n"
    rb"(?:" + TOKEN_BYTE_CLASS + rb"++:[\t\x20-\x7e\x80-\xff]*+\r\n)*"
    rb"\r\n"
)
_HEADER = re.compile(rb"\r\n([^:\r]++):[ \t]*+([^\r]*+)")  # in a head that has passed the grammar
_BEGINNING = b"HTTP/1."
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_HEAD_FAULTS = (  # why the grammar refused a head; the first pattern that matches says it
    (re.compile(rb"\x00"), "a NUL in the head"),
    (re.compile(rb"\r(?!\n)"), "a bare carriage return in the head"),
    (re.compile(rb"\r\n[ \t]"), "a folded header"),
    (re.compile(rb"\AHTTP/1\.[01] [1-9][0-9]{2}[ \r]"), "a malformed header line"),
)
_FRAMING = re.compile(rb"\r\n(content-length|transfer-encoding|keep-alive):([^\r]*)")
_KEEP_ALIVE_TIMEOUT = re.compile(rb"(?:^|[,\s])timeout=(\d{1,6})(?:$|[,\s])")

_DIGIT_1 = 0x31
_LENGTH_DIGITS_MAX = 18
_BODILESS = (b"204", b"304")

# The parser's stages. Plain numbers, because on this path the look-up of an enum member costs more than comparing it.
_IN_HEAD, _BY_LENGTH, _BY_CHUNKS, _UNTIL_CLOSE, _OVER = range(5)


class ResponseParser:
    """Reads one response. Feed it until `complete` or `fault`. Nothing after that changes the result."""

    __slots__ = (
        "_body",
        "_body_bytes_max",
        "_expected",
        "_head_only",
        "_held",
        "_interim",
        "_overhead",
        "_parser",
        "_stage",
        "_tail",
        "body_bytes",
        "complete",
        "detail",
        "fault",
        "headers",
        "keep_alive",
        "keep_alive_s",
        "leftover",
        "reason",
        "status_code",
        "trailers",
    )

    def __init__(self, *, head_only: bool, body_bytes_max: int | None) -> None:
        self._head_only = head_only  # the request was a HEAD: its response has no body, whatever its head says
        self._body_bytes_max = body_bytes_max
        self._stage = _IN_HEAD
        self._held = bytearray()  # the bytes of an incomplete head
        self._interim = 0
        self._expected = 0  # bytes still to come under Content-Length
        self._overhead = 0
        self._tail = b""
        self._body: bytes | bytearray = b""
        self._parser: httptools.HttpResponseParser | None = None
        self.body_bytes = 0
        self.status_code = 0  # of the final response; 0 until its head is there
        self.reason = b""
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.trailers: tuple[tuple[bytes, bytes], ...] = ()  # read by `StreamResponseParser` alone
        self.keep_alive = False
        self.keep_alive_s: int | None = None  # how long the server says it keeps an idle connection
        self.complete = False
        self.leftover = False  # bytes came after the end of the response: the connection is spoilt, the response is not
        self.fault: WireFault | None = None
        self.detail = ""

    @property
    def interim_only(self) -> bool:
        """Whether informational responses came, and no byte of the final one."""
        return self._interim > 0 and self._stage == _IN_HEAD and not self._held and not self.fault

    def response(self) -> Response:
        """The complete response."""
        return Response(self.status_code, self.reason, self.headers, bytes(self._body), self._stage == _UNTIL_CLOSE)

    def digest(self) -> bytes:
        """A digest of the whole response."""
        found = blake2b(self.reason, digest_size=16, key=b"%d" % self.status_code)
        for name, value in self.headers:
            found.update(b"%b:%b\n" % (name, value))
        found.update(self._body)
        return found.digest()

    def take_body(self) -> bytes:
        """The body that has arrived since the last call; it is not kept."""
        taken = bytes(self._body)
        self._body = b""
        return taken

    @property
    def held_bytes(self) -> int:
        """Bytes of body that nobody has taken yet."""
        return len(self._body)

    # -- what arrives ------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Read on."""
        if self._stage == _IN_HEAD:
            data = self._feed_head(data)
            if not data or self.fault:
                return
        if self.complete:
            self.leftover = True
        elif self._stage != _BY_LENGTH:
            self._feed_unsized(data)
        else:
            if len(data) > self._expected:
                data = data[: self._expected]
                self.leftover = True
            self._expected -= len(data)
            self.body_bytes += len(data)
            # Most bodies come in one read, and are kept as they came.
            self._body = self._body_and(data) if self._body else data
            if not self._expected:
                self.complete, self._stage = True, _OVER

    def finish(self) -> None:
        """The peer ended the stream properly. If no length and no chunks mark the end of the body, this does."""
        if self._stage == _UNTIL_CLOSE and self.fault is None:
            self.complete = True

    # -- the head ----------------------------------------------------------------------------------------------------

    def _feed_head(self, data: bytes) -> bytes:
        """Read on in the head, and return the bytes behind its end."""
        seen = len(self._held)
        if seen:
            self._held += data
            data = bytes(self._held)
        while not self.fault and not self.complete and self._stage == _IN_HEAD:
            end = data.find(b"\r\n\r\n", max(0, seen - 3)) + 4
            if end < 4:
                self._hold_head(data, seen)
                return b""
            head, data, seen = data[:end], data[end:], 0
            self._held.clear()
            self._read_head(head)
        return data

    def _hold_head(self, data: bytes, seen: int) -> None:
        """Keep an incomplete head, unless it is invalid whatever follows: to wait would turn the reason into a
        timeout."""
        self._refuse_early(data, seen)
        if not self.fault and not seen:
            self._held += data

    def _refuse_early(self, data: bytes, seen: int = 0) -> None:
        """Refuse a head for faults that show before it is whole. A whole head is checked for these first too. Otherwise
        the reason would depend on how the bytes were cut into reads."""
        if not data.startswith(_BEGINNING[: len(data)]):
            self._refuse("the answer does not begin like HTTP/1")
        elif _BARE_LINE_FEED.search(data, max(0, seen - 1), HEAD_BYTES_MAX):
            self._refuse("a bare line feed in the head")
        elif len(data) > HEAD_BYTES_MAX:
            self._refuse("the head is too large", WireFault.OVERSIZED)

    def _read_head(self, head: bytes) -> None:
        headers = head.count(b"\r\n") - 2
        if len(head) > HEAD_BYTES_MAX or headers > HEADERS_MAX or not _HEAD.fullmatch(head):
            self._refuse_early(head)
            if not self.fault:
                self._refuse_whole(head, headers)
            return
        if head[9] == _DIGIT_1:
            self._skip_interim(head[9:12])
            return
        parser = self._parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(head)
        except httptools.HttpParserError as error:
            self._refuse(f"a malformed head: {error}")
            return
        line_end = head.index(b"\r\n")
        self.headers = tuple(_HEADER.findall(head, line_end))
        self._choose_framing(head)
        if self._stage != _BY_CHUNKS:
            self._parser = None
        if self.fault is None:
            self.status_code = int(head[9:12])
            self.reason = head[13:line_end]

    def _refuse_whole(self, head: bytes, headers: int) -> None:
        if headers > HEADERS_MAX:
            self._refuse("too many headers", WireFault.OVERSIZED)
        else:
            self._refuse(_head_fault_detail(head))

    def _skip_interim(self, status_code: bytes) -> None:
        self._interim += 1
        if status_code == b"101":
            self._refuse("it switched protocols; nobody asked")
        elif self._interim > INTERIM_MAX:
            self._refuse("too many informational responses")

    def _choose_framing(self, head: bytes) -> None:
        found: dict[bytes, bytes] = {}
        for name, value in _FRAMING.findall(head.lower()):
            # Each may come once. A second one, even with an equal value, makes the framing ambiguous.
            found[name] = b"repeated" if name in found else value.strip(b" \t")
        length, coding = found.get(b"content-length"), found.get(b"transfer-encoding")
        http_1_1 = head[7] == _DIGIT_1
        self.keep_alive = self.keep_alive and http_1_1
        if timeout := _KEEP_ALIVE_TIMEOUT.search(found.get(b"keep-alive", b"")):
            self.keep_alive_s = int(timeout[1])
        if coding is not None and (coding != b"chunked" or length is not None or not http_1_1):
            self._refuse("a transfer coding other than chunked alone")
        elif length is not None and (not length.isdigit() or len(length) > _LENGTH_DIGITS_MAX):
            self._refuse("not one Content-Length that is a length")
        elif self._head_only or head[9:12] in _BODILESS:
            self.complete, self._stage = True, _OVER
        elif length is None:
            self._stage = _UNTIL_CLOSE if coding is None else _BY_CHUNKS
        elif self._body_bytes_max is not None and int(length) > self._body_bytes_max:
            self._stage = _BY_LENGTH
            self._refuse("the answer is larger than its bound", WireFault.OVERSIZED)
        else:
            self._expected = int(length)
            self.complete, self._stage = (False, _BY_LENGTH) if self._expected else (True, _OVER)

    # -- the body ----------------------------------------------------------------------------------------------------

    def _feed_unsized(self, data: bytes) -> None:
        """Read on in a body whose length no header gives."""
        if self._stage == _BY_CHUNKS and self._parser is not None:
            self._feed_chunks(self._parser, data)
        else:
            self.on_body(data)
        if self._body_bytes_max is not None and self.body_bytes > self._body_bytes_max:
            self.complete = False
            self._refuse("the answer is larger than its bound", WireFault.OVERSIZED)

    def _feed_chunks(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        before = self.body_bytes
        self._tail = (self._tail + data[-6:])[-6:]
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.complete:
                self._refuse(f"a malformed chunk: {error}")
                return
            self.leftover = True
        self._overhead += len(data) - (self.body_bytes - before)
        if self.complete:
            self._parser = None
            # httptools swallows empty lines after a message. A chunked message ends in exactly one: the line before it
            # is the last chunk's size or a trailer, and neither is empty.
            if not self._tail.endswith(b"\r\n\r\n") or self._tail == b"\r\n\r\n\r\n":
                self.leftover = True
        elif self._overhead > _CHUNK_OVERHEAD_BYTES + _CHUNK_OVERHEAD_RATIO * self.body_bytes:
            self._refuse("more chunk framing than body", WireFault.OVERSIZED)

    def _body_and(self, data: bytes) -> bytearray:
        body = bytearray(self._body) if isinstance(self._body, bytes) else self._body
        body += data
        return body

    def _refuse(self, detail: str, fault: WireFault = WireFault.MALFORMED) -> None:
        self.fault = fault
        self.detail = detail
        self._parser = None

    # -- called by httptools -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            self.leftover = True

    def on_headers_complete(self) -> None:
        # Read now, because httptools forgets it afterwards. Only for the first head: a second one belongs to no
        # request.
        if self._stage == _IN_HEAD and self._parser is not None:
            self.keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        if self.complete:  # the body of a second message in the same read
            return
        self.body_bytes += len(data)
        self._body = self._body_and(data) if self._body else data

    def on_message_complete(self) -> None:
        if self._stage == _BY_CHUNKS:
            self.complete = True


class StreamResponseParser(ResponseParser):
    """Reads a response that is passed on in pieces, with its trailers: a response that is passed on must keep them."""

    __slots__ = ("_bytes_without_body",)

    def __init__(self, *, head_only: bool, body_bytes_max: int | None) -> None:
        super().__init__(head_only=head_only, body_bytes_max=body_bytes_max)
        self._bytes_without_body = 0

    def _feed_chunks(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        before = self.body_bytes
        super()._feed_chunks(parser, data)
        self._bytes_without_body = 0 if self.body_bytes > before else self._bytes_without_body + len(data)
        if not self.complete and self._bytes_without_body > HEAD_BYTES_MAX:
            self._refuse("the trailers are too large", WireFault.OVERSIZED)  # httptools holds an unfinished one

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a trailer. Also called for headers, which `headers` has from the raw bytes already."""
        if self._stage == _BY_CHUNKS and not self.complete and len(self.trailers) < HEADERS_MAX:
            self.trailers += ((name, value),)


def _head_fault_detail(head: bytes) -> str:
    for pattern, detail in _HEAD_FAULTS:
        if pattern.search(head):
            return detail
    return "a malformed status line"


# --- The record

# Bound once, because on the path of every call the look-up of an enum member is the most expensive part of its use.
_CONNECTING = NetworkPhase.CONNECTING
_AWAITING = NetworkPhase.AWAITING
_COMPLETE = NetworkPhase.COMPLETE
_WRITE_TIMEOUT = WireFault.WRITE_TIMEOUT
_FIRST_BYTE_TIMEOUT = WireFault.FIRST_BYTE_TIMEOUT
_BODY_TIMEOUT = WireFault.BODY_TIMEOUT

_EXPIRY_DETAILS = {
    _WRITE_TIMEOUT: "the request could not be written in time",
    _FIRST_BYTE_TIMEOUT: "no answer came in time",
    _BODY_TIMEOUT: "the answer stopped arriving",
}


class UpstreamExchange:
    """The record of one exchange. `done` is resolved once, when there is a response or a fault."""

    __slots__ = (
        "_response_ends_mono",
        "bytes_total",
        "bytes_written",
        "detail",
        "done",
        "drained",
        "expires_mono",
        "expiry",
        "fault",
        "listening_s",
        "parser",
        "phase",
        "repeated",
        "request_complete",
        "reset_by_us",
        "take_over",
        "timeouts",
    )

    last = False  # whether no other exchange may follow on its connection, however it ends

    def __init__(self, done: asyncio.Future[None], parser: ResponseParser, timeouts: UpstreamTimeouts) -> None:
        self.done = done
        self.parser = parser
        self.phase: NetworkPhase = _CONNECTING
        self.fault: WireFault | None = None
        self.detail = ""
        self.bytes_total = 0  # bytes of the request that were handed over so far
        self.bytes_written = 0
        self.reset_by_us = False
        self.repeated = False  # its response equals, byte for byte, that of the exchange before on its connection
        self.listening_s = 0.0  # how long another exchange listens on in its place
        self.take_over: Callable[[UpstreamExchange, float], UpstreamExchange | None] | None = (
            None  # called when time is up: returns that other exchange
        )
        self.request_complete = True  # the request was handed over entirely; False while an upload goes on
        self.drained = False  # the kernel has taken all of it, too
        self.expires_mono = 0.0
        self.expiry: WireFault = _WRITE_TIMEOUT
        self.timeouts = timeouts
        self._response_ends_mono = 0.0

    @property
    def attempt(self) -> UpstreamExchange:
        """The exchange that somebody waited for: this one, unless it listens on in the place of another."""
        return self

    def writing(self, now: float) -> None:
        """Bytes were handed over that the kernel has not taken yet."""
        self.expires_mono = now + self.timeouts.write_s
        self.expiry = _WRITE_TIMEOUT

    def flushed(self, now: float) -> None:
        """The kernel has taken all bytes that were handed over."""
        if not self.request_complete:
            return
        self.drained = True
        if self.phase < _AWAITING:
            self.phase = _AWAITING
        if self._response_ends_mono:
            self._await_more(now)
        else:
            self.expires_mono = now + self.timeouts.first_byte_s
            self.expiry = _FIRST_BYTE_TIMEOUT

    def received(self, now: float) -> None:
        """Part of a response arrived. An informational response counts too, but does not extend the wait."""
        if self.parser.interim_only:
            return
        if not self._response_ends_mono:
            self._response_ends_mono = now + self.timeouts.response_s
        if self.drained:  # while we still write, the write timeout goes on
            self._await_more(now)

    def _await_more(self, now: float) -> None:
        self.expires_mono = min(now + self.timeouts.body_idle_s, self._response_ends_mono)
        self.expiry = _BODY_TIMEOUT

    @property
    def expiry_detail(self) -> str:
        return _EXPIRY_DETAILS[self.expiry]

    def progressed(self) -> None:
        """More of the response is there. For code that passes it on in pieces."""

    def conclude(self) -> None:
        """The exchange is over. The connection calls this exactly once."""
        if not self.done.done():
            self.done.set_result(None)

    def evidence(self, duration_s: float, *, reused: bool) -> Evidence:
        response = None
        detail = self.detail
        if self.phase is _COMPLETE:
            response = self.parser.response()
            detail = f"answered {response.status_code}"
        return Evidence(
            self.phase,
            self.bytes_written,
            self.fault,
            response,
            detail,
            duration_s,
            reused,
            self.reset_by_us,
            self.listening_s,
            self.repeated,
        )
