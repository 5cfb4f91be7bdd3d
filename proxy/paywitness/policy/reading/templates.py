"""Reads templates: texts with placeholders, filled from an operation, such as `GET /v1/charges/{reference}`.

The result is a `core.template.Template`. The sender of an inquiry fills it in, encoded for its place. An expression
with placeholders is compiled again for each operation: the values are texts in single quotes in it. If a value could
end such a text, the whole expression is unavailable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from paywitness.core.template import Placeholder, Template, TemplateValues
from paywitness.policy.reading.expressions import JmesPath, expression
from paywitness.policy.reading.locations import did_you_mean, listed
from paywitness.policy.reading.value_readers import InvalidValue, Reader, header_name

PLACEHOLDERS = ("provider_key", "client_key", "operation_id", "reference", "amount", "currency", "since")
_ALLOWED = listed(
    [*(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS), "{header:Name}", "{path:name}", "{body:JMESPath}"]
)
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_KNOWN_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r"|(?:header|path|body):[^{}]+)\}")
# Inside quotes, a text of this form is meant as a placeholder.
_INTENDED_PLACEHOLDER = re.compile(r"\{([A-Za-z_]+(?::[^{}]*)?)\}")
# Names that can tell one operation from all others; an amount, a currency or a header cannot.
_IDENTIFYING = frozenset({"provider_key", "client_key", "operation_id", "reference", "path", "body"})
# Names that no other operation has. Another payment of the same order has the same order number.
_UNIQUE = frozenset({"provider_key", "operation_id", "reference"})
_COMPILED_MAX = 256  # about one for each operation that inquiries are made for


def identifies_operation(found: Template) -> bool:
    return any(blank.head in _IDENTIFYING for blank in found.placeholders)


def identifies_operation_uniquely(found: Template) -> bool:
    """Whether its names fit no other operation."""
    return any(blank.head in _UNIQUE for blank in found.placeholders)


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """`GET /v1/charges/{reference}`: the method, and the path as a template."""

    method: str
    path: Template


@dataclass(frozen=True, slots=True)
class ExpressionTemplate:
    """An expression, filled from an operation if it has placeholders. A call gives the compiled expression, or None if
    it is unavailable for this operation."""

    template: Template
    fixed: JmesPath | None  # set if it has no placeholders

    def __call__(self, values: TemplateValues) -> JmesPath | None:
        if self.fixed is not None:
            return self.fixed
        if not all(_can_be_quoted(values.of(blank)) for blank in self.template.placeholders):
            return None
        text = self.template.filled(values, _in_quotes)
        return _compiled(text) if text is not None else None


def _can_be_quoted(value: str | None) -> bool:
    """Whether the value can be in single quotes. A backslash could remove the closing quote, and line breaks and half
    characters are not allowed in an expression."""
    return value is not None and "\\" not in value and value.isprintable()


def _in_quotes(value: str) -> str:
    return value.replace("'", "\\'")


@lru_cache(maxsize=_COMPILED_MAX)
def _compiled(text: str) -> JmesPath | None:
    try:
        return expression(text)
    except InvalidValue:
        return None  # the value is so long that the expression exceeds its bound


def template(parameters: frozenset[str]) -> Reader[Template]:
    """A text in which every brace belongs to a known placeholder; `parameters` are those of the operation's paths."""

    def read(text: str) -> Template:
        parts = _parts(text, _PLACEHOLDER, parameters)
        if any("{" in part or "}" in part for part in parts if isinstance(part, str)):
            raise InvalidValue(message=f"found a brace without its partner; placeholders are {_ALLOWED}")
        return Template(parts)

    return read


def link_template(parameters: frozenset[str]) -> Reader[Template]:
    """A link to a page of the provider's, for people."""
    filled = template(parameters)

    def read(text: str) -> Template:
        begins = text.startswith(("https://", "http://")) and not text.partition("://")[2].startswith(("/", "{"))
        if not begins or not text.isascii() or not text.isprintable() or " " in text:
            raise InvalidValue("a link such as https://dashboard.example.com/payments/{reference}")
        return filled(text)

    return read


def request_template(parameters: frozenset[str], *methods: str) -> Reader[RequestTemplate]:
    """A method and a path with placeholders."""
    filled = template(parameters)

    def read(text: str) -> RequestTemplate:
        method, _, path = text.partition(" ")
        if method not in methods or not path.startswith("/") or "?" in path or " " in path:
            raise InvalidValue(
                f"{' or '.join(methods)} and a path such as /v1/charges/{{reference}}, its query under 'query'"
            )
        return RequestTemplate(method, filled(path))

    return read


def expression_template(parameters: frozenset[str]) -> Reader[ExpressionTemplate]:
    """A JMESPath expression with known placeholders inside single quotes, if any; other braces are JMESPath's own."""

    def read(text: str) -> ExpressionTemplate:
        found = Template(_parts(text, _KNOWN_PLACEHOLDER, parameters))
        _check_quotes(found, parameters)
        compiled = expression(_KNOWN_PLACEHOLDER.sub("x", text))
        return ExpressionTemplate(found, None if found.placeholders else compiled)

    return read


def _check_quotes(found: Template, parameters: frozenset[str]) -> None:
    """Check that every placeholder is inside a text in single quotes, so that a value can only be a text."""
    quote, escaped = "", False
    for part in found.parts:
        if isinstance(part, Placeholder):
            if quote != "'" or escaped:
                allowed = "allowed: inside a text, as in data[?metadata.id == '{operation_id}']"
                raise InvalidValue(
                    message=f"found the placeholder {_placeholder_text(part)} outside of single quotes, {allowed}"
                )
            continue
        inside = ""
        for sign in part:
            if escaped:
                escaped = False
            elif sign == "\\" and quote:
                escaped = True
            elif quote == sign:
                quote = ""
            elif not quote and sign in "'\"`":
                quote = sign
            inside += sign if quote == "'" else " "
        for meant in _INTENDED_PLACEHOLDER.findall(inside):
            _placeholder(meant, parameters)  # raises, because the known placeholders were taken out above


def template_text(found: Template) -> str:
    """The template as it was written."""
    return "".join(part if isinstance(part, str) else _placeholder_text(part) for part in found.parts)


def _placeholder_text(blank: Placeholder) -> str:
    return f"{{{blank.head}:{blank.name}}}" if blank.name else f"{{{blank.head}}}"


def _parts(text: str, pattern: re.Pattern[str], parameters: frozenset[str]) -> tuple[str | Placeholder, ...]:
    """The text cut at its placeholders."""
    pieces = pattern.split(text)
    parts = [_placeholder(piece, parameters) if index % 2 else piece for index, piece in enumerate(pieces)]
    return tuple(part for part in parts if part != "")


def _placeholder(found: str, parameters: frozenset[str]) -> Placeholder:
    head, colon, rest = found.partition(":")
    if not colon and head in PLACEHOLDERS:
        return Placeholder(head)
    if colon and head == "path" and rest in parameters:
        return Placeholder(head, rest)
    if colon and head == "header":
        return Placeholder(head, header_name(rest))
    if colon and head == "body":
        return Placeholder(head, rest, expression(rest))
    if head == "path" and colon:
        known = f"it is not in every 'match' of the operation{did_you_mean(rest, parameters)}"
        raise InvalidValue(message=f"found the placeholder {{{found}}}: {known}")
    near = f"; did you mean '{{path:{found}}}'?" if found in parameters else did_you_mean(found, PLACEHOLDERS)
    raise InvalidValue(message=f"found the placeholder {{{found}}}, allowed: {_ALLOWED}{near}")
