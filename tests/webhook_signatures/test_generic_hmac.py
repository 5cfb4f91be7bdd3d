"""hmac_sha256 and hmac_sha512 against vectors that others published or openssl made, and through all their options."""

from __future__ import annotations

import pytest

from paywitness.webhook_signatures.registry import SCHEMES, scheme_named
from paywitness.webhook_signatures.scheme import SignatureVerdict
from tests.webhook_signatures.signing import BODY, NOW, OLD_SECRET, SECRET, base64_of, check, headers, hex_of, plain

# openssl dgst -sha256 -hmac acme-secret, over 1700000000.{"id":"evt_1"}; the sha512 one in base64
HEX_256 = "b70c6d0dd0e1dd67a4b35d84536ea0887ce39ea74b9f3bfe209cb2684a02c48a"
BASE64_256 = "twxtDdDh3Weks12EU26giHzjnqdLnzv+IJyyaEoCxIo="
BASE64_512 = "WsYRoOgRUJLFVDiP4PfkGuXkLNLGP3N4ACN6IKQ6YWHo/9gFQ6Zlpr6j/ABaohT5gvqKvbITn7SnoV4ue3iANQ=="

# RFC 4231, test case 2
RFC_KEY, RFC_DATA = b"Jefe", b"what do ya want for nothing?"
RFC_256 = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
RFC_512 = (
    "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554"
    "9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737"
)


def timed(signature: str) -> tuple[tuple[bytes, bytes], ...]:
    return headers(Webhook_Signature=signature, Webhook_Timestamp=str(NOW))


@pytest.mark.parametrize(("scheme", "signature"), [("hmac_sha256", RFC_256), ("hmac_sha512", RFC_512)])
def test_the_vectors_of_rfc_4231(scheme: str, signature: str) -> None:
    sent = headers(Webhook_Signature=signature)
    assert check(scheme, sent, RFC_KEY, body=RFC_DATA, timestamp_header="none").verdict is SignatureVerdict.GENUINE


@pytest.mark.parametrize(
    ("scheme", "signature", "encoding"),
    [
        ("hmac_sha256", HEX_256, "hex"),
        ("hmac_sha256", HEX_256.upper(), "hex"),
        ("hmac_sha256", f"sha256={HEX_256}", "hex"),
        ("hmac_sha256", BASE64_256, "base64"),
        ("hmac_sha256", f"sha256={BASE64_256}", "base64"),
        ("hmac_sha512", BASE64_512, "base64"),
        ("hmac_sha512", f"sha512={BASE64_512}", "base64"),
    ],
)
def test_what_openssl_made_is_genuine(scheme: str, signature: str, encoding: str) -> None:
    assert check(scheme, timed(signature), encoding=encoding).verdict is SignatureVerdict.GENUINE


@pytest.mark.parametrize(
    "signature",
    [
        BASE64_256,
        f"v1={HEX_256}",
        f"sha512={HEX_256}",
        f"sha256=sha256={HEX_256}",
        HEX_256[:-2],
        HEX_256 + "00",
        HEX_256[:-1] + "g",
        HEX_256.replace("b7", "b7\x0b", 1),
    ],
)
def test_what_is_not_quite_a_signature_is_bad(signature: str) -> None:
    assert check("hmac_sha256", timed(signature)).verdict is SignatureVerdict.BAD_SIGNATURE


@pytest.mark.parametrize("signature", ["!" + BASE64_256, BASE64_256[:9] + "-" + BASE64_256[9:], BASE64_256 + "AAAA"])
def test_base64_with_foreign_characters_is_bad(signature: str) -> None:
    assert check("hmac_sha256", timed(signature), encoding="base64").verdict is SignatureVerdict.BAD_SIGNATURE


def test_a_prefix_that_looks_like_a_signature_does_no_harm() -> None:
    for signature in (HEX_256, f"b7{HEX_256}"):
        assert check("hmac_sha256", timed(signature), prefix="b7").verdict is SignatureVerdict.GENUINE


@pytest.mark.parametrize("between", [",", " ", ", ", " , ", ",,"])
def test_any_of_several_signatures_may_fit(between: str) -> None:
    signature = between.join(["sha256=" + "0" * 64, "garbage", f"sha256={HEX_256}", "f" * 64])
    assert check("hmac_sha256", timed(signature)).verdict is SignatureVerdict.GENUINE


def test_a_repeated_signature_header_is_one_list() -> None:
    sent = (*headers(Webhook_Signature="sha256=" + "0" * 64), *plain())
    assert check("hmac_sha256", sent).verdict is SignatureVerdict.GENUINE


def test_repeated_headers_share_one_bound() -> None:
    many = headers(Webhook_Signature="x" * 4096) * 2
    assert check("hmac_sha256", (*many, *plain())).verdict is SignatureVerdict.MALFORMED


