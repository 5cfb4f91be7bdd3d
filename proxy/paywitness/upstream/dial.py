"""A host name to a connected socket, or to the reason why there is none. No byte of a request is written here.

Every address of the name is tried in the resolver's order, each with a fair share of the time that is left, so that
one unreachable address does not use up the time of the next. `PublicTunnelDialer` connects tunnels to hosts that no
policy names. The rule: a name must not lead to a private address unless its policy allows it; a tunnel never may.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paywitness.clock import SystemClock
from paywitness.core.addresses import is_private, is_public
from paywitness.core.evidence import NetworkPhase, WireFault
from paywitness.upstream.request import Origin

_Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class NotConnected:
    """Why there is no connection. Nothing was sent."""

    phase: NetworkPhase
    fault: WireFault
    detail: str


# The owner of a DNS name must not be able to send a payment, or a credential, to a host of this network.
_PRIVATE = NotConnected(
    NetworkPhase.RESOLVING,
    WireFault.DNS_FAILURE,
    "the name leads to a private address; where that is meant, its policy says private: true",
)


async def dial(
    origin: Origin,
    deadline_mono: float,
    first_byte_s: float,
    monotonic: Callable[[], float],
    *,
    only_public: bool = False,
) -> socket.socket | NotConnected:
    """A connected, non-blocking socket to the origin. `only_public`: private addresses are refused even if the host's
    own name is one of this network."""
    addresses = await _resolve(origin, deadline_mono - monotonic())
    if isinstance(addresses, NotConnected):
        return addresses
    if only_public or not (origin.trust.private or is_private(origin.host)):
        addresses = [address for address in addresses if is_public(str(address[1][0]))]
        if not addresses:
            return _PRIVATE
    outcome: socket.socket | NotConnected = _timed_out()
    for position, address in enumerate(addresses):
        share_s = (deadline_mono - monotonic()) / (len(addresses) - position)
        if share_s <= 0:
            break
        outcome = await _connect(address, share_s, first_byte_s)
        if not isinstance(outcome, NotConnected):
            break
    return outcome


async def _resolve(origin: Origin, timeout_s: float) -> list[_Address] | NotConnected:
    literal = _literal(origin)
    if literal is not None:
        return [literal]
    try:
        async with asyncio.timeout(timeout_s):
            found = await asyncio.get_running_loop().getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        return NotConnected(NetworkPhase.RESOLVING, WireFault.DNS_FAILURE, "the name lookup took too long")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) and error.strerror else "no such name"
        return NotConnected(NetworkPhase.RESOLVING, WireFault.DNS_FAILURE, f"the name lookup failed: {reason}")
    if not found:
        return NotConnected(NetworkPhase.RESOLVING, WireFault.DNS_FAILURE, "the name has no address")
    return [(family, address) for family, _, _, _, address in found]


def _literal(origin: Origin) -> _Address | None:
    """The address itself, if the host is an address. Then no thread is needed to look it up."""
    family = socket.AF_INET6 if ":" in origin.host else socket.AF_INET
    try:
        socket.inet_pton(family, origin.host)
    except OSError:
        return None
    return family, (origin.host, origin.port)


async def _connect(address: _Address, timeout_s: float, first_byte_s: float) -> socket.socket | NotConnected:
    family, endpoint = address
    connecting: socket.socket | None = None
    try:
        connecting = socket.socket(family, socket.SOCK_STREAM)
        connecting.setblocking(False)
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        set_user_timeout(connecting, first_byte_s)
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().sock_connect(connecting, endpoint)
    except TimeoutError:
        # Our timeout, or the kernel's own: TCP_USER_TIMEOUT counts while connecting too.
        _close(connecting)
        return _timed_out()
    except OSError as error:
        _close(connecting)
        refused = error.errno == errno.ECONNREFUSED
        fault = WireFault.CONNECT_REFUSED if refused else WireFault.CONNECT_FAILED
        reason = os.strerror(error.errno).lower() if error.errno else "unknown error"
        return NotConnected(NetworkPhase.CONNECTING, fault, f"connecting failed: {reason}")
    except BaseException:  # cancelled: nobody else has the socket yet
        _close(connecting)
        raise
    return connecting


def set_user_timeout(connected: socket.socket, first_byte_s: float) -> None:
    """Bound how long the kernel goes on delivering on its own. Without it a request can arrive half a minute after we
    gave up, even after this process was killed, because the kernel keeps retransmitting."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(first_byte_s * 1000)))


def _close(connecting: socket.socket | None) -> None:
    if connecting is not None:
        connecting.close()


def _timed_out() -> NotConnected:
    return NotConnected(NetworkPhase.CONNECTING, WireFault.CONNECT_TIMEOUT, "connecting took too long")


# --- Tunnels

_TUNNEL_CONNECT_S = 10.0
_TUNNEL_USER_TIMEOUT_S = 30.0


class PublicTunnelDialer:
    def __init__(self) -> None:
        self._own_addresses: dict[asyncio.Protocol, tuple[str, int]] = {}  # our own end of each open tunnel

    async def connect(self, host: str, port: int, protocol: asyncio.Protocol) -> str | None:
        """Connect, and give the connection to `protocol`. Returns the failure, or None; then the caller must `release`
        it.

        Only the addresses that were checked are dialled: the name is not looked up a second time.
        """
        clock = SystemClock()
        origin, deadline_mono = Origin("https", host, port), clock.mono() + _TUNNEL_CONNECT_S
        dialled = await dial(origin, deadline_mono, _TUNNEL_USER_TIMEOUT_S, clock.mono, only_public=True)
        if isinstance(dialled, NotConnected):
            return dialled.detail
        self._own_addresses[protocol] = _unmapped_address(dialled.getsockname())
        try:
            await asyncio.get_running_loop().create_connection(lambda: protocol, sock=dialled)
        except OSError as error:
            self.release(protocol)
            dialled.close()
            return error.strerror or "connecting failed"
        return None

    def release(self, protocol: asyncio.Protocol) -> None:
        self._own_addresses.pop(protocol, None)

    def is_own_connection(self, peer: tuple[Any, ...]) -> bool:
        """Whether a connection that came to us is one that we opened: the redirect rules do not exempt us then."""
        return bool(self._own_addresses) and _unmapped_address(peer) in self._own_addresses.values()


def _unmapped_address(address: tuple[Any, ...]) -> tuple[str, int]:
    return str(address[0]).removeprefix("::ffff:"), int(address[1])
