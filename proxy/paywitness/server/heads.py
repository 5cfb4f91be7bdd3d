"""The heads of requests and of replies. Pure.

The caller's headers are sorted: those that go on, byte for byte and in their order, and those that are for us alone.
A reply becomes bytes: its status, its headers in their order and case, its body; framing and connection are ours.
A provider's response keeps all headers but those of one connection, and gains only a Date if it has none. A header that
would split the head is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from paywitness.clock import Clock
from paywitness.core.call import CallerOptions, Headers, Priority
from paywitness.core.credential_and_hop_headers import FRAMING, HOP_BY_HOP, TOKEN_BYTES, end_to_end
from paywitness.core.identity import CLIENT_KEY_LENGTH_MAX
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply
from paywitness.server.errors import RequestRejected, malformed

_PREFIX = b"paywitness-"
_SPECIAL_HEADERS = HOP_BY_HOP | FRAMING | {b"host", b"expect", b"prefer"}
# If one of these comes twice, even with equal values, it may be read in two ways (RFC 9110 5.3).
_SINGLE_HEADERS = frozenset(
    b"content-length transfer-encoding host content-type content-location content-range etag max-forwards server"
    b" user-agent".split()
)
_LENGTH_DIGITS_MAX = 18  # far beyond any body
_RESPOND_ASYNC = b"respond-async"
_CONNECTION = frozenset({b"connection", b"proxy-connection"})  # some clients send the second one to a proxy
_PLAIN_CONNECTION = frozenset({b"keep-alive", b"close"})
# A registered name, an address, a bracketed IPv6 address, a port (RFC 3986 3.2.2), without user information.
_HOST_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+,;=:[]"
_TIMEOUT_MS_MAX = 600_000  # ten minutes: no caller waits longer for a card
_QUOTED_MAX = 40  # characters of a bad value that the reply to its sender quotes
_NO_OPTIONS = CallerOptions()

Value = TypeVar("Value")


class RequestHead(NamedTuple):
    """A request's headers, read."""

    headers: Headers  # those that go on
    options: CallerOptions
    length: int | None  # of the body; None if no header says it
    chunked: bool
    expects_continue: bool
    host: bytes  # empty if an HTTP/1.0 request names none
    keep_alive: bool
    names: frozenset[bytes]  # of all headers, in lower case


def read_head(raw: Sequence[tuple[bytes, bytes]], *, is_http11: bool) -> RequestHead:
    """Sort the headers. Raises RequestRejected for framing that may be read in two ways, and for invalid options."""
    forwarded: list[tuple[bytes, bytes]] = []
    special: list[tuple[bytes, bytes]] = []
    control: dict[bytes, bytes] = {}
    all_names: list[bytes] = []
    for pair in raw:
        name = pair[0].lower()
        all_names.append(name)
        if name in _SPECIAL_HEADERS:
            if name == b"prefer":
                _forward_preferences(pair, forwarded)
            else:
                special.append((name, pair[1]))
        elif name[:11] == _PREFIX:
            if name in control:
                raise malformed(f"{_display_name(name)} was sent twice; it may be sent once.")
            control[name] = pair[1]
        else:
            forwarded.append(pair)
    names = frozenset(all_names)
    if len(names) < len(all_names):
        _refuse_repeated(all_names)
    if b"transfer-encoding" in names and b"content-length" in names:
        raise malformed("A request with Content-Length and Transfer-Encoding can be read in two ways.")
    options = read_caller_options(control) if control else _NO_OPTIONS
    return _build_head(forwarded, special, options, names, is_http11=is_http11)


def _refuse_repeated(names: Sequence[bytes]) -> None:
    for name in _SINGLE_HEADERS.intersection(names):
        if names.count(name) > 1:
            raise malformed(f"{_display_name(name)} was sent twice; it may be sent once.")


