"""What a tree does not keep of a body, and a fingerprint must: two bodies that a provider may read differently are
never one.

Of `a[][b]` in a form nobody but the provider knows which item a field belongs to; and it takes the first, the last or
both of `a=1&a=2`. A number may have more digits than a float holds. `a[]=1&a[]=2` and `a[0]=1&a[1]=2` mean the same.
The usual ways to write a form add nothing here, so their fingerprints stay what they were.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal
from urllib.parse import parse_qsl

from paywitness.core.bodies.tree import form_path

_LONG_NUMBER = re.compile(rb"-?\d[\d.]{15,}(?:[eE][+-]?\d+)?")
_NOT_A_FORM = (b"{", b"[", b"<", b'"')


def lost_in_tree(body: bytes, ignore: tuple[str, ...]) -> str:
    """What the tree of a body, whose ignored paths are left out, does not tell; empty for almost every body."""
    if body.lstrip()[:1] in _NOT_A_FORM:
        return _lossy_numbers(body)
    if b"=" not in body:
        return ""
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True)
    except (ValueError, UnicodeDecodeError):
        return ""
    counts = Counter(name for name, _ in pairs)
    unusual = [
        (name, value)
        for name, value in pairs
        if _is_unusual(form_path(name), counts[name]) and not _is_ignored(form_path(name), ignore)
    ]
    return json.dumps(unusual) if unusual else ""


def _is_unusual(path: list[str], count: int) -> bool:
    """Whether the name is not the one usual way to write what it becomes."""
    if "" in path[1:-1]:
        return True  # a[][b]: the order tells which item it belongs to
    return count > 1 and not (len(path) > 1 and path[-1] == "")  # a=1&a=2, but not a[]=1&a[]=2


def _is_ignored(path: list[str], ignore: tuple[str, ...]) -> bool:
    names = [part for part in path if part]
    return any(names[: len(parts)] == parts for parts in (each.split(".") for each in ignore))


def _lossy_numbers(body: bytes) -> str:
    """The numbers of a JSON body that a float does not hold. Whole numbers are held whatever their length."""
    found = [text.decode() for text in _LONG_NUMBER.findall(body)]
    lossy = [text for text in found if ("." in text or "e" in text.lower()) and _is_lossy(text)]
    return json.dumps(sorted(lossy)) if lossy else ""


def _is_lossy(text: str) -> bool:
    try:
        return Decimal(text) != Decimal(repr(float(text)))
    except (ValueError, ArithmeticError):
        return False  # no number: part of a text
