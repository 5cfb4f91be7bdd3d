"""Fuzzing what bodies say: JSON, forms and XML are read one way only or refused, and a splice changes one value."""

from __future__ import annotations

import gzip
import json
import zlib

from hypothesis import strategies as st

from paywitness.core.bodies.tree import (
    Encoding,
    can_splice,
    decode,
    decode_response,
    encode_response,
    value_at,
    with_value,
)
from paywitness.core.errors import BodyError
from paywitness.core.identity import canonical
from tests.fuzz.mutation import kept, mutated

SEEDS = [
    b'{"amount": 1099, "currency": "EUR", "metadata": {"order_id": "A-1"}, "source": "tok_ok"}',
    b'[{"a": 1}, {"a": null, "b": [true, false, 1.5e3, "\\u00e9\\ud83d\\ude00"]}]',
    b"amount=1099&currency=EUR&metadata[order_id]=A-1&items[0][price]=5&items[1][price]=6&expand[]=a&expand[]=b",
    b'<?xml version="1.0"?><a x="1"><b>1</b><b type="integer">2</b><c><d>&amp;&#233;</d></c><!-- no --></a>',
    b"<askedFor xmlns='AnetApi/xml/v1/schema/AnetApiSchema.xsd'><refId>1</refId><x:a xmlns:x='y'/></askedFor>",
]
PIECES = [
    *(b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\u0000", b"\\ud800", b"NaN", b"Infinity", b"1e999", b"-0", b"1.0"),
    *(b"&", b"=", b"%5B", b"%00", b"%", b"+", b"[]", b"[0]", b"[999999]", b"[-1]", b";", b"metadata", b"a[b][c]=d"),
    *(
        b"<",
        b">",
        b"</",
        b"/>",
        b"<![CDATA[",
        b"]]>",
        b"<!DOCTYPE a [<!ENTITY b 'c'>]>",
        b"&b;",
        b"&#0;",
        b"xmlns:x='y'",
    ),
    *(b"\x00", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3", b" ", b"\n", b"9" * 40, b'{"a":', b'"a":1,"a":2', b"<a>"),
]
BODIES = mutated([*SEEDS, *kept("body")], PIECES)
ENCODINGS = st.sampled_from(list(Encoding))
PATHS = st.sampled_from(["key", "metadata.paywitness", "a.b", "items.price", "a", "refId"])
STAMP = "pw_01HX stamp & <>\"'"


def body_is_read_one_way_or_refused(body: bytes, encoding: Encoding, path: str) -> None:
    try:
        tree = decode(body, encoding)
    except BodyError:
        return
    assert canonical(decode(body, encoding)) == canonical(tree)  # whatever is read has a fingerprint
    if body.strip() and body.lstrip()[:1] in b"{[" and encoding is Encoding.JSON:
        assert canonical(json.loads(body.decode("utf-8-sig"))) == canonical(tree)
    if not isinstance(tree, dict) or not can_splice(body, encoding, tree, path):
        return
    try:
        after = with_value(body, encoding, path, STAMP)
    except BodyError:
        return
    spliced = decode(after, encoding)
    assert value_at(spliced, path) == STAMP, (body, after)
    again = with_value(after, encoding, path, STAMP)
    assert canonical(decode(again, encoding)) == canonical(spliced)


CODINGS = st.sampled_from([None, "gzip", "deflate", "br", "identity", "gzip, gzip", "x" * 300, ""])


def answer_body_is_read_or_refused(body: bytes, coding: str | None, encoding: Encoding, packed: bool) -> None:
    if packed:
        body = gzip.compress(body, 1) if coding == "gzip" else zlib.compress(body)
    try:
        tree = decode_response(body, coding, encoding)
    except BodyError:
        return
    try:
        written, _ = encode_response(tree, encoding)
    except BodyError:
        return
    if encoding is not Encoding.XML:
        assert canonical(decode_response(written, None, encoding)) == canonical(tree)
