"""Fuzzing the journal's decoding: rows of a later version, and broken ones; none is a success that does not say so."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from paywitness.core.errors import UnreadableSecret
from paywitness.core.operation import Operation, State
from paywitness.engine.durability.spool import _decode as spooled_in
from paywitness.engine.webhooks.verification import StoredWebhook, open_webhook, seal_webhook
from paywitness.journal.encoding import (
    COLUMNS,
    READ_COLUMNS,
    entry_from_text,
    fixed_values,
    mutable_values,
    operation_from_row,
)
from paywitness.secrets import RingKey, Vault
from tests.fuzz.mutation import kept, mutated
from tests.journal.samples import prepared

# What a row that nobody wrote may raise. The journal's callers take any of them as a journal that cannot be read.
BROKEN = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_TEXTS = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"null",
    b"1e400",
    b"succeeded",
    b"done",
    b"a_later_word",
    b"\\ud800",
]
WORDS = st.sampled_from(["succeeded", "failed", "unknown", "a_later_word", "", "SUCCEEDED", "none", "possible"])
LATER = st.dictionaries(st.sampled_from(["later", "newer_fact", "x"]), st.none() | st.integers() | st.text(max_size=4))


def _row(operation: Operation) -> dict[str, Any]:
    return dict(zip(COLUMNS, (*fixed_values(operation), *mutable_values(operation)), strict=True))


def row_of_a_later_version_is_read_with_care(state: str, reading: str, effect: str, later: dict[str, Any]) -> None:
    row = _row(prepared())
    standing = json.loads(row["standing"]) | {"reading": reading, "effect": effect} | later
    row |= {"state": state, "standing": json.dumps(standing)}
    row["identity"] = json.dumps(json.loads(row["identity"]) | later)
    operation = operation_from_row(tuple(row[column] for column in READ_COLUMNS))
    assert operation.state in {state, State.REQUIRES_REVIEW}
    assert operation.result_class in {reading, "unknown_outcome"}
    assert operation.effect in {effect, "possible"}


_STANDING = str(_row(prepared())["standing"]).encode()
_ENTRY = b'{"source": "caller", "events": ["a"], "state": "unknown", "doubt": [1], "note": "n", "told": ["a", "b"]}'
STANDINGS = mutated([_STANDING, *kept("standing")], _TEXTS)
ENTRIES = mutated([_ENTRY, *kept("entry")], _TEXTS)


def broken_row_is_no_success(standing: bytes) -> None:
    row = _row(prepared()) | {"standing": standing.decode("utf-8", "replace")}
    try:
        operation = operation_from_row(tuple(row[column] for column in READ_COLUMNS))
    except BROKEN:
        return
    assert operation.state is prepared().state


def broken_entry_is_no_success(text: bytes) -> None:
    try:
        entry = entry_from_text(1.0, 1, text.decode("utf-8", "replace"))
    except BROKEN:
        return
    assert entry.state is not State.SUCCEEDED or b"succeeded" in text or b"\\u" in text


_VAULT = Vault(b"s" * 32, (RingKey("k1", b"0" * 32),), lambda: b"n" * 12)
_SEALED = seal_webhook(_VAULT, StoredWebhook(((b"A", b"b"),), {"id": "evt_1"}, b"{}"), "bound", is_whole=False)
SEALED = mutated([_SEALED], [b"k1", b"k2", b"\x00", b"\xff"])
PLAIN = mutated([b"1\n{}\n", b'1\n{"operation_id": "op", "lengths": [null, 3]}\nabc', *kept("spool")], [*_TEXTS, b"\n"])


def sealed_is_whole_or_unreadable(sealed: bytes) -> None:
    try:
        delivery = open_webhook(_VAULT, sealed, "bound")
    except UnreadableSecret:
        return
    assert sealed == _SEALED
    assert delivery.event == {"id": "evt_1"}


def spooled_is_read_or_set_aside(plain: bytes) -> None:
    try:
        spooled_in(plain)
    except UnreadableSecret:
        return
