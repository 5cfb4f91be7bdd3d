"""`paywitness policy test`: runs case files against their policies, and reports failures and the rules that no case
reaches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paywitness.core.errors import PolicyError
from paywitness.core.policy import Provider
from paywitness.policy.book import compile_content, policy_files, read_policy_file
from paywitness.policy.reading.locations import SourceLocation
from paywitness.tools.policy_explain import reason_not_applied
from paywitness.tools.policy_test.case import NONE, SITUATIONS, Case
from paywitness.tools.policy_test.case_evaluation import CaseResult, evaluate_case
from paywitness.tools.policy_test.case_file import is_case_file, read_case_file
from paywitness.tools.policy_test.coverage import Coverage, ReachedRule, coverage_of, instrumented
from paywitness.tools.policy_test.flow import CaseFile, Flow, Step
from paywitness.tools.policy_test.flow_evaluation import Facts, FlowRun
from paywitness.tools.policy_test.recognition import CaseError

CASES_FOLDER = "tests"


@dataclass(frozen=True, slots=True)
class CaseFailure:
    """One expectation of a case or of a flow's step that was not met."""

    location: SourceLocation
    key: str
    expected: str
    actual: str
    because: str = ""
    step: int = 0  # of a flow, counted from 1; 0 for a case

    def __str__(self) -> str:
        message = f"expected {self.expected}, came {self.actual}" if self.expected else self.actual
        step, key = f"step {self.step}: " if self.step else "", f"{self.key}: " if self.key else ""
        return f"{self.location.file}:{self.location.line}: {step}{key}{message}{self.because}"


@dataclass(frozen=True, slots=True)
class JudgedCase:
    case: Case
    operation: str
    result_class: str
    failures: tuple[CaseFailure, ...]


@dataclass(frozen=True, slots=True)
class JudgedFlow:
    flow: Flow
    operations: frozenset[str]
    failures: tuple[CaseFailure, ...]


@dataclass(slots=True)
class CaseRun:
    """One policy file with its cases and flows. `problems`: why they could not be run."""

    policy: str
    case_file: str
    judged: list[JudgedCase] = field(default_factory=list)
    flows: list[JudgedFlow] = field(default_factory=list)
    coverage: Coverage = Coverage((), frozenset())
    problems: tuple[str, ...] = ()
    has_cases: bool = True
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> list[JudgedCase]:
        return [judged for judged in self.judged if judged.failures]

    @property
    def failed_flows(self) -> list[JudgedFlow]:
        return [judged for judged in self.flows if judged.failures]

    @property
    def ok(self) -> bool:
        return not self.problems and not self.failed and not self.failed_flows

    @property
    def situations_shown(self) -> dict[str, list[str]]:
        """By situation, in the order of the list: the names of the cases and flows that show it."""
        judged: list[Case | Flow] = [*(one.case for one in self.judged), *(one.flow for one in self.flows)]
        found = {situation: [one.name for one in judged if situation in one.shows] for situation in SITUATIONS}
        return {situation: names for situation, names in found.items() if names}

    @property
    def covered(self) -> bool:
        return self.has_cases and not self.coverage.missing


def run_case_files(paths: Iterable[Path]) -> list[CaseRun]:
    """Test policies, directories of them, or case files. It never raises: every problem is in the result."""
    found: dict[Path, CaseRun] = {}
    for path in paths:
        try:
            for policy, cases in _policies_with_cases(path):
                if policy not in found:
                    found[policy] = _run(policy, cases)
        except (PolicyError, OSError) as error:
            message = error.problems if isinstance(error, PolicyError) else (f"{path}: {error.strerror}",)
            found[path] = CaseRun(str(path), "", problems=tuple(message), has_cases=False)
    return list(found.values())


def _policies_with_cases(path: Path) -> Iterator[tuple[Path, Path]]:
    """Each policy file under the path, with the path of its case file, whether it exists or not."""
    if path.is_dir() and path.name == CASES_FOLDER and not (path / CASES_FOLDER).is_dir():
        for file in policy_files(path):
            yield from _policies_with_cases(file)
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
                yield from _policies_with_cases(file)
        return
    if not path.exists():
        raise PolicyError((f"{path}: not found: name a policy, a directory of them, or a case file",))
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
    found.left_out = file.left_out
    reached: list[ReachedRule] = []
    instrumented_provider = instrumented(provider, reached.append)
    found.judged = [_judge(case, instrumented_provider, reached) for case in file.cases]
    found.flows = [_judge_flow(flow, instrumented_provider) for flow in file.flows]
    operations = {judged.operation for judged in found.judged}.union(*(judged.operations for judged in found.flows))
    found.coverage = coverage_of(content, str(policy), operations, reached)
    return found


def _judge(case: Case, provider: Provider, reached: list[ReachedRule]) -> JudgedCase:
    reached_before = len(reached)
    try:
        result = evaluate_case(case, provider)
    except CaseError as error:
        return JudgedCase(case, NONE, NONE, (CaseFailure(case.location, "", "", f"the case cannot be run: {error}"),))
    read = [one for one in reached[reached_before:] if not one.observed]
    if "row" not in result.facts and read:
        result.facts |= {"row": read[-1].rule, "class": read[-1].result_class}  # it was classified as absent
    facts = result.facts
    failures = tuple(
        CaseFailure(
            expected.location,
            expected.key,
            expected.value,
            facts.get(expected.key, NONE),
            _why(expected.key, expected.value, result),
        )
        for expected in case.expect
        if facts.get(expected.key, NONE) != expected.value
    )
    return JudgedCase(case, facts.get("operation", NONE), facts.get("class", NONE), failures)


