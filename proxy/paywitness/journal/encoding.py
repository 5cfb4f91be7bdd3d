"""How operations and their history are stored: Operation <-> columns and JSON, HistoryEntry <-> JSON.

Fields that the journal searches for have columns of their own. The rest of an operation is JSON: its identity, written
once, and its state (`standing`), written with each change. Every value must read back as it was written, and rows of
earlier versions must stay readable: `tests/journal/test_encoding.py` checks both.

During a rollout a newer version writes to the same journal. This version ignores a field that it does not know. It
reads a word that it does not know as the most careful word that it does know, so that the money stays guarded and
nothing is sent.
"""

from __future__ import annotations

import json
from enum import StrEnum
from operator import itemgetter
from typing import Any, TypeVar

from paywitness.core.call import Priority
from paywitness.core.credential_owners import AccountSource
from paywitness.core.guard import indexed_guard
from paywitness.core.money import Money
from paywitness.core.operation import (
    Announcement,
    AnnouncementKind,
    AttemptSummary,
    FallbackLink,
    Finding,
    FindingKind,
    Guard,
    GuardKind,
    HistoryEntry,
    Lease,
    Operation,
    OtherPayment,
    Outcome,
    PayoutStage,
    Posting,
    RepeatPaymentRule,
    State,
)
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Advice, Classification, Effect, ResultClass
from paywitness.journal.fallback_encoding import choice_from_value, choice_to_value

# The order of a row's values. The first group identifies the operation and is written once. The second is its state and
# is written with each change. The last columns of each group serve only searches, and are not read back.
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
MUTABLE_COLUMNS = (
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
    "payment",
    "guard",
)
COLUMNS = FIXED_COLUMNS + MUTABLE_COLUMNS
READ_COLUMNS = tuple(column for column in COLUMNS if column not in {"subject", "stamp", "guard", "payment"})
_FIXED_READ = FIXED_COLUMNS.index("identity") + 1

RowValues = tuple[Any, ...]
_EnumType = TypeVar("_EnumType", bound=StrEnum)


def enum_or_safest(words: type[_EnumType], text: str, safest: _EnumType) -> _EnumType:
    """The word, or `safest` in place of a word that only a newer version knows."""
    try:
        return words(text)
    except ValueError:
        return safest


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode


def fixed_values(operation: Operation) -> RowValues:
    """The values of FIXED_COLUMNS."""
    money, guard, known = operation.money, operation.guard, operation.__dict__
    identity: dict[str, Any] = {
        "kind": operation.kind,
        "account": operation.account,
        "key_source": operation.key_source,
        "names_purchase": operation.key_names_purchase,
        "fingerprint": operation.fingerprint,
        "ignore": operation.ignore,
        "request_hash": operation.request_hash,
        "credential": operation.credential,
        "upstream": operation.upstream,
        "stamp": operation.stamp,
        "guard": _guard_to_value(guard),
    }
    for key, empty in _RARE_IDENTITY_FIELDS:
        if known[key] != empty:
            identity[key] = known[key]
    if operation.object_intent is not None:
        identity["object_intent"] = _guard_to_value(operation.object_intent)
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
        _encode(identity),
        (guard.label or None) if guard is not None else None,
        (operation.stamp or None) if operation.stamp != operation.id else None,
    )


def mutable_values(operation: Operation) -> RowValues:
    """The values of MUTABLE_COLUMNS."""
    lease, known = operation.lease, operation.__dict__
    standing: dict[str, Any] = {"revision": operation.revision}
    if operation.doubt:
        standing["doubt"] = sorted(operation.doubt)
    if operation.answered_attempts:
        standing["seen"] = sorted(operation.answered_attempts)
    if operation.result_class is not None:
        standing["reading"] = operation.result_class
    if operation.effect is not None:
        standing["effect"] = operation.effect
    if operation.advice is not None:
        standing["advice"] = operation.advice
    if operation.other_payment is not None:
        standing["other"] = _other_payment_to_value(operation.other_payment)
    rare = _RARE_FIELDS if _rare_values(known) != _RARE_EMPTY else ()
    for key, field, empty in (*_COMMON_FIELDS, *rare):
        if known[field] != empty:
            standing[key] = known[field]
    return (
        operation.state.value,  # a plain string, because the driver is slow with a subclass of str
        operation.version,
        operation.updated_at,
        operation.first_sent_at,
        operation.ended_at,
        operation.due_at,
        operation.reference,
        operation.incident,
        None if lease is None else lease.token,
        None if lease is None else lease.until_at,
        _encode(standing),
        (operation.payment or None) if operation.payment != operation.id else None,
        indexed_guard(operation),
    )


