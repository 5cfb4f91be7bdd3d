"""Templates: texts with placeholders that are filled from an operation, such as `/v1/charges/{reference}`.

Filling never guesses: a placeholder without a value makes the whole text unavailable, and whoever asked does without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import Expression
from paywitness.core.operation import Operation
from paywitness.core.provider_time import UNKNOWN_CLOCK_S

CLOCK_DRIFT_MAX_S = 300.0  # a list that begins when we sent it must not miss what a slower clock dated earlier


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One placeholder: `{reference}`, `{path:charge}`, `{header:Name}`, `{body:JMESPath}`."""

    head: str
    name: str = ""
    expression: Expression | None = None  # of {body:...}


@dataclass(frozen=True, slots=True)
class Template:
    """Texts and blanks in the order they stand."""

    parts: tuple[str | Placeholder, ...]

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    def filled(self, values: TemplateValues, encode: Callable[[str], str] = str) -> str | None:
        """The text, each value encoded for its place; None if a value is missing."""
        texts = []
        for part in self.parts:
            value = part if isinstance(part, str) else values.of(part)
            if value is None:
                return None
            texts.append(value if isinstance(part, str) else encode(value))
        return "".join(texts)


@dataclass(frozen=True, slots=True)
class TemplateValues:
    """What an operation and the request that made it can fill in. The request may be gone: then its part is missing."""

    operation: Operation
    parameters: Mapping[str, str]
    tree: Tree = None
    headers: Mapping[str, str] | None = None  # lower-case names
    sent_at: float | None = None  # when its first attempt was sent at the earliest, by the provider's clock, if known

    @property
    def since_at(self) -> float | None:
        """From when on a list is asked for, by the provider's clock: shortly before the first byte left."""
        if self.operation.first_sent_at is None:
            return None
        if self.sent_at is None:
            return self.operation.first_sent_at - UNKNOWN_CLOCK_S
        return self.sent_at - CLOCK_DRIFT_MAX_S

    def of(self, placeholder: Placeholder) -> str | None:
        value_of = _OPERATION_VALUES.get(placeholder.head)
        if value_of is not None:
            return value_of(self.operation)
        match placeholder.head:
            case "since":
                return _date_text(self.since_at)
            case "path":
                return self.parameters.get(placeholder.name)
            case "header":
                return (self.headers or {}).get(placeholder.name.lower())
            case "body":
                return _text(placeholder.expression(self.tree)) if placeholder.expression is not None else None
        return None


def _date_text(at: float | None) -> str | None:
    """RFC 3339."""
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_OPERATION_VALUES: Mapping[str, Callable[[Operation], str | None]] = {
    "provider_key": lambda operation: operation.provider_key,
    "client_key": lambda operation: operation.client_key,
    "operation_id": lambda operation: None if operation.unstamped else operation.stamp or operation.id,
    "reference": lambda operation: operation.reference,
    "amount": lambda operation: str(operation.money.minor_units) if operation.money is not None else None,
    "currency": lambda operation: operation.money.currency if operation.money is not None else None,
}


def _text(value: Tree) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value) or None


def in_path(value: str) -> str:
    """One path segment: slashes, dots and everything else that could mean another path are encoded."""
    encoded = quote(value.encode("utf-8", "surrogatepass"), safe="")
    return encoded.replace(".", "%2E") if encoded.strip(".") == "" else encoded


def in_query(value: str) -> str:
    return quote(value.encode("utf-8", "surrogatepass"), safe="")
