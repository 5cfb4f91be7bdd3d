"""What can go wrong on the wire once a request is written, and the exact evidence that each must leave.

A case is one thing a provider does with its first request. `kept` says whether the next call may use the connection;
`reset` whether we end it by RST, which the provider must then see.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paywitness.core.evidence import NetworkPhase, WireFault
from paywitness.core.policy import UpstreamTimeouts
from paywitness.upstream.exchange import HEAD_BYTES_MAX, HEADERS_MAX, INTERIM_MAX
from tests.upstream.peer import OK, Peer, Script

AWAITING, RECEIVING, COMPLETE = NetworkPhase.AWAITING, NetworkPhase.RECEIVING, NetworkPhase.COMPLETE

PATIENT = UpstreamTimeouts()
HASTY = UpstreamTimeouts(first_byte_s=0.15, body_idle_s=0.15)
UNHURRIED = UpstreamTimeouts(first_byte_s=0.6, body_idle_s=0.6)
SHORT_ANSWER = UpstreamTimeouts(body_idle_s=5.0, response_s=0.15)
ANSWER_BYTES_MAX = 64 * 1024

BOTH = ("http", "https")
PLAIN = ("http",)
SECURE = ("https",)

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED: bytes = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Case:
    name: str
    act: Script
    phase: NetworkPhase
    fault: WireFault | None = None
    status_code: int | None = None
    body: bytes | None = None
    kept: bool = False
    reset: bool = False
    close_delimited: bool = False
    schemes: tuple[str, ...] = BOTH
    method: str = "POST"
    reads: bool = True  # the provider reads the request before it acts
    timeouts: UpstreamTimeouts = field(default=PATIENT)


def says(*pieces: bytes) -> Script:
    """Send these, one write each."""

    def act(peer: Peer) -> None:
        for piece in pieces:
            peer.send(piece)

    return act


def says_and_closes(data: bytes) -> Script:
    def act(peer: Peer) -> None:
        peer.send(data)
        peer.close()

    return act


def says_and_is_cut(data: bytes) -> Script:
    def act(peer: Peer) -> None:
        peer.send(data)
        peer.cut()

    return act


def says_and_resets(data: bytes) -> Script:
    def act(peer: Peer) -> None:
        if data:
            peer.send(data)
        peer.reset()

    return act


def resets_unread(peer: Peer) -> None:
    peer.until_readable()
    peer.reset()


def drips(data: bytes) -> Script:
    return says(*(data[i : i + 1] for i in range(len(data))))


def drips_slowly(data: bytes) -> Script:
    """Byte after byte, each well within UNHURRIED's idle time, all together well beyond it."""

    def act(peer: Peer) -> None:
        for i in range(len(data)):
            peer.send(data[i : i + 1])
            peer.gone.wait(0.06)

    return act


def drips_until_reset(data: bytes) -> Script:
    """Byte after byte, for as long as the client bears it."""

    def act(peer: Peer) -> None:
        peer.send(data)
        peer.socket.settimeout(0.03)
        for _ in range(1000):
            peer.send(b"x")
            try:
                if not peer.socket.recv(1):
                    return
            except TimeoutError:
                continue
            except ConnectionResetError:
                peer.ended = "reset"
                peer.gone.set()
                return

    return act


def malformed(name: str, data: bytes) -> Case:
    return Case(name, says(data), RECEIVING, WireFault.MALFORMED, reset=True)


def oversized(name: str, data: bytes) -> Case:
    return Case(name, says(data), RECEIVING, WireFault.OVERSIZED, reset=True)


def whole(
    name: str, data: bytes, body: bytes, *, status_code: int = 200, kept: bool = False, method: str = "POST"
) -> Case:
    return Case(name, says(data), COMPLETE, None, status_code, body, kept, method=method)


