"""JSON without a space in it: the same bytes as the library's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paywitness.core.compact_json import compact_encoder
from paywitness.core.operation import State

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(State),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@pytest.mark.parametrize("sort_keys", [False, True])
@given(tree=TREES)
def test_it_writes_what_the_library_writes(sort_keys: bool, tree: Any) -> None:
    expected = json.dumps(tree, separators=(",", ":"), sort_keys=sort_keys)
    assert compact_encoder(sort_keys=sort_keys)(tree) == expected


def test_halves_of_characters_and_endless_numbers_pass() -> None:
    assert compact_encoder()(["\ud800", float("inf")]) == '["\\ud800",Infinity]'


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        compact_encoder()({"a": object()})


def test_an_interpreter_without_the_librarys_c_part_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("json.encoder.c_make_encoder", None)
    assert compact_encoder(sort_keys=True)({"b": [1, "é"], "a": None}) == '{"a":null,"b":[1,"\\u00e9"]}'
