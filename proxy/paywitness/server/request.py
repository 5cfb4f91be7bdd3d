"""A request's head to a Call, or to a page of our own.

`Ingress` is the way by which the request came: our address, a provider's port, a proxy setting, a kernel redirect. It
says, with the target of the request line, which provider the request is for. The path is forwarded byte for byte;
decoded segments are only for matching. The rule: a path that the match and the provider could read differently is
rejected: empty and dot segments, encoded slashes, broken or non-UTF-8 escapes, control characters, fragments.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from paywitness.core.allowed_hosts import AllowedHosts, host_and_port
from paywitness.core.call import Call
from paywitness.core.operation import Outcome
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply
from paywitness.server.engine_interface import CallHandler
from paywitness.server.errors import RequestRejected, malformed
from paywitness.server.heads import RequestHead
from paywitness.server.refused_hosts import log_unlisted_host
from paywitness.server.request_parser import IncomingRequest

HTTP_PORT, HTTPS_PORT = 80, 443


@dataclass(frozen=True, slots=True)
class Ingress:
    provider: str | None = None  # every path is this provider's; None: the path says it, or the host
    host: str | None = None  # the host that the caller believes it is connected to; its requests must name it too
    port: int = HTTPS_PORT  # the port of that host
    redirected: bool = False  # by the kernel: the caller does not know of us, and its Host names the real destination


REVERSE_PROXY = Ingress()

# --- Request target

# Servers that know path parameters drop ";..." before they look at the segment, so "..;x" is ".." to them.
_EMPTY_OR_DOT = frozenset({"", ".", ".."})
INTERNAL_NAME = "paywitness"
INTERNAL_PATH_PREFIX = f"/{INTERNAL_NAME}/"  # also on a provider's own port, so its policy cannot use this path
_HEX = frozenset("0123456789abcdefABCDEF")


class RequestTarget(NamedTuple):
    prefix: str  # the first segment, undecoded: a provider's name, or ours
    path: str  # below the first segment, as it came; "/" if nothing follows
    query: str
    segments: tuple[str, ...]  # of `path`, decoded


WHOLE_SERVER = RequestTarget("", "*", "", ())  # of OPTIONS alone (RFC 9112 3.2.4)


def read_target(raw: str, provider: str | None = None) -> RequestTarget:
    """Take the target apart. With `provider` the whole path is that provider's, as on a port of its own."""
    if not raw.startswith("/"):
        raise _path_rejected(
            "Only paths are served here, as in /{provider}/..., and addresses of hosts that a policy names."
        )
    whole, _, query = raw.partition("?")
    if "#" in raw or not raw.isascii():
        raise _path_rejected("The path has a fragment, or characters that must be percent-encoded.")
    prefix, path = provider, whole
    if prefix is None or whole.startswith(INTERNAL_PATH_PREFIX):
        prefix, slash, rest = whole[1:].partition("/")
        path = slash + rest or "/"
        if whole != "/" and (prefix in _EMPTY_OR_DOT or "%" in prefix or "\\" in prefix):
            _decode_segment(prefix)  # it names no provider; but an ambiguous path is rejected as such
    if path == "/":
        return RequestTarget(prefix, path, query, ())
    if "%" in path or "/." in path or "//" in path or ";" in path or "\\" in path or path.endswith("/"):
        return RequestTarget(prefix, path, query, tuple(_decode_segment(text) for text in path[1:].split("/")))
    return RequestTarget(prefix, path, query, tuple(path[1:].split("/")))


def _is_absolute(raw: str) -> bool:
    return raw[:7].lower() == "http://" or raw[:8].lower() == "https://"


def _read_absolute(raw: str) -> tuple[str, str]:
    """An absolute URL taken apart: host and port as they came, and the rest as a path. A user in it is refused."""
    whole = raw.partition("://")[2]
    end = min((position for position in map(whole.find, "/?#") if position >= 0), default=len(whole))
    authority, rest = whole[:end], whole[end:]
    if not authority:
        raise malformed("The address has no host.")
    if "@" in authority:
        raise _path_rejected("The address has a user in it.")
    return authority, rest if rest.startswith("/") else f"/{rest}"


def _decode_segment(text: str) -> str:
    """One segment, decoded, if it can only be read in one way."""
    for escape in text.split("%")[1:]:
        if len(escape) < 2 or escape[0] not in _HEX or escape[1] not in _HEX:
            raise _path_rejected("The path has a percent sign that escapes nothing.")
    try:
        decoded = unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise _path_rejected("The path has escapes that are not UTF-8.") from None
    if "/" in decoded or "\\" in decoded:
        raise _path_rejected("The path has an encoded slash or a backslash.")
    if any(character < " " or "\x7f" <= character <= "\x9f" for character in decoded):
        raise _path_rejected("The path has control characters.")
    if decoded.partition(";")[0] in _EMPTY_OR_DOT:
        raise _path_rejected("The path has an empty or a dot segment.")
    return decoded


