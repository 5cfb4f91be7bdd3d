"""How operations are stored in Redis: an OperationWrite becomes the arguments of a script, and a row becomes an
operation again. The module also builds the index lines under which an operation is found.

A step that is written in one round trip does not know its time yet. It has `AT_WRITE` in place of the time, the script
puts the time in, and `with_write_time` returns the operation as it was written.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paywitness.core.claim import Alias, AliasKind, ClaimRequest, Tombstone
from paywitness.core.credential_owners import Maker
from paywitness.core.operation import HistoryEntry, Lease, Operation, Outcome, State
from paywitness.journal.base import LedgerRow, NextDue
from paywitness.journal.claim_answer import ClaimPlan
from paywitness.journal.encoding import (
    entry_from_text,
    entry_to_text,
    enum_or_safest,
    fixed_values,
    mutable_values,
    operation_from_row,
)
from paywitness.journal.tombstones import maker_to_value
from paywitness.journal.transitions import LEASABLE_STATES, OperationWrite
from paywitness.redis.connection import Argument

AT_WRITE = math.inf  # stands for the time of the write
_OTHER_TIMES = {None: "null", AT_WRITE: "now"}  # times as the scripts read them; every other one is a number

WriteArgs = list[Argument]

ANY_LEASE = "*"  # the write succeeds whichever lease the row has
_TERM_BYTES_MAX = 128  # a longer term is indexed by its hash
_NOT_INDEXED_BY_STATE = frozenset({State.SUCCEEDED, State.SENDING})  # most operations, and a state of a moment
_STATES = frozenset(State)
_FIXED = 9  # created_at, and the values of `fixed_values` from the key to the amount
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode


def index_term(text: str) -> bytes:
    """The text as a term of the index: on one line, and not too long."""
    term = text.encode("utf-8", "surrogatepass")
    if len(term) > _TERM_BYTES_MAX or b"\n" in term or b"\0" in term:
        return b"#" + hashlib.sha256(term).hexdigest().encode()
    return term


def fixed_index_lines(operation: Operation) -> bytes:
    """The index lines that stay as long as the operation."""
    lines = [b"i", b"c" + index_term(operation.client_key)]
    if operation.provider_key is not None and operation.provider_key != operation.client_key:
        lines.append(b"p" + index_term(operation.provider_key))
    if operation.guard is not None and operation.guard.label:
        lines.append(b"j" + index_term(operation.guard.label))
    if operation.stamp and operation.stamp != operation.id:
        lines.append(b"m" + index_term(operation.stamp))
    return b"\n".join(lines)


def _mutable_index_lines(operation: Operation, payment: str | None, guard: str | None) -> bytes:
    """The index lines that come and go. The line of an open incident is the first, because a script looks for it
    there."""
    lines = []
    if operation.incident is not None:
        lines.append(b"!")
    if payment is not None:
        lines.append(b"y" + index_term(payment))
    if guard is not None:
        lines.append(b"g" + index_term(guard))
    if operation.reference is not None:
        lines.append(b"r" + index_term(operation.reference))
    if operation.state not in _NOT_INDEXED_BY_STATE:
        lines.append(b"s" + operation.state.value.encode())
    return b"\n".join(lines)


def write_args(
    write: OperationWrite,
    *,
    lease_end: Argument = ANY_LEASE,
    lease_s: float = 0.0,
    sealed_response: bytes | None = None,
) -> WriteArgs:
    """The arguments that write the step over the version before it, in the order of `lib_write.lua`. `lease_end`: the
    end of the lease as it was read. `lease_s`: the length of a lease that ends at AT_WRITE."""
    operation, entry = write.operation, write.entry
    state, _, updated_at, first_sent_at, ended_at, due_at, reference, incident, token, until_at, standing, *indexed = (
        mutable_values(operation)
    )
    due = due_at is not None and token is None and operation.state in LEASABLE_STATES
    lease = "" if token is None else f"+{lease_s!r}" if until_at == AT_WRITE else repr(until_at)
    return [
        operation.id,
        str(operation.version - 1),
        lease_end,
        str(operation.version),
        _OTHER_TIMES.get(updated_at) or repr(updated_at),
        _OTHER_TIMES.get(first_sent_at) or repr(first_sent_at),
        _OTHER_TIMES.get(ended_at) or repr(ended_at),
        f"{_encode([state, due_at, reference, incident])[1:]}\n{standing}",
        token or "",
        lease,
        repr(due_at) if due else "",
        operation.provider,
        _mutable_index_lines(operation, *indexed),
        _doubt_entry(operation) if operation.state.in_doubt else "",
        entry_to_text(entry),
        "" if entry.announcement is None else "1",
        "1" if write.erase_request else "",
        sealed_argument(sealed_response),
    ]


def insert_args(
    write: OperationWrite, sealed_request: bytes | None, lease_s: float, *, sealed_response: bytes | None = None
) -> WriteArgs:
    """The arguments that write an operation that starts, or one that is put back; only the latter may have a
    response."""
    operation = write.operation
    _, *fixed, created_at, identity, _, _ = fixed_values(operation)
    return [
        *write_args(write, lease_s=lease_s, sealed_response=sealed_response),
        _OTHER_TIMES.get(created_at) or repr(created_at),
        f"{_encode(fixed)[1:]}\n{identity}",
        operation.key,
        fixed_index_lines(operation),
        sealed_argument(sealed_request),
    ]


def sealed_argument(sealed: bytes | None) -> bytes:
    return b"" if sealed is None else b"=" + sealed


def with_write_time(operation: Operation, now: float, lease_s: float) -> Operation:
    """The operation of a step with AT_WRITE, as it was written at `now`."""
    lease = operation.lease
    return operation.changed(
        created_at=now if operation.created_at == AT_WRITE else operation.created_at,
        updated_at=now,
        first_sent_at=now if operation.first_sent_at == AT_WRITE else operation.first_sent_at,
        ended_at=now if operation.ended_at == AT_WRITE else operation.ended_at,
        lease=lease if lease is None or lease.until_at != AT_WRITE else Lease(lease.token, now + lease_s),
    )


# Reading.


@dataclass(frozen=True, slots=True)
class RedisRow:
    """An operation as it was read, and the values that a write over it is compared with."""

    operation: Operation
    lease_end: bytes  # the end of the lease, as it is stored; empty if there is no lease
    last_announced_seq: int  # the seq of the last change with an announcement
    from_newer_version: bool  # in a state that only a newer version knows: no sweep of ours touches it
    sealed_request: bytes | None = None
    sealed_response: bytes | None = None


def parse_row(values: list[Any]) -> RedisRow:
    """A row as the scripts return it."""
    operation_id, _, version, token, until_at, fixed, standing, seq, *sealed = values
    what, identity = fixed.decode().split("\n", 1)
    how, rest = standing.decode().split("\n", 1)
    created_at, *known = _decode(what)[:_FIXED]  # a newer version may have written more
    updated_at, first_sent_at, ended_at, state, due_at, reference, incident, *_ = _decode(how)
    from_newer_version = state not in _STATES
    # If a newer version's state is one that we cannot read, its lease counts as held until its holder gives it back.
    lease = (None, None) if token is None else (token.decode(), math.inf if from_newer_version else float(until_at))
    operation = operation_from_row(
        (
            *(operation_id.decode(), *known, created_at, identity),
            *(state, int(version), updated_at, first_sent_at, ended_at, due_at, reference, incident),
            *(*lease, rest),
        )
    )
    return RedisRow(operation, until_at or b"", int(seq or 0), from_newer_version, *sealed)


def parse_entry(version: int, text: bytes) -> HistoryEntry:
    at, _, entry = text.decode().split(" ", 2)
    return entry_from_text(float(at), version, entry)


# Rows that are kept beside operations.


def _doubt_entry(operation: Operation) -> str:
    money = operation.money
    currency, minor_units = ("", 0) if money is None else (money.currency, money.minor_units)
    what = (operation.provider, operation.operation, currency, operation.state.value)
    return _encode([*what, minor_units, operation.created_at])


def insert_args_of(taken: ClaimPlan, request: ClaimRequest) -> WriteArgs | None:
    return None if taken.insert is None else insert_args(taken.insert, request.sealed_request, request.lease_s)


def ledger_args(rows: Iterable[LedgerRow]) -> list[Argument]:
    """The rows as `lib_ledger.lua` reads them."""
    arguments: list[Argument] = []
    for row in rows:
        arguments += (row.key, str(row.version), row.text, "" if row.due_at is None else repr(row.due_at))
    return arguments


def bound_argument(at: float) -> str:
    """The time as a script takes it. Empty for infinity: no bound."""
    return "" if at == math.inf else repr(at)


def parse_ledger_row(values: list[bytes]) -> LedgerRow:
    key, version, text = values
    return LedgerRow(key.decode(), int(version), text.decode("utf-8", "surrogatepass"))


def alias_to_text(alias: Alias) -> bytes:
    rest = _encode([alias.client_key, alias.kind.value, alias.at])
    return b"\n".join((alias.operation_id.encode(), index_term(alias.client_key), rest.encode()))


def parse_alias(key: str, text: bytes) -> Alias:
    operation_id, _, rest = text.split(b"\n", 2)
    client_key, kind, at, *_ = _decode(rest.decode())
    return Alias(key, client_key, operation_id.decode(), enum_or_safest(AliasKind, kind, AliasKind.JOINED), at)


def tombstone_to_text(tombstone: Tombstone) -> str:
    """The tombstone without its key and its end, which are stored beside the text."""
    what = (tombstone.operation_id, tombstone.provider, tombstone.operation, tombstone.client_key)
    maker = [maker_to_value(tombstone.maker)] if tombstone.maker.credential else []
    return _encode([*what, tombstone.outcome.value, tombstone.reference, *maker])


def parse_tombstone(key: str, text: bytes) -> Tombstone:
    ended_at, rest = text.decode().split(" ", 1)
    operation_id, provider, operation, client_key, outcome, reference, *more = _decode(rest)
    outcome_value = enum_or_safest(Outcome, outcome, Outcome.UNKNOWN)
    known = (operation_id, provider, operation, client_key, outcome_value, reference, float(ended_at))
    return Tombstone(key, *known, Maker(*more[0][:4]) if more else Maker())


def parse_next_due(
    operations: list[bytes], lease: bytes, webhook_event: bytes, relay: bytes, ledger_row: bytes, announced_seq: bytes
) -> NextDue:
    """The next due times from the answer of `clock.lua`."""
    providers = (provider.decode() for provider in operations[::2])
    by_provider = dict(zip(providers, map(float, operations[1::2]), strict=True))
    lease_at, event_at, relay_at, row_at = (
        float(at) if at else math.inf for at in (lease, webhook_event, relay, ledger_row)
    )
    return NextDue(by_provider, lease_at, min(event_at, relay_at), row_at, int(announced_seq))
