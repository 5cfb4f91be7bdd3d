"""Whatever the text, loading gives a provider or a PolicyError, and nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paywitness.core.errors import PolicyError
from paywitness.policy.book import load_content
from paywitness.policy.schema import BLOCKS
from tests.policy.texts import MINIMAL

KEYS = sorted({key for block in BLOCKS for key in block.keys})
WORDS = ["default", "declines", "succeeded", "payment", "24h", "5xx", "402", "none", "unknown", "true", "100%"]
VALUES = ["header:X", "body:a.b", "path:x", "POST /v1/{x}", "{reference}", "a == 'b'", 'a == "b"', "[@,@]", "env:X"]
SIGNS = ["&a", "*a", "!!x", "<<", "---", "|", ">", "?", "-", "\t", "\u2028", "\x85", *"{}[]'\"#%"]
PIECES = st.sampled_from([*KEYS, *WORDS, *VALUES, *SIGNS])
SPACES = st.sampled_from(["", " ", "\n", "\n  ", "\n    ", ": ", ", ", ":\n  ", "\n- "])
YAMLISH = st.lists(st.tuples(PIECES, SPACES), max_size=40).map(lambda pairs: "".join(a + b for a, b in pairs))
TREES = st.recursive(
    PIECES.map(str) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=15,
)
PLACE = re.compile(r"f\.yaml:[0-9]+:[0-9]+: |paywitness:[a-z]+:[0-9]+:[0-9]+: ")

pytestmark = pytest.mark.slow


def loads_or_tells(content: bytes) -> None:
    problems: tuple[str, ...] = ("f.yaml:1:1: it loaded",)
    try:
        load_content(content, "f.yaml")
    except PolicyError as error:
        problems = error.problems
    assert problems
    for problem in problems:
        assert PLACE.match(problem), problem
        assert "\n" not in problem


@given(st.binary(max_size=300))
def test_any_bytes_load_or_are_told(content):
    loads_or_tells(content)


@given(st.text(max_size=300))
def test_any_text_loads_or_is_told(text):
    loads_or_tells(text.encode("utf-8", "surrogatepass"))


@given(YAMLISH)
@settings(max_examples=400, deadline=None)
def test_any_yamlish_text_loads_or_is_told(text):
    loads_or_tells(text.encode())


def written(tree: object) -> str:
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{written(key)}: {written(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(written(item) for item in tree) + "]"
    return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}" for c in str(tree)) + '"'


@given(st.dictionaries(st.sampled_from(KEYS), TREES, max_size=8))
@settings(max_examples=200, deadline=None)
def test_any_tree_of_known_keys_loads_or_is_told(tree):
    loads_or_tells(written(tree).encode())


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_good_file_with_a_piece_replaced_loads_or_is_told(data):
    start = data.draw(st.integers(0, len(MINIMAL)))
    end = data.draw(st.integers(start, min(len(MINIMAL), start + 30)))
    loads_or_tells((MINIMAL[:start] + data.draw(YAMLISH | PIECES) + MINIMAL[end:]).encode())
