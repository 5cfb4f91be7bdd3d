"""Request bodies, JSON or form, into one kind of tree: nested dictionaries."""

from __future__ import annotations

import json
from urllib.parse import parse_qsl

FIELDS_MAX = 1000

Tree = dict[str, object]


class BadBody(ValueError):
    """The body is not what its content type says."""


def parse_body(content_type: str, body: bytes) -> Tree:
    if not body.strip():
        return {}
    # curl says "form" of whatever it posts: a body that begins as an object is one.
    is_object = body.lstrip().startswith(b"{")
    if content_type.partition(";")[0].strip().lower() == "application/x-www-form-urlencoded" and not is_object:
        return parse_form(body)
    return parse_json(body)


def parse_json(body: bytes) -> Tree:
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadBody(f"the body is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise BadBody("the body is not a JSON object")
    return tree


def parse_form(body: bytes) -> Tree:
    """`metadata[order_id]=1`, with literal or encoded brackets. `expand[]=x` becomes {"expand": {"": "x"}}."""
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise BadBody(f"the body is not a form: {error}") from error
    tree: Tree = {}
    for name, value in pairs:
        first, *rest = name.replace("]", "").split("[")
        branch = tree
        for inner in rest:
            twig = branch.setdefault(first, {})
            if not isinstance(twig, dict):
                raise BadBody(f"{name!r} is given both as a value and as a group")
            branch, first = twig, inner
        if isinstance(branch.get(first), dict):
            raise BadBody(f"{name!r} is given both as a value and as a group")
        branch[first] = value
    return tree


def order_in(tree: Tree) -> str | None:
    """The order a body names, as both dialects write it: metadata.order_id."""
    metadata = tree.get("metadata")
    order = metadata.get("order_id") if isinstance(metadata, dict) else None
    return None if order is None else str(order)
