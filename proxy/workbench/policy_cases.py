"""`paywitness policy test`: case files run against their policies; what failed, and what no case reaches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.core.errors import PolicyError
from proxy.core.policy import Provider
from proxy.policy.book import compile_content, policy_files, read_policy_file
from proxy.policy.marks import Mark
from proxy.workbench.case import Case, CaseFile
from proxy.workbench.case_file import is_case_file, read_case_file
from proxy.workbench.coverage import Coverage, coverage_of
from proxy.workbench.expectations import NONE
from proxy.workbench.recognition import CaseError
from proxy.workbench.trial import Came, tried
from proxy.workbench.why_not import why_not
from proxy.workbench.witness import Reached, witnessed

CASES_FOLDER = "tests"


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that a case expected and that did not come."""

    mark: Mark
    key: str
    expected: str
    came: str
    because: str = ""

    def __str__(self) -> str:
        told = f"expected {self.expected}, came {self.came}" if self.expected else self.came
        return f"{self.mark.file}:{self.mark.line}: {f'{self.key}: ' if self.key else ''}{told}{self.because}"


@dataclass(frozen=True, slots=True)
class Judged:
    case: Case
    operation: str
    reading: str
    failures: tuple[Failure, ...]


@dataclass(slots=True)
class CaseRun:
    """One policy file with its cases. `problems`: why they could not be run."""

    policy: str
    case_file: str
    judged: list[Judged] = field(default_factory=list)
    coverage: Coverage = Coverage((), frozenset())
    problems: tuple[str, ...] = ()
    has_cases: bool = True

    @property
    def failed(self) -> list[Judged]:
        return [judged for judged in self.judged if judged.failures]

    @property
    def ok(self) -> bool:
        return not self.problems and not self.failed

    @property
    def covered(self) -> bool:
        return self.has_cases and not self.coverage.missing


def run_policies(paths: Iterable[Path]) -> list[CaseRun]:
    """Test policies, directories of them, or case files. Never raises: whatever is wrong is told."""
    found: dict[Path, CaseRun] = {}
    for path in paths:
        try:
            for policy, cases in _pairs(path):
                if policy not in found:
                    found[policy] = _run(policy, cases)
        except (PolicyError, OSError) as error:
            told = error.problems if isinstance(error, PolicyError) else (f"{path}: {error.strerror}",)
            found[path] = CaseRun(str(path), "", problems=tuple(told), has_cases=False)
    return list(found.values())


def _pairs(path: Path) -> Iterator[tuple[Path, Path]]:
    """Each policy file under the path, with where its cases are or would be."""
    if path.is_dir() and path.name == CASES_FOLDER and not (path / CASES_FOLDER).is_dir():
        for file in policy_files(path):
            yield from _pairs(file)
        return
    if path.is_dir():
        files = policy_files(path)
        if not files:
            raise PolicyError((f"{path}: found no policy file (*.yaml, *.yml)",))
        cases = path / CASES_FOLDER
        theirs = {file.name for file in files}
        yield from ((file, cases / file.name) for file in files)
        for file in policy_files(cases) if cases.is_dir() else ():
            if file.name not in theirs:
                yield from _pairs(file)
        return
    if not path.exists():
        raise PolicyError((f"{path}: there is none: name a policy, a directory of them, or a case file",))
    content = read_policy_file(path)
    if not is_case_file(content, among_cases=path.parent.name == CASES_FOLDER):
        yield path, path.parent / CASES_FOLDER / path.name
        return
    named = read_case_file(content, str(path)).policy
    yield path.parent / named if named is not None else path.parent.parent / path.name, path


def _run(policy: Path, cases: Path) -> CaseRun:
    found = CaseRun(str(policy), str(cases), has_cases=cases.is_file())
    try:
        content = read_policy_file(policy)
        provider = compile_content(content, str(policy)).provider
        file = (
            read_case_file(read_policy_file(cases), str(cases)) if found.has_cases else CaseFile(str(cases), None, ())
        )
    except PolicyError as error:
        found.problems = error.problems
        return found
    reached: list[Reached] = []
    telling = witnessed(provider, reached.append)
    found.judged = [_judged(case, telling, reached) for case in file.cases]
    operations = {judged.operation for judged in found.judged}
    found.coverage = coverage_of(content, str(policy), operations, reached)
    return found


