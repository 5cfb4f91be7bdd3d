"""Every broken policy is refused with the words a person needs: where, what was found, what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tools.broken_policies import FILES, FOLDER, checked, words_of


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_broken_policy_is_told_in_these_words(file: Path) -> None:
    assert words_of(file) == file.with_suffix(".txt").read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_broken_policy_fails_the_check_at_a_place_in_it(file: Path) -> None:
    result = checked(file)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)
    head, *problems = result.output.splitlines()
    assert re.fullmatch(rf"{file.name}: [1-9]\d* errors?", head)
    for problem in problems:
        assert re.match(rf"  {file.name}:[1-9]\d*:[1-9]\d*: \S", problem), problem


def test_there_are_at_least_thirty_and_each_has_its_words() -> None:
    assert len(FILES) >= 30
    assert {path.stem for path in FOLDER.glob("*.txt")} == {path.stem for path in FILES}


def test_a_secret_in_a_file_is_not_repeated() -> None:
    assert "whsec_" not in (FOLDER / "secret_in_the_file.txt").read_text()
