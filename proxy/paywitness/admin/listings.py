"""Listings of operations: filters from a query string, and pages from the journal.

An unknown filter name or value is refused, never ignored. A filter without effect would show an operator the wrong
list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from paywitness.admin.middleware import bad_query
from paywitness.core.errors import MoneyError
from paywitness.core.guard import is_paid
from paywitness.core.identity import intent_label
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.money import Money, Unit, read_money
from paywitness.core.operation import GuardKind, Operation, State
from paywitness.core.provider_contract import OperationKind
from paywitness.journal.base import Journal, OperationQuery

LIMIT_DEFAULT = 50
LIMIT_MAX = 200
_VALUE_LENGTH_MAX = 512

_TEXTS = ("provider", "operation", "kind", "key", "reference", "order", "payment", "account", "amount", "id", "before")
_SWITCHES = ("doubt", "review", "incidents", "expired")
_KNOWN = (*_TEXTS, *_SWITCHES, "state", "limit")
# A query with one of these filters is a search for a certain operation, so the listing does not hide abandoned ones.
_SHOWS_ABANDONED = ("key", "reference", "order", "payment", "id", "state", "incidents", "doubt", "review")

_ID_START = re.compile(r"(?:op_)?[0-9A-Za-z]{1,64}\Z")
_SORTS_LAST = "~"  # sorts behind every character of an id
_AMOUNT = re.compile(r"\s*([0-9.]{1,24})\s+([A-Za-z]{3})\s*\Z")


@dataclass(frozen=True, slots=True)
class ListingQuery:
    """A parsed query: the journal's part of it, and the filters that this module applies to the journal's rows."""

    listing: OperationQuery
    id_start: str = ""
    shows_abandoned: bool = False  # operations whose customer had to act and never came back
    expired_only: bool = False  # only these

    def is_past(self, operation: Operation) -> bool:
        """Whether this operation is below all ids that start with `id_start`. Then every older one is, too."""
        return not operation.id.startswith(self.id_start)

    def hides(self, operation: Operation) -> bool:
        if self.expired_only:
            return not (operation.action_expired or operation.abandoned)  # the latter: written by an earlier release
        return not self.shows_abandoned and operation.abandoned


def read_listing_query(query: Mapping[str, list[str]]) -> ListingQuery:
    """Parse a query. Raises AdminProblem (400) if it is not valid."""
    for name, values in query.items():
        if name not in _KNOWN:
            raise bad_query(f"There is no filter {name[:64]!r}. Filters: {', '.join(_KNOWN)}.")
        if len(values) > 1 and name != "state":
            raise bad_query(f"{name} may be given once; only state may be repeated.")
        if any(len(value) > _VALUE_LENGTH_MAX for value in values):
            raise bad_query(f"{name} is longer than {_VALUE_LENGTH_MAX} characters.")
    texts = {name: query[name][0] for name in _TEXTS if query.get(name)}
    states = {_state(value) for value in query.get("state", ())}
    if _switch(query, "doubt"):
        states |= {state for state in State if state.in_doubt}
    if _switch(query, "review"):
        states.add(State.REQUIRES_REVIEW)
    expired_only = _switch(query, "expired")
    if expired_only:
        if states:
            raise bad_query("expired cannot be combined with another state: it lists only requires_action.")
        states.add(State.REQUIRES_ACTION)
    id_start = _id_start(texts["id"]) if "id" in texts else ""
    listing = OperationQuery(
        provider=texts.get("provider"),
        operation=texts.get("operation"),
        states=frozenset(states),
        key=texts.get("key"),
        reference=texts.get("reference"),
        subject=intent_label(texts["order"]) if "order" in texts else None,
        payment=texts.get("payment"),
        accounts=frozenset({texts["account"]}) if "account" in texts else frozenset(),
        kind=_kind(texts["kind"]) if "kind" in texts else None,
        money=_money(texts["amount"]) if "amount" in texts else None,
        incidents_only=_switch(query, "incidents"),
        limit=_limit(query),
        before=_before(texts.get("before"), id_start),
    )
    shows_abandoned = any(query.get(name, ["false"]) != ["false"] for name in _SHOWS_ABANDONED)
    return ListingQuery(listing, id_start, shows_abandoned, expired_only)


def _before(given: str | None, id_start: str) -> str | None:
    """The id below which the listing starts. Listings run from the newest id down, so a search for the start of an id
    begins above the last id that can have this start."""
    if not id_start:
        return given
    highest = id_start + _SORTS_LAST
    return highest if given is None else min(given, highest)


def _id_start(value: str) -> str:
    if not _ID_START.match(value):
        raise bad_query(f"id is the start of an operation's id, such as op_01JXQ, not {value[:64]!r}.")
    return f"op_{value.removeprefix('op_').upper()}"


def _money(value: str) -> Money:
    parts = _AMOUNT.match(value)
    try:
        if parts is None:
            raise MoneyError("it is not an amount and a currency")
        return read_money(parts[1], parts[2], Unit.MAJOR)
    except MoneyError as error:
        raise bad_query(f"amount is a number and a currency, such as 10.99 EUR: {error}.") from None


def _kind(value: str) -> OperationKind:
    try:
        return OperationKind(value)
    except ValueError:
        raise bad_query(f"There is no kind {value[:64]!r}. Kinds: {', '.join(OperationKind)}.") from None


def _state(value: str) -> State:
    try:
        return State(value)
    except ValueError:
        raise bad_query(f"There is no state {value[:64]!r}. States: {', '.join(State)}.") from None


def _switch(query: Mapping[str, list[str]], name: str) -> bool:
    value = query.get(name, ["false"])[0]
    if value not in {"true", "false"}:
        raise bad_query(f"{name} is true or false, not {value[:64]!r}.")
    return value == "true"


def _limit(query: Mapping[str, list[str]]) -> int:
    value = query.get("limit", [str(LIMIT_DEFAULT)])[0]
    return whole_number("limit", value, 1, LIMIT_MAX)


def whole_number(name: str, value: str, lowest: int, highest: int) -> int:
    """The number that a query gives. Raises AdminProblem (400) if it is out of bounds."""
    digits = value.isascii() and value.isdigit() and len(value) <= len(str(highest))
    if not digits or not lowest <= int(value) <= highest:
        raise bad_query(f"{name} is a number from {lowest} to {highest}, not {value[:64]!r}.")
    return int(value)


# --- Pages

_READS_MAX = 10  # for one page; a journal full of abandoned payments must not be read for long
_OTHER_PAYMENTS_MAX = 20


async def read_page(journal: Journal, listing_query: ListingQuery) -> tuple[list[Operation], str | None]:
    """A page, and the id below which the next one begins. None if this page is the last."""
    limit, before = listing_query.listing.limit, listing_query.listing.before
    page: list[Operation] = []
    for _ in range(_READS_MAX):
        found = await journal.find_operations(replace(listing_query.listing, limit=limit + 1, before=before))
        for operation in found:
            if listing_query.is_past(operation):
                return page, None
            if len(page) == limit:
                return page, page[-1].id
            before = operation.id
            if not listing_query.hides(operation):
                page.append(operation)
        if len(found) <= limit:
            return page, None
    return page, before


async def other_payment_of(journal: Journal, operation: Operation) -> Operation | None:
    """The other operation of an incident, if it is known. An entry of an older journal does not name it. Then we search
    for it if the incident is that two payments of one intent succeeded."""
    if operation.incident is not None and (known := operation.other_payment) is not None:
        return await journal.read(known.operation_id) if known.operation_id else None
    guard = operation.guard
    if operation.incident != IncidentKind.DUPLICATE_SUCCESS or guard is None or guard.kind is not GuardKind.INTENT:
        return None
    found = await journal.find_operations(OperationQuery(subject=guard.label, limit=_OTHER_PAYMENTS_MAX))
    others = [
        other
        for other in found
        if other.id != operation.id and other.guard is not None and other.guard.value == guard.value and is_paid(other)
    ]
    return min(others, key=lambda other: other.ended_at or other.updated_at, default=None)
