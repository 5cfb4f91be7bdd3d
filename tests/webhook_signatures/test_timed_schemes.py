"""What holds for every scheme that signs a time: rotation, tolerance, forgery, bounds, garbage."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as some

from paywitness.webhook_signatures.registry import SCHEMES, scheme_named
from paywitness.webhook_signatures.scheme import SignatureVerdict
from tests.webhook_signatures.signing import (
    BODY,
    CARRIERS,
    NEEDED,
    NOW,
    OLD_SECRET,
    SECRET,
    SENDERS,
    changed,
    check,
    value_in,
)

every_scheme = pytest.mark.parametrize("scheme", SENDERS)


@every_scheme
def test_what_the_sender_signed_is_genuine(scheme: str) -> None:
    assert check(scheme, SENDERS[scheme]()).verdict is SignatureVerdict.GENUINE


@every_scheme
def test_a_header_is_found_whatever_the_case_of_its_name(scheme: str) -> None:
    sent = tuple((name.upper(), value) for name, value in SENDERS[scheme]())
    assert check(scheme, sent).verdict is SignatureVerdict.GENUINE


@every_scheme
def test_a_body_that_is_no_text_is_signed_as_it_came(scheme: str) -> None:
    body = bytes(range(256))
    assert check(scheme, SENDERS[scheme](body=body), body=body).verdict is SignatureVerdict.GENUINE


@every_scheme
def test_an_empty_body_can_be_signed(scheme: str) -> None:
    assert check(scheme, SENDERS[scheme](body=b""), body=b"").verdict is SignatureVerdict.GENUINE


# --- secrets


@every_scheme
@pytest.mark.parametrize(("used", "index"), [(SECRET, 0), (OLD_SECRET, 1)])
def test_during_a_rotation_the_check_says_which_secret_fitted(scheme: str, used: bytes, index: int) -> None:
    found = check(scheme, SENDERS[scheme](used), SECRET, OLD_SECRET)
    assert (found.verdict, found.secret_index) == (SignatureVerdict.GENUINE, index)


@every_scheme
def test_every_secret_meets_every_signature_even_after_one_fitted(scheme: str, monkeypatch) -> None:
    compared: list[bool] = []
    compare = hmac.compare_digest

    def watched(left: bytes, right: bytes) -> bool:
        compared.append(compare(left, right))
        return compared[-1]

    monkeypatch.setattr(hmac, "compare_digest", watched)
    value = value_in(SENDERS[scheme](), CARRIERS[scheme])
    twice = {"hmac_sha256": value + b"," + value, "stripe": value + value[12:], "standard": value + b" " + value}
    check(scheme, changed(SENDERS[scheme](), CARRIERS[scheme], twice[scheme]), SECRET, OLD_SECRET, b"third")
    assert compared == [True, True, False, False, False, False]


@every_scheme
def test_without_secrets_nothing_is_genuine(scheme: str) -> None:
    found = scheme_named(scheme, {}).check(SENDERS[scheme](), BODY, (), NOW, 300)
    assert found.verdict is SignatureVerdict.BAD_SIGNATURE


@every_scheme
@pytest.mark.parametrize("blank", [b"", b" ", b"\n", b"\0", b"\0" * 64])
@pytest.mark.parametrize("others", [(), (OLD_SECRET,)])
def test_an_empty_secret_never_fits(scheme: str, blank: bytes, others: tuple[bytes, ...]) -> None:
    found = check(scheme, SENDERS[scheme](blank), blank, *others)
    assert (found.verdict, found.secret_index) == (SignatureVerdict.BAD_SIGNATURE, None)


# --- time


@every_scheme
@pytest.mark.parametrize("away_s", [-300, -299.9, 0, 299.9, 300])
def test_the_tolerance_includes_its_edges(scheme: str, away_s: float) -> None:
    assert check(scheme, SENDERS[scheme](), now=NOW + away_s).verdict is SignatureVerdict.GENUINE


@every_scheme
@pytest.mark.parametrize("away_s", [-100_000, -300.001, 300.001, 100_000, float("inf"), float("nan")])
def test_outside_the_tolerance_is_too_old_in_both_directions(scheme: str, away_s: float) -> None:
    found = check(scheme, SENDERS[scheme](OLD_SECRET), SECRET, OLD_SECRET, now=NOW + away_s)
    assert (found.verdict, found.secret_index) == (SignatureVerdict.TOO_OLD, 1)


@every_scheme
def test_a_forged_signature_is_bad_even_when_it_is_also_old(scheme: str) -> None:
    assert check(scheme, SENDERS[scheme](b"guess"), now=NOW + 9999).verdict is SignatureVerdict.BAD_SIGNATURE


@every_scheme
@pytest.mark.parametrize("at", ["", "-1", "+1", "1.0", "1e9", "0x10", "1_0", "١٢", "9" * 13, "now"])
def test_a_timestamp_is_at_most_twelve_digits(scheme: str, at: str) -> None:
    at = at.encode().decode("latin-1")
    assert check(scheme, SENDERS[scheme](at=at)).verdict is SignatureVerdict.MALFORMED


@every_scheme
def test_a_fresh_time_cannot_be_put_on_an_old_signature(scheme: str) -> None:
    old, fresh = str(NOW - 9999).encode(), str(NOW).encode()
    sent = tuple((name, value.replace(old, fresh)) for name, value in SENDERS[scheme](at=NOW - 9999))
    assert check(scheme, sent).verdict is SignatureVerdict.BAD_SIGNATURE


# --- forgery


@every_scheme
@pytest.mark.parametrize("body", [b"", BODY + b"\n", BODY[:-1], BODY.replace(b"1", b"2")])
def test_another_body_is_not_what_was_signed(scheme: str, body: bytes) -> None:
    assert check(scheme, SENDERS[scheme](), body=body).verdict is SignatureVerdict.BAD_SIGNATURE


@every_scheme
def test_a_truncated_signature_never_fits(scheme: str) -> None:
    value = value_in(SENDERS[scheme](), CARRIERS[scheme])
    for length in range(len(value)):
        assert check(scheme, changed(SENDERS[scheme](), CARRIERS[scheme], value[:length])).verdict in (
            SignatureVerdict.BAD_SIGNATURE,
            SignatureVerdict.NO_SIGNATURE,
            SignatureVerdict.MALFORMED,
        )


@every_scheme
@given(place=some.integers(0, 10_000), bit=some.integers(0, 7), body=some.binary(min_size=1, max_size=80))
def test_one_changed_bit_of_the_body_is_noticed(scheme: str, place: int, bit: int, body: bytes) -> None:
    forged = bytearray(body)
    forged[place % len(body)] ^= 1 << bit
    sent = SENDERS[scheme](body=body)
    assert check(scheme, sent, body=body).verdict is SignatureVerdict.GENUINE
    assert check(scheme, sent, body=bytes(forged)).verdict is SignatureVerdict.BAD_SIGNATURE


@every_scheme
def test_no_signature_is_said_of_a_request_that_bears_none(scheme: str) -> None:
    assert check(scheme, ()).verdict is SignatureVerdict.NO_SIGNATURE
    for blank in (b"", b"  \t"):
        sent = changed(SENDERS[scheme](), CARRIERS[scheme], blank)
        assert check(scheme, sent).verdict is SignatureVerdict.NO_SIGNATURE


# --- bounds


@every_scheme
def test_a_header_longer_than_eight_kibibytes_is_refused_unread(scheme: str) -> None:
    value = value_in(SENDERS[scheme](), CARRIERS[scheme])
    separator = b" " if scheme == "standard" else b","
    for length, verdict in ((8192, SignatureVerdict.GENUINE), (8193, SignatureVerdict.MALFORMED)):
        longer = (value + separator).ljust(length, b"x")
        assert check(scheme, changed(SENDERS[scheme](), CARRIERS[scheme], longer)).verdict is verdict


@every_scheme
def test_at_most_twenty_signatures_are_compared(scheme: str) -> None:
    value = value_in(SENDERS[scheme](), CARRIERS[scheme])
    wrong = {"hmac_sha256": b"sha256=00,", "stripe": b"v1=00,", "standard": b"v1,AA== "}[scheme]
    for count, verdict in ((19, SignatureVerdict.GENUINE), (20, SignatureVerdict.MALFORMED)):
        sent = changed(SENDERS[scheme](), CARRIERS[scheme], wrong * count + value)
        assert check(scheme, sent).verdict is verdict


@every_scheme
def test_no_detail_holds_a_secret_or_a_signature(scheme: str) -> None:
    sent = SENDERS[scheme]()
    signature = value_in(sent, CARRIERS[scheme]).decode()[-40:]
    for found in (
        check(scheme, sent),
        check(scheme, sent, OLD_SECRET),
        check(scheme, sent, now=NOW + 9999),
        check(scheme, changed(sent, CARRIERS[scheme], b"x=" + signature.encode())),
    ):
        assert signature not in repr(found)
        assert "secret-of" not in repr(found)
        assert SECRET.decode() not in repr(found)


# --- garbage

_names = some.sampled_from(
    [
        *CARRIERS.values(),
        *(b"Webhook-Timestamp", b"WEBHOOK-SIGNATURE", b"webhook-id", b"Other"),
        *(b"Cko-Signature", b"X-Signature-SHA256", b"Event-Signature", b"verif-hash", b"x-square-hmacsha256-signature"),
        *(b"PAYPAL-TRANSMISSION-ID", b"PAYPAL-TRANSMISSION-TIME", b"PAYPAL-TRANSMISSION-SIG", b"PAYPAL-AUTH-ALGO"),
    ]
) | some.binary(max_size=8)
_pieces = some.sampled_from(
    [b"t=", b"v1=", b"v0=", b"v1,", b"v1a,", b"sha256=", b",", b" ", b"=", b"\t", b"1700000000", b"ab" * 32, b"A" * 43]
)
_values = some.binary(max_size=60) | some.lists(_pieces, max_size=12).map(b"".join)
_garbage = some.lists(some.tuples(_names, _values), max_size=8).map(tuple)
_moments = some.floats() | some.just(float(NOW))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(sent=_garbage, body=some.binary(max_size=40), secrets=some.lists(some.binary(max_size=40), max_size=4))
def test_garbage_never_raises_and_is_never_genuine(scheme: str, sent, body: bytes, secrets: list[bytes]) -> None:
    needed = NEEDED.get(scheme, {})
    more = {"timestamp_header": "none", "encoding": "base64"} if scheme.startswith("hmac") else needed
    for options in (needed, more):
        found = scheme_named(scheme, options).check(sent, body, secrets, NOW, 300)
        assert found.verdict is not SignatureVerdict.GENUINE
        assert found.secret_index is None


@every_scheme
@given(now=_moments, tolerance_s=some.floats())
def test_no_time_raises(scheme: str, now: float, tolerance_s: float) -> None:
    found = scheme_named(scheme, {}).check(SENDERS[scheme](), BODY, (SECRET,), now, tolerance_s)
    assert found.verdict in (SignatureVerdict.GENUINE, SignatureVerdict.TOO_OLD)
