"""Bytes to requests, one after the other. Pure: no socket, no clock.

httptools judges every head and reads the chunks. A grammar of our own checks the raw head first, because httptools
accepts heads that are too ambiguous for a payment: bare CR and LF before a request, extra spaces in its line, any
version number, several codings. A head must satisfy both. The rule: framing that can be read in two ways is refused,
never repaired, and nothing behind it is read.

Every request has a parser of its own, so no byte of one request can reach the next. We count the bytes of a body with a
length ourselves. Only httptools knows the end of a chunked body: bytes that came behind it in the same read are not
read as a request.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

import httptools

from paywitness.core.credential_and_hop_headers import TOKEN_BYTE_CLASS
from paywitness.core.problems import Problem
from paywitness.server.errors import RequestRejected, malformed
from paywitness.server.heads import RequestHead, read_head
from paywitness.server.limits_and_timeouts import ServerLimits

_HEAD = re.compile(
    rb"([A-Z]++) ([\x21-\x7e]++) HTTP/1\.([01])\r\n"
    rb"(?:" + TOKEN_BYTE_CLASS + rb"++:[\t\x20-\x7e\x80-\xff]*+\r\n)*"
    rb"\r\n"
)
_HEADER = re.compile(rb"\r\n([^:\r]++):[ \t]*+([^\r]*+)")  # in a head that has passed the grammar
_HEAD_FAULTS = (  # why the grammar refused a head; the first pattern that matches says it
    (re.compile(rb"(?<!\r)\n|\r(?!\n)"), "A bare CR or LF stands in the head."),
    (re.compile(rb"\r\n[ \t]"), "A header is folded."),
    (re.compile(rb"\A[A-Z]+ [\x21-\x7e]+ HTTP/(?!1\.[01]\r\n)"), "Only HTTP/1.1 and HTTP/1.0 are spoken here."),
)
_HEAD_FAULT = "The request is not well-formed HTTP/1.1, or its framing can be read in two ways."
_HEAD_END = b"\r\n\r\n"
_LINE_END = b"\r\n"
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_EMPTY_LINES = re.compile(rb"(?:\r\n)*(\n|\r[^\n])?")  # then a bare CR or LF; after a last CR its LF may follow
_BEGINNING = re.compile(rb"[A-Z\r\n]")
_METHOD = re.compile(rb"[A-Z]{1,20}(?: |\Z)")
_REQUEST_LINE = re.compile(rb"[A-Z]{1,20} ++[\x21-\x7e]++ ++HTTP/1\.[01]\r\n")
_CHEAPLY_COPIED_BYTES = 8 * 1024
_SPACES = 2  # in a request line: before its target and behind it

_CHUNKED_END = b"\r\n0\r\n\r\n"  # how a chunked body without trailers ends
# Chunk sizes and extensions are not part of the body. They may take this much, plus eight bytes for every byte of body.
# A caller that sends one byte in each chunk needs five.
_CHUNK_OVERHEAD_BYTES = 64 * 1024
_CHUNK_OVERHEAD_RATIO = 8


class IncomingRequest(NamedTuple):
    """A request whose whole head has arrived."""

    method: str
    target: str
    is_http11: bool
    keep_alive: bool  # its head allows another request after it
    headers: tuple[tuple[bytes, bytes], ...]  # all of them, as they came
    head: RequestHead

    def values(self, name: bytes) -> tuple[str, ...]:
        """The values of every header of this name, which is given in lower case."""
        if name not in self.head.names:
            return ()
        return tuple([value.decode("latin-1") for found, value in self.headers if found.lower() == name])


# --- Bodies


class LengthBody:
    """The body of one request, as far as it has arrived and nobody has taken it. Its length is known, and may be 0."""

    __slots__ = (
        *("bytes_left", "complete", "continue_due", "ends_plainly", "fault", "held", "received_bytes"),
        "waited_s",
    )

    def __init__(self, length: int) -> None:
        self.bytes_left = length  # how many of the next bytes are still part of it
        self.held: bytes | bytearray = b""  # the bytes that nobody has taken yet
        self.received_bytes = 0
        self.complete = not length
        self.ends_plainly = True  # the beginning of the next request is certain
        self.fault: RequestRejected | None = None  # why it will never be whole
        self.continue_due = False  # its sender waits for an interim response
        self.waited_s = 0.0  # how long we have waited for it

    def feed(self, data: bytes) -> bytes:
        """Read on, and return the bytes behind its end."""
        rest = b""
        if len(data) > self.bytes_left:
            data, rest = data[: self.bytes_left], data[self.bytes_left :]
        self.bytes_left -= len(data)
        self.received_bytes += len(data)
        # Nearly every body comes in one read, and is kept as it came.
        self.held = self._held_and(data) if self.held else data
        self.complete = not self.bytes_left
        return rest

    def take(self, bytes_max: int) -> bytes:
        """The next bytes of it, at most `bytes_max`."""
        held = self.held
        if len(held) <= bytes_max:
            self.held = b""
            return bytes(held)
        if isinstance(held, bytes):
            held = self.held = bytearray(held)  # its front can be cut off without moving the rest
        piece = bytes(held[:bytes_max])
        del held[:bytes_max]
        return piece

    def _held_and(self, data: bytes) -> bytearray:
        held = bytearray(self.held) if isinstance(self.held, bytes) else self.held
        held += data
        return held


class ChunkedBody(LengthBody):
    """A body in chunks. Trailers are read for their framing, and dropped."""

    __slots__ = ("_headers_left", "_overhead_bytes", "_parser", "_stalled_bytes", "_tail", "_trailer_bytes_max")

    def __init__(self, limits: ServerLimits) -> None:
        super().__init__(sys.maxsize)  # the length is unknown: only httptools will find the end
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._headers_left = limits.headers_max  # trailers count among the headers
        self._trailer_bytes_max = limits.head_bytes_max
        self._overhead_bytes = 0
        self._stalled_bytes = 0  # that have come since the latest byte of body
        self._tail = b""

    def judge(self, raw_head: bytes) -> httptools.HttpRequestParser:
        """Give httptools the head. Raises what httptools does."""
        parser = self._parser
        assert parser is not None
        parser.feed_data(raw_head)
        self._tail = raw_head[-len(_LINE_END) :]
        return parser

    def feed(self, data: bytes) -> bytes:
        if self._parser is None:
            return b""  # its framing has failed: further bytes mean nothing
        before = self.received_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # we never switch protocols; httptools raises this at the end of the body
        except httptools.HttpParserError:
            if not self.complete:
                self._refuse("The framing of the body is broken.")
            self.ends_plainly = False
        self._tail = (self._tail + data[-len(_CHUNKED_END) :])[-len(_CHUNKED_END) :]
        if self.complete:
            self._parser = None
            self.ends_plainly = self.ends_plainly and self._tail == _CHUNKED_END
        else:
            self._bound(len(data), self.received_bytes - before)
        return b""

    def _bound(self, size: int, body_bytes: int) -> None:
        self._overhead_bytes += size - body_bytes
        self._stalled_bytes = 0 if body_bytes else self._stalled_bytes + size
        allowed_bytes = _CHUNK_OVERHEAD_BYTES + _CHUNK_OVERHEAD_RATIO * self.received_bytes
        if self._overhead_bytes > allowed_bytes or self._stalled_bytes > self._trailer_bytes_max:
            self._refuse("The body has more framing, or larger trailers, than is served.")

    def _refuse(self, detail: str) -> None:
        self._parser = None
        self.fault = self.fault or malformed(detail)

    # -- called by httptools

    def on_message_begin(self) -> None:
        if self.complete:
            self.ends_plainly = False  # a second message in the same read

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called for headers of the head and for trailers."""
        self._headers_left -= 1
        if self._headers_left < 0 and not self.complete:
            self._refuse("The request has more headers and trailers than are served.")

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.received_bytes += len(data)
            self.held = self._held_and(data) if self.held else data

    def on_message_complete(self) -> None:
        if self.fault is None:
            self.complete = True


