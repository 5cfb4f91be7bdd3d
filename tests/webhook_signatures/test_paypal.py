"""PayPal's scheme: what is signed, whose certificates count, and where they may be fetched from."""

from __future__ import annotations

from binascii import crc32
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives import hashes

from paywitness.core.call import Headers
from paywitness.webhook_signatures.paypal import PayPal
from paywitness.webhook_signatures.scheme import CertificateScheme, SignatureCheck, SignatureVerdict
from tests.webhook_signatures.rsa_signing import certificate, key, rsa_of
from tests.webhook_signatures.signing import BODY, NOW, TOLERANCE_S, changed, headers

WEBHOOK_ID, OLD_ID = b"1JE4291016473214C", b"0EH40505U7160970P"
ADDRESS = "https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-5a29e601"
PEM = certificate(key())


def sent(
    webhook_id: bytes = WEBHOOK_ID, body: bytes = BODY, at: float = NOW, *, number: int = 0, sha1: bool = False
) -> Headers:
    time = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # As paypalrestsdk 1.13.3 puts it together.
    text = f"tx-1|{time}|{webhook_id.decode()}|{crc32(body) & 0xFFFFFFFF}".encode()
    return headers(
        PAYPAL_TRANSMISSION_ID="tx-1",
        PAYPAL_TRANSMISSION_TIME=time,
        PAYPAL_TRANSMISSION_SIG=rsa_of(text, key(number), hashes.SHA1() if sha1 else None),
        PAYPAL_CERT_URL=ADDRESS,
        PAYPAL_AUTH_ALGO="SHA1withRSA" if sha1 else "SHA256withRSA",
    )


def check(
    given: Headers, *ids: bytes, body: bytes = BODY, pem: bytes | None = PEM, now: float = NOW, tolerance_s=TOLERANCE_S
) -> SignatureCheck:
    return PayPal("live", pem).check(given, body, ids or (WEBHOOK_ID,), now, tolerance_s)


def test_what_the_sender_signed_is_genuine_also_while_webhooks_are_exchanged() -> None:
    assert check(sent()).verdict is SignatureVerdict.GENUINE
    for used, index in ((WEBHOOK_ID, 0), (OLD_ID, 1)):
        found = check(sent(used), WEBHOOK_ID, OLD_ID)
        assert (found.verdict, found.secret_index) == (SignatureVerdict.GENUINE, index)


@pytest.mark.parametrize("given", [sent(OLD_ID), sent(body=b"{}"), sent(number=1)])
def test_another_webhook_body_or_key_is_not_what_was_signed(given: Headers) -> None:
    assert check(given).verdict is SignatureVerdict.BAD_SIGNATURE


@pytest.mark.parametrize("blank", [b"", b" "])
def test_an_empty_webhook_id_never_fits(blank: bytes) -> None:
    assert check(sent(blank), blank, OLD_ID).verdict is SignatureVerdict.BAD_SIGNATURE


def test_the_time_is_signed_and_held_to_the_tolerance() -> None:
    assert check(sent(at=NOW - 300)).verdict is SignatureVerdict.GENUINE
    for at in (NOW - 301, NOW + 301):
        assert check(sent(at=at)).verdict is SignatureVerdict.TOO_OLD
    assert check(sent(at=NOW - 3000), tolerance_s=3600).verdict is SignatureVerdict.GENUINE
    fresh = sent(at=NOW)[1][1]
    assert (
        check(changed(sent(at=NOW - 9999), b"PAYPAL-TRANSMISSION-TIME", fresh)).verdict
        is SignatureVerdict.BAD_SIGNATURE
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PAYPAL-TRANSMISSION-TIME", "now"),
        ("PAYPAL-TRANSMISSION-TIME", "2023-11-14T22:13:20"),
        ("PAYPAL-TRANSMISSION-TIME", ""),
        ("PAYPAL-TRANSMISSION-ID", ""),
        ("PAYPAL-TRANSMISSION-ID", "a|b"),
        ("PAYPAL-AUTH-ALGO", "SHA1withRSA"),
        ("PAYPAL-AUTH-ALGO", ""),
    ],
)
def test_what_paypal_does_not_send_is_malformed(name: str, value: str) -> None:
    assert check(changed(sent(), name.encode(), value.encode())).verdict is SignatureVerdict.MALFORMED


