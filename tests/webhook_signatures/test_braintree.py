"""Braintree's scheme, against Braintree's own library in both directions."""

from __future__ import annotations

import warnings
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as some

from paywitness.core.bodies.tree import Encoding, decode
from paywitness.core.errors import BodyError
from paywitness.webhook_signatures.braintree import Braintree
from paywitness.webhook_signatures.scheme import SignatureVerdict
from tests.webhook_signatures.signing import OLD_SECRET, SECRET, braintree, check

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it warns of its own parts while it is imported
    from braintree import BraintreeGateway, Configuration, Environment
    from braintree.exceptions.invalid_signature_error import InvalidSignatureError
    from braintree.util.crypto import Crypto

GATEWAY = BraintreeGateway(
    Configuration(Environment.Sandbox, "merchant", public_key="public_key", private_key=SECRET.decode())
)
SAMPLE = GATEWAY.webhook_testing.sample_notification("transaction_settled", "tx_1")


def form(signature: str, payload: str) -> bytes:
    return urlencode({"bt_signature": signature, "bt_payload": payload}).encode()


def verdict(signature: str, payload: str, *secrets: bytes) -> SignatureVerdict:
    return check("braintree", (), *secrets, body=form(signature, payload)).verdict


def library_accepts(signature: str, payload: str) -> bool:
    try:
        GATEWAY.webhook_notification.parse(signature, payload)
    except InvalidSignatureError:
        return False
    return True


def text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def test_the_librarys_own_sample_is_genuine_and_tells_its_xml() -> None:
    signature, payload = text(SAMPLE["bt_signature"]), text(SAMPLE["bt_payload"])
    assert verdict(signature, payload) is SignatureVerdict.GENUINE
    assert library_accepts(signature, payload)
    told, encoding = Braintree().extract_payload(form(signature, payload))
    assert encoding is Encoding.XML
    notification = decode(told, encoding)["notification"]
    assert (notification["kind"], notification["subject"]["transaction"]["id"]) == ("transaction_settled", "tx_1")


@given(
    public=some.sampled_from(["public_key", "other_key", ""]),
    private=some.sampled_from([SECRET.decode(), OLD_SECRET.decode()]),
    extra=some.sampled_from(["", "x|00&", "nonsense&", "public_key2|zz&"]),
    newline=some.sampled_from(["", "\n"]),
)
def test_what_the_library_accepts_we_do_and_we_ask_for_no_less(
    public: str, private: str, extra: str, newline: str
) -> None:
    payload = text(SAMPLE["bt_payload"]).strip()
    signature = f"{extra}{public}|{Crypto.sha1_hmac_hash(private, payload + newline)}"
    genuine = verdict(signature, payload) is SignatureVerdict.GENUINE
    assert genuine == (private == SECRET.decode())
    if library_accepts(signature, payload):
        assert genuine
    elif genuine:  # the private key alone proves it; the library also wants its own public key beside it
        assert public != "public_key"


def test_the_payload_is_signed_as_it_is_written() -> None:
    signature, payload = text(SAMPLE["bt_signature"]), text(SAMPLE["bt_payload"])
    assert verdict(signature, payload.replace("\n", "", 1)) is SignatureVerdict.BAD_SIGNATURE


def test_two_pairs_by_two_keys_fit_whichever_we_hold() -> None:
    payload = text(SAMPLE["bt_payload"])
    pairs = [
        f"{name}|{Crypto.sha1_hmac_hash(key.decode(), payload)}" for name, key in (("a", SECRET), ("b", OLD_SECRET))
    ]
    for secret in (SECRET, OLD_SECRET):
        assert verdict("&".join(pairs), payload, secret) is SignatureVerdict.GENUINE


def test_at_most_twenty_pairs_are_compared() -> None:
    signature, payload = text(SAMPLE["bt_signature"]), text(SAMPLE["bt_payload"])
    assert verdict("x|00&" * 19 + signature, payload) is SignatureVerdict.GENUINE
    assert verdict("x|00&" * 20 + signature, payload) is SignatureVerdict.MALFORMED


@pytest.mark.parametrize("payload", ["", "a b", "<xml/>", "é", "a\0"])
def test_a_payload_that_is_not_base64_is_malformed_as_it_is_for_the_library(payload: str) -> None:
    assert verdict(f"public_key|{'0' * 40}", payload) is SignatureVerdict.MALFORMED
    if payload.isascii():
        assert not library_accepts(f"public_key|{'0' * 40}", payload)


def test_a_field_that_repeats_is_malformed() -> None:
    _, body = braintree(SECRET)
    for again in (b"&bt_payload=AAAA", b"&bt_signature=x|00"):
        assert check("braintree", (), body=body + again).verdict is SignatureVerdict.MALFORMED


@pytest.mark.parametrize(
    "body", [b"", b"bt_payload=AAAA", b"bt_signature=&bt_payload=AAAA", b"bt_signature=x&bt_payload=A"]
)
def test_no_signature_is_said_of_a_form_that_bears_none(body: bytes) -> None:
    assert check("braintree", (), body=body).verdict is SignatureVerdict.NO_SIGNATURE


def test_what_is_no_form_is_malformed_and_tells_nothing() -> None:
    assert check("braintree", (), body=b"{}").verdict is SignatureVerdict.MALFORMED
    with pytest.raises(BodyError):
        Braintree().extract_payload(b"{}")
