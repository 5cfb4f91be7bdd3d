"""What one script looked up for a claim or a change: a `claiming.Shelf` over it, so that the rules run in Python over
what Redis read in one step. What was not looked up is asked for, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from proxy.core.claim import Alias, ClaimRequest, Tombstone
from proxy.core.frozen import frozen
from proxy.core.operation import Operation
from proxy.journal import claiming
from proxy.journal.redis_connection import Argument
from proxy.journal.redis_sheets import Row, alias_in, row_of, tombstone_in, word_of


class NotLookedUp(Exception):
    """The rules ask for something that the question did not name."""

    def __init__(self, ask: Callable[[Question], Question]) -> None:
        super().__init__("not looked up yet")
        self.ask = ask


@frozen
class Question:
    """What a script is to look up."""

    key: str = ""
    guard: str = ""
    ids: tuple[str, ...] = ()
    credentials: tuple[tuple[str, str], ...] = ()  # accounts and credentials

    @classmethod
    def of_claim(cls, request: ClaimRequest) -> Question:
        fresh = request.fresh
        guard = fresh.guard.value if fresh.guard is not None else ""
        return cls(fresh.key, guard, credentials=((fresh.account, fresh.credential),))

    def arguments(self) -> tuple[Argument, ...]:
        credentials = "\n".join(f"{account}\0{credential}" for account, credential in self.credentials)
        return (self.key, word_of(self.guard), " ".join(self.ids), credentials)


class LookedUp:
    """A `claiming.Shelf` of one script's answer."""

    def __init__(self, question: Question, found: list[Any]) -> None:
        now, self.token, rows, newest, disputed, alias, tombstone, holders, accepted = found
        self.question = question
        self.now_text: bytes = now
        self.now = float(now)
        self.rows: dict[str, Row] = {}
        for values in rows:
            row = row_of(values)
            self.rows[row.operation.id] = row
        self._sealed = {values[0].decode() for values in rows if len(values) > 8}
        self._newest = newest
        self._disputed = disputed
        self._alias = None if alias is None else alias_in(question.key, alias)
        self._tombstone = None if tombstone is None else tombstone_in(question.key, tombstone)
        self._holders = [holder.decode() for holder in reversed(holders)]
        self._accepted = {pair for pair, yes in zip(question.credentials, accepted, strict=True) if yes}

    # What a claim looks up.

    def newest(self, key: str) -> Operation | None:
        return self._named(key, self._newest)

    def disputed(self, key: str) -> Operation | None:
        return self._named(key, self._disputed)

    def _named(self, key: str, operation_id: bytes | None) -> Operation | None:
        if key != self.question.key:
            raise LookupError(f"{key} was not asked for")
        return None if operation_id is None else self.by_id(operation_id.decode())

    def by_id(self, operation_id: str) -> Operation | None:
        row = self.rows.get(operation_id)
        if row is not None:
            return row.operation
        known = self._alias is not None and self._alias.operation_id == operation_id
        if known or operation_id in self.question.ids:
            return None  # it was looked for, and is not there
        raise NotLookedUp(lambda question: replace(question, ids=(*question.ids, operation_id)))

    def alias(self, key: str) -> Alias | None:
        return self._alias if key == self.question.key else None

    def tombstone(self, key: str) -> Tombstone | None:
        return self._tombstone if key == self.question.key else None

    def guarded(self, guard: str) -> tuple[Operation, ...]:
        if guard != self.question.guard:
            raise LookupError(f"the guard {guard} was not asked for")
        return tuple(self.rows[holder].operation for holder in self._holders if holder in self.rows)

    # What its answer holds.

    def sealed(self, steps: claiming.ClaimSteps) -> tuple[bytes | None, bytes | None]:
        """The holder's request and response, where the answer holds one of them."""
        if steps.holder is None or not claiming.needs_sealed(steps):
            return None, None
        holder = steps.holder.id
        if holder in self.rows and holder not in self._sealed:
            raise NotLookedUp(lambda question: replace(question, ids=(*question.ids, holder)))
        row = self.rows.get(holder)
        return (None, None) if row is None else (row.request, row.response)

    def accepts(self, steps: claiming.ClaimSteps, credential: str) -> bool:
        """Whether the credential made the call, or the provider has since accepted it for that account."""
        asked = steps.asked
        if asked is None or not claiming.needs_sealed(steps) or asked.credential == credential:
            return True
        pair = (asked.account, credential)
        if pair not in self.question.credentials:
            raise NotLookedUp(lambda question: replace(question, credentials=(*question.credentials, pair)))
        return pair in self._accepted


class Nothing:
    """A `claiming.Shelf` with nothing on it: what a claim comes to where nothing is known."""

    def newest(self, key: str) -> None:
        return None

    def by_id(self, operation_id: str) -> None:
        return None

    def disputed(self, key: str) -> None:
        return None

    def alias(self, key: str) -> None:
        return None

    def tombstone(self, key: str) -> None:
        return None

    def guarded(self, guard: str) -> tuple[Operation, ...]:
        return ()
