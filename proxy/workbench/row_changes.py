"""What an edit changes in the rows that read answers, and in the tables that they look codes up in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from typing import Any

from proxy.core.classify import Row
from proxy.core.policy import Provider
from proxy.workbench.policy_facts import NOTHING

_ADDED, _REMOVED, _MOVED, _CHANGED = "added", "removed", "moved", "changed"


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row that was added, removed, moved or changed. `row` is where it stands; of a removed one, where it did."""

    kind: str
    row: str
    old: str
    new: str

    def __str__(self) -> str:
        match self.kind:
            case "moved":
                return f"{self.old} moved to {self.row}: {self.new}"
            case "changed":
                return f"{self.row} changed: {self.old} -> {self.new.partition(_SAYS)[2]}"
            case _:
                return f"{self.row} {self.kind}: {self.new if self.kind == _ADDED else self.old}"


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A code that a table reads otherwise, no longer or for the first time."""

    table: str
    code: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"tables.{self.table}: {self.code}: {self.old} -> {self.new}"


def rows_of(provider: Provider) -> dict[str, Row]:
    """Every row that reads anything, by its name."""
    found: dict[str, Row] = {}
    for policy in provider.policies:
        lists = [policy.classify.rows, policy.classify.answers, *(inquiry.answers for inquiry in policy.inquiries)]
        lists += [policy.cancel.read] if policy.cancel is not None else []
        found.update((row.name, row) for rows in lists for row in rows)
    if provider.notices is not None:
        found.update((row.name, row) for row in provider.notices.read)
        found.update((row.name, row) for rows in provider.notices.answers.values() for row in rows)
    return found


def row_changes(old: Provider, new: Provider) -> list[RowChange]:
    """Rows of the same list are held against each other by what they say, wherever they stand in it."""
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
    for place, text in list(gone):
        elsewhere = next((found for found in come if found[1] == text), None)
        if elsewhere is not None:
            gone.remove((place, text))
            come.remove(elsewhere)
            changed.append(RowChange(_MOVED, f"{name}[{elsewhere[0]}]", f"{name}[{place}]", text))
    for place, text in list(gone):
        alike = next((found for found in come if _condition(found[1]) == _condition(text)), None)
        if alike is not None:
            gone.remove((place, text))
            come.remove(alike)
            changed.append(RowChange(_CHANGED, f"{name}[{alike[0]}]", text, alike[1]))
    yield from (RowChange(_REMOVED, f"{name}[{place}]", text, "") for place, text in gone)
    yield from (RowChange(_ADDED, f"{name}[{place}]", "", text) for place, text in come)
    yield from changed


_SAYS = " => "


def row_text(row: Row, table: str = "") -> str:
    """The row in a line: its conditions, and what it says where they hold."""
    conditions = [f"status {_statuses(row.status_codes)}"] if row.status_codes is not None else []
    conditions += [f"{name}: {value}" for name, value in row.headers]
    conditions += [f"when {row.when}"] if row.when is not None else []
    says = [str(row.reading)] if row.reading is not None else []
    says += [f"{row.code} by {table or 'a table'}"] if row.code is not None else []
    says += [f"otherwise {row.otherwise}"] if row.otherwise is not None else []
    told = {"name", "status_codes", "headers", "when", "reading", "code", "table", "otherwise"}
    for field in fields(row):
        value = getattr(row, field.name)
        if field.name not in told and value != field.default:
            says.append(f"{field.name} {str(value).lower()}")
    return " and ".join(conditions) + _SAYS + ", ".join(says)


def _condition(text: str) -> str:
    return text.partition(_SAYS)[0]


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
    """The tables that some row looks into, from the code to the reading."""
    used = set(_table_names(provider).values())
    tables: Mapping[str, Mapping[str, list[Any]]] = _content(provider).get("tables", {})
    return {
        name: {str(code): reading for reading, codes in buckets.items() for code in codes}
        for name, buckets in tables.items()
        if name in used
    }


def _table_names(provider: Provider) -> dict[str, str]:
    """The name of the table of each row that has one. A compiled row holds the table itself."""
    content = _content(provider)
    found = {}
    for name, row in rows_of(provider).items():
        if row.table is not None:
            found[name] = str(_at(content, name).get("table", ""))
    return found


def _at(content: Any, name: str) -> Mapping[str, Any]:
    """What stands under the row's name: answers.charge[0], operations.sale.cancel.read[1]."""
    path, _, index = name.rpartition("[")
    for key in path.split("."):
        content = content.get(key, {}) if isinstance(content, dict) else {}
    position = int(index.removesuffix("]"))
    row = content[position] if isinstance(content, list) and position < len(content) else {}
    return row if isinstance(row, dict) else {}


def _content(provider: Provider) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(provider.content)  # canonical: JSON
    return content
