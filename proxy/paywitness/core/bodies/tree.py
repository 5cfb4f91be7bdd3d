"""Bodies: JSON, nested forms and XML read into one kind of tree, and single values written into them.

Reading gives a tree of dicts, lists and scalars, whatever the encoding (form values are strings; `bodies.xml` describes
the tree of XML). Writing is a splice: every byte outside the value stays as the caller wrote it, because the provider
compares bytes under a key and callers may sign them. The standard library parses; this module only finds the position
of a value.

A policy with `body: xml` takes JSON too: a body that begins with a brace is never XML, and Authorize.net accepts both
at one address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in CPython, missing in typeshed
from json.encoder import encode_basestring_ascii as quoted
from math import isinf
from typing import Any
from urllib.parse import parse_qsl, quote_plus, unquote_plus

from paywitness.core.bodies.bounds import (
    DEPTH_MAX,
    REQUEST_BOUNDS,
    RESPONSE_BOUNDS,
    BodyBounds,
    check_form,
    check_json,
    inflate,
)
from paywitness.core.bodies.xml import decode_xml, encode_xml, splice_xml
from paywitness.core.errors import BodyError

Tree = Any  # None, bool, int, float, str, list of trees, dict of trees

_FORM_PAIRS_MAX = 2_000
_INDEX_DIGITS_MAX = 6  # of a number in brackets; a longer one is a name
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Encoding(StrEnum):
    JSON = "json"
    FORM = "form"
    XML = "xml"

    @property
    def media_type(self) -> str:
        return "application/x-www-form-urlencoded" if self is Encoding.FORM else f"application/{self}"


def decode(body: bytes, encoding: Encoding, bounds: BodyBounds = REQUEST_BOUNDS) -> Tree:
    """The body as a tree. An empty body is an empty tree. Raises BodyError if it cannot be read, or can be read in two
    ways. Raises BodyOverBound before anything is parsed."""
    if not body.strip():
        return {}
    if encoding is Encoding.FORM:
        check_form(body, bounds)
        return _nest(_form_pairs(body))
    if encoding is Encoding.XML and encoding_of(body, encoding) is Encoding.XML:
        return decode_xml(body, bounds)
    return decode_json(body, bounds)


def decode_response(body: bytes, coding: str | None, encoding: Encoding) -> Tree:
    """The response to a call of this encoding as a tree. Providers answer forms in JSON. Raises BodyError, also for an
    empty response."""
    plain = body if coding is None else decompressed(body, coding, RESPONSE_BOUNDS)
    if encoding is Encoding.XML and encoding_of(plain, encoding) is Encoding.XML:
        return decode_xml(plain, RESPONSE_BOUNDS)
    return decode_json(plain, RESPONSE_BOUNDS)


def encoding_of(body: bytes, encoding: Encoding) -> Encoding:
    """The encoding of this body, under its policy's encoding."""
    if encoding is Encoding.XML and body.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"["):
        return Encoding.JSON
    return encoding


def encode(tree: dict[str, Any], encoding: Encoding) -> bytes:
    """A body of our own. Raises BodyError if the tree cannot be written in this encoding."""
    match encoding:
        case Encoding.JSON:
            return json.dumps(tree).encode()
        case Encoding.FORM:
            pairs = (f"{quote_plus(name, safe='[]')}={quote_plus(value)}" for name, value in _form_fields("", tree))
            return "&".join(pairs).encode()
        case Encoding.XML:
            return encode_xml(tree)


def encode_response(tree: Tree, encoding: Encoding) -> tuple[bytes, str]:
    """The body of a response to a call of this encoding, and its media type. `tree` is a provider's object that was
    read before. Raises BodyError."""
    if encoding is Encoding.XML:
        return encode_xml(tree, typed=True), Encoding.XML.media_type
    return json.dumps(tree).encode(), Encoding.JSON.media_type


