"""Which rules of a policy file the cases reach: its operations, its rows, the codes of its tables.

The cases run on an instrumented provider. It decides exactly as the original does, and its rows report each match. Only
rules that the file itself contains count: the policy that it extends has cases of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import ResponseRule
from paywitness.core.evidence import Response
from paywitness.core.policy import Policy, Provider
from paywitness.core.record import record
from paywitness.core.result import ResultClass
from paywitness.policy.reading.document import ListNode, MapNode, Node, TextNode, read_document
from paywitness.policy.reading.locations import FileProblems, SourceLocation
from paywitness.policy.shipped_policies import resolve_extends


@dataclass(frozen=True, slots=True)
class ReachedRule:
    """A row that matched, with its table's code if it has one. No code: by `otherwise`."""

    rule: str
    result_class: ResultClass
    code: str | None = None
    observed: bool = False  # the row is in shadow mode, and was passed over


OnReached = Callable[[ReachedRule], None]


def _ignore(_: ReachedRule) -> None:
    return None


@record
class InstrumentedResponseRule(ResponseRule):
    on_reached: OnReached = _ignore

    def read(self, response: Response, tree: Tree) -> ResultClass | None:
        result_class = ResponseRule.read(self, response, tree)
        if result_class is not None:
            found = str(self.code(tree)) if self.code is not None else None
            listed = found is not None and found in (self.table or {})
            self.on_reached(ReachedRule(self.name, result_class, found if listed else None, self.observe))
        return result_class


def instrumented(provider: Provider, on_reached: OnReached) -> Provider:
    """The provider with rows that report each match."""
    webhook_rules = provider.webhook_rules
    if webhook_rules is not None:
        answers = {name: _instrumented_rules(rows, on_reached) for name, rows in webhook_rules.answers.items()}
        webhook_rules = replace(
            webhook_rules, answers=answers, read=_instrumented_rules(webhook_rules.read, on_reached)
        )
    policies = tuple(_instrumented_policy(policy, on_reached) for policy in provider.policies)
    return replace(provider, policies=policies, webhook_rules=webhook_rules)


def _instrumented_policy(policy: Policy, on_reached: OnReached) -> Policy:
    rules = policy.classify
    cancel = policy.cancel
    return replace(
        policy,
        classify=replace(
            rules,
            rows=_instrumented_rules(rules.rows, on_reached),
            answers=_instrumented_rules(rules.answers, on_reached),
        ),
        inquiries=tuple(replace(one, answers=_instrumented_rules(one.answers, on_reached)) for one in policy.inquiries),
        cancel=replace(cancel, read=_instrumented_rules(cancel.read, on_reached)) if cancel is not None else None,
    )


def _instrumented_rules(rows: tuple[ResponseRule, ...], on_reached: OnReached) -> tuple[ResponseRule, ...]:
    names = ResponseRule.__dataclass_fields__
    return tuple(
        InstrumentedResponseRule(**{name: getattr(row, name) for name in names}, on_reached=on_reached) for row in rows
    )


# --- Coverage

# In the order of the report. `reads` are the rows for a cancel's response or an event.
KINDS = ("operations", "classify", "answers", "reads", "tables")


@dataclass(frozen=True, slots=True)
class CoverageTarget:
    """One rule that a case can reach."""

    kind: str
    name: str  # sale, classify[2], answers.charge[0], classify[2].otherwise, tables.declines: stolen_card
    location: SourceLocation
    description: str = ""  # its result, for a person


@dataclass(frozen=True, slots=True)
class Coverage:
    targets: tuple[CoverageTarget, ...]
    reached: frozenset[str]

    @property
    def missing(self) -> tuple[CoverageTarget, ...]:
        return tuple(rule for rule in self.targets if rule.name not in self.reached)

    def counts(self) -> Iterator[tuple[str, int, int]]:
        """For each kind that the file has: its name, the number reached, the number in all."""
        for kind in KINDS:
            rules = [rule for rule in self.targets if rule.kind == kind]
            if rules:
                yield kind, sum(rule.name in self.reached for rule in rules), len(rules)


def coverage_of(content: bytes, source: str, operations: Iterable[str], reached: Iterable[ReachedRule]) -> Coverage:
    """The rules that the cases of a file reached. The file has been compiled before, so it is valid."""
    document = read_document(content, source, FileProblems())
    resolved = resolve_extends(document, FileProblems()) if document is not None else None
    if resolved is None:
        return Coverage((), frozenset())
    rows = dict(_rows(resolved))
    found = [rule for rule in _targets(resolved, rows) if rule.location.file == source]
    return Coverage(tuple(found), frozenset(operations) | frozenset(_reached_names(reached, rows)))


def _reached_names(reached: Iterable[ReachedRule], rows: dict[str, MapNode]) -> Iterator[str]:
    for one in reached:
        yield one.rule
        table = _text(rows[one.rule], "table") if one.rule in rows else ""
        if table:
            yield _code_name(table, one.code) if one.code is not None else f"{one.rule}.otherwise"


def _targets(document: MapNode, rows: dict[str, MapNode]) -> Iterator[CoverageTarget]:
    operations = document.entries.get("operations")
    if isinstance(operations, MapNode):
        for name, location in operations.key_locations.items():
            yield CoverageTarget("operations", name, location)
    for name, row in rows.items():
        top = name.partition("[")[0].partition(".")[0]
        kind = top if top in {"classify", "answers"} else "reads"
        description = _text(row, "as") or f"by the table {_text(row, 'table')}"
        yield CoverageTarget(kind, name, row.location, description)
        if "otherwise" in row.entries:
            node = row.entries["otherwise"]
            yield CoverageTarget(
                kind, f"{name}.otherwise", node.location, f"{_text(row, 'otherwise')}: a code not in the table"
            )
    for table, buckets in _maps(document.entries.get("tables")):
        for bucket, codes in buckets.entries.items():
            for item in codes.items if isinstance(codes, ListNode) else ():
                if isinstance(item, TextNode):
                    yield CoverageTarget("tables", _code_name(table, item.text), item.location, bucket)


def _rows(document: MapNode) -> Iterator[tuple[str, MapNode]]:
    """Every row of the file, under the name of the compiled row."""
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


def _code_name(table: str, code: str) -> str:
    return f"tables.{table}: {code}"
