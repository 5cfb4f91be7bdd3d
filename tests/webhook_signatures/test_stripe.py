"""Stripe's scheme, against Stripe's own library in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from stripe import SignatureVerificationError, WebhookSignature

from paywitness.webhook_signatures.scheme import SignatureVerdict
from tests.webhook_signatures.signing import BODY, NOW, OLD_SECRET, SECRET, check, headers, hex_of, stripe

# openssl dgst -sha256 -hmac whsec_test_secret, over 1700000000.{"id":"evt_1"}
WHOLE_SECRET = b"whsec_test_secret"
SIGNATURE = "248a374f50f943a28b0f6ab50faf9a7e7e29b710fa26df9fb1618b9bf8ea9c9a"


def sdk_accepts(header: str, body: bytes, secret: bytes) -> bool:
    """Without its tolerance, which reads the clock of the machine."""
    try:
        return WebhookSignature.verify_header(body.decode(), header, secret.decode())
    except SignatureVerificationError:
        return False


def verdict(header: str, *secrets: bytes, body: bytes = BODY) -> SignatureVerdict:
    return check("stripe", headers(Stripe_Signature=header), *secrets, body=body).verdict


def test_the_key_is_the_whole_secret_with_its_prefix() -> None:
    assert verdict(f"t={NOW},v1={SIGNATURE}", WHOLE_SECRET) is SignatureVerdict.GENUINE
    assert sdk_accepts(f"t={NOW},v1={SIGNATURE}", BODY, WHOLE_SECRET)


@given(body=some.text(max_size=60), secret=some.from_regex(r"whsec_[A-Za-z0-9]{1,40}", fullmatch=True))
def test_what_the_library_signs_is_genuine(body: str, secret: str) -> None:
    header = WebhookSignature.generate_signature_header(body, secret, NOW)
    assert verdict(header, secret.encode(), body=body.encode()) is SignatureVerdict.GENUINE


_signature = some.sampled_from([hex_of(f"{NOW}.".encode() + BODY, SECRET), "0" * 64, "", "ab", "zz", SIGNATURE])
_entry = some.one_of(
    some.sampled_from([f"t={NOW}", f"t={NOW}", "t=", "t=x", "v1", "", "=", "t"]),
    some.builds("{}={}".format, some.sampled_from(["v1", "v0", "v2", " v1", "V1"]), _signature),
)


@given(header=some.lists(_entry, max_size=6).map(",".join))
def test_the_library_accepts_whatever_we_call_genuine(header: str) -> None:
    if verdict(header) is SignatureVerdict.GENUINE:
        assert sdk_accepts(header.replace(" v1", "v1"), BODY, SECRET)


@pytest.mark.parametrize("garbage", ["v1=00", "v0=00", "v2=x", "", "x", "=", "x=", "v1=" + "0" * 64])
def test_any_v1_may_fit_and_other_entries_are_passed_over(garbage: str) -> None:
    signature = hex_of(f"{NOW}.".encode() + BODY, SECRET)
    for header in (f"t={NOW},{garbage},v1={signature}", f"v1={signature},{garbage},t={NOW}"):
        assert verdict(header) is SignatureVerdict.GENUINE
        assert sdk_accepts(header, BODY, SECRET)


@pytest.mark.parametrize("garbage", ["v1", "t"])
def test_a_time_or_signature_without_a_value_is_malformed_for_us_as_for_the_library(garbage: str) -> None:
    signature = hex_of(f"{NOW}.".encode() + BODY, SECRET)
    for header in (f"t={NOW},{garbage},v1={signature}", f"v1={signature},t={NOW},{garbage}"):
        assert verdict(header) is SignatureVerdict.MALFORMED
        assert not sdk_accepts(header, BODY, SECRET)


def test_two_v1_by_two_secrets_fit_whichever_we_hold() -> None:
    text = f"{NOW}.".encode() + BODY
    header = f"t={NOW},v1={hex_of(text, SECRET)},v1={hex_of(text, OLD_SECRET)}"
    assert verdict(header, SECRET) is verdict(header, OLD_SECRET) is SignatureVerdict.GENUINE


def test_a_v0_never_counts() -> None:
    signature = hex_of(f"{NOW}.".encode() + BODY, SECRET)
    assert verdict(f"t={NOW},v0={signature}") is SignatureVerdict.NO_SIGNATURE


@pytest.mark.parametrize("times", ["", f"t={NOW},t={NOW},", f"t={NOW},t={NOW + 1},", "t=,", f"T={NOW},"])
def test_there_is_exactly_one_time(times: str) -> None:
    signature = hex_of(f"{NOW}.".encode() + BODY, SECRET)
    assert verdict(f"{times}v1={signature}") is SignatureVerdict.MALFORMED


def test_a_repeated_header_is_malformed() -> None:
    assert check("stripe", stripe() * 2).verdict is SignatureVerdict.MALFORMED
    assert check("stripe", (*stripe(), *headers(stripe_signature=""))).verdict is SignatureVerdict.MALFORMED
