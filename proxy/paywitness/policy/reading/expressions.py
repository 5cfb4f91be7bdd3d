"""JMESPath, compiled to plain callables and bounded, so that core needs no expression library and no rule can hang.

JMESPath has no loops and cannot read outside the tree it is given. But an expression can double a value again and again
(`[@, @] | [@, @] | ...`) or escape a text again and again (`to_string(to_string(...))`). The bounds below prevent that,
so the cost of an evaluation stays proportional to the body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from typing import Any

import jmespath
from jmespath import exceptions, functions, lexer

from paywitness.core.bodies.tree import Encoding, Tree
from paywitness.core.classify import is_false
from paywitness.policy.reading.locations import did_you_mean
from paywitness.policy.reading.value_readers import InvalidValue, Reader

# --- JMESPath as closures
# The part of JMESPath that policies are written in, as closures: fields, comparisons with a text or boolean, "and",
# "or", "not", indexes, lists and their filters, `starts_with` and `contains`.
#
# The library parses and defines the language. Its interpreter walks the parsed tree again for every response, which
# costs more than the rest of a classification. Nearly every expression of a policy is made of these few parts. The
# library evaluates any other. `tests/policy/test_jmespath_closures.py` checks that both give the same results.

Closure = Callable[[Tree], Tree]
Node = Mapping[str, Any]


def closure_of(node: Node) -> Closure | None:
    """The parsed expression as a closure, or None if it holds a part that only the library knows."""
    names, texts = _texts_compared(node)
    if names:
        return _one_of(names, texts)
    make = _MAKERS.get(node["type"])
    return make(node) if make is not None else None


def _names_of(node: Node) -> tuple[str, ...]:
    """The names of a plain path, `a.b`. Empty for anything else."""
    nodes = node["children"] if node["type"] == "subexpression" else [node]
    return tuple(child["value"] for child in nodes) if all(child["type"] == "field" for child in nodes) else ()


def _path(node: Node) -> Closure | None:
    names = _names_of(node)
    if len(names) == 1:
        name = names[0]
        return lambda tree: tree.get(name) if isinstance(tree, dict) else None

    def fields(tree: Tree) -> Tree:
        for name in names:
            tree = tree.get(name) if isinstance(tree, dict) else None
        return tree

    if names:
        return fields
    steps = [step for step in map(closure_of, node["children"]) if step is not None]

    def path(tree: Tree) -> Tree:
        for step in steps:
            tree = step(tree)
        return tree

    return path if len(steps) == len(node["children"]) else None


def _comparison(node: Node) -> Closure | None:
    """A comparison with a text or a boolean on one side: a text equals only itself, and a boolean is never a number."""
    left, right = _operands(node)
    found = closure_of(left)
    if found is None or right["type"] != "literal" or node["value"] not in {"eq", "ne"}:
        return None
    wanted, equal = right["value"], node["value"] == "eq"
    if isinstance(wanted, bool):
        return lambda tree: (found(tree) is wanted) is equal
    return (lambda tree: (found(tree) == wanted) is equal) if isinstance(wanted, str) else None


def _operands(node: Node) -> tuple[Node, Node]:
    left, right = node["children"]
    return (right, left) if left["type"] == "literal" else (left, right)


def _texts_compared(node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The path and the texts of `a.b == 'x' || a.b == 'y'`, the form of most rows. For anything else the path is
    empty."""
    if node["type"] == "or_expression":
        (names, texts), (others, more) = map(_texts_compared, node["children"])
        return (names, texts + more) if names == others else ((), ())
    if node["type"] != "comparator" or node["value"] != "eq":
        return (), ()
    left, right = _operands(node)
    is_text = right["type"] == "literal" and isinstance(right["value"], str)
    return (_names_of(left), (right["value"],)) if is_text else ((), ())


def _one_of(names: tuple[str, ...], texts: tuple[str, ...]) -> Closure:
    def one_of(tree: Tree) -> bool:
        for name in names:
            tree = tree.get(name) if isinstance(tree, dict) else None
        return tree in texts

    return one_of


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
    """`a[]`: lists in the list are flattened by one level."""
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
    """`a[].b` and `a[?c].b`: the value of each element, without null."""
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
    """A call of the library's own function, which checks the types of our arguments."""
    name = node["value"]
    arguments = [part for part in map(closure_of, node["children"]) if part is not None]
    if name not in _FUNCTIONS or len(arguments) < len(node["children"]):
        return None
    return lambda tree: _LIBRARY.call_function(name, [argument(tree) for argument in arguments])


_FUNCTIONS = frozenset({"starts_with", "contains"})
_LIBRARY: Any = functions.Functions()


