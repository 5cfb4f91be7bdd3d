"""The caller's headers: those that go on, byte for byte and in their order, and what was meant for us alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from paywitness.core.call import CallerOptions, Headers, Priority
from paywitness.core.credential_and_hop_headers import FRAMING, HOP_BY_HOP, end_to_end
from paywitness.core.identity import CLIENT_KEY_LENGTH_MAX
from paywitness.core.problems import Problem
from paywitness.server.errors import RequestRejected, malformed

_PREFIX = b"paywitness-"
_SPECIAL_HEADERS = HOP_BY_HOP | FRAMING | {b"host", b"expect", b"prefer"}
# Of these a second one, even an equal one, may be read in two ways (RFC 9110 5.3).
_SINGLE_HEADERS = frozenset(
    b"content-length transfer-encoding host content-type content-location content-range etag max-forwards server"
    b" user-agent".split()
)
_LENGTH_DIGITS_MAX = 18  # far beyond any body
_RESPOND_ASYNC = b"respond-async"
_CONNECTION = frozenset({b"connection", b"proxy-connection"})  # some clients say the other to a proxy
_PLAIN_CONNECTION = frozenset({b"keep-alive", b"close"})
# A registered name, an address, a bracketed IPv6 address, a port (RFC 3986 3.2.2), less user information.
_HOST_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+,;=:[]"
_TIMEOUT_MS_MAX = 600_000  # ten minutes: no caller waits longer for a card
_QUOTED_MAX = 40  # of a bad value, in the answer to the one who sent it
_NO_OPTIONS = CallerOptions()

Value = TypeVar("Value")


class RequestHead(NamedTuple):
    """What a request's headers say."""

    headers: Headers  # those that go on
    options: CallerOptions
    length: int | None  # of the body, where it is said
    chunked: bool
    expects_continue: bool
    host: bytes  # empty where HTTP/1.0 names none
    keep_alive: bool
    names: frozenset[bytes]  # of all headers, in lower case


def read_head(raw: Sequence[tuple[bytes, bytes]], *, is_http11: bool) -> RequestHead:
    """Sort the headers. Raises RequestRejected for framing that may be read in two ways, and for options that make no
    sense."""
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
    """The options in `Paywitness-*` headers, given by lower-case names. Raises RequestRejected for one that makes no
    sense."""
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
# of Prefer only one word is ours


def _forward_preferences(pair: tuple[bytes, bytes], forwarded: list[tuple[bytes, bytes]]) -> None:
    rest = without_respond_async(pair[1])
    if rest is not None:
        forwarded.append((pair[0], rest))


def without_respond_async(value: bytes) -> bytes | None:
    """The preferences less `respond-async`, the rest byte for byte; None where nothing is left."""
    if _RESPOND_ASYNC not in value.lower():
        return value
    parts = _preferences(value)
    rest = [part for part in parts if part.partition(b";")[0].partition(b"=")[0].strip().lower() != _RESPOND_ASYNC]
    if len(rest) == len(parts):
        return value
    return b",".join(rest).strip(b" \t") or None


def _preferences(value: bytes) -> list[bytes]:
    """The list's elements: parted at commas, but not at those within quotes."""
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
