"""The part of JMESPath that policies are written in, as closures: fields, comparisons with a text or boolean, "and",
"or", "not", indexes, lists and their filters, `starts_with` and `contains`.

The library parses and defines the language; its interpreter walks the parsed tree anew for every answer, which costs
more than the rest of a classification. Nearly every expression of a policy is made of these few parts; whatever else
one holds is left to the library. `tests/policy/test_closures.py` holds the two to the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jmespath import functions

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
    if all(child["type"] == "field" for child in node["children"]):
        return _fields(tuple(child["value"] for child in node["children"]))
    steps = tuple(closure_of(child) for child in node["children"])
    if None in steps:
        return None

    def path(tree: Tree) -> Tree:
        for step in steps:
            tree = step(tree) if step is not None else None
        return tree

    return path


def _fields(names: tuple[str, ...]) -> Closure:
    def fields(tree: Tree) -> Tree:
        for name in names:
            tree = tree.get(name) if isinstance(tree, dict) else None
        return tree

    return fields


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
    if not isinstance(wanted, str):
        return None
    if equal and left["type"] == "field":  # most rows of most policies
        name = left["value"]
        return lambda tree: isinstance(tree, dict) and tree.get(name) == wanted
    return lambda tree: (found(tree) == wanted) is equal


def _either(node: Node) -> Closure | None:
    first, second = (closure_of(child) for child in node["children"])
    if first is None or second is None:
        return None

    if all(child["type"] == "comparator" for child in node["children"]):  # which give nothing but true and false
        return lambda tree: first(tree) or second(tree)

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


def _not(node: Node) -> Closure | None:
    found = closure_of(node["children"][0])
    if found is None:
        return None

    def negated(tree: Tree) -> Tree:
        value = found(tree)
        return not (value or (isinstance(value, (int, float)) and not isinstance(value, bool)))  # 0 is true

    return negated


def _itself(_: Node) -> Closure:
    return lambda tree: tree


def _literal(node: Node) -> Closure:
    value = node["value"]
    return lambda _: value


def _index(node: Node) -> Closure:
    at = node["value"]
    return lambda tree: tree[at] if isinstance(tree, list) and -len(tree) <= at < len(tree) else None


def _selection(node: Node) -> Closure | None:
    """`[a, b]`"""
    parts = [part for part in map(closure_of, node["children"]) if part is not None]
    if len(parts) < len(node["children"]):
        return None
    return lambda tree: [part(tree) for part in parts] if tree is not None else None


def _flattened(node: Node) -> Closure | None:
    """`a[]`: lists in the list are opened, once."""
    base = closure_of(node["children"][0])
    if base is None:
        return None

    def flattened(tree: Tree) -> Tree:
        found = base(tree)
        if not isinstance(found, list):
            return None
        return [inner for one in found for inner in (one if isinstance(one, list) else [one])]

    return flattened


def _each(node: Node) -> Closure | None:
    """`a[].b` and `a[?c].b`: what each element gives, less nothing."""
    base, then, *conditions = map(closure_of, node["children"])
    if base is None or then is None or None in conditions:
        return None
    condition = conditions[0] if conditions else None

    def each(tree: Tree) -> Tree:
        found = base(tree)
        if not isinstance(found, list):
            return None
        kept = found if condition is None else [one for one in found if not is_false(condition(one))]
        return [value for value in map(then, kept) if value is not None]

    return each


def _called(node: Node) -> Closure | None:
    """The library's own function over our arguments: it checks their types."""
    name = node["value"]
    arguments = [part for part in map(closure_of, node["children"]) if part is not None]
    if name not in _FUNCTIONS or len(arguments) < len(node["children"]):
        return None
    return lambda tree: _LIBRARY.call_function(name, [argument(tree) for argument in arguments])


_FUNCTIONS = frozenset({"starts_with", "contains"})
_LIBRARY: Any = functions.Functions()


def is_false(value: Tree) -> bool:
    return value is None or value is False or value in ("", [], {})


_MAKERS: dict[str, Callable[[Node], Closure | None]] = {
    "field": _field,
    "subexpression": _path,
    "comparator": _comparison,
    "or_expression": _either,
    "and_expression": _both,
    "not_expression": _not,
    "identity": _itself,
    "current": _itself,
    "literal": _literal,
    "index": _index,
    "index_expression": _path,
    "pipe": _path,
    "multi_select_list": _selection,
    "flatten": _flattened,
    "projection": _each,
    "filter_projection": _each,
    "function_expression": _called,
}
