"""JSON as short as it can be written: `json.dumps` with no space in it, byte for byte.

The library makes the C part of its encoder anew for every text, which for short ones takes longer than the writing.
Here it is made once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder as library
from typing import Any


def compact_encoder(*, sort_keys: bool = False) -> Callable[[Any], str]:
    """The function that writes a tree. What holds itself is a RecursionError, and not found earlier."""
    plain = json.JSONEncoder(separators=(",", ":"), sort_keys=sort_keys, check_circular=False)
    make = getattr(library, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return plain.encode
    escape = library.encode_basestring_ascii
    chunks = make(None, plain.default, escape, None, ":", ",", sort_keys, False, True)
    return lambda tree: "".join(chunks(tree, 0))