MALFORMED = (
    malformed("garbage", b"\x00\xff\x16\x03garbage\r\n\r\n"),
    malformed("HTTP/0.9", b"<html>paid</html>"),
    malformed("another protocol", b"SSH-2.0-OpenSSH_9.2\r\n"),
    malformed("HTTP/2 in plain words", b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"),
    malformed("HTTP/1.2", b"HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n"),
    malformed("a status of two digits", b"HTTP/1.1 99 Odd\r\nContent-Length: 0\r\n\r\n"),
    malformed("a status of four digits", b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"),
    malformed("a status that is no number", b"HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n"),
    malformed("an empty line before the answer", b"\r\n" + OK),
    malformed("lines that end in LF alone", b"HTTP/1.1 200 OK\nContent-Length: 0\n\n"),
    malformed("one line that ends in LF alone", HEAD + b"A: b\nContent-Length: 0\r\n\r\n"),
    malformed("a bare CR", HEAD + b"A: b\rC: d\r\nContent-Length: 0\r\n\r\n"),
    malformed("a NUL in a header", HEAD + b"A: b\x00c\r\nContent-Length: 0\r\n\r\n"),
    malformed("a folded header", HEAD + b"A: b\r\n c\r\nContent-Length: 0\r\n\r\n"),
    malformed("a folded first header", HEAD + b" A: b\r\nContent-Length: 0\r\n\r\n"),
    malformed("a space before the colon", HEAD + b"Content-Length : 0\r\n\r\n"),
    malformed("a header without a name", HEAD + b": b\r\nContent-Length: 0\r\n\r\n"),
    malformed("a header without a colon", HEAD + b"nonsense\r\nContent-Length: 0\r\n\r\n"),
    malformed("two equal lengths", HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok"),
    malformed("two different lengths", HEAD + b"Content-Length: 2\r\ncontent-length: 3\r\n\r\nok"),
    malformed("a list of lengths", HEAD + b"Content-Length: 2, 2\r\n\r\nok"),
    malformed("a negative length", HEAD + b"Content-Length: -2\r\n\r\nok"),
    malformed("a signed length", HEAD + b"Content-Length: +2\r\n\r\nok"),
    malformed("an empty length", HEAD + b"Content-Length:\r\n\r\n"),
    malformed("a length in hexadecimal", HEAD + b"Content-Length: 0x2\r\n\r\nok"),
    malformed("an endless length", HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n"),
    malformed("length and coding", HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    malformed("coding and length", HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    malformed(
        "length and coding of no body", b"HTTP/1.1 204 No\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n"
    ),
    malformed("an unknown coding", HEAD + b"Transfer-Encoding: gzip\r\n\r\nok"),
    malformed("a coding before chunked", HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    malformed("chunked twice", HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    malformed("chunked in HTTP/1.0", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    malformed("a chunk size that is no number", CHUNKED + b"zz\r\nok\r\n0\r\n\r\n"),
    malformed("a negative chunk size", CHUNKED + b"-2\r\nok\r\n0\r\n\r\n"),
    malformed("a chunk size with a prefix", CHUNKED + b"0x2\r\nok\r\n0\r\n\r\n"),
    malformed("a chunk size that overflows", CHUNKED + b"fffffffffffffffff\r\n"),
    malformed("a chunk size line that ends in LF alone", CHUNKED + b"2\nok\r\n0\r\n\r\n"),
    malformed("a chunk longer than its size", CHUNKED + b"2\r\nokay\r\n0\r\n\r\n"),
    malformed("a NUL in a chunk extension", CHUNKED + b"2;a=\x00\r\nok\r\n0\r\n\r\n"),
    malformed("a folded trailer", CHUNKED + b"2\r\nok\r\n0\r\nA: b\r\n c\r\n\r\n"),
    malformed("a switch of protocols", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
    malformed("a flood of 100 Continue", b"HTTP/1.1 100 Continue\r\n\r\n" * (INTERIM_MAX + 1) + OK),
)

OVERSIZED = (
    oversized("a huge header", HEAD + b"A: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n"),
    oversized("a head without an end", HEAD + b"A: " + b"x" * HEAD_BYTES_MAX),
    oversized("too many headers", HEAD + b"A: b\r\n" * (HEADERS_MAX + 1) + b"\r\n"),
    oversized("a length beyond the bound", HEAD + b"Content-Length: %d\r\n\r\n" % (ANSWER_BYTES_MAX + 1)),
    oversized("chunks beyond the bound", CHUNKED + b"20001\r\n" + b"x" * 0x20001),
    oversized("an endless body", HEAD + b"\r\n" + b"x" * (ANSWER_BYTES_MAX + 1)),
    oversized("an endless chunk extension", CHUNKED + b"2;" + b"x" * (2 * HEAD_BYTES_MAX)),
)

ENDED_EARLY = (
    Case("a close instead of an answer", says_and_closes(b""), AWAITING, WireFault.CLOSED, reset=True),
    Case("a close within the head", says_and_closes(HEAD + b"Content-Le"), RECEIVING, WireFault.CLOSED, reset=True),
    Case("a close after 100", says_and_closes(b"HTTP/1.1 100 C\r\n\r\n"), RECEIVING, WireFault.CLOSED, reset=True),
    Case("a close within the body", says_and_closes(OK[:-1]), RECEIVING, WireFault.CLOSED, reset=True),
    Case("a last chunk missing", says_and_closes(CHUNKED + b"2\r\nok\r\n"), RECEIVING, WireFault.CLOSED, reset=True),
    Case("a cut within the body", says_and_is_cut(OK[:-1]), RECEIVING, WireFault.CLOSED, reset=True),
    Case(
        "an endless body cut without goodbye",
        says_and_is_cut(HEAD + b"\r\nhalf"),
        RECEIVING,
        WireFault.CLOSED,
        reset=True,
        schemes=SECURE,
    ),
    Case("a reset, request unread", resets_unread, AWAITING, WireFault.RESET, reads=False, schemes=PLAIN),
    Case("a reset instead of an answer", says_and_resets(b""), AWAITING, WireFault.RESET),
    Case("a reset within the head", says_and_resets(HEAD), RECEIVING, WireFault.RESET),
    Case("a reset within the body", says_and_resets(OK[:-1]), RECEIVING, WireFault.RESET),
    Case("a reset in an endless body", says_and_resets(HEAD + b"\r\nhalf"), RECEIVING, WireFault.RESET),
)

TOO_SLOW = (
    Case("silence", says(), AWAITING, WireFault.FIRST_BYTE_TIMEOUT, reset=True, timeouts=HASTY),
    Case(
        "100, then silence",
        says(b"HTTP/1.1 100 Continue\r\n\r\n"),
        RECEIVING,
        WireFault.FIRST_BYTE_TIMEOUT,
        reset=True,
        timeouts=HASTY,
    ),
    Case("half a head, then silence", says(HEAD), RECEIVING, WireFault.BODY_TIMEOUT, reset=True, timeouts=HASTY),
    Case("half a body, then silence", says(OK[:-1]), RECEIVING, WireFault.BODY_TIMEOUT, reset=True, timeouts=HASTY),
    Case(
        "a body shorter than its length",
        says(HEAD + b"Content-Length: 9\r\n\r\nok"),
        RECEIVING,
        WireFault.BODY_TIMEOUT,
        reset=True,
        timeouts=HASTY,
    ),
    Case(
        "a last chunk that never comes",
        says(CHUNKED + b"2\r\nok\r\n"),
        RECEIVING,
        WireFault.BODY_TIMEOUT,
        reset=True,
        timeouts=HASTY,
    ),
    Case(
        "a drip without end",
        drips_until_reset(HEAD + b"\r\n"),
        RECEIVING,
        WireFault.BODY_TIMEOUT,
        reset=True,
        schemes=PLAIN,
        timeouts=SHORT_ANSWER,
    ),
)

ANSWERED = (
    whole("an answer", OK, b"ok", kept=True),
    Case("an answer in single bytes", drips(OK), COMPLETE, None, 200, b"ok", kept=True),
    Case(
        "chunks in single bytes",
        drips(CHUNKED + b"2\r\nok\r\n0\r\nA: b\r\n\r\n"),
        COMPLETE,
        None,
        200,
        b"ok",
        kept=True,
    ),
    whole("an empty answer", HEAD + b"Content-Length: 0\r\n\r\n", b"", kept=True),
    whole("chunks", CHUNKED + b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n", b"ok", kept=True),
    whole("chunks with extensions and a trailer", CHUNKED + b"2;a=b\r\nok\r\n0\r\nA: b\r\n\r\n", b"ok", kept=True),
    whole("100, then the answer", b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok", kept=True),
    whole(
        "102, 103, then the answer", b"HTTP/1.1 102 P\r\n\r\nHTTP/1.1 103 H\r\nLink: x\r\n\r\n" + OK, b"ok", kept=True
    ),
    whole("no reason phrase", b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok", kept=True),
    whole(
        "an unused offer to upgrade",
        OK.replace(b"\r\n\r\n", b"\r\nUpgrade: h2\r\nConnection: Upgrade\r\n\r\n"),
        b"ok",
        kept=True,
    ),
    whole("204", b"HTTP/1.1 204 No Content\r\n\r\n", b"", status_code=204, kept=True),
    whole(
        "304 with a length", b"HTTP/1.1 304 Same\r\nContent-Length: 999999999\r\n\r\n", b"", status_code=304, kept=True
    ),
    whole("HEAD with a length", HEAD + b"Content-Length: 9\r\n\r\n", b"", kept=True, method="HEAD"),
    whole("HEAD with chunks announced", CHUNKED, b"", kept=True, method="HEAD"),
    whole(
        "a redirect", b"HTTP/1.1 307 T\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", b"", status_code=307, kept=True
    ),
    whole(
        "a compressed body",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
        b"\x1f\x8b\x08\x00",
        kept=True,
    ),
    whole("503", b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno", b"no", status_code=503, kept=True),
    # Whole, but the connection is spent.
    whole("Connection: close", HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    whole(
        "a server that keeps connections for a second",
        HEAD + b"Keep-Alive: timeout=1\r\nContent-Length: 2\r\n\r\nok",
        b"ok",
    ),
    whole("HTTP/1.0", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    whole("HTTP/1.0 kept alive", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    whole("204 with a body", b"HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\nok", b"", status_code=204),
    whole("HEAD with a body", OK, b"", method="HEAD"),
    whole("a body longer than its length", OK + b"more", b"ok"),
    whole("an empty line after the answer", OK + b"\r\n", b"ok"),
    whole("a second answer in the same packet", OK + OK.replace(b"ok", b"no"), b"ok"),
    whole("a second answer after chunks", CHUNKED + b"2\r\nok\r\n0\r\n\r\n" + OK.replace(b"ok", b"no"), b"ok"),
    whole(
        "a second, empty answer after chunks",
        CHUNKED + b"2\r\nok\r\n0\r\n\r\n" + HEAD + b"Content-Length: 0\r\n\r\n",
        b"ok",
    ),
    whole("garbage after chunks", CHUNKED + b"2\r\nok\r\n0\r\n\r\ngarbage", b"ok"),
    whole("an empty line after chunks", CHUNKED + b"2\r\nok\r\n0\r\n\r\n\r\n", b"ok"),
    Case("an answer and a close", says_and_closes(OK), COMPLETE, None, 200, b"ok"),
    Case("an answer and a cut", says_and_is_cut(OK), COMPLETE, None, 200, b"ok"),
    Case("an answer and a reset", says_and_resets(OK), COMPLETE, None, 200, b"ok"),
    Case(
        "a body that ends with the connection",
        says_and_closes(HEAD + b"\r\nok"),
        COMPLETE,
        None,
        200,
        b"ok",
        close_delimited=True,
    ),
    Case(
        "a drip within the idle time",
        drips_slowly(OK),
        COMPLETE,
        None,
        200,
        b"ok",
        kept=True,
        schemes=PLAIN,
        timeouts=UNHURRIED,
    ),
    Case(
        "a truncated body that ends with the connection",  # nothing on the wire tells it from a whole one
        says_and_closes(HEAD + b'\r\n{"status": "succ'),
        COMPLETE,
        None,
        200,
        b'{"status": "succ',
        close_delimited=True,
    ),
)

ALL = (*MALFORMED, *OVERSIZED, *ENDED_EARLY, *TOO_SLOW, *ANSWERED)
