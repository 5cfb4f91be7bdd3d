"""What there is to cover in a policy file: its operations, its rows, the codes of its tables. And what cases reached.

Only what the file itself says counts: what it extends has cases of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from proxy.policy.document import ListNode, MapNode, Node, TextNode, read_document
from proxy.policy.marks import Mark, Problems
from proxy.policy.shipped import resolve_extends
from proxy.workbench.witness import Reached

# In the order in which they are told. `reads` are rows over a cancel's answer or an event.
KINDS = ("operations", "classify", "answers", "reads", "tables")


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that a case can reach."""

    kind: str
    name: str  # sale, classify[2], answers.charge[0], classify[2].otherwise, tables.declines: stolen_card
    mark: Mark
    says: str = ""  # what it reads, for a person


@dataclass(frozen=True, slots=True)
class Coverage:
    rules: tuple[Rule, ...]
    reached: frozenset[str]

    @property
    def missing(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.name not in self.reached)

    def counts(self) -> Iterator[tuple[str, int, int]]:
        """For each kind that the file has: its name, how many were reached, how many there are."""
        for kind in KINDS:
            rules = [rule for rule in self.rules if rule.kind == kind]
            if rules:
                yield kind, sum(rule.name in self.reached for rule in rules), len(rules)


def coverage_of(content: bytes, source: str, operations: Iterable[str], reached: Iterable[Reached]) -> Coverage:
    """What the cases of a file reached. The file has been compiled before: it is whole."""
    document = read_document(content, source, Problems())
    resolved = resolve_extends(document, Problems()) if document is not None else None
    if resolved is None:
        return Coverage((), frozenset())
    rows = dict(_rows(resolved))
    found = [rule for rule in _rules(resolved, rows) if rule.mark.file == source]
    return Coverage(tuple(found), frozenset(operations) | frozenset(_names_of(reached, rows)))


def _names_of(reached: Iterable[Reached], rows: dict[str, MapNode]) -> Iterator[str]:
    for one in reached:
        yield one.row
        table = _text(rows[one.row], "table") if one.row in rows else ""
        if table:
            yield _code(table, one.code) if one.code is not None else f"{one.row}.otherwise"


def _rules(document: MapNode, rows: dict[str, MapNode]) -> Iterator[Rule]:
    operations = document.entries.get("operations")
    if isinstance(operations, MapNode):
        for name, mark in operations.key_marks.items():
            yield Rule("operations", name, mark)
    for name, row in rows.items():
        top = name.partition("[")[0].partition(".")[0]
        kind = top if top in {"classify", "answers"} else "reads"
        says = _text(row, "as") or f"by the table {_text(row, 'table')}"
        yield Rule(kind, name, row.mark, says)
        if "otherwise" in row.entries:
            node = row.entries["otherwise"]
            yield Rule(kind, f"{name}.otherwise", node.mark, f"{_text(row, 'otherwise')}: a code not in the table")
    for table, buckets in _maps(document.entries.get("tables")):
        for bucket, codes in buckets.entries.items():
            for item in codes.items if isinstance(codes, ListNode) else ():
                if isinstance(item, TextNode):
                    yield Rule("tables", _code(table, item.text), item.mark, bucket)


def _rows(document: MapNode) -> Iterator[tuple[str, MapNode]]:
    """Every row of the file under the name that the compiled one has."""
    yield from _listed("classify", document.entries.get("classify"))
    answers = document.entries.get("answers")
    if isinstance(answers, MapNode):
        for name, node in answers.entries.items():
            yield from _listed(f"answers.{name}", node)
    for name, operation in _maps(document.entries.get("operations")):
        cancel = operation.entries.get("cancel")
        if isinstance(cancel, MapNode):
            yield from _listed(f"operations.{name}.cancel.read", cancel.entries.get("read"))
    webhook = document.entries.get("webhook")
    if isinstance(webhook, MapNode):
        yield from _listed("webhook.read", webhook.entries.get("read"))


def _listed(path: str, node: Node | None) -> Iterator[tuple[str, MapNode]]:
    for index, item in enumerate(node.items if isinstance(node, ListNode) else ()):
        if isinstance(item, MapNode):
            yield f"{path}[{index}]", item


def _maps(node: Node | None) -> Iterator[tuple[str, MapNode]]:
    for name, child in node.entries.items() if isinstance(node, MapNode) else ():
        if isinstance(child, MapNode):
            yield name, child


def _text(row: MapNode, key: str) -> str:
    node = row.entries.get(key)
    return node.text if isinstance(node, TextNode) else ""


def _code(table: str, code: str) -> str:
    return f"tables.{table}: {code}"
