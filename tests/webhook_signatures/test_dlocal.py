"""dLocal's scheme: login, date and body are signed, and all three count."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from paywitness.core.call import Headers
from paywitness.webhook_signatures.scheme import SignatureVerdict
from tests.webhook_signatures.signing import BODY, NOW, OLD_SECRET, SECRET, changed, check, headers, hex_of

DATE = datetime.fromtimestamp(NOW, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def sent(secret: bytes = SECRET, body: bytes = BODY, date: str = DATE, login: str = "login1") -> Headers:
    signature = hex_of(f"{login}{date}".encode() + body, secret)
    return headers(X_Date=date, Authorization=f"V2-HMAC-SHA256, Signature: {signature}")


def test_what_dlocal_signed_is_genuine_and_the_check_says_by_which_secret() -> None:
    assert check("dlocal", sent()).verdict is SignatureVerdict.GENUINE
    found = check("dlocal", sent(OLD_SECRET), SECRET, OLD_SECRET)
    assert (found.verdict, found.secret_index) == (SignatureVerdict.GENUINE, 1)


@pytest.mark.parametrize("forged", [sent(b"guess"), sent(login="login2"), sent(body=b"{}"), sent(b"")])
def test_another_secret_login_or_body_is_not_genuine(forged: Headers) -> None:
    assert check("dlocal", forged).verdict is SignatureVerdict.BAD_SIGNATURE
    assert check("dlocal", forged, b"").verdict is SignatureVerdict.BAD_SIGNATURE


def test_a_fresh_date_cannot_be_put_on_an_old_signature() -> None:
    old = sent(date="2020-01-01T00:00:00.000Z")
    assert check("dlocal", old).verdict is SignatureVerdict.TOO_OLD
    assert check("dlocal", changed(old, b"X-Date", DATE.encode())).verdict is SignatureVerdict.BAD_SIGNATURE


@pytest.mark.parametrize(
    ("away_s", "verdict"),
    [
        (-301, SignatureVerdict.TOO_OLD),
        (-300, SignatureVerdict.GENUINE),
        (300, SignatureVerdict.GENUINE),
        (301, SignatureVerdict.TOO_OLD),
    ],
)
def test_the_tolerance_includes_its_edges(away_s: float, verdict: SignatureVerdict) -> None:
    assert check("dlocal", sent(), now=NOW + away_s).verdict is verdict


@pytest.mark.parametrize("date", ["", "now", "1700000000.5.5", "2023-13-01T00:00:00Z", "2" * 41, "\xff"])
def test_a_date_that_cannot_be_read_is_malformed(date: str) -> None:
    assert check("dlocal", sent(date=date)).verdict is SignatureVerdict.MALFORMED


@pytest.mark.parametrize("value", ["x", "V2-HMAC-SHA256, Signature: zz", "V1-HMAC-SHA256, Signature: " + "0" * 64])
def test_another_kind_of_authorization_is_malformed(value: str) -> None:
    assert check("dlocal", changed(sent(), b"Authorization", value.encode())).verdict is SignatureVerdict.MALFORMED


def test_without_the_header_there_is_no_signature() -> None:
    assert check("dlocal", headers(X_Date=DATE)).verdict is SignatureVerdict.NO_SIGNATURE
    twice = (*sent(), *sent())
    assert check("dlocal", twice).verdict is SignatureVerdict.MALFORMED
