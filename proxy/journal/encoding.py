"""How an operation and its history are written down: Operation <-> columns and a document, HistoryEntry <-> JSON.

What is searched for has a column of its own; the rest of an operation is JSON: its identity, written once, and its
standing, written with each change. Whatever is written here must read back as the same value:
`tests/journal/test_encoding.py` holds it to that.
"""

from __future__ import annotations

import json
from typing import Any

from proxy.core.contract import Kind
from proxy.core.money import Money
from proxy.core.operation import AttemptSummary, Guard, GuardKind, HistoryEntry, Lease, Operation, State
from proxy.core.reading import Classification, Effect, Reading

# The order of a row's values, as `row_of` gives them and `operation_of` takes them. The first group says what the
# operation is and is written once; the second says how it stands and is written with each change.
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
)
COLUMNS = FIXED_COLUMNS + MOVING_COLUMNS

Row = tuple[Any, ...]

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


def fixed_row_of(operation: Operation) -> Row:
    """The values of FIXED_COLUMNS."""
    money = operation.money
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
    )


def _identity_of(operation: Operation) -> str:
    guard = operation.guard
    return _encode(
        {
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
            "guard": None if guard is None else (guard.kind, guard.value, guard.shown),
        },
    )


def _standing_of(operation: Operation) -> str:
    """Without what is empty: most of it is, in most operations, and this is written with each change."""
    value: dict[str, Any] = {"revision": operation.revision}
    if operation.doubt:
        value["doubt"] = sorted(operation.doubt)
    if operation.seen:
        value["seen"] = sorted(operation.seen)
    if operation.attempts:
        value["attempts"] = operation.attempts
    if operation.attempt_under_way:
        value["attempt_under_way"] = True
    if operation.reading is not None:
        value["reading"] = operation.reading
    if operation.effect is not None:
        value["effect"] = operation.effect
    if operation.released:
        value["released"] = True
    if operation.because:
        value["because"] = operation.because
    if operation.cancel_sent:
        value["cancel_sent"] = True
    return _encode(value)


def operation_of(row: Row) -> Operation:
    """The operation that a row of COLUMNS holds."""
    fixed = dict(zip(FIXED_COLUMNS, row[: len(FIXED_COLUMNS)], strict=True))
    moving = dict(zip(MOVING_COLUMNS, row[len(FIXED_COLUMNS) :], strict=True))
    identity = _decode(fixed.pop("identity"))
    standing = _decode(moving.pop("standing"))
    guard = identity["guard"]
    reading = standing.get("reading")
    effect = standing.get("effect")
    currency, minor_units = fixed.pop("currency"), fixed.pop("minor_units")
    lease_token, lease_until_at = moving.pop("lease_token"), moving.pop("lease_until_at")
    return Operation(
        **fixed,
        kind=Kind(identity["kind"]),
        account=identity["account"],
        key_source=identity["key_source"],
        names_purchase=identity["names_purchase"],
        fingerprint=identity["fingerprint"],
        ignore=tuple(identity["ignore"]),
        request_hash=identity["request_hash"],
        credential=identity["credential"],
        upstream=identity["upstream"],
        stamp=identity["stamp"],
        guard=None if guard is None else Guard(GuardKind(guard[0]), guard[1], guard[2]),
        money=None if minor_units is None else Money(minor_units, currency),
        state=State(moving.pop("state")),
        **moving,
        revision=standing["revision"],
        doubt=frozenset(standing.get("doubt", ())),
        seen=frozenset(standing.get("seen", ())),
        attempts=standing.get("attempts", 0),
        attempt_under_way=standing.get("attempt_under_way", False),
        reading=None if reading is None else Reading(reading),
        effect=None if effect is None else Effect(effect),
        released=standing.get("released", False),
        because=standing.get("because", ""),
        cancel_sent=standing.get("cancel_sent", False),
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
    return _encode(value)


def entry_of(at: float, version: int, text: str) -> HistoryEntry:
    value = _decode(text)
    attempt = value.get("attempt")
    return HistoryEntry(
        at=at,
        version=version,
        source=value["source"],
        events=tuple(value["events"]),
        state=State(value["state"]),
        doubt=frozenset(value.get("doubt", ())),
        attempt=None if attempt is None else _attempt_of(attempt),
        action=value.get("action", ""),
        because=value.get("because", ""),
        delay_s=value.get("delay_s"),
        note=value.get("note", ""),
    )


def _attempt_value_of(attempt: AttemptSummary) -> dict[str, Any]:
    classification = attempt.classification
    return {
        "number": attempt.number,
        "phase": attempt.phase,
        "bytes_written": attempt.bytes_written,
        "fault": attempt.fault,
        "status_code": attempt.status_code,
        "detail": attempt.detail,
        "duration_s": attempt.duration_s,
        "reset_by_us": attempt.reset_by_us,
        "reading": classification.reading,
        "effect": classification.effect,
        "rule": classification.rule,
        "lost": classification.lost,
        "reference": classification.reference,
    }


def _attempt_of(value: dict[str, Any]) -> AttemptSummary:
    return AttemptSummary(
        number=value["number"],
        phase=value["phase"],
        bytes_written=value["bytes_written"],
        fault=value["fault"],
        status_code=value["status_code"],
        detail=value["detail"],
        duration_s=value["duration_s"],
        reset_by_us=value["reset_by_us"],
        classification=Classification(
            reading=Reading(value["reading"]),
            effect=Effect(value["effect"]),
            rule=value["rule"],
            lost=value["lost"],
            reference=value["reference"],
        ),
    )
