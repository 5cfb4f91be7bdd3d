"""Ports of single providers (`listen:` in a policy), for SDKs that cannot take a path prefix. They follow the book.

A port that cannot be had is told once and tried again; the other ports are not touched by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from proxy.clock import Clock
from proxy.edge.server import EdgeServer
from proxy.policy.book import PolicyBook
from proxy.settings import Address, read_address

_log = logging.getLogger("paywitness.edge")
_LOOK_EVERY_S = 1.0


class Ports:
    def __init__(self, edge: EdgeServer, book: Callable[[], PolicyBook], *, reuse_port: bool = False) -> None:
        self._edge = edge
        self._book = book
        self._reuse_port = reuse_port
        self._seen: PolicyBook | None = None
        self._open: dict[str, tuple[Address, tuple[str, int]]] = {}  # as wanted, and as bound
        self._told: set[str] = set()

    async def keep_following(self, clock: Clock) -> None:
        while True:
            await clock.sleep(_LOOK_EVERY_S)
            await self.follow()

    async def follow(self) -> None:
        """Open what the book asks for and is not open, close what it no longer does."""
        book = self._book()
        if book is self._seen:
            return
        wanted = {
            name: read_address(provider.listen, f"listen of {name}")
            for name, provider in book.providers.items()
            if provider.listen
        }
        for name in [name for name, (address, _) in self._open.items() if wanted.get(name) != address]:
            self._edge.stop(*self._open.pop(name)[1])
        missing = {name: address for name, address in wanted.items() if name not in self._open}
        for name, address in missing.items():
            try:
                bound = await self._edge.start(address.host, address.port, provider=name, reuse_port=self._reuse_port)
            except OSError as error:
                if name not in self._told:
                    _log.error("%s cannot listen on %s: %s; it is tried again", name, address, error.strerror or error)
                self._told.add(name)
                continue
            self._told.discard(name)
            self._open[name] = (address, bound)
            _log.info("%s listens on %s", name, address)
        if wanted.keys() == self._open.keys():
            self._seen = book
