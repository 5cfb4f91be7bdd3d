"""Templates: texts with placeholders that are filled from an operation, such as `/v1/charges/{reference}`.

Filling never guesses: a placeholder without a value makes the whole text unavailable, and whoever asked does without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from proxy.core.body import Tree
from proxy.core.classify import Expression, evaluate
from proxy.core.operation import Operation


@dataclass(frozen=True, slots=True)
class Blank:
    """One placeholder: `{reference}`, `{path:charge}`, `{header:Name}`, `{body:JMESPath}`."""

    head: str
    name: str = ""
    expression: Expression | None = None  # of {body:...}


@dataclass(frozen=True, slots=True)
class Template:
    """Texts and blanks in the order they stand."""

    parts: tuple[str | Blank, ...]

    @property
    def blanks(self) -> tuple[Blank, ...]:
        return tuple(part for part in self.parts if isinstance(part, Blank))

    def filled(self, values: Values, encode: Callable[[str], str] = str) -> str | None:
        """The text, each value encoded for its place; None where a value is missing."""
        texts = []
        for part in self.parts:
            value = part if isinstance(part, str) else values.of(part)
            if value is None:
                return None
            texts.append(value if isinstance(part, str) else encode(value))
        return "".join(texts)


@dataclass(frozen=True, slots=True)
class Values:
    """What an operation and the request that made it can fill in. The request may be gone: then its part is missing."""

    operation: Operation
    parameters: Mapping[str, str]
    tree: Tree = None
    headers: Mapping[str, str] | None = None  # lower-case names

    def of(self, blank: Blank) -> str | None:
        operation = self.operation
        match blank.head:
            case "provider_key":
                return operation.provider_key
            case "client_key":
                return operation.client_key
            case "operation_id":
                return operation.stamp or operation.id
            case "reference":
                return operation.reference
            case "amount":
                return str(operation.money.minor_units) if operation.money is not None else None
            case "currency":
                return operation.money.currency if operation.money is not None else None
            case "path":
                return self.parameters.get(blank.name)
            case "header":
                return (self.headers or {}).get(blank.name.lower())
            case "body":
                return _text(evaluate(blank.expression, self.tree)) if blank.expression is not None else None
        return None


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