def _path_rejected(detail: str) -> RequestRejected:
    return RequestRejected(Problem.PATH_NOT_ALLOWED, detail)


# --- Requests

# The methods that payment APIs use.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

PAGE_HEADERS = (b"origin", b"sec-fetch-site")  # a browser sends one of them, or both, for a page; a service neither

_PSEUDONYM = b"paywitness"
_VIA = (b"Via", b"1.1 " + _PSEUDONYM)

_ROOT_MEMBERS = {
    "what": "Paywitness carries payment calls to providers and knows what became of each one.",
    "use": "Talk to /{provider}/... here as you would to the provider: the path below the prefix goes on as it is.",
    "ask": "GET /paywitness/operations/{id} tells what became of a payment; its id is in Paywitness-Operation.",
    "pay elsewhere": "GET /paywitness/intents/{id} tells whether a purchase may be paid again, or at another provider.",
    "headers": "Paywitness-Key, -Intent, -Account, -Timeout-Ms, -Priority, -Distinct are for us and do not go on.",
}
_ROOT_REPLY = Reply(
    200,
    ((b"Content-Type", b"application/json"), (b"Paywitness-Outcome", Outcome.NONE.encode())),
    json.dumps(_ROOT_MEMBERS, indent=2).encode() + b"\n",
    Outcome.NONE,
)


_OPTIONS_REPLY = Reply(
    204,
    ((b"Allow", ", ".join(sorted(METHODS)).encode()), (b"Paywitness-Outcome", Outcome.NONE.encode())),
    b"",
    Outcome.NONE,
)


class ParsedRequest(NamedTuple):
    """A request's head, read: its target, its headers and the provider that it is for."""

    method: str
    target: RequestTarget
    head: RequestHead
    via_proxy: bool = False  # the caller asked for the provider's own host: by a proxy setting, or redirected

    def root_page(self) -> Reply:
        """The page that describes this port. Raises RequestRejected for a request that only a provider could serve."""
        if self.method == "OPTIONS":
            return _OPTIONS_REPLY
        if self.method not in ("GET", "HEAD"):
            raise RequestRejected(Problem.NOT_FOUND, "Requests go to /{provider}/..., by the name in its policy.")
        return _ROOT_REPLY

    async def internal_page(self, call_handler: CallHandler) -> Reply:
        """One of our own pages. Raises RequestRejected for any other page, and whatever the handler raises."""
        segments = self.target.segments
        if self.method in ("GET", "HEAD") and len(segments) > 1:
            if segments[0] == "operations" and len(segments) == 2:
                return await call_handler.describe(segments[1], self.call(b""))
            if segments[0] == "intents":  # a shop's own order number may hold a slash, which makes one more segment
                merchant, provider = self._intent_filters()
                return await call_handler.describe_intent("/".join(segments[1:]), merchant, provider, self.call(b""))
        detail = "Below /paywitness/ there are GET /paywitness/operations/{id} and GET /paywitness/intents/{id}."
        raise RequestRejected(Problem.NOT_FOUND, detail)

    def _intent_filters(self) -> tuple[str | None, str | None]:
        """The merchant and provider that the query names. Any other parameter is refused, because to ignore it would
        widen the search."""
        try:
            pairs = parse_qsl(self.target.query, keep_blank_values=True, max_num_fields=2, errors="strict")
        except ValueError:
            pairs = [("", "")]
        given = dict(pairs)
        if len(given) < len(pairs) or not given.keys() <= {"merchant", "provider"}:
            raise malformed("An intent may be narrowed by ?merchant= and ?provider=, once each, and by nothing else.")
        return given.get("merchant"), given.get("provider")

    def call(self, body: bytes, *, unchanged: bool = False) -> Call:
        """`unchanged`: without the `Via` that a proxy adds (RFC 9110 7.6.3)."""
        prefix, path, query, segments = self.target
        headers = self.head.headers if unchanged or not self.via_proxy else (*self.head.headers, _VIA)
        return Call(prefix, self.method, path, query, segments, headers, body, self.head.options)


