"""Readers of single values: text in, typed value out, or `InvalidValue` with the values that are allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TypeVar
from urllib.parse import urlsplit

from paywitness.core.credential_and_hop_headers import TOKEN_CLASS
from paywitness.core.errors import MoneyError
from paywitness.core.money import Money, Unit, read_money
from paywitness.core.policy import Route
from paywitness.core.provider_contract import FieldKind, FieldRef
from paywitness.policy.reading.locations import did_you_mean, listed

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Reader = Callable[[str], T]

_DURATION = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)\Z")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WHOLE = re.compile(r"[0-9]{1,9}\Z")
_PERCENTAGE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%\Z")
_MONEY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,4})?) ([A-Z]{3})\Z")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_HEADER_NAME = re.compile(TOKEN_CLASS + r"{1,100}\Z")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{1,1000}\Z")
_BODY_PATH = re.compile(r"[^\s.\[\]{}\"'`|]{1,100}(?:\.[^\s.\[\]{}\"'`|]{1,100}){0,15}\Z")
_PARAMETER = re.compile(r"\{[a-z][a-z0-9_]{0,39}\}\Z")
_SEGMENT = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%-]+\Z")
_METHOD = re.compile(r"(?:GET|HEAD|POST|PUT|PATCH|DELETE)\Z")
_HOST = re.compile(r"(?:\*[.-])?[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z")
_ENVIRONMENT = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
_STATUS = re.compile(r"([1-5])(?:([0-9]{2})|xx)\Z")


class InvalidValue(Exception):
    """A value that cannot be read. `message` replaces the whole message; else it is "found ..., allowed: ..."."""

    def __init__(self, allowed: str = "", *, message: str = "", hint: str = "", secret: bool = False) -> None:
        super().__init__(allowed or message)
        self.allowed = allowed
        self.message = message
        self.hint = hint
        self.secret = secret  # the value is not shown


def text(value: str) -> str:
    if not value.strip():
        raise InvalidValue("some text")
    return value


def duration_text(seconds: float) -> str:
    """Seconds in the way a policy writes them: 300ms, 2s, 5m, 24h, 30d."""
    milliseconds = round(seconds * 1000)
    for unit in ("d", "h", "m", "s"):
        whole_units, rest = divmod(milliseconds, round(_UNITS_S[unit] * 1000))
        # A day is written as 24h, as providers write it.
        if rest == 0 and whole_units >= (2 if unit == "d" else 1):
            return f"{whole_units}{unit}"
    return f"{milliseconds}ms"


def duration(least_s: float, most_s: float) -> Reader[float]:
    """A duration within bounds."""

    def read(value: str) -> float:
        found = _DURATION.match(value)
        if found is None:
            raise InvalidValue("a duration such as 300ms, 2s, 5m, 24h or 30d")
        seconds = round(int(found[1]) * _UNITS_S[found[2]], 3)
        if not least_s <= seconds <= most_s:
            raise InvalidValue(f"{duration_text(least_s)} to {duration_text(most_s)}")
        return seconds

    return read


def whole_number(least: int, most: int) -> Reader[int]:
    def read(value: str) -> int:
        if not _WHOLE.match(value) or not least <= int(value) <= most:
            raise InvalidValue(f"a whole number from {least} to {most}")
        return int(value)

    return read


def percentage(most: float) -> Reader[float]:
    """A share: `85%` is 0.85."""

    def read(value: str) -> float:
        found = _PERCENTAGE.match(value)
        if found is None or float(found[1]) > most:
            raise InvalidValue(f"a percentage from 0% to {most:g}%")
        return float(found[1]) / 100

    return read


def money(value: str) -> Money:
    """`500.00 EUR`: in major units, as people write amounts and as we show them."""
    allowed = "an amount in major units and its currency, such as 500.00 EUR"
    found = _MONEY.match(value)
    if found is None:
        raise InvalidValue(allowed)
    try:
        return read_money(found[1], found[2], Unit.MAJOR)
    except MoneyError as error:
        raise InvalidValue(f"{allowed}: {error}") from None


def boolean(value: str) -> bool:
    if value not in {"true", "false"}:
        raise InvalidValue("true or false")
    return value == "true"


def yes_or_no(value: str) -> bool:
    """`yes` or `no`, or the values that YAML's readers turn them into."""
    if value not in {"yes", "no", "true", "false"}:
        raise InvalidValue("yes or no")
    return value in {"yes", "true"}


def one_of(kinds: type[E]) -> Reader[E]:
    names = [str(kind) for kind in kinds]

    def read(value: str) -> E:
        if value not in names:
            raise InvalidValue(listed(names), hint=did_you_mean(value, names))
        return kinds(value)

    return read


def choice_of(*choices: str) -> Reader[str]:
    def read(value: str) -> str:
        if value not in choices:
            raise InvalidValue(listed(choices), hint=did_you_mean(value, choices))
        return value

    return read


