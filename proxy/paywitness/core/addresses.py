"""Whether an address belongs to this machine or a private network, or to the internet. Pure."""

from __future__ import annotations

import ipaddress

_PRIVATE_SUFFIXES = (".local", ".internal", ".localhost", ".test")


def is_private(hostname: str) -> bool:
    """Loopback, a private address, or a name that cannot be on the internet."""
    try:
        return not ipaddress.ip_address(hostname).is_global
    except ValueError:
        return "." not in hostname or hostname.endswith(_PRIVATE_SUFFIXES)


def is_public(address: str) -> bool:
    """An address of the internet: neither private nor loopback, link-local, shared, reserved or multicast, nor one of
    those written as IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or _within_nat64(found)
        if inner is not None:
            found = inner
    return found.is_global and not found.is_multicast


def _within_nat64(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address in the last 32 bits of an address in 64:ff9b::/96; None for any other address."""
    if address in ipaddress.ip_network("64:ff9b::/96"):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
