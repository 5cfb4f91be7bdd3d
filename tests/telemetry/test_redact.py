"""What must not get out does not get out, in whatever clothes it comes; and what people need is still there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paywitness.core.redact import MASK, passes_luhn, redact, redact_tree

CARDS = [
    "4242424242424242",
    "5555555555554444",
    "378282246310005",
    "6011111111111117",
    "4222222222222",
    "6799990100000000019",
]

CLOTHES = [
    "{}",
    "card {} was refused",
    '{{"number": "{}", "exp": "12/29"}}',
    "card[number]={}&card[exp_month]=12",
    "%B{}^DOE/JANE^2912",
    ";{}=29121010000",
    "order 20 {}",
    "pan{}x",
    "first\n{}\nlast",
]


@pytest.mark.parametrize("clothes", CLOTHES)
@pytest.mark.parametrize("card", CARDS)
def test_a_card_number_is_masked_wherever_it_stands(card: str, clothes: str) -> None:
    assert card not in redact(clothes.format(card))


@pytest.mark.parametrize("separator", [" ", "-", "\N{NO-BREAK SPACE}", "  "])
def test_a_card_number_in_groups_is_masked(separator: str) -> None:
    card = separator.join(("4242", "4242", "4242", "4242"))
    masked = redact(f"paid 12 times with {card} on 2026-01-31")
    assert "4242" not in masked
    assert masked.startswith(f"paid 12 times with {MASK}")


def test_a_number_before_or_after_does_not_hide_a_card() -> None:
    assert "4242" not in redact("1 4242424242424242 7")
    assert "4242" not in redact("12 25 4242-4242-4242-4242 12 29")


def test_digits_beyond_any_card_hide_none() -> None:
    assert "4242424242424242" not in redact("99" + "4242424242424242" + "99999")


@pytest.mark.parametrize(
    "text",
    [
        "op_01JXQ6ZP00ABCDEFGHJKMNPQRS",
        "4242424242424241",  # fails the check: an order number
        "12.50 EUR",
        "2026-01-31T12:00:00.123Z",
        "192.168.100.200:8443",
        "no byte of an answer within 5 s",
        "operations.authorization: found 'pay', allowed: sale",
        "policies/acme.yaml:12:3: retry.default.attempts: found '0'",
        "authorization refused by issuer",
        "spin: 3",
    ],
)
def test_what_people_need_is_left_alone(text: str) -> None:
    assert redact(text) == text


@given(st.integers(10**11, 10**18 - 1))
def test_every_number_with_its_check_digit_is_masked(number: int) -> None:
    check = next(digit for digit in range(10) if passes_luhn(f"{number}{digit}"))
    assert redact(f"<{number}{check}>") == f"<{MASK}>"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('{"cvc": "987"}', "987"),
        ('{"cvc":987}', "987"),
        ("{'cvv2': '987'}", "987"),
        (r"{\"card\":{\"cvc\":\"987\"}}", "987"),
        ("card[cvc]=987&amount=1", "987"),
        ("card%5Bcvc%5D=987&amount=1", "987"),
        ("security_code: 987", "987"),
        ("cardVerificationValue=987", "987"),
        ("cardCvc=987", "987"),
        ('"encryptedSecurityCode":"adyenjs_canary"', "canary"),
        ("pin=9876", "9876"),
        ("track2 = ;98765", "98765"),
        ("Authorization: Bearer abcdefghij.klm", "abcdefghij"),
        ("Authorization: opaque-credential", "opaque"),
        ("authorization=Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("sent with Bearer A21AAFs-9xYz_canary", "canary"),
        ("sk_live_51HcanaryCANARY", "canary"),
        ("key sk_test_canary, again", "canary"),
        ("rk_live_canary", "canary"),
        ("whsec_canary+/=", "canary"),
        ("rzp_live_canary12345678", "canary"),
        ("access_token$production$canary$0123", "canary"),
        ("X-Api-Key: canary", "canary"),
        ("api_key=canary&x=1", "canary"),
        ('"client_secret": "canary"', "canary"),
        ("password=canary", "canary"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJjYW5hcnkiOjF9.c2lnbmF0dXJl", "eyJjYW5hcnkiOjF9"),
    ],
)
def test_a_credential_or_verification_code_is_masked(text: str, secret: str) -> None:
    masked = redact(text)
    assert secret not in masked
    assert MASK in masked


def test_masking_keeps_the_rest_of_the_text() -> None:
    assert redact("card[cvc]=987&amount=1250") == f"card[cvc]={MASK}&amount=1250"


@given(st.text())
def test_masking_twice_is_masking_once(text: str) -> None:
    assert redact(redact(text)) == redact(text)


def test_plain_data_stays_plain_data() -> None:
    data = {
        "detail": "card 4242 4242 4242 4242",
        "pan": 4242424242424242,
        "card": {"cvc": 987, "cardCvc": "987", "number": ["4242424242424242"]},
        "count": 3,
        "ratio": 0.25,
        "flag": True,
        "nothing": None,
    }
    masked = json.dumps(redact_tree(data))
    assert "4242" not in masked
    assert "987" not in masked
    assert json.loads(masked) | {"detail": "", "pan": "", "card": ""} == {
        "detail": "",
        "pan": "",
        "card": "",
        "count": 3,
        "ratio": 0.25,
        "flag": True,
        "nothing": None,
    }
