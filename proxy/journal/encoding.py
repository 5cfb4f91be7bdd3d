"""How an operation and its history are written down: Operation <-> columns and a document, HistoryEntry <-> JSON.

What is searched for has a column of its own; the rest of an operation is JSON: its identity, written once, and its
standing, written with each change. Whatever is written here must read back as the same value, and what an earlier
version wrote must still be read: `tests/journal/test_encoding.py` holds it to that.

During a rollout the next version writes beside this one. A field that is not known here is passed over, and a word that
is not known is read as the most careful one that is: it keeps its money guarded, and nothing is sent for it.
"""

from __future__ import annotations

import json
from enum import StrEnum
from operator import itemgetter
from typing import Any, TypeVar

from proxy.core.compact_json import compact_encoder
from proxy.core.contract import Kind
from proxy.core.guard import guard_kept
from proxy.core.money import Money
from proxy.core.operation import (
    Again,
    AttemptSummary,
    Finding,
    Found,
    Guard,
    GuardKind,
    HistoryEntry,
    Lease,
    Operation,
    Outcome,
    State,
    Told,
    Word,
)
from proxy.core.reading import Classification, Effect, Reading

# The order of a row's values. The first group says what the operation is and is written once; the second says how it
# stands and is written with each change. The last ones of each are only searched for, and not read back.
FIXED_COLUMNS = (
    "id",
    "key",
    "generation",
    "provider",
    "operation",
    "client_key",
    "provider_key",
    "currency",
    "minor_units",
    "created_at",
    "identity",
    "subject",
    "stamp",
)
MOVING_COLUMNS = (
    "state",
    "version",
    "updated_at",
    "first_sent_at",
    "ended_at",
    "due_at",
    "reference",
    "incident",
    "lease_token",
    "lease_until_at",
    "standing",
    "guard",
)
COLUMNS = FIXED_COLUMNS + MOVING_COLUMNS
READ_COLUMNS = tuple(column for column in COLUMNS if column not in {"subject", "stamp", "guard"})
_FIXED_READ = FIXED_COLUMNS.index("identity") + 1

Row = tuple[Any, ...]
_Words = TypeVar("_Words", bound=StrEnum)


def word_in(words: type[_Words], text: str, careful: _Words) -> _Words:
    """The word, or the careful one in the place of a later version's."""
    try:
        return words(text)
    except ValueError:
        return careful


_encode = compact_encoder()
_decode = json.JSONDecoder().decode


def fixed_row_of(operation: Operation) -> Row:
    """The values of FIXED_COLUMNS."""
    money, guard = operation.money, operation.guard
    return (
        operation.id,
        operation.key,
        operation.generation,
        operation.provider,
        operation.operation,
        operation.client_key,
        operation.provider_key,
        None if money is None else money.currency,
        None if money is None else money.minor_units,
        operation.created_at,
        _identity_of(operation),
        (guard.shown or None) if guard is not None else None,
        (operation.stamp or None) if operation.stamp != operation.id else None,
    )


def moving_row_of(operation: Operation) -> Row:
    """The values of MOVING_COLUMNS."""
    lease = operation.lease
    return (
        operation.state.value,  # a plain string: the driver takes a long way round for a subclass
        operation.version,
        operation.updated_at,
        operation.first_sent_at,
        operation.ended_at,
        operation.due_at,
        operation.reference,
        operation.incident,
        None if lease is None else lease.token,
        None if lease is None else lease.until_at,
        _standing_of(operation),
        guard_kept(operation),
    )


def _identity_of(operation: Operation) -> str:
    value: dict[str, Any] = {
        "kind": operation.kind,
        "account": operation.account,
        "key_source": operation.key_source,
        "names_purchase": operation.names_purchase,
        "fingerprint": operation.fingerprint,
        "ignore": operation.ignore,
        "request_hash": operation.request_hash,
        "credential": operation.credential,
        "upstream": operation.upstream,
        "stamp": operation.stamp,
        "guard": _guard_value_of(operation.guard),
    }
    if operation.unstamped:
        value["unstamped"] = True
    if operation.distinct:
        value["distinct"] = operation.distinct
    if operation.fallback_of is not None:
        value["fallback_of"] = operation.fallback_of
    return _encode(value)


