"""Fingerprints of bodies that one tree stands for, and that a provider may read differently."""

from __future__ import annotations

import pytest

from paywitness.core.bodies.tree import Encoding, decode
from paywitness.core.identity import fingerprint_of, lost_in_tree
from tests.core.samples import SECRET, call


def fingerprint(body: bytes, encoding: Encoding, ignore: tuple[str, ...] = ()) -> str:
    return fingerprint_of(call(body), decode(body, encoding), ignore, SECRET)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"items[][id]=a&items[][qty]=9&items[][id]=b", b"items[][id]=a&items[][id]=b&items[][qty]=9"),
        (b"amount=100&amount=900", b"amount[]=100&amount[]=900"),
        (b"items[][id]=a&items[][id]=b", b"items[id][]=a&items[id][]=b"),
    ],
)
def test_m17_forms_of_different_structure_never_share_a_fingerprint(one: bytes, other: bytes) -> None:
    assert fingerprint(one, Encoding.FORM) != fingerprint(other, Encoding.FORM)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"amount": 9007199254740993.0}', b'{"amount": 9007199254740992.0}'),
        (b'{"amount": 0.10000000000000000001}', b'{"amount": 0.1}'),
    ],
)
def test_m29_numbers_that_a_float_does_not_hold_never_share_a_fingerprint(one: bytes, other: bytes) -> None:
    assert fingerprint(one, Encoding.JSON) != fingerprint(other, Encoding.JSON)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"amount=100&currency=eur&metadata[order_id]=1&expand[]=a&expand[]=b&lines[0][price]=1&lines[1][price]=2",
        b"types[0]=card&types[1]=link",
        b'{"amount": 10.50, "id": 12345678901234567890, "at": 1763449200.123456, "text": "items[][id]=a&b=1&b=2"}',
        b"<a><b>1</b></a>",
        b"not a form",
        b"\xff=\xfe",
    ],
)
def test_what_is_written_the_usual_way_keeps_the_fingerprint_that_it_had(body: bytes) -> None:
    assert lost_in_tree(body, ()) == ""


def test_the_order_of_an_ignored_field_does_not_count() -> None:
    assert lost_in_tree(b"trace[][a]=1&trace[][b]=2", ("trace",)) == ""
    assert lost_in_tree(b"trace=1&trace=2&amount=1", ("trace",)) == ""
    assert lost_in_tree(b"trace=1&trace=2", ("tra",)) != ""