def _form_fields(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """`{"metadata": {"order": 1}}` as metadata[order]=1."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _form_fields(f"{name}[{key}]" if name else key, child)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _form_fields(f"{name}[{index}]", child)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def decode_json(body: bytes, bounds: BodyBounds = REQUEST_BOUNDS) -> Tree:
    # A body has no more values than bytes, so that only a long or deep one can exceed a bound.
    if len(body) > bounds.values_max or body.count(b"{") + body.count(b"[") > DEPTH_MAX:
        check_json(body, bounds)
    try:
        # JSON between systems is UTF-8 (RFC 8259). The parser would guess UTF-16 and 32 too; the provider may not.
        text = body.removeprefix(_BYTE_ORDER_MARK).decode("utf-8")
        try:
            tree, end = _SCAN(text, 0)
        except StopIteration:
            end = -1
        # Most bodies have nothing around the value; the slower `decode` handles the others.
        return tree if end == len(text) else _READER.decode(text)
    except RecursionError:
        raise BodyError("the body is nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise BodyError(f"the body is not JSON: {_error_without_payload(error)}") from None


def _error_without_payload(error: Exception) -> str:
    """A parser's message, without the text that it quotes."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "a number or text in it cannot be read"


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        # The provider may take the first, we would take the last: two amounts in one body.
        raise BodyError("an object in the body has the same key twice")
    return tree


def _refuse_constant(name: str) -> float:
    raise BodyError(f"{name} is no number in JSON")  # Python reads it; another reader may stop there, or read null


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise BodyError("a number in the body is too large to be read")  # all such numbers would be one to us
    return number


# Created once, because creating one takes as long as reading a body.
_READER = json.JSONDecoder(
    object_pairs_hook=_object_without_duplicates, parse_float=_finite, parse_constant=_refuse_constant
)
_SCAN = _READER.scan_once  # type: ignore[attr-defined]  # public in CPython, missing in typeshed


def _form_pairs(body: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            max_num_fields=_FORM_PAIRS_MAX,
            errors="strict",
        )
    except (ValueError, UnicodeDecodeError):
        raise BodyError("the body is not a form (application/x-www-form-urlencoded)") from None


def _nest(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """`a[b]=1&a[c][]=2&a[c][]=3` as {"a": {"b": "1", "c": ["2", "3"]}}. A key that repeats becomes a list."""
    root: dict[str, Any] = {}
    for name, value in pairs:
        keys = form_path(name)
        node = root
        for key in keys[:-1]:
            child = node.setdefault(key, {})
            if not isinstance(child, dict):
                raise BodyError("a form field is both a value and a group")
            node = child
        last = keys[-1]
        if last not in node:
            node[last] = value
        elif isinstance(node[last], dict):
            raise BodyError("a form field is both a value and a group")
        elif isinstance(node[last], list):
            node[last].append(value)
        else:
            node[last] = [node[last], value]
    return {key: _groups_to_lists(child) for key, child in root.items()}


def _groups_to_lists(node: Any) -> Any:
    """Groups that are numbered from 0, or filled by `[]`, are lists."""
    if not isinstance(node, dict):
        return node
    if set(node) == {""}:
        return node[""] if isinstance(node[""], list) else [_groups_to_lists(node[""])]
    children = {key: _groups_to_lists(child) for key, child in node.items()}
    if children and all(key.isascii() and key.isdigit() and len(key) <= _INDEX_DIGITS_MAX for key in children):
        numbers = sorted((int(key), key) for key in children)
        if [number for number, _ in numbers] == list(range(len(numbers))):
            return [children[key] for _, key in numbers]
    return children


def form_path(name: str) -> list[str]:
    """`a[b][]` as ["a", "b", ""]. A name whose brackets do not pair up is one plain key."""
    head, bracket, rest = name.partition("[")
    if not bracket or not head or not rest.endswith("]"):
        return [name]
    parts = rest[:-1].split("][")
    if any("[" in part or "]" in part for part in parts):
        return [name]
    if len(parts) > DEPTH_MAX:
        raise BodyError("the form is nested too deeply")
    return [head, *parts]


def decompressed(body: bytes, coding: str | None, bounds: BodyBounds = REQUEST_BOUNDS) -> bytes:
    """The body without its content coding, for reading only. The forwarded body is never changed."""
    if coding is None:
        return body
    name = (coding or "identity").strip().lower()
    if name == "identity":
        return body
    if name not in {"gzip", "x-gzip", "deflate"}:
        raise BodyError("the body has a content coding that cannot be read")
    return inflate(body, bounds)


def value_at(tree: Tree, path: str) -> Tree:
    """The value under a dotted path, or None."""
    for key in _keys_of(path):
        if not isinstance(tree, dict) or key not in tree:
            return None
        tree = tree[key]
    return tree


def can_splice(body: bytes, encoding: Encoding, tree: Tree, path: str) -> bool:
    """Whether `with_value` can write a text under the dotted path into this body, whose tree is given. Every step of
    the path must be an object, or be missing."""
    for key in _keys_of(path):
        if not isinstance(tree, dict):
            return False
        tree = tree.get(key)
        if tree is None:
            break
    if isinstance(tree, (dict, list)):
        return False
    if encoding is Encoding.XML and encoding_of(body, encoding) is Encoding.XML:  # an element may hold no text
        try:
            with_value(body, encoding, path, "0")
        except BodyError:
            return False
    return True


def without_paths(tree: Tree, paths: tuple[str, ...]) -> Tree:
    """The tree without the values under the dotted paths. Lists on the way are entered: `items.id` is every item's."""
    for path in paths:
        keys = _keys_of(path)
        if isinstance(tree, list) or (isinstance(tree, dict) and keys[0] in tree):
            tree = _without_path(tree, keys)
    return tree


def _without_path(tree: Tree, keys: tuple[str, ...]) -> Tree:
    if isinstance(tree, list):
        return [_without_path(item, keys) for item in tree]
    if not isinstance(tree, dict) or keys[0] not in tree:
        return tree
    if len(keys) == 1:
        return {key: child for key, child in tree.items() if key != keys[0]}
    return {key: _without_path(child, keys[1:]) if key == keys[0] else child for key, child in tree.items()}


def contains_any(tree: Tree, paths: tuple[str, ...]) -> bool:
    """Whether there is a value under any of the dotted paths; lists on the way are entered."""
    for path in paths:
        found = tree
        for depth, key in enumerate(_keys_of(path)):
            if isinstance(found, list):
                rest = (".".join(_keys_of(path)[depth:]),)
                if any(contains_any(item, rest) for item in found):
                    return True
                break
            if not isinstance(found, dict) or key not in found:
                break
            found = found[key]
        else:
            return True
    return False


@lru_cache(maxsize=1024)
def _keys_of(path: str) -> tuple[str, ...]:
    """The keys of a dotted path, cached because policies have few paths."""
    return tuple(path.split("."))


def with_value(body: bytes, encoding: Encoding, path: str, value: str, *, was_read: bool = False) -> bytes:
    """The body with a text value under the dotted path: replaced if there is one, added otherwise. Raises BodyError if
    the body cannot be read in exactly one way; `was_read`: the caller has read it already."""
    keys = path.split(".")
    written = encoding_of(body, encoding) if encoding is Encoding.XML else encoding
    if written is Encoding.JSON:
        if not was_read:
            decode(body, Encoding.JSON)
        return splice_json(body, keys, value)
    return splice_xml(body, keys, value) if written is Encoding.XML else _splice_form(body, keys, value)


def without_value(body: bytes, encoding: Encoding, path: str) -> bytes:
    """The body, which was read before, without the value under the dotted path. Raises BodyError for XML, because only
    the provider knows the meaning of an element without text."""
    keys = path.split(".")
    written = encoding_of(body, encoding)
    if written is Encoding.JSON:
        return cut_json(body, keys)
    if written is Encoding.XML:
        raise BodyError("a value cannot be taken out of XML")
    name = keys[0] + "".join(f"[{key}]" for key in keys[1:])
    pairs = [pair for pair in body.split(b"&") if _form_name(pair) != name]
    return b"&".join(pairs)


def _form_name(pair: bytes) -> str:
    return unquote_plus(pair.partition(b"=")[0].decode("ascii", "replace"))


def _splice_form(body: bytes, keys: list[str], value: str) -> bytes:
    written = quote_plus(value).encode("ascii")
    name = keys[0] + "".join(f"[{key}]" for key in keys[1:])
    pairs = body.split(b"&") if body.strip() else []
    found = False
    for index, pair in enumerate(pairs):
        raw_name, _, _ = pair.partition(b"=")
        if unquote_plus(raw_name.decode("ascii", "replace")) == name:
            pairs[index] = raw_name + b"=" + written
            found = True
    if not found:
        pairs.append(quote_plus(name, safe="[]").encode("ascii") + b"=" + written)
    return b"&".join(pairs)


# --- A value spliced into JSON: every byte that is not the value itself stays as it was

_WHITESPACE = " \t\n\r"
_SPACE = r"[ \t\n\r]*+"
_OBJECT = re.compile(rf"{_SPACE}\{{{_SPACE}")
_COLON = re.compile(f"{_SPACE}:{_SPACE}")
_COMMA = re.compile(f"{_SPACE},{_SPACE}")
# The text between the key of a plain member and the next key: a value that can be skipped without being read.
_PLAIN_VALUE = rf"""{_SPACE}:{_SPACE}(?:"[^"\\]*+"|[-+.0-9eE]++|true|false|null){_SPACE},{_SPACE}"""
_SCAN_VALUE = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # finds where a value ends


def splice_json(body: bytes, keys: list[str], value: str) -> bytes:
    """The body with a text value under the keys. The caller must have read the body before: here it is not checked."""
    mark = _BYTE_ORDER_MARK if body.startswith(_BYTE_ORDER_MARK) else b""
    body = body.removeprefix(mark)
    text = body.decode("utf-8") if body.strip() else "{}"
    try:
        start, end, inserted = _span_in_object(text, 0, keys, quoted(value))
    except (StopIteration, ValueError):
        raise BodyError("the body is not JSON") from None
    return mark + (text[:start] + inserted + text[end:]).encode("utf-8")


def cut_json(body: bytes, keys: list[str]) -> bytes:
    """The body without the member under the keys, if there is one. The caller must have read the body before."""
    mark = _BYTE_ORDER_MARK if body.startswith(_BYTE_ORDER_MARK) else b""
    text = body.removeprefix(mark).decode("utf-8")
    try:
        span = _member_span(text, 0, keys)
    except (StopIteration, ValueError):
        raise BodyError("the body is not JSON") from None
    return body if span is None else mark + (text[: span[0]] + text[span[1] :]).encode("utf-8")


def _member_span(text: str, at: int, keys: list[str]) -> tuple[int, int] | None:
    """The span of the member under the keys, with the comma that separates it from its neighbour."""
    opened = _OBJECT.match(text, at)
    if opened is None:
        return None
    position, before = opened.end(), None
    while text[position : position + 1] == '"':
        key, after_key = scanstring(text, position + 1)
        colon = _COLON.match(text, after_key)
        value_start = colon.end() if colon is not None else after_key
        if key == keys[0] and len(keys) > 1:
            return _member_span(text, value_start, keys[1:])
        _, value_end = _SCAN_VALUE(text, value_start)
        comma = _COMMA.match(text, value_end)
        if key == keys[0]:
            if comma is not None:
                return position, comma.end()
            return (position if before is None else before), value_end
        if comma is None:
            return None
        position, before = comma.end(), value_end
    return None


def _span_in_object(text: str, at: int, keys: list[str], written: str) -> tuple[int, int, str]:
    """The span of the text to replace, and its new text, so that the value is under the keys."""
    opened = _OBJECT.match(text, at)
    if opened is None:
        raise BodyError("a value on the way to the body's key is not an object")
    if len(keys) == 1:
        members, end = _SCAN_VALUE(text, text.index("{", at))
        if keys[0] not in members:  # it becomes the last one
            return end - 1, end - 1, f"{', ' if members else ''}{quoted(keys[0])}: {written}"
    position = opened.end()
    empty = text[position : position + 1] == "}"
    while not empty:
        plain = _plain_members_before(keys[0]).match(text, position)
        position = plain.end() if plain is not None else position
        key, position = scanstring(text, position + 1)
        colon = _COLON.match(text, position)
        value_start = colon.end() if colon is not None else position
        if key == keys[0] and len(keys) > 1 and text[value_start : value_start + 4] != "null":
            return _span_in_object(text, value_start, keys[1:], written)
        _, value_end = _SCAN_VALUE(text, value_start)
        if key == keys[0]:
            return value_start, value_end, _nested(keys[1:], written)
        comma = _COMMA.match(text, value_end)
        if comma is None:
            position = _skip_whitespace(text, value_end)
            break
        position = comma.end()
    lead = "" if empty else ", "
    return position, position, f"{lead}{quoted(keys[0])}: {_nested(keys[1:], written)}"


@lru_cache(maxsize=256)
def _plain_members_before(key: str) -> re.Pattern[str]:
    """All the plain members up to this key, or to one that has to be read, in one step. Keys are a policy's: few."""
    # The group itself is not repeated possessively: in Python 3.11.2, which Debian 12 has, such a group does not go
    # back to its beginning if it fails halfway.
    return re.compile(rf'''(?:"(?!{re.escape(key)}")[^"\\]*+"{_PLAIN_VALUE})*''')


def _nested(keys: list[str], written: str) -> str:
    for key in reversed(keys):
        written = f"{{{quoted(key)}: {written}}}"
    return written


def _skip_whitespace(text: str, position: int) -> int:
    while position < len(text) and text[position] in _WHITESPACE:
        position += 1
    return position