def test_two_signatures_by_two_secrets_name_the_first_secret_that_fits() -> None:
    text = f"{NOW}.".encode() + BODY
    sent = timed(f"{hex_of(text, OLD_SECRET)},{hex_of(text, SECRET)}")
    assert check("hmac_sha256", sent, SECRET, OLD_SECRET).secret_index == 0


# --- the time


def test_a_missing_timestamp_is_malformed_and_never_checked_without_one() -> None:
    sent = headers(Webhook_Signature=hex_of(BODY, SECRET))
    assert check("hmac_sha256", sent).verdict is SignatureVerdict.MALFORMED
    sent = headers(Webhook_Signature=hex_of(b"." + BODY, SECRET), Webhook_Timestamp="")
    assert check("hmac_sha256", sent).verdict is SignatureVerdict.MALFORMED


@pytest.mark.parametrize("second", [str(NOW), str(NOW + 1), ""])
def test_a_repeated_timestamp_header_is_malformed(second: str) -> None:
    for sent in ((*plain(), *headers(webhook_timestamp=second)), (*headers(webhook_timestamp=second), *plain())):
        assert check("hmac_sha256", sent).verdict is SignatureVerdict.MALFORMED


def test_where_no_timestamp_is_sent_the_body_alone_is_signed_and_never_too_old() -> None:
    sent = headers(Webhook_Signature=hex_of(BODY, SECRET))
    assert check("hmac_sha256", sent, now=0, timestamp_header="none").verdict is SignatureVerdict.GENUINE


# --- options


def test_header_and_timestamp_header_may_be_named() -> None:
    sent = headers(X_Sig=f"v0={HEX_256}", X_Time=str(NOW))
    found = check("hmac_sha256", sent, header="X-Sig", timestamp_header="X-Time", prefix="v0=")
    assert found.verdict is SignatureVerdict.GENUINE


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("v0:{timestamp}:{body}", b"v0:1700000000:" + BODY),
        ("{timestamp}{body}", b"1700000000" + BODY),
        ("{body}|{timestamp}|é", BODY + "|1700000000|é".encode()),
    ],
)
def test_the_signed_text_may_be_told_by_a_template(template: str, text: bytes) -> None:
    sent = timed(hex_of(text, SECRET))
    assert check("hmac_sha256", sent, signed=template).verdict is SignatureVerdict.GENUINE


def test_a_url_may_stand_before_the_body_that_is_signed() -> None:
    sent = headers(X_Sig=base64_of(b"https://shop.test/hook" + BODY, SECRET))
    template = "https://shop.test/hook{body}"
    found = check("hmac_sha256", sent, header="X-Sig", encoding="base64", timestamp_header="none", signed=template)
    assert found.verdict is SignatureVerdict.GENUINE


def test_a_place_named_inside_the_body_is_not_filled() -> None:
    body = b"{timestamp}{body}"
    assert check("hmac_sha256", plain(body=body), body=body).verdict is SignatureVerdict.GENUINE


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"header": ""}, "header: found ''"),
        ({"header": "X Sig"}, "allowed: the name of a header"),
        ({"header": "X-Sig\r\n"}, "allowed: the name of a header"),
        ({"timestamp_header": "a:b"}, "timestamp_header: found 'a:b'"),
        ({"header": "x-sig", "timestamp_header": "X-Sig"}, "allowed: two headers"),
        ({"encoding": "HEX"}, "encoding: found 'HEX', allowed: hex or base64"),
        ({"prefix": "v1,"}, "prefix: found 'v1,'"),
        ({"prefix": "v1 "}, "without commas and spaces"),
        ({"prefix": "é"}, "visible ASCII"),
        ({"signed": "{body}"}, "{timestamp} and {body}, once each"),
        ({"signed": "{timestamp}"}, "{timestamp} and {body}, once each"),
        ({"signed": "{timestamp}.{body}.{body}"}, "once each"),
        ({"signed": "{timestamp}.{body}{"}, "once each"),
        ({"signed": "{timestamp}.{id}.{body}"}, "once each"),
        ({"signed": "{timestamp}.{body}", "timestamp_header": "none"}, "as timestamp_header is none"),
        ({"signed": "text", "timestamp_header": "none"}, "{body}, once"),
        ({"heder": "X"}, "found the option 'heder' of hmac_sha256, allowed: header, encoding, prefix"),
    ],
)
def test_options_that_cannot_be_put_in_force_are_refused_with_what_is_allowed(options, said: str) -> None:
    with pytest.raises(ValueError, match="allowed: ") as refused:
        scheme_named("hmac_sha256", options)
    assert said in str(refused.value)


@pytest.mark.parametrize("scheme", ["hmac_sha256", "hmac_sha512"])
def test_the_listed_defaults_are_the_ones_in_force(scheme: str) -> None:
    defaults = {option.name: option.default for option in SCHEMES[scheme].options}
    assert scheme_named(scheme, defaults) == scheme_named(scheme, {})
    assert scheme_named(scheme, {"signed": "{timestamp}.{body}"}) == scheme_named(scheme, {})
