"""A provider that misbehaves: a raw socket server in threads, one script a connection.

A script is the conversation as the provider leads it, in blocking calls. It stops where the test wants it by an event,
never by sleeping. What a script raises, the test raises at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

PATIENCE_S = 20.0  # a peer that waits longer than this has found a bug

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Result = TypeVar("Result")
Script = Callable[["Peer"], None]


class Cut(Exception):
    """The client's stream ended without a goodbye."""


class Secured:
    """The provider's TLS, over memory: Python's own TLS socket reports a reset and a bare end alike."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._until_done(self.object.do_handshake)

    def recv(self) -> bytes:
        return self._until_done(lambda: self.object.read(65536))

    def send(self, data: bytes) -> None:
        self._until_done(lambda: self.object.write(data))

    def say_goodbye(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):  # the client need not answer it
            self.object.unwrap()
        self._flush()

    def _until_done(self, step: Callable[[], Result]) -> Result:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush()
                data = self._socket.recv(65536)
                if not data:
                    raise Cut from None
                self._incoming.write(data)
            except ssl.SSLError:
                self._flush()
                raise
            else:
                self._flush()
                return result

    def _flush(self) -> None:
        self._socket.sendall(self._outgoing.read())


class Peer:
    """The provider's end of one connection."""

    def __init__(self, number: int, connected: socket.socket) -> None:
        self.number = number  # 1 for the first connection
        self.socket = connected
        self.requests: list[bytes] = []
        self.ended: str | None = None  # how the client ended it, as seen by a read: "fin", "cut" (TLS only), "reset"
        self.secured: Secured | None = None
        self.acted = threading.Event()  # the script has come to its end
        self.gone = threading.Event()  # `ended` is known
        self._unread = bytearray()

    def secure(self, context: ssl.SSLContext) -> None:
        self.secured = Secured(self.socket, context)

    # -- hearing

    def request(self) -> bytes:
        """One whole request; empty if the client ended the connection instead."""
        while (end := self._unread.find(b"\r\n\r\n")) < 0:
            if not self._more():
                return b""
        end += 4 + _length(bytes(self._unread[:end]))
        while len(self._unread) < end:
            if not self._more():
                return b""
        request = bytes(self._unread[:end])
        del self._unread[:end]
        self.requests.append(request)
        return request

    def until_readable(self) -> None:
        """Wait until the client has written something, and leave it in the kernel."""
        self.socket.recv(1, socket.MSG_PEEK)

    def until_gone(self) -> str:
        """Read to the end and say how the client ended it."""
        while self._more():
            pass
        return self.ended or "nothing"

    def finish_reading(self) -> None:
        """Read to the end, unless the provider itself has ended it all."""
        if self.open:
            self.until_gone()

    def _more(self) -> bool:
        try:
            data = self.socket.recv(65536) if self.secured is None else self.secured.recv()
        except ConnectionResetError:
            return self._end("reset")
        except Cut:
            return self._end("cut")
        self._unread += data
        return bool(data) or self._end("fin")

    def _end(self, how: str) -> bool:
        self.ended = how
        self.gone.set()
        return False

    # -- speaking

    def send(self, data: bytes) -> None:
        try:
            if self.secured is None:
                self.socket.sendall(data)
            elif data:
                self.secured.send(data)
        except (ConnectionResetError, BrokenPipeError):
            self._end("reset")
            raise

    def close(self) -> None:
        """End properly: with a goodbye where there is TLS."""
        if self.secured is not None:
            self.secured.say_goodbye()
        self.cut()

    def cut(self) -> None:
        """End by a bare FIN. What the client still says is read as it comes on the wire."""
        self.secured = None
        with contextlib.suppress(OSError):  # it may be gone already
            self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    @property
    def open(self) -> bool:
        return self.socket.fileno() >= 0 and self.ended is None


class Provider:
    """Listens, and runs the script once a connection. A script that returns hands over to `then`."""

    def __init__(
        self,
        script: Script,
        *,
        then: Script | None = None,
        tls: ssl.SSLContext | None = None,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        self._script = script
        self._then = then
        self._tls = tls
        self._threads: list[threading.Thread] = []
        self._troubles: list[BaseException] = []
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        if receive_buffer_bytes is not None:  # inherited by every accepted connection
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.port: int = self._listening.getsockname()[1]
        self.peers: list[Peer] = []
        self._accepted = threading.Condition()
        self.finish = threading.Event()  # set at the end of the test: whoever still waits may go

    def __enter__(self) -> Provider:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for peer in self.peers:
            with contextlib.suppress(OSError):
                peer.socket.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(PATIENCE_S)
        for peer in self.peers:
            peer.socket.close()
        if self._troubles and kind is None:
            raise self._troubles[0]

    async def ending(self, number: int = 1) -> str | None:
        """How the client ended its connection of that number. Waits until it has, while the loop runs."""
        peer = await asyncio.to_thread(self._peer, number)
        await asyncio.to_thread(peer.gone.wait, PATIENCE_S)
        return peer.ended

    def _peer(self, number: int) -> Peer:
        with self._accepted:
            self._accepted.wait_for(lambda: len(self.peers) >= number, PATIENCE_S)
            return self.peers[number - 1]

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            connected.settimeout(PATIENCE_S)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what was said leaves before a reset
            with self._accepted:
                peer = Peer(len(self.peers) + 1, connected)
                self.peers.append(peer)
                self._accepted.notify_all()
            self._start(lambda peer=peer: self._converse(peer))  # type: ignore[misc]

    def _converse(self, peer: Peer) -> None:
        ready = False
        try:
            if self._tls is not None:
                peer.secure(self._tls)
            ready = True
            self._script(peer)
            peer.acted.set()
            if self._then is not None and peer.open:
                self._then(peer)
        except (OSError, Cut) as error:
            # A client that leaves during the handshake, that resets, or that is still there at the end is no trouble.
            if ready and peer.ended is None and not self.finish.is_set():
                self._troubles.append(error)
        except BaseException as error:  # noqa: BLE001 - whatever a script raises, the test raises
            self._troubles.append(error)


def answer_all(peer: Peer) -> None:
    """Answer every request properly until the client leaves."""
    while peer.request():
        peer.send(OK)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
