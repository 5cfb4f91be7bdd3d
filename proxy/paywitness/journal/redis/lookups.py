"""The look-ups of a claim or a change in Redis. One script reads them in one step, and the rules run in Python over its
answer, as a `claim_answer.ClaimLookups`. If the rules need a row that the script did not look up, this raises
NeedsLookup; it never guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from paywitness.core.claim import Alias, ClaimRequest, Tombstone
from paywitness.core.operation import Operation
from paywitness.core.record import record
from paywitness.journal.base import LedgerRow
from paywitness.journal.redis.rows import (
    RedisRow,
    index_term,
    parse_alias,
    parse_ledger_row,
    parse_row,
    parse_tombstone,
)
from paywitness.redis.connection import Argument


class NeedsLookup(Exception):
    """The rules need a look-up that was not in the query. `extend` adds it."""

    def __init__(self, ask: Callable[[LookupQuery], LookupQuery]) -> None:
        super().__init__("not looked up yet")
        self.extend = ask


@record
class LookupQuery:
    """The look-ups that a script shall make."""

    key: str = ""
    guard: str = ""
    ids: tuple[str, ...] = ()
    credentials: tuple[tuple[str, str], ...] = ()  # accounts and credentials
    rows: tuple[str, ...] = ()  # keys of the ledger

    @classmethod
    def of_claim(cls, request: ClaimRequest) -> LookupQuery:
        fresh, acts_on = request.fresh, request.payment.acts_on
        guard = fresh.guard.value if fresh.guard is not None else ""
        rows: tuple[str, ...] = () if acts_on is None else (acts_on.key,)
        if request.payout is not None:
            rows = request.payout.row_keys
        return cls(fresh.key, guard, credentials=((fresh.account, fresh.credential),), rows=rows)

    def arguments(self) -> tuple[Argument, ...]:
        credentials = "\n".join(map("\0".join, self.credentials))
        return (self.key, index_term(self.guard), " ".join(self.ids), credentials, " ".join(self.rows))


class RedisLookups:
    """A `claim_answer.ClaimLookups` over one script's answer."""

    def __init__(self, query: LookupQuery, found: list[Any]) -> None:
        now, self.token, rows, newest, disputed, alias, tombstone, holders, accepted, ledger = found
        self.query = query
        self.now_text: bytes = now
        self.now = float(now)
        self.rows: dict[str, RedisRow] = {}
        for values in rows:
            row = parse_row(values)
            self.rows[row.operation.id] = row
        self._read_with_sealed = {values[0].decode() for values in rows if len(values) > 8}
        self.ledger = {row.key: row for row in map(parse_ledger_row, ledger)}
        self._newest = newest
        self._disputed = disputed
        self._alias = None if alias is None else parse_alias(query.key, alias)
        self._tombstone = None if tombstone is None else parse_tombstone(query.key, tombstone)
        self._holders = [holder.decode() for holder in reversed(holders)]
        self._accepted = {pair for pair, yes in zip(query.credentials, accepted, strict=True) if yes}

    # The look-ups of a claim.

    def newest(self, key: str) -> Operation | None:
        return self._operation_at(key, self._newest)

    def disputed(self, key: str) -> Operation | None:
        return self._operation_at(key, self._disputed)

    def _operation_at(self, key: str, operation_id: bytes | None) -> Operation | None:
        if key != self.query.key:
            raise LookupError(f"{key} was not asked for")
        return None if operation_id is None else self.by_id(operation_id.decode())

    def by_id(self, operation_id: str) -> Operation | None:
        row = self.rows.get(operation_id)
        if row is not None:
            return row.operation
        known = self._alias is not None and self._alias.operation_id == operation_id
        if known or operation_id in self.query.ids:
            return None  # the script looked for it, and it does not exist
        raise NeedsLookup(lambda query: replace(query, ids=(*query.ids, operation_id)))

    def alias(self, key: str) -> Alias | None:
        return self._alias if key == self.query.key else None

    def tombstone(self, key: str) -> Tombstone | None:
        return self._tombstone if key == self.query.key else None

    def row(self, key: str) -> LedgerRow | None:
        found = self.ledger.get(key)
        if found is None and key not in self.query.rows and key not in self._linked_to():
            raise NeedsLookup(lambda query: replace(query, rows=(*query.rows, key)))
        return found

    def _linked_to(self) -> set[str]:
        return {row.text[1:] for row in self.ledger.values() if row.text.startswith("@")}

    def guarded(self, guard: str) -> tuple[Operation, ...]:
        if guard != self.query.guard:
            raise NeedsLookup(lambda query: replace(query, guard=guard))  # of the payment that the call acts on
        return tuple(self.rows[holder].operation for holder in self._holders if holder in self.rows)

    # For the claim's answer.

    def sealed(self, holder: str) -> tuple[bytes | None, bytes | None]:
        """The holder's sealed request and response."""
        if holder in self.rows and holder not in self._read_with_sealed:
            raise NeedsLookup(lambda query: replace(query, ids=(*query.ids, holder)))
        row = self.rows.get(holder)
        return (None, None) if row is None else (row.sealed_request, row.sealed_response)

    def accepted(self, account: str, credential: str) -> bool:
        pair = (account, credential)
        if pair not in self.query.credentials:
            raise NeedsLookup(lambda query: replace(query, credentials=(*query.credentials, pair)))
        return pair in self._accepted


class AssumedLookups:
    """A `claim_answer.ClaimLookups` of two assumptions: the key and the guard are new, and the ledger rows are as they
    were last seen. The script that writes checks both."""

    def __init__(self, rows: Mapping[str, LedgerRow]) -> None:
        self._rows = rows

    def row(self, key: str) -> LedgerRow | None:
        return self._rows.get(key)

    def newest(self, key: str) -> None:
        return None

    def by_id(self, operation_id: str) -> Operation | None:
        raise NeedsLookup(lambda query: replace(query, ids=(*query.ids, operation_id)))

    def disputed(self, key: str) -> None:
        return None

    def alias(self, key: str) -> None:
        return None

    def tombstone(self, key: str) -> None:
        return None

    def guarded(self, guard: str) -> tuple[Operation, ...]:
        return ()

    def accepted(self, account: str, credential: str) -> bool:
        raise NeedsLookup(lambda query: query)