_MAKERS: dict[str, Callable[[Node], Closure | None]] = {
    "field": _path,
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


# --- Compiled expressions

_LENGTH_MAX = 1_000
_NODES_MAX = 200  # an "or" over twenty statuses has 80
_COPIES_MAX = 16  # how many times all multi-selects, multiplied, may repeat their input
_CALLS_MAX = 8
_COMPARATORS = frozenset({"eq", "ne", "lt", "lte", "gt", "gte"})
# Words that mean a value in JSON, YAML and Python, but name a field in JMESPath.
_VALUES_OF_WORDS = {
    **{word: value for value in ("true", "false", "null") for word in (value, value.capitalize(), value.upper())},
    "None": "null",
}
# Nodes in which every part behind the first is a step of its path.
_PATHS = frozenset({"subexpression", "index_expression", "pipe", "projection", "value_projection"})


class JmesPath(partial[Tree]):
    """A compiled expression. Called with a tree, it returns the value, or None if there is none or the evaluation
    fails. Two are equal if their texts are. It is a partial and not a function around its closure, because a call
    evaluates twenty of them."""

    text: str
    parsed: Node

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JmesPath) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"JmesPath({self.text!r})"


def _compiled(text: str, parsed: Node, evaluate: Closure) -> JmesPath:
    made = JmesPath(evaluate)
    made.text, made.parsed = text, parsed
    return made


def _or_none(evaluate: Closure) -> Closure:
    """The closure, but None if it raises: an expression that only the library knows may raise."""

    def evaluate_or_none(tree: Tree) -> Tree:
        try:
            return evaluate(tree)
        except Exception:  # noqa: BLE001  # the policy wrote the expression; any error means "no value"
            return None

    return evaluate_or_none


def expression(text: str) -> JmesPath:
    """The expression, compiled. Raises InvalidValue, whose message says how to write it instead."""
    if len(text) > _LENGTH_MAX:
        raise InvalidValue(message=f"found an expression of {len(text)} characters, allowed: at most {_LENGTH_MAX}")
    try:
        tokens: list[Any] = list(lexer.Lexer().tokenize(text))
        compiled = jmespath.compile(text)
    except exceptions.EmptyExpressionError:
        raise InvalidValue("a JMESPath expression") from None
    except exceptions.LexerError as error:
        raise _not_an_expression(text, error.lex_position, error.message) from None
    except exceptions.IncompleteExpressionError:
        raise _not_an_expression(text, len(text), "it ends too early") from None
    except exceptions.ParseError as error:
        raise _not_an_expression(text, error.lex_position, f"unexpected {error.token_value!r}") from None
    except RecursionError:
        raise InvalidValue(message="found an expression that is nested too deeply") from None
    except Exception as error:  # noqa: BLE001  # any error of the library means that the file is wrong
        raise InvalidValue(message=f"this is not a JMESPath expression: {type(error).__name__}") from None
    _refuse_quoted_values(tokens)
    nodes = list(_walk(compiled.parsed))
    _refuse_unbounded_growth(nodes)
    _refuse_bare_operands(nodes)
    closure = closure_of(compiled.parsed)
    if closure is None or any(node["type"] == "function_expression" for node in nodes):
        closure = _or_none(closure or compiled.search)
    return _compiled(text, compiled.parsed, closure)


def condition(text: str) -> JmesPath:
    """An expression that is read as true or false, as JMESPath has it: 0 is true."""
    return _as_condition(expression(text))


def _as_condition(found: JmesPath) -> JmesPath:
    if _is_boolean(found.parsed):
        return found
    evaluate = found.func
    return _compiled(found.text, found.parsed, lambda tree: not is_false(evaluate(tree)))


def _is_boolean(node: Node) -> bool:
    """Whether the closure of this node returns only true and false."""
    if node["type"] in {"or_expression", "and_expression"}:
        return all(map(_is_boolean, node["children"]))
    return node["type"] in {"comparator", "not_expression"}


def form_expression(text: str) -> JmesPath:
    """An expression over a form body. Its values are all texts: a comparison with a number or boolean never holds."""
    compiled = expression(text)
    for node in _walk(compiled.parsed):
        if node["type"] == "comparator":
            for child in node["children"]:
                if child["type"] == "literal" and isinstance(child["value"], (bool, int, float)):
                    value = str(child["value"]).lower()
                    raise InvalidValue(
                        message=f"found a comparison with `{value}`, but form values are texts: write '{value}'"
                    )
    return compiled


def implies(stronger: JmesPath, weaker: JmesPath) -> bool:
    """Whether the weaker expression holds whenever the stronger one does, as far as the parts that "and" and "or" join
    show it. False proves nothing."""
    return _implies(stronger.parsed, weaker.parsed)


