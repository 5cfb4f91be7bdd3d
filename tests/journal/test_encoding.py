"""Whatever is written reads back as the same value, however it is filled."""

from __future__ import annotations

import sqlite3
from dataclasses import fields, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.contract import Kind
from proxy.core.money import Money
from proxy.core.operation import AttemptSummary, Guard, GuardKind, HistoryEntry, Lease, Operation, State
from proxy.core.reading import Classification, Effect, Reading
from proxy.journal.encoding import (
    COLUMNS,
    FIXED_COLUMNS,
    MOVING_COLUMNS,
    entry_of,
    entry_text_of,
    fixed_row_of,
    moving_row_of,
    operation_of,
)
from proxy.journal.sqlite_schema import bring_up_to_date
from proxy.journal.steps import WHAT_IT_IS
from tests.journal.sample import prepared

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)  # a lone surrogate is no text
TIMES = st.floats(min_value=0, max_value=4e9, allow_nan=False)
WHOLE = st.integers(min_value=-(10**18), max_value=10**18)
ATTEMPTS = st.frozensets(st.integers(min_value=1, max_value=50), max_size=5)

st.register_type_strategy(str, TEXT)
st.register_type_strategy(float, TIMES)
st.register_type_strategy(int, WHOLE)


def filled(made: type[Any], **given: Any) -> st.SearchStrategy[Any]:
    """Every field drawn, those with a default too: a field that is added and not written down is found."""
    return st.builds(made, **{field.name: given.get(field.name, ...) for field in fields(made)})


OPERATIONS = filled(Operation, doubt=ATTEMPTS, seen=ATTEMPTS)
ATTEMPT_SUMMARIES = filled(AttemptSummary, classification=filled(Classification))
ENTRIES = filled(HistoryEntry, doubt=ATTEMPTS, attempt=st.none() | ATTEMPT_SUMMARIES)


def row_of(operation: Operation) -> tuple[object, ...]:
    return (*fixed_row_of(operation), *moving_row_of(operation))


@given(OPERATIONS)
def test_an_operation_reads_back_as_it_was(operation: Operation) -> None:
    assert operation_of(row_of(operation)) == operation


@given(OPERATIONS)
def test_an_operation_reads_back_through_the_table(operation: Operation) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    bring_up_to_date(connection)
    names = ", ".join(COLUMNS)
    places = ", ".join("?" * len(COLUMNS))
    connection.execute(f"INSERT INTO operations ({names}) VALUES ({places})", row_of(operation))
    assert operation_of(connection.execute(f"SELECT {names} FROM operations").fetchone()) == operation
    connection.close()


@given(ENTRIES)
def test_an_entry_reads_back_as_it_was(entry: HistoryEntry) -> None:
    assert entry_of(entry.at, entry.version, entry_text_of(entry)) == entry


def test_what_is_read_back_is_of_the_same_types() -> None:
    """An enum that came back as a bare string would be equal, and would fail at its first attribute."""
    operation = prepared()
    back = operation_of(row_of(operation))
    for name in (field.name for field in fields(Operation)):
        assert type(getattr(back, name)) is type(getattr(operation, name)), name


def test_what_an_operation_is_and_how_it_stands_are_written_apart() -> None:
    """A change writes only how it stands: a field on the wrong side would silently not be kept."""
    one = prepared(guard=Guard(GuardKind.INTENT, "value"))
    other = prepared(
        "another",
        **{
            **{name: f"another {name}" for name in ("provider", "operation", "account", "client_key", "key_source")},
            **{name: f"another {name}" for name in ("fingerprint", "request_hash", "credential", "revision")},
            **{name: f"another {name}" for name in ("upstream", "stamp", "because", "incident", "reference")},
            **dict.fromkeys(("created_at", "updated_at", "first_sent_at", "ended_at", "due_at"), 7.0),
            **dict.fromkeys(("names_purchase", "attempt_under_way", "released", "cancel_sent"), True),
            **dict.fromkeys(("generation", "version", "attempts"), 7),
            **{name: frozenset({7}) for name in ("doubt", "seen")},
        },
        kind=Kind.REFUND,
        provider_key="another",
        ignore=("another",),
        state=State.UNKNOWN,
        money=Money(7, "JPY"),
        guard=None,
        reading=Reading.PENDING,
        effect=Effect.DONE,
        lease=Lease("another", 7.0),
    )
    for field in fields(Operation):
        changed = replace(one, **{field.name: getattr(other, field.name)})
        assert changed != one, f"give {field.name} another value here"
        is_fixed = fixed_row_of(changed) != fixed_row_of(one)
        is_moving = moving_row_of(changed) != moving_row_of(one)
        assert (is_fixed, is_moving) == (field.name in WHAT_IT_IS, field.name not in WHAT_IT_IS), field.name


def test_rows_have_a_value_for_each_column() -> None:
    assert len(fixed_row_of(prepared())) == len(FIXED_COLUMNS)
    assert len(moving_row_of(prepared())) == len(MOVING_COLUMNS)
