"""What is kept reads back as it was, and every attempt makes the same bytes of it."""

from __future__ import annotations

import pytest

from paywitness.core.errors import UnreadableSecret
from paywitness.core.evidence import Response
from paywitness.engine.calls.stored_messages import (
    StoredRequest,
    open_request,
    open_response,
    seal_request,
    seal_response,
    with_readable_codings,
)
from paywitness.randomness import SystemRandomness
from paywitness.secrets import RingKey, Vault

VAULT = Vault(b"identity secret of the tests", (RingKey("k1", b"0" * 32),), SystemRandomness().nonce)
BODIES = [b"", b"{}", b"\n\n", b"\x00\xff\n\nPOST", b"x" * 100_000]


@pytest.mark.parametrize("body", BODIES, ids=len)
@pytest.mark.parametrize("headers", [(), ((b"A", b""), (b"a", b"b:c"), (b"X", b"\xe9 "))])
def test_a_request_reads_back_byte_for_byte(headers: tuple, body: bytes) -> None:
    request = StoredRequest("POST", "/v1/charges?a=%2F", headers, body)
    assert open_request(VAULT, seal_request(VAULT, request, "op_1"), "op_1") == request


@pytest.mark.parametrize("body", BODIES, ids=len)
@pytest.mark.parametrize("reason", [b"OK", b"", b"Not \xe9 Found"])
def test_a_response_reads_back_byte_for_byte(reason: bytes, body: bytes) -> None:
    response = Response(402, reason, ((b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=2")), body)
    assert open_response(VAULT, seal_response(VAULT, response, "op_1"), "op_1") == response


def test_a_request_does_not_open_as_a_response_or_for_another_operation() -> None:
    sealed = seal_request(VAULT, StoredRequest("POST", "/", (), b""), "op_1")
    for opened in (lambda: open_response(VAULT, sealed, "op_1"), lambda: open_request(VAULT, sealed, "op_2")):
        with pytest.raises(UnreadableSecret):
            opened()


def test_what_another_version_wrote_is_not_guessed_at() -> None:
    with pytest.raises(UnreadableSecret):
        open_request(VAULT, VAULT.seal(b"2 2\nPOST\n/\n", "request:op_1"), "op_1")


def test_a_repeats_credential_takes_the_place_of_the_firsts() -> None:
    kept = StoredRequest("POST", "/", ((b"A", b"1"), (b"authorization", b"old"), (b"B", b"2")), b"")
    renewed = kept.with_credentials_of(((b"Authorization", b"new"), (b"X-Other", b"ignored")))
    assert renewed.headers == ((b"A", b"1"), (b"authorization", b"new"), (b"B", b"2"))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"gzip, deflate, br", b"gzip, deflate"),
        (b"gzip;q=1.0, *;q=0.5", b"gzip;q=1.0"),
        (b"br", b"identity"),
        (b"gzip", b"gzip"),
        (b"identity", b"identity"),
    ],
)
def test_only_codings_that_can_be_read_are_asked_for(given: bytes, kept: bytes) -> None:
    assert with_readable_codings(((b"Accept-Encoding", given),)) == ((b"Accept-Encoding", kept),)
