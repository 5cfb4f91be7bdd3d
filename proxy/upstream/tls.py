"""TLS as a transformation of bytes: ciphertext in, plaintext out, and back. No socket, no timer.

Why not the loop's own TLS: under it nobody can say how much of a request the kernel took, whether the peer said goodbye
(close_notify) or was cut off, or whether closing will reset. Here the connection below stays a plain one on every loop,
and those three are facts.
"""

from __future__ import annotations

import contextlib
import os
import ssl

from proxy.core.policy import Trust

_READ_BYTES = 256 * 1024


def tls_context(*, cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """The context for upstream connections: verified against the system's roots (or those given), TLS 1.2 or later."""
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


class Contexts:
    """The contexts of providers: the system's roots, or what a policy names. Made again when its files have changed."""

    def __init__(self, usual: ssl.SSLContext | None) -> None:
        self._usual = usual or tls_context()
        self._made: dict[Trust, tuple[tuple[float, ...], ssl.SSLContext]] = {}

    def context_for(self, trust: Trust) -> ssl.SSLContext:
        """Raises OSError (ssl.SSLError is one) where a file cannot be read or used."""
        files = [path for path in (trust.roots, trust.certificate, trust.key) if path]
        if not files:
            return self._usual
        written = tuple(os.stat(path).st_mtime for path in files)
        made = self._made.get(trust)
        if made is None or made[0] != written:
            context = tls_context(cafile=trust.roots or None)
            if trust.certificate:
                context.load_cert_chain(trust.certificate, trust.key or None)
            made = self._made[trust] = (written, context)
        return made[1]


class TlsSession:
    """One client side of TLS. The handshake raises ssl.SSLError when the peer breaks the protocol or is not trusted."""

    __slots__ = ("_incoming", "_object", "_outgoing", "broken", "said_goodbye")

    def __init__(self, context: ssl.SSLContext, server_hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self.said_goodbye = False  # the peer sent close_notify: what came before is all there is
        self.broken: ssl.SSLError | None = None  # what came after the last plaintext was no TLS, or an alert

    def shake(self, ciphertext: bytes) -> bool:
        """Go on with the handshake. True when it is done; what must be sent is in `outgoing` either way."""
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

        How the stream ended is kept beside it (`said_goodbye`, `broken`), for plaintext before the end still counts.
        """
        self._incoming.write(ciphertext)
        pieces: list[bytes] = []
        try:
            while True:
                piece = self._object.read(_READ_BYTES)
                if not piece:
                    self.said_goodbye = True
                    break
                pieces.append(piece)
                if not self._incoming.pending and not self._object.pending():
                    break  # the common case, spared an exception
        except ssl.SSLWantReadError:
            return b"".join(pieces)
        except ssl.SSLZeroReturnError:
            self.said_goodbye = True
        except ssl.SSLError as error:
            self.broken = error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def goodbye(self) -> bytes:
        """close_notify, for a connection that ends in peace."""
        with contextlib.suppress(ssl.SSLError):  # it asks for the peer's own close_notify, which nobody waits for
            self._object.unwrap()
        return self.outgoing()


def tls_words(error: ssl.SSLError) -> str:
    """What OpenSSL says went wrong, as one line. It holds names and reasons, never a payload."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    return f"TLS failed: {(error.reason or 'unknown reason').replace('_', ' ').lower()}"
