"""A reply to bytes: its status, its headers in their order and case, its body; framing and connection are ours.

Nothing is invented for a provider's answer but a Date where it has none, and nothing of it is lost but what belongs to
one connection. A header that would split the head does not leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

from paywitness.clock import Clock
from paywitness.core.call import Headers
from paywitness.core.credential_and_hop_headers import FRAMING, HOP_BY_HOP, TOKEN_BYTES
from paywitness.core.reply import Reply

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CONNECTION_CLOSE = b"Connection: close"
CONNECTION_LINES = {  # by whether the connection is kept, and whether the caller speaks HTTP/1.1
    (False, False): CONNECTION_CLOSE,
    (False, True): CONNECTION_CLOSE,
    (True, False): b"Connection: keep-alive",  # HTTP/1.0 must be told
    (True, True): b"",
}
CHUNKED = b"Transfer-Encoding: chunked"

_DROPPED = (HOP_BY_HOP | FRAMING) - {b"trailer"}  # a streamed reply may have some, and announce them
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus}
_CODE_LENGTH = len(b"HTTP/1.1 200 ")
BODILESS = frozenset({204, 304})
# Control characters, less the tab: none of them may stand in a header (RFC 9110 5.5).
_CONTROLS = bytes({*range(0x20), 0x7F} - {0x09})


@dataclass(slots=True)
class DateLine:
    """The Date header, made anew once a second."""

    clock: Clock
    _second: int = -1
    _line: bytes = b""

    def now(self) -> bytes:
        second = int(self.clock.now())
        if second != self._second:
            self._second = second
            self._line = f"Date: {formatdate(second, usegmt=True)}".encode()
        return self._line


def head_bytes(
    status_code: int,
    headers: Headers,
    framing: bytes,
    connection: bytes,
    date_line: bytes,
    reason: bytes | None = None,
) -> bytes:
    """The head of a final answer. `framing`, `connection` and `date_line` are header lines, or empty. `reason` is the
    provider's own phrase.

    Raises ValueError for a status that ends nothing.
    """
    if not 200 <= status_code <= 999:
        raise ValueError("the status of a final answer lies between 200 and 999")
    lines = [_STATUS_LINES.get(status_code) or b"HTTP/1.1 %d " % status_code]
    if reason is not None:
        lines[0] = lines[0][:_CODE_LENGTH] + reason
    for pair in headers:
        name = pair[0].lower()
        if name not in _DROPPED:
            lines.append(b": ".join(pair))
            if name == b"date":
                date_line = b""
    for line in (framing, connection, date_line):
        if line:
            lines.append(line)
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    # Counting is cheaper than looking at every value: a character that ends a line early shows in the sum.
    ends = len(lines) + 1
    if head.count(b"\r") != ends or head.count(b"\n") != ends or b"\0" in head:
        return head_bytes(status_code, valid_headers(headers), framing, connection, date_line)  # and our own phrase
    return head


def last_chunk_bytes(trailers: Headers) -> bytes:
    """The end of a chunked body."""
    return b"".join([b"0\r\n", *(b"%b: %b\r\n" % pair for pair in valid_headers(trailers)), b"\r\n"])


def valid_headers(headers: Headers) -> Headers:
    """The headers less those that are none: control characters in them, or a name that is no name."""
    return tuple(
        (name, value)
        for name, value in headers
        if name and not name.translate(None, TOKEN_BYTES) and len(value.translate(None, _CONTROLS)) == len(value)
    )


def reply_bytes(reply: Reply, method: str, connection: bytes, date_line: bytes) -> tuple[bytes, bytes]:
    """A whole answer: head and body, to be written one after the other."""
    if method == "HEAD" or reply.status_code in BODILESS:
        length = content_length(reply.headers)
        framing = b"Content-Length: %d" % length if length is not None and reply.status_code != 204 else b""
        return head_bytes(reply.status_code, reply.headers, framing, connection, date_line, reply.reason), b""
    framing = b"Content-Length: %d" % len(reply.body)
    return head_bytes(reply.status_code, reply.headers, framing, connection, date_line, reply.reason), reply.body


def content_length(headers: Headers) -> int | None:
    """What a reply's own Content-Length says, if it says one thing."""
    values = {value for name, value in headers if name.lower() == b"content-length"}
    if len(values) != 1:
        return None
    value = values.pop()
    return int(value) if value.isdigit() and len(value) <= 18 else None  # 18 digits: far beyond any body
