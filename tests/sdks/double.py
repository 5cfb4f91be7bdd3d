"""A provider's double: a real HTTP server in a thread, with that provider's wire format, memory of keys, and a ledger.

A double says how its provider speaks; the base does the rest, the same for all:

    order_of, key_of      what a request is about, and under which key it came
    execute               do it, write it into the ledger, answer
    read                  answer a GET
    error                 the provider's words for 404, 429, 500, 503 and a key with another body (CONFLICT)
    remembers, replayed   what it stores under a key, and how a repeat gets it

Faults are laid upon an order, not upon "the next request": what runs on in the background after one test never meets
the faults of another.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

CONFLICT = 0  # of `error`: the key came before with another body
STALL_S_MAX = 30.0  # longer than anybody here waits


class Fault(StrEnum):
    """What befalls one request that would move money."""

    RESET = "reset"  # before anything was done
    LOST = "lost"  # done, and the connection reset in place of an answer
    TRUNCATED = "truncated"  # done, and the connection ended in the middle of the answer
    STALL = "stall"  # done, and never answered
    BUSY = "busy"  # 429, before anything was done
    BROKEN = "broken"  # 500, before anything was done
    BROKEN_AFTER = "broken_after"  # done, and answered 500
    UNAVAILABLE = "unavailable"  # 503, before anything was done
    GATEWAY = "gateway"  # done, and a gateway's HTML 502 in place of the answer


@dataclass(frozen=True)
class Effect:
    """Money moved."""

    order: str
    amount: str
    kind: str = "payment"
    key: str = ""


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # without the query
    query: Mapping[str, str]
    headers: Mapping[str, str]  # any spelling finds them
    body: bytes

    @cached_property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body) if self.body else {}

    @cached_property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode()))


@dataclass(frozen=True)
class Reply:
    status: int
    body: object = None  # bytes go as they are, the rest as JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False  # in the middle of its body, by the end of the connection


class HangUp(Exception):
    """No answer: the connection is reset, at once or when the other side has given up."""

    def __init__(self, *, at_once: bool) -> None:
        super().__init__(at_once)
        self.at_once = at_once


class Double:
    provider: ClassVar[str]  # the shipped policy's name
    content_type: ClassVar[str] = "application/json"

    def __init__(self) -> None:
        self.ledger: list[Effect] = []
        self.arrivals: list[Request] = []  # all of them, in the order in which they came
        self.mistakes: list[Exception] = []  # what this double did not expect: no test passes over one
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._kept: dict[str, tuple[bytes, Reply]] = {}
        self._lock = threading.Lock()
        self._count = 0

    # --- what a provider's double says of itself

    def order_of(self, request: Request) -> str:
        """The shop's own name of the purchase; "" where the request names none, and then no fault befalls it."""
        raise NotImplementedError

    def key_of(self, request: Request) -> str:
        """ "" where there is none."""
        return request.headers.get("Idempotency-Key", "")

    def execute(self, request: Request) -> Reply:
        """Do what a request that is no GET asks for. Called once for each key; the lock is held."""
        raise NotImplementedError

    def read(self, request: Request) -> Reply:
        """Answer a GET; the lock is held."""
        return self.error(404)

    def error(self, status: int) -> Reply:
        raise NotImplementedError

    def remembers(self, done: Reply | None, shown: Reply) -> Reply | None:
        """What a repeat of the key gets: the answer that was shown, an error too, unless the provider says otherwise.
        `done` is None where nothing was done, and not `shown` where an error was. None: a repeat is executed."""
        return shown

    def replayed(self, reply: Reply) -> Reply:
        return reply

    # --- what tests ask and say

    def befall(self, order: str, *faults: Fault) -> None:
        """One fault for each next request about this order, then fair weather."""
        self._faults[order].extend(faults)

    def effects(self, order: str) -> int:
        return sum(effect.order == order for effect in self.ledger)

    def sent(self, order: str) -> list[Request]:
        """What came about this order and was no GET."""
        return [request for request in self.arrivals if request.method != "GET" and self.order_of(request) == order]

    # --- the same for all

    def new_id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count:06d}"

    def answer(self, request: Request) -> Reply:
        with self._lock:
            self.arrivals.append(request)
            if request.method == "GET":
                return self.read(request)
            faults = self._faults.get(self.order_of(request))
            fault = faults.popleft() if faults else None
            if fault is Fault.RESET:
                raise HangUp(at_once=True)
            if fault is Fault.BUSY:
                return self.error(429)
            reply = self._once(request, fault)
        if fault in (Fault.LOST, Fault.STALL):
            raise HangUp(at_once=fault is Fault.LOST)
        if fault is Fault.GATEWAY:
            return Reply(502, b"<html><h1>502 Bad Gateway</h1></html>", {"Content-Type": "text/html"})
        return dataclasses.replace(reply, cut=fault is Fault.TRUNCATED)

    def _once(self, request: Request, fault: Fault | None) -> Reply:
        """Each key is executed once, as far as the provider keeps what came of it."""
        key = self.key_of(request)
        if key in self._kept:
            body, reply = self._kept[key]
            return self.replayed(reply) if body == request.body else self.error(CONFLICT)
        if fault in (Fault.BROKEN, Fault.UNAVAILABLE):
            done, shown = None, self.error(500 if fault is Fault.BROKEN else 503)
        else:
            done = self.execute(request)
            shown = self.error(500) if fault is Fault.BROKEN_AFTER else done
        if key and (kept := self.remembers(done, shown)):
            self._kept[key] = (request.body, kept)
        return shown


class Server:
    """A double behind a port of its own, until `stop`."""

    def __init__(self, double: Double, port: int) -> None:
        self.double = double
        self.url = f"http://127.0.0.1:{port}"
        self._http = _Listener(("127.0.0.1", port), _handler_of(double))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name=f"double {double.provider}")
        self._thread.start()

    def stop(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True  # one that stalls holds nobody up
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer that went away is no error here; what a double raises is one."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _handler_of(double: Double) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def answer(self) -> None:
            split = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = dict(parse_qsl(split.query))
            try:
                reply = double.answer(Request(self.command, split.path, query, self.headers, body))  # type: ignore[arg-type]
            except HangUp as how:
                self.hang_up(at_once=how.at_once)
                return
            except Exception as mistake:
                double.mistakes.append(mistake)
                raise
            if isinstance(reply.body, bytes):
                content = reply.body
            else:
                content = b"" if reply.body is None else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"Content-Type": double.content_type, **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if reply.cut else content)
            self.close_connection = reply.cut or self.close_connection

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

        def hang_up(self, *, at_once: bool) -> None:
            self.close_connection = True
            if not at_once:
                self.connection.settimeout(STALL_S_MAX)
                try:
                    self.connection.recv(1)
                except OSError:
                    pass  # they went away, or nobody did in time: the end is the same
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet: tests read `arrivals`."""

    return Handler
