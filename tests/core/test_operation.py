"""An operation is a value: every change makes another one."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from paywitness.core.operation import Lease, Operation, State
from tests.core.samples import operation


def test_changed_is_replace() -> None:
    before = operation()
    values: dict[str, Any] = {"state": State.SENDING, "version": 3, "lease": Lease("token", 1.0), "attempts": 2}
    assert before.changed(**values) == replace(before, **values)
    assert before.changed() == before
    assert before.changed() is not before


def test_changed_leaves_the_operation_that_it_was_made_from_as_it_is() -> None:
    before = operation(version=0)
    after = before.changed(version=1)
    after.changed(version=2)
    assert (before.version, after.version) == (0, 1)


def test_what_was_changed_can_be_changed_no_other_way() -> None:
    after = operation().changed(version=1)
    with pytest.raises(FrozenInstanceError):
        after.version = 2  # type: ignore[misc]


def test_changed_knows_every_field() -> None:
    for field in fields(Operation):
        value = object()
        assert getattr(operation().changed(**{field.name: value}), field.name) is value


def test_changed_takes_no_field_that_is_not_there() -> None:
    with pytest.raises(TypeError, match="colour"):
        operation().changed(colour="green")