def name(value: str) -> str:
    if not _NAME.match(value):
        raise InvalidValue("a name of lower-case letters, digits and _, beginning with a letter, at most 40")
    return value


def provider_name(value: str) -> str:
    if value == "paywitness":
        raise InvalidValue(message="'paywitness' is reserved for the proxy's own paths; choose another name")
    return name(value)


def header_name(value: str) -> str:
    if not _HEADER_NAME.match(value):
        raise InvalidValue("a header name such as Idempotency-Key")
    return value


def header_value(value: str) -> str:
    if not _HEADER_VALUE.match(value):
        raise InvalidValue("a header value of printable ASCII")
    return value


def body_path(value: str) -> str:
    if not _BODY_PATH.match(value):
        raise InvalidValue("a dotted path such as metadata.order_id")
    return value


def field_ref(*kinds: FieldKind) -> Reader[FieldRef]:
    """`header:Name`, `body:dotted.path`, `path:parameter`, `const:text`: only the kinds that are given."""
    examples = {
        FieldKind.HEADER: "header:NAME",
        FieldKind.BODY: "body:DOTTED.PATH",
        FieldKind.PATH: "path:PARAMETER",
        FieldKind.CONST: "const:TEXT",
    }
    allowed = " or ".join(examples[kind] for kind in kinds)
    inner: dict[FieldKind, Reader[str]] = {
        FieldKind.HEADER: header_name,
        FieldKind.BODY: body_path,
        FieldKind.PATH: name,
        FieldKind.CONST: header_value,
    }

    def read(value: str) -> FieldRef:
        head, colon, rest = value.partition(":")
        if not colon or head not in [str(kind) for kind in kinds]:
            raise InvalidValue(allowed, hint=did_you_mean(head, [str(kind) for kind in kinds]) if colon else "")
        kind = FieldKind(head)
        try:
            return FieldRef(kind, inner[kind](rest))
        except InvalidValue as invalid:
            raise InvalidValue(f"{examples[kind]}, with {invalid.allowed} after the colon") from None

    return read


def route(value: str) -> Route:
    """`POST /v1/charges/{charge}/refunds`."""
    method, _, path = value.partition(" ")
    path = path.strip()
    if not _METHOD.match(method) or not path.startswith("/"):
        raise InvalidValue("a method and a path such as POST /v1/charges/{charge}/refunds")
    if "?" in path or "#" in path:
        raise InvalidValue("a path without a query; tell operations apart by 'where'")
    segments = tuple(path[1:].split("/"))
    for segment in segments:
        if segment in {"", ".", ".."}:
            raise InvalidValue("a path without empty or dot segments")
        if not (_PARAMETER.match(segment) or _SEGMENT.match(segment)):
            raise InvalidValue("path segments of URL characters, or {name}, in lower case, as a whole segment")
    parameters = [segment for segment in segments if segment.startswith("{")]
    if len(set(parameters)) != len(parameters):
        raise InvalidValue("each {name} once in a path")
    return Route(method, segments)


def parameters_of(found: Route) -> frozenset[str]:
    return frozenset(segment[1:-1] for segment in found.segments if segment.startswith("{"))


def upstream(value: str) -> str:
    """An http or https address, perhaps with a path prefix; without a slash at the end."""
    allowed = "an address such as https://api.example.com, without user, query or fragment"
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise InvalidValue(allowed) from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or not value.isascii() or not value.isprintable():
        raise InvalidValue(allowed)
    if parts.username is not None or parts.query or parts.fragment or "?" in value or "#" in value or " " in value:
        raise InvalidValue(allowed)
    if not _HOST.match(parts.hostname) and ":" not in parts.hostname:
        raise InvalidValue(allowed + "; nothing is interpolated into it")
    return value.rstrip("/")


def host(value: str) -> str:
    if not _HOST.match(value):
        raise InvalidValue(
            "a host name such as api.example.com or *.example.com, in lower case, without scheme or port"
        )
    return value


def listen(value: str) -> str:
    """`127.0.0.1:8711` or `[::1]:8711`."""
    address, colon, port = value.rpartition(":")
    if not colon or not address or not _WHOLE.match(port) or not 1 <= int(port) <= 65535:
        raise InvalidValue("an address and a port such as 127.0.0.1:8711")
    return value


def environment_variable(value: str) -> str:
    """The name of an environment variable. A literal is refused and not shown, because it may be the secret itself."""
    if not _ENVIRONMENT.match(value):
        raise InvalidValue("env:NAME, an environment variable; secrets do not belong in a policy file", secret=True)
    return value.removeprefix("env:")


def status_codes(value: str) -> frozenset[int]:
    """`402`, or `5xx` for all statuses of that hundred."""
    found = _STATUS.match(value)
    if found is None:
        raise InvalidValue("an HTTP status such as 402, or 4xx or 5xx")
    hundred = int(found[1]) * 100
    return frozenset(range(hundred, hundred + 100)) if found[2] is None else frozenset({hundred + int(found[2])})


def union(codes: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*codes)
