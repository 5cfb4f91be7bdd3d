"""Operator commands from a JSON body, and the reply for each way in which one can end."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from paywitness.admin.listings import ListingQuery, read_listing_query
from paywitness.admin.middleware import AdminProblem, invalid_command, not_found
from paywitness.core.operator_actions import OperatorAction
from paywitness.engine.operator_commands import (
    BULK_MAX,
    ActionNotAllowed,
    InvalidCommand,
    NoSuchOperation,
    OperatorCommand,
    VersionConflict,
    describe_conflict,
)
from paywitness.engine.payout_approvals import ApprovalRefused, NoSuchApproval

_COMMAND_MEMBERS = ("actor", "reason", "as", "evidence")
_SINGLE_MEMBERS = (*_COMMAND_MEMBERS, "reference", "version")
_BULK_MEMBERS = (*_COMMAND_MEMBERS, "filter", "dry_run", "limit", "operations")
_LIMIT_DEFAULT = 100
_ENDS = {"succeeded": True, "failed": False}


class JsonBody:
    """A JSON object, read member by member. It refuses a member that it does not know."""

    def __init__(self, members: dict[str, Any], known: tuple[str, ...]) -> None:
        for name in members:
            if name not in known:
                raise invalid_command(f"There is no member {name[:64]!r} in this command. It has: {', '.join(known)}.")
        self._members = members

    def has(self, name: str) -> bool:
        """Whether the body has the member, even as null."""
        return name in self._members

    def member(self, name: str) -> Any:
        """The member as it came, or None if it is absent."""
        return self._members.get(name)

    def text(self, name: str, default: str | None = "") -> str | None:
        value = self._members.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise invalid_command(f"{name} is a text.")
        return value

    def number(self, name: str, lowest: int, highest: int, default: int | None) -> int | None:
        value = self._members.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise invalid_command(f"{name} is a whole number from {lowest} to {highest}.")
        return value

    def switch(self, name: str, *, default: bool) -> bool:
        value = self._members.get(name, default)
        if not isinstance(value, bool):
            raise invalid_command(f"{name} is true or false.")
        return value

    def texts(self, name: str) -> list[str] | None:
        value = self._members.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value) or len(value) > BULK_MAX:
            raise invalid_command(f"{name} is a list of at most {BULK_MAX} ids.")
        return value

    def filters(self) -> ListingQuery:
        """The filters of a listing, under the same names. At least one is required: a command for everything is a
        mistake."""
        value = self._members.get("filter")
        if not isinstance(value, dict) or not value:
            raise invalid_command("filter is an object with at least one filter of /v1/operations, such as state.")
        for name in ("limit", "before", "id", "expired"):
            if name in value:
                raise invalid_command(f"{name} is no filter of a bulk action.")
        return read_listing_query({name: _values(name, given) for name, given in value.items()})


def _values(name: str, given: Any) -> list[str]:
    values = given if isinstance(given, list) else [given]
    if not values or not all(isinstance(value, (str, bool)) for value in values):
        raise invalid_command(f"filter.{name[:64]} is a text, true or false; state may be a list.")
    return [str(value).lower() if isinstance(value, bool) else value for value in values]


async def read_body(request: web.Request, *, many: bool) -> JsonBody:
    return JsonBody(await read_json_members(request), _BULK_MEMBERS if many else _SINGLE_MEMBERS)


async def read_approval_body(request: web.Request) -> JsonBody:
    return JsonBody(await read_json_members(request), ("actor", "reason"))


async def read_json_members(request: web.Request) -> dict[str, Any]:
    """The members of the request's JSON object. Raises AdminProblem (400) if the body is none."""
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise invalid_command("Send the body without a Content-Encoding.")
    try:
        members = json.loads(await request.read())
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise invalid_command(
            'The body is a JSON object, such as {"actor": "ada", "reason": "asked Acme, ticket 4711"}.'
        )
    return members


def read_command(action: OperatorAction, body: JsonBody, *, many: bool) -> OperatorCommand:
    end = body.text("as", None)
    if end is not None and end not in _ENDS:
        raise invalid_command(f"as is succeeded or failed, not {end[:64]!r}.")
    return OperatorCommand(
        action,
        actor=body.text("actor") or "",
        reason=body.text("reason") or "",
        succeeded=None if end is None else _ENDS[end],
        evidence=body.text("evidence") or "",
        reference=None if many else body.text("reference", None),
    )


def read_action(name: str) -> OperatorAction:
    try:
        return OperatorAction(name)
    except ValueError:
        raise not_found(f"There is no action {name[:64]!r}. Actions: {', '.join(OperatorAction)}.") from None


def read_bulk_limit(body: JsonBody) -> int:
    return body.number("limit", 1, BULK_MAX, _LIMIT_DEFAULT) or _LIMIT_DEFAULT


def problem_of(error: Exception) -> AdminProblem:
    """The reply to a command that was refused: the state now, and the actions that are allowed instead."""
    match error:
        case InvalidCommand():
            return invalid_command(str(error))
        case NoSuchApproval():
            return not_found(f"The journal holds no request for approval {str(error)[:80]}.")
        case ApprovalRefused():
            return AdminProblem(409, "not-offered", "The payout cannot be approved", f"Not done: {error}.")
        case NoSuchOperation():
            return not_found(f"The journal holds no operation {str(error)[:80]}.")
        case ActionNotAllowed():
            offered = ", ".join(error.allowed_actions) or "nothing"
            detail = f"Not done: {error.why}. Allowed now: {offered}."
            current = {
                "operation": error.operation.id,
                "state": error.operation.state,
                "offered": list(error.allowed_actions),
            }
            return AdminProblem(409, "not-offered", "The operation does not allow this", detail, current)
        case VersionConflict():
            detail = f"Not done: {describe_conflict(error)}. Read the operation again before you decide."
            members: dict[str, Any] = {
                "operation": error.operation.id,
                "state": error.operation.state,
                "outcome": error.operation.outcome,
                "version": error.operation.version,
                "by": (error.entry.actor or error.entry.source) if error.entry is not None else None,
            }
            return AdminProblem(409, "overtaken", "The operation has changed", detail, members)
    raise error
