"""Square's scheme, against Square's own library in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from square.utils.webhooks_helper import verify_signature

from paywitness.webhook_signatures.registry import scheme_named
from paywitness.webhook_signatures.scheme import SignatureVerdict
from tests.webhook_signatures.signing import BODY, SECRET, base64_of, check, headers, square

URL, OTHER = "https://shop.test/hooks", "https://shop.test/hooks/berlin"


def verdict(signature: str, body: bytes = BODY, url: str = URL) -> SignatureVerdict:
    return check("square", headers(x_square_hmacsha256_signature=signature), body=body, url=url).verdict


def library_accepts(signature: str, body: bytes, url: str = URL) -> bool:
    return verify_signature(
        request_body=body.decode(), signature_header=signature, signature_key=SECRET.decode(), notification_url=url
    )


@given(
    text=some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
    signed_for=some.sampled_from([URL, OTHER, "", f"{URL}/"]),
    checked_for=some.sampled_from([URL, OTHER]),
)
def test_the_library_and_we_agree(text: str, signed_for: str, checked_for: str) -> None:
    body = text.encode()
    signature = base64_of(signed_for.encode() + body, SECRET)
    genuine = verdict(signature, body, checked_for) is SignatureVerdict.GENUINE
    assert genuine == library_accepts(signature, body, checked_for)
    assert genuine == (signed_for == checked_for) or checked_for.startswith(signed_for)


def test_any_of_several_addresses_may_fit() -> None:
    for url in (URL, OTHER):
        signature = base64_of(url.encode() + BODY, SECRET)
        assert verdict(signature, url=f"{URL} {OTHER}") is SignatureVerdict.GENUINE
    assert (
        verdict(base64_of(b"https://elsewhere.test" + BODY, SECRET), url=f"{URL} {OTHER}")
        is SignatureVerdict.BAD_SIGNATURE
    )


def test_the_address_is_signed_too() -> None:
    sent, body = square(SECRET)
    assert check("square", sent, body=body, url=OTHER).verdict is SignatureVerdict.BAD_SIGNATURE


@pytest.mark.parametrize("url", ["", " ", "shop.test/hooks", "ftp://shop.test", f"{URL} x", " ".join([URL] * 21)])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url: found"):
        scheme_named("square", {"url": url})
