"""The plain part of JMESPath as closures: fields, comparisons with a text or boolean, "and", "or".

The library parses and defines the language; its interpreter walks the parsed tree anew for every answer, which costs
more than the rest of a classification. Nearly every expression of a policy is made of these few parts; whatever else
one holds is left to the library. `tests/policy/test_closures.py` holds the two to the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proxy.core.body import Tree

Closure = Callable[[Tree], Tree]
Node = Mapping[str, Any]


def closure_of(node: Node) -> Closure | None:
    """The parsed expression as a closure, or None where it holds a part that only the library knows."""
    make = _MAKERS.get(node["type"])
    return make(node) if make is not None else None


def _field(node: Node) -> Closure:
    name = node["value"]
    return lambda tree: tree.get(name) if isinstance(tree, dict) else None


def _path(node: Node) -> Closure | None:
    steps = tuple(closure_of(child) for child in node["children"])
    if None in steps:
        return None

    def path(tree: Tree) -> Tree:
        for step in steps:
            tree = step(tree) if step is not None else None
        return tree

    return path


def _comparison(node: Node) -> Closure | None:
    """With a text or a boolean on one side: a text equals only itself, and a boolean is never a number."""
    left, right = node["children"]
    if left["type"] == "literal":
        left, right = right, left
    found = closure_of(left)
    if found is None or right["type"] != "literal" or node["value"] not in {"eq", "ne"}:
        return None
    wanted, equal = right["value"], node["value"] == "eq"
    if isinstance(wanted, bool):
        return lambda tree: (found(tree) is wanted) is equal
    return (lambda tree: (found(tree) == wanted) is equal) if isinstance(wanted, str) else None


def _either(node: Node) -> Closure | None:
    first, second = (closure_of(child) for child in node["children"])
    if first is None or second is None:
        return None

    def either(tree: Tree) -> Tree:
        value = first(tree)
        return second(tree) if is_false(value) else value

    return either


def _both(node: Node) -> Closure | None:
    first, second = (closure_of(child) for child in node["children"])
    if first is None or second is None:
        return None

    def both(tree: Tree) -> Tree:
        value = first(tree)
        return value if is_false(value) else second(tree)

    return both


def is_false(value: Tree) -> bool:
    return value is None or value is False or value in ("", [], {})


_MAKERS: dict[str, Callable[[Node], Closure | None]] = {
    "field": _field,
    "subexpression": _path,
    "comparator": _comparison,
    "or_expression": _either,
    "and_expression": _both,
}