# Fields of the identity that are written only if they are not empty, with their empty values. Most calls have none.
_RARE_IDENTITY_FIELDS: tuple[tuple[str, Any], ...] = (
    ("unstamped", False),
    ("distinct", ""),
    ("fallback_of", None),
    ("fallback_from", ""),
    ("fallback_reason", ""),
    ("takes_remainder", False),
    ("priority", Priority.HIGH),
    ("caps", ()),
    ("in_parts", False),
    ("beside_unknown", False),
    ("keyed_as", ""),
    ("acts_on", ""),
    ("account_source", AccountSource.CONSTANT),
    ("named_account", ""),
)


def _guard_to_value(guard: Guard | None) -> tuple[str, ...] | None:
    if guard is None:
        return None
    return (guard.kind, guard.value, guard.label, guard.after_success, guard.during_action)


def _guard_from_value(value: list[str] | None) -> Guard | None:
    if value is None:
        return None
    kind, text, classification, *later = value
    again = (enum_or_safest(RepeatPaymentRule, each, RepeatPaymentRule.BLOCK) for each in later[:2])
    return Guard(enum_or_safest(GuardKind, kind, GuardKind.INTENT), text, classification, *again)


# Fields of the state that are written unchanged, and only if they are not empty; in most operations most of them are.
# Each has the stored key, the field's name, and its empty value. Stored keys never change; fields may be renamed.
_PLAIN_STATE_FIELDS: tuple[tuple[str, str, Any], ...] = (
    ("attempts", "attempts", 0),
    ("attempt_under_way", "attempt_under_way", False),
    ("released", "key_released", False),
    ("because", "because", ""),
    ("cancel_sent", "cancel_sent", False),
    ("cancel_wanted", "cancel_wanted", False),
    ("quiet_at", "no_bytes_after_at", None),
    ("looks", "checks_done", 0),
    ("misses", "misses", 0),
    ("first_miss_at", "first_miss_at", None),
    ("absence_shown", "absence_shown", False),
    ("unheard", "undelivered", False),
    ("delivery_unknown", "delivery_unknown", False),
    ("taken", "takeover", ""),
    ("fallback_to", "fallback_to", None),
    ("paid_elsewhere", "paid_elsewhere", False),
    ("action_since_at", "action_since_at", None),
    ("action_expired", "action_expired", False),
    ("check_asked_by", "check_asked_by", ""),
    ("payment", "payment", ""),
)


_COMMON_FIELDS, _RARE_FIELDS = (
    (*_PLAIN_STATE_FIELDS[:4], _PLAIN_STATE_FIELDS[-1]),
    _PLAIN_STATE_FIELDS[4:-1],
)  # in a clean payment all of the second part is empty
_RARE_EMPTY = tuple(empty for _, _, empty in _RARE_FIELDS)
_rare_values = itemgetter(*(field for _, field, _ in _RARE_FIELDS))


