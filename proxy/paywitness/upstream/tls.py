"""TLS as a transformation of bytes: ciphertext in, plaintext out, and back. No socket, no timer. And a
connection with TLS.

Why not the loop's own TLS: it does not show how much of a request the kernel took, whether the peer sent close_notify
or was cut off, or whether closing will reset. Here the connection below stays a plain one on every loop, so all three
are known.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from paywitness.core.evidence import NetworkPhase, WireFault
from paywitness.core.policy import UpstreamTrust
from paywitness.upstream.connection import UpstreamConnection
from paywitness.upstream.dial import NotConnected

if TYPE_CHECKING:
    from paywitness.upstream.client import UpstreamLimits

_READ_BYTES = 256 * 1024


def tls_context(*, cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """The context for upstream connections: verified against the system's roots (or those given), TLS 1.2 or later."""
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


class TlsContexts:
    """The contexts of providers: the system's roots, or the files that a policy names. Made again when a file has
    changed."""

    def __init__(self, default: ssl.SSLContext | None) -> None:
        self._default = default or tls_context()
        self._cached: dict[UpstreamTrust, tuple[tuple[float, ...], ssl.SSLContext]] = {}

    def context_for(self, trust: UpstreamTrust) -> ssl.SSLContext:
        """Raises OSError (ssl.SSLError is one) if a file cannot be read or used."""
        files = [path for path in (trust.roots, trust.certificate, trust.key) if path]
        if not files:
            return self._default
        mtimes = tuple(os.stat(path).st_mtime for path in files)
        cached = self._cached.get(trust)
        if cached is None or cached[0] != mtimes:
            context = tls_context(cafile=trust.roots or None)
            if trust.certificate:
                context.load_cert_chain(trust.certificate, trust.key or None)
            cached = self._cached[trust] = (mtimes, context)
        return cached[1]


class TlsSession:
    """One client side of TLS. The handshake raises ssl.SSLError when the peer breaks the protocol or is not trusted."""

    __slots__ = ("_incoming", "_object", "_outgoing", "broken", "received_close_notify")

    def __init__(self, context: ssl.SSLContext, server_hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self.received_close_notify = False  # the peer sent close_notify: no data follows
        self.broken: ssl.SSLError | None = None  # the bytes after the last plaintext were no TLS, or an alert

    def handshake(self, ciphertext: bytes) -> bool:
        """Go on with the handshake. True when it is done. Either way `outgoing` has the bytes to send."""
        self._incoming.write(ciphertext)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def outgoing(self) -> bytes:
        """Ciphertext to be sent now: handshake, alerts, key updates. Often empty."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def encrypt(self, plaintext: bytes) -> bytes:
        view = memoryview(plaintext)
        while view:
            view = view[self._object.write(view) :]
        return self._outgoing.read()

    def decrypt(self, ciphertext: bytes) -> bytes:
        """The plaintext that became readable; empty while a record is incomplete.

        `received_close_notify` and `broken` say how the stream ended, because plaintext before the end still counts.
        """
        self._incoming.write(ciphertext)
        pieces: list[bytes] = []
        try:
            while True:
                piece = self._object.read(_READ_BYTES)
                if not piece:
                    self.received_close_notify = True
                    break
                pieces.append(piece)
                if not self._incoming.pending and not self._object.pending():
                    break  # the common case, without the cost of an exception
        except ssl.SSLWantReadError:
            return b"".join(pieces)
        except ssl.SSLZeroReturnError:
            self.received_close_notify = True
        except ssl.SSLError as error:
            self.broken = error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close_notify(self) -> bytes:
        """close_notify, for a connection that closes normally."""
        with contextlib.suppress(ssl.SSLError):  # it asks for the peer's own close_notify, which nobody waits for
            self._object.unwrap()
        return self.outgoing()


def tls_error_detail(error: ssl.SSLError) -> str:
    """OpenSSL's reason for the failure, as one line. It holds names and reasons, never a payload."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    return f"TLS failed: {(error.reason or 'unknown reason').replace('_', ' ').lower()}"


# --- Connections with TLS
# A connection with TLS. The one below stays a plain one, so that counting and resetting work as they do without.
#
# The rule: an end without close_notify is a broken connection, never the end of a response.


class TlsConnection(UpstreamConnection):
    """A connection that does the TLS handshake before it is ready, and encrypts the bytes that it writes."""

    ready_phase = NetworkPhase.HANDSHAKING
    tls: TlsSession

    def __init__(
        self,
        connected: socket.socket,
        tls: TlsSession,
        tls_s: float,
        bounds: UpstreamLimits,
        first_byte_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(connected, bounds, first_byte_s, monotonic)
        self.tls = tls
        self._tls_s = tls_s
        self._handshake_result: asyncio.Future[NotConnected | None] = self._loop.create_future()

    async def start(self) -> NotConnected | None:
        """Join the loop and shake hands."""
        failure = await super().start()
        if failure is not None:
            return failure
        try:
            async with asyncio.timeout(self._tls_s):
                return await self._handshake_result
        except TimeoutError:
            self.reset()
            return NotConnected(NetworkPhase.HANDSHAKING, WireFault.TLS_TIMEOUT, "the TLS handshake took too long")
        except BaseException:  # cancelled
            self.reset()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handshake(b"")

    def is_usable(self) -> bool:
        """As without TLS. Any readable byte counts as an end, because we cannot see what it holds. If that is wrong, it
        costs a new connection; the opposite error would cost a doubt. Right after the handshake bytes do not count,
        because session tickets arrive then.
        """
        return super().is_usable() if self._calls else self.open

    def data_received(self, data: bytes) -> None:
        if self._handshake_result.done():
            self._receive_ciphertext(data)
        else:
            self._handshake(data)

    def eof_received(self) -> None:
        self._fail_handshake("the peer closed during the TLS handshake")
        self._receive_eof(proper=False)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail_handshake("the connection broke during the TLS handshake")
        super().connection_lost(error)

    def _handshake(self, ciphertext: bytes) -> None:
        try:
            finished = self.tls.handshake(ciphertext)
        except ssl.SSLError as error:
            self._push(self.tls.outgoing())  # the alert that tells the peer why
            self.transport.close()
            self._fail_handshake(tls_error_detail(error))
            return
        self._push(self.tls.outgoing())
        if finished:
            if not self._handshake_result.done():
                self._handshake_result.set_result(None)
            self._receive_ciphertext(b"")  # records may have come in the same read

    def _fail_handshake(self, failure: str) -> None:
        if not self._handshake_result.done():
            self._handshake_result.set_result(NotConnected(NetworkPhase.HANDSHAKING, WireFault.TLS_FAILURE, failure))

    def _receive_ciphertext(self, ciphertext: bytes) -> None:
        tls = self.tls
        plaintext = tls.decrypt(ciphertext)
        if plaintext:
            super().data_received(plaintext)
        if tls.broken is not None:
            self._receive_invalid_tls(tls_error_detail(tls.broken))
        elif tls.received_close_notify:
            self._receive_eof(proper=True)
        else:
            self._push(tls.outgoing())  # key updates

    def _receive_invalid_tls(self, detail: str) -> None:
        if self._exchange is None:
            self.reset()
        else:
            self._fail(self._exchange, WireFault.TLS_FAILURE, detail)
