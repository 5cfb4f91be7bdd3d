"""Wise, Worldpay, Midtrans, tokens, and what is not signed: what is particular about each."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from paywitness.core.bodies.tree import Encoding
from paywitness.core.call import Headers
from paywitness.webhook_signatures.registry import SCHEMES, scheme_named
from paywitness.webhook_signatures.scheme import PayloadExtractor, SignatureVerdict
from tests.webhook_signatures.rsa_signing import key, public_pem, rsa_of
from tests.webhook_signatures.signing import BODY, NEEDED, SECRET, check, headers, hex_of, midtrans

# --- wise

PUBLIC, OTHER = public_pem(key()), public_pem(key(1))
ONE_LINE = b"".join(PUBLIC.splitlines()[1:-1])


def wise(number: int = 0, body: bytes = BODY) -> Headers:
    return headers(X_Signature_SHA256=rsa_of(body, key(number)))


@pytest.mark.parametrize("written", [PUBLIC, PUBLIC.strip(), ONE_LINE])
def test_wises_public_key_may_be_written_in_pem_or_on_one_line(written: bytes) -> None:
    assert check("wise", wise(), written).verdict is SignatureVerdict.GENUINE


def test_during_a_rotation_wises_check_says_which_key_fitted() -> None:
    found = check("wise", wise(1), PUBLIC, OTHER)
    assert (found.verdict, found.secret_index) == (SignatureVerdict.GENUINE, 1)


def test_another_key_or_body_is_not_what_wise_signed() -> None:
    assert check("wise", wise(1), PUBLIC).verdict is SignatureVerdict.BAD_SIGNATURE
    assert check("wise", wise(), PUBLIC, body=BODY + b" ").verdict is SignatureVerdict.BAD_SIGNATURE
    assert check("wise", headers(X_Signature_SHA256="x"), PUBLIC).verdict is SignatureVerdict.BAD_SIGNATURE
    assert check("wise", (), PUBLIC).verdict is SignatureVerdict.NO_SIGNATURE
    assert check("wise", wise() * 2, PUBLIC).verdict is SignatureVerdict.MALFORMED


_CURVE = (
    ec.generate_private_key(ec.SECP256R1())
    .public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
)


@pytest.mark.parametrize("unfit", [b"", b"secret", b"-----BEGIN PUBLIC KEY-----\nx", _CURVE, public_pem(key(2, 1024))])
def test_what_is_no_rsa_key_of_2048_bits_fits_nothing(unfit: bytes) -> None:
    assert check("wise", wise(), unfit).verdict is SignatureVerdict.BAD_SIGNATURE
    weak = headers(X_Signature_SHA256=rsa_of(BODY, key(2, 1024)))
    assert check("wise", weak, unfit).verdict is SignatureVerdict.BAD_SIGNATURE


def test_another_digest_is_none() -> None:
    sent = headers(X_Signature_SHA256=rsa_of(BODY, key(), hashes.SHA1()))
    assert check("wise", sent, PUBLIC).verdict is SignatureVerdict.BAD_SIGNATURE


# --- worldpay


@pytest.mark.parametrize("value", ["{0}", "k/SHA256/{0}", "k/SHA256/00, k2/SHA256/{0}", "k/SHA256/{0},k2/SHA256/00"])
def test_any_part_of_worldpays_list_may_fit(value: str) -> None:
    signature = hex_of(BODY, bytes.fromhex("00ff11ee"))
    sent = headers(Event_Signature=value.format(signature))
    assert check("worldpay", sent, b"00ff11ee\n").verdict is SignatureVerdict.GENUINE
    assert check("worldpay", sent, b"00ff11ef").verdict is SignatureVerdict.BAD_SIGNATURE


def test_worldpays_list_is_bounded() -> None:
    sent = headers(Event_Signature=",".join(["k/SHA256/00"] * 21))
    assert check("worldpay", sent, b"00ff").verdict is SignatureVerdict.MALFORMED


# --- midtrans


def test_midtrans_signs_so_little_that_another_order_can_be_read_from_it() -> None:
    """Why it is only a hint: the same text, another order and another amount; and a status of one's own."""
    _, body = midtrans(SECRET, order_id="order-120", status_code="010", gross_amount="000.00")
    assert check("midtrans", (), body=body).verdict is SignatureVerdict.GENUINE
    _, body = midtrans(SECRET, transaction_status="settlement")
    assert check("midtrans", (), body=body).verdict is SignatureVerdict.GENUINE


@pytest.mark.parametrize(
    "fields", [{"order_id": "other"}, {"status_code": "201"}, {"gross_amount": "1.00"}, {"signature_key": "00"}]
)
def test_each_part_that_midtrans_signs_counts(fields: dict[str, str]) -> None:
    _, body = midtrans(SECRET, **fields)
    assert check("midtrans", (), body=body).verdict is SignatureVerdict.BAD_SIGNATURE


@pytest.mark.parametrize(
    "fields",
    [{"order_id": 1}, {"status_code": "2000"}, {"gross_amount": "x"}, {"gross_amount": 1}, {"signature_key": 1}],
)
def test_what_midtrans_does_not_send_is_malformed(fields: dict[str, object]) -> None:
    _, body = midtrans(SECRET, **fields)
    assert check("midtrans", (), body=body).verdict is SignatureVerdict.MALFORMED


def test_a_body_without_midtrans_signature_bears_none() -> None:
    assert check("midtrans", (), body=json.dumps({"order_id": "1"}).encode()).verdict is SignatureVerdict.NO_SIGNATURE
    for body in (b"", b"[]", b"null", b"id=1"):
        assert check("midtrans", (), body=body).verdict is SignatureVerdict.MALFORMED


# --- tokens


def test_a_token_says_nothing_of_the_body() -> None:
    sent = headers(X_Token=SECRET.decode())
    for body in (BODY, b"anything"):
        assert check("token", sent, body=body, header="X-Token").verdict is SignatureVerdict.GENUINE
    assert (
        check("token", headers(X_Token=SECRET.decode() + "x"), header="X-Token").verdict
        is SignatureVerdict.BAD_SIGNATURE
    )


# --- unsigned


@pytest.mark.parametrize(("body", "encoding"), [("json", Encoding.JSON), ("form", Encoding.FORM)])
def test_what_is_unsigned_is_never_genuine_whatever_comes_with_it(body: str, encoding: Encoding) -> None:
    scheme = scheme_named("unsigned", {"body": body})
    for sent in ((), headers(Webhook_Signature=hex_of(BODY, SECRET))):
        found = check(scheme, sent, SECRET)
        assert (found.verdict, found.secret_index) == (SignatureVerdict.UNSIGNED, None)
    assert isinstance(scheme, PayloadExtractor)
    assert scheme.extract_payload(b"id=tr_1") == (b"id=tr_1", encoding)


def test_only_the_schemes_that_say_so_are_read_in_another_way() -> None:
    wrapped = {name for name in SCHEMES if isinstance(scheme_named(name, NEEDED.get(name, {})), PayloadExtractor)}
    assert wrapped == {"braintree", "unsigned"}
