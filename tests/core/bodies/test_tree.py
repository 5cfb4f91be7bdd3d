"""Bodies: read one way only or not at all; written by a splice that leaves every other byte as it was."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any
from urllib.parse import quote_plus, urlencode

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paywitness.core.bodies.tree import (
    Encoding,
    can_splice,
    contains_any,
    decode,
    decode_json,
    decode_response,
    decompressed,
    encode,
    form_path,
    value_at,
    with_value,
    without_paths,
)
from paywitness.core.errors import BodyError

FEW = settings(max_examples=25, derandomize=True, database=None)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
SCALARS = st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    SCALARS | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(NAMES, JSON, max_size=4)
KEYS = st.sampled_from(["key", "a", "metadata.paywitness", "a.b.c", 'quo"te', "ключ.b", "\\.x"])
STYLES = st.sampled_from(
    [
        {},
        {"indent": 2},
        {"separators": (",", ":")},
        {"ensure_ascii": False},
        {"ensure_ascii": False, "indent": "\t", "separators": (" ,", " : ")},
    ],
)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def with_tree_value(tree: Any, path: str, value: str) -> Any:
    """What the tree should be: worked out on the tree, not on the text."""
    head, _, rest = path.partition(".")
    below = tree.get(head)
    return {**tree, head: value if not rest else with_tree_value({} if below is None else below, rest, value)}


def stands(tree: Any, path: str) -> bool:
    """Whether something is there that the value takes the place of: an old value, or a null on the way."""
    for key in path.split("."):
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = tree[key]
        if tree is None:
            return True
    return True


def untouched(before: bytes, after: bytes) -> tuple[bytes, bytes]:
    """The longest beginning and end that both share, not overlapping in either."""
    shorter = min(len(before), len(after))
    head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    tail = next((at for at in range(shorter - head) if before[-1 - at] != after[-1 - at]), shorter - head)
    return before[:head], before[len(before) - tail :]


# --- reading JSON


@FEW
@given(OBJECTS, STYLES)
def test_json_is_read_as_it_was_written(tree: Any, style: dict[str, Any]) -> None:
    assert decode(json.dumps(tree, **style).encode(), Encoding.JSON) == tree


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("body", [b"", b" ", b"\r\n\t"])
def test_an_empty_body_is_an_empty_tree(encoding: Encoding, body: bytes) -> None:
    assert decode(body, encoding) == {}


@pytest.mark.parametrize(
    "body",
    [
        b'{"amount": 1, "amount": 2}',
        b'{"a": [{"b": 1, "b": 1}]}',
        b'{"a": 1, "\\u0061": 2}',
        b'{"a": 1',
        b'{"a": 1} trailing',
        b"{'a': 1}",
        b'\xff\xfe{"a": 1}',
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-32-le"),
        b'{"a": "\xe9"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": NaN}',
        b'{"a": [-Infinity]}',
        b'{"a": 1e999}',
        b'{"a": [-1.5E400]}',
        b"secret-4111111111111111",
    ],
)
def test_json_that_cannot_be_read_one_way_only_is_refused_without_showing_it(body: bytes) -> None:
    with pytest.raises(BodyError) as refusal:
        decode(body, Encoding.JSON)
    assert "4111111111111111" not in str(refusal.value)
    assert "amount" not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__context__ is None or refusal.value.__suppress_context__


def test_a_mark_at_the_beginning_of_an_answer_is_no_part_of_it() -> None:
    assert decode_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_bounded(opening: bytes, closing: bytes) -> None:
    decode_json(opening * 65 + b"1" + closing * 65)
    for depth in (66, 500, 15_000):
        with pytest.raises(BodyError, match="nested too deeply"):
            decode_json(opening * depth + b"1" + closing * depth)


# --- reading XML, which has tests of its own; and JSON in its place


@pytest.mark.parametrize("before", [b"", b" \r\n", b"\xef\xbb\xbf"])
def test_a_policy_of_xml_takes_json_as_well(before: bytes) -> None:
    assert decode(before + b'{"a": {"b": "1"}}', Encoding.XML) == decode(
        before.strip() + b"<a><b>1</b></a>", Encoding.XML
    )
    assert decode_response(before + b'{"a": "1"}', None, Encoding.XML) == {"a": "1"}
    written = with_value(before + b'{"b": 1, "a": 2}', Encoding.XML, "key", "k")
    assert written == before + b'{"b": 1, "a": 2, "key": "k"}'


def test_a_policy_of_json_takes_no_xml() -> None:
    for encoding in (Encoding.JSON, Encoding.FORM):
        with pytest.raises(BodyError):
            decode(b"<a/>", encoding)
        with pytest.raises(BodyError):
            decode_response(b"<a/>", None, encoding)


@pytest.mark.parametrize("encoding", list(Encoding))
def test_answers_are_read_without_their_coding(encoding: Encoding) -> None:
    body = b"<a><b>1</b></a>" if encoding is Encoding.XML else b'{"a": {"b": "1"}}'
    assert decode_response(gzip.compress(body), "gzip", encoding) == {"a": {"b": "1"}}
    with pytest.raises(BodyError):
        decode_response(b"", None, encoding)


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_body_of_our_own_is_read_as_it_was_meant(encoding: Encoding) -> None:
    tree = {"search": {"order_id": {"is": "a&b <c> d=e"}, "kinds": ["x", "y"]}}
    assert decode(encode(tree, encoding), encoding) == tree


@pytest.mark.parametrize("body", [b"<a><b>1</b></a>", b"<a/>", b"", b'{"a": {}}'])
def test_there_is_room_where_a_value_can_be_written(body: bytes) -> None:
    assert can_splice(body, Encoding.XML, decode(body, Encoding.XML), "a.key")


@pytest.mark.parametrize("body", [b"<b/>", b"<a>1</a>", b'<a nil="true"/>', b'<a type="array"/>', b'{"a": 1}'])
def test_there_is_none_where_it_cannot(body: bytes) -> None:
    assert not can_splice(body, Encoding.XML, decode(body, Encoding.XML), "a.key")


# --- reading forms


@pytest.mark.parametrize(
    ("body", "tree"),
    [
        (b"a=1&b=", {"a": "1", "b": ""}),
        (b"a=x+y%20z%C3%A9", {"a": "x y z\u00e9"}),
        (b"a[b]=1&a[c]=2", {"a": {"b": "1", "c": "2"}}),
        (b"a%5Bb%5D=1", {"a": {"b": "1"}}),
        (b"a[b][c]=1", {"a": {"b": {"c": "1"}}}),
        (b"a[]=1", {"a": ["1"]}),
        (b"a[]=1&a[]=2", {"a": ["1", "2"]}),
        (b"a=1&a=2", {"a": ["1", "2"]}),
        (b"a[0]=x&a[1]=y", {"a": ["x", "y"]}),
        (b"a[1]=y&a[0]=x", {"a": ["x", "y"]}),
        (b"a[0][b]=x&a[1][b]=y", {"a": [{"b": "x"}, {"b": "y"}]}),
        (b"a[1]=x&a[2]=y", {"a": {"1": "x", "2": "y"}}),
        (b"a[0]=x&a[00]=y", {"a": {"0": "x", "00": "y"}}),
        (b"a[" + b"9" * 5000 + b"]=x", {"a": {"9" * 5000: "x"}}),
        (b"a[]=1&a[b]=2", {"a": {"": "1", "b": "2"}}),
        (b"a[b=1&[b]=2&a]=3&a[b]c=4", {"a[b": "1", "[b]": "2", "a]": "3", "a[b]c": "4"}),
    ],
)
def test_forms_nest_by_their_brackets(body: bytes, tree: object) -> None:
    assert decode(body, Encoding.FORM) == tree


@pytest.mark.parametrize(
    "body",
    [b"a=1&a[b]=2", b"a[b]=1&a=2", b"a[b]=1&a[b][c]=2", b"a", b"a=1&&b=2", b"a=%ff", b"a=\xc3\xa9", b'{"a": 1}'],
)
def test_forms_that_cannot_be_read_one_way_only_are_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode(body, Encoding.FORM)


def test_forms_are_bounded() -> None:
    with pytest.raises(BodyError):
        decode(b"a" + b"[b]" * 65 + b"=1", Encoding.FORM)
    with pytest.raises(BodyError):
        decode(b"&".join([b"a=1"] * 2001), Encoding.FORM)
    assert len(form_path("a" + "[b]" * 64)) == 65


@FEW
@given(st.dictionaries(NAMES.filter(lambda name: "[" not in name), VALUES, min_size=1, max_size=4))
def test_a_flat_form_is_read_as_it_was_written(fields: dict[str, str]) -> None:
    assert decode(urlencode(fields).encode(), Encoding.FORM) == fields


# --- writing into JSON


@FEW
@given(OBJECTS, STYLES, KEYS, VALUES)
def test_a_splice_changes_the_value_and_not_another_byte(
    tree: Any, style: dict[str, Any], path: str, value: str
) -> None:
    assume(can_splice(b"", Encoding.JSON, tree, path))
    before = json.dumps(tree, **style).encode()
    after = with_value(before, Encoding.JSON, path, value)
    assert decode(after, Encoding.JSON) == with_tree_value(tree, path, value)
    assert with_value(after, Encoding.JSON, path, value) == after
    if not stands(tree, path):
        assert sum(map(len, untouched(before, after))) == len(before)  # nothing but an insertion


@FEW
@given(OBJECTS, STYLES, KEYS)
def test_a_splice_over_a_value_changes_that_value_alone(tree: Any, style: dict[str, Any], path: str) -> None:
    assume(can_splice(b"", Encoding.JSON, tree, path))
    first = with_value(json.dumps(tree, **style).encode(), Encoding.JSON, path, "@@first@@")
    assert with_value(first, Encoding.JSON, path, "@@second@@") == first.replace(b"@@first@@", b"@@second@@")


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        (b"", "k", b'{"k": "v"}'),
        (b"{}", "k", b'{"k": "v"}'),
        (b" { } ", "k", b' { "k": "v"} '),
        (b'{"a":1}', "k", b'{"a":1, "k": "v"}'),
        (b'{"k":1,"a":2}', "k", b'{"k":"v","a":2}'),
        (b'{"k" : [1, {"k": 2}] , "a":2}', "k", b'{"k" : "v" , "a":2}'),
        (b'{"a":{"k":0},"k":1}', "k", b'{"a":{"k":0},"k":"v"}'),
        (b'{"\\u006b":1}', "k", b'{"\\u006b":"v"}'),
        (b'{"s":"\\"k\\":1"}', "k", b'{"s":"\\"k\\":1", "k": "v"}'),
        (b'{"m":null}', "m.k", b'{"m":{"k": "v"}}'),
        (b'{"m":{}}', "m.k", b'{"m":{"k": "v"}}'),
        (b'{"m":{"x":1e5}}', "m.k", b'{"m":{"x":1e5, "k": "v"}}'),
        (b"{}", "m.n.k", b'{"m": {"n": {"k": "v"}}}'),
        ('{"é":"\U0001f600"}'.encode(), "k", '{"é":"\U0001f600", "k": "v"}'.encode()),
    ],
)
def test_a_value_is_written_where_it_stands_or_at_the_end(before: bytes, path: str, after: bytes) -> None:
    assert with_value(before, Encoding.JSON, path, "v") == after


@pytest.mark.parametrize(
    "body",
    [
        b'{"k": 1, "k": 2}',
        b'{"a": 1, "a": 2}',
        b"[1]",
        b'"text"',
        b"{",
        b'{"a" 1}',
        b'{"a": 1',
        b"{1: 2}",
        b'{"a": 1,}',
        b'{"k": "\xff"}',
        '{"k": 1}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"k": ' + b"[" * 500 + b"]" * 500 + b"}",
    ],
)
def test_nothing_is_written_into_what_cannot_be_read_one_way_only(body: bytes) -> None:
    with pytest.raises(BodyError):
        with_value(body, Encoding.JSON, "k", "v")


@pytest.mark.parametrize("body", [b'{"m": 1}', b'{"m": "x"}', b'{"m": []}', b'{"m": false}'])
def test_a_value_on_the_way_is_never_overwritten(body: bytes) -> None:
    assert not can_splice(body, Encoding.JSON, decode_json(body), "m.k")
    with pytest.raises(BodyError):
        with_value(body, Encoding.JSON, "m.k", "v")


@pytest.mark.parametrize(
    ("tree", "path", "holds"),
    [
        ({}, "a", True),
        ({}, "a.b", True),
        ({"a": None}, "a.b", True),
        ({"a": "x"}, "a", True),
        ({"a": {}}, "a.b", True),
        ({"a": {}}, "a", False),
        ({"a": []}, "a", False),
        ({"a": 1}, "a.b", False),
        ([], "a", False),
        ("x", "a", False),
    ],
)
def test_room_for_a_value_is_an_object_or_nothing_all_the_way(tree: object, path: str, *, holds: bool) -> None:
    assert can_splice(b"", Encoding.JSON, tree, path) == holds


# --- writing into forms

FIELDS = st.lists(st.tuples(st.sampled_from(["a", "b", "m[x]", "m[y]", "l[]"]), VALUES), max_size=5)


@FEW
@given(FIELDS, st.sampled_from(["key", "a", "m.x", "m.key"]), VALUES, st.booleans())
def test_a_form_splice_changes_the_value_and_not_another_byte(
    fields: list[tuple[str, str]], path: str, value: str, literal: bool
) -> None:
    safe = "[]" if literal else ""
    pairs = [f"{quote_plus(name, safe=safe)}={quote_plus(field)}".encode() for name, field in fields]
    after = with_value(b"&".join(pairs), Encoding.FORM, path, value).split(b"&")
    name = {"m.x": "m[x]", "m.key": "m[key]"}.get(path, path)
    standing = [index for index, (field, _) in enumerate(fields) if field == name]
    found = value_at(decode(b"&".join(after), Encoding.FORM), path)
    assert found == (value if len(standing) < 2 else [value] * len(standing))
    assert len(after) == len(pairs) + (not standing)
    for index, pair in enumerate(pairs):
        if index not in standing:
            assert after[index] == pair
        else:
            assert after[index].partition(b"=")[0] == pair.partition(b"=")[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"m[k]=v+1%26"),
        (b"a=1", b"a=1&m[k]=v+1%26"),
        (b"m%5Bk%5D=old&a=1", b"m%5Bk%5D=v+1%26&a=1"),
        (b"a=1\r\n", b"a=1\r\n&m[k]=v+1%26"),
    ],
)
def test_a_form_keeps_its_brackets_as_they_were(before: bytes, after: bytes) -> None:
    assert with_value(before, Encoding.FORM, "m.k", "v 1&") == after


# --- looking and leaving out


def test_a_value_is_found_by_its_dotted_path_through_objects_only() -> None:
    tree = {"a": {"b": [1]}, "n": None}
    assert value_at(tree, "a.b") == [1]
    for path in ("a.c", "a.b.0", "x", "n.x", ""):
        assert value_at(tree, path) is None
    assert value_at([], "a") is None


def test_paths_are_left_out_through_lists_too_and_the_tree_stays_as_it_was() -> None:
    tree = {"a": [{"id": 1, "x": 2}, 3], "id": 4}
    kept = json.dumps(tree)
    assert without_paths(tree, ("a.id", "missing.id")) == {"a": [{"x": 2}, 3], "id": 4}
    assert json.dumps(tree) == kept


def test_what_must_not_be_stored_is_found_through_lists_too() -> None:
    tree = {"card": {"cvc": None}, "items": [{"pin": 1}]}
    assert contains_any(tree, ("card.cvc",))
    assert contains_any(tree, ("x", "items.pin"))
    assert not contains_any(tree, ("card.number", "items.cvc", "card.cvc.x"))


# --- content codings


@pytest.mark.parametrize("coding", ["gzip", "GZIP ", "x-gzip", "deflate"])
def test_a_coded_body_is_read(coding: str) -> None:
    packed = zlib.compress(b"{}") if coding == "deflate" else gzip.compress(b"{}")
    assert decompressed(packed, coding) == b"{}"


@pytest.mark.parametrize("coding", [None, "identity", " Identity "])
def test_a_plain_body_stays_as_it_is(coding: str | None) -> None:
    assert decompressed(b"{}", coding) == b"{}"


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (b"{}", "br"),
        (b"{}", "gzip, identity"),
        (b"{}", "gzip"),
        (gzip.compress(b"{}")[:-1], "gzip"),
        (b"", "gzip"),
        (gzip.compress(bytes(17 * 1024 * 1024), 1), "gzip"),
    ],
    ids=["unknown", "two", "damaged", "cut", "empty", "grows"],
)
def test_a_coding_that_cannot_be_undone_is_refused(body: bytes, coding: str) -> None:
    with pytest.raises(BodyError):
        decompressed(body, coding)
