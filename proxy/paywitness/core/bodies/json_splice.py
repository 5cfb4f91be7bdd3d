"""JSON bodies: a single value written into one by a splice. Every byte that is not the value itself stays as it was.

Reading is `tree.decode_json`'s; this only finds where a value stands.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in CPython, missing in typeshed
from json.encoder import encode_basestring_ascii as quoted

from paywitness.core.errors import BodyError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHITESPACE = " \t\n\r"
_SPACE = r"[ \t\n\r]*+"
_OBJECT = re.compile(rf"{_SPACE}\{{{_SPACE}")
_COLON = re.compile(f"{_SPACE}:{_SPACE}")
_COMMA = re.compile(f"{_SPACE},{_SPACE}")
# What stands between the key of a plain member and the next one: a value that can be passed over without being read.
_PLAIN_VALUE = rf"""{_SPACE}:{_SPACE}(?:"[^"\\]*+"|[-+.0-9eE]++|true|false|null){_SPACE},{_SPACE}"""
_SCAN_VALUE = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # finds where a value ends


def splice_json(body: bytes, keys: list[str], value: str) -> bytes:
    """The body with a text value under the keys. It must have been read: here it is only walked."""
    mark = _BYTE_ORDER_MARK if body.startswith(_BYTE_ORDER_MARK) else b""
    body = body.removeprefix(mark)
    text = body.decode("utf-8") if body.strip() else "{}"
    try:
        start, end, inserted = _span_in_object(text, 0, keys, quoted(value))
    except (StopIteration, ValueError):
        raise BodyError("the body is not JSON") from None
    return mark + (text[:start] + inserted + text[end:]).encode("utf-8")


def cut_json(body: bytes, keys: list[str]) -> bytes:
    """The body without the member under the keys, if it stands there. It must have been read."""
    mark = _BYTE_ORDER_MARK if body.startswith(_BYTE_ORDER_MARK) else b""
    text = body.removeprefix(mark).decode("utf-8")
    try:
        span = _member_span(text, 0, keys)
    except (StopIteration, ValueError):
        raise BodyError("the body is not JSON") from None
    return body if span is None else mark + (text[: span[0]] + text[span[1] :]).encode("utf-8")


def _member_span(text: str, at: int, keys: list[str]) -> tuple[int, int] | None:
    """Where the member under the keys stands, with the comma that parts it from its neighbour."""
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
    """Which span of the text to replace, and by what, so that the value stands under the keys."""
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
    # The group itself is not repeated possessively: in Python 3.11.2, which Debian 12 has, one that fails halfway does
    # not go back to where it began.
    return re.compile(rf'''(?:"(?!{re.escape(key)}")[^"\\]*+"{_PLAIN_VALUE})*''')


def _nested(keys: list[str], written: str) -> str:
    for key in reversed(keys):
        written = f"{{{quoted(key)}: {written}}}"
    return written


def _skip_whitespace(text: str, position: int) -> int:
    while position < len(text) and text[position] in _WHITESPACE:
        position += 1
    return position