def _guard_value_of(guard: Guard | None) -> tuple[str, ...] | None:
    if guard is None:
        return None
    return (guard.kind, guard.value, guard.shown, guard.after_success, guard.during_action)


def _guard_of(value: list[str] | None) -> Guard | None:
    if value is None:
        return None
    kind, text, shown, *later = value
    again = (word_in(Again, each, Again.BLOCK) for each in later[:2])
    return Guard(word_in(GuardKind, kind, GuardKind.INTENT), text, shown, *again)


# What of its standing is written as it is, and only where it is not empty: most of it is, in most operations.
# The stored key, the field of an operation, and what is empty. Stored keys never change; fields may get better names.
_PLAIN_STANDING: tuple[tuple[str, str, Any], ...] = (
    ("attempts", "attempts", 0),
    ("attempt_under_way", "attempt_under_way", False),
    ("released", "released", False),
    ("because", "because", ""),
    ("cancel_sent", "cancel_sent", False),
    ("cancel_wanted", "cancel_wanted", False),
    ("quiet_at", "quiet_at", None),
    ("looks", "looks", 0),
    ("misses", "misses", 0),
    ("first_miss_at", "first_miss_at", None),
    ("unheard", "unheard", False),
    ("taken", "taken", ""),
    ("fallback_to", "fallback_to", None),
)


_OFTEN, _SELDOM = _PLAIN_STANDING[:4], _PLAIN_STANDING[4:]  # all of the second part is empty in a clean payment
_SELDOM_EMPTY = tuple(empty for _, _, empty in _SELDOM)
_seldom_of = itemgetter(*(field for _, field, _ in _SELDOM))


def _standing_of(operation: Operation) -> str:
    value: dict[str, Any] = {"revision": operation.revision}
    if operation.doubt:
        value["doubt"] = sorted(operation.doubt)
    if operation.seen:
        value["seen"] = sorted(operation.seen)
    if operation.reading is not None:
        value["reading"] = operation.reading
    if operation.effect is not None:
        value["effect"] = operation.effect
    known = operation.__dict__
    seldom = _SELDOM if _seldom_of(known) != _SELDOM_EMPTY else ()
    for key, field, empty in (*_OFTEN, *seldom):
        if known[field] != empty:
            value[key] = known[field]
    return _encode(value)


def operation_of(row: Row) -> Operation:
    """The operation that a row of READ_COLUMNS holds."""
    fixed = dict(zip(READ_COLUMNS[:_FIXED_READ], row[:_FIXED_READ], strict=True))
    moving = dict(zip(READ_COLUMNS[_FIXED_READ:], row[_FIXED_READ:], strict=True))
    identity = _decode(fixed.pop("identity"))
    standing = _decode(moving.pop("standing"))
    reading = standing.get("reading")
    effect = standing.get("effect")
    currency, minor_units = fixed.pop("currency"), fixed.pop("minor_units")
    lease_token, lease_until_at = moving.pop("lease_token"), moving.pop("lease_until_at")
    return Operation(
        **fixed,
        kind=word_in(Kind, identity["kind"], Kind.SALE),
        account=identity["account"],
        key_source=identity["key_source"],
        names_purchase=identity["names_purchase"],
        fingerprint=identity["fingerprint"],
        ignore=tuple(identity["ignore"]),
        request_hash=identity.get("request_hash", ""),
        credential=identity["credential"],
        upstream=identity["upstream"],
        stamp=identity.get("stamp", ""),
        unstamped=identity.get("unstamped", False),
        guard=_guard_of(identity.get("guard")),
        distinct=identity.get("distinct", ""),
        fallback_of=identity.get("fallback_of"),
        money=None if minor_units is None else Money(minor_units, currency),
        state=word_in(State, moving.pop("state"), State.REQUIRES_REVIEW),
        **moving,
        revision=standing["revision"],
        doubt=frozenset(standing.get("doubt", ())),
        seen=frozenset(standing.get("seen", ())),
        reading=None if reading is None else word_in(Reading, reading, Reading.UNKNOWN_OUTCOME),
        effect=None if effect is None else word_in(Effect, effect, Effect.POSSIBLE),
        **{field: standing.get(key, empty) for key, field, empty in _PLAIN_STANDING},
        lease=None if lease_token is None else Lease(lease_token, lease_until_at),
    )