NO_BODY = LengthBody(0)  # nothing is ever fed to it

# --- Heads


def parse_head(raw: bytes, limits: ServerLimits) -> tuple[IncomingRequest, LengthBody]:
    """Read one head, from its first byte to its empty line. Raises RequestRejected."""
    if len(raw) > limits.line_bytes_max:
        _check_lines(raw, limits)
    found = _HEAD.fullmatch(raw)
    if found is None or raw.count(_LINE_END) - 2 > limits.headers_max:
        raise malformed(_head_fault(raw) if found is None else "The request has more headers than are served.")
    method, target, minor_version = found.groups()
    headers: list[tuple[bytes, bytes]] = _HEADER.findall(raw, found.end(3))
    if b" \r\n" in raw or b"\t\r\n" in raw:
        headers = [(name, value.rstrip(b" \t")) for name, value in headers]
    is_http11 = minor_version == b"1"
    head = read_head(headers, is_http11=is_http11)
    chunked_body = ChunkedBody(limits) if head.chunked else None
    try:  # httptools judges the head too
        if chunked_body is not None:
            parser = chunked_body.judge(raw)
        else:
            parser = httptools.HttpRequestParser(None)
            parser.feed_data(raw)
        asks_upgrade = parser.should_upgrade()
    except httptools.HttpParserUpgrade:
        asks_upgrade = True  # to another protocol
    except httptools.HttpParserError:
        raise malformed(_HEAD_FAULT) from None
    keep_alive = head.keep_alive and not asks_upgrade
    body = chunked_body or (LengthBody(head.length) if head.length else NO_BODY)
    if not body.complete:
        body.continue_due = head.expects_continue
    return IncomingRequest(method.decode(), target.decode(), is_http11, keep_alive, tuple(headers), head), body


