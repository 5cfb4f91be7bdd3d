"""What is kept reads back as it was, and every attempt makes the same bytes of it."""

from __future__ import annotations

import pytest

from paywitness.core.bodies.tree import Encoding
from paywitness.core.errors import UnreadableSecret
from paywitness.core.evidence import Response
from paywitness.engine.calls.stored_messages import (
    StoredRequest,
    open_request,
    open_response,
    seal_request,
    seal_response,
    wire_request,
    with_readable_codings,
)
from paywitness.randomness import SystemRandomness
from paywitness.secrets import RingKey, Vault
from tests.policy.texts import an_operation, changed, load, operation

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


COPY = "op_01M7PT7VKCRTVV8YG20FD31NHJ"
OWN = "op_01M7PT81V893FDQQX8CGCXF8NH"


def sent_body(body: bytes, own_stamp: str, encoding: Encoding = Encoding.JSON) -> bytes:
    text = changed("    kind: sale\n", f"    kind: sale\n    stamp: {own_stamp}\n")
    policy = operation(load(f"stamp: body:metadata.paywitness\nbody: {encoding.value}\n{text}"), "pay")
    sent = an_operation(id=OWN, stamp=OWN)
    return wire_request(StoredRequest("POST", "/v1/payments", (), body), sent, policy, "").body


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (b'{"amount": 1.10, "metadata": {"paywitness": "%b"}}', b'{"amount": 1.10, "metadata": {}}'),
        (b'{"metadata": {"a": "1", "paywitness" : "%b"}, "b": 2}', b'{"metadata": {"a": "1"}, "b": 2}'),
        (b'{"metadata": {"paywitness": "%b" , "a": "1"}}', b'{"metadata": {"a": "1"}}'),
        (b'{"metadata": {"other": "%b"}}', None),
        (b'{"metadata": {"paywitness": "of another system"}, "note": "%b"}', None),
        (b'{"metadata": "%b"}', None),
    ],
)
def test_m21_a_copied_stamp_does_not_leave_with_a_call_that_gets_none_of_its_own(
    given: bytes, sent: bytes | None
) -> None:
    """The events of the payment that this call makes would be taken for those of the operation it was copied from."""
    body = given % COPY.encode()
    assert sent_body(body, "none") == (body if sent is None else sent)


def test_m21_a_copied_stamp_is_taken_out_of_a_form_and_replaced_by_our_own() -> None:
    form = b"amount=5&metadata%5Bpaywitness%5D=" + COPY.encode() + b"&metadata[a]=1"
    assert sent_body(form, "none", Encoding.FORM) == b"amount=5&metadata[a]=1"
    stamped = sent_body(b'{"metadata": {"paywitness": "%b"}}' % COPY.encode(), "body:metadata.paywitness")
    assert stamped == b'{"metadata": {"paywitness": "%b"}}' % OWN.encode()
