"""`paywitness policy diff OLD NEW`: the facts, rows, tables and case results that an edit changes.

It compares meanings, not texts: a comment, another order of keys or a written-out default makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paywitness.core.errors import PolicyError
from paywitness.core.policy import Provider
from paywitness.policy.book import compile_content, cross_file_problems, policy_files, read_policy_file
from paywitness.policy.identity_rules import identity_changes
from paywitness.tools.policy_diff.facts import (
    NOTHING,
    CodeChange,
    Facts,
    RowChange,
    operation_facts,
    provider_facts,
    row_changes,
    row_text,
    rows_of,
    table_changes,
)
from paywitness.tools.policy_test.case import Case
from paywitness.tools.policy_test.case_evaluation import evaluate_case
from paywitness.tools.policy_test.case_file import read_case_file
from paywitness.tools.policy_test.case_runner import CASES_FOLDER
from paywitness.tools.policy_test.recognition import CaseError

EVERY_OPERATION = "every operation"
_NOT_RUN = "cannot be run"


@dataclass(frozen=True, slots=True)
class FactChange:
    """One fact whose value has changed."""

    operation: str  # a name, EVERY_OPERATION, or "" for the provider itself
    fact: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class CaseChange:
    """One case with another result."""

    case: Case
    facts: tuple[tuple[str, str, str], ...]  # name, old, new


@dataclass(slots=True)
class ProviderDiff:
    """The changes of one provider. `old` or `new` is None if only one of the two has it."""

    name: str
    old: Provider | None
    new: Provider | None
    identity: list[str] = field(default_factory=list)  # the changes that give known calls another identity
    operations_added: list[str] = field(default_factory=list)
    operations_removed: list[str] = field(default_factory=list)
    facts: list[FactChange] = field(default_factory=list)
    rows: list[RowChange] = field(default_factory=list)
    codes: list[CodeChange] = field(default_factory=list)
    cases: list[CaseChange] = field(default_factory=list)
    cases_run: int = 0
    case_file: str = ""

    @property
    def differs(self) -> bool:
        found = (self.operations_added, self.operations_removed, self.facts, self.rows, self.codes, self.cases)
        return self.old is None or self.new is None or any(found)


@dataclass(frozen=True, slots=True)
class LoadedPolicies:
    """The policies of a file or a directory."""

    providers: dict[str, Provider]
    cases: dict[str, Path]  # the path of each provider's case file, whether it exists or not


def load(path: Path) -> LoadedPolicies:
    """Read a policy file, or a directory of them. Raises PolicyError with every problem."""
    files = policy_files(path) if path.is_dir() else [path]
    if not files:
        raise PolicyError((f"{path}: found no policy file (*.yaml, *.yml)",))
    problems: list[str] = []
    compiled = []
    for file in files:
        try:
            compiled.append(compile_content(read_policy_file(file), str(file)))
        except PolicyError as error:
            problems += error.problems
    problems += cross_file_problems(compiled, complete=path.is_dir() and not problems)
    if problems:
        raise PolicyError(tuple(problems))
    providers = {found.provider.name: found.provider for found in compiled}
    places = {name: Path(provider.source) for name, provider in providers.items()}
    return LoadedPolicies(providers, {name: file.parent / CASES_FOLDER / file.name for name, file in places.items()})


def diff(old: Path, new: Path) -> list[ProviderDiff]:
    """The changes between two files, or two directories: one entry for each provider. Raises PolicyError."""
    if old.is_dir() != new.is_dir():
        raise PolicyError((f"{old} and {new}: compare two files, or two directories",))
    before, after = load(old), load(new)
    if not old.is_dir():
        return [_file_pair(before, after)]
    names = sorted(before.providers.keys() | after.providers.keys())
    return [_provider_diff(name, before, after, name) for name in names]


def _file_pair(before: LoadedPolicies, after: LoadedPolicies) -> ProviderDiff:
    """Two files are compared even if their providers have different names. The name is then one of the changes."""
    ((was, _),), ((now, _),) = before.providers.items(), after.providers.items()
    return _provider_diff(now, before, after, was)


def _provider_diff(name: str, before: LoadedPolicies, after: LoadedPolicies, former_name: str) -> ProviderDiff:
    old, new = before.providers.get(former_name), after.providers.get(name)
    found = ProviderDiff(name, old, new)
    if old is None or new is None:
        return found
    found.identity = identity_changes(old, new)
    was = {policy.operation: operation_facts(policy) for policy in old.policies}
    now = {policy.operation: operation_facts(policy) for policy in new.policies}
    found.operations_added = [operation for operation in now if operation not in was]
    found.operations_removed = [operation for operation in was if operation not in now]
    found.facts = [*_provider_changes(old, new), *_operation_changes(was, now)]
    found.rows, found.codes = row_changes(old, new), table_changes(old, new)
    file = next((path for path in (after.cases[name], before.cases[former_name]) if path.is_file()), None)
    if file is not None:
        cases = read_case_file(read_policy_file(file), str(file)).cases
        found.case_file, found.cases_run = str(file), len(cases)
        found.cases = _case_changes(cases, old, new)
    return found


def _provider_changes(old: Provider, new: Provider) -> Iterator[FactChange]:
    if old.name != new.name:
        yield FactChange("", "provider", old.name, new.name)
    yield from _changes("", provider_facts(old), provider_facts(new))
    order = [[policy.operation for policy in provider.policies] for provider in (old, new)]
    both = set(order[0]) & set(order[1])
    was, now = ([name for name in names if name in both] for names in order)
    if was != now:
        yield FactChange("", "order of operations", ", ".join(was), ", ".join(now))


def _operation_changes(was: dict[str, Facts], now: dict[str, Facts]) -> Iterator[FactChange]:
    """The changes of each operation. A change that all operations share is reported once."""
    common = [operation for operation in now if operation in was]
    each = {operation: list(_changes(operation, was[operation], now[operation])) for operation in common}
    change_sets = [{(change.fact, change.old, change.new) for change in changes} for changes in each.values()]
    alike = set.intersection(*change_sets) if len(change_sets) > 1 else set()
    first = each[common[0]] if common else []
    for change in first:
        if (change.fact, change.old, change.new) in alike:
            yield FactChange(EVERY_OPERATION, change.fact, change.old, change.new)
    for changes in each.values():
        yield from (change for change in changes if (change.fact, change.old, change.new) not in alike)


def _changes(operation: str, was: Facts, now: Facts) -> Iterator[FactChange]:
    for fact in (*was, *(name for name in now if name not in was)):
        old, new = was.get(fact, NOTHING), now.get(fact, NOTHING)
        if old != new:
            yield FactChange(operation, fact, old, new)


def _case_changes(cases: Iterable[Case], old: Provider, new: Provider) -> list[CaseChange]:
    changes = []
    row_texts = [{name: row_text(row) for name, row in rows_of(provider).items()} for provider in (old, new)]
    for case in cases:
        was, now = _facts_of(case, old), _facts_of(case, new)
        names = (*was, *(name for name in now if name not in was))
        facts = [(name, was.get(name, "none"), now.get(name, "none")) for name in names]
        # A row is identified by its content: a row inserted before it changes only its number.
        differing = [fact for fact in facts if row_texts[0].get(fact[1], fact[1]) != row_texts[1].get(fact[2], fact[2])]
        if differing:
            changes.append(CaseChange(case, tuple(differing)))
    return changes


def _facts_of(case: Case, provider: Provider) -> Facts:
    try:
        return evaluate_case(case, provider).facts
    except CaseError as error:
        return {_NOT_RUN: str(error)}
