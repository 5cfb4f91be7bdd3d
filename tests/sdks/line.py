"""The line between an SDK and the proxy. It can lose an answer, which is when SDKs try again by themselves."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Mapping


class Line:
    """Carries what comes to each port of `doors` to the port that stands there for it."""

    def __init__(self, doors: Mapping[int, int]) -> None:
        self.lost = 0  # answers, so far
        self._to_lose = 0
        self._listeners = [socket.create_server(("127.0.0.1", port)) for port in doors]
        self._threads = [
            threading.Thread(target=self._accept, args=(listener, to_port), name="line", daemon=True)
            for listener, to_port in zip(self._listeners, doors.values(), strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def lose_next(self, answers: int = 1) -> None:
        """The next ones are read to their first bytes and thrown away, and the SDK's connection is reset."""
        self._to_lose = answers

    def stop(self) -> None:
        for listener, thread in zip(self._listeners, self._threads, strict=True):
            listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            thread.join()
            listener.close()

    def _accept(self, listener: socket.socket, to_port: int) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client, to_port), name="line", daemon=True).start()

    def _carry(self, client: socket.socket, to_port: int) -> None:
        with client, socket.create_connection(("127.0.0.1", to_port)) as proxy, selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, proxy)
            ready.register(proxy, selectors.EVENT_READ, client)
            try:
                while self._pass_on(ready, client):
                    pass
            except ConnectionError:
                pass  # one side went away: so does the other

    def _pass_on(self, ready: selectors.BaseSelector, client: socket.socket) -> bool:
        for key, _ in ready.select():
            source: socket.socket = key.fileobj  # type: ignore[assignment]
            data = source.recv(65536)
            if not data:
                return False
            if source is not client and self._to_lose:
                self._to_lose -= 1
                self.lost += 1
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            key.data.sendall(data)
        return True
