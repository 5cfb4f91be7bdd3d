"""Standard Webhooks, against the vector its own libraries are tested with, and our signing against our check."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as some

from paywitness.webhook_signatures.scheme import SignatureVerdict
from paywitness.webhook_signatures.standard_webhooks import sign
from tests.webhook_signatures.signing import (
    BODY,
    NOW,
    OLD_SECRET,
    SECRET,
    base64_of,
    changed,
    check,
    headers,
    standard,
    value_in,
)

# From the reference libraries' tests ("sign function works").
SPEC_SECRET = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SPEC_ID, SPEC_AT, SPEC_BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SPEC_SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
SPEC_HEADERS = headers(webhook_id=SPEC_ID, webhook_timestamp=str(SPEC_AT), webhook_signature=SPEC_SIGNATURE)


def with_signature(value: str) -> tuple[tuple[bytes, bytes], ...]:
    return changed(standard(), b"webhook-signature", value.encode())


def test_the_vector_of_the_reference_libraries_is_genuine() -> None:
    assert check("standard", SPEC_HEADERS, SPEC_SECRET, body=SPEC_BODY, now=SPEC_AT).verdict is SignatureVerdict.GENUINE


def test_we_sign_as_the_reference_libraries_do() -> None:
    assert sign(SPEC_ID, SPEC_AT, SPEC_BODY, SPEC_SECRET) == SPEC_HEADERS


@given(
    message_id=some.from_regex(r"[A-Za-z0-9_-]{1,40}", fullmatch=True),
    body=some.binary(max_size=60),
    key=some.binary(min_size=24, max_size=64).filter(lambda key: key.strip(b" \t\r\n\f\v\0")),
)
def test_what_we_sign_is_genuine_by_the_same_key_however_written(message_id: str, body: bytes, key: bytes) -> None:
    written = b"whsec_" + base64.b64encode(key)
    sent = sign(message_id, NOW, body, written)
    for secret in (written, written.rstrip(b"=")):
        assert check("standard", sent, secret, body=body).verdict is SignatureVerdict.GENUINE
    assert sent == standard(key, body, message_id=message_id)


def test_a_secret_without_the_prefix_is_the_key_itself() -> None:
    assert sign("msg_1", NOW, BODY, SECRET) == standard(SECRET)


@pytest.mark.parametrize("secret", [b"whsec_", b"whsec_!!!!", b"whsec_A", b"whsec_AAAA", b"whsec_===="])
def test_a_secret_that_cannot_be_read_never_fits(secret: bytes) -> None:
    for key in (b"", secret, b"\0\0\0"):
        assert check("standard", standard(key), secret).verdict is SignatureVerdict.BAD_SIGNATURE


@pytest.mark.parametrize("prefix", [b"whpk_", b"whsk_"])
def test_an_asymmetric_key_is_never_taken_for_a_shared_secret(prefix: bytes) -> None:
    public = prefix + base64.b64encode(b"k" * 32)
    for key in (public, b"k" * 32, b""):
        assert check("standard", standard(key), public).verdict is SignatureVerdict.BAD_SIGNATURE
    with pytest.raises(ValueError, match="whsec_"):
        sign("msg_1", NOW, BODY, public)


# --- several signatures


def test_any_v1_may_fit_and_other_versions_are_passed_over() -> None:
    good = value_in(standard(), b"webhook-signature").decode()
    wrong = base64_of(b"other", SECRET)
    assert (
        check("standard", with_signature(f"v1,{wrong} v2,{wrong} v1a,x {good} v1,")).verdict is SignatureVerdict.GENUINE
    )


@pytest.mark.parametrize("version", ["v1a", "v2", "V1", "", "v10"])
def test_another_version_never_counts(version: str) -> None:
    good = value_in(standard(), b"webhook-signature").decode().removeprefix("v1,")
    assert check("standard", with_signature(f"{version},{good}")).verdict is SignatureVerdict.NO_SIGNATURE


def test_two_v1_by_two_secrets_fit_whichever_we_hold() -> None:
    both = " ".join(value_in(standard(secret), b"webhook-signature").decode() for secret in (SECRET, OLD_SECRET))
    for secret in (SECRET, OLD_SECRET):
        assert check("standard", with_signature(both), secret).verdict is SignatureVerdict.GENUINE


@pytest.mark.parametrize("name", ["webhook_id", "webhook_timestamp", "webhook_signature"])
@pytest.mark.parametrize("again", [True, False])
def test_a_repeated_header_is_malformed(name: str, again: bool) -> None:
    value = value_in(standard(), name.replace("_", "-").encode()).decode() if again else ""
    assert check("standard", (*standard(), *headers(**{name: value}))).verdict is SignatureVerdict.MALFORMED


@pytest.mark.parametrize("name", [b"webhook-id", b"webhook-timestamp"])
def test_id_and_time_must_be_there(name: bytes) -> None:
    sent = tuple((key, value) for key, value in standard() if key != name)
    assert check("standard", sent).verdict is SignatureVerdict.MALFORMED


# --- the id


def test_text_inside_a_genuine_body_cannot_be_presented_as_another_message() -> None:
    inner = b'{"paid":true}'
    body = b'{"note":"x.%d.' % NOW + inner
    sent = standard(body=body)
    assert check("standard", sent, body=body).verdict is SignatureVerdict.GENUINE
    shifted = changed(sent, b"webhook-id", f'msg_1.{NOW}.{{"note":"x'.encode())
    assert check("standard", shifted, body=inner).verdict is SignatureVerdict.MALFORMED


@pytest.mark.parametrize("message_id", ["", "a.b", "a b", "a\nb", "é", "a" * 257])
def test_an_id_is_visible_ascii_without_a_dot_both_ways(message_id: str) -> None:
    assert check("standard", standard(message_id=message_id)).verdict is SignatureVerdict.MALFORMED
    with pytest.raises(ValueError, match="message id"):
        sign(message_id, NOW, BODY, SECRET)


@pytest.mark.parametrize("at", [-1, 10**12])
def test_we_sign_no_time_that_a_receiver_would_refuse(at: int) -> None:
    with pytest.raises(ValueError, match="timestamp"):
        sign("msg_1", at, BODY, SECRET)


@pytest.mark.parametrize("secret", [b"", b" \n", b"whsec_", b"whsec_?", b"whsec_AAAA"])
def test_we_sign_with_no_empty_secret_and_the_error_does_not_show_it(secret: bytes) -> None:
    with pytest.raises(ValueError, match="found a secret that is empty or cannot be read") as refused:
        sign("msg_1", NOW, BODY, secret)
    assert "AAAA" not in str(refused.value)
