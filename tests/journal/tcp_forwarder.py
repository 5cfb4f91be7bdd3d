"""An address that stays while the Redis behind it changes: what a virtual IP, a load balancer or a DNS name is after a
failover. Threads, so that tests of other processes can use it too."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress


class Forwarder:
    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._reset: set[socket.socket] = set()
        self._lock = threading.Condition()
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, port: int) -> None:
        """New connections lead there; those that stand stay."""
        with self._lock:
            self._to = port

    def drop(self) -> None:
        """End every connection that stands."""
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """End every connection that stands by a reset, without an orderly end before it. When this returns, both sides
        have been sent it."""
        with self._lock:
            ended = set(self._open)
            self._reset |= ended
            for each in ended:
                with suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    each.shutdown(socket.SHUT_RD)  # sends nothing; its thread wakes and closes it
            assert self._lock.wait_for(lambda: ended.isdisjoint(self._open), timeout=20.0)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.drop()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return
            leads_to = self._to
            try:
                redis = socket.create_connection(("127.0.0.1", leads_to), timeout=5)
            except OSError:
                caller.close()
                continue
            redis.settimeout(None)
            for each in (caller, redis):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if leads_to != self._to:  # it leads elsewhere by now, and this one was not there to be dropped
                    caller.close()
                    redis.close()
                    continue
                self._open |= {caller, redis}
            for source, sink in ((caller, redis), (redis, caller)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with self._lock:
            for each in {source, sink} - self._reset:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        source.close()
        with self._lock:
            self._open.discard(source)
            self._reset.discard(source)
            self._lock.notify_all()
