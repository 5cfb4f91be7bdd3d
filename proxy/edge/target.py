"""The request line's path: which provider, what below it, and the segments that policies match. Pure.

What goes on is the text as it came, byte for byte. The decoded segments are only for matching, so everything that could
be one thing to the match and another to the provider is refused: empty and dot segments, encoded slashes, broken or
non-UTF-8 escapes, control characters, fragments.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from proxy.core.reply import Problem
from proxy.edge.refused import Refused

# Servers that know path parameters drop ";..." before they look at the segment, so "..;x" is ".." to them.
_HOLLOW = frozenset({"", ".", ".."})
OURS = "paywitness"
OUR_PREFIX = f"/{OURS}/"  # on a provider's own port too: there its policy cannot use this path
_HEX = frozenset("0123456789abcdefABCDEF")


class Target(NamedTuple):
    first: str  # the first segment, undecoded: a provider's name, or ours
    path: str  # below the first segment, as it came; "/" where nothing follows
    query: str
    segments: tuple[str, ...]  # of `path`, decoded


def read_target(raw: str, provider: str | None = None) -> Target:
    """Take the target apart. With `provider` the whole path is that provider's, as on a port of its own."""
    if not raw.startswith("/"):
        raise _refused("Only paths are served here, as in /{provider}/..., and addresses of hosts that a policy names.")
    whole, _, query = raw.partition("?")
    if "#" in raw or not raw.isascii():
        raise _refused("The path has a fragment, or characters that must be percent-encoded.")
    first, path = provider, whole
    if first is None or whole.startswith(OUR_PREFIX):
        first, slash, rest = whole[1:].partition("/")
        path = slash + rest or "/"
        if whole != "/" and (first in _HOLLOW or "%" in first or "\\" in first):
            _segment(first)  # it names nobody; but a trick is called a trick
    if path == "/":
        return Target(first, path, query, ())
    if "%" in path or "/." in path or "//" in path or ";" in path or "\\" in path or path.endswith("/"):
        return Target(first, path, query, tuple(_segment(text) for text in path[1:].split("/")))
    return Target(first, path, query, tuple(path[1:].split("/")))


def is_absolute(raw: str) -> bool:
    return raw[:7].lower() == "http://" or raw[:8].lower() == "https://"


def read_absolute(raw: str) -> tuple[str, str]:
    """An address taken apart: its host and port as they came, and the rest as a path. Users in it are refused."""
    whole = raw.partition("://")[2]
    end = min((place for place in map(whole.find, "/?#") if place >= 0), default=len(whole))
    authority, rest = whole[:end], whole[end:]
    if "@" in authority or not authority:
        raise _refused("The address has a user in it, or no host.")
    return authority, rest if rest.startswith("/") else f"/{rest}"


def _segment(text: str) -> str:
    """One segment, decoded, if it can only be read in one way."""
    for escape in text.split("%")[1:]:
        if len(escape) < 2 or escape[0] not in _HEX or escape[1] not in _HEX:
            raise _refused("The path has a percent sign that escapes nothing.")
    try:
        decoded = unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise _refused("The path has escapes that are not UTF-8.") from None
    if "/" in decoded or "\\" in decoded:
        raise _refused("The path has an encoded slash or a backslash.")
    if any(character < " " or "\x7f" <= character <= "\x9f" for character in decoded):
        raise _refused("The path has control characters.")
    if decoded.partition(";")[0] in _HOLLOW:
        raise _refused("The path has an empty or a dot segment.")
    return decoded


def _refused(detail: str) -> Refused:
    return Refused(Problem.PATH_NOT_ALLOWED, detail)
