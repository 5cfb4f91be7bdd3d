"""Fuzzing what providers answer: the reader agrees with itself and with h11, and no broken answer is a success."""

from __future__ import annotations

import json
from functools import cache

import h11
from hypothesis import strategies as st

from paywitness.core.classify import ExpectedPayment, classify
from paywitness.core.evidence import Evidence, NetworkPhase, Response, WireFault
from paywitness.core.money import Money
from paywitness.core.policy import Policy
from paywitness.core.result import Effect, ResultClass
from paywitness.policy.book import load_content
from paywitness.upstream.exchange import ResponseParser
from tests.e2e.sidecar import TOP
from tests.fuzz.mutation import in_pieces, kept, mutated

BODY = b'{"id": "ch_1", "object": "charge", "status": "succeeded", "amount": 1099, "currency": "EUR"}'
SEEDS = [
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 402 Payment Required\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n" + BODY,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nContent-Length: 38\r\n\r\n"
    + b'{"error": {"code": "overloaded", "a":1}}'[:38],
]
PIECES = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b": ",
        b",",
        b";x=y",
        b"0\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b"5\r\nhello\r\n",
    ),
    *(b"Content-Length: 5\r\n", b"content-length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"),
    *(
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Keep-Alive: timeout=5\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 101 \r\n",
    ),
    *(
        b"HTTP/2",
        b"\x00",
        b" ",
        b"\t",
        b"+5",
        b"0x5",
        b"-1",
        b"status",
        b"failed",
        b"succeeded",
        b"null",
        b'"',
        b"{",
        b"}",
    ),
]
ANSWERS = mutated([*SEEDS, *kept("answer")], PIECES)


def _read(pieces: list[bytes], *, closed: bool) -> ResponseParser:
    reader = ResponseParser(head_only=False, body_bytes_max=10_000)
    for piece in pieces:
        if reader.fault is not None:
            break
        reader.feed(piece)
    if closed and reader.fault is None and not reader.complete:
        reader.finish()
    return reader


def _found(reader: ResponseParser) -> tuple[object, ...]:
    whole = reader.response() if reader.complete else None
    return whole, reader.fault, reader.leftover if whole else None


def answer_is_read_one_way(data: bytes, cuts: list[int], closed: bool) -> None:
    reader = _read([data], closed=closed)
    assert _found(_read(in_pieces(data, cuts), closed=closed)) == _found(reader)
    assert not (reader.complete and reader.fault)
    response = reader.response() if reader.complete else None
    if response is not None:
        theirs = _by_h11(data, closed=closed)
        assert theirs is None or theirs == (response.status_code, response.body), (theirs, response)
        answer_is_classified(response)
    else:
        cut_short = Evidence(NetworkPhase.RECEIVING, 100, reader.fault or WireFault.CLOSED, None, "", 0.1)
        assert classify(cut_short, _policy().classify).effect is Effect.POSSIBLE


def _by_h11(data: bytes, *, closed: bool) -> tuple[int, bytes] | None:
    """What another reader makes of it; None where it refuses, or waits for more."""
    theirs = h11.Connection(h11.CLIENT)
    theirs.send(h11.Request(method="POST", target="/", headers=[("Host", "a"), ("Content-Length", "0")]))
    theirs.send(h11.EndOfMessage())
    theirs.receive_data(data)
    status_code, body, is_closed = 0, b"", False
    try:
        while True:
            event = theirs.next_event()
            if isinstance(event, h11.Response):
                status_code = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return status_code, body
            elif event is h11.NEED_DATA and closed and not is_closed:
                is_closed = True
                theirs.receive_data(b"")
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return None
    except h11.RemoteProtocolError:
        return None


@cache
def _policy() -> Policy:
    provider = load_content((TOP / "policies" / "acme.yaml").read_bytes(), "acme.yaml")
    return next(policy for policy in provider.policies if policy.operation == "sale")


def answer_is_classified(response: Response) -> None:
    """Any answer has a class and an effect; nothing but one that says so, and fits, is a success."""
    evidence = Evidence(NetworkPhase.COMPLETE, 100, None, response, "", 0.1)
    found = classify(evidence, _policy().classify, ExpectedPayment(money=Money(1099, "EUR")))
    if found.result_class is ResultClass.SUCCEEDED:
        tree = json.loads(response.body.decode("utf-8-sig"))
        assert tree["status"] in {"succeeded", "authorized"}
        assert str(tree.get("amount", 1099)) in {"1099", "1099.0"}


HEADS = mutated([b"", b"Content-Encoding: gzip", b"Retry-After: 9999999999999", b"Content-Type: text/html"], PIECES)


def any_status_and_body_are_classified(status_code: int, head: bytes, body: bytes) -> None:
    name, _, value = head.partition(b":")
    answer_is_classified(Response(status_code, b"", ((name, value.strip()),), body))


STATUS_CODES = st.integers(100, 999)
BODIES = mutated([BODY, BODY[:40], b"", b"null", b"[]", b'{"error": {"code": []}}'], PIECES)
