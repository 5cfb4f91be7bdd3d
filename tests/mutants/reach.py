"""Which tests reach which lines of the product: found once by coverage, kept in `.mutants/`, used for every mutant.

Tests that drive processes of their own are not in it: a mutant is planted in one process. What a test file is worth is
found anew when the file has changed; lines of a function that was edited since are those of the whole function.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import coverage

from tests.simulation.planting import Bug, lines_of

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / ".mutants"
PRODUCT = TOP / "proxy" / "paywitness"
# Rooms whose tests start processes, read files of the repository, or plant bugs themselves.
_ROOMS_LEFT_OUT = ("e2e", "chaos", "deploy", "simulation", "fuzz", "demo", "mutants", "sdks", "sandbox")
_COVERAGE_CONFIG = "[run]\nsource = paywitness\nbranch = false\n"

Function = tuple[int, int, str]  # first line, last line, hash of its text


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{TOP / 'proxy'}{os.pathsep}{TOP}", **more}


@dataclass(frozen=True)
class ReachRun:
    """One run of test files under coverage: the tests that passed, what each took, and the lines that they ran."""

    took_s: Mapping[str, float]
    files: Mapping[str, str]  # the test files and their hashes
    functions: Mapping[str, Mapping[str, Function]]  # of the product by file and name, as they were then
    contexts: coverage.CoverageData

    def tests_on(self, file: str, lines: range) -> set[str]:
        by_line = self.contexts.contexts_by_lineno(file)
        contexts = {context for line in self._lines_then(file, lines) for context in by_line.get(line, ())}
        return {context.rpartition("|")[0] for context in contexts}

    def _lines_then(self, file: str, lines: range) -> range:
        """The lines as they were numbered when the tests ran."""
        now, then = functions_of(Path(file)), self.functions.get(file, {})
        around = [
            (last - first, name)
            for name, (first, last, _) in now.items()
            if first <= lines.start and lines.stop - 1 <= last
        ]
        name = min(around)[1] if around else ""
        if name not in then:
            return range(0)  # it is newer than the run
        first, last, text = then[name]
        if text != now[name][2]:
            return range(first + 1, last + 1)
        moved = first - now[name][0]
        return range(lines.start + moved, lines.stop + moved)


@dataclass(frozen=True)
class ReachMap:
    """What all runs have found. Of a test file the newest run counts."""

    runs: tuple[ReachRun, ...]  # oldest first

    @property
    def files(self) -> dict[str, str]:
        return {name: text for run in self.runs for name, text in run.files.items()}

    def tests_reaching(self, planted: Bug) -> dict[str, float]:
        """The tests that run what the mutant changes, and what each takes."""
        places = [place for change in planted.changes for place in lines_of(change)]
        newest = {name: run for run in self.runs for name in run.files}
        return {
            test: run.took_s[test]
            for run in self.runs
            for file, lines in places
            for test in run.tests_on(file, lines)
            if test in run.took_s and newest[test.partition("::")[0]] is run
        }


def functions_of(file: Path) -> dict[str, Function]:
    """The functions and methods of a file, with the functions in them as parts of them."""
    text = file.read_text()
    found: dict[str, Function] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                source = ast.get_source_segment(text, child) or ""
                last = child.end_lineno or child.lineno
                found[f"{prefix}{child.name}"] = (child.lineno, last, hashlib.sha256(source.encode()).hexdigest()[:16])

    walk(ast.parse(text), "")
    return found


def in_order(tests: Mapping[str, float], places: Iterable[str] = ()) -> list[str]:
    """First the tests of the files that bear the name of a changed module. Then those of its room and all others in
    turn: the quickest of each file, then the next of each, because other files see other things."""
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: (tests[test], test)):
        by_file[test.partition("::")[0]].append(test)
    words = {word for place in places for word in place.split(".")[1:]}
    rooms = {"/".join(place.split(".")[1:-2]) for place in places}
    own = {file for file in by_file if Path(file).stem.removeprefix("test_") in words}
    near = {file for file in by_file if _folder_of(file) in rooms} - own
    groups = (own, near, by_file.keys() - own - near)
    of_module, of_room, others = (_one_of_each([by_file[file] for file in group], tests) for group in groups)
    return [*of_module, *(test for test in chain.from_iterable(zip_longest(of_room, others)) if test is not None)]


def _folder_of(file: str) -> str:
    return str(Path(file).parent.relative_to("tests")) if file.startswith("tests/") else ""


def _one_of_each(files: list[list[str]], tests: Mapping[str, float]) -> list[str]:
    quickest_first = sorted(files, key=lambda some: (tests[some[0]], some[0]))
    return [test for test in chain.from_iterable(zip_longest(*quickest_first)) if test is not None]


def bounded(tests: Iterable[str], took_s: Mapping[str, float], count: int, seconds: float) -> Iterator[str]:
    """So many at most, of so many seconds."""
    spent_s = 0.0
    for number, test in enumerate(tests):
        spent_s += took_s[test]
        if number >= count or spent_s > seconds:
            return
        yield test


# --- the map, made and kept


def load_map(folder: Path = FOLDER, *, processes: int = 2, anew: bool = False) -> ReachMap:
    """The map as it is kept, after another run of the test files that are new or were edited."""
    folder.mkdir(exist_ok=True)
    if anew:
        for kept in (*folder.glob("reach-*"), *folder.glob("coverage-*")):
            kept.unlink()
    runs = [_run_kept_in(kept) for kept in sorted(folder.glob("reach-*.json"))]
    known = ReachMap(tuple(runs)).files
    changed = {name: text for name, text in _test_files().items() if known.get(name) != text}
    if changed:
        sys.stderr.write(f"finding out what {len(changed)} test files reach; some minutes for all of them, once\n")
        runs.append(_run_of(changed, folder, len(runs) + 1, processes))
    return ReachMap(tuple(runs))


def _run_kept_in(kept: Path) -> ReachRun:
    stored = json.loads(kept.read_text())
    contexts = coverage.CoverageData(str(kept.parent / kept.stem.replace("reach", "coverage")))
    contexts.read()
    return ReachRun(stored["took_s"], stored["files"], stored["functions"], contexts)


def _run_of(files: Mapping[str, str], folder: Path, number: int, processes: int) -> ReachRun:
    config, durations, kept = folder / "map.ini", folder / "durations.json", folder / f"reach-{number:03d}.json"
    config.write_text(_COVERAGE_CONFIG)
    durations.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.durations"]
    command += ["-n", str(processes), "--dist", "worksteal", "-m", "not slow", "--cov=paywitness", "--cov-context=test"]
    command += [f"--cov-config={config}", "--cov-report=", *files]
    data = {"COVERAGE_FILE": str(folder / f"coverage-{number:03d}"), "MUTANTS_DURATIONS": str(durations)}
    functions = {str(file): functions_of(file) for file in sorted(PRODUCT.rglob("*.py"))}
    subprocess.run(command, cwd=TOP, env=environment(**data), stdout=subprocess.DEVNULL, check=False)
    took_s = json.loads(durations.read_text())
    kept.write_text(json.dumps({"took_s": took_s, "files": dict(files), "functions": functions}))
    return _run_kept_in(kept)


def _test_files() -> dict[str, str]:
    files = [
        file
        for file in sorted((TOP / "tests").rglob("test_*.py"))
        if file.relative_to(TOP / "tests").parts[0] not in _ROOMS_LEFT_OUT
    ]
    return {str(file.relative_to(TOP)): hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files}
