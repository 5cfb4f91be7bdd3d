"""Plain connections to hosts that no policy names, for tunnels. They lead to the internet, never to this network."""

from __future__ import annotations

import asyncio
from typing import Any

from proxy.clock import SystemClock
from proxy.upstream.dial import NotConnected, dial
from proxy.upstream.target import Origin

_CONNECT_S = 10.0
_USER_TIMEOUT_MS = 30_000


class Outside:
    def __init__(self) -> None:
        self._names: dict[asyncio.Protocol, tuple[str, int]] = {}  # our own ends of what is joined now

    async def join(self, host: str, port: int, protocol: asyncio.Protocol) -> str | None:
        """Connect, and give the connection to `protocol`. Says what went wrong, or nothing; then `leave` is owed.

        The addresses that were judged are those that are dialled: the name is not looked up a second time.
        """
        clock = SystemClock()
        origin, deadline_mono = Origin("https", host, port), clock.mono() + _CONNECT_S
        dialled = await dial(origin, deadline_mono, _USER_TIMEOUT_MS, clock.mono, only_public=True)
        if isinstance(dialled, NotConnected):
            return dialled.detail
        self._names[protocol] = _name(dialled.getsockname())
        try:
            await asyncio.get_running_loop().create_connection(lambda: protocol, sock=dialled)
        except OSError as error:
            self.leave(protocol)
            dialled.close()
            return error.strerror or "connecting failed"
        return None

    def leave(self, protocol: asyncio.Protocol) -> None:
        self._names.pop(protocol, None)

    def is_ours(self, peer: tuple[Any, ...]) -> bool:
        """Whether a connection that came to us is one that we opened: redirected by rules that do not spare us."""
        return bool(self._names) and _name(peer) in self._names.values()


def _name(address: tuple[Any, ...]) -> tuple[str, int]:
    return str(address[0]).removeprefix("::ffff:"), int(address[1])
