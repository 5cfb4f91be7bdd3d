"""A policy as facts: what a file means, name by name, however it is written.

They are read off the compiled values, field by field, so that a field nobody thought of here is compared all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from proxy.core.classify import Row
from proxy.core.contract import Place
from proxy.core.money import Money
from proxy.core.notice import HeaderPart
from proxy.core.policy import Policy, Provider, Route
from proxy.core.template import Template
from proxy.policy.expressions import JmesPath
from proxy.policy.scalars import duration_text
from proxy.policy.templates import ExpressionTemplate, template_text

Facts = dict[str, str]

NOTHING = "nothing"
# What every operation of a file has alike: told once, of the file. And what says only where it came from.
_OF_THE_FILE = frozenset({"upstream", "account", "merchant", "encoding", "budget", "problem", "credentials", "observe"})
_NO_FACT = frozenset({"provider", "operation", "revision", "name", "content", "source", "policies", "identity"})
_TOLD_ELSEWHERE = frozenset(
    {
        "classify.rows",
        "classify.moves_money",  # the kind says it
        "classify.encoding",
        "contract.can_be_asked",  # `ask` says it
        "notices.answers",  # rows
        "identity_change_accepted",
        "key_name",
    }
)
_NAMES = {
    "routes": "match",
    "contract": "idempotency",
    "contract.webhook_expected": "webhook expected",
    "take_from": "idempotency.take_from",
    "key_required": "idempotency.required",
    "retry_default": "retry.default",
    "classify.answers": "answer",
    "classify.reference": "reference",
    "classify.fit": "fits",
    "names": "name in keys",
    "encoding": "body",
    "inquiries": "ask",
    "fallbacks": "fallback",
    "priorities": "priority",
    "notices": "webhook",
    "observe": "only observed",
}
_SHARES = frozenset({"bad", "unknown", "slow", "throttled", "ratio", "ceiling"})


def operation_facts(policy: Policy) -> Facts:
    """What is said of one operation. Its rows are not among it."""
    return dict(_facts(policy, _TOLD_ELSEWHERE | _OF_THE_FILE))


def provider_facts(provider: Provider) -> Facts:
    """What is said of all operations alike, and of the provider itself."""
    found = dict(_facts(provider, _TOLD_ELSEWHERE | {"timeouts"}))  # each operation has its own, or these
    first = provider.policies[0] if provider.policies else None
    for name in sorted(_OF_THE_FILE) if first is not None else ():
        found.update(_flat(getattr(first, name), name))
    return found


def _facts(value: Any, left_out: frozenset[str]) -> Iterator[tuple[str, str]]:
    for field in fields(value):
        if field.name not in _NO_FACT | left_out:
            yield from _flat(getattr(value, field.name), field.name, left_out)


def _flat(value: Any, path: str, left_out: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """The value's parts under their names; nothing where it is empty."""
    if path in left_out or _is_empty(value):
        return
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{path}.{key}" if key else path, left_out)
    elif _has_parts(value):
        for field in fields(value):
            yield from _flat(getattr(value, field.name), f"{path}.{field.name}", left_out)
    elif isinstance(value, tuple) and any(_has_parts(item) and not isinstance(item, Row) for item in value):
        for index, item in enumerate(value):
            yield f"{_named(path)}[{index}]", _in_one_line(item, path)
    else:
        yield _named(path), _text(value, path)


def _in_one_line(value: Any, path: str) -> str:
    parts = [(name, text) for field in fields(value) for name, text in _flat(getattr(value, field.name), field.name)]
    return ", ".join(f"{name} {text}" for name, text in parts if name != "name")


def _has_parts(value: Any) -> bool:
    whole = (Place, Route, JmesPath, Money, Template, ExpressionTemplate, HeaderPart)
    return is_dataclass(value) and not isinstance(value, whole)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (tuple, list, frozenset, Mapping, str)) and not value)


def _named(path: str) -> str:
    """The name as a policy writes it, as far as it does."""
    for ours, theirs in sorted(_NAMES.items(), key=lambda pair: -len(pair[0])):
        if path == ours or path.startswith(f"{ours}."):
            path = theirs + path[len(ours) :]
            break
    return path.removesuffix("_s")


def _text(value: Any, path: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _number(value, path.rpartition(".")[2])
    if isinstance(value, (tuple, list)):
        return _listed(value, path)
    if isinstance(value, frozenset):
        return f"[{', '.join(sorted(_text(item, path) for item in value))}]"
    if isinstance(value, Template):
        return template_text(value)
    if isinstance(value, ExpressionTemplate):
        return template_text(value.template)
    if isinstance(value, HeaderPart):
        return f"header:{value.name}"
    return str(value.value) if isinstance(value, Enum) else str(value)


def _number(value: float, name: str) -> str:
    if name.endswith("_s"):
        return duration_text(value)
    return f"{value * 100:g}%" if name in _SHARES else f"{value:g}"


def _listed(value: tuple[Any, ...] | list[Any], path: str) -> str:
    if all(isinstance(item, Row) for item in value):
        return ", ".join(dict.fromkeys(item.name.rpartition("[")[0] for item in value))
    pairs = all(isinstance(item, tuple) and len(item) == 2 for item in value)
    texts = [
        f"{_text(item[0], path)}: {_text(item[1], path)}" if pairs else _text(item, path)  # headers, finders
        for item in value
    ]
    return f"[{', '.join(texts)}]"
