"""Adyen's scheme, against Adyen's own library in both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from Adyen.util import generate_notification_sig, is_valid_hmac_notification
from hypothesis import given
from hypothesis import strategies as some

from paywitness.webhook_signatures.scheme import SignatureVerdict
from tests.webhook_signatures.signing import ADYEN_ITEM, adyen_body, adyen_item, check

KEY = b"44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
# Adyen's documentation and the tests of its libraries: this item under this key.
SIGNATURE = "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="


def verdict(*items: Any, secrets: tuple[bytes, ...] = (KEY,)) -> SignatureVerdict:
    return check("adyen", (), *secrets, body=adyen_body(*items)).verdict


def by_the_library(item: dict[str, Any]) -> dict[str, Any]:
    signature = generate_notification_sig(item, KEY.decode()).decode()
    return {**item, "additionalData": {"hmacSignature": signature}}


def test_the_vector_of_adyens_own_tests_is_genuine() -> None:
    item = {**ADYEN_ITEM, "additionalData": {"hmacSignature": SIGNATURE}}
    assert verdict(item) is SignatureVerdict.GENUINE
    assert is_valid_hmac_notification(item, KEY.decode())


_names = some.text(some.characters(exclude_characters=":", exclude_categories=["Cs"]), max_size=20)
_items = some.fixed_dictionaries(
    {
        "merchantReference": _names | some.just("order:1:2"),
        "amount": some.fixed_dictionaries({"value": some.integers(), "currency": some.sampled_from(["EUR", "JPY"])}),
        "success": some.sampled_from(["true", "false"]),
        "eventCode": some.sampled_from(["AUTHORISATION", "CAPTURE_FAILED"]),
    },
    optional={"pspReference": _names, "originalReference": _names, "merchantAccountCode": _names, "reason": _names},
)


@given(item=_items)
def test_what_the_library_signs_is_genuine(item: dict[str, Any]) -> None:
    assert verdict(by_the_library(item)) is SignatureVerdict.GENUINE


@given(item=_items, other=_items)
def test_the_library_accepts_whatever_we_call_genuine(item: dict[str, Any], other: dict[str, Any]) -> None:
    mixed = {**item, "additionalData": by_the_library(other)["additionalData"]}
    if verdict(mixed) is SignatureVerdict.GENUINE:
        assert is_valid_hmac_notification(mixed, KEY.decode())
    else:
        assert not is_valid_hmac_notification(mixed, KEY.decode())


def test_every_item_of_a_delivery_must_be_genuine() -> None:
    good, forged = adyen_item(KEY), adyen_item(b"00ff" * 8)
    assert verdict(good, good) is SignatureVerdict.GENUINE
    for items in ((good, forged), (forged, good)):
        assert verdict(*items) is SignatureVerdict.BAD_SIGNATURE
    assert verdict(good, {**ADYEN_ITEM}) is SignatureVerdict.NO_SIGNATURE


def test_items_signed_with_two_secrets_are_good_while_they_are_exchanged() -> None:
    other = b"00ff" * 8
    assert verdict(adyen_item(KEY), adyen_item(other), secrets=(KEY, other)) is SignatureVerdict.GENUINE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("pspReference", "1"), ("originalReference", "1"), ("merchantAccountCode", "Other")),
        *(("merchantReference", "other"), ("eventCode", "CAPTURE"), ("success", "false")),
        *(("amount", {"value": 1131, "currency": "EUR"}), ("amount", {"value": 1130, "currency": "USD"})),
    ],
)
def test_each_signed_part_counts(name: str, value: object) -> None:
    assert verdict({**adyen_item(KEY), name: value}) is SignatureVerdict.BAD_SIGNATURE


def test_no_part_can_be_passed_off_as_another() -> None:
    """The library reads both of them as the same text."""
    genuine = by_the_library({**ADYEN_ITEM, "merchantReference": "shop:order-1"})
    shifted = {**genuine, "merchantAccountCode": "TestMerchant:shop", "merchantReference": "order-1"}
    assert is_valid_hmac_notification(shifted, KEY.decode())
    assert verdict(genuine) is SignatureVerdict.GENUINE
    assert verdict(shifted) is SignatureVerdict.MALFORMED


@pytest.mark.parametrize(
    "item",
    [
        {**ADYEN_ITEM, "additionalData": {"hmacSignature": SIGNATURE}, "success": True},
        {**ADYEN_ITEM, "additionalData": {"hmacSignature": SIGNATURE}, "amount": {"value": 1130.0, "currency": "EUR"}},
        {**ADYEN_ITEM, "additionalData": {"hmacSignature": SIGNATURE}, "amount": [1130]},
        {**ADYEN_ITEM, "additionalData": {"hmacSignature": SIGNATURE}, "pspReference": None},
        {**ADYEN_ITEM, "additionalData": {"hmacSignature": 7}},
        None,
        [],
    ],
)
def test_parts_of_another_type_are_malformed(item: object) -> None:
    assert verdict(item) is SignatureVerdict.MALFORMED


@pytest.mark.parametrize(
    "body", [b"", b"null", b"{}", b"[]", b'{"notificationItems": []}', b'{"notificationItems": 1}']
)
def test_a_body_without_items_is_malformed(body: bytes) -> None:
    assert check("adyen", (), KEY, body=body).verdict is SignatureVerdict.MALFORMED


def test_a_name_that_repeats_is_malformed_whichever_of_the_two_was_signed() -> None:
    body = adyen_body(adyen_item(KEY)).replace(b'"success"', b'"success": "false", "success"')
    assert check("adyen", (), KEY, body=body).verdict is SignatureVerdict.MALFORMED


def test_more_than_five_hundred_items_are_not_looked_at() -> None:
    assert verdict(*[adyen_item(KEY)] * 501) is SignatureVerdict.MALFORMED


def test_text_that_is_no_unicode_is_refused_and_raises_nothing() -> None:
    body = adyen_body(adyen_item(KEY)).replace(b"TestPayment", b"\\ud800")
    assert json.loads(body)
    assert check("adyen", (), KEY, body=body).verdict is SignatureVerdict.BAD_SIGNATURE
