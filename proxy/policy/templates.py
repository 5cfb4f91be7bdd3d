"""Templates: texts with placeholders that are filled from an operation, such as `GET /v1/charges/{reference}`.

Only read and checked here; whoever sends an inquiry fills them in, encoded for their place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from proxy.policy.expressions import expression
from proxy.policy.marks import did_you_mean, listed
from proxy.policy.scalars import Reader, Wrong, header_name

WORDS = ("provider_key", "client_key", "operation_id", "reference", "amount", "currency")
_ALLOWED = listed([*(f"{{{word}}}" for word in WORDS), "{header:Name}", "{path:name}", "{body:JMESPath}"])
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_KNOWN = re.compile(r"\{(" + "|".join(WORDS) + r"|(?:header|path|body):[^{}]+)\}")
# What can tell one operation from all others; an amount, a currency or a header cannot.
_NAMING = frozenset({"provider_key", "client_key", "operation_id", "reference", "path", "body"})


@dataclass(frozen=True, slots=True)
class Template:
    """A text and the placeholders in it: ("reference", ""), ("path", "charge"), ("body", "metadata.order_id")."""

    text: str
    placeholders: tuple[tuple[str, str], ...]

    @property
    def names_the_operation(self) -> bool:
        return any(head in _NAMING for head, _ in self.placeholders)


def template(parameters: frozenset[str]) -> Reader[Template]:
    """A text in which every brace belongs to a known placeholder; `parameters` are those of the operation's paths."""

    def read(text: str) -> Template:
        placeholders = tuple(_placeholder(found, parameters) for found in _PLACEHOLDER.findall(text))
        rest = _PLACEHOLDER.sub("", text)
        if "{" in rest or "}" in rest:
            raise Wrong(says=f"found a brace without its partner; placeholders are {_ALLOWED}")
        return Template(text, placeholders)

    return read


def request_template(parameters: frozenset[str], *methods: str) -> Reader[Template]:
    """A method and a path with placeholders."""
    filled = template(parameters)

    def read(text: str) -> Template:
        method, _, path = text.partition(" ")
        if method not in methods or not path.startswith("/") or "?" in path or " " in path:
            raise Wrong(f"{' or '.join(methods)} and a path such as /v1/charges/{{reference}}, its query under 'query'")
        return filled(text)

    return read


def expression_template(parameters: frozenset[str]) -> Reader[Template]:
    """A JMESPath expression that may carry known placeholders; any other brace is JMESPath's own."""

    def read(text: str) -> Template:
        placeholders = tuple(_placeholder(found, parameters) for found in _KNOWN.findall(text))
        expression(_KNOWN.sub("x", text))
        return Template(text, placeholders)

    return read


def _placeholder(found: str, parameters: frozenset[str]) -> tuple[str, str]:
    head, colon, rest = found.partition(":")
    if not colon and head in WORDS:
        return head, ""
    if colon and head == "path" and rest in parameters:
        return head, rest
    if colon and head == "header":
        return head, header_name(rest)
    if colon and head == "body":
        return head, expression(rest).text
    if head == "path" and colon:
        known = f"it is not in every 'match' of the operation{did_you_mean(rest, parameters)}"
        raise Wrong(says=f"found the placeholder {{{found}}}: {known}")
    near = f"; did you mean '{{path:{found}}}'?" if found in parameters else did_you_mean(found, WORDS)
    raise Wrong(says=f"found the placeholder {{{found}}}, allowed: {_ALLOWED}{near}")
