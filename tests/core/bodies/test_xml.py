"""XML: read one way only or not at all, in bounded time; written by a splice that leaves every other byte as it was."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paywitness.core.bodies.xml import decode_xml, encode_xml, splice_xml
from paywitness.core.errors import BodyError, BodyOverBound

FEW = settings(max_examples=40, derandomize=True, database=None, deadline=None)
# What an XML document can hold, less what it would read back otherwise: a carriage return, and space alone.
LETTERS = st.characters(min_codepoint=0x20, exclude_categories=["Cs", "Cc", "Cn"], exclude_characters="\ufffe\uffff")
TEXTS = st.text(LETTERS, min_size=1, max_size=8).filter(lambda text: bool(text.strip(" \t\r\n")))
NAMES = st.sampled_from(["a", "b", "amount", "order_id", "été", "x.y"])
TREES = st.recursive(
    TEXTS | st.none() | st.booleans(),
    lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(NAMES, TREES, min_size=1, max_size=1)


# --- what a document is


@pytest.mark.parametrize(
    ("body", "tree"),
    [
        ("<a/>", {"a": None}),
        ("<a></a>", {"a": None}),
        ("<a>\n  </a>", {"a": None}),
        ("<a> 1 </a>", {"a": " 1 "}),
        ("<a><b>1</b><c>2</c></a>", {"a": {"b": "1", "c": "2"}}),
        ("<a>\n <b>1</b>\n <!-- here --> <c/>\n</a>", {"a": {"b": "1", "c": None}}),
        ("<a><b>1</b><b>2</b></a>", {"a": {"b": ["1", "2"]}}),
        ("<a><n>1</n><b><c>1</c></b><b><c>2</c></b></a>", {"a": {"n": "1", "b": [{"c": "1"}, {"c": "2"}]}}),
        ("<order-id><x-y>1</x-y></order-id>", {"order_id": {"x_y": "1"}}),
        ("<a>&lt;&#65;&amp;</a>", {"a": "<A&"}),
        ("<a><![CDATA[1 < 2]]></a>", {"a": "1 < 2"}),
        ('<a><b x="1" y-z="2">3</b></a>', {"a": {"b": {"@x": "1", "@y_z": "2", "#text": "3"}}}),
        ('<a x="1"/>', {"a": {"@x": "1"}}),
    ],
)
def test_elements_are_objects_texts_nulls_and_lists(body: str, tree: Any) -> None:
    assert decode_xml(body.encode()) == tree


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ('<a type="integer">5</a>', 5),
        ('<a type="integer">-5</a>', -5),
        ('<a type="integer">five</a>', "five"),
        ('<a type="integer">9999999999999999999999</a>', "9999999999999999999999"),
        ('<a type="boolean">true</a>', True),
        ('<a type="boolean">0</a>', False),
        ('<a type="boolean">maybe</a>', "maybe"),
        ('<a type="datetime">2026-11-16T11:30:00Z</a>', "2026-11-16T11:30:00Z"),
        ('<a nil="true"/>', None),
        ('<a type="integer" nil="true"></a>', None),
        ('<a xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:nil="true"/>', None),
        ('<a type="array"/>', []),
        ('<a type="array"><item>1</item></a>', ["1"]),
        ('<a type="array"><b>1</b><c>2</c></a>', ["1", "2"]),
        ('<a type="array" currency="EUR"><b>1</b></a>', {"@currency": "EUR", "#items": ["1"]}),
        ('<a type="gross">1</a>', {"@type": "gross", "#text": "1"}),
        (
            '<a type="collection"><n type="integer">1</n><t><id>x</id></t></a>',
            {"@type": "collection", "n": 1, "t": {"id": "x"}},
        ),
    ],
)
def test_types_say_what_a_value_is(body: str, value: Any) -> None:
    assert decode_xml(body.encode()) == {"a": value}


@pytest.mark.parametrize(
    "body",
    [
        '<a xmlns="urn:x"><b>1</b></a>',
        '<p:a xmlns:p="urn:x"><p:b>1</p:b></p:a>',
        '<p:a xmlns:p="urn:x" xmlns:q="urn:y"><q:b>1</q:b></p:a>',
        '<?xml version="1.0" encoding="utf-8"?>\r\n<a xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><b>1</b></a>\n',
    ],
)
def test_namespaces_are_no_part_of_names(body: str) -> None:
    assert decode_xml(body.encode()) == {"a": {"b": "1"}}


def test_a_mark_at_the_beginning_and_latin_letters_are_read() -> None:
    assert decode_xml(b"\xef\xbb\xbf<a>\xc3\xa9</a>") == {"a": "é"}
    assert decode_xml(b'<?xml version="1.0" encoding="ISO-8859-1"?><a>\xe9</a>') == {"a": "é"}


# --- what is refused


LAUGHS = b"".join(b'<!ENTITY l%d "%s">' % (n, b"&l%d;" % (n - 1) * 10) for n in range(1, 10))
HOSTILE = {
    "entities that grow": b'<!DOCTYPE a [<!ENTITY l0 "ha">' + LAUGHS + b"]><a>&l9;</a>",
    "an entity from a file": b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><a>&x;</a>',
    "a document type": b"<!DOCTYPE a><a/>",
    "a document type from elsewhere": b'<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x.dtd"><a/>',
    "a web page": b"<html><head><title>502</title></head></html>",
    "an entity that nobody declared": b"<a>&nbsp;</a>",
    "no XML": b"secret-4111111111111111",
    "a root that is not closed": b"<a><b></b>",
    "two roots": b"<a/><b/>",
    "text after the root": b"<a/>x",
    "a prefix without a namespace": b"<p:a/>",
    "the same attribute twice": b'<a x="1" x="2"/>',
    "the same attribute in two namespaces": b'<a xmlns:p="urn:x" x="1" p:x="2"/>',
    "text among elements": b"<a>1<b/></a>",
    "text after an element": b"<a><b/>1</a>",
    "a text cut by a comment": b"<amount>1<!-- x -->0</amount>",
    "a text after a comment": b"<amount><!-- x -->10</amount>",
    "a text cut by an instruction": b"<amount>1<?x y?>0</amount>",
    "a text partly in CDATA": b"<amount>1<![CDATA[0]]></amount>",
    "a text in two CDATA sections": b"<amount><![CDATA[1]]><![CDATA[0]]></amount>",
    "two amounts": b"<a><amount>1</amount><amount>2</amount><c/></a>",
    "two amounts in two spellings": b"<a><the-amount>1</the-amount><the_amount>2</the_amount><c/></a>",
    "two amounts in two namespaces": b'<a xmlns:p="urn:x"><amount>1</amount><p:amount>2</p:amount><c/></a>',
    "a text that says it is none": b'<a nil="true">1</a>',
    "a text that says it is a list": b'<a type="array">1</a>',
    "UTF-16": '<?xml version="1.0" encoding="utf-16"?><a>x</a>'.encode("utf-16"),
    "UTF-16 without a mark": "<a>x</a>".encode("utf-16-le"),
    "UTF-32": "<a>x</a>".encode("utf-32"),
    "UTF-7": b'<?xml version="1.0" encoding="utf-7"?><a>+ADw-</a>',
    "an encoding that nobody knows": b'<?xml version="1.0" encoding="made-up"?><a/>',
    "a code page": b'<?xml version="1.0" encoding="windows-1252"?><a>\x80</a>',
    "a codec of Python's": b'<?xml version="1.0" encoding="rot13"?><n/>',
    "a mark that contradicts": b'\xef\xbb\xbf<?xml version="1.0" encoding="iso-8859-1"?><a>\xc3\xa9</a>',
    "bytes that are no UTF-8": b"<a>\xff\xfe</a>",
    "a NUL": b"<a>\0</a>",
    "a control character": b"<a>&#1;</a>",
    "XML 1.1": b'<?xml version="1.1"?><a/>',
    "a declaration that is late": b' <?xml version="1.0"?><a/>',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_could_be_read_in_two_ways_is_refused_without_showing_it(body: bytes) -> None:
    with pytest.raises(BodyError) as refusal:
        decode_xml(body)
    assert "4111111111111111" not in str(refusal.value)
    assert refusal.value.__context__ is None or refusal.value.__suppress_context__
    with pytest.raises(BodyError):
        splice_xml(body, ["a", "key"], "k")


def test_nesting_is_bounded() -> None:
    decode_xml(b"<a>" * 64 + b"</a>" * 64)
    for depth in (65, 2_000):
        with pytest.raises(BodyError, match="nested too deeply"):
            decode_xml(b"<a>" * depth + b"</a>" * depth)


def test_so_is_the_number_of_everything_else() -> None:
    decode_xml(b"<a>" + b"<b/>" * 4_999 + b"</a>")
    many = 5_001
    for body in (
        b"<a>" + b"<b/>" * many + b"</a>",
        b"<a %b/>" % b" ".join(b'x%d=""' % n for n in range(many)),
        b"<a %b/>" % b" ".join(b'xmlns:x%d="u"' % n for n in range(many)),
        b"<a>" + b"<!---->" * many + b"</a>",
        b"<?x y?>" * many + b"<a/>",
        b"<a>" + b"<![CDATA[]]>" * many + b"</a>",
    ):
        with pytest.raises(BodyError, match="too many elements"):
            decode_xml(body)


def test_so_is_the_size() -> None:
    decode_xml(b"<a>" + b"x" * (1024 * 1024 - 7) + b"</a>")
    with pytest.raises(BodyOverBound, match="more than 1048576 bytes"):
        decode_xml(b"<a>" + b"x" * (1024 * 1024 - 6) + b"</a>")


@FEW
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: f"<a>{text}</a>".encode("utf-8", "replace")))
def test_any_bytes_are_a_tree_or_refused(body: bytes) -> None:
    try:
        tree = decode_xml(body)
    except BodyError:
        return
    assert len(tree) == 1
    assert ElementTree.fromstring(body) is not None  # nothing passes that another reader refuses


@FEW
@given(DOCUMENTS)
def test_a_document_of_our_own_is_read_as_it_was_meant(tree: dict[str, Any]) -> None:
    assert decode_xml(encode_xml(tree)) == tree


@pytest.mark.parametrize("text", ["\0", "\x1b", "\ud800", "\ufffe"])
def test_a_text_that_cannot_stand_in_xml_is_not_written(text: str) -> None:
    with pytest.raises(BodyError):
        encode_xml({"a": text})
    with pytest.raises(BodyError):
        splice_xml(b"<a/>", ["a", "b"], text)


def test_a_document_has_one_root() -> None:
    for tree in ({}, {"a": "1", "b": "2"}):
        with pytest.raises(BodyError):
            encode_xml(tree)


def test_attributes_are_written_where_they_are_named() -> None:
    tree = {"get": {"@xmlns": "urn:x", "id": 5, "all": True}}
    written = b'<get xmlns="urn:x"><id>5</id><all type="boolean">true</all></get>'
    assert encode_xml(tree).endswith(written)


def test_what_was_read_with_types_is_written_with_types() -> None:
    body = (
        b'<t><id>x1</id><n type="integer">5</n><at type="datetime">2026-11-16T11:30:00Z</at><on nil="true"></on>'
        b'<ok type="boolean">false</ok><ids type="array"><item>1</item></ids><none type="array"></none>'
        b'<c currency="EUR">1</c><m of="x" type="array"><item>1</item></m><p type="gross">1</p></t>'
    )
    assert encode_xml(decode_xml(body), typed=True).endswith(body)


def test_line_breaks_are_read_back_as_they_were_written() -> None:
    tree = {"t": "1\r\n2\r3\n4"}
    assert decode_xml(encode_xml(tree)) == tree


def test_a_body_of_our_own_has_no_types_but_of_booleans_and_lists() -> None:
    tree = {"t": {"n": 5, "at": "2026-11-16T11:30:00Z", "on": None}}
    assert encode_xml(tree).endswith(b"<t><n>5</n><at>2026-11-16T11:30:00Z</at><on></on></t>")


# --- writing


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<a><b>1</b></a>", "<a><b>1</b><key>K</key></a>"),
        ("<a></a>", "<a><key>K</key></a>"),
        ("<a/>", "<a><key>K</key></a>"),
        ("<a />\n", "<a><key>K</key></a>\n"),
        ('<a x="/>"/>', '<a x="/>"><key>K</key></a>'),
        ("<a><key>old</key><b/></a>", "<a><key>K</key><b/></a>"),
        ("<a><key/><b/></a>", "<a><key>K</key><b/></a>"),
        ("<a><key></key></a>", "<a><key>K</key></a>"),
        ("<a><key><![CDATA[old]]></key></a>", "<a><key>K</key></a>"),
        (
            "<a><!-- <key>no</key> --><b><key>other</key></b></a>",
            "<a><!-- <key>no</key> --><b><key>other</key></b><key>K</key></a>",
        ),
        ("<a>\n  <b>1</b>\n</a>", "<a>\n  <b>1</b>\n<key>K</key></a>"),
        ('<p:a xmlns:p="urn:x"><p:b/></p:a>', '<p:a xmlns:p="urn:x"><p:b/><p:key>K</p:key></p:a>'),
        (
            '\ufeff<?xml version="1.0"?><a>\n<b>é&amp;</b></a>',
            '\ufeff<?xml version="1.0"?><a>\n<b>é&amp;</b><key>K</key></a>',
        ),
        ("", "<a><key>K</key></a>"),
    ],
)
def test_a_value_is_written_in_place_or_at_the_end_and_nothing_else_changes(before: str, after: str) -> None:
    assert splice_xml(before.encode(), ["a", "key"], "K").decode() == after


def test_missing_elements_on_the_way_are_added() -> None:
    assert splice_xml(b"<a><b>1</b></a>", ["a", "c", "d"], "x<&é") == b"<a><b>1</b><c><d>x&lt;&amp;&#233;</d></c></a>"


def test_latin_letters_stay_as_they_were() -> None:
    before = b'<?xml version="1.0" encoding="iso-8859-1"?><a><b>\xe9</b></a>'
    assert splice_xml(before, ["a", "key"], "é") == before.replace(b"</a>", b"<key>&#233;</key></a>")


@pytest.mark.parametrize(
    "body",
    [
        "<other/>",
        "<a>1</a>",
        '<a nil="true"/>',
        '<a type="array"/>',
        '<a><key type="integer">1</key></a>',
        '<a><key nil="true"/></a>',
        "<a><key><x/></key></a>",
        '<a><key x="1">2</key></a>',
        "<a><key>1</key><key>2</key></a>",
    ],
)
def test_where_more_than_the_value_would_change_nothing_is_written(body: str) -> None:
    with pytest.raises(BodyError):
        splice_xml(body.encode(), ["a", "key"], "K")


@FEW
@given(st.dictionaries(NAMES, TREES, max_size=3), st.sampled_from(["key", "a", "order_id", "b.key"]), TEXTS)
def test_a_written_value_is_read_back_and_all_else_stays(children: dict[str, Any], path: str, value: str) -> None:
    before = encode_xml({"root": children})
    keys = ["root", *path.split(".")]
    try:
        after = splice_xml(before, keys, value)
    except BodyError:
        return
    found: Any = decode_xml(after)
    for key in keys:
        found = found[key]
    assert found == value
    head = next((at for at in range(len(before)) if before[at] != after[at]), len(before))
    tail = next((at for at in range(len(before) - head) if before[-1 - at] != after[-1 - at]), len(before) - head)
    assert b"<" not in before[head : len(before) - tail]  # only an old text, if anything, is gone
