"""Whatever is written reads back as the same value, however it is filled."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paywitness.core.call import Priority
from paywitness.core.credential_owners import AccountSource
from paywitness.core.identity import canonical
from paywitness.core.money import Money
from paywitness.core.operation import (
    Announcement,
    AnnouncementKind,
    AttemptSummary,
    Finding,
    Guard,
    GuardKind,
    HistoryEntry,
    Lease,
    Operation,
    OtherPayment,
    Outcome,
    PayoutStage,
    RepeatPaymentRule,
    State,
)
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Advice, Classification, Effect, ResultClass
from paywitness.journal import encoding
from paywitness.journal.encoding import (
    COLUMNS,
    FIXED_COLUMNS,
    MUTABLE_COLUMNS,
    READ_COLUMNS,
    entry_from_text,
    entry_to_text,
    fixed_values,
    mutable_values,
    operation_from_row,
)
from paywitness.journal.redis import rows
from paywitness.journal.sqlite.schema import migrate
from paywitness.journal.transitions import IDENTITY_FIELDS
from tests.journal.samples import prepared

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


OPERATIONS = filled(Operation, doubt=ATTEMPTS, answered_attempts=ATTEMPTS, guard=st.none() | filled(Guard))
# What was only watched is not kept, nor whether a refusal might have been made elsewhere.
CLASSIFICATIONS = filled(Classification, shadow_match=st.none(), falls_back=st.just(False))
ATTEMPT_SUMMARIES = filled(AttemptSummary, classification=CLASSIFICATIONS)
FINDINGS = filled(Finding, classification=st.none() | CLASSIFICATIONS)
ENTRIES = filled(
    HistoryEntry,
    doubt=ATTEMPTS,
    attempt=st.none() | ATTEMPT_SUMMARIES,
    finding=st.none() | FINDINGS,
    announcement=st.none() | filled(Announcement),
)


def row_of(operation: Operation) -> tuple[object, ...]:
    return (*fixed_values(operation), *mutable_values(operation))


def read_back(operation: Operation) -> Operation:
    row = dict(zip(COLUMNS, row_of(operation), strict=True))
    return operation_from_row(tuple(row[column] for column in READ_COLUMNS))


@given(OPERATIONS)
def test_an_operation_reads_back_as_it_was(operation: Operation) -> None:
    assert read_back(operation) == operation


@given(OPERATIONS)
def test_an_operation_reads_back_through_the_table(operation: Operation) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    names = ", ".join(COLUMNS)
    places = ", ".join("?" * len(COLUMNS))
    connection.execute(f"INSERT INTO operations ({names}) VALUES ({places})", row_of(operation))
    read = ", ".join(READ_COLUMNS)
    assert operation_from_row(connection.execute(f"SELECT {read} FROM operations").fetchone()) == operation
    connection.close()


@given(ENTRIES)
def test_an_entry_reads_back_as_it_was(entry: HistoryEntry) -> None:
    assert entry_from_text(entry.at, entry.version, entry_to_text(entry)) == entry


def test_what_is_read_back_is_of_the_same_types() -> None:
    """An enum that came back as a bare string would be equal, and would fail at its first attribute."""
    operation = prepared(guard=Guard(GuardKind.TARGET, "value"), result_class=ResultClass.PENDING, effect=Effect.DONE)
    back = read_back(operation)
    for name in (field.name for field in fields(Operation)):
        assert type(getattr(back, name)) is type(getattr(operation, name)), name
    assert back.guard is not None
    assert (type(back.guard.kind), type(back.guard.after_success)) == (GuardKind, RepeatPaymentRule)


def test_what_the_first_version_wrote_is_read_with_what_came_later_empty() -> None:
    operation = prepared(guard=Guard(GuardKind.INTENT, "value", "order-7"), state=State.UNKNOWN, doubt=frozenset({1}))
    row = dict(zip(COLUMNS, row_of(operation), strict=True))
    identity, standing = json.loads(str(row["identity"])), json.loads(str(row["standing"]))
    assert set(standing) == {"revision", "doubt"}
    identity["guard"] = identity["guard"][:3]
    assert not {"unstamped", "distinct", "fallback_of"} & set(identity)
    row["identity"] = json.dumps(identity)
    assert operation_from_row(tuple(row[column] for column in READ_COLUMNS)) == operation
    text = '{"source":"caller","events":["send_recorded"],"state":"sending"}'
    assert entry_from_text(7.0, 1, text) == HistoryEntry(
        7.0, 1, "caller", ("send_recorded",), State.SENDING, frozenset()
    )


@pytest.mark.parametrize(
    "other",
    [
        OtherPayment(),
        OtherPayment("op_1", "acme", "ch_1", Money(4200, "EUR")),
        OtherPayment("", "acme", None, Money(-1, "JPY")),
    ],
)
def test_what_an_incident_is_with_is_kept_with_the_operation_and_with_the_change(other: OtherPayment) -> None:
    disputed = prepared(incident="another_amount", other_payment=other)
    assert read_back(disputed) == disputed
    for payout in (None, PayoutStage.COMMITTED):
        kinds = (AnnouncementKind.INCIDENT_OPENED,)
        told = Announcement(kinds, Outcome.SUCCEEDED, None, None, "x", None, payout, other_payment=other)
        entry = HistoryEntry(1.0, 1, "webhook", (), State.SUCCEEDED, frozenset(), announcement=told)
        assert entry_from_text(1.0, 1, entry_to_text(entry)) == entry


def test_incidents_and_attempts_of_earlier_releases_are_read_without_what_they_lack() -> None:
    earlier = {
        "source": "caller",
        "events": ["answer_lost"],
        "state": "unknown",
        "attempt": {
            "number": 1,
            "phase": "complete",
            "bytes_written": 9,
            "fault": None,
            "status_code": 500,
            "duration_s": 1,
            "reading": "unknown_outcome",
            "effect": "possible",
            "rule": "does_not_fit_its_request",
        },
        "told": [["incident_opened"], "unknown", None, None, "another_amount"],
    }
    entry = entry_from_text(1.0, 1, json.dumps(earlier))
    assert entry.attempt is not None
    assert entry.announcement is not None
    assert (entry.attempt.request_id, entry.attempt.classification.shown_money) == (None, None)
    assert entry.announcement.other_payment is None


def test_what_an_operation_is_and_how_it_stands_are_written_apart() -> None:
    """A change writes only how it stands: a field on the wrong side would silently not be kept."""
    one = prepared(guard=Guard(GuardKind.INTENT, "value"))
    other = prepared(
        "another",
        **{
            **{name: f"another {name}" for name in ("provider", "operation", "account", "client_key", "key_source")},
            **{name: f"another {name}" for name in ("fingerprint", "request_hash", "credential", "revision")},
            **{name: f"another {name}" for name in ("upstream", "stamp", "because", "incident", "keyed_as")},
            **{name: f"another {name}" for name in ("takeover", "distinct", "fallback_of", "fallback_to", "payment")},
            **{name: f"another {name}" for name in ("acts_on", "fallback_from", "fallback_reason")},
            **dict.fromkeys(("created_at", "updated_at", "first_sent_at", "ended_at", "due_at"), 7.0),
            **dict.fromkeys(("no_bytes_after_at", "first_miss_at", "action_since_at"), 7.0),
            "check_asked_by": "another",
            **dict.fromkeys(("key_names_purchase", "attempt_under_way", "key_released", "cancel_sent"), True),
            **dict.fromkeys(("cancel_wanted", "undelivered", "unstamped", "takes_remainder", "paid_elsewhere"), True),
            **dict.fromkeys(
                ("beside_unknown", "in_parts", "delivery_unknown", "action_expired", "absence_shown"), True
            ),
            **dict.fromkeys(("generation", "version", "attempts", "checks_done", "misses"), 7),
            **{name: frozenset({7}) for name in ("doubt", "answered_attempts")},
        },
        kind=OperationKind.REFUND,
        provider_key="another",
        ignore=("another",),
        caps=("another",),
        reference="another",
        object_intent=Guard(GuardKind.INTENT, "another"),
        state=State.UNKNOWN,
        money=Money(7, "JPY"),
        guard=None,
        result_class=ResultClass.PENDING,
        effect=Effect.DONE,
        advice=Advice.CONTACT_ISSUER,
        priority=Priority.LOW,
        account_source=AccountSource.SELECTOR,
        named_account="another",
        other_payment=OtherPayment("another", "another", "another", Money(7, "JPY")),
        lease=Lease("another", 7.0),
    )
    for field in fields(Operation):
        changed = replace(one, **{field.name: getattr(other, field.name)})
        assert changed != one, f"give {field.name} another value here"
        is_fixed = fixed_values(changed) != fixed_values(one)
        is_moving = mutable_values(changed) != mutable_values(one)
        if field.name == "guard":
            assert is_fixed  # and whether it is kept is written with each change
            continue
        assert (is_fixed, is_moving) == (field.name in IDENTITY_FIELDS, field.name not in IDENTITY_FIELDS), field.name


@pytest.mark.parametrize(
    ("operation", "found_by"),
    [
        (prepared(id="op_1"), (None, None, None)),
        (prepared(id="op_1", stamp=""), (None, None, None)),
        (prepared(id="op_1", stamp="op_0"), (None, "op_0", None)),
        (prepared(guard=Guard(GuardKind.INTENT, "value", "order-7")), ("order-7", None, "value")),
        (prepared(guard=Guard(GuardKind.FINGERPRINT, "value")), (None, None, "value")),
        (prepared(guard=Guard(GuardKind.TARGET, "value", "ch_1"), state=State.FAILED), ("ch_1", None, None)),
    ],
)
def test_what_is_only_searched_for(operation: Operation, found_by: tuple[str | None, ...]) -> None:
    row = dict(zip(COLUMNS, row_of(operation), strict=True))
    assert (row["subject"], row["stamp"], row["guard"]) == found_by


def test_rows_have_a_value_for_each_column() -> None:
    assert len(fixed_values(prepared())) == len(FIXED_COLUMNS)
    assert len(mutable_values(prepared())) == len(MUTABLE_COLUMNS)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(State),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(tree=TREES)
def test_texts_are_those_of_json_without_a_space(tree: Any) -> None:
    """Rows are compared by their text, and identities are hashes of it: not a byte of it may change."""
    expected = json.dumps(tree, separators=(",", ":"))
    assert (encoding._encode(tree), rows._encode(tree)) == (expected, expected)
    assert canonical(tree) == json.dumps(tree, separators=(",", ":"), sort_keys=True)


def test_halves_of_characters_and_endless_numbers_are_written() -> None:
    assert encoding._encode(["\ud800", float("inf"), "é"]) == '["\\ud800",Infinity,"\\u00e9"]'
