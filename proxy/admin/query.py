"""A listing's filters, from a query string. A name or value that is not understood is refused, never ignored: a filter
that does nothing would show an operator the wrong list."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.admin.door import bad_query
from proxy.core.operation import State
from proxy.journal.base import Listing

LIMIT_DEFAULT = 50
LIMIT_MAX = 200
_VALUE_LENGTH_MAX = 512

_TEXTS = ("provider", "operation", "key", "reference", "before")
_SWITCHES = ("doubt", "review", "incidents")
_KNOWN = (*_TEXTS, *_SWITCHES, "state", "limit")


def listing_of(query: Mapping[str, list[str]]) -> Listing:
    """The listing that a query asks for. Raises AdminProblem (400) where it cannot be understood."""
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
    return Listing(
        provider=texts.get("provider"),
        operation=texts.get("operation"),
        states=frozenset(states),
        key=texts.get("key"),
        reference=texts.get("reference"),
        incidents_only=_switch(query, "incidents"),
        limit=_limit(query),
        before=texts.get("before"),
    )


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
    if not (value.isascii() and value.isdigit() and 1 <= int(value[:6]) <= LIMIT_MAX):
        raise bad_query(f"limit is a number from 1 to {LIMIT_MAX}, not {value[:64]!r}.")
    return int(value)