def test_sha1_is_not_taken_for_a_signature_even_where_it_fits() -> None:
    assert check(sent(sha1=True)).verdict is SignatureVerdict.MALFORMED
    claims_better = changed(sent(sha1=True), b"PAYPAL-AUTH-ALGO", b"SHA256withRSA")
    assert check(claims_better).verdict is SignatureVerdict.BAD_SIGNATURE


def test_no_signature_and_a_repeated_one() -> None:
    assert check(()).verdict is SignatureVerdict.NO_SIGNATURE
    assert check(changed(sent(), b"PAYPAL-TRANSMISSION-SIG", b"")).verdict is SignatureVerdict.NO_SIGNATURE
    assert check(sent() * 2).verdict is SignatureVerdict.MALFORMED
    assert check(changed(sent(), b"PAYPAL-TRANSMISSION-SIG", b"!!")).verdict is SignatureVerdict.BAD_SIGNATURE


# --- the certificate


@pytest.mark.parametrize(
    "pem",
    [
        None,
        b"",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        certificate(key(), "paypal.com.evil.test"),
        certificate(key(), "evilpaypal.com"),
        certificate(key(), at=NOW - 2 * 86400),
        certificate(key(), at=NOW + 2 * 86400),
        certificate(key(2, bits=1024)),
    ],
)
def test_a_certificate_must_be_paypals_in_date_and_strong(pem: bytes | None) -> None:
    assert check(sent(), pem=pem).verdict is SignatureVerdict.MALFORMED


def test_it_may_be_paypals_by_its_alternative_name() -> None:
    pem = certificate(key(), "PayPal, Inc.", alternative="MessageVerificationCerts.PayPal.com")
    assert check(sent(), pem=pem).verdict is SignatureVerdict.GENUINE


def test_the_first_of_several_is_the_signers() -> None:
    other = certificate(key(1))
    assert check(sent(), pem=PEM + other).verdict is SignatureVerdict.GENUINE
    assert check(sent(), pem=other + PEM).verdict is SignatureVerdict.BAD_SIGNATURE


def test_it_is_fetched_from_the_environments_own_hosts() -> None:
    live, sandbox = PayPal("live"), PayPal("sandbox")
    assert isinstance(live, CertificateScheme)
    assert live.certificate_url(sent()) == ADDRESS
    assert sandbox.certificate_url(sent()) is None
    tried = ADDRESS.replace("api.", "api.sandbox.")
    assert sandbox.certificate_url(headers(PAYPAL_CERT_URL=tried)) == tried
    assert live.certificate_url(headers(PAYPAL_CERT_URL=tried)) is None
    assert live.with_certificate(PEM) == PayPal("live", PEM)


@pytest.mark.parametrize(
    "address",
    [
        "",
        ADDRESS.replace("https", "http"),
        ADDRESS.replace("api.paypal.com", "api.paypal.com.evil.test"),
        ADDRESS.replace("api.paypal.com", "evil.test"),
        ADDRESS.replace("api.paypal.com", "api.paypal.com:8443"),
        ADDRESS.replace("api.paypal.com", "user@api.paypal.com"),
        ADDRESS.replace("api.paypal.com", "api.paypal.com@evil.test"),
        ADDRESS.replace("/v1/notifications/certs/", "/v1/oauth2/"),
        ADDRESS.replace("CERT", "../../CERT"),
        ADDRESS.replace("CERT", "%2e%2e"),
        ADDRESS + "?x=1",
        ADDRESS + "#x",
        ADDRESS + "\n",
        "https://api.paypal.com/v1/notifications/certs/",
        "https://api.paypal.com/v1/notifications/certs/" + "x" * 201,
    ],
)
def test_nothing_else_is_an_address_of_a_certificate(address: str) -> None:
    assert PayPal("live").certificate_url(((b"PAYPAL-CERT-URL", address.encode()),)) is None


def test_two_addresses_are_none() -> None:
    assert PayPal("live").certificate_url(headers(PAYPAL_CERT_URL=ADDRESS) * 2) is None
