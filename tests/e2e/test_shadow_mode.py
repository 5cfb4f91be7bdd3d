"""A provider in observe mode, and a real sidecar whose journal is gone: a call passes byte for byte, and is counted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.conftest import FLEET_SECRETS
from tests.e2e.sidecar import Sidecar, ask, wait_until
from tests.journal.redis_server import RedisServer

pytestmark = pytest.mark.slow

OBSERVE = ("provider: acme ", "mode: observe\nprovider: acme ")
BODY = b'{ "amount":1099,"currency": "EUR",  "metadata": {"order_id":"order-1"} }'
ANSWER_BODY = b'{"id": "ch_1", "status": "succeeded", "amount": 1099, "currency": "EUR"}'
ANSWER = (
    b"HTTP/1.1 200 OK\r\nDate: Mon, 16 Nov 2026 12:00:00 GMT\r\nx-ODD-case: kept\r\nX-Twice: 1\r\nX-Twice: 2\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER_BODY)
) + ANSWER_BODY


class Wire:
    """A provider at its socket: every request as it came, and one answer for all."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while (request := whole(connection)) is not None:
                self.requests.append(request)
                connection.sendall(ANSWER)

    def close(self) -> None:
        self._listener.close()


def whole(connection: socket.socket) -> bytes | None:
    """One message with a Content-Length; None where the other side is gone."""
    message = b""
    while True:
        head, end, body = message.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        if end and len(body) >= int(lengths[0]):
            return message
        piece = connection.recv(65536)
        if not piece:
            return None
        message += piece


@pytest.fixture
def wire() -> Iterator[Wire]:
    provider = Wire()
    yield provider
    provider.close()


def lines_of(message: bytes) -> tuple[bytes, list[bytes], bytes]:
    head, _, body = message.partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    return first, [line for line in headers if not line.lower().startswith((b"content-length:", b"connection:"))], body


def test_without_a_journal_an_observed_call_passes_byte_for_byte_and_is_counted(
    wire: Wire, make_sidecar: Callable[..., Sidecar], redis: RedisServer
) -> None:
    url = f"http://127.0.0.1:{wire.port}"
    sidecar = make_sidecar(url, OBSERVE, options=("--journal", redis.url), environment=FLEET_SECRETS).start()
    redis.stop()
    wait_until(lambda: not ask(f"{sidecar.admin_url}/readyz").json["journal_healthy"], "the end of the journal")
    request = (
        b"POST /acme/v1/charges?x=%%41 HTTP/1.1\r\nHost: shop.test\r\nauthorization: Bearer test\r\nX-Odd: 1\r\n"
        b"X-Odd: 2\r\nAccept-Encoding: br\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    ) % (len(BODY), BODY)
    with socket.create_connection(("127.0.0.1", sidecar.port), timeout=30) as caller:
        caller.sendall(request)
        answer = whole(caller)
    assert answer is not None
    ((first, headers, body),) = [lines_of(arrived) for arrived in wire.requests]
    sent_first, sent_headers, _ = lines_of(request)
    assert first == sent_first.replace(b"/acme/", b"/")
    assert headers == [f"Host: 127.0.0.1:{wire.port}".encode(), *sent_headers[1:]]
    assert body == BODY
    assert lines_of(answer) == lines_of(ANSWER)
    counted = {"operation": "sale", "class": "succeeded", "action": "stop", "rule": "succeeded"}
    wait_until(lambda: sidecar.metric("payment_observed_decisions_total", **counted) == 1, "the count")
