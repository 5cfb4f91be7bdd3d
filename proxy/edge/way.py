"""How a caller came in, which says whose its paths are: by our address, a provider's port, a proxy setting, unaware."""

from __future__ import annotations

from dataclasses import dataclass

HTTPS_PORT = 443


@dataclass(frozen=True, slots=True)
class Way:
    provider: str | None = None  # every path is this provider's; None: the path says it, or the host
    host: str | None = None  # whom the caller believes to talk to; its requests must say so too
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
        if not host.endswith("]"):
            return None
        host = host[1:-1]
    elif ":" in host:
        return None
    if not host or not host.isascii() or host.strip("abcdefghijklmnopqrstuvwxyz0123456789-._:"):
        return None
    return host, int(port) if port else None
