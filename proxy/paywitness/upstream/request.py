"""The origin that a call goes to, the request, and the request's bytes.

I/O does not belong here. The rule: exactly the headers given are written, plus `Host` if it is absent, plus the
framing, which is always ours. A request that could be read as two is refused before a socket is touched.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from paywitness.core.credential_and_hop_headers import TOKEN_BYTES
from paywitness.core.policy import UpstreamTrust
from paywitness.core.record import record

OPERATOR_GIVEN_TRUST = UpstreamTrust(private=True)  # for addresses that the operator gave, not a policy
_DEFAULT_PORTS = {"http": 80, "https": 443}

_TARGET_BYTES = bytes(range(0x21, 0x7F)) + bytes(range(0x80, 0x100))
_VALUE_BYTES = b"\t " + _TARGET_BYTES

_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_HOSTS_MAX = 1024  # hosts whose Host line is cached; policies name a few
_FRAMING_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


@record
class Origin:
    """Scheme, host and port: the destination of a connection."""

    scheme: str
    host: str
    port: int
    trust: UpstreamTrust = UpstreamTrust()

    @classmethod
    def parse(cls, url: str, trust: UpstreamTrust = UpstreamTrust()) -> Origin:
        """The origin that a URL names. A path, a query or a user in it is refused: an origin has none."""
        parts = urlsplit(url)
        if parts.scheme not in _DEFAULT_PORTS:
            raise ValueError(f"an upstream is http or https, not {parts.scheme!r}")
        if not parts.hostname:
            raise ValueError("an upstream needs a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError("an upstream carries no user")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError("an upstream is scheme, host and port, without a path")
        host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode("ascii")
        if host.encode("ascii").translate(None, _TARGET_BYTES) or "/" in host:
            raise ValueError("an upstream's host holds characters that no host has")
        port = parts.port if parts.port is not None else _DEFAULT_PORTS[parts.scheme]
        return cls(parts.scheme, host, port, trust)

    @property
    def secure(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """The value of the Host header. It has the port only if that is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@record
class WireRequest:
    """One request, as it goes on the wire. `target` is path?query; hop-by-hop headers are already gone."""

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@record
class StreamRequest:
    """A request whose body comes in pieces. `body_bytes` None: the length is unknown, so the body goes out chunked."""

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body_bytes: int | None = None


def request_bytes(origin: Origin, request: WireRequest) -> bytes:
    """Head and body. Raises ValueError for a request that must not be written."""
    body = request.body
    framing = b""
    if body or request.method in _METHODS_WITH_BODY:
        framing = b"Content-Length: %d\r\n" % len(body)
    return head_bytes(origin, request, framing, body)


def head_bytes(origin: Origin, request: WireRequest | StreamRequest, framing: bytes, body: bytes = b"") -> bytes:
    """The head, with `framing` in place of any framing header that was given, and `body` behind it.

    All headers are checked at once and not one by one, because that takes a third of the time on the path of every
    call.
    """
    method = request.method.encode("latin-1", "replace")
    headers = request.headers
    named = _refuse_unwritable(method, request.target, headers)
    if b"\rcontent-length\r" in named or b"\rtransfer-encoding\r" in named:
        headers = tuple(header for header in headers if header[0].lower() not in _FRAMING_HEADERS)
    hosts = named.count(b"\rhost\r")
    if hosts > 1:
        raise ValueError("a request has one Host")
    host = b"" if hosts else _host_line(origin)
    lines = b"\r\n".join(map(b": ".join, headers))
    last = b"\r\n" if lines else b""
    return b"".join((method, b" ", request.target, b" HTTP/1.1\r\n", host, lines, last, framing, b"\r\n", body))


@lru_cache(_HOSTS_MAX)
def _host_line(origin: Origin) -> bytes:
    return b"Host: %b\r\n" % origin.authority.encode("ascii")


def _refuse_unwritable(method: bytes, target: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Raise if a reader of the wire could take the request for a different one. The error names no value, because
    values are secrets.

    Deleting every allowed byte from all headers at once must leave nothing. Returns their names, in lower case, each
    between two carriage returns. No name holds one, so a name can be searched for in the result.
    """
    if not method or method.translate(None, TOKEN_BYTES):
        raise ValueError("a method is a token")
    if method == b"CONNECT":
        raise ValueError("CONNECT opens a tunnel; this client carries requests")
    if target[:1] not in (b"/", b"*") or target.translate(None, _TARGET_BYTES):
        raise ValueError("a request target starts with a slash and holds no space and no control character")
    if not headers:
        return b""
    names, values = zip(*headers, strict=True)
    if b"" in names or b"".join(names).translate(None, TOKEN_BYTES):
        raise ValueError("a header name holds a character that no header name has")
    if b"".join(values).translate(None, _VALUE_BYTES):
        raise ValueError("a header value holds a control character")
    return b"\r%b\r" % b"\r\r".join(names).lower()