def _check_lines(raw: bytes, limits: ServerLimits) -> None:
    if len(raw) > limits.head_bytes_max:
        raise head_too_large(limits)
    if max(map(len, raw.split(_LINE_END))) > limits.line_bytes_max:
        raise RequestRejected(
            Problem.TOO_LARGE, f"A line of the head is longer than {limits.line_bytes_max} bytes.", 431
        )


def head_too_large(limits: ServerLimits) -> RequestRejected:
    return RequestRejected(Problem.TOO_LARGE, f"The head is larger than {limits.head_bytes_max} bytes.", 431)


def _head_fault(raw: bytes) -> str:
    for pattern, detail in _HEAD_FAULTS:
        if pattern.search(raw):
            return detail
    return _HEAD_FAULT


# --- The bytes of one connection


class RequestParser:
    """Reads the requests of one connection, one at a time. Bytes behind one are kept for the next call."""

    __slots__ = ("_empty_line_bytes", "_limits", "_searched", "_unread", "body")

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._unread: bytes | bytearray = b""  # the bytes behind the latest request
        self._searched = 0  # how many of them were searched for the end of a head
        self._empty_line_bytes = 0  # how many bytes of empty lines came before them
        self.body: LengthBody = NO_BODY  # of the latest request

    @property
    def unread_bytes(self) -> int:
        return len(self._unread)

    @property
    def held_bytes(self) -> int:
        """How many bytes have arrived that nobody has taken."""
        return len(self._unread) + len(self.body.held)

    @property
    def has_whole_head(self) -> bool:
        return _HEAD_END in self._unread

    def feed(self, data: bytes) -> int:
        """Take bytes that have arrived. Returns how many bytes nobody has taken yet."""
        if not self.body.complete:
            data = self.body.feed(data)
        if not self._unread:
            self._unread = data
        elif data:
            if isinstance(self._unread, bytes):
                self._unread = bytearray(self._unread)
            self._unread += data
        return len(self._unread) + len(self.body.held)

    def next_request(self) -> IncomingRequest | None:
        """The next request, once its head is whole; its body is then in `body`. Raises RequestRejected."""
        unread = self._unread
        if unread and unread[0] in _LINE_END:
            if not self._skip_empty_lines():
                raise malformed("What stands before the request line can be read in two ways.")
            unread = self._unread
        end = unread.find(_HEAD_END, max(0, self._searched - len(_HEAD_END))) + len(_HEAD_END)
        if end < len(_HEAD_END):
            self._refuse_early()
            self._searched = len(unread)
            return None
        self._searched = self._empty_line_bytes = 0
        request, self.body = parse_head(self._cut_off(end), self._limits)
        body = self.body
        if self._unread and not body.complete:
            if len(self._unread) <= body.bytes_left:
                body.feed(bytes(self._unread))
                self._unread = b""
            else:
                body.feed(self._cut_off(body.bytes_left))
        if self._unread or body.fault is not None:
            self._refuse_torn()
        return request

    def _refuse_torn(self) -> None:
        """Refuse a request whose body is known to be broken before anybody has seen it, or is followed by bytes that
        begin no request: then its real length is not the one that it announced. Raises RequestRejected.

        A bare CR or LF behind it, or an extra space in the next request line, only ends the connection.
        """
        if self.body.fault is not None:
            raise self.body.fault
        if self.body.complete and self._skip_empty_lines() and self._unread:
            line_end = self._unread.find(_LINE_END)
            beginning = _METHOD if line_end < 0 else _REQUEST_LINE
            if not beginning.match(self._unread) and self._unread[0] not in _LINE_END:
                raise malformed("What stands behind the body begins no request: the length of the body is wrong.")

    def _cut_off(self, size: int) -> bytes:
        """Take the first unread bytes. If many small requests come in one read, each costs its own size and not that of
        all."""
        unread = self._unread
        if size == len(unread):
            self._unread = b""
            return bytes(unread)
        if len(unread) <= _CHEAPLY_COPIED_BYTES:
            self._unread = unread[size:]
            return bytes(unread[:size])
        if isinstance(unread, bytes):
            unread = self._unread = bytearray(unread)  # its front can be cut off without moving the rest
        first = bytes(unread[:size])
        del unread[:size]
        return first

    def begins_ambiguously(self) -> bool:
        """Whether the bytes behind the latest request begin in a way that another parser could read differently."""
        if not self._unread:
            return False
        if not self._skip_empty_lines():
            return True
        end = self._unread.find(_LINE_END)
        return end >= 0 and self._unread.count(b" ", 0, end) != _SPACES

    def _skip_empty_lines(self) -> bool:
        """Skip the empty lines before a request, which are harmless (RFC 9112 2.2). False if a bare CR or LF follows:
        it ends a line for some parsers and not for others."""
        unread = self._unread
        if not unread or unread[0] not in _LINE_END:
            return True
        lines = _EMPTY_LINES.match(unread)
        assert lines is not None
        if lines[1]:
            return False
        self._unread = unread[lines.end() :]
        self._searched = 0
        self._empty_line_bytes += lines.end()
        return True

    def _refuse_early(self) -> None:
        """Refuse a head that is invalid whatever follows. Waiting for the rest would turn the reason into a timeout.
        Raises RequestRejected."""
        unread = self._unread
        if unread and not _BEGINNING.match(unread):
            raise malformed(_HEAD_FAULT)
        if _BARE_LINE_FEED.search(unread, max(0, self._searched - 1), self._limits.head_bytes_max):
            raise malformed("A bare CR or LF stands in the head.")
        if len(unread) + self._empty_line_bytes > self._limits.head_bytes_max:
            raise head_too_large(self._limits)
