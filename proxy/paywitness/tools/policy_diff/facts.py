"""A policy as named facts: the meaning of a file, however it is written.

The facts are read from the fields of the compiled values, so a new field is compared without any change here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from difflib import SequenceMatcher
from enum import Enum
from typing import Any

from paywitness.core.classify import ResponseRule
from paywitness.core.money import Money
from paywitness.core.policy import Policy, Provider, Route
from paywitness.core.provider_contract import FieldRef
from paywitness.core.template import Template
from paywitness.core.webhook_event import EventIdHeader
from paywitness.policy.reading.expressions import JmesPath
from paywitness.policy.reading.templates import ExpressionTemplate, template_text
from paywitness.policy.reading.value_readers import duration_text

Facts = dict[str, str]

NOTHING = "nothing"
# Facts that all operations of a file share are reported once, for the file. Fields that only hold the origin of a
# policy are left out.
_FILE_WIDE = frozenset(
    {
        "upstream",
        "account",
        "merchant",
        "encoding",
        "budget",
        "limited_by",
        "request_id_header",
        "problem",
        "credentials",
        "accounts",
        "observe",
    }
)
_NOT_FACTS = frozenset({"provider", "operation", "revision", "name", "content", "source", "policies", "identity"})
_REPORTED_ELSEWHERE = frozenset(
    {
        "classify.rows",
        "classify.moves_money",  # follows from the kind
        "classify.encoding",
        "contract.supports_inquiry",  # follows from `ask`
        "webhook_rules.answers",  # rows
        "identity_change_accepted",
        "key_name",
    }
)
_POLICY_KEYS = {
    "routes": "match",
    "contract": "idempotency",
    "contract.webhook_expected": "webhook expected",
    "take_from": "idempotency.take_from",
    "key_required": "idempotency.required",
    "retry_default": "retry.default",
    "classify.answers": "answer",
    "classify.reference": "reference",
    "classify.fit": "fits",
    "payment.acts_on": "payment",
    "payment.increment_means": "means",
    "payment.failed_is_return": "failed_after_success",
    "payment.continued_without_account": "names are kept without an account",
    **{f"payment.{key}": key for key in ("also_known_as", "captures", "balance", "limits", "final", "partial")},
    **{
        f"payment.{key}": key for key in ("continues", "once_per_target", "intent_total", "intent_at", "capture_before")
    },
    "payment.authorization_expires_s": "authorization_expires",
    "payment.overcapture": "overcapture",
    "names": "name in keys",
    "encoding": "body",
    "inquiries": "ask",
    "fallbacks": "fallback",
    "priorities": "priority",
    "webhook_rules": "webhook",
    "observe": "only observed",
}
_BOOLEANS = {"payment.captures": ("manual", "automatic"), "payment.failed_is_return": ("incident", "returned")}
_SHARES = frozenset({"bad", "unknown", "slow", "throttled", "ratio", "ceiling"})


def operation_facts(policy: Policy) -> Facts:
    """The facts of one operation, without its rows."""
    return dict(_facts(policy, _REPORTED_ELSEWHERE | _FILE_WIDE))


def provider_facts(provider: Provider) -> Facts:
    """The facts that all operations share, and those of the provider itself."""
    found = dict(_facts(provider, _REPORTED_ELSEWHERE | {"timeouts"}))  # an operation either has its own or these
    first = provider.policies[0] if provider.policies else None
    for name in sorted(_FILE_WIDE) if first is not None else ():
        found.update(_flattened(getattr(first, name), name))
    return found


def _facts(value: Any, left_out: frozenset[str]) -> Iterator[tuple[str, str]]:
    for field in _given(value):
        if field.name not in _NOT_FACTS | left_out:
            yield from _flattened(getattr(value, field.name), field.name, left_out)


def _given(value: Any) -> list[Field[Any]]:
    """The fields of a dataclass, less those that follow from the others."""
    return [field for field in fields(value) if field.init]


def _flattened(value: Any, path: str, left_out: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """The parts of the value, each under its name. Empty parts are left out."""
    if path in left_out or _is_empty(value):
        return
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flattened(part, f"{path}.{key}" if key else path, left_out)
    elif _has_parts(value):
        for field in _given(value):
            yield from _flattened(getattr(value, field.name), f"{path}.{field.name}", left_out)
    elif path == "accounts.named":
        yield from ((f"accounts.{item.name}", _in_one_line(item, path)) for item in value)
    elif isinstance(value, tuple) and any(_has_parts(item) and not isinstance(item, ResponseRule) for item in value):
        for index, item in enumerate(value):
            yield f"{_policy_key(path)}[{index}]", _in_one_line(item, path)
    else:
        yield _policy_key(path), _text(value, path)


def _in_one_line(value: Any, path: str) -> str:
    parts = [
        (name, text) for field in _given(value) for name, text in _flattened(getattr(value, field.name), field.name)
    ]
    return ", ".join(f"{name} {text}" for name, text in parts if name != "name")


def _has_parts(value: Any) -> bool:
    whole = (FieldRef, Route, JmesPath, Money, Template, ExpressionTemplate, EventIdHeader)
    return is_dataclass(value) and not isinstance(value, whole)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (tuple, list, frozenset, Mapping, str)) and not value)


def _policy_key(path: str) -> str:
    """The name of the field in a policy file, if it has one."""
    for ours, theirs in sorted(_POLICY_KEYS.items(), key=lambda pair: -len(pair[0])):
        if path == ours or path.startswith(f"{ours}."):
            path = theirs + path[len(ours) :]
            break
    return path.removesuffix("_s")


def _text(value: Any, path: str) -> str:
    if isinstance(value, bool):
        return _BOOLEANS.get(path, ("no", "yes"))[value]
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
    if isinstance(value, EventIdHeader):
        return f"header:{value.name}"
    return str(value.value) if isinstance(value, Enum) else str(value)


def _number(value: float, name: str) -> str:
    if name.endswith("_s"):
        return duration_text(value)
    return f"{value * 100:g}%" if name in _SHARES else f"{value:g}"


def _listed(value: tuple[Any, ...] | list[Any], path: str) -> str:
    if all(isinstance(item, ResponseRule) for item in value):
        return ", ".join(dict.fromkeys(item.name.rpartition("[")[0] for item in value))
    pairs = all(isinstance(item, tuple) and len(item) == 2 for item in value)
    texts = [
        f"{_text(item[0], path)}: {_text(item[1], path)}" if pairs else _text(item, path)  # headers, finders
        for item in value
    ]
    return f"[{', '.join(texts)}]"


# --- Rows and tables
# The changes in rows and tables.

_ADDED, _REMOVED, _MOVED, _CHANGED = "added", "removed", "moved", "changed"


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row that was added, removed, moved or changed. `row` is its place in the new list; for a removed row, in the
    old one."""

    kind: str
    row: str
    old: str
    new: str

    def __str__(self) -> str:
        match self.kind:
            case "moved":
                return f"{self.old} moved to {self.row}: {self.new}"
            case "changed":
                return f"{self.row} changed: {self.old} -> {self.new.partition(_ARROW)[2]}"
            case _:
                return f"{self.row} {self.kind}: {self.new if self.kind == _ADDED else self.old}"


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A code whose result class in a table was changed, removed or added."""

    table: str
    code: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"tables.{self.table}: {self.code}: {self.old} -> {self.new}"


def rows_of(provider: Provider) -> dict[str, ResponseRule]:
    """Every row that classifies something, by its name."""
    found: dict[str, ResponseRule] = {}
    for policy in provider.policies:
        lists = [policy.classify.rows, policy.classify.answers, *(inquiry.answers for inquiry in policy.inquiries)]
        lists += [policy.cancel.read] if policy.cancel is not None else []
        found.update((row.name, row) for rows in lists for row in rows)
    if provider.webhook_rules is not None:
        found.update((row.name, row) for row in provider.webhook_rules.read)
        found.update((row.name, row) for rows in provider.webhook_rules.answers.values() for row in rows)
    return found


def row_changes(old: Provider, new: Provider) -> list[RowChange]:
    """The changes of each list of rows. Rows are matched by their content, not by their place."""
    before, after = _lists(old), _lists(new)
    return [
        change
        for name in sorted(before.keys() | after.keys())
        for change in _list_changes(name, before.get(name, []), after.get(name, []))
    ]


def _lists(provider: Provider) -> dict[str, list[str]]:
    names = _table_names(provider)
    lists: dict[str, dict[int, str]] = {}
    for name, row in rows_of(provider).items():
        of, _, index = name.rpartition("[")
        lists.setdefault(of, {})[int(index.removesuffix("]"))] = row_text(row, names.get(name, ""))
    return {name: [rows[index] for index in sorted(rows)] for name, rows in lists.items()}


def _list_changes(name: str, old: list[str], new: list[str]) -> Iterator[RowChange]:
    gone: list[tuple[int, str]] = []
    come: list[tuple[int, str]] = []
    changed: list[RowChange] = []
    for tag, old_from, old_to, new_from, new_to in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        gone += [(index, old[index]) for index in range(old_from, old_to)]
        come += [(index, new[index]) for index in range(new_from, new_to)]
    for position, text in list(gone):
        elsewhere = next((found for found in come if found[1] == text), None)
        if elsewhere is not None:
            gone.remove((position, text))
            come.remove(elsewhere)
            changed.append(RowChange(_MOVED, f"{name}[{elsewhere[0]}]", f"{name}[{position}]", text))
    for position, text in list(gone):
        alike = next((found for found in come if _condition(found[1]) == _condition(text)), None)
        if alike is not None:
            gone.remove((position, text))
            come.remove(alike)
            changed.append(RowChange(_CHANGED, f"{name}[{alike[0]}]", text, alike[1]))
    yield from (RowChange(_REMOVED, f"{name}[{position}]", text, "") for position, text in gone)
    yield from (RowChange(_ADDED, f"{name}[{position}]", "", text) for position, text in come)
    yield from changed


_ARROW = " => "


def row_text(row: ResponseRule, table: str = "") -> str:
    """The row in one line: its conditions and its result."""
    conditions = [f"status {_statuses(row.status_codes)}"] if row.status_codes is not None else []
    conditions += [f"{name}: {value}" for name, value in row.headers]
    conditions += [f"when {row.when}"] if row.when is not None else []
    results = [str(row.result_class)] if row.result_class is not None else []
    results += [f"{row.code} by {table or 'a table'}"] if row.code is not None else []
    results += [f"otherwise {row.otherwise}"] if row.otherwise is not None else []
    already_listed = {"name", "status_codes", "headers", "when", "result_class", "code", "table", "otherwise"}
    for field in fields(row):
        value = getattr(row, field.name)
        if field.name not in already_listed and value != field.default:
            results.append(f"{field.name} {str(value).lower()}")
    return " and ".join(conditions) + _ARROW + ", ".join(results)


def _condition(text: str) -> str:
    return text.partition(_ARROW)[0]


def _statuses(codes: frozenset[int]) -> str:
    hundreds = [f"{group}xx" for group in range(1, 6) if frozenset(range(group * 100, group * 100 + 100)) <= codes]
    single = [str(code) for code in sorted(codes) if f"{code // 100}xx" not in hundreds]
    return " or ".join([*single, *hundreds])


def table_changes(old: Provider, new: Provider) -> list[CodeChange]:
    before, after = _tables(old), _tables(new)
    changes = []
    for name in sorted(before.keys() | after.keys()):
        was, is_now = before.get(name, {}), after.get(name, {})
        for code in sorted(was.keys() | is_now.keys()):
            if was.get(code) != is_now.get(code):
                changes.append(CodeChange(name, code, was.get(code, NOTHING), is_now.get(code, NOTHING)))
    return changes


def _tables(provider: Provider) -> dict[str, dict[str, str]]:
    """The tables that some row uses, from the code to the result class."""
    used = set(_table_names(provider).values())
    tables: Mapping[str, Mapping[str, list[Any]]] = _content(provider).get("tables", {})
    return {
        name: {str(code): result_class for result_class, codes in buckets.items() for code in codes}
        for name, buckets in tables.items()
        if name in used
    }


def _table_names(provider: Provider) -> dict[str, str]:
    """The name of the table of each row that has one. A compiled row holds the table itself."""
    content = _content(provider)
    found = {}
    for name, row in rows_of(provider).items():
        if row.table is not None:
            found[name] = str(_row_content(content, name).get("table", ""))
    return found


def _row_content(content: Any, name: str) -> Mapping[str, Any]:
    """The entry at the row's name: answers.charge[0], operations.sale.cancel.read[1]."""
    path, _, index = name.rpartition("[")
    for key in path.split("."):
        content = content.get(key, {}) if isinstance(content, dict) else {}
    position = int(index.removesuffix("]"))
    row = content[position] if isinstance(content, list) and position < len(content) else {}
    return row if isinstance(row, dict) else {}


def _content(provider: Provider) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(provider.content)  # canonical: JSON
    return content
