"""The closures mean what the library's interpreter means, for every expression they take over."""

from __future__ import annotations

from collections.abc import Callable

import jmespath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paywitness.policy.reading.expressions import closure_of, condition, expression

NAMES = st.sampled_from(["status", "error", "code", "a"])
FIELDS = st.lists(NAMES, min_size=1, max_size=3).map(".".join)
TEXTS = st.sampled_from(["''", "'x'", "'succeeded'", "'0'", "'true'", "`true`", "`false`"])
COMPARISONS = st.tuples(FIELDS, st.sampled_from(["==", "!="]), TEXTS).map(" ".join)
SUFFIXES = st.sampled_from(["[0]", "[-2]", "[]", "[][]", "[].a", "[*].a", "[?code == 'x']", "[?a].code", " | [0]"])
CALLS = st.tuples(st.sampled_from(["starts_with", "contains"]), FIELDS, TEXTS).map("{0[0]}({0[1]}, {0[2]})".format)
LISTS = st.tuples(FIELDS | st.just("@"), SUFFIXES).map("".join)
SELECTIONS = st.tuples(FIELDS, LISTS).map(lambda parts: f"[{', '.join(parts)}][]")
EXPRESSIONS = st.recursive(
    FIELDS
    | COMPARISONS
    | COMPARISONS.map(lambda text: " ".join(reversed(text.split(" "))))
    | FIELDS.map("!({})".format)
    | LISTS
    | SELECTIONS
    | CALLS,
    lambda inner: st.tuples(inner, st.sampled_from(["||", "&&"]), inner).map(lambda parts: f"({' '.join(parts)})"),
    max_leaves=5,
)
SCALARS: st.SearchStrategy[object] = st.sampled_from(
    [None, True, False, 0, 1, 0.0, "", "x", "succeeded", "0", "true", [], {}, [0]]
)
TREES: st.SearchStrategy[object] = st.recursive(
    SCALARS, lambda inner: st.dictionaries(NAMES, inner, max_size=3) | st.lists(inner, max_size=2), max_leaves=8
)


def said(evaluate: Callable[[object], object], tree: object) -> object:
    try:
        value = evaluate(tree)
    except jmespath.exceptions.JMESPathError as error:
        return type(error)
    return value, type(value)


@settings(max_examples=800, deadline=None, derandomize=True)
@given(EXPRESSIONS, TREES)
def test_a_closure_gives_what_the_library_gives(text: str, tree: object) -> None:
    compiled = jmespath.compile(text)
    closure = closure_of(compiled.parsed)
    assert closure is not None
    assert said(closure, tree) == said(compiled.search, tree)


@settings(max_examples=800, deadline=None, derandomize=True)
@given(EXPRESSIONS, TREES)
def test_an_expression_never_raises_and_a_condition_is_its_truth(text: str, tree: object) -> None:
    try:
        value = jmespath.search(text, tree)
    except jmespath.exceptions.JMESPathError:
        value = None
    assert expression(text)(tree) == value
    assert condition(text)(tree) is not (value is False or value in (None, "", [], {}))


@pytest.mark.parametrize("text", ["length(a)", "contains(a, 'x')", "a.b || starts_with(a, 'x')"])
def test_what_raises_in_the_library_is_no_value_and_no_match(text: str) -> None:
    assert expression(text)({"a": 1}) is None
    assert not condition(text)({"a": 1})


@pytest.mark.parametrize(
    "text",
    [
        "a[0:1]",
        "a.*",
        "length(a)",
        "a == `1`",
        "a == @.b",
        "a > `1`",
        "{b: a}",
    ],
)
def test_whatever_else_is_left_to_the_library(text: str) -> None:
    assert closure_of(jmespath.compile(text).parsed) is None
    tree = {"a": [{"b": "x"}, 1], "b": 2}
    assert expression(text)(tree) == jmespath.search(text, tree) or text == "length(a)"
