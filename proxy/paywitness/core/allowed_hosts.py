"""Which names a listener serves, and requests of which web pages. Pure.

A web page can make its reader's browser send requests to us: under a name of its own that leads to our address (DNS
rebinding), or across sites. The first shows in `Host`, the second in `Origin` and `Sec-Fetch-Site`, which no page can
forge. The rule: a listener serves requests to an address, to a name that no stranger can register, and to the names in
its settings. It never serves a page of another origin. Services set neither `Origin` nor `Sec-Fetch-Site`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from paywitness.core.record import record

_NAME_MAX, _LABEL_MAX = 253, 63  # RFC 1035
# Not in the public DNS: RFC 6761, ICANN's name for private use, and what Kubernetes calls its services.
_PRIVATE_SUFFIXES = (".localhost", ".test", ".internal", ".svc", ".cluster.local")
_OWN_PAGE = frozenset({"same-origin", "none"})  # none: typed by a person
_ANY_SUBDOMAIN = "*."


def host_and_port(authority: str) -> tuple[str, int | None] | None:
    """The host and port of `api.example.com:443`, `[::1]:443`, `example.com`; None if the text is no authority. The
    name is in lower case, without a last dot."""
    host, colon, port = authority.rpartition(":")
    if not colon or (port.endswith("]") and authority.startswith("[")):
        host, port = authority, ""
    elif not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 65535):
        return None
    host = host.lower().removesuffix(".")
    if host.startswith("["):
        if not (host.endswith("]") and _is_ipv6(host[1:-1])):
            return None
        host = host[1:-1]
    elif not _is_name(host):
        return None
    return host, int(port) if port else None


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text


def _is_name(host: str) -> bool:
    """A name or an IPv4 address: labels of letters, digits, hyphens and underscores."""
    if len(host) > _NAME_MAX or host.strip("abcdefghijklmnopqrstuvwxyz0123456789-._"):
        return False
    return all(0 < len(label) <= _LABEL_MAX for label in host.split("."))


@record
class AllowedHosts:
    """The names that a listener serves, beside addresses and names that no stranger can register."""

    names: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()  # `.example.com`, for every name below it

    def allows_host(self, host_header: str) -> bool:
        """Whether we serve this name. A caller with HTTP/1.0 may name none; a browser always does."""
        return not host_header or _allows(self, host_header)

    def allows_origin(self, host_header: str, origins: Iterable[str], fetch_sites: Iterable[str]) -> bool:
        """Whether the request does not come from a page of another origin."""
        if any(site.strip().lower() not in _OWN_PAGE for site in fetch_sites):
            return False
        return all(self._is_own_origin(host_header, origin.strip()) for origin in origins)

    def _is_own_origin(self, host_header: str, origin: str) -> bool:
        scheme, separator, authority = origin.partition("://")
        found = host_and_port(authority) if separator and scheme.lower() in {"http", "https"} else None
        if found is None:
            return False  # `null`, too: a page without an origin, such as a file or a sandboxed frame
        return found == host_and_port(host_header) or self.is_given(found[0])

    def is_given(self, host: str) -> bool:
        return host in self.names or host.endswith(self.suffixes)


def read_allowed_hosts(names: Iterable[str]) -> AllowedHosts:
    """From names and `*.example.com`. Raises ValueError, naming the first that is neither."""
    exact, suffixes = set[str](), list[str]()
    for name in names:
        wild = name.startswith(_ANY_SUBDOMAIN)
        found = host_and_port(name.removeprefix(_ANY_SUBDOMAIN))
        if found is None or found[1] is not None or (wild and "." not in found[0]):
            raise ValueError(name)
        if wild:
            suffixes.append(f".{found[0]}")
        else:
            exact.add(found[0])
    return AllowedHosts(frozenset(exact), tuple(suffixes))


@lru_cache(maxsize=256)
def _allows(rules: AllowedHosts, host_header: str) -> bool:
    """`allows_host` with a cache, because most requests have the same few names."""
    found = host_and_port(host_header)
    if found is None:
        return False
    host = found[0]
    return _is_local(host) or rules.is_given(host)


def _is_local(host: str) -> bool:
    """An address, or a name that the public DNS cannot lead here: one label, or one of the private suffixes."""
    if "." not in host or host.endswith(_PRIVATE_SUFFIXES):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
