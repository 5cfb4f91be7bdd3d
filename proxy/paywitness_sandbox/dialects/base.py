"""A provider's route: a method, a path with placeholders, an action. And the parsing and errors that all dialects
share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

from paywitness_sandbox.bank.bank import Bank
from paywitness_sandbox.bank.objects import BankRefused, ObjectNotFound, UnknownToken
from paywitness_sandbox.messages import InvalidBody, Request, SandboxResponse, error_response, invalid_request

AMOUNT_MAX = 10**12
METADATA_MAX = 50
PAGE_MAX = 100
PAGE_DEFAULT = 10

PathNames = Mapping[str, str]
RouteAction = Callable[[Bank, Request, PathNames], SandboxResponse]
Item = TypeVar("Item")


class InvalidField(Exception):
    """A field of the request is not valid. Nothing was started."""

    def __init__(self, param: str | None, message: str, code: str = "parameter_invalid") -> None:
        super().__init__(message)
        self.param = param
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class SandboxRoute:
    method: str
    pattern: str
    action: RouteAction

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """The values of the placeholders if the path is this route's, else None. The caller has compared the number of
        segments."""
        names: dict[str, str] = {}
        for wanted, given in zip(self.pattern.split("/")[1:], segments, strict=True):
            if wanted.startswith("{"):
                if not given:
                    return None
                names[wanted[1:-1]] = given
            elif wanted != given:
                return None
        return names


def error_translator(translate: Callable[[BankRefused], SandboxResponse]) -> Callable[[RouteAction], RouteAction]:
    """Turn errors of parsing or of the bank into a response. `translate` makes the response for a BankRefused."""

    def decorate(action: RouteAction) -> RouteAction:
        @wraps(action)
        def wrapper(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
            try:
                return action(bank, request, names)
            except InvalidField as error:
                return invalid_request(error.message, param=error.param, code=error.code)
            except (InvalidBody, UnknownToken) as error:
                return invalid_request(str(error))
            except ObjectNotFound as error:
                return error_response(404, "invalid_request_error", str(error), code="resource_missing")
            except BankRefused as error:
                return translate(error)

        return wrapper

    return decorate


def amount_from(value: object, param: str = "amount") -> int:
    if value is None:
        raise InvalidField(param, f"{param} is missing", "parameter_missing")
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField(param, f"{param} is an integer of minor units", "amount_invalid")
    if not 0 < value <= AMOUNT_MAX:
        raise InvalidField(param, f"{param} is more than zero and at most {AMOUNT_MAX}", "amount_invalid")
    return value


def currency_from(value: object) -> str:
    if not isinstance(value, str) or len(value) != 3 or not value.isascii() or not value.isalpha():
        raise InvalidField("currency", "currency is a code of three letters", "currency_invalid")
    return value


def metadata_from(value: object) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > METADATA_MAX:
        raise InvalidField("metadata", f"metadata is an object of at most {METADATA_MAX} members")
    return value


def flag_from(value: object, param: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidField(param, f"{param} is true or false")
    return value


def page_of(items: Sequence[Item], id_of: Callable[[Item], str], query: Mapping[str, str]) -> tuple[list[Item], bool]:
    """One page, and whether there are more: `limit`, and `starting_after` the last id of the page before."""
    try:
        limit = int(query.get("limit", PAGE_DEFAULT))
    except ValueError:
        limit = 0
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidField("limit", f"limit is a number from 1 to {PAGE_MAX}")
    start = 0
    if after := query.get("starting_after"):
        names = [id_of(item) for item in items]
        if after not in names:
            raise InvalidField("starting_after", f"{after} is not in this list", "resource_missing")
        start = names.index(after) + 1
    return list(items[start : start + limit]), len(items) > start + limit