def operation_from_row(row: RowValues) -> Operation:
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
        kind=enum_or_safest(OperationKind, identity["kind"], OperationKind.SALE),
        account=identity["account"],
        key_source=identity["key_source"],
        key_names_purchase=identity["names_purchase"],
        fingerprint=identity["fingerprint"],
        ignore=tuple(identity["ignore"]),
        request_hash=identity.get("request_hash", ""),
        credential=identity["credential"],
        upstream=identity["upstream"],
        stamp=identity.get("stamp", ""),
        unstamped=identity.get("unstamped", False),
        guard=_guard_from_value(identity.get("guard")),
        distinct=identity.get("distinct", ""),
        fallback_of=identity.get("fallback_of"),
        fallback_from=identity.get("fallback_from", ""),
        fallback_reason=identity.get("fallback_reason", ""),
        takes_remainder=identity.get("takes_remainder", False),
        priority=enum_or_safest(Priority, identity.get("priority", Priority.HIGH), Priority.HIGH),
        caps=tuple(identity.get("caps", ())),
        in_parts=identity.get("in_parts", False),
        beside_unknown=identity.get("beside_unknown", False),
        keyed_as=identity.get("keyed_as", ""),
        acts_on=identity.get("acts_on", ""),
        object_intent=_guard_from_value(identity.get("object_intent")),
        account_source=enum_or_safest(
            AccountSource, identity.get("account_source", AccountSource.CONSTANT), AccountSource.HEADER
        ),
        named_account=identity.get("named_account", ""),
        money=None if minor_units is None else Money(minor_units, currency),
        state=enum_or_safest(State, moving.pop("state"), State.REQUIRES_REVIEW),
        **moving,
        revision=standing["revision"],
        doubt=frozenset(standing.get("doubt", ())),
        answered_attempts=frozenset(standing.get("seen", ())),
        result_class=None if reading is None else enum_or_safest(ResultClass, reading, ResultClass.UNKNOWN_OUTCOME),
        effect=None if effect is None else enum_or_safest(Effect, effect, Effect.POSSIBLE),
        advice=_advice_from_value(standing),
        other_payment=_other_payment_from_value(standing.get("other")),
        **{field: standing.get(key, empty) for key, field, empty in _PLAIN_STATE_FIELDS},
        lease=None if lease_token is None else Lease(lease_token, lease_until_at),
    )


def entry_to_text(entry: HistoryEntry) -> str:
    """The entry as JSON, without empty fields. Its time and version have columns of their own."""
    value: dict[str, Any] = {
        "source": entry.source,
        "events": entry.events,
        "state": entry.state,
    }
    if entry.doubt:
        value["doubt"] = sorted(entry.doubt)
    if entry.attempt is not None:
        value["attempt"] = _attempt_to_value(entry.attempt)
    if entry.action:
        value["action"] = entry.action
    if entry.because:
        value["because"] = entry.because
    if entry.delay_s is not None:
        value["delay_s"] = entry.delay_s
    if entry.note:
        value["note"] = entry.note
    if entry.finding is not None:
        value["finding"] = _finding_to_value(entry.finding)
    if entry.announcement is not None:
        value["told"] = _announcement_to_value(entry.announcement)
    value |= {"actor": entry.actor} if entry.actor else {}
    value |= {"fallback": choice_to_value(entry.fallback)} if entry.fallback is not None else {}
    return _encode(value)


def entry_from_text(at: float, version: int, text: str) -> HistoryEntry:
    value = _decode(text)
    attempt, finding, told = value.get("attempt"), value.get("finding"), value.get("told")
    return HistoryEntry(
        at=at,
        version=version,
        source=value["source"],
        events=tuple(value["events"]),
        state=enum_or_safest(State, value["state"], State.REQUIRES_REVIEW),
        doubt=frozenset(value.get("doubt", ())),
        attempt=None if attempt is None else _attempt_from_value(attempt),
        action=value.get("action", ""),
        because=value.get("because", ""),
        delay_s=value.get("delay_s"),
        note=value.get("note", ""),
        finding=None if finding is None else _finding_from_value(finding),
        announcement=None if told is None else _announcement_from_value(told),
        actor=value.get("actor", ""),
        fallback=choice_from_value(value.get("fallback")),
    )


def _attempt_to_value(attempt: AttemptSummary) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "phase": attempt.phase,
        "bytes_written": attempt.bytes_written,
        "fault": attempt.fault,
        "status_code": attempt.status_code,
        "detail": attempt.detail,
        "duration_s": attempt.duration_s,
        "reset_by_us": attempt.reset_by_us,
        **({"request_id": attempt.request_id} if attempt.request_id is not None else {}),
        **_classification_to_value(attempt.classification),
    }


def _attempt_from_value(value: dict[str, Any]) -> AttemptSummary:
    return AttemptSummary(
        number=value["number"],
        phase=value["phase"],
        bytes_written=value["bytes_written"],
        fault=value["fault"],
        status_code=value["status_code"],
        detail=value.get("detail", ""),
        duration_s=value["duration_s"],
        reset_by_us=value.get("reset_by_us", False),
        classification=_classification_from_value(value),
        request_id=value.get("request_id"),
    )