def _build_head(
    forwarded: list[tuple[bytes, bytes]],
    special: list[tuple[bytes, bytes]],
    options: CallerOptions,
    names: frozenset[bytes],
    *,
    is_http11: bool,
) -> RequestHead:
    connection: list[tuple[bytes, bytes]] = []
    length: int | None = None
    chunked = expects_continue = False
    connection_tokens: set[bytes] = set()
    host = b""
    for name, value in special:
        if name == b"host":
            host = b"" if value.translate(None, _HOST_BYTES) else value
        elif name == b"content-length":
            length = _length(value)
        elif name == b"transfer-encoding":
            chunked = _is_chunked(value, is_http11=is_http11)
        elif name in _CONNECTION:
            lowered = value.lower()
            if lowered in _PLAIN_CONNECTION:
                connection_tokens.add(lowered)
                continue
            connection_tokens.update([token.strip(b" \t") for token in lowered.split(b",")])
            if name == b"connection":
                connection.append((name, value))
        elif name == b"expect":
            expects_continue = _is_continue(value) and is_http11
    if is_http11 and not host:
        raise malformed("The Host header is missing, empty, or no host.")
    headers = end_to_end((*connection, *forwarded)) if connection else tuple(forwarded)
    keep_alive = b"close" not in connection_tokens and (is_http11 or b"keep-alive" in connection_tokens)
    return RequestHead(headers, options, length, chunked, expects_continue, host, keep_alive, names)


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > _LENGTH_DIGITS_MAX:
        raise malformed("Content-Length is no length.")
    return int(value)


def _is_chunked(value: bytes, *, is_http11: bool) -> bool:
    if value.lower() != b"chunked" or not is_http11:
        raise malformed("The only transfer coding understood is `chunked`, in HTTP/1.1.")
    return True


def _is_continue(value: bytes) -> bool:
    if value.lower() != b"100-continue":
        raise RequestRejected(Problem.MALFORMED, "The only expectation that can be met is `100-continue`.", 417)
    return True


# --- Paywitness-* headers


def read_caller_options(control: Mapping[bytes, bytes]) -> CallerOptions:
    """The options in `Paywitness-*` headers, given by lower-case names. Raises RequestRejected for an invalid one."""
    for name in control:
        if name not in _ALLOWED_VALUES:
            allowed = ", ".join(_display_name(known) for known in _ALLOWED_VALUES)
            raise malformed(f"{_display_name(name)} is no header of ours; known are {allowed}.")
    return CallerOptions(
        key=_read(control, b"paywitness-key", _text, None),
        intent=_read(control, b"paywitness-intent", _text, None),
        account=_read(control, b"paywitness-account", _text, None),
        timeout_s=_read(control, b"paywitness-timeout-ms", _timeout_s, None),
        priority=_read(control, b"paywitness-priority", _priority, None),
        distinct=_read(control, b"paywitness-distinct", _text, None),
    )


def _read(control: Mapping[bytes, bytes], name: bytes, reader: Callable[[str], Value], default: Value) -> Value:
    if name not in control:
        return default
    found = control[name].decode("latin-1")
    try:
        return reader(found)
    except ValueError:
        excerpt = found if len(found) <= _QUOTED_MAX else found[:_QUOTED_MAX] + "..."
        raise malformed(f"{_display_name(name)} is {excerpt!r}; allowed is {_ALLOWED_VALUES[name]}.") from None


def _display_name(name: bytes) -> str:
    return name.decode("latin-1").title()


def _text(found: str) -> str:
    if not found.strip() or len(found) > CLIENT_KEY_LENGTH_MAX or not found.isascii() or not found.isprintable():
        raise ValueError
    return found


def _timeout_s(found: str) -> float:
    if not found.isascii() or not found.isdigit() or not 0 < int(found[:9]) <= _TIMEOUT_MS_MAX or len(found) > 9:
        raise ValueError
    return int(found) / 1000


def _priority(found: str) -> Priority:
    return Priority(found)


_TEXT_ALLOWED = f"1 to {CLIENT_KEY_LENGTH_MAX} printable ASCII characters"
_ALLOWED_VALUES = {
    b"paywitness-key": _TEXT_ALLOWED,
    b"paywitness-intent": _TEXT_ALLOWED,
    b"paywitness-account": _TEXT_ALLOWED,
    b"paywitness-timeout-ms": f"a whole number of milliseconds from 1 to {_TIMEOUT_MS_MAX}",
    b"paywitness-priority": " or ".join(Priority),
    b"paywitness-distinct": f"a reason of {_TEXT_ALLOWED}",
}


# --- Prefer
# Of the preferences only `respond-async` is for us.


