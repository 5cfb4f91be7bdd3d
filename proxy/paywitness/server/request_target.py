"""Whose request it is: how the caller came in, and the target of the request line. Pure.

`Ingress` says how: by our address, a provider's port, a proxy setting, or a kernel redirect. The path is forwarded
byte for byte; decoded segments are only for matching. The rule: a path that the match and the provider could read
differently is rejected: empty and dot segments, encoded slashes, broken or non-UTF-8 escapes, control characters,
fragments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from paywitness.core.problems import Problem
from paywitness.server.errors import RequestRejected, malformed

HTTP_PORT, HTTPS_PORT = 80, 443


@dataclass(frozen=True, slots=True)
class Ingress:
    provider: str | None = None  # every path is this provider's; None: the path says it, or the host
    host: str | None = None  # whom the caller believes to talk to; its requests must say so too
    port: int = HTTPS_PORT  # and where
    redirected: bool = False  # by the kernel: it does not know of us, and its Host says where it wanted to go


REVERSE_PROXY = Ingress()

# --- Request target

# Servers that know path parameters drop ";..." before they look at the segment, so "..;x" is ".." to them.
_EMPTY_OR_DOT = frozenset({"", ".", ".."})
INTERNAL_NAME = "paywitness"
INTERNAL_PATH_PREFIX = f"/{INTERNAL_NAME}/"  # on a provider's own port too: there its policy cannot use this path
_HEX = frozenset("0123456789abcdefABCDEF")


class RequestTarget(NamedTuple):
    prefix: str  # the first segment, undecoded: a provider's name, or ours
    path: str  # below the first segment, as it came; "/" where nothing follows
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
            _decode_segment(prefix)  # it names nobody; but a trick is called a trick
    if path == "/":
        return RequestTarget(prefix, path, query, ())
    if "%" in path or "/." in path or "//" in path or ";" in path or "\\" in path or path.endswith("/"):
        return RequestTarget(prefix, path, query, tuple(_decode_segment(text) for text in path[1:].split("/")))
    return RequestTarget(prefix, path, query, tuple(path[1:].split("/")))


def is_absolute(raw: str) -> bool:
    return raw[:7].lower() == "http://" or raw[:8].lower() == "https://"


def read_absolute(raw: str) -> tuple[str, str]:
    """An address taken apart: its host and port as they came, and the rest as a path. Users in it are refused."""
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
