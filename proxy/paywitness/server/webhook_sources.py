"""The address that a webhook comes from, and the bound on webhooks of one address that are not genuine.

A webhook takes a token of its address before its body is read, and gives it back if its signature was genuine. An
address without tokens gets 429, and its provider sends the webhook again. The table has a bound: the address that was
quiet the longest is forgotten first.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from paywitness.clock import Clock
from paywitness.option_defaults import Network

SOURCES_MAX = 10_000
BURST_SECONDS = 10  # an address has this many seconds' worth of tokens at first
_IPV6_NETWORK_BITS = 64  # the network that one host is given: it may use any address in it


@dataclass(slots=True)
class SourceLimiter:
    clock: Clock
    per_s: float
    _tokens: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # tokens left, as of when

    @property
    def burst(self) -> float:
        return self.per_s * BURST_SECONDS

    def take(self, source: str) -> bool:
        """Whether a webhook of this address may be read. Takes a token if so."""
        now_mono = self.clock.mono()
        tokens = self._left(source, now_mono)
        taken = tokens >= 1.0
        self._tokens[source] = (tokens - 1.0 if taken else tokens, now_mono)
        self._tokens.move_to_end(source)
        if len(self._tokens) > SOURCES_MAX:
            self._tokens.popitem(last=False)
        return taken

    def give_back(self, source: str) -> None:
        """The webhook was genuine: give its token back."""
        if source in self._tokens:
            now_mono = self.clock.mono()
            self._tokens[source] = (min(self.burst, self._left(source, now_mono) + 1.0), now_mono)

    def _left(self, source: str, now_mono: float) -> float:
        tokens, at_mono = self._tokens.get(source, (self.burst, now_mono))
        return min(self.burst, tokens + (now_mono - at_mono) * self.per_s)


def source_of(peer: str, forwarded_for: Iterable[str], trusted: tuple[Network, ...]) -> str:
    """The address that a webhook comes from: the peer's, or, if the peer is a trusted proxy, the nearest one before it
    that is no trusted proxy. IPv6 addresses count by the network that one host is given."""
    hops = [hop.strip() for line in forwarded_for for hop in line.split(",")] if trusted else []
    source = peer
    while hops and _is_in(source, trusted):
        hop = hops.pop()
        if _parsed(hop) is None:
            break  # no trusted proxy wrote this
        source = hop
    address = _parsed(source)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _IPV6_NETWORK_BITS), strict=False))
    return source


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_in(text: str, networks: tuple[Network, ...]) -> bool:
    address = _parsed(text)
    return address is not None and any(address in network for network in networks)
