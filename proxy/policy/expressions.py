"""JMESPath, compiled to plain callables and bounded, so that core needs no expression library and no rule can hang.

JMESPath has no loops and cannot look outside the tree it is given. What it can do is double a value again and again
(`[@, @] | [@, @] | ...`) or escape a text again and again (`to_string(to_string(...))`): the bounds below end that, and
the cost of an evaluation stays proportional to the body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jmespath
from jmespath import exceptions, functions, lexer

from proxy.core.body import Encoding, Tree
from proxy.policy.closures import closure_of
from proxy.policy.marks import did_you_mean
from proxy.policy.scalars import Reader, Wrong

_LENGTH_MAX = 1_000
_NODES_MAX = 200  # an "or" over twenty statuses has 80
_COPIES_MAX = 16  # how many times a multi-select may repeat what it was given, all of them multiplied
_CALLS_MAX = 8
_COMPARATORS = frozenset({"eq", "ne", "lt", "lte", "gt", "gte"})


@dataclass(frozen=True, slots=True)
class JmesPath:
    """A compiled expression. Equal when its text is equal; may raise, which core reads as "does not match"."""

    text: str
    _parsed: Any = field(compare=False, repr=False)
    _evaluate: Callable[[Tree], Tree] = field(compare=False, repr=False)

    def __call__(self, tree: Tree) -> Tree:
        return self._evaluate(tree)

    def __str__(self) -> str:
        return self.text


def expression(text: str) -> JmesPath:
    """The expression, compiled. Raises Wrong with a message that says what to write instead."""
    if len(text) > _LENGTH_MAX:
        raise Wrong(says=f"found an expression of {len(text)} characters, allowed: at most {_LENGTH_MAX}")
    try:
        tokens: list[Any] = list(lexer.Lexer().tokenize(text))
        compiled = jmespath.compile(text)
    except exceptions.EmptyExpressionError:
        raise Wrong("a JMESPath expression") from None
    except exceptions.LexerError as error:
        raise _not_an_expression(text, error.lex_position, error.message) from None
    except exceptions.IncompleteExpressionError:
        raise _not_an_expression(text, len(text), "it ends too early") from None
    except exceptions.ParseError as error:
        raise _not_an_expression(text, error.lex_position, f"unexpected {error.token_value!r}") from None
    except RecursionError:
        raise Wrong(says="found an expression that is nested too deeply") from None
    except Exception as error:  # noqa: BLE001  # whatever the library raises for odd text, the file is at fault, not us
        raise Wrong(says=f"this is not a JMESPath expression: {type(error).__name__}") from None
    _refuse_quoted_values(tokens)
    _refuse_growth(list(_walk(compiled.parsed)))
    return JmesPath(text, compiled.parsed, closure_of(compiled.parsed) or compiled.search)


def form_expression(text: str) -> JmesPath:
    """An expression over a form body. Its values are all texts: a comparison with a number or boolean never holds."""
    compiled = expression(text)
    for node in _walk(compiled._parsed):  # made in this module
        if node["type"] == "comparator":
            for child in node["children"]:
                if child["type"] == "literal" and isinstance(child["value"], (bool, int, float)):
                    value = str(child["value"]).lower()
                    raise Wrong(says=f"found a comparison with `{value}`, but form values are texts: write '{value}'")
    return compiled


def expression_over(encoding: Encoding) -> Reader[JmesPath]:
    """The reader of expressions over a request's body."""
    return form_expression if encoding is Encoding.FORM else expression


def _not_an_expression(text: str, position: int, reason: str) -> Wrong:
    hint = " (equality is '==')" if "Unknown token '='" in reason else ""
    return Wrong(says=f"this is not a JMESPath expression, at character {position + 1}: {reason}{hint}")


def _refuse_quoted_values(tokens: list[Any]) -> None:
    """`status == "x"` compares two fields, `status` and one called `x`: never what was meant."""
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
            raise Wrong(
                says=f'found "{value}" as a value: in JMESPath double quotes name a field; '
                f"""write '{value}' or `"{value}"` for the text, or @."{value}" for the field""",
            )


def _refuse_growth(nodes: list[Any]) -> None:
    if len(nodes) > _NODES_MAX:
        raise Wrong(says=f"found an expression of {len(nodes)} parts, allowed: at most {_NODES_MAX}")
    known = functions.Functions.FUNCTION_TABLE
    calls = [node["value"] for node in nodes if node["type"] == "function_expression"]
    for call in calls:
        if call not in known:
            raise Wrong(says=f"found an unknown function {call}(){did_you_mean(call, known)}")
    if len(calls) > _CALLS_MAX or calls.count("to_string") > 1:
        raise Wrong(says=f"found {len(calls)} function calls, allowed: at most {_CALLS_MAX}, to_string() once")
    copies = prod(max(len(node["children"]), 1) for node in nodes if node["type"].startswith("multi_select"))
    if copies > _COPIES_MAX:
        raise Wrong(says=f"found selections that repeat their input {copies} times, allowed: at most {_COPIES_MAX}")


def _walk(node: Any) -> Iterator[Any]:
    waiting: list[Any] = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(child for child in current.get("children", ()) if isinstance(child, dict))