def _judged(case: Case, provider: Provider, reached: list[Reached]) -> Judged:
    before = len(reached)
    try:
        came = tried(case, provider)
    except CaseError as error:
        return Judged(case, NONE, NONE, (Failure(case.mark, "", "", f"the case cannot be run: {error}"),))
    read = [one for one in reached[before:] if not one.observed]
    if "row" not in came.facts and read:
        came.facts |= {"row": read[-1].row, "class": read[-1].reading}  # it was read as absent
    facts = came.facts
    failures = tuple(
        Failure(
            expected.mark,
            expected.key,
            expected.value,
            facts.get(expected.key, NONE),
            _why(expected.key, expected.value, came),
        )
        for expected in case.expect
        if facts.get(expected.key, NONE) != expected.value
    )
    return Judged(case, facts.get("operation", NONE), facts.get("class", NONE), failures)


def _why(key: str, expected: str, came: Came) -> str:
    """What explains the difference, where something does."""
    if key in {"class", "effect"}:
        return f" (read by {came.facts['row']})" if "row" in came.facts else ""
    if key == "because" and came.context is not None:
        reason = why_not(expected, came.context)
        return f" ({expected} does not apply: {reason})" if reason else ""
    return f" (because {came.facts['because']})" if key == "action" and "because" in came.facts else ""


# --- told


def told(found: list[CaseRun]) -> Iterator[str]:
    """What a person reads: failures first in each file, then what is covered, then what is not."""
    for one in found:
        yield from _told(one)
    cases = sum(len(one.judged) for one in found)
    failed = sum(len(one.failed) for one in found)
    broken = sum(bool(one.problems) for one in found)
    missing = sum(len(one.coverage.missing) for one in found)
    parts = [f"{_counted(cases, 'case')}", f"{failed} failed"]
    parts += [f"{_counted(broken, 'file')} could not be run"] if broken else []
    if any(one.coverage.rules for one in found):
        parts.append(f"{_counted(missing, 'rule')} not reached" if missing else "every rule reached")
    yield ", ".join(parts) + "."


def _told(one: CaseRun) -> Iterator[str]:
    if one.problems:
        yield f"{one.policy}: cannot be tested"
        yield from (f"  {problem}" for problem in one.problems)
        return
    if not one.has_cases:
        yield f"{one.policy}: no cases: write {one.case_file} (docs/policy-tools.md has an example)"
        return
    verdict = (
        f"{len(one.failed)} of {len(one.judged)} cases failed"
        if one.failed
        else f"{_counted(len(one.judged), 'case')} passed"
    )
    yield f"{one.policy}: {verdict}"
    for judged in one.failed:
        yield f"  FAILED {judged.case.name}"
        yield from (f"    {failure}" for failure in judged.failures)
    counts = [f"{kind} {reached} of {there}" for kind, reached, there in one.coverage.counts()]
    yield f"  reached: {', '.join(counts)}"
    for rule in one.coverage.missing:
        yield f"  not reached: {rule.mark.file}:{rule.mark.line}: {rule.name}{f' ({rule.says})' if rule.says else ''}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def as_json(found: list[CaseRun]) -> dict[str, Any]:
    """The same for machines."""
    return {
        "ok": all(one.ok for one in found),
        "covered": all(one.covered for one in found),
        "files": [_file_as_json(one) for one in found],
    }


def _file_as_json(one: CaseRun) -> dict[str, Any]:
    classes: dict[str, set[str]] = {}
    for judged in one.judged:
        classes.setdefault(judged.operation, set()).add(judged.reading)
    return {
        "policy": one.policy,
        "case_file": one.case_file if one.has_cases else None,
        "problems": list(one.problems),
        "cases": [
            {
                "name": judged.case.name,
                "line": judged.case.mark.line,
                "ok": not judged.failures,
                "failures": [
                    {"line": failure.mark.line, "key": failure.key, "expected": failure.expected, "came": failure.came}
                    for failure in judged.failures
                ],
            }
            for judged in one.judged
        ],
        "classes": {operation: sorted(found - {NONE}) for operation, found in sorted(classes.items())},
        "reached": {kind: {"reached": reached, "of": there} for kind, reached, there in one.coverage.counts()},
        "not_reached": [
            {"rule": rule.name, "kind": rule.kind, "file": rule.mark.file, "line": rule.mark.line}
            for rule in one.coverage.missing
        ],
    }
