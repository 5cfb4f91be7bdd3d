"""The schemes over the body alone: against the providers' own libraries where they check, else against openssl."""

from __future__ import annotations

import pytest
from gocardless_pro import webhooks as gocardless
from gocardless_pro.errors import InvalidSignatureError
from hypothesis import given
from hypothesis import strategies as some
from razorpay.errors import SignatureVerificationError
from razorpay.utility import Utility

from paywitness.webhook_signatures.scheme import SignatureVerdict
from tests.webhook_signatures.signing import BODY, SECRET, check, headers, hex_of

# openssl dgst -sha256 -hmac acme-secret, and -sha512, over {"id":"evt_1"}
HEX_256 = "8e909c590117290dcf708d87d0d257b045bff7be91a8cb75377364211e22c7a8"
HEX_512 = (
    "37b30837c5cdac7bd006ca0c08cd4b29a82224c89277994045e9dbccb6bd6e21"
    "f541c0dcbe9786492a46df27c97b5d9ee364e58a0113db429e2589ca37dfa63d"
)


@pytest.mark.parametrize(
    ("scheme", "header", "value"),
    [
        ("checkout", "Cko_Signature", HEX_256),
        ("coinbase", "X_CC_Webhook_Signature", HEX_256),
        ("gocardless", "Webhook_Signature", HEX_256),
        ("razorpay", "X_Razorpay_Signature", HEX_256),
        ("paystack", "x_paystack_signature", HEX_512),
        ("mollie", "X_Mollie_Signature", f"sha256={HEX_256}"),
        ("authorizenet", "X_ANET_Signature", f"sha512={HEX_512.upper()}"),
    ],
)
def test_what_openssl_made_is_genuine(scheme: str, header: str, value: str) -> None:
    assert check(scheme, headers(**{header: value})).verdict is SignatureVerdict.GENUINE


def gocardless_accepts(body: bytes, signature: str) -> bool:
    try:
        gocardless.parse(body.decode(), SECRET.decode(), signature)
    except InvalidSignatureError:
        return False
    return True


def razorpay_accepts(body: bytes, signature: str) -> bool:
    try:
        return Utility().verify_webhook_signature(body.decode(), signature, SECRET.decode())
    except SignatureVerificationError:
        return False


LIBRARIES = {
    "gocardless": ("Webhook_Signature", gocardless_accepts),
    "razorpay": ("X_Razorpay_Signature", razorpay_accepts),
}


@pytest.mark.parametrize("scheme", LIBRARIES)
@given(
    note=some.text(some.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), max_size=20),
    forged=some.sampled_from(["", "0" * 64, "ab", HEX_256, "zz"]) | some.none(),
)
def test_the_library_and_we_agree(scheme: str, note: str, forged: str | None) -> None:
    header, accepts = LIBRARIES[scheme]
    body = f'{{"events": [{{"id": "{note}"}}]}}'.encode()
    signature = hex_of(body, SECRET) if forged is None else forged
    ours = check(scheme, headers(**{header: signature}), body=body).verdict is SignatureVerdict.GENUINE
    assert ours == accepts(body, signature) == (forged is None)


@pytest.mark.parametrize(
    ("scheme", "header", "other"), [("mollie", "X_Mollie_Signature", 512), ("authorizenet", "X_ANET_Signature", 256)]
)
def test_a_signature_by_another_algorithm_is_none(scheme: str, header: str, other: int) -> None:
    signature = f"sha{other}={hex_of(BODY, SECRET, f'sha{other}')}"
    assert check(scheme, headers(**{header: signature})).verdict is SignatureVerdict.BAD_SIGNATURE
