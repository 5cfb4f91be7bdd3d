"""A connection with TLS. The one below stays a plain one, so that counting and resetting work as they do without.

The rule: an end without a goodbye (close_notify) is a cut, never the end of an answer.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from proxy.core.evidence import NetworkPhase, WireFault
from proxy.upstream.dial import NotConnected
from proxy.upstream.target import Bounds
from proxy.upstream.tls import TlsSession, tls_words
from proxy.upstream.wire import Connection


class SecureConnection(Connection):
    """A connection that shakes hands before it is ready, and seals what it writes."""

    ready_phase = NetworkPhase.HANDSHAKING

    def __init__(
        self,
        connected: socket.socket,
        tls: TlsSession,
        tls_s: float,
        bounds: Bounds,
        user_timeout_ms: int,
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(connected, bounds, user_timeout_ms, monotonic)
        self._tls = tls
        self._tls_s = tls_s
        self._shaken: asyncio.Future[NotConnected | None] = self._loop.create_future()

    async def start(self) -> NotConnected | None:
        """Join the loop and shake hands."""
        trouble = await super().start()
        if trouble is not None:
            return trouble
        try:
            async with asyncio.timeout(self._tls_s):
                return await self._shaken
        except TimeoutError:
            self.reset()
            return NotConnected(NetworkPhase.HANDSHAKING, WireFault.TLS_TIMEOUT, "the TLS handshake took too long")
        except BaseException:  # cancelled
            self.reset()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._shake(b"")

    def fit(self) -> bool:
        """As without TLS. Any readable byte counts as an end, for nobody can look inside: the price of being wrong is a
        new connection, the price of the opposite a doubt. Except right after the handshake, when tickets arrive.
        """
        return super().fit() if self._calls else self.open

    def data_received(self, data: bytes) -> None:
        if self._shaken.done():
            self._hear_sealed(data)
        else:
            self._shake(data)

    def eof_received(self) -> None:
        self._settle("the peer closed during the TLS handshake")
        self._hear_end(proper=False)

    def connection_lost(self, error: Exception | None) -> None:
        self._settle("the connection broke during the TLS handshake")
        super().connection_lost(error)

    def _seal(self, payload: bytes) -> bytes:
        return self._tls.encrypt(payload)

    def _goodbye(self) -> bytes:
        return self._tls.goodbye()

    def _shake(self, sealed: bytes) -> None:
        try:
            finished = self._tls.shake(sealed)
        except ssl.SSLError as error:
            self._push(self._tls.outgoing())  # the alert that tells the peer why
            self._transport.close()
            self._settle(tls_words(error))
            return
        self._push(self._tls.outgoing())
        if finished:
            if not self._shaken.done():
                self._shaken.set_result(None)
            self._hear_sealed(b"")  # records may have come in the same read

    def _settle(self, trouble: str) -> None:
        if not self._shaken.done():
            self._shaken.set_result(NotConnected(NetworkPhase.HANDSHAKING, WireFault.TLS_FAILURE, trouble))

    def _hear_sealed(self, sealed: bytes) -> None:
        tls = self._tls
        plaintext = tls.decrypt(sealed)
        if plaintext:
            self._hear(plaintext)
        if tls.broken is not None:
            self._hear_nonsense(tls_words(tls.broken))
        elif tls.said_goodbye:
            self._hear_end(proper=True)
        else:
            self._push(tls.outgoing())  # key updates

    def _hear_nonsense(self, words: str) -> None:
        if self._exchange is None:
            self.reset()
        else:
            self._fail(self._exchange, WireFault.TLS_FAILURE, words)
