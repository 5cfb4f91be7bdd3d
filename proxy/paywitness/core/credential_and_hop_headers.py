"""Rules about HTTP headers: the characters of their names, which hold credentials, which belong to one connection, and
the caller's trace.

The trace is the one that `traceparent` names (W3C Trace Context). That header goes upstream as it came. Here only the
trace's id is read, for the log.
"""

from __future__ import annotations

import re
import string

from paywitness.core.call import Headers

# What a token is made of, such as a method or the name of a header (RFC 9110 5.6.2); and as a class of characters for
# regular expressions over text or bytes.
TOKEN_BYTES = b"!#$%&'*+-.^_`|~" + (string.digits + string.ascii_letters).encode()
TOKEN_CLASS = f"[{re.escape(TOKEN_BYTES.decode())}]"
TOKEN_BYTE_CLASS = TOKEN_CLASS.encode()

# Headers by which a caller proves who it is. They are stored sealed, and a policy cannot set them. `credential_of`
# hashes their values in this order, and journals hold those hashes: the order must not change.
CREDENTIAL_HEADERS = (b"authorization", b"x-api-key", b"api-key", b"x-auth-token")

# version, trace id, parent id, flags; a later version may add more behind a dash, and ff is none.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?\Z")


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace id, 32 hexadecimal digits; None if there is no header, or a malformed one."""
    if traceparent is None:
        return None
    found = _TRACEPARENT.match(traceparent)
    return found[1] if found is not None else None


# Headers that belong to one connection (RFC 9110 7.6.1), and the framing that the next hop makes anew.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    },
)


FRAMING = frozenset({b"content-length"})


_NOT_END_TO_END = HOP_BY_HOP | FRAMING


def end_to_end(headers: Headers) -> Headers:
    """The headers less those of one connection, those that `Connection` names, and the framing."""
    return _end_to_end(headers, ours=True)


def end_to_end_of_provider(headers: Headers) -> Headers:
    """The headers or trailers of a response that go on: as `end_to_end`, less those that speak for us."""
    return _end_to_end(headers, ours=False)


def headers_named(headers: Headers, name: bytes) -> Headers:
    """Those of one lower-case name."""
    return tuple([pair for pair in headers if pair[0].lower() == name])


def _end_to_end(headers: Headers, *, ours: bool) -> Headers:
    kept, dropped = [], _NOT_END_TO_END
    for pair in headers:
        name = pair[0].lower()
        if name == b"connection":
            dropped |= {token.strip().lower() for token in pair[1].split(b",")}
        elif ours or not name.startswith(b"paywitness-"):
            kept.append((name, pair))
    return tuple([pair for name, pair in kept if name not in dropped])