def entry_text_of(entry: HistoryEntry) -> str:
    """The entry as JSON, without what is empty. Its time and version stand beside it in their own columns."""
    value: dict[str, Any] = {
        "source": entry.source,
        "events": entry.events,
        "state": entry.state,
    }
    if entry.doubt:
        value["doubt"] = sorted(entry.doubt)
    if entry.attempt is not None:
        value["attempt"] = _attempt_value_of(entry.attempt)
    if entry.action:
        value["action"] = entry.action
    if entry.because:
        value["because"] = entry.because
    if entry.delay_s is not None:
        value["delay_s"] = entry.delay_s
    if entry.note:
        value["note"] = entry.note
    if entry.finding is not None:
        value["finding"] = _finding_value_of(entry.finding)
    if entry.told is not None:
        value["told"] = _told_value_of(entry.told)
    if entry.actor:
        value["actor"] = entry.actor
    return _encode(value)


def entry_of(at: float, version: int, text: str) -> HistoryEntry:
    value = _decode(text)
    attempt, finding, told = value.get("attempt"), value.get("finding"), value.get("told")
    return HistoryEntry(
        at=at,
        version=version,
        source=value["source"],
        events=tuple(value["events"]),
        state=word_in(State, value["state"], State.REQUIRES_REVIEW),
        doubt=frozenset(value.get("doubt", ())),
        attempt=None if attempt is None else _attempt_of(attempt),
        action=value.get("action", ""),
        because=value.get("because", ""),
        delay_s=value.get("delay_s"),
        note=value.get("note", ""),
        finding=None if finding is None else _finding_of(finding),
        told=None if told is None else _told_of(told),
        actor=value.get("actor", ""),
    )


def _attempt_value_of(attempt: AttemptSummary) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "phase": attempt.phase,
        "bytes_written": attempt.bytes_written,
        "fault": attempt.fault,
        "status_code": attempt.status_code,
        "detail": attempt.detail,
        "duration_s": attempt.duration_s,
        "reset_by_us": attempt.reset_by_us,
        **_classification_value_of(attempt.classification),
    }


def _attempt_of(value: dict[str, Any]) -> AttemptSummary:
    return AttemptSummary(
        number=value["number"],
        phase=value["phase"],
        bytes_written=value["bytes_written"],
        fault=value["fault"],
        status_code=value["status_code"],
        detail=value.get("detail", ""),
        duration_s=value["duration_s"],
        reset_by_us=value.get("reset_by_us", False),
        classification=_classification_of(value),
    )


def _classification_value_of(classification: Classification) -> dict[str, Any]:
    value = {
        "reading": classification.reading,
        "effect": classification.effect,
        "rule": classification.rule,
        "lost": classification.lost,
        "reference": classification.reference,
    }
    return value if classification.stored else {**value, "stored": False}


def _classification_of(value: dict[str, Any]) -> Classification:
    return Classification(
        reading=word_in(Reading, value["reading"], Reading.UNKNOWN_OUTCOME),
        effect=word_in(Effect, value["effect"], Effect.POSSIBLE),
        rule=value["rule"],
        lost=value.get("lost", False),
        reference=value.get("reference"),
        stored=value.get("stored", True),
    )


def _finding_value_of(finding: Finding) -> dict[str, Any]:
    shown = finding.classification
    return {
        "source": finding.source,
        "found": finding.found,
        "status_code": finding.status_code,
        "classification": None if shown is None else _classification_value_of(shown),
        "detail": finding.detail,
    }


def _finding_of(value: dict[str, Any]) -> Finding:
    shown = value["classification"]
    return Finding(
        source=value["source"],
        found=word_in(Found, value["found"], Found.FAILED),
        status_code=value["status_code"],
        classification=None if shown is None else _classification_of(shown),
        detail=value["detail"],
    )


def _told_value_of(told: Told) -> list[Any]:
    return [told.words, told.outcome, told.reading, told.reference, told.incident]


def _told_of(value: list[Any]) -> Told:
    words, outcome, reading, reference, incident, *_ = value
    known = {word.value for word in Word}
    return Told(
        tuple(Word(word) for word in words if word in known),
        word_in(Outcome, outcome, Outcome.UNKNOWN),
        None if reading is None else word_in(Reading, reading, Reading.UNKNOWN_OUTCOME),
        reference,
        incident,
    )
