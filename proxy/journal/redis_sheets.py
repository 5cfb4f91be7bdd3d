"""How operations stand in Redis: a Step becomes the arguments of a script (a sheet, or a start), a row becomes the
operation again. And the index: under which words an operation is found.

A step that is written in one round trip does not know its time yet. It is made for `LATER`, the script puts the time
in, and `dated` gives the operation as it was written.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

from proxy.core.claim import Alias, AliasKind, Tombstone
from proxy.core.compact_json import compact_encoder
from proxy.core.operation import HistoryEntry, Lease, Operation, Outcome, State
from proxy.journal.encoding import entry_of, entry_text_of, fixed_row_of, moving_row_of, operation_of, word_in
from proxy.journal.redis_connection import Argument
from proxy.journal.steps import MAY_BE_HELD, Step

LATER = math.inf  # in the place of a time: that of the write

Sheet = list[Argument]

ANY_LEASE = "*"  # what is written over may be held by anybody
_WORD_BYTES_MAX = 128  # a longer one is found by its hash
_NOT_LISTED = frozenset({State.SUCCEEDED, State.SENDING})  # most are, or are only for a moment
_STATES = frozenset(State)
_FIXED = 9  # created_at, and what `fixed_row_of` says from the key to the amount
_encode = compact_encoder()
_decode = json.JSONDecoder().decode


def word_of(text: str) -> bytes:
    """The text as the index holds it: on one line, and not too long."""
    word = text.encode("utf-8", "surrogatepass")
    if len(word) > _WORD_BYTES_MAX or b"\n" in word or b"\0" in word:
        return b"#" + hashlib.sha256(word).hexdigest().encode()
    return word


def fixed_index_of(operation: Operation) -> bytes:
    """The lines of the index that stay as long as the operation."""
    lines = [b"i", b"c" + word_of(operation.client_key)]
    if operation.provider_key is not None and operation.provider_key != operation.client_key:
        lines.append(b"p" + word_of(operation.provider_key))
    if operation.guard is not None and operation.guard.shown:
        lines.append(b"j" + word_of(operation.guard.shown))
    if operation.stamp and operation.stamp != operation.id:
        lines.append(b"m" + word_of(operation.stamp))
    return b"\n".join(lines)


def _moving_index_of(operation: Operation, guard: str | None) -> bytes:
    """The lines that come and go. An open incident's comes first: a script looks for it there."""
    lines = []
    if operation.incident is not None:
        lines.append(b"!")
    if guard is not None:
        lines.append(b"g" + word_of(guard))
    if operation.reference is not None:
        lines.append(b"r" + word_of(operation.reference))
    if operation.state not in _NOT_LISTED:
        lines.append(b"s" + operation.state.value.encode())
    return b"\n".join(lines)


def _at(time: float | None) -> str:
    if time is None:
        return "null"
    return "now" if time == LATER else repr(time)


def sheet_of(
    step: Step, *, held: Argument = ANY_LEASE, lease_s: float = 0.0, sealed_response: bytes | None = None
) -> Sheet:
    """What is written of the step over the version before it, as `shelf.lua` reads it. `held` is the end of the lease
    as it was read; `lease_s` counts where the step was made for LATER."""
    operation, entry = step.operation, step.entry
    state, _, updated_at, first_sent_at, ended_at, due_at, reference, incident, token, until_at, standing, guard = (
        moving_row_of(operation)
    )
    due = due_at is not None and token is None and operation.state in MAY_BE_HELD
    lease = "" if token is None else f"+{lease_s!r}" if until_at == LATER else repr(until_at)
    return [
        operation.id,
        str(operation.version - 1),
        held,
        str(operation.version),
        _at(updated_at),
        _at(first_sent_at),
        _at(ended_at),
        f"{_encode([state, due_at, reference, incident])[1:]}\n{standing}",
        token or "",
        lease,
        repr(due_at) if due else "",
        operation.provider,
        _moving_index_of(operation, guard),
        _doubt_of(operation) if operation.state.in_doubt else "",
        entry_text_of(entry),
        "" if entry.told is None else "1",
        "1" if step.erase_request else "",
        blob_of(sealed_response),
    ]


