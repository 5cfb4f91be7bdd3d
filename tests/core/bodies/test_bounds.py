"""Bounds on bodies before they are parsed: what is refused, and that what a provider really sends is not."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from paywitness.core.bodies import bounds, tree
from paywitness.core.bodies.bounds import GROWTH_MAX, REQUEST_BOUNDS, RESPONSE_BOUNDS, SMALL_BYTES, BodyBounds
from paywitness.core.bodies.tree import Encoding, decode, decode_json, decode_response, decompressed
from paywitness.core.errors import BodyError, BodyOverBound

FEW = BodyBounds(1024 * 1024, 10, 10)
HOSTILE = gzip.compress(b'{"amount":100,"x":[' + b"[]," * 5_300_000 + b"0]}", 9)  # 16 KB of it are 16 MB


@pytest.fixture
def no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reaches a parser fails the test."""

    def parse(*_: object) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(tree, "_SCAN", parse)
    monkeypatch.setattr(tree, "_form_pairs", parse)


def test_fifteen_kilobytes_of_hostile_gzip_are_refused_at_their_beginning() -> None:
    """S2: the rest of it is not even looked at."""
    for packed in (HOSTILE, HOSTILE[:1000], HOSTILE[:1000] + b"damaged"):
        with pytest.raises(BodyOverBound, match="1048576 bytes, and 100 out of one, are allowed"):
            decompressed(packed, "gzip", REQUEST_BOUNDS)


def test_what_grows_little_is_held_to_its_bytes() -> None:
    plain = random.Random(7).randbytes(700_000).hex().encode()
    packed = gzip.compress(plain)
    assert len(plain) < GROWTH_MAX * len(packed)
    assert decompressed(packed, "gzip", RESPONSE_BOUNDS) == plain
    with pytest.raises(BodyOverBound):
        decompressed(packed, "gzip", REQUEST_BOUNDS)
    with pytest.raises(BodyError, match="cut short"):
        decompressed(packed[:-9], "gzip", RESPONSE_BOUNDS)


@pytest.mark.usefixtures("no_parser")
@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 400_000 + b"0]",
        b"[" + b'{"a":1},' * 100_000 + b"0]",
        b'{"a":1' + b"".join(b',"k%07d":1' % number for number in range(80_000)) + b"}",
        b"[" + b'"",' * 300_000 + b"0]",
        b"[" * 70 + b"]" * 70,
        b'{"a":' * 70 + b"1" + b"}" * 70,
        b" " * (1024 * 1024 + 1),
    ],
    ids=["lists", "objects", "keys", "texts", "deep lists", "deep objects", "bytes"],
)
def test_wide_deep_or_large_json_is_refused_unparsed(body: bytes) -> None:
    with pytest.raises(BodyOverBound):
        decode_json(body, REQUEST_BOUNDS)


@pytest.mark.usefixtures("no_parser")
def test_a_form_whose_names_open_too_many_groups_is_refused_unparsed() -> None:
    body = b"&".join(b"a" + b"%%5Bb%d%%5D" % number * 60 + b"=1" for number in range(400))
    with pytest.raises(BodyOverBound):
        decode(body, Encoding.FORM)


def test_xml_of_too_many_elements_is_refused() -> None:
    with pytest.raises(BodyOverBound):
        decode(b"<a>" + b"<b/>" * 60_000 + b"</a>", Encoding.XML)
    with pytest.raises(BodyOverBound):
        decode(b"<a>" + b"<b/>" * 5_001 + b"</a>", Encoding.XML)


@pytest.mark.parametrize("count", [10, 11])
def test_values_are_counted_exactly_if_the_bytes_leave_a_doubt(count: int) -> None:
    members = {f"k{number}": ',,[[{{\\"' for number in range(count)}
    body = json.dumps(members).encode()
    if count == 11:
        with pytest.raises(BodyOverBound, match="10 are allowed"):
            decode_json(body, FEW)
    else:
        assert decode_json(body, FEW) == members


def test_brackets_in_texts_are_no_depth() -> None:
    text = json.dumps({"note": "[" * 500 + '"' + "\\" * 3})
    assert decode_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize("body", [b'"' + b'\\"' * 200_000, b"[" * 70 + b'"' + b'\\"' * 200_000, b"[" * 15_000])
def test_what_never_ends_is_no_json_and_is_found_out_at_once(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_json(body)


def test_what_grows_much_and_stays_small_is_read() -> None:
    plain = b'{"note": "' + b" " * (SMALL_BYTES - 20) + b'"}'
    packed = gzip.compress(plain)
    assert len(plain) > GROWTH_MAX * len(packed)
    assert decompressed(packed, "gzip") == plain


def test_a_second_gzip_member_is_not_left_out_silently() -> None:
    with pytest.raises(BodyError, match="behind the end"):
        decompressed(gzip.compress(b'{"amount": 1}') + gzip.compress(b"1"), "gzip")


def test_a_page_of_a_hundred_payments_is_read() -> None:
    payments = [
        {f"field_{number}": {"value": "text, with [brackets]", "id": payment * number} for number in range(60)}
        for payment in range(100)
    ]
    page = json.dumps({"data": payments, "has_more": False}).encode()
    assert len(decode_response(gzip.compress(page), "gzip", Encoding.JSON)["data"]) == 100
    bounds.check_json(page, RESPONSE_BOUNDS)
