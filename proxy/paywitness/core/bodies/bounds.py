"""Bounds on a body, held before it is parsed: bytes, growth by decompression, depth, and the number of values.

A parser pays for every value with time and memory, and fifteen kilobytes of gzip can hold five million values. The
rule: nothing is parsed before a scan at the speed of `bytes.count` has shown that parsing it is short work. Exact
counts are made only of bodies whose bytes leave a doubt.
"""

from __future__ import annotations

import re
import zlib

from paywitness.core.errors import BodyError, BodyOverBound
from paywitness.core.record import record

DEPTH_MAX = 64
GROWTH_MAX = 100  # bytes out of one byte of gzip; JSON grows by 5 to 15, a long list of equal objects by 40
SMALL_BYTES = 64 * 1024  # a body up to this size may grow by any factor


@record
class BodyBounds:
    plain_bytes_max: int  # after decompression
    values_max: int  # members of objects and lists, and the objects and lists themselves
    elements_max: int  # of XML, attributes included: each takes ten times as long as a value of JSON


# Reading 20,000 values takes 5 to 10 ms, and nothing else happens meanwhile. An order with 500 lines has 5,000.
REQUEST_BOUNDS = BodyBounds(1024 * 1024, 20_000, 5_000)
# A page of a hundred payments, as a list inquiry reads it, has 15,000 to 20,000, and one in XML 10,000 elements.
RESPONSE_BOUNDS = BodyBounds(4 * 1024 * 1024, 40_000, 15_000)
WEBHOOK_BOUNDS = BodyBounds(1024 * 1024, 20_000, 5_000)
# Of a webhook that must be read before its signature can be checked: a stranger may have written it.
UNVERIFIED_BOUNDS = BodyBounds(1024 * 1024, 5_000, 500)
# Of what the journal gives back: it was held to the bounds when it came.
STORED_BOUNDS = BodyBounds(64 * 1024 * 1024, 10_000_000, 10_000_000)

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*(?:"|\\?\Z)', re.DOTALL)  # matches from every quote: never backtracks
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_QUOTES_PER_VALUE = 4  # those of its name and its own


def inflate(body: bytes, bounds: BodyBounds) -> bytes:
    """A gzip or zlib body, decompressed within its bounds. Raises BodyError."""
    reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # reads gzip and zlib headers alike
    pieces, plain_bytes, rest = [], 0, body
    try:
        while not reader.eof and (piece := reader.decompress(rest, SMALL_BYTES)):
            pieces.append(piece)
            plain_bytes, rest = plain_bytes + len(piece), reader.unconsumed_tail
            read_bytes = len(body) - len(rest)
            if plain_bytes > min(bounds.plain_bytes_max, max(SMALL_BYTES, GROWTH_MAX * read_bytes)):
                raise BodyOverBound(
                    f"the body grows too large by decompression: {bounds.plain_bytes_max} bytes, and {GROWTH_MAX} out "
                    "of one, are allowed"
                )
    except zlib.error:
        raise BodyError("the body's content coding is damaged") from None
    if not reader.eof:
        raise BodyError("the body's content coding is cut short")
    if reader.unused_data:  # another member: some readers take it for more of the body, others leave it out
        raise BodyError("something stands behind the end of the body's content coding")
    return b"".join(pieces)


def check_json(body: bytes, bounds: BodyBounds) -> None:
    """Raises BodyOverBound for JSON that is too large, too deep or has too many values. Whether it is JSON at all is
    left to the parser."""
    if len(body) > bounds.plain_bytes_max:
        raise _too_many_bytes(bounds)
    opened = body.count(b"{") + body.count(b"[")
    values_max = bounds.values_max
    if opened <= DEPTH_MAX and opened + body.count(b",") <= values_max:
        return  # nearly every body
    unescaped_quotes = body.count(b'"') - body.count(b'\\"')
    if unescaped_quotes > _QUOTES_PER_VALUE * (values_max + 1):
        raise _too_many_values(values_max)
    skeleton = _TEXT.sub(b"", body)
    brackets = skeleton.translate(_SQUARE, _NO_BRACKETS)
    if skeleton.count(b",") + brackets.count(b"[") > values_max:
        raise _too_many_values(values_max)
    for _ in range(DEPTH_MAX + 1):  # the body itself is no level
        shallower = brackets.replace(b"[]", b"")  # the innermost level goes
        if len(shallower) in (0, len(brackets)):
            return  # or it does not balance, and is no JSON
        brackets = shallower
    raise BodyOverBound(f"the body is nested too deeply: {DEPTH_MAX} levels are allowed")


def check_form(body: bytes, bounds: BodyBounds) -> None:
    """A form's fields, and the groups that their names open."""
    if len(body) > bounds.plain_bytes_max:
        raise _too_many_bytes(bounds)
    groups = body.count(b"[") + body.count(b"%5B") + body.count(b"%5b")
    if groups + body.count(b"&") > bounds.values_max:
        raise _too_many_values(bounds.values_max)


def check_xml(body: bytes, bounds: BodyBounds) -> None:
    """Tags; the parser counts attributes and the rest, and stops at the same bound."""
    if len(body) > bounds.plain_bytes_max:
        raise _too_many_bytes(bounds)
    if body.count(b"<") > 2 * (bounds.elements_max + 1):
        raise too_many_elements(bounds)


def too_many_elements(bounds: BodyBounds) -> BodyOverBound:
    return BodyOverBound(f"the body has too many elements: {bounds.elements_max} are allowed")


def _too_many_bytes(bounds: BodyBounds) -> BodyOverBound:
    return BodyOverBound(f"the body has more than {bounds.plain_bytes_max} bytes")


def _too_many_values(values_max: int) -> BodyOverBound:
    return BodyOverBound(f"the body has too many values: {values_max} are allowed")