def start_of(
    step: Step, sealed_request: bytes | None, lease_s: float, *, sealed_response: bytes | None = None
) -> Sheet:
    """What is written of an operation that starts; with a response, of one that is put back."""
    operation = step.operation
    _, *fixed, created_at, identity, _, _ = fixed_row_of(operation)
    return [
        *sheet_of(step, lease_s=lease_s, sealed_response=sealed_response),
        _at(created_at),
        f"{_encode(fixed)[1:]}\n{identity}",
        operation.key,
        fixed_index_of(operation),
        blob_of(sealed_request),
    ]


def blob_of(sealed: bytes | None) -> bytes:
    return b"" if sealed is None else b"=" + sealed


def dated(operation: Operation, now: float, lease_s: float) -> Operation:
    """The operation of a step that was made for LATER, as it was written."""
    lease = operation.lease
    return operation.changed(
        created_at=now if operation.created_at == LATER else operation.created_at,
        updated_at=now,
        first_sent_at=now if operation.first_sent_at == LATER else operation.first_sent_at,
        ended_at=now if operation.ended_at == LATER else operation.ended_at,
        lease=lease if lease is None or lease.until_at != LATER else Lease(lease.token, now + lease_s),
    )


# What is read.


@dataclass(frozen=True, slots=True)
class Row:
    """An operation as it was read, and what a write over it is compared with."""

    operation: Operation
    held: bytes  # until when, as it is written; empty where nobody holds it
    told_to: int  # the number of the last change that told something
    foreign: bool  # in a state of a later version's: no sweep of ours touches it
    request: bytes | None = None
    response: bytes | None = None


def row_of(values: list[Any]) -> Row:
    """A row as the scripts give it."""
    operation_id, _, version, token, until_at, fixed, standing, seq, *sealed = values
    what, identity = fixed.decode().split("\n", 1)
    how, rest = standing.decode().split("\n", 1)
    created_at, *known = _decode(what)[:_FIXED]  # a later version may have written more
    updated_at, first_sent_at, ended_at, state, due_at, reference, incident, *_ = _decode(how)
    foreign = state not in _STATES
    # Whoever holds what we cannot read holds it until that one says otherwise.
    lease = (None, None) if token is None else (token.decode(), math.inf if foreign else float(until_at))
    operation = operation_of(
        (
            *(operation_id.decode(), *known, created_at, identity),
            *(state, int(version), updated_at, first_sent_at, ended_at, due_at, reference, incident),
            *(*lease, rest),
        )
    )
    return Row(operation, until_at or b"", int(seq or 0), foreign, *sealed)


def entry_in(version: int, text: bytes) -> HistoryEntry:
    at, _, entry = text.decode().split(" ", 2)
    return entry_of(float(at), version, entry)


# What is kept beside operations.


def _doubt_of(operation: Operation) -> str:
    money = operation.money
    currency, minor_units = ("", 0) if money is None else (money.currency, money.minor_units)
    what = (operation.provider, operation.operation, currency, operation.state.value)
    return _encode([*what, minor_units, operation.created_at])


def alias_text_of(alias: Alias) -> bytes:
    rest = _encode([alias.client_key, alias.kind.value, alias.at])
    return b"\n".join((alias.operation_id.encode(), word_of(alias.client_key), rest.encode()))


def alias_in(key: str, text: bytes) -> Alias:
    operation_id, _, rest = text.split(b"\n", 2)
    client_key, kind, at, *_ = _decode(rest.decode())
    return Alias(key, client_key, operation_id.decode(), word_in(AliasKind, kind, AliasKind.JOINED), at)


def tombstone_text_of(tombstone: Tombstone) -> str:
    """Without its key and when it ended, which stand beside it."""
    what = (tombstone.operation_id, tombstone.provider, tombstone.operation, tombstone.client_key)
    return _encode([*what, tombstone.outcome.value, tombstone.reference])


def tombstone_in(key: str, text: bytes) -> Tombstone:
    ended_at, rest = text.decode().split(" ", 1)
    operation_id, provider, operation, client_key, outcome, reference, *_ = _decode(rest)
    told = word_in(Outcome, outcome, Outcome.UNKNOWN)
    return Tombstone(key, operation_id, provider, operation, client_key, told, reference, float(ended_at))
