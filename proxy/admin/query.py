"""A listing's filters, from a query string. A name or value that is not understood is refused, never ignored: a filter
that does nothing would show an operator the wrong list."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from proxy.admin.door import bad_query
from proxy.core.errors import MoneyError
from proxy.core.money import Money, Unit, read_money
from proxy.core.operation import Operation, State
from proxy.journal.base import Listing

LIMIT_DEFAULT = 50
LIMIT_MAX = 200
_VALUE_LENGTH_MAX = 512

_TEXTS = ("provider", "operation", "key", "reference", "order", "amount", "id", "before")
_SWITCHES = ("doubt", "review", "incidents")
_KNOWN = (*_TEXTS, *_SWITCHES, "state", "limit")
# Whoever names one of these looks for something, and must be shown it.
_LOOKING_FOR = ("key", "reference", "order", "id", "state", "incidents", "doubt", "review")

_ID_START = re.compile(r"(?:op_)?[0-9A-Za-z]{1,64}\Z")
_AFTER_ALL = "~"  # sorts behind every character of an id
_AMOUNT = re.compile(r"\s*([0-9.]{1,24})\s+([A-Za-z]{3})\s*\Z")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a query asks for: the journal's part of it, and what is left to sort out here."""

    listing: Listing
    id_start: str = ""
    shows_abandoned: bool = False  # customers who were asked to act and never came back

    def is_past(self, operation: Operation) -> bool:
        """Whether this one, and with it all that are older, is beyond the ids that were asked for."""
        return not operation.id.startswith(self.id_start)

    def hides(self, operation: Operation) -> bool:
        return not self.shows_abandoned and is_abandoned(operation)


def is_abandoned(operation: Operation) -> bool:
    """Nobody looks at it any more: the customer did not act in time. It is kept, and out of sight."""
    return operation.state is State.REQUIRES_ACTION and operation.due_at is None


def wanted_of(query: Mapping[str, list[str]]) -> Wanted:
    """What a query asks for. Raises AdminProblem (400) where it cannot be understood."""
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
    id_start = _id_start(texts["id"]) if "id" in texts else ""
    listing = Listing(
        provider=texts.get("provider"),
        operation=texts.get("operation"),
        states=frozenset(states),
        key=texts.get("key"),
        reference=texts.get("reference"),
        subject=texts.get("order"),
        money=_money(texts["amount"]) if "amount" in texts else None,
        incidents_only=_switch(query, "incidents"),
        limit=_limit(query),
        before=_before(texts.get("before"), id_start),
    )
    return Wanted(listing, id_start, any(query.get(name, ["false"]) != ["false"] for name in _LOOKING_FOR))


def _before(given: str | None, id_start: str) -> str | None:
    """Lists go from the newest id down: those that start alike begin below the last that could."""
    if not id_start:
        return given
    highest = id_start + _AFTER_ALL
    return highest if given is None else min(given, highest)


def _id_start(value: str) -> str:
    if not _ID_START.match(value):
        raise bad_query(f"id is how an operation's id begins, such as op_01JXQ, not {value[:64]!r}.")
    return f"op_{value.removeprefix('op_').upper()}"


def _money(value: str) -> Money:
    parts = _AMOUNT.match(value)
    try:
        if parts is None:
            raise MoneyError("it is not an amount and a currency")
        return read_money(parts[1], parts[2], Unit.MAJOR)
    except MoneyError as error:
        raise bad_query(f"amount is a number and a currency, such as 10.99 EUR: {error}.") from None


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
    """The number that a query gives, within its bounds."""
    digits = value.isascii() and value.isdigit() and len(value) <= len(str(highest))
    if not digits or not lowest <= int(value) <= highest:
        raise bad_query(f"{name} is a number from {lowest} to {highest}, not {value[:64]!r}.")
    return int(value)
