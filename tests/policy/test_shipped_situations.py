"""What the case files of the shipped policies show: every situation, or the reason why not; and the table of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paywitness.policy.book import policy_files, read_policy_file
from paywitness.policy.shipped_policies import shipped_directory
from paywitness.tools.policy_test.case import SITUATIONS
from paywitness.tools.policy_test.case_file import read_case_file
from paywitness.tools.policy_test.flow import CaseFile

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text()
NAMES = [file.stem for file in policy_files(shipped_directory())]


def cases_of(name: str) -> CaseFile:
    path = shipped_directory() / "tests" / f"{name}.yaml"
    return read_case_file(read_policy_file(path), str(path))


def shown_by(file: CaseFile) -> set[str]:
    shown = [one.shows for one in file.cases] + [one.shows for one in file.flows]
    return {situation for situations in shown for situation in situations}


@pytest.mark.parametrize("name", NAMES)
def test_every_situation_is_shown_or_left_out_for_a_reason(name: str) -> None:
    file = cases_of(name)
    assert shown_by(file) | file.left_out.keys() == set(SITUATIONS)
    assert all(len(reason.split()) >= 3 for reason in file.left_out.values())


def test_the_page_has_the_table_of_it() -> None:
    lines = [
        "| provider | " + " | ".join(f"`{each}`" for each in SITUATIONS) + " |",
        "|---" * (len(SITUATIONS) + 1) + "|",
    ]
    for name in sorted(NAMES):
        shown = shown_by(cases_of(name))
        cells = ["yes" if situation in shown else "no" for situation in SITUATIONS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    (section,) = re.findall(r"^### What is shown of each$.*?(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    assert [line for line in section.splitlines() if line.startswith("|")] == lines, "\n".join(lines)
