"""Frozen values: what they can do, and that the type checker does not let anybody change one."""

from __future__ import annotations

from dataclasses import field, replace

import pytest

from paywitness.core.record import record


@record
class Small:
    number: int
    words: tuple[str, ...] = ()
    notes: dict[str, str] = field(default_factory=dict, compare=False)


@record(slots=False)
class Roomy:
    number: int


def test_equal_values_are_one_in_a_set() -> None:
    assert {Small(1, ("a",)), Small(1, ("a",)), Small(2)} == {Small(1, ("a",)), Small(2)}
    assert len({Roomy(1), Roomy(1)}) == 1


def test_another_value_is_made_and_the_first_stays() -> None:
    first = Small(1, ("a",))
    assert replace(first, number=2) == Small(2, ("a",))
    assert first == Small(1, ("a",))


def test_a_value_has_no_room_for_anything_else_unless_it_says_so() -> None:
    with pytest.raises(AttributeError):
        Small(1).__setattr__("another", 1)
    assert not hasattr(Small(1), "__dict__")
    assert vars(Roomy(1)) == {"number": 1}


def test_the_type_checker_refuses_a_change() -> None:
    """If it did not, these two comments would be unused, and `make check` would fail."""
    Small(1).number = 2  # type: ignore[misc]
    Roomy(1).number = 2  # type: ignore[misc]