def _implies(stronger: Any, weaker: Any) -> bool:
    if stronger == weaker:
        return True
    if weaker["type"] == "and_expression":
        return all(_implies(stronger, part) for part in weaker["children"])
    if stronger["type"] == "or_expression":
        return all(_implies(part, weaker) for part in stronger["children"])
    if weaker["type"] == "or_expression" and any(_implies(stronger, part) for part in weaker["children"]):
        return True
    return stronger["type"] == "and_expression" and any(_implies(part, weaker) for part in stronger["children"])


def expression_over(encoding: Encoding) -> Reader[JmesPath]:
    """The reader of expressions over a request's body."""
    return form_expression if encoding is Encoding.FORM else expression


def condition_over(encoding: Encoding) -> Reader[JmesPath]:
    """The reader of conditions on a request's body."""
    return (lambda text: _as_condition(form_expression(text))) if encoding is Encoding.FORM else condition


def _not_an_expression(text: str, position: int, reason: str) -> InvalidValue:
    hint = " (equality is '==')" if "Unknown token '='" in reason else ""
    return InvalidValue(message=f"this is not a JMESPath expression, at character {position + 1}: {reason}{hint}")


def _refuse_quoted_values(tokens: list[Any]) -> None:
    """Refuse `status == "x"`. It compares two fields, `status` and one called `x`, and nobody means that."""
    brackets: list[str] = []
    for index, token in enumerate(tokens):
        kind = token["type"]
        if kind in {"lparen", "lbracket", "filter", "lbrace"}:
            brackets.append(kind)
        elif kind in {"rparen", "rbracket", "rbrace"} and brackets:
            brackets.pop()
        if kind != "quoted_identifier":
            continue
        before = tokens[index - 1]["type"] if index else "start"
        after = tokens[index + 1]["type"]
        compared_with = tokens[index + 2]["type"] if after in _COMPARATORS else ""
        is_argument = before == "comma" and bool(brackets) and brackets[-1] == "lparen"
        is_left_value = after in _COMPARATORS and before != "dot" and compared_with != "literal"
        if before in _COMPARATORS or is_argument or is_left_value:
            value = token["value"]
            raise InvalidValue(
                message=f'found "{value}" as a value: in JMESPath double quotes name a field; '
                f"""write '{value}' or `"{value}"` for the text, or @."{value}" for the field""",
            )


def _refuse_bare_operands(nodes: list[Any]) -> None:
    """Refuse `paid == true`. It compares two fields, `paid` and one called `true`. Both are missing in most bodies, and
    null equals null, so the row would hold for an empty body and for a refusal. `!false` would hold for every body."""
    for node in ({"type": "whole", "children": nodes[:1]}, *nodes):
        for child in _bare_children(node):
            if child["type"] == "field" and child["value"] in _VALUES_OF_WORDS:
                raise _bare_operand(child["value"])
        if node["type"] != "comparator":
            continue
        left, right = node["children"]
        if right["type"] == "field" and left["type"] != "literal":
            raise _bare_operand(right["value"])


def _bare_children(node: Any) -> list[Any]:
    """The children of a node that have no path before them."""
    children = [child for child in node.get("children", ()) if isinstance(child, dict)]
    if node["type"] == "filter_projection":
        return [children[0], children[2]]
    return children[:1] if node["type"] in _PATHS else children


def _bare_operand(name: str) -> InvalidValue:
    value = _VALUES_OF_WORDS.get(name)
    instead = f"`{value}` for the value" if value is not None else f"'{name}' for the text"
    return InvalidValue(
        message=f"found {name} as an operand: in JMESPath a bare word names a field; "
        f"write {instead}, or @.{name} for the field"
    )


def _refuse_unbounded_growth(nodes: list[Any]) -> None:
    if len(nodes) > _NODES_MAX:
        raise InvalidValue(message=f"found an expression of {len(nodes)} parts, allowed: at most {_NODES_MAX}")
    known = functions.Functions.FUNCTION_TABLE
    calls = [node["value"] for node in nodes if node["type"] == "function_expression"]
    for call in calls:
        if call not in known:
            raise InvalidValue(message=f"found an unknown function {call}(){did_you_mean(call, known)}")
    if len(calls) > _CALLS_MAX or calls.count("to_string") > 1:
        raise InvalidValue(
            message=f"found {len(calls)} function calls, allowed: at most {_CALLS_MAX}, to_string() once"
        )
    copies = prod(max(len(node["children"]), 1) for node in nodes if node["type"].startswith("multi_select"))
    if copies > _COPIES_MAX:
        raise InvalidValue(
            message=f"found selections that repeat their input {copies} times, allowed: at most {_COPIES_MAX}"
        )


def _walk(node: Any) -> Iterator[Any]:
    waiting: list[Any] = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(child for child in current.get("children", ()) if isinstance(child, dict))