def read_request(
    incoming: IncomingRequest, ingress: Ingress, provider_at: Callable[[str], str | None]
) -> ParsedRequest:
    """The request and its provider. Raises RequestRejected if it is for none, or could be read as for another."""
    method, target, head = incoming.method, incoming.target, incoming.head
    if method == "CONNECT":
        raise malformed("CONNECT must be the first thing that is asked on a connection.")
    if method not in METHODS:
        raise malformed(f"{method} is not served; allowed are {', '.join(sorted(METHODS))}.")
    if target[0] != "/" and _is_absolute(target):
        return _parse_absolute(target, method, head, ingress, provider_at)
    if target == "*":
        if method != "OPTIONS":
            raise malformed("Only OPTIONS asks about the whole server.")
        return ParsedRequest(method, WHOLE_SERVER, head)
    host_header = head.host.decode("latin-1")
    if ingress.host is not None and (
        _host_of(host_header) != ingress.host or not _is_default_port(host_header, ingress.port)
    ):
        raise malformed(f"This connection is to {ingress.host}, and Host names another.")
    if ingress.redirected:
        provider = _provider_of_host(_host_of(host_header), provider_at)
        return _parse_proxied(method, read_target(target, provider), head)
    below = read_target(target, ingress.provider)
    return ParsedRequest(method, below, head) if ingress.host is None else _parse_proxied(method, below, head)


def _parse_absolute(
    raw: str, method: str, head: RequestHead, ingress: Ingress, provider_at: Callable[[str], str | None]
) -> ParsedRequest:
    """A request for an absolute URL. Host must name the same host. RFC 9112 3.2.2 would ignore Host, but then two
    readers could disagree."""
    authority, path = _read_absolute(raw)
    host = _host_of(authority)
    if not _same_host(authority, head.host) or (ingress.host is not None and host != ingress.host):
        raise malformed("The address asks for one host, and Host, or the connection, for another.")
    if not _is_default_port(authority, HTTPS_PORT if raw[:5].lower() == "https" else HTTP_PORT):
        raise RequestRejected(Problem.PROVIDER_NOT_ALLOWED, f"Only ports {HTTP_PORT} and {HTTPS_PORT} are served.")
    provider = _provider_of_host(host, provider_at)
    if ingress.provider not in (None, provider):
        raise RequestRejected(Problem.PROVIDER_NOT_ALLOWED, f"This port is {ingress.provider}'s alone.")
    return _parse_proxied(method, read_target(path, provider), head)


def _parse_proxied(method: str, target: RequestTarget, head: RequestHead) -> ParsedRequest:
    """Raises RequestRejected for a request that passed through us before, because it would go round for ever."""
    for name, value in head.headers:
        if name.lower() == b"via" and any(_received_by(hop) == _PSEUDONYM for hop in value.lower().split(b",")):
            detail = "Via says that this request came through Paywitness before: an upstream leads back to its sidecar."
            raise RequestRejected(Problem.PATH_NOT_ALLOWED, detail)
    return ParsedRequest(method, target, head, via_proxy=True)


def _received_by(hop: bytes) -> bytes:
    """`1.1 name (comment)` to its name."""
    words = hop.split(maxsplit=2)
    return words[1] if len(words) > 1 else b""


def _provider_of_host(host: str | None, provider_at: Callable[[str], str | None]) -> str:
    provider = provider_at(host) if host is not None else None
    if provider is None:
        log_unlisted_host(host or "", can_tunnel=False)
        detail = f"No policy names the host {(host or '')[:80]!r}, and plain HTTP to other hosts is not passed on."
        raise RequestRejected(Problem.PROVIDER_NOT_ALLOWED, detail)
    return provider


def _host_of(authority: str) -> str | None:
    found = host_and_port(authority)
    return found[0] if found is not None else None


def _is_default_port(authority: str, port: int) -> bool:
    """Whether the port is the scheme's own, written out or left out."""
    found = host_and_port(authority)
    return found is not None and found[1] in (None, port)


def _same_host(authority: str, host: bytes) -> bool:
    """Whether both name the same host and port. One of them may leave the port out."""
    requested, host_header = host_and_port(authority), host_and_port(host.decode("latin-1"))
    return (
        requested is not None
        and host_header is not None
        and requested[0] == host_header[0]
        and (requested[1] == host_header[1] or not host_header[1])
    )


def check_asker(
    request: ParsedRequest,
    incoming: IncomingRequest,
    allowed_hosts: AllowedHosts,
    provider_at: Callable[[str], str | None],
) -> None:
    """Raises RequestRejected for a request that a web page makes a browser send (`core.allowed_hosts`). A caller that
    came by a proxy setting or a redirect named the provider's own host, and that was checked already."""
    if request.via_proxy:
        return
    host = request.head.host.decode("latin-1")
    if not allowed_hosts.allows_host(host) and provider_at(_host_of(host) or "") is None:
        detail = (
            f"Host names {host[:80]!r}, under which this sidecar is not asked. Use its address, or name the host in "
            "--allowed-hosts."
        )
        raise RequestRejected(Problem.HOST_NOT_ALLOWED, detail)
    if incoming.head.names.isdisjoint(PAGE_HEADERS):
        return
    if not allowed_hosts.allows_origin(host, incoming.values(b"origin"), incoming.values(b"sec-fetch-site")):
        raise RequestRejected(Problem.CROSS_SITE, "A web page of another origin asks, and pages are not served.")
