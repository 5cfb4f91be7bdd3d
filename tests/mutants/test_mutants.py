"""The mutants still fit the product, the runner keeps its promises, and ten mutants are caught in every run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.mutants import __main__ as runner
from tests.mutants import reach
from tests.mutants.all_mutants import MUTANTS, mutant_named
from tests.mutants.changes import argument, left_out, mutant, swapped
from tests.mutants.hunt import Bounds, Ending, Hunted, hunted
from tests.mutants.reach import ReachMap, ReachRun, bounded, in_order
from tests.mutants.results import Results, left_to_hunt, read_caught_by, table_of, write_caught_by
from tests.mutants.sessions import OutOfTimeError, TestRuns
from tests.simulation.planting import Bug, CannotPlantError, Valued, lines_of

# Each with a test file that catches it within a second or two.
TEN = {
    "joined_by_another_credential": "tests/engine/calls/test_between_attempts.py",
    "re_send_lower_cases_the_key": "tests/engine/calls/test_between_attempts.py",
    "later_attempt_under_a_reloaded_policy": "tests/engine/calls/test_between_attempts.py",
    "connections_always_reused": "tests/engine/calls/test_attempt_rules.py",
    "empty_cancel_is_a_cancel": "tests/engine/resolution/test_inquiry_rules.py",
    "inquiry_without_an_amount": "tests/engine/resolution/test_inquiry_rules.py",
    "lease_from_the_answer": "tests/engine/durability/test_lease_rules.py",
    "blank_query_parameters_lost": "tests/core/test_distinctions.py",
    "bulk_action_without_its_reason": "tests/engine/test_told_and_asked.py",
    "secret_in_a_missing_token_line": "tests/engine/resolution/test_inquiry_rules.py",
}


@pytest.mark.parametrize("planted", MUTANTS, ids=lambda planted: planted.name)
def test_a_mutant_still_fits_the_product(planted: Bug) -> None:
    for change in planted.changes:
        change.prepare()  # and goes no further: nothing of it is planted here
        assert lines_of(change)


def test_names_are_unique_and_every_mutant_says_what_it_does() -> None:
    assert not [name for name, count in Counter(planted.name for planted in MUTANTS).items() if count > 1]
    assert all(planted.what for planted in MUTANTS)
    assert len(MUTANTS) >= 100


# --- writing mutants down


def test_a_piece_is_found_as_syntax_however_it_is_written() -> None:
    place = "core.retry.at_least_retry_after_s"
    for change in (
        swapped(place, "max( wait_s,retry_after_s*(1+_RETRY_AFTER_SPREAD*draw) )", "wait_s"),
        swapped(place, "return wait_s", "return 0.0"),
        swapped(place, "if retry_after_s is None:\n    return wait_s", "pass"),
    ):
        change.prepare()
    argument("engine.engine.Engine._start_and_wait", "name='carry'", "name='other'").prepare()
    left_out("engine.engine.Engine._run", "self.single_flight.leave(leader)").prepare()


@pytest.mark.parametrize("text", ["a = 1; b = 2", "a = 1\nb = 2"])
def test_what_is_no_single_piece_is_refused(text: str) -> None:
    with pytest.raises(CannotPlantError):
        swapped("core.retry.retry_after_of", text, "None")


@pytest.mark.parametrize("text", ["1", "a=1, b=2", "*a"])
def test_what_is_no_named_argument_is_refused(text: str) -> None:
    with pytest.raises(CannotPlantError):
        argument("core.retry.retry_after_of", text, "a=2")


def test_a_constant_is_changed_where_it_is_named() -> None:
    [(file, lines)] = lines_of(Valued("paywitness.core.retry._A_DAY_S", lambda day_s: day_s * 2))
    named = Path(file).read_text().splitlines()[lines.start - 1 : lines.stop - 1]
    assert any("_A_DAY_S" in line for line in named)


# --- which tests reach it


def test_the_quickest_test_of_each_file_comes_first() -> None:
    took_s = {"a.py::one": 0.3, "a.py::two": 0.1, "b.py::one": 0.2, "b.py::two": 0.4}
    assert in_order(took_s) == ["a.py::two", "b.py::one", "a.py::one", "b.py::two"]
    assert list(bounded(in_order(took_s), took_s, 2, 9.0)) == ["a.py::two", "b.py::one"]
    assert list(bounded(in_order(took_s), took_s, 9, 0.35)) == ["a.py::two", "b.py::one"]


class _Contexts:
    """What coverage has kept of one file."""

    def __init__(self, by_line: Mapping[int, list[str]]) -> None:
        self._by_line = by_line

    def contexts_by_lineno(self, filename: str) -> Mapping[int, list[str]]:
        return self._by_line


def _run_with(by_line: Mapping[int, list[str]], functions: Mapping[str, reach.Function], file: str) -> ReachRun:
    took_s = {test.partition("|")[0]: 0.1 for tests in by_line.values() for test in tests}
    files = {test.partition("::")[0]: "hash" for test in took_s}
    return ReachRun(took_s, files, {file: functions}, _Contexts(by_line))  # type: ignore[arg-type]


@pytest.fixture
def capped() -> tuple[Bug, str, range, Mapping[str, reach.Function]]:
    """A mutant of one line, with the functions of its file."""
    planted = mutant("waits_less", "waits", swapped("core.retry.at_least_retry_after_s", "return wait_s", "return 0.0"))
    [(file, lines)] = lines_of(planted.changes[0])
    return planted, file, lines, reach.functions_of(Path(file))


def test_a_test_reaches_a_mutant_if_it_runs_its_line(
    capped: tuple[Bug, str, range, Mapping[str, reach.Function]],
) -> None:
    planted, file, lines, functions = capped
    by_line = {lines.start: ["a.py::on|run", "a.py::up|setup"], lines.start + 1: ["a.py::off|run"], 1: ["|"]}
    run = _run_with(by_line, functions, file)
    assert ReachMap((run,)).tests_reaching(planted) == {"a.py::on": 0.1, "a.py::up": 0.1}


def test_a_function_that_has_moved_or_was_edited_is_still_reached(
    capped: tuple[Bug, str, range, Mapping[str, reach.Function]],
) -> None:
    planted, file, lines, functions = capped
    first, last, text = functions["at_least_retry_after_s"]
    moved = {"at_least_retry_after_s": (first + 5, last + 5, text)}
    tests = {lines.start + 5: ["a.py::on|run"], lines.start: ["a.py::off|run"]}
    assert ReachMap((_run_with(tests, moved, file),)).tests_reaching(planted) == {"a.py::on": 0.1}
    edited = {"at_least_retry_after_s": (first, last, "another text")}
    assert set(ReachMap((_run_with({last: ["a.py::on|run"]}, edited, file),)).tests_reaching(planted)) == {"a.py::on"}
    assert not ReachMap((_run_with({last: ["a.py::on|run"]}, {}, file),)).tests_reaching(planted)


def test_the_newest_run_of_a_test_file_counts(
    capped: tuple[Bug, str, range, Mapping[str, reach.Function]],
) -> None:
    planted, file, lines, functions = capped
    before = _run_with({lines.start: ["a.py::gone|run", "b.py::kept|run"]}, functions, file)
    after = _run_with({lines.start: ["a.py::new|run"]}, functions, file)
    assert set(ReachMap((before, after)).tests_reaching(planted)) == {"a.py::new", "b.py::kept"}


# --- the hunt


class _Runs:
    """A session of tests of which some fail with the mutant, some always, and some never end."""

    def __init__(self, with_mutant: set[str], always: set[str] = frozenset(), *, hangs: bool = False) -> None:  # type: ignore[assignment]
        self.with_mutant, self.always, self.hangs = with_mutant, always, hangs

    def run(self, tests: list[str], mutant: str, within_s: float) -> tuple[list[str], int]:
        if self.hangs:
            raise OutOfTimeError
        failing = self.always | (self.with_mutant if mutant else set())
        failed = [test for test in tests if test in failing][:1]
        return failed, tests.index(failed[0]) if failed else len(tests)

    def close(self) -> None:
        pass


class _Reach:
    def __init__(self, *tests: str) -> None:
        self._tests = tests

    def tests_reaching(self, planted: Bug) -> dict[str, float]:
        return dict.fromkeys(self._tests, 0.1)


_NO_WORLDS = Bounds(seeds=0)


def _hunted(runs: _Runs, *tests: str) -> Hunted:
    return hunted(MUTANTS[0], _Reach(*tests), runs, _NO_WORLDS)  # type: ignore[arg-type]


def test_a_test_that_fails_without_the_mutant_too_catches_nothing() -> None:
    flaky = _hunted(_Runs(set(), {"a.py::flaky"}), "a.py::flaky", "a.py::good")
    assert flaky.ending is Ending.SURVIVED
    found = _hunted(_Runs({"a.py::good"}, {"a.py::flaky"}), "a.py::flaky", "a.py::good")
    assert (found.ending, found.by) == (Ending.CAUGHT_BY_TEST, "a.py::good")


def test_a_mutant_that_no_test_catches_is_told_as_survived() -> None:
    survivor = _hunted(_Runs(set()), "a.py::one", "a.py::two")
    assert (survivor.ending, survivor.tests, survivor.caught) == (Ending.SURVIVED, 2, False)
    assert "SURVIVED" not in table_of([MUTANTS[0]], {})
    told = table_of([MUTANTS[0]], {survivor.name: survivor})
    assert f"| {survivor.name} | {MUTANTS[0].what} | 2 |" in told


def test_a_mutant_whose_tests_do_not_end_was_not_caught() -> None:
    endless = _hunted(_Runs(set(), hangs=True), "a.py::one")
    assert (endless.ending, endless.caught) == (Ending.OUT_OF_TIME, False)


# --- results


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    assert results.read() == {}
    first, second, third = MUTANTS[:3]
    results.add(Hunted(first.name, Ending.SURVIVED, "", 9, 1.0))
    results.add(Hunted(second.name, Ending.CAUGHT_BY_WORLD, "seed 3", 9, 1.0))
    known = results.read()
    assert left_to_hunt(MUTANTS[:3], known) == [third]
    assert left_to_hunt(MUTANTS[:3], known, survivors=True) == [first, third]
    assert left_to_hunt(MUTANTS[:3], known, of_product="of today") == [first, second, third]
    results.add(Hunted(second.name, Ending.CAUGHT_BY_TEST, "a.py::one", 1, 1.0, "of today"))
    assert left_to_hunt(MUTANTS[:3], results.read(), of_product="of today") == [first, third]
    results.add(Hunted(first.name, Ending.CAUGHT_BY_TEST, "a.py::one", 1, 1.0))
    assert results.read()[first.name].caught


def test_the_test_that_caught_it_before_is_tried_first(tmp_path: Path) -> None:
    name, path = MUTANTS[0].name, tmp_path / "caught_by.json"
    assert read_caught_by(path) == {}
    write_caught_by(path, {name: Hunted(name, Ending.CAUGHT_BY_TEST, "b.py::last", 9, 1.0)})
    runs, tests = _Runs({"a.py::one", "b.py::last"}), _Reach("a.py::one", "a.py::two", "b.py::last")
    found = hunted(MUTANTS[0], tests, runs, _NO_WORLDS, read_caught_by(path))  # type: ignore[arg-type]
    assert (found.by, found.tests) == ("b.py::last", 1)


def test_what_is_written_down_of_mutants_is_of_those_there_are() -> None:
    assert read_caught_by(runner.CAUGHT_BY).keys() <= {planted.name for planted in MUTANTS}


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Runs:
    """A runner whose tests are given."""
    runs = _Runs({"a.py::one"})
    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    monkeypatch.setattr(runner, "load_map", lambda anew: _Reach("a.py::one"))
    monkeypatch.setattr(TestRuns, "of", lambda files: runs)
    return runs


def test_each_result_is_written_and_shown_and_a_survivor_fails_the_run(given: _Runs, tmp_path: Path) -> None:
    first = [*("--count", "2"), "--seeds", "0"]
    told = CliRunner().invoke(runner.main, first)
    assert told.exit_code == 0, told.output
    assert "[2 of 2, 0 alive" in told.output
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2
    again = CliRunner().invoke(runner.main, first)
    assert "[1 of" not in again.output
    given.with_mutant = set()
    (tmp_path / "results.jsonl").unlink()
    survived = CliRunner().invoke(runner.main, first)
    assert survived.exit_code == 1
    assert survived.output.count("SURVIVED") == 2
    assert CliRunner().invoke(runner.main, ["--only", "no_such_mutant"]).exit_code == 2


def test_mutants_are_chosen_by_words_and_spread_by_a_count() -> None:
    assert [one.name for one in runner.chosen("keys_merged_by_case", None)] == ["keys_merged_by_case"]
    assert all("engine.outbox" in one.changes[0].reference for one in runner.chosen("engine.outbox", None))
    spread = runner.chosen("", 10)
    assert len(spread) == 10
    assert len({one.changes[0].reference.split(".")[1] for one in spread}) >= 3


# --- ten that are caught in every run


@pytest.mark.slow
def test_ten_mutants_are_caught() -> None:
    """Each by a file of quick tests; `make mutants` hunts them all."""
    runs = TestRuns.of(sorted(set(TEN.values())))
    try:
        for name, file in TEN.items():
            failed, _ = runs.run(runs.tests_of(file), mutant_named(name).name, 60.0)
            assert failed, f"{name} survived {file}"
        assert len(TEN) == 10
        began = time.monotonic()
        assert runs.run(runs.tests_of(next(iter(TEN.values()))), "", 60.0)[0] == []
        assert time.monotonic() - began < 60.0
    finally:
        runs.close()