def _judge_flow(flow: Flow, provider: Provider) -> JudgedFlow:
    """Run the flow to its end, or to the first step that cannot be run. The steps after that one would test nothing."""
    run, failures, operations = FlowRun(provider), [], set()
    for number, step in enumerate(flow.steps, 1):
        try:
            facts = run.run_step(step)
        except CaseError as error:
            failures.append(CaseFailure(step.location, "", "", f"the step cannot be run: {error}", step=number))
            break
        operations.add(facts.get("operation", NONE))
        failures += _step_failures(step, number, facts)
    return JudgedFlow(flow, frozenset(operations - {NONE}), tuple(failures))


def _step_failures(step: Step, number: int, facts: Facts) -> Iterator[CaseFailure]:
    for expected in step.expect:
        came = facts.get(expected.key, NONE)
        if expected.key == "posting" and came != NONE:
            came = f"{facts['posting.kind']} {facts['posting.amount']}"
        if came != expected.value:
            yield CaseFailure(expected.location, expected.key, expected.value, came, step=number)


def _why(key: str, expected: str, result: CaseResult) -> str:
    """The reason for the difference, if one is known."""
    if key in {"class", "effect"}:
        return f" (read by {result.facts['row']})" if "row" in result.facts else ""
    if key == "because" and result.context is not None:
        reason = reason_not_applied(expected, result.context)
        return f" ({expected} does not apply: {reason})" if reason else ""
    return f" (because {result.facts['because']})" if key == "action" and "because" in result.facts else ""


# --- Reports


def report_lines(found: list[CaseRun]) -> Iterator[str]:
    """Lines for a person: in each file the failures first, then the rules reached, then those not reached."""
    for one in found:
        yield from _file_lines(one)
    cases, flows = sum(len(one.judged) for one in found), sum(len(one.flows) for one in found)
    failed = sum(len(one.failed) + len(one.failed_flows) for one in found)
    broken = sum(bool(one.problems) for one in found)
    missing = sum(len(one.coverage.missing) for one in found)
    parts = [_counted(cases, "case"), *([_counted(flows, "flow")] if flows else []), f"{failed} failed"]
    parts += [f"{_counted(broken, 'file')} could not be run"] if broken else []
    if any(one.coverage.targets for one in found):
        parts.append(f"{_counted(missing, 'rule')} not reached" if missing else "every rule reached")
    yield ", ".join(parts) + "."


def _file_lines(one: CaseRun) -> Iterator[str]:
    if one.problems:
        yield f"{one.policy}: cannot be tested"
        yield from (f"  {problem}" for problem in one.problems)
        return
    if not one.has_cases:
        yield f"{one.policy}: no cases: write {one.case_file} (docs/policy-tools.md has an example)"
        return
    yield f"{one.policy}: {_summary(one)}"
    for judged in one.failed:
        yield f"  FAILED {judged.case.name}"
        yield from (f"    {failure}" for failure in judged.failures)
    for flow in one.failed_flows:
        yield f"  FAILED {flow.flow.name}"
        yield from (f"    {failure}" for failure in flow.failures)
    counts = [f"{kind} {reached} of {there}" for kind, reached, there in one.coverage.counts()]
    yield f"  reached: {', '.join(counts)}"
    for rule in one.coverage.missing:
        described = f" ({rule.description})" if rule.description else ""
        yield f"  not reached: {rule.location.file}:{rule.location.line}: {rule.name}{described}"


def _summary(one: CaseRun) -> str:
    if one.failed or one.failed_flows:
        flows = f" and {len(one.failed_flows)} of {_counted(len(one.flows), 'flow')}" if one.flows else ""
        return f"{len(one.failed)} of {len(one.judged)} cases{flows} failed"
    flows = f" and {_counted(len(one.flows), 'flow')}" if one.flows else ""
    return f"{_counted(len(one.judged), 'case')}{flows} passed"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def as_json(found: list[CaseRun]) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "ok": all(one.ok for one in found),
        "covered": all(one.covered for one in found),
        "files": [_file_as_json(one) for one in found],
    }


def _file_as_json(one: CaseRun) -> dict[str, Any]:
    classes: dict[str, set[str]] = {}
    for judged in one.judged:
        classes.setdefault(judged.operation, set()).add(judged.result_class)
    return {
        "policy": one.policy,
        "case_file": one.case_file if one.has_cases else None,
        "problems": list(one.problems),
        "cases": [
            {
                "name": judged.case.name,
                "line": judged.case.location.line,
                "ok": not judged.failures,
                "failures": [_failure_as_json(failure) for failure in judged.failures],
            }
            for judged in one.judged
        ],
        "flows": [
            {
                "name": judged.flow.name,
                "line": judged.flow.location.line,
                "ok": not judged.failures,
                "failures": [{"step": failure.step, **_failure_as_json(failure)} for failure in judged.failures],
            }
            for judged in one.flows
        ],
        "situations": {"shown": one.situations_shown, "left_out": dict(one.left_out)},
        "classes": {operation: sorted(found - {NONE}) for operation, found in sorted(classes.items())},
        "reached": {kind: {"reached": reached, "of": there} for kind, reached, there in one.coverage.counts()},
        "not_reached": [
            {"rule": rule.name, "kind": rule.kind, "file": rule.location.file, "line": rule.location.line}
            for rule in one.coverage.missing
        ],
    }


def _failure_as_json(failure: CaseFailure) -> dict[str, Any]:
    return {
        "line": failure.location.line,
        "key": failure.key,
        "expected": failure.expected,
        "came": failure.actual,
    }
