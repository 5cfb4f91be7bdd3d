"""The caller's headers: those that go on, byte for byte and in their order, and what was meant for us alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from proxy.core.call import Headers, Priority, Wishes
from proxy.core.identity import CLIENT_KEY_LENGTH_MAX
from proxy.core.reply import FRAMING, HOP_BY_HOP, Problem, end_to_end
from proxy.edge.refused import Refused, malformed

_PREFIX = b"paywitness-"
_WATCHED = HOP_BY_HOP | FRAMING | {b"host", b"expect", b"prefer"}
_RESPOND_ASYNC = b"respond-async"
_PLAIN_CONNECTION = frozenset({b"keep-alive", b"close"})
# A registered name, an address, a bracketed IPv6 address, a port (RFC 3986 3.2.2), less user information.
_HOST_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+,;=:[]"
_TIMEOUT_MS_MAX = 600_000  # ten minutes: no caller waits longer for a card
_QUOTED_MAX = 40  # of a bad value, in the answer to the one who sent it
_NO_WISHES = Wishes()

Value = TypeVar("Value")


class Head(NamedTuple):
    """What a request's headers say."""

    headers: Headers  # those that go on
    wishes: Wishes
    length: int | None  # of the body, where it is said
    chunked: bool
    expects_continue: bool
    host: bytes  # empty where HTTP/1.0 names none


def read_head(raw: Headers, *, is_http11: bool) -> Head:
    """Sort the headers. Raises Refused for framing that may be read in two ways, and for wishes that make no sense."""
    kept: list[tuple[bytes, bytes]] = []
    watched: list[tuple[bytes, bytes]] = []
    ours: dict[bytes, bytes] = {}
    for pair in raw:
        name = pair[0].lower()
        if name in _WATCHED:
            if name == b"prefer":
                _keep_preferences(pair, kept)
            else:
                watched.append((name, pair[1]))
        elif name[:11] == _PREFIX:
            if name in ours:
                raise malformed(f"{_spelt(name)} was sent twice; it may be sent once.")
            ours[name] = pair[1]
        else:
            kept.append(pair)
    return _framed(kept, watched, read_wishes(ours) if ours else _NO_WISHES, is_http11=is_http11)


def _framed(
    kept: list[tuple[bytes, bytes]], watched: list[tuple[bytes, bytes]], wishes: Wishes, *, is_http11: bool
) -> Head:
    connection: list[tuple[bytes, bytes]] = []
    length: int | None = None
    chunked = expects_continue = False
    host = b""
    for name, value in watched:
        if name == b"host":
            host = value if _is_host(value) else b""
        elif name == b"content-length":
            length = int(value)  # digits only, and once: the parser saw to it
        elif name == b"transfer-encoding":
            chunked = _is_chunked(value, is_http11=is_http11)
        elif name == b"connection":
            if value.lower() not in _PLAIN_CONNECTION:
                connection.append((name, value))
        elif name == b"expect":
            expects_continue = _is_continue(value) and is_http11
    if is_http11 and not host:
        raise malformed("The Host header is missing, empty, or no host.")
    headers = end_to_end((*connection, *kept)) if connection else tuple(kept)
    return Head(headers, wishes, length, chunked, expects_continue, host)


def _is_host(value: bytes) -> bool:
    return bool(value) and not value.translate(None, _HOST_BYTES)


def _is_chunked(value: bytes, *, is_http11: bool) -> bool:
    """The parser lets other codings pass before `chunked`, and lets HTTP/1.0 use it."""
    if value.lower() != b"chunked" or not is_http11:
        raise malformed("The only transfer coding understood is `chunked`, in HTTP/1.1.")
    return True


def _is_continue(value: bytes) -> bool:
    if value.lower() != b"100-continue":
        raise Refused(Problem.MALFORMED, "The only expectation that can be met is `100-continue`.", 417)
    return True


# --- what was meant for us


def read_wishes(ours: Mapping[bytes, bytes]) -> Wishes:
    """The wishes in `Paywitness-*` headers, given by lower-case names. Raises Refused for one that makes no sense."""
    for name in ours:
        if name not in _READERS:
            allowed = ", ".join(_spelt(known) for known in _READERS)
            raise malformed(f"{_spelt(name)} is no header of ours; known are {allowed}.")
    return Wishes(
        key=_read(ours, b"paywitness-key", _text, None),
        intent=_read(ours, b"paywitness-intent", _text, None),
        account=_read(ours, b"paywitness-account", _text, None),
        timeout_s=_read(ours, b"paywitness-timeout-ms", _timeout_s, None),
        priority=_read(ours, b"paywitness-priority", _priority, None),
        distinct=_read(ours, b"paywitness-distinct", _text, None),
    )


def _read(ours: Mapping[bytes, bytes], name: bytes, reader: Callable[[str], Value], otherwise: Value) -> Value:
    if name not in ours:
        return otherwise
    found = ours[name].decode("latin-1")
    try:
        return reader(found)
    except ValueError:
        shown = found if len(found) <= _QUOTED_MAX else found[:_QUOTED_MAX] + "..."
        raise malformed(f"{_spelt(name)} is {shown!r}; allowed is {_READERS[name]}.") from None


def _spelt(name: bytes) -> str:
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
_READERS = {
    b"paywitness-key": _TEXT_ALLOWED,
    b"paywitness-intent": _TEXT_ALLOWED,
    b"paywitness-account": _TEXT_ALLOWED,
    b"paywitness-timeout-ms": f"a whole number of milliseconds from 1 to {_TIMEOUT_MS_MAX}",
    b"paywitness-priority": " or ".join(Priority),
    b"paywitness-distinct": f"a reason of {_TEXT_ALLOWED}",
}


# --- of Prefer only one word is ours


def _keep_preferences(pair: tuple[bytes, bytes], kept: list[tuple[bytes, bytes]]) -> None:
    rest = without_respond_async(pair[1])
    if rest is not None:
        kept.append((pair[0], rest))


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
    for place, byte in enumerate(value):
        if escaped:
            escaped = False
        elif quoted and byte == ord("\\"):
            escaped = True
        elif byte == ord('"'):
            quoted = not quoted
        elif byte == ord(",") and not quoted:
            parts.append(value[start:place])
            start = place + 1
    return [*parts, value[start:]]
