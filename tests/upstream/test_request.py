"""The request's bytes: exactly what was given, and nothing that could be read as two requests."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paywitness.core.policy import UpstreamTimeouts
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import Origin, WireRequest, request_bytes
from tests.upstream.conftest import CHARGE, origin
from tests.upstream.peer import Provider, answer_all

ACME = Origin("https", "api.acme.test", 443)


def test_a_request_is_written_byte_for_byte() -> None:
    request = WireRequest(
        "POST",
        b"/v1/charges?expand=customer&x=%20",
        ((b"Host", b"api.acme.test"), (b"x-dup", b"1"), (b"X-Dup", b"2"), (b"Empty", b""), (b"Name", b"M\xfcller ")),
        b'{"amount":1000}',
    )
    assert request_bytes(ACME, request) == (
        b"POST /v1/charges?expand=customer&x=%20 HTTP/1.1\r\n"
        b"Host: api.acme.test\r\n"
        b"x-dup: 1\r\n"
        b"X-Dup: 2\r\n"
        b"Empty: \r\n"
        b"Name: M\xfcller \r\n"
        b"Content-Length: 15\r\n"
        b"\r\n"
        b'{"amount":1000}'
    )


def test_without_headers_and_body_only_the_host_is_added() -> None:
    assert request_bytes(ACME, WireRequest("GET", b"/", (), b"")) == b"GET / HTTP/1.1\r\nHost: api.acme.test\r\n\r\n"


@pytest.mark.parametrize(
    ("where", "host"),
    [
        ("https://api.acme.test", b"api.acme.test"),
        ("https://api.acme.test:8443", b"api.acme.test:8443"),
        ("http://127.0.0.1:8702", b"127.0.0.1:8702"),
        ("http://[::1]:80", b"[::1]"),
        ("https://[::1]:80", b"[::1]:80"),
    ],
)
def test_an_absent_host_is_the_origin(where: str, host: bytes) -> None:
    written = request_bytes(Origin.parse(where), WireRequest("GET", b"/", ((b"A", b"b"),), b""))
    assert written == b"GET / HTTP/1.1\r\nHost: " + host + b"\r\nA: b\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("POST", b"", b"Content-Length: 0\r\n"),
        ("PUT", b"", b"Content-Length: 0\r\n"),
        ("PATCH", b"", b"Content-Length: 0\r\n"),
        ("GET", b"", b""),
        ("HEAD", b"", b""),
        ("DELETE", b"", b""),
        ("DELETE", b"why", b"Content-Length: 3\r\n"),
        ("GET", b"why", b"Content-Length: 3\r\n"),
    ],
)
def test_the_length_is_ours(method: str, body: bytes, length: bytes) -> None:
    given_framing = ((b"content-length", b"99"), (b"Transfer-Encoding", b"chunked"), (b"Host", b"h"))
    written = request_bytes(ACME, WireRequest(method, b"/", given_framing, body))
    assert written == method.encode() + b" / HTTP/1.1\r\nHost: h\r\n" + length + b"\r\n" + body


@pytest.mark.parametrize(
    "broken",
    [
        {"method": ""},
        {"method": "GET /x HTTP/1.1\r\nA:"},
        {"method": "PÖST"},
        {"method": "P→ST"},
        {"method": "CONNECT"},
        {"target": b""},
        {"target": b"charges"},
        {"target": b"http://other.test/"},
        {"target": b"/a b"},
        {"target": b"/a\r\nEvil: 1"},
        {"target": b"/a\x00"},
        {"target": b"/a\x7f"},
        {"headers": ((b"", b"x"),)},
        {"headers": ((b"A B", b"x"),)},
        {"headers": ((b"A:", b"x"),)},
        {"headers": ((b"A\r\nEvil", b"x"),)},
        {"headers": ((b"A\x00", b"x"),)},
        {"headers": ((b"\xc4", b"x"),)},
        {"headers": ((b"A", b"x\r\nEvil: 1"),)},
        {"headers": ((b"A", b"x\n"),)},
        {"headers": ((b"A", b"x\x00"),)},
        {"headers": ((b"A", b"x\x7f"),)},
        {"headers": ((b"Host", b"a"), (b"host", b"b"))},
    ],
    ids=repr,
)
async def test_what_could_be_read_otherwise_is_refused_before_any_io(client: UpstreamClient, broken: dict) -> None:
    with Provider(answer_all) as provider:
        with pytest.raises(ValueError, match=r"^[A-Za-z ,;]+$") as refused:  # words only: values are secrets
            await client.send(origin(provider.port), replace(CHARGE, **broken), UpstreamTimeouts())
        assert "Evil" not in str(refused.value)
        assert not provider.peers


names = st.binary(min_size=1, max_size=8)
values = st.binary(max_size=8)


@given(st.lists(st.tuples(names, values), max_size=4), st.binary(max_size=8))
def test_no_header_can_end_its_line(headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Whatever passes has as many lines as it has headers, each its own."""
    try:
        written = request_bytes(ACME, WireRequest("POST", b"/", tuple(headers), body))
    except ValueError:
        assert any(re.search(rb"[^\t\x20-\x7e\x80-\xff]", n + v) or _not_token(n) for n, v in headers) or (
            sum(n.lower() == b"host" for n, _ in headers) > 1
        )
        return
    head, _, rest = written.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")[1:]
    ours = {b"content-length", b"transfer-encoding"}
    expected = [n + b": " + v for n, v in headers if n.lower() not in ours]
    if not any(n.lower() == b"host" for n, _ in headers):
        expected.insert(0, b"Host: api.acme.test")
    assert lines == [*expected, b"Content-Length: %d" % len(body)]
    assert rest == body


def _not_token(name: bytes) -> bool:
    return not re.fullmatch(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", name)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.stripe.com", Origin("https", "api.stripe.com", 443)),
        ("https://API.Stripe.com/", Origin("https", "api.stripe.com", 443)),
        ("http://127.0.0.1:8702", Origin("http", "127.0.0.1", 8702)),
        ("http://[::1]:8702", Origin("http", "::1", 8702)),
        ("https://zahlung.müller.test", Origin("https", "zahlung.xn--mller-kva.test", 443)),
    ],
)
def test_an_origin_is_read_from_a_url(url: str, expected: Origin) -> None:
    assert Origin.parse(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.acme.test",
        "ftp://api.acme.test",
        "https://",
        "https://user:secret@api.acme.test",
        "https://api.acme.test/v1",
        "https://api.acme.test?x=1",
        "https://api.acme.test:99999",
        "https://api acme.test",
    ],
)
def test_what_is_no_origin_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Origin.parse(url)


def test_an_origin_says_itself_as_a_url() -> None:
    assert str(Origin.parse("https://api.acme.test:443")) == "https://api.acme.test"
    assert str(Origin.parse("http://[::1]:81")) == "http://[::1]:81"