def _classification_to_value(classification: Classification) -> dict[str, Any]:
    value = {
        "reading": classification.result_class,
        "effect": classification.effect,
        "rule": classification.rule,
        "lost": classification.lost,
        "reference": classification.reference,
    }
    if classification.advice is not None:
        value["advice"] = classification.advice
    if classification.shown_money is not None:
        value["shown"] = [classification.shown_money.minor_units, classification.shown_money.currency]
    return value if classification.stored else {**value, "stored": False}


def _classification_from_value(value: dict[str, Any]) -> Classification:
    return Classification(
        result_class=enum_or_safest(ResultClass, value["reading"], ResultClass.UNKNOWN_OUTCOME),
        effect=enum_or_safest(Effect, value["effect"], Effect.POSSIBLE),
        rule=value["rule"],
        lost=value.get("lost", False),
        reference=value.get("reference"),
        stored=value.get("stored", True),
        advice=_advice_from_value(value),
        shown_money=Money(*value["shown"]) if "shown" in value else None,
    )


def _advice_from_value(value: dict[str, Any]) -> Advice | None:
    """Advice of a newer release is read as `contact_support`: an older release must not promise the caller more."""
    stored = value.get("advice")
    return None if stored is None else enum_or_safest(Advice, stored, Advice.CONTACT_SUPPORT)


def _finding_to_value(finding: Finding) -> dict[str, Any]:
    classification = finding.classification
    return {
        "source": finding.source,
        "found": finding.kind,
        "status_code": finding.status_code,
        "classification": None if classification is None else _classification_to_value(classification),
        "detail": finding.detail,
    }


def _finding_from_value(value: dict[str, Any]) -> Finding:
    classification = value["classification"]
    return Finding(
        source=value["source"],
        kind=enum_or_safest(FindingKind, value["found"], FindingKind.FAILED),
        status_code=value["status_code"],
        classification=None if classification is None else _classification_from_value(classification),
        detail=value["detail"],
    )


def _announcement_to_value(told: Announcement) -> list[Any]:
    value = [told.kinds, told.outcome, told.result_class, told.reference, told.incident]
    posting, link = told.posting, told.fallback
    movement = route = None
    if posting is not None:
        movement = [posting.key, posting.kind, posting.minor_units, posting.currency, posting.of, posting.reverses]
    if link is not None:
        route = [link.provider, link.operation_id, link.reason]
    other = None if told.other_payment is None else _other_payment_to_value(told.other_payment)
    later = [movement, told.payout, route, other]
    while later and later[-1] is None:  # most changes have none of these
        later.pop()
    return [*value, *later]


def _other_payment_to_value(other: OtherPayment) -> list[Any]:
    money = (None, None) if other.money is None else (other.money.minor_units, other.money.currency)
    return [other.operation_id, other.provider, other.reference, *money]


def _other_payment_from_value(value: list[Any] | None) -> OtherPayment | None:
    if value is None:
        return None
    operation_id, provider, reference, minor_units, currency = value[:5]
    return OtherPayment(
        operation_id, provider, reference, None if minor_units is None else Money(minor_units, currency)
    )


def _announcement_from_value(value: list[Any]) -> Announcement:
    words, outcome, reading, reference, incident, *later = value
    known = {word.value for word in AnnouncementKind}
    return Announcement(
        tuple(AnnouncementKind(word) for word in words if word in known),
        enum_or_safest(Outcome, outcome, Outcome.UNKNOWN),
        None if reading is None else enum_or_safest(ResultClass, reading, ResultClass.UNKNOWN_OUTCOME),
        reference,
        incident,
        Posting(*later[0][:6]) if later and later[0] is not None else None,
        PayoutStage(later[1]) if len(later) > 1 and later[1] in _PAYOUT_STAGES else None,
        FallbackLink(*later[2][:3]) if len(later) > 2 and later[2] is not None else None,
        _other_payment_from_value(later[3]) if len(later) > 3 else None,
    )


_PAYOUT_STAGES = frozenset(PayoutStage)
