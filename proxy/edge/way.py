"""How a caller came in, which says whose its paths are: by our address, a provider's port, a proxy setting, unaware."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

HTTP_PORT, HTTPS_PORT = 80, 443
_NAME_MAX, _LABEL_MAX = 253, 63  # RFC 1035


@dataclass(frozen=True, slots=True)
class Way:
    provider: str | None = None  # every path is this provider's; None: the path says it, or the host
    host: str | None = None  # whom the caller believes to talk to; its requests must say so too
    port: int = HTTPS_PORT  # and where
    redirected: bool = False  # by the kernel: it does not know of us, and its Host says where it wanted to go


REVERSE = Way()


def host_and_port(authority: str) -> tuple[str, int | None] | None:
    """`api.example.com:443`, `[::1]:443`, `example.com`; None where it is none. Names in lower case, no last dot."""
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
