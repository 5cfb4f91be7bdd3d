"""The body of an answer of ours: RFC 9457's members, with the provider's error shape among them.

A client that reads XML gets XML where the shape has a root: our members stand inside it, beside the provider's. For all
others it is problem+json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from proxy.core.errors import BodyError
from proxy.core.xml_body import encode_xml

_JSON = b"application/problem+json"
_XML = b"application/xml"


def problem_body(members: dict[str, Any], shape: Mapping[str, Any], detail: str, *, xml: bool) -> tuple[bytes, bytes]:
    """The body and its media type. What is ours is never replaced by the shape's."""
    filled = {name: _filled(value, detail) for name, value in shape.items()}
    if xml and len(filled) == 1:
        [(root, children)] = filled.items()
        if isinstance(children, dict):
            try:
                return encode_xml({root: children | members}), _XML
            except BodyError:
                pass  # a text that cannot stand in XML: it is still told
    # Escaped: a text from outside may hold halves of characters.
    return json.dumps(
        members | {name: filled[name] for name in filled if name not in members}, default=str
    ).encode(), _JSON


def _filled(value: Any, detail: str) -> Any:
    """The provider's error shape with our detail in its texts."""
    if isinstance(value, str):
        return value.replace("{detail}", detail)
    if isinstance(value, Mapping):
        return {key: _filled(item, detail) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(item, detail) for item in value]
    return value