def _forward_preferences(pair: tuple[bytes, bytes], forwarded: list[tuple[bytes, bytes]]) -> None:
    rest = without_respond_async(pair[1])
    if rest is not None:
        forwarded.append((pair[0], rest))


def without_respond_async(value: bytes) -> bytes | None:
    """The preferences without `respond-async`, the rest byte for byte. None if nothing is left."""
    if _RESPOND_ASYNC not in value.lower():
        return value
    parts = _preferences(value)
    rest = [part for part in parts if part.partition(b";")[0].partition(b"=")[0].strip().lower() != _RESPOND_ASYNC]
    if len(rest) == len(parts):
        return value
    return b",".join(rest).strip(b" \t") or None


def _preferences(value: bytes) -> list[bytes]:
    """The list's elements: split at commas, but not at those within quotes."""
    parts: list[bytes] = []
    start = 0
    quoted = escaped = False
    for index, byte in enumerate(value):
        if escaped:
            escaped = False
        elif quoted and byte == ord("\\"):
            escaped = True
        elif byte == ord('"'):
            quoted = not quoted
        elif byte == ord(",") and not quoted:
            parts.append(value[start:index])
            start = index + 1
    return [*parts, value[start:]]


# --- Replies

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CONNECTION_CLOSE = b"Connection: close"
CONNECTION_LINES = {  # by whether the connection is kept, and whether the caller speaks HTTP/1.1
    (False, False): CONNECTION_CLOSE,
    (False, True): CONNECTION_CLOSE,
    (True, False): b"Connection: keep-alive",  # HTTP/1.0 closes without it
    (True, True): b"",
}
CHUNKED = b"Transfer-Encoding: chunked"

_DROPPED = (HOP_BY_HOP | FRAMING) - {b"trailer"}  # a streamed reply may have some, and announce them
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus}
_CODE_LENGTH = len(b"HTTP/1.1 200 ")
BODILESS = frozenset({204, 304})
# Control characters except the tab: none of them may be in a header (RFC 9110 5.5).
_CONTROLS = bytes({*range(0x20), 0x7F} - {0x09})


@dataclass(slots=True)
class DateLine:
    """The Date header line, made once a second."""

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
    """The head of a final reply. `framing`, `connection` and `date_line` are header lines, or empty. `reason` is the
    provider's own phrase.

    Raises ValueError for a status that is not a final one.
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
    # Counting line ends is cheaper than checking every value: a character that ends a line early changes the sum.
    ends = len(lines) + 1
    if head.count(b"\r") != ends or head.count(b"\n") != ends or b"\0" in head:
        return head_bytes(status_code, valid_headers(headers), framing, connection, date_line)  # and our own phrase
    return head


def last_chunk_bytes(trailers: Headers) -> bytes:
    """The end of a chunked body."""
    return b"".join([b"0\r\n", *(b"%b: %b\r\n" % pair for pair in valid_headers(trailers)), b"\r\n"])


def valid_headers(headers: Headers) -> Headers:
    """The valid headers. One with a control character in it, or with an invalid name, is left out."""
    return tuple(
        (name, value)
        for name, value in headers
        if name and not name.translate(None, TOKEN_BYTES) and len(value.translate(None, _CONTROLS)) == len(value)
    )


def reply_bytes(reply: Reply, method: str, connection: bytes, date_line: bytes) -> tuple[bytes, bytes]:
    """A whole reply: head and body, to be written one after the other."""
    if method == "HEAD" or reply.status_code in BODILESS:
        length = content_length(reply.headers)
        framing = b"Content-Length: %d" % length if length is not None and reply.status_code != 204 else b""
        return head_bytes(reply.status_code, reply.headers, framing, connection, date_line, reply.reason), b""
    framing = b"Content-Length: %d" % len(reply.body)
    return head_bytes(reply.status_code, reply.headers, framing, connection, date_line, reply.reason), reply.body


def content_length(headers: Headers) -> int | None:
    """The value of a reply's own Content-Length. None if it has none, or different ones."""
    values = {value for name, value in headers if name.lower() == b"content-length"}
    if len(values) != 1:
        return None
    value = values.pop()
    return int(value) if value.isdigit() and len(value) <= 18 else None  # 18 digits: far beyond any body
